//! Verifies sectors that were read.

use std::ops::DerefMut;
use std::time::{Duration, Instant};

use super::checked::Checked;
use super::report::{Event, add};
use super::tagging::{LONGEST, Packed};
use crate::bio::Buffer;
use crate::error::{Errno, Error, Result};
use crate::protection::Mismatch;
use crate::units::DevOffset;

/// The number of tuples that are copied from a block in one step.
const BATCH: usize = 32;

/// The time limit for repeated reads of a sector to which a write is in flight. The sector is read again until its content matches the
/// tuple of a writer. No write to a device takes longer than this limit.
const PATIENCE: Duration = Duration::from_secs(30);

impl Checked {
    /// Verifies a read. A sector that does not match its tag is read again into `data`.
    ///
    /// # Errors
    /// EILSEQ with the first wrong sector; the errors of the tag device; EAGAIN if `nowait` is set and the tags are not in memory.
    #[inline]
    pub(super) fn verify(&self, at: DevOffset, data: &mut [u8], nowait: bool) -> Result<()> {
        if self.unverified {
            return self.verify_clean(at, data);
        }
        if data.len() == self.tagging.interval() {
            let sector = self.sector(at.0);
            let (block, index) = self.tags.place(sector);
            let tuple = self.tags.with(block, nowait, |slot| slot.tuple(index))?;
            if self.tagging.fits(sector, data, &tuple) {
                return Ok(());
            }
            return self.verify_again(sector, data).map_err(wrong);
        }
        self.verify_many(self.sector(at.0), data, nowait)
    }

    fn verify_many(&self, first: u64, data: &mut [u8], nowait: bool) -> Result<()> {
        let (shift, size) = (self.tagging.shift, self.tagging.size());
        let mut tuples = [0; BATCH * LONGEST];
        let mut failed = None;
        for piece in self.tags.pieces(first, data.len() >> shift) {
            for from in (0..piece.count).step_by(BATCH) {
                let count = BATCH.min(piece.count - from);
                let tuples = &mut tuples[..count * size];
                self.tags.with(piece.block, nowait, |slot| {
                    let index = piece.index + from;
                    tuples.copy_from_slice(slot.tuples(index..index + count));
                })?;
                let number = piece.before + from;
                let data = &mut data[number << shift..(number + count) << shift];
                let sector = first + number as u64;
                if self.tagging.check(sector, data, tuples).is_err() {
                    let mismatch = self.verify_each(sector, data, tuples)?;
                    failed = failed.or(mismatch);
                }
            }
        }
        failed.map_or(Ok(()), |mismatch| Err(wrong(Failed::Mismatch(mismatch))))
    }

    /// Checks each sector of a batch separately, after a check of the whole batch has found a mismatch. Counts all wrong sectors, and
    /// returns the mismatch of the first one.
    #[cold]
    fn verify_each(&self, first: u64, data: &mut [u8], tuples: &[u8]) -> Result<Option<Mismatch>> {
        let sectors = data.chunks_exact_mut(self.tagging.interval());
        let mut failed = None;
        for ((sector, data), tuple) in
            (first..).zip(sectors).zip(tuples.chunks_exact(self.tagging.size()))
        {
            if self.tagging.check(sector, data, tuple).is_err() {
                match self.verify_again(sector, data) {
                    Err(Failed::Mismatch(mismatch)) => failed = failed.or(Some(mismatch)),
                    result => result.map_err(wrong)?,
                }
            }
        }
        Ok(failed)
    }

