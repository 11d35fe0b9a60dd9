//! The write half of iomap: the calls to the file system before the device gets the data, and the work after the transfer.
//!
//! | Step | Asked by | Answer |
//! |---|---|---|
//! | [`WriteFile::read`] | once for each change of the inode | a [`Snapshot`]: size, map, and the change number under which both are valid |
//! | [`WriteMap::begin`] | each write that is not a plain overwrite | whether the write is permitted, and whether the device or the file system carries it out |
//! | [`MapFile::map_to_write`], [`WriteFile::allocate`] | each write that is not a plain overwrite | the mapping for its data: device, position, flags; holes get unwritten blocks, shared blocks get new ones |
//! | the device | each write | one bio, or several |
//! | [`Iomap::completion_work`] | each write | the [`CompletionWork`] that the mapping leaves after a successful transfer; a failed transfer leaves none |
//! | [`WriteFile::convert`] | later, many writes together; before the completion if blocks were shared | one transaction updates the metadata for all that was written |
//!
//! A plain overwrite takes only the device's step: its mapping is in memory, and is valid while the change number stays the same. When the number has
//! changed, the mapping is stale, and the core reads the [`Snapshot`] again; no flag of the mapping shows this. The core (`open_file`) adds the new
//! size and the sync to the work, and records written ranges that are not converted, for all formats.
//!
//! **Copy-on-write.** A file that shares blocks is not [plain](Snapshot::plain), and its mappings have [`IomapFlags::SHARED`]. `map_to_write` returns
//! the destination of the data, or a hole, which `allocate` fills. After the transfer [`CompletionWork::REMAP`] remains: `convert` puts the new
//! blocks into the map, and then the write completes. So reads need one map only. A write of a part of a shared block is carried out by the [file
//! system](Begun::ByFileSystem).
//!
//! Source: Linux's `iomap_ops` (`begin`, `end`) and `iomap_dio_ops` (`end_io`), with two differences. In Linux `begin` returns one mapping, and the
//! core calls it again for the next; here one call covers the whole range, because one transaction allocates all of it, and mappings are read without
//! a lock. In Linux `end` is called for each mapping; here the work follows from the mapping, because a call of the format for each write would cost
//! more than the write. Zeroing past the end is a separate step ([`WriteFile::zero_tail`]), like Linux's `iomap_zero_range`.

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
        /// `WouldBlock` instead of waiting for metadata or changing them.
        const NOWAIT = 0x1;
        /// All of the data or nothing: no short write if there is too little space.
        const WHOLE = 0x2;
        /// The write goes to the current end of the file: an append.
        const APPEND = 0x4;
        /// The data come from a cache that has already permitted the write: an append-only file accepts it at any position.
        const WRITE_BACK = 0x8;
        /// Set-id bits are kept: the write is made for a process with `CAP_FSETID`.
        const KEEP_SET_ID = 0x10;
    }
}

/// A write, as the file system sees it.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// The position of its first byte in the file.
    pub pos: FilePos,
    /// The number of bytes.
    pub len: u64,
    /// The file's size, including written ranges that are not converted.
    pub size: u64,
    /// The size for which the rest of the last block is known to be zeros.
    pub zeroed: Option<u64>,
    /// Its options.
    pub intent: WriteIntent,
}

/// The part of the program that carries out a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The device, by the file's mappings. If it `allocates`, holes are first [allocated](WriteFile::allocate); otherwise the file system carries out
    /// a write into a hole.
    Direct {
        /// Whether the file can have unwritten blocks.
        allocates: bool,
    },
    /// The file system ([`WriteFile::write_from`]): the file has no blocks, or cannot have unwritten ones.
    ByFileSystem,
    /// The device, after the rest of the file's last block has been [zeroed](WriteFile::zero_tail), because the file grows over it.
    ZeroTail,
}

/// The destination of a write in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// This position.
    Pos(FilePos),
    /// The position after the end of the file, and after all writes in flight that extend it.
    End,
}

impl WriteAt {
    /// The range of the content that a write of `len` bytes uses. An append uses the whole content, so that the end of the file stays.
    pub(crate) fn range(self, len: u64) -> Range<u64> {
        match self {
            Self::Pos(FilePos(pos)) => pos..pos.saturating_add(len),
            Self::End => 0..u64::MAX,
        }
    }
}

/// The size and the map of a file at one time, and the change number for which they are valid.
pub struct Snapshot {
    /// The number of changes of the inode at the time of the read. The snapshot is valid while it stays the same.
    pub changes: u64,
    /// Whether an overwrite of mapped blocks needs only the device: no check, no privilege to remove, no inline data, no shared blocks.
    pub plain: bool,
    /// The file. The snapshot does not keep it open, because queues keep snapshots longer.
    pub map: Box<dyn WriteMap>,
}

