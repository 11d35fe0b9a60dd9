//! The limits of requests to a file, and the rules that determine whether memory is copied. The limits follow from the device and the
//! file's block size.

use super::{DioFlags, NotSimple, Request, Source};
use crate::bio::BioFlags;
use crate::device::Limits;
use crate::error::Error;
use crate::units::FilePos;

/// `IOV_MAX`: Linux refuses a request with more buffers.
const MAX_SEGMENTS: usize = 1024;

/// How memory is kept unchanged during a transfer, for a device that computes checksums, protection information or parity over the memory.
///
/// If the memory of a write changes during the transfer, the stored checksum does not match the stored data. If the memory of a read
/// changes, the read fails although the medium has no error. Other code may write to borrowed bytes (`&[u8]`): for example, another process
/// may share this memory. While a [`Buffer`](crate::bio::Buffer) is in a queue or is borrowed by a call, only `unsafe` code can write to
/// it.
///
/// The compiler ensures that safe code cannot change a buffer that is in a queue or is borrowed by a call:
///
/// ```compile_fail,E0382
/// # use ironmap::{File, Queue, bio::Buffer, dio::DioFlags, units::FilePos};
/// # fn write(file: &File, queue: &mut Queue) -> ironmap::Result<()> {
/// let mut buffer = Buffer::aligned(4096)?;
/// let submitted = file.submit_write(queue, buffer, FilePos(0), DioFlags::empty(), 0);
/// buffer[0] = 1; // the buffer has moved
/// # Ok(())
/// # }
/// ```
///
/// If the verification of a read fails, the read is repeated once, into memory of the queue. If the repeated read fails too, the error is
/// EILSEQ. With `ZeroCopy`, reads are not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StablePages {
    /// The caller promises not to change the memory. Data are not copied, and reads are not repeated. This is the default if the device
    /// does not compute checksums over data ([`Limits::stable_writes`] is false).
    ZeroCopy,
    /// Every read and every write is copied through the queue's bounce buffers.
    Bounce,
    /// Writes are copied. Reads are not copied; if the verification of a read fails, the read is repeated.
    Lazy,
    /// A write of borrowed bytes is copied. A write of a [`Buffer`](crate::bio::Buffer) is not copied. Reads are handled as with `Lazy`.
    /// This is the default if the device computes checksums over data.
    Owned,
}

impl StablePages {
    /// All methods.
    pub const ALL: [Self; 4] = [Self::ZeroCopy, Self::Bounce, Self::Lazy, Self::Owned];

    /// Returns the short name of the method, for options and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::Bounce => "bounce",
            Self::Lazy => "lazy",
            Self::Owned => "owned",
        }
    }

    fn of(limits: &Limits) -> Self {
        if limits.stable_writes { Self::Owned } else { Self::ZeroCopy }
    }
}

/// The limits of requests to a file, which follow from the device and the file's block size. They are computed once, when the file is
/// opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(super) limits: Limits,
    /// The size of a file-system block in bytes.
    pub(super) block: u64,
    /// The bits that must be zero in a position and a length.
    pub(super) sector_mask: u64,
    /// The bits that must be zero in a memory address.
    dma_mask: usize,
    /// Memory is copied if its address has one of these bits. If memory is always copied, all bits are set.
    pub(super) copied: Copied,
    /// [`BioFlags::REREAD`] if reads are repeated after a failed verification, otherwise no flag.
    reread: BioFlags,
}

/// The bits of memory addresses that require a copy, for each kind of operation. If an address contains one of these bits, the memory is
/// copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copied {
    pub(super) reads: usize,
    pub(super) lent_writes: usize,
    pub(super) owned_writes: usize,
    /// The bits for writes whose memory belongs to ironmap itself.
    pub(super) ours: usize,
}

impl Copied {
    /// Returns the address bits that require a copy for a synchronous write. The bits depend on the owner of the memory.
    #[inline(always)]
    pub(super) fn writes_of(&self, source: Source) -> usize {
        match source {
            Source::Lent => self.lent_writes,
            Source::Buffer => self.owned_writes,
            Source::Engine => self.ours,
        }
    }
}

impl Geometry {
    /// Creates the limits, with the device's default for [`StablePages`].
    pub(crate) fn new(limits: &Limits, block: u64) -> Self {
        let dma_mask = limits.dma_align as usize - 1;
        let geometry = Self {
            limits: *limits,
            block,
            sector_mask: u64::from(limits.logical_block) - 1,
            dma_mask,
            copied: Copied { reads: 0, lent_writes: 0, owned_writes: 0, ours: dma_mask },
            reread: BioFlags::empty(),
        };
        geometry.with(Some(StablePages::of(limits)))
    }

