//! The code that a device and its queues share. It begins and ends writes, and clears the dirty map.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::area::Superblock;
use super::dirty::Regions;
use super::durability::Durability;
use super::geometry::Info;
use super::journal::{Home, Journal};
use super::report::{Event, Report, add};
use super::tag_block::{Outcome, TagBlock};
use super::tagging::{Tagging, Tuples};
use super::tags::{Piece, Tags};
use crate::bio::Buffer;
use crate::device::{Device, Limits};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::units::DevOffset;

/// The conditions under which a flush clears the dirty map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Laziness {
    /// A flush clears the map if at least this time has passed since the map was last cleared.
    pub(super) after: Duration,
    /// A flush clears the map if more than this number of regions are dirty.
    pub(super) most: u32,
}

#[derive(Debug)]
pub(super) struct Checked {
    pub(super) data: Arc<dyn Device>,
    pub(super) tag_device: Arc<dyn Device>,
    pub(super) info: Info,
    pub(super) tagging: Tagging,
    pub(super) limits: Limits,
    pub(super) tags: Tags,
    pub(super) regions: Regions,
    /// The journal; `None` in bitmap mode.
    pub(super) journal: Option<Journal>,
    pub(super) durability: Durability,
    pub(super) report: Report,
    /// Whether the device can be written. False until the recovery is complete.
    pub(super) writable: bool,
    /// Whether the device was opened read-only after a crash. In this case, the dirty regions were not recovered, and reads of their
    /// sectors are not verified.
    pub(super) unverified: bool,
    pub(super) laziness: Laziness,
    /// The time at which the map was last cleared. A thread holds the lock of this field while it clears the map.
    pub(super) cleaned: Mutex<Instant>,
    pub(super) superblock: Mutex<Superblock>,
}

impl Checked {
    /// Checks that a request consists of whole sectors of the device.
    #[inline]
    pub(super) fn check(&self, at: DevOffset, len: usize) -> Result<(), Errno> {
        let mask = u64::from(self.limits.logical_block) - 1;
        let end = at.0.checked_add(len as u64);
        let fits = end.is_some_and(|end| end <= self.info.data_size);
        if fits && len > 0 && (at.0 | len as u64) & mask == 0 { Ok(()) } else { Err(Errno::EINVAL) }
    }

    pub(super) fn sector(&self, at: u64) -> u64 {
        at >> self.tagging.shift
    }

