//! The write half of iomap: the questions that a write asks its file system before the device gets the data, and the work that it leaves.
//!
//! | Step | Asked by | Answer |
//! |---|---|---|
//! | [`WriteFile::read`] | once for each change of the inode | a [`Snapshot`]: size, map, and the change number under which both are valid |
//! | [`WriteMap::begin`] | each write that is not a plain overwrite | whether it is permitted, and which part does it |
//! | [`MapFile::map_to_write`], [`WriteFile::allocate`] | the same | its mapping: device, position, flags; holes get unwritten blocks, shared blocks get others |
//! | the device | all | one bio, or several |
//! | [`Iomap::completion_work`] | all | the [`CompletionWork`] that the mapping leaves after a transfer that succeeded; one that failed leaves none |
//! | [`WriteFile::convert`] | later, many writes together; before the completion if blocks were shared | one transaction updates the metadata for all that was written |
//!
//! A plain overwrite takes only the device's step: its mapping is in memory, and is valid as long as the change number stays. A mapping is stale when
//! the number has changed: the core reads the [`Snapshot`] again, and no flag of the mapping tells it. The core (`open_file`) adds the new size and
//! the sync to the work, and keeps written ranges that are not converted, for all formats.
//!
//! **Copy-on-write.** A file that shares blocks is not [plain](Snapshot::plain), and its mappings have [`IomapFlags::SHARED`]. `map_to_write` gives the blocks
//! that the data go to, or a hole, which `allocate` fills. The write leaves [`CompletionWork::REMAP`]: `convert` puts the new blocks into the map, and
//! the write completes after that. So reads need one map only. A write of a part of a shared block is the [file system's](Begun::ByFileSystem).
//!
//! Source: Linux's `iomap_ops` (`begin`, `end`) and `iomap_dio_ops` (`end_io`), and where this differs: there `begin` gives one mapping and the core asks
//! again for the rest; here it answers once for the whole range, because one transaction allocates all of it, and mappings are asked for without
//! a lock. There `end` is called for each mapping; here the work follows from the mapping alone, because a format that were called for each
//! write would cost more than the write. Zeroing past the end is a step of its own ([`WriteFile::zero_tail`]), as `iomap_zero_range` is there.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use bitflags::bitflags;

use super::{ExtentMap, Iomap, IomapFlags, IomapType, MapFile};
pub use crate::bio::CompletionWork;
use crate::error::{Error, Result};
use crate::units::FilePos;

bitflags! {
    /// How a write is meant.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WriteIntent: u8 {
        /// `WouldBlock` rather than wait for metadata, or change them.
        const NOWAIT = 0x1;
        /// All of it or nothing: no short write where space runs out.
        const WHOLE = 0x2;
        /// It goes where the file ends, wherever that is: an append.
        const APPEND = 0x4;
        /// It comes from a cache that has admitted it: an append-only file takes it at any position.
        const WRITE_BACK = 0x8;
        /// Set-id bits stay: it is made for someone with `CAP_FSETID`.
        const KEEP_SET_ID = 0x10;
    }
}

/// A write, as its file system is asked about it.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Its first byte in the file.
    pub pos: FilePos,
    /// How many bytes.
    pub len: u64,
    /// The file's size, with written ranges that are not converted.
    pub size: u64,
    /// Past this size the last block is known to hold zeros.
    pub zeroed: Option<u64>,
    /// How it is meant.
    pub intent: WriteIntent,
}

/// Whose work a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The device's, by the file's mappings. Holes are to be [allocated](WriteFile::allocate) first where it `allocates`; where not, a write
    /// into one is the file system's.
    Direct {
        /// The file can have blocks that were never written.
        allocates: bool,
    },
    /// The file system's ([`WriteFile::write_from`]): the file has no blocks, or can have no unwritten ones.
    ByFileSystem,
    /// The device's, once the rest of the block in which the file ends is [zeroed](WriteFile::zero_tail): the file grows over it.
    ZeroTail,
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// There.
    Pos(FilePos),
    /// After the end of the file, and after all writes in flight that extend it.
    End,
}

impl WriteAt {
    /// The range of the content that a write of so many bytes uses: all of it without a position yet, so that the end stays.
    pub(crate) fn range(self, len: u64) -> Range<u64> {
        match self {
            Self::Pos(FilePos(pos)) => pos..pos.saturating_add(len),
            Self::End => 0..u64::MAX,
        }
    }
}

/// Size and map of a file at one time, and the change number for which they are valid.
pub struct Snapshot {
    /// The number of changes of the inode with which it was read: it is right as long as that stays.
    pub changes: u64,
    /// An overwrite of mapped blocks needs nothing but the device: no check, no privilege to take away, no inline data, no shared blocks.
    pub plain: bool,
    /// The file. It does not keep that open: queues have it for longer.
    pub map: Box<dyn WriteMap>,
}

/// A file that can be written, as it was when it was [read](WriteFile::read).
pub trait WriteMap: MapFile + Send {
    /// Its size in bytes as the metadata have it.
    fn size(&self) -> u64;