    /// Verifies a read into several buffers, which were filled in order. A sector that does not match its tag is read again.
    pub(super) fn verify_vectored<B: DerefMut<Target = [u8]>>(
        &self,
        at: DevOffset,
        bufs: &mut [B],
        nowait: bool,
    ) -> Result<()> {
        let mut pos = at;
        if bufs.iter().all(|buf| buf.len().is_multiple_of(self.tagging.interval())) {
            for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
                self.verify(pos, buf, nowait)?;
                pos.0 += buf.len() as u64;
            }
            return Ok(());
        }
        // A sector can be split across several buffers, so this code first copies all buffers into one buffer.
        let mut flat = Vec::new();
        bufs.iter().for_each(|buf| flat.extend_from_slice(buf));
        self.verify(at, &mut flat, nowait)?;
        let mut rest = &flat[..];
        for buf in bufs {
            let (head, tail) = rest.split_at(buf.len());
            buf.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    /// Verifies the sectors of clean regions. Counts the sectors of dirty regions as unverified.
    #[cold]
    fn verify_clean(&self, at: DevOffset, data: &mut [u8]) -> Result<()> {
        let interval = self.tagging.interval();
        for (number, data) in data.chunks_exact_mut(interval).enumerate() {
            let pos = at.0 + (number * interval) as u64;
            if self.regions.is_dirty(self.regions.region_of(pos)) {
                add(&self.report.unverified, 1);
            } else {
                self.verify_many(self.sector(pos), data, false)?;
            }
        }
        Ok(())
    }

    /// Checks a sector again that did not match its tag. The mismatch has one of three reasons: the sector was written after the read, a
    /// write to the sector is in flight, or its content is wrong.
    #[cold]
    fn verify_again(&self, sector: u64, data: &mut [u8]) -> Result<(), Failed> {
        let (block, index) = self.tags.place(sector);
        let candidates = || self.tags.with(block, false, |slot| slot.candidates(index));
        let fits = |data: &[u8], tuples: &[Packed]| {
            tuples.iter().any(|tuple| self.tagging.fits(sector, data, tuple))
        };
        let start = Instant::now();
        let mut before = candidates().map_err(Failed::Other)?;
        if before.busy && fits(data, &before.tuples) {
            return Ok(());
        }
        add(&self.report.retries, 1);
        loop {
            let again = self.read_sector(sector).map_err(Failed::Other)?;
            let after = candidates().map_err(Failed::Other)?;
            if fits(&again, &before.tuples) || fits(&again, &after.tuples) {
                data.copy_from_slice(&again);
                return Ok(());
            }
            let still = !before.busy && before == after;
            if still || start.elapsed() > PATIENCE {
                let tuple = after.tuples.first().copied().unwrap_or_default();
                let checked = self.tagging.check(sector, &again, &tuple[..self.tagging.size()]);
                let Err(mismatch) = checked else { return Ok(()) };
                add(&self.report.mismatches, 1);
                self.report.event(Event::Mismatch(mismatch));
                return Err(Failed::Mismatch(mismatch));
            }
            before = after;
            crate::sync::yield_now();
        }
    }

    /// Returns the mismatch of a sector that was read, or `None` if the sector matches its tag.
    ///
    /// # Errors
    /// The errors of the devices.
    pub(super) fn check_sector(&self, sector: u64, data: &mut [u8]) -> Result<Option<Mismatch>> {
        let tuple = self.tuple_of(sector)?;
        if self.tagging.fits(sector, data, &tuple) {
            return Ok(None);
        }
        match self.verify_again(sector, data) {
            Ok(()) => Ok(None),
            Err(Failed::Mismatch(mismatch)) => Ok(Some(mismatch)),
            Err(Failed::Other(error)) => Err(error),
        }
    }

    /// The tag of a sector.
    pub(super) fn tuple_of(&self, sector: u64) -> Result<Packed> {
        let (block, index) = self.tags.place(sector);
        self.tags.with(block, false, |slot| slot.tuple(index))
    }

    /// Reads a sector into memory that no other thread or process can access.
    pub(super) fn read_sector(&self, sector: u64) -> Result<Buffer> {
        let mut buffer = Buffer::aligned(self.tagging.interval())?;
        self.data.read_exact_at(&mut buffer, DevOffset(sector << self.tagging.shift))?;
        Ok(buffer)
    }
}

/// The reason why a sector could not be verified.
enum Failed {
    Mismatch(Mismatch),
    Other(Error),
}

#[cold]
fn wrong(failed: Failed) -> Error {
    match failed {
        Failed::Mismatch(mismatch) => Error::io(Errno::EILSEQ, mismatch.to_string()),
        Failed::Other(error) => error,
    }
}
