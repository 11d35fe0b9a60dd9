//! Makes data and tags agree again where a device was not closed: writes of the journal are done once more, sectors of dirty regions are tagged
//! for what they hold.

use std::io::IoSlice;

use super::checked::Checked;
use super::dirty::Regions;
use super::geometry::Info;
use super::journal::Extent;
use super::open::Recovered;
use super::scrub::is_of_a_place;
use super::tagging::{Packed, Tagging, load};
use super::tags::Tags;
use crate::bio::Buffer;
use crate::device::Device;
use crate::error::{Context, Result};
use crate::units::DevOffset;

/// Behind an error that need not be the last word.
pub(super) const GIVE_UP: &str = "refused (integrity open --force gives it up)";

/// Does again what records of the journal say.
pub(super) struct Replay<'a> {
    pub(super) data: &'a dyn Device,
    pub(super) tags: &'a Tags,
    pub(super) info: &'a Info,
    pub(super) regions: &'a Regions,
    pub(super) force: bool,
    /// Sectors that were given up.
    pub(super) lost: u64,
}

impl Replay<'_> {
    pub(super) fn record(
        &mut self,
        extents: &[Extent],
        tuples: &[u8],
        content: &[u8],
    ) -> Result<()> {
        let (interval, size) = (self.info.interval as usize, self.info.kind.bytes());
        let tagging = Tagging::new(self.info);
        let mut number = 0;
        for Extent { sector, count, discarded } in extents {
            if *discarded {
                for sector in *sector..sector + count {
                    let generation = self.regions.generation(sector * interval as u64);
                    self.tag(sector, tagging.unwritten(sector, generation))?;
                }
                continue;
            }
            let (from, len) = (number * interval, *count as usize * interval);
            let mut buffer = Buffer::aligned(len)?;
            buffer.copy_from_slice(&content[from..from + len]);
            let written = self.write(*sector, &buffer);
            for (sector, data) in (*sector..).zip(buffer.chunks_exact(interval)) {
                if written.is_err() {
                    let again = self.write(sector, data);
                    self.give_up(again)?;
                }
                self.tag(sector, load(self.info.kind, &tuples[number * size..]))?;
                number += 1;
            }
        }
        Ok(())
    }

    fn write(&self, sector: u64, data: &[u8]) -> Result<()> {
        let at = DevOffset(sector * u64::from(self.info.interval));
        self.data.write_all_at(&[IoSlice::new(data)], at, false)
    }

    fn tag(&mut self, sector: u64, tuple: Packed) -> Result<()> {
        let (block, index) = self.tags.place(sector);
        let tagged = self.tags.with(block, false, |slot| slot.set(index, tuple));
        self.give_up(tagged)
    }

    /// A sector that is refused is lost, where that is asked for.
    fn give_up(&mut self, done: Result<()>) -> Result<()> {
        match done {
            Err(_) if self.force => self.lost += 1,
            done => done.context(|| GIVE_UP)?,
        }
        Ok(())
    }
}

/// Gives the sectors of a region the tags of what they hold.
pub(super) fn retag(
    checked: &Checked,
    region: u32,
    force: bool,
    recovered: &mut Recovered,
) -> Result<()> {
    let info = &checked.info;
    let start = u64::from(region) * info.region;
    let end = (start + info.region).min(info.data_size);
    let generation = checked.regions.generation(start);
    let interval = u64::from(info.interval);
    let mut buffer = Buffer::aligned((1 << 20).min(info.region) as usize)?;
    let (mut at, mut refused) = (start, None);
    while at < end {
        let len = (end - at).min(buffer.len() as u64);
        let content = &mut buffer[..len as usize];
        let whole = checked.data.read_exact_at(content, DevOffset(at)).is_ok();
        for (sector, data) in (at / interval..).zip(content.chunks_exact_mut(interval as usize)) {
            // What cannot be read keeps its tag: who writes it makes it good again. A block of tags is tried once.
            if refused == Some(checked.tags.place(sector).0) {
                recovered.unreadable += 1;
                continue;
            }
            if !whole && checked.data.read_exact_at(data, DevOffset(sector * interval)).is_err() {
                recovered.unreadable += 1;
                continue;
            }
            let (block, index) = checked.tags.place(sector);
            let retagged = checked.tags.with(block, false, |slot| {
                // One that was discarded may have been written since.
                let tuple = slot.tuple(index);
                let fits = checked.tagging.fits(sector, data, &tuple)
                    && !checked.tagging.is_unwritten(sector, &tuple[..info.kind.bytes()]);
                if !fits {
                    slot.set(index, checked.tagging.tuple(sector, data, generation));
                }
                u64::from(!fits)
            });
            recovered.retagged += match retagged {
                Ok(retagged) => retagged,
                Err(error) if force && is_of_a_place(error.errno()) => {
                    refused = Some(block);
                    recovered.unreadable += 1;
                    0
                }
                Err(error) => return Err(error.context(GIVE_UP)),
            };
        }
        at += len;
    }
    Ok(())
}
