//! Where the data of a file are stored. This module defines the mapping of a range of a file, and the trait through which a file system
//! returns mappings.
//!
//! The terminology follows Linux's `include/linux/iomap.h`.

mod extent_map;
mod iter;
mod write;

use bitflags::bitflags;

use crate::error::Result;
use crate::units::{DevOffset, FilePos};

pub use extent_map::{Extent, ExtentMap, ExtentState};
pub use iter::{Mappings, seek_data, seek_hole};
pub(crate) use write::WrittenParts;
pub use write::{
    Begun, CompletionWork, Contended, Snapshot, Write, WriteAt, WriteFile, WriteIntent, WriteMap,
    Written,
};

/// The kind of a mapping. It determines where the content of the range is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IomapType {
    /// No blocks are allocated; reads return zeros.
    Hole,
    /// Blocks are allocated and contain data.
    Mapped,
    /// Blocks are allocated but were never written; reads return zeros.
    Unwritten,
    /// The data are stored in the metadata: see [`MapFile::read_inline`].
    Inline,
}

bitflags! {
    /// Additional properties of a mapping.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct IomapFlags: u16 {
        /// The blocks were newly allocated for this mapping.
        const NEW = 0x1;
        /// Changes of the file's metadata are not yet on disk.
        const DIRTY = 0x2;
        /// The file shares the blocks with another file.
        const SHARED = 0x4;
        /// The device protects this range with checksums. The data must be verified.
        const INTEGRITY = 0x10;
        /// This is the last mapping of the file.
        const LAST = 0x20;
        /// The current data of this range are in the journal.
        const JOURNAL = 0x40;
    }
}

/// A range of a file, and the place where its data are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Iomap {
    /// The first byte of the range in the file.
    pub pos: FilePos,
    /// The length in bytes; never 0.
    pub len: u64,
    /// The first byte of the data on the device. If the file system has several devices, they are
    /// [joined](crate::device::Segmented::joined), and the position determines the device. Not used for holes and inline data.
    pub addr: DevOffset,
    /// The kind of the mapping.
    pub kind: IomapType,
    /// Additional properties.
    pub flags: IomapFlags,
}

impl Iomap {
    /// The first byte after the range.
    #[must_use]
    pub fn end(&self) -> FilePos {
        FilePos(self.pos.0.saturating_add(self.len))
    }

    /// Returns the device offset of a position within a mapped range.
    #[must_use]
    pub fn addr_of(&self, pos: FilePos) -> DevOffset {
        DevOffset(self.addr.0 + (pos.0 - self.pos.0))
    }
}

/// The map of one file. A file system provides it to the direct-I/O core.
pub trait MapFile {
    /// Returns the mapping that contains `pos`. `len` is the number of bytes that the caller needs. The mapping contains at least one byte,
    /// and may contain fewer or more than `len` bytes. A position at or past the end of the map is in a hole. The call may read metadata
    /// from the device.
    ///
    /// # Errors
    /// The errors of reading and checking the metadata.
    fn map(&self, pos: FilePos, len: u64) -> Result<Iomap>;

    /// Returns the mapping for a write. If the blocks at `pos` are shared, the data of the write go to new blocks. In this case, the
    /// mapping has the flag [`IomapFlags::SHARED`], and describes the new blocks, or a hole if the new blocks are not yet allocated. The
    /// [completion work](Iomap::completion_work) of the write adds the new blocks to the file. This method allocates no blocks, because the
    /// core may call it several times for one write.
    ///
    /// # Errors
    /// The errors of [`map`](Self::map).
    fn map_to_write(&self, pos: FilePos, len: u64) -> Result<Iomap> {
        self.map(pos, len)
    }

    /// Returns the mapping if it is in memory. Returns `None` if metadata would have to be read from the device. The call allocates no
    /// memory and acquires no lock.
    fn map_resident(&self, pos: FilePos) -> Option<Iomap>;

    /// Returns the mapping as the metadata in memory describe it. Parts of an unwritten extent may contain data of writes that are not yet
    /// in the metadata.
    #[inline(always)]
    fn map_recorded(&self, pos: FilePos) -> Option<Iomap> {
        self.map_resident(pos)
    }

    /// Copies inline data, starting at position `pos`, into `buf`. The range must have an [`IomapType::Inline`] mapping.
    ///
    /// # Errors
    /// The errors of reading and checking the metadata.
    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()>;
}