/// A file that can be written, in the state in which it was [read](WriteFile::read).
pub trait WriteMap: MapFile + Send {
    /// The size in bytes in the metadata.
    fn size(&self) -> u64;

    /// The map, if all of it is in memory.
    fn resident_map(&self) -> Option<&Arc<ExtentMap>>;

    /// The present mapping of a position in the metadata, and the number of changes at the time of the read. `seen` is the number of this snapshot:
    /// if it is unchanged, the snapshot's own map is used. `whole`: the whole map is read, to stay in memory.
    ///
    /// # Errors
    /// The errors of reading and checking the metadata.
    fn map_now(&self, pos: FilePos, seen: u64, whole: bool) -> Result<(Iomap, u64)>;

    /// Returns whether a write is permitted, and the part that carries it out. Removes privileges if necessary, in a transaction of its own. The caller holds
    /// the file's content, so that nothing moves.
    ///
    /// # Errors
    /// `ReadOnly`, `NotPermitted`, `FileTooLarge`, `Encrypted`, `Unsupported`; `WouldBlock` with [`WriteIntent::NOWAIT`].
    fn begin(&self, write: &Write) -> Result<Begun>;
}

/// An open file whose data can be written.
pub trait WriteFile: Send + Sync {
    /// Reads the file for later requests. Only [`WriteIntent::NOWAIT`] and [`WriteIntent::KEEP_SET_ID`] of the intent matter.
    ///
    /// # Errors
    /// The errors of reading and checking the metadata; `WouldBlock` if the call would wait for a lock or the device.
    fn read(&self, intent: WriteIntent) -> Result<Snapshot>;

    /// The present mapping of a position in the metadata, and the change number at the time of the read, for callers that only need the layout. It
    /// reads nothing that only a write needs.
    ///
    /// # Errors
    /// The errors of [`MapFile::map`].
    fn map(&self, pos: FilePos) -> Result<(Iomap, u64)> {
        let snapshot = self.read(WriteIntent::empty())?;
        snapshot.map.map_now(pos, snapshot.changes, true)
    }

    /// Copies the inline data in the present metadata.
    ///
    /// # Errors
    /// The errors of [`MapFile::read_inline`].
    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.read(WriteIntent::empty())?.map.read_inline(buf, pos)
    }

    /// The size, including ranges that are not converted.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    fn size(&self) -> Result<u64>;

    /// Allocates the holes of a range of bytes as unwritten blocks. Returns the end of the allocation, which is before the end of the range if there
    /// was no space after the first block; with `whole` that is an error. Blocks that were allocated before an error stay unwritten; a recovery frees
    /// those past the size.
    ///
    /// # Errors
    /// `NoSpace` or `Quota` for the first block, or for any block of a `whole` range; `ReadOnly`, `Io`.
    fn allocate(&self, range: Range<u64>, whole: bool) -> Result<u64>;

    /// Zeroes the last block past the end of the file.
    ///
    /// # Errors
    /// `Busy` for a thread that has requests in flight, `ReadOnly`, `Io`.
    fn zero_tail(&self) -> Result<()>;

    /// Writes by the file system's own path. Returns the position and the number of bytes.
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate) and [`WriteMap::begin`]; `Busy` for a thread that has requests in flight.
    fn write_from(
        &self,
        at: WriteAt,
        bufs: &[IoSlice<'_>],
        intent: WriteIntent,
    ) -> Result<(FilePos, usize)>;

    /// Carries out the completion work of all completed writes in one transaction. The change number is incremented before the pending work is
    /// removed, both under the inode's lock.
    ///
    /// # Errors
    /// `Busy` for a thread that has requests in flight; `NoSpace` if an extent must be split; `ReadOnly`, `Io`.
    fn convert(&self) -> Result<()>;

    /// Makes written data durable with the metadata that a read needs. Without `data_only` all other metadata become durable too.
    ///
    /// # Errors
    /// The errors of [`convert`](Self::convert), and of a commit.
    fn sync(&self, data_only: bool) -> Result<()>;

    /// Whether all metadata that a read of the file's blocks needs are durable, so that a write that reaches the medium needs no commit.
    fn is_durable(&self) -> bool;

    /// Ends writing to the volume, so that no later change succeeds. Calls `then` as soon as this is the case.
    fn end_volume(&self, why: &Error, then: &mut dyn FnMut());

    /// Records the time of a write without a transaction. A format that keeps no such times does nothing.
    fn stamp_write(&self) {}

    /// Counts a request that waited for a range of the content, or a thread that held one exclusively.
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
    /// The work that remains after a write to this mapping, when its data are on the device: none for written blocks, a conversion for unwritten
    /// ones, a change of the map for new blocks that replace shared ones. `None` if the mapping has no blocks, so that it cannot be written.
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
