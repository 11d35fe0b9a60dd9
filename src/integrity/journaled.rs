//! Writes to a device with a journal. A write has three steps: it claims its sectors exclusively, it makes its record durable, and it
//! writes the sectors to their final positions.

use smallvec::smallvec;

use super::checked::Checked;
use super::journal::{Few, Journal, Write};
use super::tag_block::Outcome;
use super::tagging::Tuples;
use crate::error::{Errno, Error, Result};

impl Checked {
    /// Writes through the journal. After a crash, the write is either completely present or completely absent.
    ///
    /// # Errors
    /// The errors of the devices.
    pub(super) fn write_journaled(&self, journal: &Journal, write: &Write<'_>) -> Result<()> {
        let mut failed = None;
        let in_place = || {
            let written = self.data.write_all_at(write.bufs, write.at, false);
            let errno = written.as_ref().err().map(Error::errno);
            failed = written.err();
            smallvec![errno.map_or(Ok(()), Err)]
        };
        self.write_together(journal, &[*write], in_place)?;
        failed.map_or(Ok(()), Err)
    }

    /// Carries out writes that do not overlap. After a crash, all of these writes are present, or none of them. `in_place` writes the data
    /// to their final positions, and returns one result for each write.
    ///
    /// # Errors
    /// The errors of the devices before the call of `in_place`. Errors of `in_place` are in the returned list.
    pub(super) fn write_together(
        &self,
        journal: &Journal,
        writes: &[Write<'_>],
        in_place: impl FnOnce() -> Few<Result<(), Errno>>,
    ) -> Result<Few<Result<(), Errno>>> {
        let mut tuples: Few<Tuples> = Few::with_capacity(writes.len());
        for write in writes {
            let mut one = Tuples::default();
            self.tuples(write.at, write.bufs, &mut one);
            tuples.push(one);
        }
        // Every thread claims sectors in ascending order, so no two threads wait for each other.
        let mut order: Few<_> = (0..writes.len()).collect();
        order.sort_unstable_by_key(|number| writes[*number].at);
        for (claimed, &number) in order.iter().enumerate() {
            if let Err(error) =
                self.claim_exclusively(writes[number].at, writes[number].len(), &tuples[number])
            {
                self.unclaim(writes, &order[..claimed]);
                return Err(error);
            }
        }
        let extent = |write: &Write<'_>| journal.extent(write.at, write.len(), 0);
        let extents: Few<_> = writes.iter().map(extent).collect();
        let gate = match journal.enter(self.home(), &extents, writes, &tuples) {
            Ok(gate) => gate,
            Err(error) => {
                self.unclaim(writes, &order);
                return Err(error);
            }
        };
        let results = in_place();
        for (write, result) in writes.iter().zip(&results) {
            self.end_claimed(write, *result);
        }
        drop(gate);
        Ok(results)
    }

    fn unclaim(&self, writes: &[Write<'_>], claimed: &[usize]) {
        for number in claimed {
            let write = &writes[*number];
            self.end_with(write.at, write.len(), Outcome::Nothing);
        }
    }

    /// Ends a write whose sectors are claimed exclusively.
    fn end_claimed(&self, write: &Write<'_>, result: Result<(), Errno>) {
        let outcome = if result.is_ok() { Outcome::Written } else { Outcome::Unknown };
        self.end_with(write.at, write.len(), outcome);
        if let Err(errno) = result {
            let count = write.len() >> self.tagging.shift;
            self.retagged(self.sector(write.at.0), count, errno);
        }
    }
}
