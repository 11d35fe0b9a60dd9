//! Where a range of a file lies: the mapping, its types and flags, and the trait that a file system implements.
//!
//! The vocabulary is that of Linux's `include/linux/iomap.h`.

mod extent_map;
mod iter;

use bitflags::bitflags;

use crate::error::Result;
use crate::units::{DevOffset, FilePos};

pub use extent_map::{Extent, ExtentMap, ExtentState};
pub use iter::{Mappings, seek_data, seek_hole};

/// What stands behind a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

bitflags! {
    /// What else is true of a mapping.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct IomapFlags: u16 {
        /// Blocks were allocated by this very mapping.
        const NEW = 0x1;
        /// Metadata of the file is not yet on disk.
        const DIRTY = 0x2;
        /// Blocks are shared with another file.
        const SHARED = 0x4;
        /// Several extents on disk were merged into this mapping.
        const MERGED = 0x8;
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
pub struct Iomap {
    /// First byte of the range in the file.
    pub pos: FilePos,
    /// Length in bytes; never 0.
    pub len: u64,
    /// First byte on the device. Without meaning for holes and inline data.
    pub addr: DevOffset,
    /// What stands there.
    pub kind: IomapType,
    /// What else is true of it.
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

/// What a file system gives to the direct-I/O core: the map of one file.
pub trait MapFile {
    /// The mapping that holds `pos`, at least one byte and up to `len` bytes of it (more where it costs nothing).
    /// A position at or past the end of the map is a hole. May read metadata from the device.
    ///
    /// # Errors
    /// What reading and checking the metadata gives.
    fn map(&self, pos: FilePos, len: u64) -> Result<Iomap>;

    /// The same from memory alone: `None` where metadata would have to be read. Allocates nothing, takes no lock.
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
