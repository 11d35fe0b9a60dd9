//! Protection information for every sector of any device.
//!
//! An [`Integrity`] device protects a data device. For each sector of the data device, it stores a tuple (the sector's tag). The tuples are
//! on a separate device, or in the tail of the data device. A write updates the tuples. A read verifies the data. If the data have changed
//! or belong to another position, the read fails with EILSEQ and returns no data.
//!
//! The device computes tuples from the memory of a request, so this memory must not change while the request is in flight.
//! [`Limits::stable_writes`] reports this rule, and ironmap's other layers obey it.
//!
//! | File | Subject |
//! |---|---|
//! | `disk`, `geometry`, `area` | the format |
//! | `tagging` | which [tuple](crate::protection) a sector must have |
//! | `tag_block`, `tags` | tuples in memory, and the writes in flight |
//! | `dirty`, `journal`, `journaled`, `durability` | how data and tags are made to agree after a crash |
//! | `checked`, `verify` | how a write begins and ends, how a sector is verified |
//! | `discard` | discarded sectors, which may have any content |
//! | `queue` | the path of a request |
//! | `format`, `open`, `recover`, `check`, `scrub` | operations on a whole device |

mod area;
mod check;
mod checked;
mod dirty;
mod discard;
mod disk;
mod durability;
mod format;
mod geometry;
mod journal;
mod journaled;
mod open;
mod queue;
mod recover;
mod report;
mod scrub;
mod tag_block;
mod tagging;
mod tags;
mod verify;

use std::io::IoSlice;
use std::sync::Arc;

pub(crate) use self::area::holds_tags;
pub use self::check::{CheckedArea, Problem, check};
pub use self::format::{FormatOptions, TailLoss, format, plan};
pub use self::geometry::{Info, Mode};
pub use self::open::IntegrityOptions;
pub use self::recover::Recovered;
pub use self::report::{Counts, Event};
pub use self::scrub::{Half, ScrubFinding, Scrubbed};
pub use crate::protection::{Field, Mismatch, TupleKind};

use self::area::CHUNK;
use self::checked::Checked;
use self::journal::Write;
use self::queue::IntegrityQueue;
use self::tagging::Tuples;
use crate::bio::Buffer;
use crate::bio::slices::cut;
use crate::device::{AnyQueue, Device, InRange, Limits, QueueOptions, WrongTuple};
use crate::error::{Error, ErrorKind, Result};
use crate::units::DevOffset;

/// A device whose sectors are verified. The device is closed when it and all of its queues are dropped.
#[derive(Clone, Debug)]
pub struct Integrity {
    checked: Arc<Checked>,
}

/// An open device, with the report of its recovery.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The device.
    pub device: Integrity,
    /// The report.
    pub recovered: Recovered,
}

impl Integrity {
    /// Opens the integrity device that [`format()`] created. The tags are on `tags`, or in the tail of `data`. If either device is
    /// read-only, the integrity device is read-only too.
    ///
    /// # Errors
    /// `UnknownFormat` if there is no tag area; `Corrupt`, with block and field; `Unsupported`, with the feature's name; `Io`.
    pub fn open(data: Arc<dyn Device>, tags: Option<Arc<dyn Device>>) -> Result<Opened> {
        Self::open_with(data, tags, &IntegrityOptions::default())
    }

    /// Opens the device as [`open`](Self::open) does, with options.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_with(
        data: Arc<dyn Device>,
        tags: Option<Arc<dyn Device>>,
        options: &IntegrityOptions,
    ) -> Result<Opened> {
        let (checked, recovered) = open::open(data, tags, options)?;
        let device = Self { checked: Arc::new(checked) };
        Ok(Opened { device, recovered })
    }

    /// Reads the superblock of a device, without opening it.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn probe(data: &dyn Device, tags: Option<&dyn Device>) -> Result<Info> {
        area::Superblock::read(tags.unwrap_or(data), tags.is_none()).map(|found| found.info)
    }

    /// The geometry of the device.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.checked.info
    }

    /// The counters since the device was opened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.checked.report.counts()
    }

    /// Returns the events since the last call, oldest first, and the number of older events that were dropped. Removes the returned events
    /// from the device.
    #[must_use]
    pub fn take_events(&self) -> (Vec<Event>, u64) {
        self.checked.report.take_events()
    }

    /// Compares all sectors with their tags. The device may be in use at the same time. `found` is called with each fault. `progress` is
    /// called with the number of processed bytes and the total number of bytes. Tags in memory are also compared with the tags on the
    /// device, because the device may have lost a write.
    ///
    /// # Errors
    /// `Io` if a device fails as a whole. Faults and unreadable sectors are not errors.
    pub fn scrub(
        &self,
        found: &mut dyn FnMut(ScrubFinding),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Scrubbed> {
        scrub::scrub(&self.checked, found, progress)
    }

    /// Writes all tags to their device. The next open then needs no recovery. Later writes are refused; reads still succeed.
    ///
    /// # Errors
    /// `Busy` while writes are in flight; `Io`.
    pub fn close(&self) -> Result<()> {
        self.checked.close()
    }

    /// Writes whole sectors. The number of bytes must not exceed the longest request.
    fn write_some(&self, bufs: &[IoSlice<'_>], at: DevOffset, fua: bool) -> Result<()> {
        let checked = &*self.checked;
        if let Some(journal) = &checked.journal {
            return checked.write_journaled(journal, &Write { at, bufs });
        }
        checked.begin(at, bufs, &mut Tuples::default(), false)?;
        let written = checked.write_data(bufs, at, fua);
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

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        let mask = u64::from(self.checked.limits.logical_block) - 1;
        if (at.0 | buf.len() as u64) & mask == 0 && !buf.is_empty() {
            self.checked.data.read_exact_at(buf, at)?;
            return self.checked.verify(at, buf, false);
        }
        // Only whole sectors can be verified, so this code reads all sectors that the range touches completely.
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
        // The data device may verify its own tuples. Its list numbers the sectors in units of its own sectors.
        let (below, dropped_below) = self.checked.data.take_wrong_tuples();
        (own.into_iter().map(wrong).chain(below).collect(), dropped + dropped_below)
    }

    fn is_writable(&self) -> bool {
        self.checked.writable
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        _: InRange,
    ) -> Result<()> {
        if !self.checked.writable {
            return Err(Error::new(ErrorKind::ReadOnly, "the integrity device is read-only"));
        }
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        if len == 0 {
            return Ok(());
        }
        self.checked.check(at, len as usize).map_err(|_| {
            Error::invalid(format!(
                "write of {len} bytes at {at}: the range does not consist of whole sectors"
            ))
        })?;
        let most = self.checked.limits.max_transfer as usize;
        let mut pos = at;
        while pos.0 < at.0 + len {
            let from = (pos.0 - at.0) as usize;
            let piece = cut(bufs, from..from.saturating_add(most));
            self.write_some(&piece, pos, fua)?;
            pos.0 += piece.iter().map(|buf| buf.len() as u64).sum::<u64>();
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.checked.flush()
    }

    /// Discards whole sectors. Reads of these sectors return the data device's content without verification until the sectors are written
    /// again.
    fn discard_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        if !self.checked.writable {
            return Err(Error::new(ErrorKind::ReadOnly, "the integrity device is read-only"));
        }
        self.checked.discard(at, len)
    }

    fn queue_within(&self, options: &QueueOptions, checked: InRange) -> Result<AnyQueue> {
        let below = self.checked.data.queue_within(options, checked)?;
        let queue = IntegrityQueue::new(below, Arc::clone(&self.checked), options.slots());
        Ok(AnyQueue::other(queue))
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests;
