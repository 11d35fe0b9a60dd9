//! Reads all sectors against their tags.

use super::checked::Checked;
use super::report::{Event, add};
use super::tagging::load;
use super::tuple::Mismatch;
use crate::bio::Buffer;
use crate::error::{Context, Result};
use crate::units::DevOffset;

/// Something that a scrub found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A sector's data and tag disagree.
    Mismatch(Mismatch),
    /// The map says that a region was written in a generation of which no sector is there: these writes were lost, data and tags.
    LostWrites {
        /// Where the region begins.
        at: DevOffset,
        /// Its length in bytes.
        len: u64,
        /// The generation that is missing.
        generation: u16,
    },
}

/// What a scrub has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Sectors that were read.
    pub sectors: u64,
    /// Sectors whose data and tag disagree.
    pub mismatches: u64,
    /// Regions whose last writes are not there.
    pub lost: u64,
}

/// What is read at a time.
const CHUNK: u64 = 1 << 20;

pub(super) fn scrub(
    checked: &Checked,
    found: &mut dyn FnMut(Finding),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Scrubbed> {
    let info = &checked.info;
    let mut scrubbed = Scrubbed::default();
    let mut buffer = Buffer::aligned(CHUNK.min(info.region) as usize)?;
    for start in (0..info.data_size).step_by(info.region as usize) {
        let end = (start + info.region).min(info.data_size);
        let region = checked.regions.region_of(start);
        let (before, generation) =
            (checked.regions.stillness(region), checked.regions.generation(start));
        let (mut wrong, mut of_now) = (0, generation == 0);
        let mut at = start;
        while at < end {
            let len = (end - at).min(buffer.len() as u64);
            let content = &mut buffer[..len as usize];
            checked.data.read_exact_at(content, DevOffset(at)).context(|| "scrub")?;
            for (number, data) in content.chunks_exact_mut(info.interval as usize).enumerate() {
                let sector = at / u64::from(info.interval) + number as u64;
                if let Some(mismatch) = checked.check_sector(sector, data)? {
                    wrong += 1;
                    found(Finding::Mismatch(mismatch));
                }
                of_now |= checked.generation_of(sector)? == generation;
            }
            let first = at / u64::from(info.interval);
            wrong += checked.check_stored(first, content, found)?;
            at += len;
            scrubbed.sectors += len / u64::from(info.interval);
            progress(at, info.data_size);
        }
        scrubbed.mismatches += wrong;
        // Where it was written meanwhile, the generation may be another one.
        let still = before.is_some() && checked.regions.stillness(region) == before;
        if info.generations && still && !of_now && checked.regions.has_trace(region) {
            scrubbed.lost += 1;
            found(Finding::LostWrites { at: DevOffset(start), len: end - start, generation });
        }
    }
    Ok(scrubbed)
}

impl Checked {
    /// Looks at what the device holds of tags that are in memory, for sectors that were just read: how many are wrong there alone.
    fn check_stored(
        &self,
        first: u64,
        content: &[u8],
        found: &mut dyn FnMut(Finding),
    ) -> Result<u64> {
        let (interval, size) = (self.tagging.interval(), self.tagging.size());
        let mut wrong = 0;
        for piece in self.tags.pieces(first, content.len() / interval) {
            let Some(stored) = self.tags.differing(piece.block)? else { continue };
            for (index, number) in piece.range().zip(piece.before..) {
                let tuple = load(self.info.kind, &stored[index * size..]);
                let in_memory = self.tags.with(piece.block, false, |slot| slot.tuple(index))?;
                if tuple == in_memory {
                    continue;
                }
                let data = &content[number * interval..(number + 1) * interval];
                let checked = self.tagging.check(first + number as u64, data, &tuple[..size]);
                if let Err(mismatch) = checked {
                    wrong += 1;
                    add(&self.report.mismatches, 1);
                    self.report.event(Event::Mismatch(mismatch));
                    found(Finding::Mismatch(mismatch));
                }
            }
        }
        Ok(wrong)
    }
}
