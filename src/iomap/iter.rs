//! Walks over a range of a file mapping by mapping.

use super::{Iomap, IomapType, MapFile};
use crate::error::{Error, Result};
use crate::units::{DevOffset, FilePos};

/// The mappings of a range, in order and without gaps, each cut to the range.
#[derive(Debug)]
pub struct Mappings<'a, M> {
    file: &'a M,
    pos: FilePos,
    end: FilePos,
    resident: bool,
}

impl<'a, M: MapFile> Mappings<'a, M> {
    /// Walks over `pos..end`.
    pub fn new(file: &'a M, pos: FilePos, end: FilePos) -> Self {
        Self { file, pos, end, resident: false }
    }

    /// The same from memory alone: a mapping that would have to be read is a `WouldBlock` error.
    #[must_use]
    pub fn resident(mut self, resident: bool) -> Self {
        self.resident = resident;
        self
    }

    fn current(&self) -> Result<Iomap> {
        let iomap = if self.resident {
            self.file.map_resident(self.pos).ok_or_else(not_resident)?
        } else {
            self.file.map(self.pos, self.end.0 - self.pos.0)?
        };
        // A mapping that does not hold the position would make the walk endless.
        if iomap.pos <= self.pos && iomap.end() > self.pos {
            Ok(iomap.cut(self.pos, self.end))
        } else {
            Err(Error::invalid(format!("the map of position {} does not hold it", self.pos)))
        }
    }
}

#[cold]
fn not_resident() -> Error {
    Error::new(crate::error::ErrorKind::WouldBlock, "the mapping is not in memory")
}

impl<M: MapFile> Iterator for Mappings<'_, M> {
    type Item = Result<Iomap>;

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
    /// The part of the mapping within `pos..end`, which it touches.
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

    /// The mapping behind its first `count` bytes, which may leave nothing.
    #[must_use]
    pub fn skip(&self, count: u64) -> Self {
        let addr = DevOffset(self.addr.0.saturating_add(count));
        Self { pos: FilePos(self.pos.0 + count), len: self.len - count, addr, ..*self }
    }

    /// Whether reads give something else than zeros by definition. Unwritten extents count as holes.
    #[must_use]
    pub fn is_data(&self) -> bool {
        matches!(self.kind, IomapType::Mapped | IomapType::Inline)
    }
}

/// The first position at or behind `pos`, before `size`, that holds data (`SEEK_DATA`); `None` where there is none.
///
/// # Errors
/// What reading the map gives.
pub fn seek_data(file: &impl MapFile, pos: FilePos, size: u64) -> Result<Option<FilePos>> {
    seek(file, pos, size, true)
}

/// The first position at or behind `pos`, before `size`, that is a hole (`SEEK_HOLE`); the size where there is none, and `None`
/// at or behind the size.
///
/// # Errors
/// What reading the map gives.
pub fn seek_hole(file: &impl MapFile, pos: FilePos, size: u64) -> Result<Option<FilePos>> {
    if pos.0 >= size {
        return Ok(None);
    }
    Ok(Some(seek(file, pos, size, false)?.unwrap_or(FilePos(size))))
}

fn seek(file: &impl MapFile, pos: FilePos, size: u64, data: bool) -> Result<Option<FilePos>> {
    for iomap in Mappings::new(file, pos, FilePos(size)) {
        let iomap = iomap?;
        if iomap.is_data() == data {
            return Ok(Some(iomap.pos));
        }
    }
    Ok(None)
}
