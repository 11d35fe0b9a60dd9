//! Protection information for every sector of any device.
//!
//! An [`Integrity`] device stands over a data device, and keeps a tuple for each sector of it elsewhere: on a device of its own, or
//! in the tail of the same. What is read is verified; what is written gets a tuple. Data that the device changed, mixed up or gave
//! from another place are an error (EILSEQ), never data.
//!
//! It computes over memory that must not change meanwhile: [`Limits::stable_writes`] says so, and the layers above keep to it.
//!
//! | File | What it knows |
//! |---|---|
//! | `disk`, `geometry`, `area` | the format |
//! | `guard`, `tuple`, `tagging` | which tuple a sector must have |
//! | `slot`, `tags` | tuples in memory, and the writes in flight |
//! | `dirty`, `journal`, `durability` | how data and tags agree again after a crash |
//! | `checked`, `verify` | how a write begins and ends, how a sector is verified |
//! | `discard` | sectors that may hold anything |
//! | `queue` | the way of a request |
//! | `format`, `open`, `recover`, `check`, `scrub` | what is done to all of a device |

mod area;
mod check;
mod checked;
mod dirty;
mod discard;
mod disk;
mod durability;
mod format;
mod geometry;
pub mod guard;
mod journal;
mod open;
mod queue;
mod recover;
mod report;
mod scrub;
mod slot;
mod tagging;
mod tags;
pub mod tuple;
mod verify;

use std::io::IoSlice;
use std::sync::Arc;

use smallvec::SmallVec;

pub(crate) use self::area::holds_tags;
pub use self::check::{CheckedArea, Problem, check};
pub use self::format::{FormatOptions, format, plan};
pub use self::geometry::{Info, Mode};
pub use self::open::{IntegrityOptions, Opened, Recovered};
pub use self::report::{Counts, Event};
pub use self::scrub::{Finding, Half, Scrubbed};
pub use self::tuple::{Field, Interval, Mismatch, Protection, TupleKind};

use self::checked::{Checked, Tuples};
use self::journal::Write;
use self::queue::IntegrityQueue;
use crate::bio::Buffer;
use crate::device::{AnyQueue, Device, Limits, OtherQueue, QueueOptions, WrongTuple};
use crate::error::{Error, ErrorKind, Result};
use crate::units::DevOffset;

/// A device whose sectors are verified. It is closed when it and all of its queues are dropped.
#[derive(Clone, Debug)]
pub struct Integrity {
    checked: Arc<Checked>,
}

/// What one call of the device itself reads at a time.
const CHUNK: u64 = 1 << 20;

impl Integrity {
    /// Opens the device that [`format()`] made, with its tags on `tags` or in the tail of `data`. Read-only where one of the two is.
    ///
    /// # Errors
    /// `UnknownFormat` where there is none; `Corrupt` with block and field; `Unsupported` by name; `Io`.
    pub fn open(data: Arc<dyn Device>, tags: Option<Arc<dyn Device>>) -> Result<Opened> {
        Self::open_with(data, tags, &IntegrityOptions::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(
        data: Arc<dyn Device>,
        tags: Option<Arc<dyn Device>>,
        options: &IntegrityOptions,
    ) -> Result<Opened> {
        open::open(data, tags, options)
    }

    /// What the superblock of a device says, without opening it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn probe(data: &dyn Device, tags: Option<&dyn Device>) -> Result<Info> {
        area::Superblock::read(tags.unwrap_or(data), tags.is_none()).map(|found| found.info)
    }

    fn over(checked: Checked) -> Self {
        Self { checked: Arc::new(checked) }
    }

    /// What it is made of.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.checked.info
    }

