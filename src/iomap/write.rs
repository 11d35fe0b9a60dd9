//! The interface for writes between the direct-I/O core and a file system. It consists of the calls before the data transfer, and the work
//! after it.
//!
//! | Step | When | Result |
//! |---|---|---|
//! | [`WriteFile::read`] | once after each change of the inode | a [`Snapshot`]: size, map, and the change counter for which both are valid |
//! | [`WriteMap::begin`] | each write that is not a plain overwrite | whether the write is permitted, and whether the device or the file system carries it out |
//! | [`MapFile::map_to_write`], [`WriteFile::allocate`] | each write that is not a plain overwrite | the mapping for its data: device, position, flags; holes get unwritten blocks, shared blocks get new ones |
//! | the transfer | each write | one bio, or several |
//! | [`Iomap::completion_work`] | each write | the [`CompletionWork`] after a successful transfer, which follows from the mapping |
//! | [`WriteFile::convert`] | later, for many writes together; before the completion if blocks were shared | one transaction, which adds these writes to the metadata |
//!
//! `convert` gets the parts of completed writes from [`OpenInode::unconverted`](crate::open_file::OpenInode::unconverted). Each [`Written`]
//! part contains its range, its work, and the place of its data. So a format that has allocated new blocks in advance can tell which of
//! them contain data. The same value contains the ranges of writes that failed or were cancelled, whose blocks the format can free.
//!
//! A plain overwrite needs only the transfer. Its mapping is in memory, and is valid until the change counter of the inode changes. After a
//! change, the core reads a new [`Snapshot`]. (Linux marks an outdated mapping with a flag; ironmap only compares the counter.) For every
//! format, the core (`open_file`) adds the new size and the sync to the completion work, and records written ranges that are not yet
//! converted.
//!
//! **Copy-on-write.** The mappings of shared blocks have [`IomapFlags::SHARED`]. Writes to other blocks of the file are plain overwrites.
//! `map_to_write` returns the new blocks for the data, or a hole. For a hole, `allocate` allocates blocks. After the transfer, the write
//! needs [`CompletionWork::REMAP`]: `convert` puts the new blocks into the map, and the write completes. The [file
//! system](Begun::ByFileSystem) carries out a write to a part of a shared block.
//!
//! Source: Linux's `iomap_ops` (`begin`, `end`) and `iomap_dio_ops` (`end_io`), with two differences. First, `begin` in Linux returns one
//! mapping, and the core calls it again for the next mapping. In ironmap, one call of `begin` covers the whole range, one transaction
//! allocates all blocks, and the mappings are then read without a lock. Second, Linux calls `end` for each mapping. ironmap computes the
//! completion work from the mapping, because a call of the file system's code would cost more than the write. Zeroing past the end is a
//! separate step ([`WriteFile::zero_tail`]), like Linux's `iomap_zero_range`.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use bitflags::bitflags;

use smallvec::SmallVec;

use super::{ExtentMap, Iomap, IomapFlags, IomapType, MapFile};
pub use crate::bio::CompletionWork;
use crate::error::{Error, Result};
use crate::units::{DevOffset, FilePos};

bitflags! {
    /// The options of a write.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WriteIntent: u8 {
        /// The write fails with `WouldBlock` if it would have to wait for metadata or change metadata.
        const NOWAIT = 0x1;
        /// The write fails if there is not enough space for all data. Without this option, the write is short.
        const WHOLE = 0x2;
        /// The write is an append: it begins at the current end of the file.
        const APPEND = 0x4;
        /// The data come from a writeback cache, which has already checked the permissions. An append-only file accepts the write at any
        /// position.
        const WRITE_BACK = 0x8;
        /// The write keeps set-id bits, because its process has `CAP_FSETID`.
        const KEEP_SET_ID = 0x10;
    }
}

/// A write, with the values that the file system needs.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// The position in the file of the first byte that is written.
    pub pos: FilePos,
    /// The number of bytes.
    pub len: u64,
    /// The size of the file, including writes that are not yet in the metadata.
    pub size: u64,
    /// The size of the file when the rest of its last block was zeroed for this write. `None` if the rest was not zeroed.
    pub zeroed: Option<u64>,
    /// The options of the write.
    pub intent: WriteIntent,
}

/// Whether the device or the file system carries out a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The device writes to the blocks in the file's mappings.
    Direct {
        /// Whether the file can have unwritten blocks. If true, the core [allocates](WriteFile::allocate) unwritten blocks for holes before
        /// the write. If false, the file system carries out each write into a hole.
        allocates: bool,
    },
    /// The file system writes ([`WriteFile::write_from`]), because the file has inline data or cannot have unwritten blocks.
    ByFileSystem,
    /// The write begins past the end of the file. The rest of the last block is [zeroed](WriteFile::zero_tail) before the device writes the
    /// data.
    ZeroTail,
}

