//! Discards: nobody knows what sectors hold that were discarded, and their tags say so.
//!
//! What a device gives of them need not be the same twice. Their tuples are of a form that no data have, so that whatever is read there
//! fits, until it is written again. After a crash in bitmap mode that is over, too: the sectors of dirty regions get the tags of what they
//! hold, since some of them may have been written.

use super::checked::{Checked, Tuples};
use super::geometry::Info;
use super::slot::Outcome;
use crate::error::{Errno, Error, Result};
use crate::units::DevOffset;

/// Blocks of tags that are changed at a time: so many stay in memory meanwhile.
const BLOCKS: u64 = 64;

/// The most sectors that are discarded at a time.
pub(super) fn most_discarded(info: &Info) -> u64 {
    BLOCKS * info.tuples_per_block()
}

impl Checked {
    /// Discards the whole sectors of a range, which lies on the device.
    ///
    /// # Errors
    /// Those of the devices: of EOPNOTSUPP nothing has come, of others nobody knows.
    pub(super) fn discard(&self, at: DevOffset, len: u64) -> Result<()> {
        let unit = u64::from(self.limits.logical_block);
        let step = (most_discarded(&self.info) << self.tagging.shift).max(unit);
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
            return journal.discard(self, at, len);
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

    /// The tuples of sectors that were discarded.
    pub(super) fn unwritten(&self, at: DevOffset, len: u64) -> Tuples {
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

/// What becomes of the tags. Where a discard failed some sectors may be gone: nobody wants them, and whatever is there must not be an error.
pub(super) fn outcome(discarded: &Result<()>) -> Outcome {
    match discarded.as_ref().map_err(Error::errno) {
        Err(Errno::EOPNOTSUPP) => Outcome::Nothing,
        _ => Outcome::Written,
    }
}