    /// What has happened since it was opened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.checked.report.counts()
    }

    /// Takes the events since the last call, oldest first, and the number of those that were dropped before them.
    #[must_use]
    pub fn take_events(&self) -> (Vec<Event>, u64) {
        self.checked.report.take_events()
    }

    /// Reads all sectors against their tags. It may be in use meanwhile. `found` hears of all that is wrong, `progress` how many bytes
    /// of how many are done. Tags that are in memory are read from their device all the same: a write of them may have been lost.
    ///
    /// # Errors
    /// `Io` of a device that is gone. What is wrong is none, nor are sectors that cannot be read.
    pub fn scrub(
        &self,
        found: &mut dyn FnMut(Finding),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Scrubbed> {
        scrub::scrub(&self.checked, found, progress)
    }

    /// Brings all tags to their device, so that nothing is to be recovered. Writes are refused from then on; it can be read further.
    ///
    /// # Errors
    /// `Busy` while writes are in flight; `Io`.
    pub fn close(&self) -> Result<()> {
        self.checked.close()
    }

    fn check_range(&self, what: &str, at: DevOffset, len: u64) -> Result<()> {
        match at.checked_add(len) {
            Some(end) if end.0 <= self.checked.info.data_size => Ok(()),
            _ => Err(Error::invalid(format!("{what} of {len} bytes at {at}: behind the end"))),
        }
    }

    /// Writes whole sectors, no more than a request may have.
    fn write_some(&self, bufs: &[IoSlice<'_>], at: DevOffset, fua: bool) -> Result<()> {
        let checked = &*self.checked;
        if let Some(journal) = &checked.journal {
            return checked.write_journaled(journal, &Write { at, bufs });
        }
        checked.begin(at, bufs, &mut Tuples::default(), false)?;
        let written = checked.data.write_all_at(bufs, at, fua);
        let result = written.as_ref().map_err(Error::errno).copied();
        checked.end(at, bufs, result, fua);
        written
    }
}

impl Device for Integrity {
    fn limits(&self) -> &Limits {
        &self.checked.limits
    }

    fn size(&self) -> u64 {
        self.checked.info.data_size
    }

    fn read_exact_at(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        self.check_range("read", at, buf.len() as u64)?;
        let mask = u64::from(self.checked.limits.logical_block) - 1;
        if (at.0 | buf.len() as u64) & mask == 0 && !buf.is_empty() {
            self.checked.data.read_exact_at(buf, at)?;
            return self.checked.verify(at, buf, false);
        }
        // Whole sectors around it.
        let end = at.0 + buf.len() as u64;
        let mut done = at.0;
        while done < end {
            let start = done & !mask;
            let stop = ((end + mask) & !mask).min(start + CHUNK);
            let mut whole = Buffer::aligned((stop - start) as usize)?;
            self.checked.data.read_exact_at(&mut whole, DevOffset(start))?;
            self.checked.verify(DevOffset(start), &mut whole, false)?;
            let until = stop.min(end);
            let piece = &whole[(done - start) as usize..(until - start) as usize];
            buf[(done - at.0) as usize..(until - at.0) as usize].copy_from_slice(piece);
            done = until;
        }
        Ok(())
    }

    fn take_wrong_tuples(&self) -> (Vec<WrongTuple>, u64) {
        let wrong =
            |mismatch: Mismatch| WrongTuple { sector: mismatch.sector, mismatch: Some(mismatch) };
        let (own, dropped) = self.checked.report.take_mismatches();
        // Those that the data device found by tuples of its own are told in its own sectors.
        let (below, dropped_below) = self.checked.data.take_wrong_tuples();
        (own.into_iter().map(wrong).chain(below).collect(), dropped + dropped_below)
    }

    fn is_writable(&self) -> bool {
        self.checked.writable
    }

    fn write_all_at(&self, bufs: &[IoSlice<'_>], at: DevOffset, fua: bool) -> Result<()> {
        if !self.checked.writable {
            return Err(Error::new(ErrorKind::ReadOnly, "the integrity device is read-only"));
        }
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.check_range("write", at, len)?;
        if len == 0 {
            return Ok(());
        }
        self.checked.check(at, len as usize).map_err(|_| {
            Error::invalid(format!("write of {len} bytes at {at}: no whole sectors"))
        })?;
        let most = self.checked.limits.max_transfer as usize;
        let mut pos = at;
        while pos.0 < at.0 + len {
            let piece = part(bufs, (pos.0 - at.0) as usize, most);
            self.write_some(&piece, pos, fua)?;
            pos.0 += piece.iter().map(|buf| buf.len() as u64).sum::<u64>();
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.checked.flush()
    }

    /// Of whole sectors: what is read there is what the data device gives, unverified until it is written again.
    fn discard(&self, at: DevOffset, len: u64) -> Result<()> {
        if !self.checked.writable {
            return Err(Error::new(ErrorKind::ReadOnly, "the integrity device is read-only"));
        }
        self.check_range("discard", at, len)?;
        self.checked.discard(at, len)
    }

    fn queue(&self, options: &QueueOptions) -> Result<AnyQueue> {
        let below = self.checked.data.queue(options)?;
        let queue = IntegrityQueue::new(below, Arc::clone(&self.checked), options.slots());
        Ok(AnyQueue::Other(OtherQueue::new(queue)))
    }
}

/// At most so many bytes of buffers, from one on.
fn part<'b>(bufs: &'b [IoSlice<'_>], skip: usize, most: usize) -> SmallVec<[IoSlice<'b>; 4]> {
    let (mut skip, mut left) = (skip, most);
    let cut = |buf: &'b IoSlice<'_>| {
        let from = skip.min(buf.len());
        skip -= from;
        let len = left.min(buf.len() - from);
        left -= len;
        (len > 0).then(|| IoSlice::new(&buf[from..from + len]))
    };
    bufs.iter().filter_map(cut).collect()
}

#[cfg(all(test, shuttle))]
mod shuttle_tests;

#[cfg(test)]
mod tests {
    /// SplitMix64: a failing test names its seed and repeats.
    pub(super) struct Rng(pub(super) u64);

    impl Rng {
        pub(super) fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        pub(super) fn bytes(&mut self, count: usize) -> Vec<u8> {
            std::iter::repeat_with(|| self.next() as u8).take(count).collect()
        }
    }
}
