//! Compares all sectors with their tags.

use std::fmt;

use super::area::CHUNK;
use super::checked::Checked;
use super::report::{Event, add};
use super::tagging::load;
use super::tags::Piece;
use crate::bio::Buffer;
use crate::error::{Context, Errno, Error, ErrorKind, Result};
use crate::protection::Mismatch;
use crate::units::DevOffset;

/// A finding of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScrubFinding {
    /// A sector does not match its tag.
    Mismatch(Mismatch),
    /// Sectors could not be verified because a device refused to read them or their tags.
    Unreadable {
        /// The device that refused the read.
        half: Half,
        /// The first sector.
        sector: u64,
        /// The number of sectors: 1 if the data device refused the read; if the tag device refused the read, the number of compared sectors
        /// whose tags are in the unreadable block.
        count: u64,
        /// The errno of the device.
        errno: Errno,
    },
    /// The dirty map contains a generation of a region, but no sector of the region has a tag with this generation. The data and tags of
    /// the last writes to the region were lost.
    LostWrites {
        /// The start of the region.
        at: DevOffset,
        /// The length of the region in bytes.
        len: u64,
        /// The missing generation.
        generation: u16,
    },
}

impl fmt::Display for ScrubFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Mismatch(mismatch) => mismatch.fmt(f),
            Self::Unreadable { half: Half::Data, sector, errno, .. } => {
                write!(f, "sector {sector}: cannot be read: {errno}")
            }
            Self::Unreadable { half: Half::Tags, sector, count, errno } => {
                let last = sector + count - 1;
                write!(f, "sectors {sector} to {last}: their tags cannot be read: {errno}")
            }
            Self::LostWrites { at, len, generation } => {
                write!(
                    f,
                    "the region of {len} bytes at {at} has lost writes: no sector has generation {generation}"
                )
            }
        }
    }
}

/// One of the two devices of an integrity device. No other variants will be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The device that contains the data.
    Data,
    /// The device that contains the tags.
    Tags,
}

impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "data",
            Self::Tags => "tags",
        })
    }
}

/// The result of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scrubbed {
    /// The number of sectors that were compared with their tags.
    pub sectors: u64,
    /// The number of discarded sectors, whose content may be anything.
    pub discarded: u64,
    /// The number of sectors that do not match their tags.
    pub mismatches: u64,
    /// The number of sectors that could not be verified because a device refuses to read them or their tags.
    pub unreadable: u64,
    /// The number of skipped sectors. The device was opened read-only, and the regions of these sectors were being written when a crash
    /// occurred. The next open for writing recovers these regions.
    pub skipped: u64,
    /// The number of regions whose last writes were lost.
    pub lost: u64,
}

pub(super) fn scrub(
    checked: &Checked,
    found: &mut dyn FnMut(ScrubFinding),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Scrubbed> {
    let info = &checked.info;
    let mut scrub = Scrub { checked, found, scrubbed: Scrubbed::default() };
    let mut buffer = Buffer::aligned(CHUNK.min(info.region) as usize)?;
    for start in (0..info.data_size).step_by(info.region as usize) {
        let end = (start + info.region).min(info.data_size);
        let region = checked.regions.region_of(start);
        let (before, generation) =
            (checked.regions.stillness(region), checked.regions.generation(start));
        if checked.unverified && checked.regions.is_dirty(region) {
            scrub.scrubbed.skipped += (end - start) / u64::from(info.interval);
            progress(end, info.data_size);
            continue;
        }
        let mut of_now = generation == 0;
        let mut at = start;
        while at < end {
            let len = (end - at).min(buffer.len() as u64);
            of_now |= scrub.chunk(at, &mut buffer[..len as usize], generation)?;
            at += len;
            progress(at, info.data_size);
        }
        // If the region was written during the scrub, its generation may have changed. The scrub then reports no lost writes.
        let still = before.is_some() && checked.regions.stillness(region) == before;
        if info.generations && still && !of_now && checked.regions.has_trace(region) {
            scrub.scrubbed.lost += 1;
            let (at, len) = (DevOffset(start), end - start);
            (scrub.found)(ScrubFinding::LostWrites { at, len, generation });
        }
    }
    Ok(scrub.scrubbed)
}

struct Scrub<'a> {
    checked: &'a Checked,
    found: &'a mut dyn FnMut(ScrubFinding),
    scrubbed: Scrubbed,
}

