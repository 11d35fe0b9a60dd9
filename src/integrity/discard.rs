//! Discards. The content of discarded sectors is undefined, and their tags record this.
//!
//! Two reads of a discarded sector may return different data. Therefore, the sector's tuple has a special form that no data produce, and
//! that matches any content. The sector keeps this tuple until it is written. In bitmap mode, a recovery replaces this tuple if the sector
//! is in a dirty region, because the sector may have been written since the discard.

use super::checked::Checked;
use super::disk::DISCARDED;
use super::journal::Journal;
use super::tag_block::Outcome;
use super::tagging::Tuples;
use crate::error::{Errno, Error, Result};
use crate::sync::atomic::Ordering;
use crate::units::DevOffset;

impl Checked {
    /// Discards the sectors that are completely within a range. The caller has checked that the range is within the device.
    ///
    /// # Errors
    /// The errors of the devices. After EOPNOTSUPP, nothing has changed. After any other error, the content is unknown.
    pub(super) fn discard(&self, at: DevOffset, len: u64) -> Result<()> {
        let unit = u64::from(self.limits.logical_block);
        let step = (self.info.most_discarded() << self.tagging.shift).max(unit);
        let end = (at.0 + len) / unit * unit;
        let mut at = at.0.next_multiple_of(unit);
        while at < end {
            let until = (at + 1).next_multiple_of(step).min(end);
            self.discard_step(DevOffset(at), until - at)?;
            at = until;
        }
        Ok(())
    }

    fn discard_step(&self, at: DevOffset, len: u64) -> Result<()> {
        if let Some(journal) = &self.journal {
            return self.discard_journaled(journal, at, len);
        }
        self.regions.begin(at.0, len, false)?;
        let tuples = self.unwritten(at, len);
        if let Err(error) = self.claim(at, len as usize, &tuples, false) {
            self.regions.end(at.0, len, false);
            return Err(error);
        }
        let discarded = self.data.discard(at, len);
        let outcome = outcome(&discarded);
        self.end_with(at, len, outcome);
        self.regions.end(at.0, len, outcome == Outcome::Written);
        discarded
    }

    /// Discards sectors of a device with a journal. The new tuples are durable before the device receives the discard, because two reads
    /// may return different data if a crash interrupts the discard.
    ///
    /// # Errors
    /// The errors of the devices.
    fn discard_journaled(&self, journal: &Journal, at: DevOffset, len: u64) -> Result<()> {
        if journal.no_discards.load(Ordering::Relaxed) {
            return Err(Error::io(Errno::EOPNOTSUPP, "the data device does not support discards"));
        }
        self.claim_exclusively(at, len, &self.unwritten(at, len))?;
        let gate = match journal.enter(self.home(), &[journal.extent(at, len, DISCARDED)], &[], &[])
        {
            Ok(gate) => gate,
            Err(error) => {
                self.end_with(at, len, Outcome::Nothing);
                return Err(error);
            }
        };
        let discarded = self.data.discard(at, len);
        let outcome = outcome(&discarded);
        self.end_with(at, len, outcome);
        drop(gate);
        if outcome == Outcome::Nothing {
            // The device has discarded nothing, but the journal contains the record of the discard. A replay of this record would make the
            // sectors unverified. Therefore, the journal is emptied, and later discards are refused.
            journal.no_discards.store(true, Ordering::Relaxed);
            journal.checkpoint(self.home())?;
        }
        discarded
    }

    /// Returns the tuples that mark sectors as discarded.
    fn unwritten(&self, at: DevOffset, len: u64) -> Tuples {
        let size = self.tagging.size();
        let mut tuples = Tuples::default();
        tuples.0.resize((len >> self.tagging.shift) as usize * size, 0);
        for (sector, tuple) in (self.sector(at.0)..).zip(tuples.0.chunks_exact_mut(size)) {
            let generation = self.regions.generation(sector << self.tagging.shift);
            let unwritten = self.tagging.unwritten(sector, generation);
            tuple.copy_from_slice(&unwritten[..size]);
        }
        tuples
    }
}

/// How a discard changes the tags. EOPNOTSUPP changes no tag. After any other error, some sectors may have been discarded. Their content is
/// no longer needed, so their tags may match any content.
fn outcome(discarded: &Result<()>) -> Outcome {
    match discarded.as_ref().map_err(Error::errno) {
        Err(Errno::EOPNOTSUPP) => Outcome::Nothing,
        _ => Outcome::Written,
    }
}
