//! A bio: one request to one device, and the memory that it owns until it completes.
//!
//! Data moves down as an owned [`Bio`] and comes back once, as a [`Done`] that carries it: the owner of the bio owns the
//! memory, and while a device has it, nobody else does.

use bitflags::bitflags;

pub use crate::sys::{Buffer, Memory};

use crate::error::{self, Errno};
use crate::units::{DevOffset, FilePos, InodeNo};

/// The operation of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BioOp {
    /// From the device to memory.
    Read,
    /// From memory to the device.
    Write,
    /// Makes everything written before durable. Carries no data.
    Flush,
}

bitflags! {
    /// How a bio is carried out.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct BioFlags: u8 {
        /// EAGAIN rather than wait (`RWF_NOWAIT`).
        const NOWAIT = 0x1;
        /// Poll for the completion (`RWF_HIPRI`).
        const HIPRI = 0x2;
        /// The write is durable when it completes (`RWF_DSYNC`, FUA).
        const DSYNC = 0x4;
        /// The write is done wholly or not at all (`RWF_ATOMIC`).
        const ATOMIC = 0x8;
        /// A read that ends with EILSEQ, since the data do not match their checksums, is done once more, into memory of the queue's
        /// own: a thread with access to the caller's may have written there meanwhile. Devices have nothing to do with it.
        const REREAD = 0x10;
    }
}

impl BioFlags {
    /// Whether a device has to do something else than without flags.
    #[inline(always)]
    pub(crate) fn concern_device(self) -> bool {
        self.intersects(Self::all().difference(Self::REREAD))
    }
}

/// Which of its queue's devices a bio goes to: the one that the queue was made for, or one that was
/// [attached](crate::device::DeviceQueue::attach).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dev(pub(crate) u32);

impl Dev {
    /// The device that the queue was made for.
    pub const OWN: Self = Self(0);
}

impl CompletionWork {
    /// A write that leaves any of this is complete only when it is done.
    pub(crate) const BEFORE_COMPLETION: Self = Self::DATASYNC.union(Self::SYNC).union(Self::REMAP);
}

bitflags! {
    /// The work that a successful write leaves; an overwrite leaves none.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CompletionWork: u8 {
        /// It went to an unwritten extent, which has to be converted.
        const CONVERT = 0x1;
        /// It ends beyond the file's size.
        const GROW = 0x2;
        /// The file is to be synced, as far as its data need it.
        const DATASYNC = 0x4;
        /// All of the file is to be synced.
        const SYNC = 0x8;
        /// It went to new blocks in the place of shared ones. The file's map takes them in before the write is reported as complete: until then
        /// reads go to the old blocks.
        const REMAP = 0x20;
        /// It has reserved a range beyond the end of the file, which no other write takes until it has ended.
        const RESERVED = 0x10;
    }
}

/// Whom a bio's completion concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BioEnd {
    /// A whole request in one bio, with everything that its completion needs.
    Whole {
        /// The caller's name for the request.
        token: u64,
        /// The file, for an error event.
        inode: InodeNo,
        /// The position in the file, for an error event.
        pos: FilePos,
    },
    /// The same for a file that can change, whose content is held until then.
    Live {
        /// The caller's name for the request.
        token: u64,
        /// The position in the file.
        pos: FilePos,
        /// The file's place in its queue.
        slot: u32,
        /// The work that a successful write leaves.
        left: CompletionWork,
    },
    /// A part of a request whose state its queue keeps.
    Part {
        /// The request's index in its queue.
        request: u32,
        /// The part's index in the request, or `u32::MAX` for a copy that is all of it.
        part: u32,
    },
}

impl BioEnd {
    /// Of a whole request that leaves nothing to be done when all of it was transferred: its token, and the place of the file that can change.
    #[inline(always)]
    pub(crate) fn whole(&self) -> Option<(u64, Option<u32>)> {
        match *self {
            Self::Whole { token, .. } => Some((token, None)),
            Self::Live { token, slot, left, .. } if left.is_empty() => Some((token, Some(slot))),
            _ => None,
        }
    }
}

/// One request to one device.
#[derive(Debug)]
pub struct Bio {
    /// The operation.
    pub op: BioOp,
    /// How.
    pub flags: BioFlags,
    /// To which device.
    pub dev: Dev,
    /// Where on the device.
    pub at: DevOffset,
    /// The memory to read into or write from.
    pub memory: Memory,
    /// Whom the completion concerns.
    pub end: BioEnd,
}

/// A bio that has completed: its memory is the caller's again.
#[derive(Debug)]
pub struct Done {
    /// The bio.
    pub bio: Bio,
    /// Bytes transferred, or the device's errno.
    pub result: Result<usize, Errno>,
}

/// All that is needed of a bio that was a whole request, transferred all of it, and leaves nothing to be done.
#[derive(Debug)]
pub struct Whole {
    /// The caller's name for the request.
    pub token: u64,
    /// The place in its queue of a file that can change.
    pub slot: Option<u32>,
    /// The memory that was read into or written from.
    pub memory: Memory,
}

impl Done {
    /// The bio as a [`Whole`] request, if it is one.
    ///
    /// # Errors
    /// Gives any other one back.
    #[inline(always)]
    #[allow(clippy::result_large_err, reason = "the bio moves back whole, without an allocation")]
    pub fn whole(self) -> Result<Whole, Self> {
        match self.bio.end.whole() {
            Some((token, slot)) if self.result == Ok(self.bio.memory.len()) => {
                Ok(Whole { token, slot, memory: self.bio.memory })
            }
            _ => Err(self),
        }
    }
}

/// A request that is done, and its memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The caller's name for the request.
    pub token: u64,
    /// The memory that went down with it.
    pub memory: Memory,
    /// Bytes read: less than asked only at the end of the file.
    pub result: error::Result<usize>,
}

impl Completion {
    /// The bytes that were transferred, and the buffer that the request was started with.
    ///
    /// # Errors
    /// That of the request. The buffer is freed then; a caller that wants it back takes [`memory`](Self::memory). `InvalidInput` where the request had
    /// several buffers.
    pub fn into_buffer(self) -> error::Result<(usize, Buffer)> {
        let count = self.result?;
        match self.memory {
            Memory::Flat(buffer) => Ok((count, buffer)),
            Memory::Vectored(_) => {
                Err(error::Error::invalid("the request had several buffers: take its memory"))
            }
        }
    }
}
