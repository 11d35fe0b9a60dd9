//! The part of iomap for writes: the calls to the file system before the data are transferred, and the work after the transfer.
//!
//! | Step | When | Result |
//! |---|---|---|
//! | [`WriteFile::read`] | once after each change of the inode | a [`Snapshot`]: size, map, and the change counter for which both are valid |
//! | [`WriteMap::begin`] | each write that is not a plain overwrite | whether the write is permitted, and whether the device or the file system carries it out |
//! | [`MapFile::map_to_write`], [`WriteFile::allocate`] | each write that is not a plain overwrite | the mapping for its data: device, position, flags; holes get unwritten blocks, shared blocks get new ones |
//! | the transfer | each write | one bio, or several |
//! | [`Iomap::completion_work`] | each write | the [`CompletionWork`] after a successful transfer, which follows from the mapping; a failed transfer has none |
//! | [`WriteFile::convert`] | later, for many writes together; before the completion if blocks were shared | one transaction, which adds these writes to the metadata |
//!
//! A plain overwrite needs only the transfer: its mapping is in memory, and is valid while the change counter of the inode stays the same.
//! If the counter has changed, the mapping is stale, and the core reads the [`Snapshot`] again. Unlike in Linux, no flag of a mapping shows
//! that it is stale. For all formats, the core (`open_file`) adds the new size and the sync to the completion work, and records written
//! ranges that are not converted.
//!
//! **Copy-on-write.** A file that shares blocks is not [plain](Snapshot::plain), and its mappings have [`IomapFlags::SHARED`].
//! `map_to_write` returns the new blocks for the data, or a hole, for which `allocate` allocates blocks. After the transfer,
//! [`CompletionWork::REMAP`] remains: `convert` puts the new blocks into the map, and only then the write completes. So reads need only one
//! map. If a write covers only a part of a shared block, the [file system](Begun::ByFileSystem) carries out the write.
//!
//! Source: Linux's `iomap_ops` (`begin`, `end`) and `iomap_dio_ops` (`end_io`), with two differences. In Linux, `begin` returns one
//! mapping, and the core calls it again for the next one. Here one call covers the complete range, because one transaction allocates all of
//! it. Mappings are then read without a lock. In Linux, `end` is called for each mapping. Here the completion work follows from the
//! mapping, because a call of the format for each write would cost more than the write. Zeroing past the end is a separate step
//! ([`WriteFile::zero_tail`]), like Linux's `iomap_zero_range`.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use bitflags::bitflags;

use super::{ExtentMap, Iomap, IomapFlags, IomapType, MapFile};
pub use crate::bio::CompletionWork;
use crate::error::{Error, Result};
use crate::units::FilePos;

bitflags! {
    /// The options of a write.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WriteIntent: u8 {
        /// The write fails with `WouldBlock` instead of waiting for metadata or changing them.
        const NOWAIT = 0x1;
        /// The write fails if there is not enough space for all data; there is no short write.
        const WHOLE = 0x2;
        /// The write goes to the current end of the file: an append.
        const APPEND = 0x4;
        /// The data come from a writeback cache, which has already checked that the write is permitted. So an append-only file accepts the
        /// write at any position.
        const WRITE_BACK = 0x8;
        /// The write does not remove set-id bits, because it is made for a process with `CAP_FSETID`.
        const KEEP_SET_ID = 0x10;
    }
}

/// A write, as the file system sees it.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// The position in the file of the first byte that is written.
    pub pos: FilePos,
    /// The number of bytes.
    pub len: u64,
    /// The size of the file, including writes that the metadata do not include yet.
    pub size: u64,
    /// The size of the file when the rest of its last block was zeroed, if that was done for this write.
    pub zeroed: Option<u64>,
    /// The options of the write.
    pub intent: WriteIntent,
}

/// The part of the program that carries out a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The device writes to the blocks in the file's mappings. If `allocates` is true, blocks are first [allocated](WriteFile::allocate)
    /// for holes. Otherwise the file system carries out a write into a hole.
    Direct {
        /// Whether the file can have unwritten blocks.
        allocates: bool,
    },
    /// The file system writes ([`WriteFile::write_from`]), because the file has inline data or cannot have unwritten blocks.
    ByFileSystem,
    /// The device writes after the rest of the file's last block has been [zeroed](WriteFile::zero_tail). This is necessary because the
    /// write begins past the end of the file.
    ZeroTail,
}

/// The place in the file at which a write is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// This position.
    Pos(FilePos),
    /// The position after the end of the file, and after all writes in flight that extend the file.
    End,
}

impl WriteAt {
    /// The range of the content that a write of `len` bytes locks. An append locks the complete content, so that no truncation moves the
    /// end of the file.
    pub(crate) fn range(self, len: u64) -> Range<u64> {
        match self {
            Self::Pos(FilePos(pos)) => pos..pos.saturating_add(len),
            Self::End => 0..u64::MAX,
        }
    }
}

/// The size and the map of a file at one time, and the change counter for which they are valid.
pub struct Snapshot {
    /// The inode's change counter at the time of the read. The snapshot is valid while the counter stays the same.
    pub changes: u64,
    /// Whether an overwrite of mapped blocks needs only the transfer. It needs more if the file system must check the write, or if the file
    /// has set-id bits, inline data or shared blocks.
    pub plain: bool,
    /// The size and the map. They do not keep the file open, because queues still have snapshots of closed files.
    pub map: Box<dyn WriteMap>,
}

/// The metadata of a file that can be written, in the state in which they were [read](WriteFile::read).
pub trait WriteMap: MapFile + Send {
    /// The size in bytes in the metadata.
    fn size(&self) -> u64;