/// The position in the file at which data are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// The data are written at this position.
    Pos(FilePos),
    /// The write is an append: the data are written at the end of the file, or after the last write in flight that extends the file.
    End,
}

impl WriteAt {
    /// Returns the range of the content that a write of `len` bytes locks. An append locks the whole content, so that the end of the file
    /// does not change.
    pub(crate) fn range(self, len: u64) -> Range<u64> {
        match self {
            Self::Pos(FilePos(pos)) => pos..pos.saturating_add(len),
            Self::End => 0..u64::MAX,
        }
    }
}

/// The size, the map and the change counter of a file at one moment.
pub struct Snapshot {
    /// The inode's change counter. The snapshot is valid until the counter changes.
    pub changes: u64,
    /// Whether an overwrite of mapped blocks that are not [shared](IomapFlags::SHARED) needs only the transfer. This is false for files
    /// with set-id bits or inline data, and for files whose writes the file system must check.
    pub plain: bool,
    /// The size and the map. The map does not keep the file open: a queue may have a snapshot of a closed file.
    pub map: Box<dyn WriteMap>,
}

/// The metadata of a writable file as they were when they were [read](WriteFile::read).
pub trait WriteMap: MapFile + Send {
    /// The size in bytes according to the metadata.
    fn size(&self) -> u64;

    /// The map, if the whole map is in memory.
    fn resident_map(&self) -> Option<&Arc<ExtentMap>>;

    /// Returns the mapping of a position in the current metadata, and the current change counter. `seen` is the counter of this snapshot.
    /// If the counter has not changed, the map of this snapshot is used. If `whole` is true, the whole map is read and stays in memory.
    ///
    /// # Errors
    /// The errors of reading and checking the metadata.
    fn map_now(&self, pos: FilePos, seen: u64, whole: bool) -> Result<(Iomap, u64)>;

    /// Checks whether a write is permitted. Returns whether the device or the file system carries out the write. Removes set-id bits that
    /// the write must remove, in a separate transaction. The caller has locked the content of the file, so that no block moves.
    ///
    /// # Errors
    /// `ReadOnly`, `NotPermitted`, `FileTooLarge`, `Encrypted`, `Unsupported`; `WouldBlock` with [`WriteIntent::NOWAIT`].
    fn begin(&self, write: &Write) -> Result<Begun>;
}

/// An open file whose data can be written.
pub trait WriteFile: Send + Sync {
    /// Reads the metadata of the file for later requests. Only two flags of `intent` have an effect: [`WriteIntent::NOWAIT`] and
    /// [`WriteIntent::KEEP_SET_ID`].
    ///
    /// # Errors
    /// The errors of reading and checking the metadata; `WouldBlock` if the call would wait for a lock or the device.
    fn read(&self, intent: WriteIntent) -> Result<Snapshot>;

    /// Returns the mapping of a position in the current metadata, and the current change counter. This method is for callers that need only
    /// the layout of the file. It does not read the additional metadata that a write needs.
    ///
    /// # Errors
    /// The errors of [`MapFile::map`].
    fn map(&self, pos: FilePos) -> Result<(Iomap, u64)> {
        let snapshot = self.read(WriteIntent::empty())?;
        snapshot.map.map_now(pos, snapshot.changes, true)
    }

    /// Copies inline data from the current metadata.
    ///
    /// # Errors
    /// The errors of [`MapFile::read_inline`].
    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.read(WriteIntent::empty())?.map.read_inline(buf, pos)
    }

    /// Returns the size of the file, including writes that are not yet in the metadata.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    fn size(&self) -> Result<u64>;

    /// Allocates unwritten blocks for the holes of a range of bytes. Returns the end of the allocated part. If the space is exhausted after
    /// at least one block was allocated, the returned end is before the end of the range. If `whole` is set, the call fails instead. Blocks
    /// that were allocated before an error stay unwritten. If such blocks are past the end of the file, recovery frees them.
    ///
    /// # Errors
    /// `NoSpace` or `Quota` if the first block cannot be allocated, or, if `whole` is set, if any block cannot be allocated; `ReadOnly`,
    /// `Io`.
    fn allocate(&self, range: Range<u64>, whole: bool) -> Result<u64>;

    /// Zeroes the part of the last block that is past the end of the file.
    ///
    /// # Errors
    /// `Busy` if the calling thread has requests in flight and would have to wait; `ReadOnly`, `Io`.
    fn zero_tail(&self) -> Result<()>;

    /// Writes data without the direct-I/O core: the file system transfers the data itself. Returns the position and the number of bytes
    /// written.
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate) and [`WriteMap::begin`]; `Busy` if the calling thread has requests in flight and would
    /// have to wait.
    fn write_from(
        &self,
        at: WriteAt,
        bufs: &[IoSlice<'_>],
        intent: WriteIntent,
    ) -> Result<(FilePos, usize)>;

    /// Carries out the completion work of all completed writes in one transaction. After the transaction, increments the change counter,
    /// and then removes the pending work. The inode is locked from the increment to the removal.
    ///
    /// # Errors
    /// `Busy` if the calling thread has requests in flight and would have to wait; `NoSpace` if an extent must be split; `ReadOnly`, `Io`.
    fn convert(&self) -> Result<()>;

    /// Makes written data durable, with the metadata that a read needs. If `data_only` is not set, all other metadata become durable too.
    ///
    /// # Errors
    /// The errors of [`convert`](Self::convert), and of a commit.
    fn sync(&self, data_only: bool) -> Result<()>;

    /// Whether the metadata that a read of the file needs are durable. If so, a durable write needs no commit: it is sufficient that its
    /// data reach the medium.
    fn is_durable(&self) -> bool;

    /// Makes the volume read-only after an error. Calls `then` at a point after which no change of the volume can succeed.
    fn end_volume(&self, why: &Error, then: &mut dyn FnMut());

    /// Records the time of a write without a transaction. The default implementation does nothing.
    fn stamp_write(&self) {}

    /// Counts a request that waited for a range of the content, or that locked a range exclusively.
    fn contended(&self, _what: Contended) {}
}

