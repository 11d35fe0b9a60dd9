//! Copies the content of a file, and finds the ranges that cannot be read.

use std::cell::Cell;
use std::fs::File as HostFile;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use ironmap::File;
use ironmap::iomap::IomapType;
use ironmap::units::FilePos;

use super::copier::Copier;
use super::entry::Entry;
use crate::ahead::CHUNK;
use crate::failure::Failure;
use crate::transfer;

/// The unit in bytes in which a range is read again after an error. No device has larger sectors.
const UNIT: u64 = 4096;
/// The maximum number of gaps that are recorded for a file. If the file has more gaps, the last recorded gap extends to the end of the last
/// actual gap.
const MOST: usize = 4096;

/// The ranges of a file that could not be read, in order. A copy has zeros in these ranges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gaps {
    pub(crate) ranges: Vec<Range<u64>>,
    /// The first error.
    pub(crate) why: Option<Failure>,
}

impl Gaps {
    fn add(&mut self, range: Range<u64>, why: Failure) {
        self.why.get_or_insert(why);
        let is_full = self.ranges.len() == MOST;
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start || is_full => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }

    /// Returns the number of bytes in the ranges.
    pub(crate) fn len(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// The failure of a copy with gaps.
    pub(super) fn failure(&self, name: &str) -> Option<Failure> {
        let why = self.why.clone()?;
        let what = format!("{name}: copied, except for {} bytes that cannot be read", self.len());
        Some(Failure::with(why.reason(), what).because(why))
    }
}

/// The content of a file, and its copy.
struct Content<'a> {
    file: &'a File,
    path: &'a [u8],
    place: &'a Entry,
    copy: &'a HostFile,
    gaps: Gaps,
    /// The number of bytes that were copied.
    copied: u64,
    /// The size of the copy: the end of the last write.
    end: u64,
}

impl Content<'_> {
    /// Writes bytes to the copy.
    fn write(&mut self, bytes: &[u8], pos: u64) -> Result<(), Failure> {
        self.copied += bytes.len() as u64;
        self.end = self.end.max(pos + bytes.len() as u64);
        self.copy.write_all_at(bytes, pos).map_err(|error| self.place.failed(error))
    }
}

impl Copier<'_> {
    /// Copies the written ranges. The copy has holes in place of all other ranges. In a copy without a salvage ledger, a range that cannot
    /// be read makes the copy fail. In a salvage, such ranges are returned, and the copy fails only if nothing of the file can be read.
    pub(super) fn copy_data(
        &mut self,
        place: &Entry,
        copy: &HostFile,
        file: &File,
        path: &[u8],
    ) -> Result<Gaps, Failure> {
        let (gaps, mut mapped) = (Gaps::default(), 0);
        let mut content = Content { file, path, place, copy, gaps, copied: 0, end: 0 };
        for mapping in file.mappings() {
            let mapping = match mapping {
                Ok(mapping) => mapping,
                Err(error) => {
                    let failure = Failure::at(self.source.name(path), &error);
                    if self.ledger.is_none() {
                        return Err(failure);
                    }
                    content.gaps.add(mapped..file.size(), failure);
                    break;
                }
            };
            mapped = mapping.end().0;
            if matches!(mapping.kind, IomapType::Hole | IomapType::Unwritten) {
                self.report.progress.advance(mapping.len);
                continue;
            }
            self.copy_range(&mut content, mapping.pos.0..mapping.end().0.min(file.size()))?;
        }
        match content.gaps.why {
            Some(why) if content.copied == 0 => Err(why),
            _ => {
                // The last write usually gives the copy its size, unless the file ends with a hole.
                if content.end != file.size()
                    && let Err(error) = copy.set_len(file.size())
                {
                    let failure = place.failed(error);
                    if self.ledger.is_none() {
                        return Err(failure);
                    }
                    // The size may be damaged, and larger than the host permits.
                    content.gaps.add(content.end..file.size(), failure);
                }
                Ok(content.gaps)
            }
        }
    }

    /// Copies a range of written blocks.
    fn copy_range(&mut self, content: &mut Content<'_>, range: Range<u64>) -> Result<(), Failure> {
        let (mut pos, file, path) = (range.start, content.file, content.path);
        loop {
            let is_unread = Cell::new(false);
            let unread = |error: &ironmap::Error| {
                is_unread.set(true);
                self.source.read_failed(path, error)
            };
            let (progress, stop) = (&self.report.progress, self.report.stop());
            let read = self.ahead.read(&mut self.queue, file, pos..range.end, unread, |bytes| {
                stop.check()?;
                content.write(bytes, pos)?;
                progress.advance(bytes.len() as u64);
                pos += bytes.len() as u64;
                Ok(())
            });
            match read {
                Ok(_) => return Ok(()),
                Err(failure) if !is_unread.get() || self.ledger.is_none() => return Err(failure),
                Err(_) => {
                    let end = range.end.min(pos.saturating_add(CHUNK as u64));
                    self.copy_units(content, pos..end)?;
                    pos = end;
                }
            }
        }
    }

    /// Copies a range with an error in small units. Units that cannot be read become gaps.
    fn copy_units(&mut self, content: &mut Content<'_>, range: Range<u64>) -> Result<(), Failure> {
        let unit = UNIT.min(u64::from(self.source.fs().usage().block_size));
        let memory = ironmap::bio::Buffer::aligned(UNIT as usize);
        let mut memory = memory.map_err(|error| Failure::at("memory", &error))?;
        let mut pos = range.start;
        while pos < range.end {
            self.report.stop().check()?;
            let end = ((pos / unit + 1) * unit).min(range.end);
            let bytes = &mut memory[..(end - pos) as usize];
            match transfer::read(content.file, &mut self.queue, bytes, FilePos(pos)) {
                Ok(count) => content.write(&bytes[..count], pos)?,
                Err(error) => {
                    content.gaps.add(pos..end, self.source.read_failed(content.path, &error));
                }
            }
            self.report.progress.advance(end - pos);
            pos = end;
        }
        Ok(())
    }
}
