//! The recovery of a device that was not closed. It repeats the writes in the journal, and gives the sectors of dirty regions tags that
//! match their current content. After the recovery, all data match their tags.

use std::io::IoSlice;

use super::checked::Checked;
use super::dirty::Regions;
use super::geometry::Info;
use super::journal::Extent;
use super::scrub::is_of_a_place;
use super::tagging::{Packed, Tagging, load};
use super::tags::Tags;
use crate::bio::Buffer;
use crate::device::Device;
use crate::error::{Context, Result};
use crate::units::DevOffset;

/// A text that is added to an error if `--force` lets the recovery continue despite the error.
pub(super) const GIVE_UP: &str =
    "the device is not opened (integrity open --force opens the device without this structure)";

/// The result of the recovery when a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Whether the device was not closed before this open.
    pub crashed: bool,
    /// The number of regions that were being written before the crash. The recovery reads all sectors of these regions. If the device is
    /// opened read-only, there is no recovery, and reads of these regions are not verified.
    pub regions: u64,
    /// The number of sectors in the recovered regions that did not match their tags and got new tags.
    pub retagged: u64,
    /// The number of sectors in the recovered regions that keep their tags because the sector or its tag could not be read.
    pub unreadable: u64,
    /// The number of records of the journal whose writes were repeated.
    pub records: u64,
    /// The number of sectors that were written again from the journal.
    pub replayed: u64,
    /// The number of sectors in the journal that could not be written. They were skipped, and do not match their tags.
    pub lost: u64,
    /// The number of blocks of the dirty map that could not be read or did not match their checksums. All regions of these blocks counted
    /// as dirty.
    pub bad_map_blocks: u64,
}

impl Recovered {
    /// Returns the report as lines of text. `written` states whether the device was opened for writing. A device that is opened read-only
    /// is not recovered.
    #[must_use]
    pub fn notices(&self, written: bool) -> Vec<String> {
        let Self { regions, retagged, unreadable, records, replayed, lost, bad_map_blocks, .. } =
            *self;
        let mut lines = Vec::new();
        if !self.crashed {
            return lines;
        }
        if !written {
            lines.push(format!(
                "the integrity device was not closed: {regions} dirty regions are not verified until the device is opened for writing"
            ));
            return lines;
        }
        lines.push(format!(
            "the integrity device was not closed: {regions} dirty regions were read again, {retagged} sectors got new tags, {records} journal records were replayed"
        ));
        if replayed > 0 {
            lines.push(format!("{replayed} sectors were written from the journal"));
        }
        if unreadable > 0 {
            lines.push(format!(
                "{unreadable} sectors of dirty regions could not be read and keep their old tags"
            ));
        }
        if lost > 0 {
            lines
                .push(format!("{lost} sectors could not be written from the journal and are lost"));
        }
        if bad_map_blocks > 0 {
            lines.push(format!("{bad_map_blocks} blocks of the dirty map had a wrong checksum"));
        }
        lines
    }
}

/// Repeats the writes of the journal's records.
pub(super) struct Replay<'a> {
    pub(super) data: &'a dyn Device,
    pub(super) tags: &'a Tags,
    pub(super) info: &'a Info,
    pub(super) regions: &'a Regions,
    pub(super) force: bool,
    /// The number of sectors that could not be written and were skipped.
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

    /// If the write of a sector failed and the options permit this, counts the sector as lost and continues.
    fn give_up(&mut self, done: Result<()>) -> Result<()> {
        match done {
            Err(_) if self.force => self.lost += 1,
            done => done.context(|| GIVE_UP)?,
        }
        Ok(())
    }
}

/// Gives the sectors of a region tags that match their current content.
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
            // A sector that cannot be read keeps its tag until a write repairs the sector. If a block of tags could not be read, the
            // recovery does not try to read the block again.
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
                // The tag of a discarded sector matches any content. This code replaces it with a normal tag, because the sector may have
                // been written after the discard.
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
