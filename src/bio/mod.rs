//! A bio is one request to one device. It owns the memory of the request until it completes.
//!
//! A request passes its memory to the device in an owned [`Bio`], and gets the memory back in a [`Done`]. While a device owns the bio, no
//! other code can use the memory.

pub(crate) mod slices;

use bitflags::bitflags;

pub use crate::sys::{Buffer, Memory, MemoryOwner};

use crate::error::{self, Errno};
use crate::units::{DevOffset, FilePos, InodeNo};

/// The operation of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BioOp {
    /// A transfer from the device to memory.
    Read,
    /// A transfer from memory to the device.
    Write,
    /// A flush, which makes all earlier writes durable. It carries no data.
    Flush,
}

bitflags! {
    /// The flags of a bio.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct BioFlags: u8 {
        /// If the device cannot begin the request without waiting, the request fails with EAGAIN (`RWF_NOWAIT`).
        const NOWAIT = 0x1;
        /// The issuer polls for the completion (`RWF_HIPRI`).
        const HIPRI = 0x2;
        /// The write is durable when it completes (`RWF_DSYNC`, FUA).
        const DSYNC = 0x4;
        /// The device writes all of the data or nothing (`RWF_ATOMIC`).
        const ATOMIC = 0x8;
        /// If a read fails with EILSEQ (the data do not match their checksums), the queue repeats the read into its own memory, because
        /// another thread may have changed the caller's memory during the read. Devices ignore this flag.
        const REREAD = 0x10;
    }
}

impl BioFlags {
    /// Whether a flag is set that the device must obey. The device ignores only [`REREAD`](Self::REREAD).
    #[inline(always)]
    pub(crate) fn concern_device(self) -> bool {
        self.intersects(Self::all().difference(Self::REREAD))
    }
}

/// Identifies the device of a bio: the queue's own device, or an [attached](crate::device::DeviceQueue::attach) device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dev(pub(crate) u32);

impl Dev {
    /// The device that the queue was made for.
    pub const OWN: Self = Self(0);
}

impl CompletionWork {
    /// The work that must end before a write is reported as complete.
    /// The work for the metadata of the written range.
    pub(crate) const OF_RANGE: Self = Self::CONVERT.union(Self::REMAP);
    pub(crate) const BEFORE_COMPLETION: Self = Self::DATASYNC.union(Self::SYNC).union(Self::REMAP);
}

bitflags! {
    /// The work that remains after the device has written the data. After an overwrite of written blocks, no work remains.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CompletionWork: u8 {
        /// The data were written to an unwritten extent, which must be converted to a written extent.
        const CONVERT = 0x1;
        /// The write ends past the end of the file, so the file's size must grow.
        const GROW = 0x2;
        /// The file must be synced with `fdatasync`.
        const DATASYNC = 0x4;
        /// The file must be synced with `fsync`.
        const SYNC = 0x8;
        /// The data were written to new blocks, because the file shares its old blocks with other files. The new blocks enter the file's
        /// extent map before the write is reported as complete. Until then, reads use the old blocks.
        const REMAP = 0x20;
        /// The write has reserved a range past the end of the file. No append writes to this range before the write ends.
        const RESERVED = 0x10;
    }
}

/// The request that a bio belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BioEnd {
    /// A bio that is a whole request. It contains all values that are needed when the request ends.
    Whole {
        /// The token with which the caller identifies the request.
        token: u64,
        /// The file's inode number, for an error event.
        inode: InodeNo,
        /// The position in the file, for an error event.
        pos: FilePos,
    },
    /// A bio that is a whole request to a file that can change. The file's content is locked until the request ends.
    Live {
        /// The token with which the caller identifies the request.
        token: u64,
        /// The position in the file.
        pos: FilePos,
        /// The index of the file in its queue's table of files.
        slot: u32,
        /// The work that remains after the device has written the data.
        left: CompletionWork,
    },
    /// A bio that is a part of a request. The queue stores the state of the request.
    Part {
        /// The request's index in its queue.
        request: u32,
        /// The part's index in the request, or `u32::MAX` for a copy of the whole request.
        part: u32,
    },
}

impl BioEnd {
    /// Returns the token and the file's index of a whole request that needs no more work after a full transfer. The index is `None` if the
    /// file cannot change. For any other bio, the result is `None`.
    #[inline(always)]
    pub(crate) fn whole(&self) -> Option<(u64, Option<u32>)> {
        match *self {
            Self::Whole { token, .. } => Some((token, None)),
            Self::Live { token, slot, left, .. } if left.is_empty() => Some((token, Some(slot))),
            _ => None,
        }
    }

    /// Stores `number` in the bio, and returns the number that it replaces. For a part of a request, `number` must have at most 32 bits.
    #[inline(always)]
    pub(crate) fn renumber(&mut self, number: u64) -> u64 {
        match self {
            Self::Whole { token, .. } | Self::Live { token, .. } => {
                std::mem::replace(token, number)
            }
            Self::Part { request, .. } => u64::from(std::mem::replace(request, number as u32)),
        }
    }
}

/// One request to one device.
#[derive(Debug)]
pub struct Bio {
    /// The operation.
    pub op: BioOp,
    /// The flags of the request.
    pub flags: BioFlags,
    /// The device of the request.
    pub dev: Dev,
    /// The position on the device.
    pub at: DevOffset,
    /// The memory to read into or write from.
    pub memory: Memory,
    /// The request that the bio belongs to.
    pub end: BioEnd,
}

/// A bio that has completed. Its memory belongs to the caller again.
#[derive(Debug)]
pub struct Done {
    /// The bio.
    pub bio: Bio,
    /// The number of bytes that were transferred, or the errno of the device.
    pub result: Result<usize, Errno>,
}

/// The result of a bio that is a whole request, has transferred all of its bytes, and needs no more work.
#[derive(Debug)]
pub struct Whole {
    /// The token with which the caller identifies the request.
    pub token: u64,
    /// The index of the request's file in the queue's table of files, if the file can change.
    pub slot: Option<u32>,
    /// The memory that was read into or written from.
    pub memory: Memory,
}

impl Done {
    /// Converts the bio to the result of a [`Whole`] request.
    ///
    /// # Errors
    /// Returns the completed bio if it is a part of a request, if its transfer was short, or if it needs more work.
    #[inline(always)]
    #[allow(
        clippy::result_large_err,
        reason = "the error returns the complete bio without an allocation"
    )]
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
    /// The token with which the caller identifies the request.
    pub token: u64,
    /// The memory that the request was started with.
    pub memory: Memory,
    /// The number of bytes that were transferred. A read is short only at the end of the file.
    pub result: error::Result<usize>,
}

impl Completion {
    /// The bytes that were transferred, and the buffer that the request was started with.
    ///
    /// # Errors
    /// The error of the request. The buffer is then freed. To keep the buffer, use the field [`memory`](Self::memory). `InvalidInput` if
    /// the request had several buffers.
    pub fn into_buffer(self) -> error::Result<(usize, Buffer)> {
        let count = self.result?;
        match self.memory {
            Memory::Flat(buffer) => Ok((count, buffer)),
            Memory::Vectored(_) => Err(error::Error::invalid(
                "the request had several buffers: call into_memory instead",
            )),
        }
    }
}