    /// Computes the tuples of data to be written.
    #[inline]
    pub(super) fn tuples(&self, at: DevOffset, bufs: &[IoSlice<'_>], out: &mut Tuples) {
        let (shift, size) = (self.tagging.shift, self.tagging.size());
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        out.0.resize((len >> shift) * size, 0);
        if !bufs.iter().all(|buf| buf.len().is_multiple_of(self.tagging.interval())) {
            // If a sector may be split across several buffers, this code first copies the buffers into one buffer.
            return self.encode(at, &flat(bufs), &mut out.0);
        }
        let (mut pos, mut rest) = (at, &mut out.0[..]);
        for buf in bufs {
            let (tuples, behind) = rest.split_at_mut((buf.len() >> shift) * size);
            self.encode(pos, buf, tuples);
            (pos.0, rest) = (pos.0 + buf.len() as u64, behind);
        }
    }

    #[inline]
    fn encode(&self, at: DevOffset, data: &[u8], tuples: &mut [u8]) {
        let first = self.sector(at.0);
        if !self.info.generations {
            return self.tagging.encode(first, data, 0, tuples);
        }
        // Each sector is encoded separately, because its tag contains the generation of its region.
        let sectors = data.chunks_exact(self.tagging.interval());
        let tuples = tuples.chunks_exact_mut(self.tagging.size());
        for ((sector, data), tuple) in (first..).zip(sectors).zip(tuples) {
            let generation = self.regions.generation(sector << self.tagging.shift);
            self.tagging.encode(sector, data, generation, tuple);
        }
    }

    /// Begins a write of whole sectors. When this function returns, the regions of the write are durably marked as dirty, and readers see
    /// the new tuples.
    ///
    /// # Errors
    /// The errors of the tag device. EAGAIN if `nowait` is set and the function would have to wait. After an error, the write has not
    /// begun.
    #[inline]
    pub(super) fn begin(
        &self,
        at: DevOffset,
        bufs: &[IoSlice<'_>],
        tuples: &mut Tuples,
        nowait: bool,
    ) -> Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        self.regions.begin(at.0, len as u64, nowait)?;
        self.tuples(at, bufs, tuples);
        let claimed = self.claim(at, len, tuples, nowait);
        if claimed.is_err() {
            self.regions.end(at.0, len as u64, false);
        }
        claimed
    }

    pub(super) fn claim(
        &self,
        at: DevOffset,
        len: usize,
        tuples: &Tuples,
        nowait: bool,
    ) -> Result<()> {
        let size = self.tagging.size();
        let first = self.sector(at.0);
        for piece in self.tags.pieces(first, len >> self.tagging.shift) {
            let tuples = &tuples.0[piece.before * size..(piece.before + piece.count) * size];
            let claimed =
                self.tags.with(piece.block, nowait, |slot| slot.claim(piece.range(), tuples));
            if let Err(error) = claimed {
                self.end_pieces(first, piece.before, None, Outcome::Nothing, false);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Begins a write after all other writes to the same sectors have ended.
    pub(super) fn claim_exclusively(&self, at: DevOffset, len: u64, tuples: &Tuples) -> Result<()> {
        let size = self.tagging.size();
        let (first, count) = (self.sector(at.0), (len >> self.tagging.shift) as usize);
        for piece in self.tags.pieces(first, count) {
            let tuples = &tuples.0[piece.before * size..(piece.before + piece.count) * size];
            if let Err(error) = self.tags.claim_exclusively(piece, tuples) {
                self.end_pieces(first, piece.before, None, Outcome::Nothing, false);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends a write or a discard. Does not read or compare the data.
    pub(super) fn end_with(&self, at: DevOffset, len: u64, outcome: Outcome) {
        let count = (len >> self.tagging.shift) as usize;
        self.end_pieces(self.sector(at.0), count, None, outcome, false);
    }

    #[cold]
    pub(super) fn retagged(&self, sector: u64, count: u64, errno: Errno) {
        add(&self.report.retagged, count);
        self.report.event(Event::Retagged { sector, count, errno });
    }

    /// Ends a write. `bufs` contain the data that were written.
    #[inline]
    pub(super) fn end(
        &self,
        at: DevOffset,
        bufs: &[IoSlice<'_>],
        result: Result<(), Errno>,
        fua: bool,
    ) {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let count = len >> self.tagging.shift;
        let outcome = match result {
            Ok(()) => Outcome::Written,
            Err(Errno::EAGAIN) => Outcome::Nothing,
            Err(_) => Outcome::Unknown,
        };
        let first = self.sector(at.0);
        let mine = (outcome == Outcome::Written).then_some(bufs);
        self.end_pieces(first, count, mine, outcome, fua);
        if let Err(errno) = result
            && outcome == Outcome::Unknown
        {
            self.retagged(first, count as u64, errno);
        }
        self.regions.end(at.0, len as u64, outcome == Outcome::Written);
    }

    #[inline]
    pub(super) fn end_pieces(
        &self,
        first: u64,
        count: usize,
        mine: Option<&[IoSlice<'_>]>,
        outcome: Outcome,
        fua: bool,
    ) {
        for piece in self.tags.pieces(first, count) {
            let left = self.tags.end(piece.block, |slot| slot.end(piece.range(), outcome));
            if let Some(left) = left.filter(|left| !left.is_empty()) {
                self.resolve(first, piece, &left, mine, fua);
            }
        }
    }

    /// Makes data and tags agree for the sectors of `piece` whose indexes are in `left`. If writes to these sectors overlapped, `mine`
    /// contains the data of the last writer.
    #[cold]
    fn resolve(
        &self,
        first: u64,
        piece: Piece,
        left: &[usize],
        mine: Option<&[IoSlice<'_>]>,
        fua: bool,
    ) {
        for index in left {
            let number = piece.before + index - piece.index;
            let sector = first + number as u64;
            loop {
                let turns = self.tags.end(piece.block, |slot| slot.turns(*index)).unwrap_or(0);
                // The data of the last writer are written again while no other write to the sector is in flight. If this write fails, the
                // tag is computed from the current content of the sector.
                let written = mine.and_then(|bufs| {
                    add(&self.report.contested, 1);
                    let content = sector_of(bufs, number, self.tagging.interval());
                    self.rewrite(sector, &content, fua).ok()
                });
                let content = written.or_else(|| self.read_sector(sector).ok());
                let tuple = content.map(|data| {
                    let generation = self.regions.generation(sector << self.tagging.shift);
                    self.tagging.tuple(sector, &data, generation)
                });
                let resolve = |slot: &mut TagBlock| slot.resolve(*index, tuple, turns);
                if self.tags.end(piece.block, resolve) != Some(false) {
                    break;
                }
            }
        }
        self.tags.end(piece.block, |slot| slot.pins -= 1);
    }

    fn rewrite(&self, sector: u64, content: &[u8], fua: bool) -> Result<Buffer> {
        let mut buffer = Buffer::aligned(content.len())?;
        buffer.copy_from_slice(content);
        let at = DevOffset(sector << self.tagging.shift);
        self.write_data(&[IoSlice::new(&buffer)], at, fua)?;
        Ok(buffer)
    }

    /// Writes data to the data device. Does not change the tags.
    pub(super) fn write_data(&self, bufs: &[IoSlice<'_>], at: DevOffset, fua: bool) -> Result<()> {
        let write = |through| self.data.write_all_at(bufs, at, through);
        if fua { self.durability.data.write_durable(&*self.data, write) } else { write(false) }
    }

    /// Makes all earlier writes durable. With a journal, completed writes are already durable.
    ///
    /// # Errors
    /// `Io`, if a flush of the device fails or has failed before.
    pub(super) fn flush(&self) -> Result<()> {
        self.durability.check()?;
        if self.journal.is_some() {
            return Ok(());
        }
        self.durability.flush_data(&*self.data)?;
        self.flushed()
    }

    /// Clears the dirty map if enough time has passed or enough regions are dirty (`laziness`). The caller has flushed the data.
    fn flushed(&self) -> Result<()> {
        self.durability.check()?;
        let dirty = self.regions.dirty_count();
        if dirty == 0 || self.journal.is_some() {
            return Ok(());
        }
        let late =
            dirty > self.laziness.most || self.cleaned.lock().elapsed() >= self.laziness.after;
        // If the bits stay set, the tags need not be written, because a recovery computes the tags of dirty regions again.
        if late { self.clean() } else { Ok(()) }
    }

    /// Clears the bits of regions that have no write in flight.
    pub(super) fn clean(&self) -> Result<()> {
        self.durability.check()?;
        let mut cleaned = self.cleaned.lock();
        for region in self.regions.without_trace() {
            self.leave_trace(region)?;
        }
        let idle = self.regions.idle();
        if !idle.is_empty() {
            self.durability.flush_data(&*self.data)?;
            self.tags.write_back()?;
            self.durability.flush_tags(&*self.tag_device)?;
            self.regions.clear(&idle)?;
        }
        *cleaned = Instant::now();
        Ok(())
    }

    /// Ensures that at least one sector of a dirty region has a tag with the region's generation. Such a tag is missing if the write that
    /// made the region dirty wrote nothing, and a scrub would then report this write as lost. Only a sector that matches its old tag gets a
    /// new tag, because a new tag on any other sector would hide a fault. If no sector matches its tag, the region stays dirty.
    ///
    /// # Errors
    /// The errors of the tag device.
    pub(super) fn leave_trace(&self, region: u32) -> Result<()> {
        let start = u64::from(region) * self.info.region;
        let end = (start + self.info.region).min(self.info.data_size);
        let generation = self.regions.generation(start);
        let size = self.tagging.size();
        // The code skips sectors whose tags cannot be read.
        let tagged = |sector| self.tuple_of(sector).ok().map(|tuple| (sector, tuple));
        let sectors = || (self.sector(start)..self.sector(end)).filter_map(tagged);
        if sectors().any(|(_, tuple)| self.tagging.generation(&tuple) == generation) {
            self.regions.traced(region);
            return Ok(());
        }
        for (sector, tuple) in sectors() {
            let fits = |data: Buffer| self.tagging.verify(sector, &data, &tuple[..size]).is_ok();
            if !self.read_sector(sector).is_ok_and(fits) {
                continue;
            }
            // This code simulates a write with the outcome `Unknown`. The end of such a write computes a new tag from the current content
            // of the sector.
            let mut tuples = Tuples::default();
            tuples.0.extend_from_slice(&tuple[..size]);
            let at = DevOffset(sector << self.tagging.shift);
            self.claim(at, self.tagging.interval(), &tuples, false)?;
            self.end_pieces(sector, 1, None, Outcome::Unknown, false);
            if self.tagging.generation(&self.tuple_of(sector)?) == generation {
                self.regions.traced(region);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the final positions (home) of the data and tags in the journal.
    pub(super) fn home(&self) -> Home<'_> {
        Home { data: &*self.data, tags: &self.tags, durability: &self.durability }
    }

    /// Writes all data and tags to their final positions. If no region is dirty afterwards, marks the device as closed in the superblock.
    pub(super) fn close(&self) -> Result<()> {
        if !self.writable {
            return Ok(());
        }
        if let Some(journal) = &self.journal {
            journal.close(self.home())?;
        }
        self.clean()?;
        if !self.regions.close()? {
            return Err(match self.regions.without_trace().is_empty() {
                true => Error::new(
                    ErrorKind::Busy,
                    "the integrity device cannot be closed while writes are in flight",
                ),
                false => Error::io(
                    Errno::EIO,
                    "a region stays dirty, because none of its sectors can be read and verified",
                ),
            });
        }
        self.durability.flush_tags(&*self.tag_device)?;
        self.mark(true)
    }

    /// Records in the superblock whether a recovery is needed.
    pub(super) fn mark(&self, clean: bool) -> Result<()> {
        let mut superblock = self.superblock.lock();
        if superblock.clean != clean {
            let sequence = superblock.sequence + 1;
            let next = Superblock { clean, sequence, ..superblock.clone() };
            next.write(&*self.tag_device, &self.durability.tags)?;
            *superblock = next;
        }
        Ok(())
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        // The drop cannot return the error. Data and tags that were not written to their final positions are recovered at the next open.
        let _ = self.close();
    }
}

/// Copies the buffers into one buffer.
pub(super) fn flat(bufs: &[IoSlice<'_>]) -> Vec<u8> {
    let mut flat = Vec::with_capacity(bufs.iter().map(|buf| buf.len()).sum());
    bufs.iter().for_each(|buf| flat.extend_from_slice(buf));
    flat
}

/// Copies one sector, which may be split across several buffers.
fn sector_of(bufs: &[IoSlice<'_>], number: usize, interval: usize) -> Vec<u8> {
    let bytes = bufs.iter().flat_map(|buf| buf.iter().copied());
    bytes.skip(number * interval).take(interval).collect()
}