    /// Its map, if all of that is in memory.
    fn resident_map(&self) -> Option<&Arc<ExtentMap>>;

    /// The mapping of a position as the metadata have it now, and the number of changes with which it was read. `seen`: those of this
    /// snapshot, whose own map is used where they are the same. `whole`: the map is read whole, to stay in memory.
    ///
    /// # Errors
    /// What reading and checking the metadata gives.
    fn map_now(&self, pos: FilePos, seen: u64, whole: bool) -> Result<(Iomap, u64)>;

    /// Asks whether a write may be, and whose work it is. Takes privileges away where it has to, in a transaction of its own. The file's
    /// content is held meanwhile, so that nothing moves.
    ///
    /// # Errors
    /// `ReadOnly`, `NotPermitted`, `FileTooLarge`, `Encrypted`, `Unsupported`; `WouldBlock` with [`WriteIntent::NOWAIT`].
    fn begin(&self, write: &Write) -> Result<Begun>;
}

/// An open file whose data are written.
pub trait WriteFile: Send + Sync {
    /// Reads the file for requests to come. Of the intent [`WriteIntent::NOWAIT`] and [`WriteIntent::KEEP_SET_ID`] count.
    ///
    /// # Errors
    /// What reading and checking the metadata gives; `WouldBlock` where a lock or the device would have to be waited for.
    fn read(&self, intent: WriteIntent) -> Result<Snapshot>;

    /// The mapping of a position as the metadata have it now, and the change number with which it was read: for callers that only ask for
    /// the layout. It reads nothing that only a write needs.
    ///
    /// # Errors
    /// As [`MapFile::map`].
    fn map(&self, pos: FilePos) -> Result<(Iomap, u64)> {
        let snapshot = self.read(WriteIntent::empty())?;
        snapshot.map.map_now(pos, snapshot.changes, true)
    }

    /// Copies inline data, as the metadata have them now.
    ///
    /// # Errors
    /// As [`MapFile::read_inline`].
    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.read(WriteIntent::empty())?.map.read_inline(buf, pos)
    }

    /// Its size in the metadata, and its size with ranges that are not converted.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn size(&self) -> Result<u64>;

    /// Allocates the holes of a range of bytes, unwritten. Returns how far it came: not to the end if space ran out after the first block,
    /// except when the range is wanted `whole`. Blocks allocated before an error stay, unwritten; a recovery frees those past the
    /// size.
    ///
    /// # Errors
    /// `NoSpace` or `Quota` for the first block, or for any of a `whole` range; `ReadOnly`, `Io`.
    fn allocate(&self, range: Range<u64>, whole: bool) -> Result<u64>;

    /// Zeroes the last block past the end of the file.
    ///
    /// # Errors
    /// `Busy` for a thread that has requests in flight, `ReadOnly`, `Io`.
    fn zero_tail(&self) -> Result<()>;

    /// Writes by the file system's own way. Gives where it went, and how many bytes.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate) and [`WriteMap::begin`]; `Busy` for a thread that has requests in flight.
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
    /// `Busy` for a thread that has requests in flight; `NoSpace` where an extent has to be cut; `ReadOnly`, `Io`.
    fn convert(&self) -> Result<()>;

    /// Makes written data durable with the metadata that a read needs, and without `data_only` all other metadata too.
    ///
    /// # Errors
    /// As [`convert`](Self::convert), and of a commit.
    fn sync(&self, data_only: bool) -> Result<()>;

    /// Whether all that is needed to read the file's blocks is durable: then a write that reaches the medium needs no commit.
    fn is_durable(&self) -> bool;

    /// Ends the volume: nothing is changed any more. `then` is called as soon as this holds.
    fn end_volume(&self, why: &Error, then: &mut dyn FnMut());

    /// A request waited for a range of the content, or a thread took one exclusively: for counters.
    fn contended(&self, _what: Contended) {}
}

/// The state of the content lock that a request found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contended {
    /// It waited for someone who had its range for himself.
    Waited,
    /// It had a range for itself.
    Alone,
}

impl Iomap {
    /// The work that a write to this mapping leaves when its data are on the device: nothing for written blocks, a conversion for
    /// unwritten ones, a change of the map for new blocks that replace shared ones. `None` if the mapping has no blocks, so that
    /// nothing can be written to it.
    #[must_use]
    pub fn completion_work(&self) -> Option<CompletionWork> {
        let shared = self.flags.contains(IomapFlags::SHARED);
        let remap = if shared { CompletionWork::REMAP } else { CompletionWork::empty() };
        self.plain_completion_work().map(|work| work | remap)
    }

    /// The same of a mapping of a [plain](Snapshot::plain) snapshot, where nothing is shared.
    #[inline(always)]
    pub(crate) fn plain_completion_work(&self) -> Option<CompletionWork> {
        match self.kind {
            IomapType::Mapped => Some(CompletionWork::empty()),
            IomapType::Unwritten => Some(CompletionWork::CONVERT),
            IomapType::Hole | IomapType::Inline => None,
        }
    }
}
