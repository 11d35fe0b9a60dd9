//! Iterators over the mappings of a range of a file.

use super::{Iomap, IomapFlags, IomapType, MapFile};
use crate::error::{Error, Result};
use crate::units::{DevOffset, FilePos};

/// The mappings of a range, in order and without gaps. Each mapping is cut to the range.
#[derive(Debug)]
pub struct Mappings<'a, M: ?Sized> {
    file: &'a M,
    pos: FilePos,
    end: FilePos,
    resident: bool,
    writes: bool,
}

impl<'a, M: MapFile + ?Sized> Mappings<'a, M> {
    /// Creates an iterator over `pos..end`.
    pub fn new(file: &'a M, pos: FilePos, end: FilePos) -> Self {
        Self { file, pos, end, resident: false, writes: false }
    }

    /// Restricts the iterator to mappings in memory. For any other mapping, the iterator returns a `WouldBlock` error.
    #[must_use]
    pub fn resident(mut self, resident: bool) -> Self {
        self.resident = resident;
        self
    }

    /// Makes the iterator return the mappings that a write needs, which differ for shared blocks.
    #[must_use]
    pub fn to_write(mut self, writes: bool) -> Self {
        self.writes = writes;
        self
    }

    #[inline(always)]
    fn current(&self) -> Result<Iomap> {
        let len = self.end.0 - self.pos.0;
        let iomap = match (self.resident, self.writes) {
            // A write to shared blocks goes to new blocks. The mapping in memory describes the shared blocks, so the write cannot use it.
            (true, writes) => {
                let iomap = self.file.map_resident(self.pos);
                let shared = |iomap: &Iomap| iomap.flags.contains(IomapFlags::SHARED);
                iomap.filter(|iomap| !(writes && shared(iomap))).ok_or_else(not_resident)?
            }
            (false, true) => self.file.map_to_write(self.pos, len)?,
            (false, false) => self.file.map(self.pos, len)?,
        };
        // A mapping that does not contain the position would cause an endless loop.
        if iomap.pos <= self.pos && iomap.end() > self.pos {
            Ok(iomap.cut(self.pos, self.end))
        } else {
            Err(Error::invalid(format!(
                "the mapping returned for position {} does not contain that position",
                self.pos
            )))
        }
    }
}

#[cold]
fn not_resident() -> Error {
    Error::new(crate::error::ErrorKind::WouldBlock, "the mapping is not in memory")
}

impl<M: MapFile + ?Sized> Iterator for Mappings<'_, M> {
    type Item = Result<Iomap>;

    // The function is inlined, so that the compiled code of reads contains no test of `writes`.
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.pos >= self.end {
            return None;
        }
        let iomap = self.current();
        self.pos = iomap.as_ref().map_or(self.end, Iomap::end);
        Some(iomap)
    }
}

impl Iomap {
    /// Returns the part of the mapping that is within `pos..end`. This range must overlap the mapping.
    #[must_use]
    pub fn cut(&self, pos: FilePos, end: FilePos) -> Self {
        let from = self.pos.max(pos);
        let to = self.end().min(end);
        Self {
            pos: from,
            len: to.0 - from.0,
            addr: DevOffset(self.addr.0 + (from.0 - self.pos.0)),
            ..*self
        }
    }

    /// Returns the mapping without its first `count` bytes. The result may be empty.
    #[must_use]
    pub fn skip(&self, count: u64) -> Self {
        let addr = DevOffset(self.addr.0.saturating_add(count));
        Self { pos: FilePos(self.pos.0 + count), len: self.len - count, addr, ..*self }
    }

    /// Whether reads of the mapping may return nonzero bytes. An unwritten extent counts as a hole.
    #[must_use]
    pub fn is_data(&self) -> bool {
        matches!(self.kind, IomapType::Mapped | IomapType::Inline)
    }
}

/// Returns the first position from `pos` to `size` that contains data (`SEEK_DATA`), or `None` if there is no such position.
///
/// # Errors
/// The errors of reading the map.
pub fn seek_data(
    file: &(impl MapFile + ?Sized),
    pos: FilePos,
    size: u64,
) -> Result<Option<FilePos>> {
    seek(file, pos, size, true)
}

/// Returns the first position from `pos` to `size` that is in a hole (`SEEK_HOLE`), or `size` if there is no hole. Returns `None` if `pos`
/// is at or past `size`.
///
/// # Errors
/// The errors of reading the map.
pub fn seek_hole(
    file: &(impl MapFile + ?Sized),
    pos: FilePos,
    size: u64,
) -> Result<Option<FilePos>> {
    if pos.0 >= size {
        return Ok(None);
    }
    Ok(Some(seek(file, pos, size, false)?.unwrap_or(FilePos(size))))
}

fn seek(
    file: &(impl MapFile + ?Sized),
    pos: FilePos,
    size: u64,
    data: bool,
) -> Result<Option<FilePos>> {
    for iomap in Mappings::new(file, pos, FilePos(size)) {
        let iomap = iomap?;
        if iomap.is_data() == data {
            return Ok(Some(iomap.pos));
        }
    }
    Ok(None)
}