impl Scrub<'_> {
    /// Checks contiguous sectors. Returns whether one of their tags may contain `generation`.
    fn chunk(&mut self, at: u64, content: &mut [u8], generation: u16) -> Result<bool> {
        let checked = self.checked;
        let (first, interval) = (checked.sector(at), checked.tagging.interval());
        // If the whole range cannot be read, this code reads the sectors one by one.
        let whole = checked.data.read_exact_at(content, DevOffset(at)).is_ok();
        let mut of_now = false;
        for piece in checked.tags.pieces(first, content.len() / interval) {
            let range = piece.before * interval..(piece.before + piece.count) * interval;
            let sector = first + piece.before as u64;
            of_now |= self.piece(piece, sector, &mut content[range], whole, generation)?;
        }
        Ok(of_now)
    }

    /// Checks contiguous sectors whose tags are in one block. Returns whether one of the tags may contain `generation`.
    fn piece(
        &mut self,
        piece: Piece,
        first: u64,
        content: &mut [u8],
        whole: bool,
        generation: u16,
    ) -> Result<bool> {
        let checked = self.checked;
        if let Err(error) = checked.tags.with(piece.block, false, |_| ()) {
            self.refused(Half::Tags, first, piece.count as u64, error)?;
            // The tags cannot be read. One of them may contain the generation, so the generation is not reported as missing.
            return Ok(true);
        }
        let (interval, size) = (checked.tagging.interval(), checked.tagging.size());
        let (mut of_now, mut unread) = (false, Vec::new());
        for (sector, data) in (first..).zip(content.chunks_exact_mut(interval)) {
            let tuple = checked.tuple_of(sector)?;
            of_now |= checked.tagging.generation(&tuple) == generation;
            let at = DevOffset(sector << checked.tagging.shift);
            let read = if whole { Ok(()) } else { checked.data.read_exact_at(data, at) };
            match read.and_then(|()| checked.check_sector(sector, data)) {
                Ok(Some(mismatch)) => {
                    self.scrubbed.sectors += 1;
                    self.wrong(mismatch);
                }
                Ok(None) if checked.tagging.is_unwritten(sector, &tuple[..size]) => {
                    self.scrubbed.discarded += 1;
                }
                Ok(None) => self.scrubbed.sectors += 1,
                Err(error) => {
                    self.refused(Half::Data, sector, 1, error)?;
                    unread.push(sector);
                }
            }
        }
        self.stored(piece, first, content, &unread)?;
        Ok(of_now)
    }

    /// Compares tags in memory with the tags on the device, to find tag writes that the device has lost. `content` contains the data of the
    /// sectors. `unread` contains the numbers of unreadable sectors, which are skipped.
    fn stored(&mut self, piece: Piece, first: u64, content: &[u8], unread: &[u64]) -> Result<()> {
        let checked = self.checked;
        let (interval, size) = (checked.tagging.interval(), checked.tagging.size());
        let stored = match checked.tags.differing(piece.block) {
            Ok(Some(stored)) => stored,
            Ok(None) => return Ok(()),
            Err(error) => return self.refused(Half::Tags, first, piece.count as u64, error),
        };
        let sectors = (first..).zip(content.chunks_exact(interval)).zip(piece.range());
        for ((sector, data), index) in sectors {
            let tuple = load(checked.info.kind, &stored[index * size..]);
            let in_memory = checked.tags.with(piece.block, false, |slot| slot.tuple(index))?;
            if tuple == in_memory || unread.contains(&sector) {
                continue;
            }
            if let Err(mismatch) = checked.tagging.verify(sector, data, &tuple[..size]) {
                add(&checked.report.mismatches, 1);
                checked.report.event(Event::Mismatch(mismatch));
                self.wrong(mismatch);
            }
        }
        Ok(())
    }

    fn wrong(&mut self, mismatch: Mismatch) {
        self.scrubbed.mismatches += 1;
        (self.found)(ScrubFinding::Mismatch(mismatch));
    }

    /// Records that a device has refused to read sectors, or their tags.
    ///
    /// # Errors
    /// Returns `error` if it concerns the whole device. The scrub must then end.
    fn refused(&mut self, half: Half, sector: u64, count: u64, error: Error) -> Result<()> {
        match error.kind() {
            ErrorKind::Io(errno) if is_of_a_place(errno) => {
                self.scrubbed.unreadable += count;
                (self.found)(ScrubFinding::Unreadable { half, sector, count, errno });
                Ok(())
            }
            _ => Err(error).context(|| "scrub"),
        }
    }
}

/// Whether a block device's errno concerns only some sectors. This is true for four values: EIO, ENODATA (an error of the medium), EILSEQ
/// (an error of the device's own protection information), and EREMOTEIO (an error of the target).
pub(super) fn is_of_a_place(errno: Errno) -> bool {
    matches!(errno, Errno::EIO | Errno::ENODATA | Errno::EILSEQ | Errno::EREMOTEIO)
}
