//! Where a range of a file lies: the mapping, its types and flags, and the trait that a file system implements.
//!
//! The vocabulary is that of Linux's `include/linux/iomap.h`.

mod extent_map;
mod iter;
mod write;

use bitflags::bitflags;

use crate::error::Result;
use crate::units::{DevOffset, FilePos};

pub use extent_map::{Extent, ExtentMap, ExtentState};
pub use iter::{Mappings, seek_data, seek_hole};
pub use write::{
    Begun, CompletionWork, Contended, Snapshot, Write, WriteAt, WriteFile, WriteIntent, WriteMap,
};

/// The kind of a mapping: where the content of a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IomapType {
    /// Nothing is allocated; reads give zeros.
    Hole,
    /// Blocks are allocated and hold data.
    Mapped,
    /// Blocks are allocated and were never written; reads give zeros.
    Unwritten,
    /// The data is in memory with the metadata: see [`MapFile::read_inline`].
    Inline,
}

/// Which of a file system's devices a mapping leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IomapDevice {
    /// The one with the data of most files, and mostly the only one.
    #[default]
    Data,
    /// The journal's device, if the journal holds current data.
    Log,
    /// The device of realtime files (XFS).
    Realtime,
}

bitflags! {
    /// Further properties of a mapping.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct IomapFlags: u16 {
        /// Blocks were allocated by this very mapping.
        const NEW = 0x1;
        /// Metadata of the file is not yet on disk.
        const DIRTY = 0x2;
        /// Blocks are shared with another file.
        const SHARED = 0x4;
        /// The device protects this range: data must be verified.
        const INTEGRITY = 0x10;
        /// The last mapping of the file.
        const LAST = 0x20;
        /// The current data of this range stands in the journal.
        const JOURNAL = 0x40;
    }
}

/// A range of a file and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Iomap {
    /// First byte of the range in the file.
    pub pos: FilePos,
    /// Length in bytes; never 0.
    pub len: u64,
    /// First byte on the device. Without meaning for holes and inline data.
    pub addr: DevOffset,
    /// Which device that is. Mappings [from memory](MapFile::map_resident) are all of the data device.
    pub device: IomapDevice,
    /// The kind of content.
    pub kind: IomapType,
    /// Further properties.
    pub flags: IomapFlags,
}

impl Iomap {
    /// First byte after the range.
    #[must_use]
    pub fn end(&self) -> FilePos {
        FilePos(self.pos.0.saturating_add(self.len))
    }

    /// The device offset of a position within a mapped range.
    #[must_use]
    pub fn addr_of(&self, pos: FilePos) -> DevOffset {
        DevOffset(self.addr.0 + (pos.0 - self.pos.0))
    }
}

/// The map of one file, which a file system gives to the direct-I/O core.
pub trait MapFile {
    /// The mapping that holds `pos`, at least one byte and up to `len` bytes of it (more where it costs nothing).
    /// A position at or past the end of the map is a hole. May read metadata from the device.
    ///
    /// # Errors
    /// What reading and checking the metadata gives.
    fn map(&self, pos: FilePos, len: u64) -> Result<Iomap>;

    /// The same for a write. If a file shares blocks, its data go to other blocks than those that are read: the mapping is theirs, or a hole where the file has
    /// no such blocks yet, and has [`IomapFlags::SHARED`]. They become the file's when the write's [completion work](Iomap::completion_work) is done. It is asked
    /// more than once for a write, and allocates nothing.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    fn map_to_write(&self, pos: FilePos, len: u64) -> Result<Iomap> {
        self.map(pos, len)
    }

    /// The same as [`map`](Self::map) from memory alone: `None` where metadata would have to be read. Allocates nothing, takes no lock.
    fn map_resident(&self, pos: FilePos) -> Option<Iomap>;

    /// The same as the metadata have it: of an unwritten extent, a part may have been written since.
    #[inline(always)]
    fn map_recorded(&self, pos: FilePos) -> Option<Iomap> {
        self.map_resident(pos)
    }

    /// Copies inline data from `pos` to `buf`. Called for [`IomapType::Inline`] mappings only, within their range.
    ///
    /// # Errors
    /// What reading and checking the metadata gives.
    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()>;
}