    /// The map, if the complete map is in memory.
    fn resident_map(&self) -> Option<&Arc<ExtentMap>>;

    /// The present mapping of a position in the metadata, and the change counter at the time of the read. `seen` is the counter of this
    /// snapshot: if the counter has not changed, the map of this snapshot is used. If `whole` is true, the complete map is read and stays
    /// in memory.
    ///
    /// # Errors
    /// The errors of reading and checking the metadata.
    fn map_now(&self, pos: FilePos, seen: u64, whole: bool) -> Result<(Iomap, u64)>;

    /// Checks whether a write is permitted, and returns which part of the program carries it out. If set-id bits must be removed, a
    /// separate transaction removes them. The caller has locked the content of the file, so that no block moves.
    ///
    /// # Errors
    /// `ReadOnly`, `NotPermitted`, `FileTooLarge`, `Encrypted`, `Unsupported`; `WouldBlock` with [`WriteIntent::NOWAIT`].
    fn begin(&self, write: &Write) -> Result<Begun>;
}

/// An open file whose data can be written.
pub trait WriteFile: Send + Sync {
    /// Reads the metadata of the file for later requests. Of the intent, only [`WriteIntent::NOWAIT`] and [`WriteIntent::KEEP_SET_ID`]
    /// matter.
    ///
    /// # Errors
    /// The errors of reading and checking the metadata; `WouldBlock` if the call would wait for a lock or the device.
    fn read(&self, intent: WriteIntent) -> Result<Snapshot>;

    /// The present mapping of a position in the metadata, and the change counter at the time of the read. This method is for callers that
    /// need only the layout. It does not read the further metadata that a write needs.
    ///
    /// # Errors
    /// The errors of [`MapFile::map`].
    fn map(&self, pos: FilePos) -> Result<(Iomap, u64)> {
        let snapshot = self.read(WriteIntent::empty())?;
        snapshot.map.map_now(pos, snapshot.changes, true)
    }

    /// Copies inline data from the present metadata.
    ///
    /// # Errors
    /// The errors of [`MapFile::read_inline`].
    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.read(WriteIntent::empty())?.map.read_inline(buf, pos)
    }

    /// The size, including writes that the metadata do not include yet.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    fn size(&self) -> Result<u64>;

    /// Allocates unwritten blocks for the holes of a range of bytes. Returns the end of the allocated part. If there is not enough space
    /// after the first block, this end is before the end of the range; with `whole` this case is an error. Blocks that were allocated
    /// before an error stay unwritten. If such blocks are past the size, a recovery frees them.
    ///
    /// # Errors
    /// `NoSpace` or `Quota` for the first block, or for any block of a `whole` range; `ReadOnly`, `Io`.
    fn allocate(&self, range: Range<u64>, whole: bool) -> Result<u64>;

    /// Zeroes the bytes of the last block that are past the end of the file.
    ///
    /// # Errors
    /// `Busy` for a thread that has requests in flight, `ReadOnly`, `Io`.
    fn zero_tail(&self) -> Result<()>;

    /// Writes data without the direct-I/O core: the file system itself transfers them. Returns the position and the number of bytes.
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate) and [`WriteMap::begin`]; `Busy` for a thread that has requests in flight.
    fn write_from(
        &self,
        at: WriteAt,
        bufs: &[IoSlice<'_>],
        intent: WriteIntent,
    ) -> Result<(FilePos, usize)>;

    /// Carries out the completion work of all completed writes in one transaction. First the change counter is incremented, and then the
    /// pending work is removed. Both happen under the lock of the inode.
    ///
    /// # Errors
    /// `Busy` for a thread that has requests in flight; `NoSpace` if an extent must be split; `ReadOnly`, `Io`.
    fn convert(&self) -> Result<()>;

    /// Makes written data durable with the metadata that a read needs. Without `data_only` all other metadata become durable too.
    ///
    /// # Errors
    /// The errors of [`convert`](Self::convert), and of a commit.
    fn sync(&self, data_only: bool) -> Result<()>;

    /// Whether the metadata for reads of the file's blocks are durable. If so, a write needs no commit after its data have reached the
    /// medium.
    fn is_durable(&self) -> bool;

    /// Makes the volume read-only after an error, so that all later changes fail. Calls `then` as soon as changes fail.
    fn end_volume(&self, why: &Error, then: &mut dyn FnMut());

    /// Records the time of a write without a transaction. By default this does nothing.
    fn stamp_write(&self) {}

    /// Counts a request that waited for a range of the content, or that had locked a range exclusively.
    fn contended(&self, _what: Contended) {}
}

/// The state of the content lock that a request found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contended {
    /// The request waited for the holder of an exclusive range.
    Waited,
    /// The request held a range exclusively.
    Alone,
}

impl Iomap {
    /// The work that remains after a successful write to this mapping: none for written blocks, a conversion for unwritten blocks, and a
    /// change of the map for new blocks that replace shared blocks. `None` if the mapping has no blocks and so cannot be written.
    #[must_use]
    pub fn completion_work(&self) -> Option<CompletionWork> {
        let shared = self.flags.contains(IomapFlags::SHARED);
        let remap = if shared { CompletionWork::REMAP } else { CompletionWork::empty() };
        self.plain_completion_work().map(|work| work | remap)
    }

    /// The work that remains after a write to a mapping of a [plain](Snapshot::plain) snapshot, in which no block is shared.
    #[inline(always)]
    pub(crate) fn plain_completion_work(&self) -> Option<CompletionWork> {
        match self.kind {
            IomapType::Mapped => Some(CompletionWork::empty()),
            IomapType::Unwritten => Some(CompletionWork::CONVERT),
            IomapType::Hole | IomapType::Inline => None,
        }
    }
}