    /// Changes the method that keeps memory unchanged. If `stable` is `None`, nothing changes.
    pub(crate) fn with(mut self, stable: Option<StablePages>) -> Self {
        let Some(stable) = stable else { return self };
        let mask = |copied: bool| if copied { usize::MAX } else { self.dma_mask };
        self.copied = Copied {
            reads: mask(stable == StablePages::Bounce),
            lent_writes: mask(stable != StablePages::ZeroCopy),
            owned_writes: mask(matches!(stable, StablePages::Bounce | StablePages::Lazy)),
            ours: self.dma_mask,
        };
        let again = stable != StablePages::ZeroCopy && !self.limits.rereads;
        self.reread.set(BioFlags::REREAD, again);
        self
    }

    /// Whether the device accepts a request at this position with these buffers (address and length). The address of an empty buffer is
    /// ignored.
    pub(crate) fn is_aligned(
        &self,
        pos: FilePos,
        bufs: impl ExactSizeIterator<Item = (usize, usize)>,
    ) -> bool {
        self.has_none(self.dma_mask, pos, bufs)
    }

    /// Whether a request needs no copy of its memory. The caller has checked that one mapping covers the request. `copied` contains the
    /// address bits that require a copy.
    pub(super) fn is_direct(
        &self,
        copied: usize,
        request: &Request,
        bufs: impl ExactSizeIterator<Item = (usize, usize)>,
    ) -> bool {
        !request.flags.contains(DioFlags::BOUNCE) && self.has_none(copied, request.pos, bufs)
    }

    /// Whether the device might refuse the address of a buffer that was cut at a sector boundary.
    pub(super) fn cuts_can_be_misaligned(&self) -> bool {
        self.dma_mask as u64 > self.sector_mask
    }

    /// Whether the device accepts an address that is `distance` bytes after another accepted address.
    pub(super) fn takes_distance(&self, distance: u64) -> bool {
        distance & self.dma_mask as u64 == 0
    }

    fn has_none(
        &self,
        mask: usize,
        pos: FilePos,
        mut bufs: impl ExactSizeIterator<Item = (usize, usize)>,
    ) -> bool {
        pos.0 & self.sector_mask == 0
            && bufs.len() <= MAX_SEGMENTS
            && bufs.all(|(address, len)| {
                len == 0 || address & mask == 0 && len as u64 & self.sector_mask == 0
            })
    }

    /// Whether all reads are copied, at every address.
    #[inline(always)]
    pub(super) fn copies_reads(&self) -> bool {
        self.copied.reads == usize::MAX
    }

    /// Whether all writes of owned memory are copied, at every address.
    #[inline(always)]
    pub(crate) fn copies_owned_writes(&self) -> bool {
        self.copied.owned_writes == usize::MAX
    }

    /// Returns the reason why memory is copied. Only one address is examined, because the function runs for each copied request.
    #[cold]
    pub(super) fn why_copied(&self, pos: FilePos, len: usize, address: usize) -> NotSimple {
        if (pos.0 | len as u64) & self.sector_mask == 0 && address & self.dma_mask == 0 {
            NotSimple::Stable
        } else {
            NotSimple::Misaligned
        }
    }

    /// Whether a read is repeated if its data do not match their checksums.
    pub(super) fn rereads(&self) -> bool {
        !self.reread.is_empty()
    }

    /// Returns the flags for the bio of a read.
    pub(super) fn for_read(&self, flags: DioFlags) -> BioFlags {
        flags.for_bio() | self.reread
    }

    /// Returns the smallest aligned range that contains the `len` bytes at `pos`: its start, its length, and the distance from its start to
    /// `pos`.
    pub(crate) fn widen(&self, pos: FilePos, len: usize) -> (FilePos, usize, usize) {
        let start = pos.0 & !self.sector_mask;
        let skip = (pos.0 - start) as usize;
        let widened = (skip + len).next_multiple_of(self.sector());
        (FilePos(start), widened, skip)
    }

    /// Whether the position and the length are multiples of the sector size.
    pub(crate) fn takes(&self, pos: FilePos, len: usize) -> bool {
        (pos.0 | len as u64) & self.sector_mask == 0
    }

    /// Returns the device's logical block size in bytes.
    pub(crate) fn sector(&self) -> usize {
        self.sector_mask as usize + 1
    }

    /// Returns the length of the longest transfer in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.limits.max_transfer as usize
    }

    /// Returns the length of the longest atomic write in bytes, or 0 if the device does not support atomic writes.
    pub(crate) fn atomic(&self) -> usize {
        self.limits.atomic_write as usize
    }

    /// Returns the error for a request that the device does not accept.
    #[cold]
    pub(crate) fn misaligned(&self, pos: FilePos, len: usize) -> Error {
        let Limits { logical_block, dma_align, .. } = self.limits;
        Error::invalid(format!(
            "direct I/O of {len} bytes at {pos}: position and length must be multiples of {logical_block}, buffer \
             addresses must be multiples of {dma_align}; at most {MAX_SEGMENTS} buffers are allowed"
        ))
    }
}