/// How a request was affected by exclusive locks of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contended {
    /// The request waited until a range was unlocked.
    Waited,
    /// The request itself locked a range exclusively.
    Alone,
}

/// A range of a completed write, with the place of its data and the work that the metadata need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// The first byte of the range in the file.
    pub pos: FilePos,
    /// The length in bytes; never 0.
    pub len: u64,
    /// The first byte of the data on the device.
    pub addr: DevOffset,
    /// [`CompletionWork::CONVERT`], [`CompletionWork::REMAP`] or both.
    pub work: CompletionWork,
}

/// The parts of a write. Most writes have at most one part with completion work.
pub(crate) type WrittenParts = SmallVec<[Written; 1]>;

impl Written {
    /// Returns the part of a write with this mapping, or `None` if the mapping requires no metadata update.
    pub(crate) fn of(iomap: &Iomap) -> Option<Self> {
        let work = iomap.completion_work().filter(|work| !work.is_empty())?;
        let Iomap { pos, len, addr, .. } = *iomap;
        Some(Self { pos, len, addr, work })
    }

    /// Returns a write of this range to one place on the data device, or `None` if `work` contains no work for the metadata of the range.
    pub(crate) fn at(
        pos: FilePos,
        len: usize,
        addr: DevOffset,
        work: CompletionWork,
    ) -> Option<Self> {
        let work = work & CompletionWork::OF_RANGE;
        (!work.is_empty()).then_some(Self { pos, len: len as u64, addr, work })
    }

    /// The first byte after the range.
    #[must_use]
    pub fn end(&self) -> FilePos {
        FilePos(self.pos.0.saturating_add(self.len))
    }

    /// The range in the file, in bytes.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.pos.0..self.end().0
    }

    /// Whether two parts need the same work, and their data are as far apart on the device as in the file.
    pub(crate) fn continues(&self, other: &Self) -> bool {
        let distance = |part: &Self| part.addr.0.wrapping_sub(part.pos.0);
        self.work == other.work && distance(self) == distance(other)
    }

    /// Whether the data are in the place that a mapping describes.
    pub(crate) fn is_within(&self, iomap: &Iomap) -> bool {
        self.addr.0.wrapping_sub(self.pos.0) == iomap.addr.0.wrapping_sub(iomap.pos.0)
    }

    /// Returns the part of the range between two positions, or `None` if this part is empty.
    #[must_use]
    pub fn cut(&self, range: Range<u64>) -> Option<Self> {
        let (pos, end) = (self.pos.0.max(range.start), self.end().0.min(range.end));
        let addr = DevOffset(self.addr.0.wrapping_add(pos.wrapping_sub(self.pos.0)));
        (pos < end).then(|| Self { pos: FilePos(pos), len: end - pos, addr, ..*self })
    }
}

impl Iomap {
    /// Returns the work that remains after a successful write to this mapping. Written blocks need no work. Unwritten blocks must be
    /// converted. New blocks that replace shared blocks must be put into the map. Returns `None` if the mapping has no blocks and so cannot
    /// be written.
    #[must_use]
    pub fn completion_work(&self) -> Option<CompletionWork> {
        let shared = self.flags.contains(IomapFlags::SHARED);
        let remap = if shared { CompletionWork::REMAP } else { CompletionWork::empty() };
        self.plain_completion_work().map(|work| work | remap)
    }

    /// Returns the work that remains after a write to a mapping without shared blocks.
    #[inline(always)]
    pub(crate) fn plain_completion_work(&self) -> Option<CompletionWork> {
        match self.kind {
            IomapType::Mapped => Some(CompletionWork::empty()),
            IomapType::Unwritten => Some(CompletionWork::CONVERT),
            IomapType::Hole | IomapType::Inline => None,
        }
    }
}
