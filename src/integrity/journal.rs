//! The journal. After a crash, a write and its tags are either completely present or completely absent.
//!
//! Writes that are submitted together form one record. After the record is durable, each write is made at its final position. Checksums
//! show whether a record is complete: the journal ends before the first incomplete record. When the ring of records is full, the data and
//! tags of all records are made durable at their final positions, and the ring is emptied.

use std::io::IoSlice;

use smallvec::SmallVec;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::area::Area;
use super::dirty::closed;
use super::disk::{
    BLOCK, BLOCK_LEN, DISCARDED, HEAD_MAGIC, RECORD_MAGIC, RawExtent, RawJournalHead, RawRecord,
    SEALED,
};
use super::durability::Durability;
use super::geometry::Info;
use super::tagging::Tuples;
use super::tags::Tags;
use crate::bio::Buffer;
use crate::device::Device;
use crate::error::{Context, Error, Place, Result};
use crate::protection::guard::nvme64;
use crate::sync::atomic::AtomicBool;
use crate::sync::{Mutex, RwLock, RwLockReadGuard};
use crate::units::{DevOffset, FsBlock};

/// The largest number of data bytes in a record.
pub(super) const MOST_DATA: u64 = 1 << 20;
/// The limit on the length of a record in bytes. The longest possible record is shorter: it contains a tuple of 16 bytes and an extent for
/// each sector of 512 bytes.
const LONGEST: u64 = 2 << 20;
/// The number of heads before the ring of records. The heads are written alternately.
const HEADS: u64 = 2;

/// A list that needs no allocation for the usual number of writes in a record.
pub(super) type Few<T> = SmallVec<[T; 4]>;

/// A write of whole sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write<'a> {
    pub(super) at: DevOffset,
    pub(super) bufs: &'a [IoSlice<'a>],
}

impl Write<'_> {
    pub(super) fn len(&self) -> u64 {
        self.bufs.iter().map(|buf| buf.len() as u64).sum()
    }
}

/// The final positions (home) of data and tags that the journal contains: the data device, and the tags outside the journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home<'a> {
    pub(super) data: &'a dyn Device,
    pub(super) tags: &'a Tags,
    pub(super) durability: &'a Durability,
}

#[derive(Debug)]
pub(super) struct Journal {
    area: Area,
    info: Info,
    ring: Mutex<Ring>,
    /// The gate. A thread holds a shared lock until all writes of its record are at their final positions. A checkpoint acquires an
    /// exclusive lock, and so waits for these threads.
    gate: RwLock<()>,
    /// Whether the data device does not support discards.
    pub(super) no_discards: AtomicBool,
}

/// The ring of records. Positions and lengths are in blocks.
#[derive(Debug)]
struct Ring {
    /// The sequence of the next record.
    sequence: u64,
    position: u64,
    used: u64,
    /// The index of the journal head that the next checkpoint writes.
    head: u64,
    memory: Buffer,
    /// Whether the device was closed. No record is written to a closed journal.
    closed: bool,
}

/// The numbers of records and of sectors that were replayed when the journal was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Replayed {
    pub(super) records: u64,
    pub(super) sectors: u64,
}

/// Consecutive sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) sector: u64,
    pub(super) count: u64,
    /// Whether the sectors were discarded. They may then have any content, and the record contains no data.
    pub(super) discarded: bool,
}

struct Record {
    bytes: Vec<u8>,
    extents: Vec<Extent>,
    /// The positions of the tuples and of the data in `bytes`.
    tuples: usize,
    data: usize,
}

fn place(at: u64) -> Place {
    Place::new("integrity journal").block(FsBlock(at / BLOCK_LEN))
}

impl Journal {
    fn blocks(info: &Info) -> u64 {
        info.journal / BLOCK_LEN - HEADS
    }

    /// The largest number of data bytes in one record.
    pub(super) fn most(info: &Info) -> u64 {
        // The data of a record use at most a quarter of the ring, and the tuples and extents need less space than the data. So a record
        // needs less than half of the ring, and two records fit.
        (Self::blocks(info) * BLOCK_LEN / 4).min(MOST_DATA) / BLOCK_LEN * BLOCK_LEN
    }

    /// Writes an empty journal to the device, without a flush.
    pub(super) fn format(area: &Area, info: &Info) -> Result<()> {
        write_head(area, info, 0, 1, 0)?;
        area.write_sealed(&[0; SEALED], info.journal_at() + BLOCK_LEN, false)
    }

    /// Opens the journal. Calls `replay` with each record, in order.
    pub(super) fn open(
        area: &Area,
        info: &Info,
        mut replay: impl FnMut(&[Extent], &[u8], &[u8]) -> Result<()>,
    ) -> Result<(Self, Replayed)> {
        let mut newest: Option<(u64, u64, u64)> = None;
        for head in 0..HEADS {
            let at = info.journal_at() + head * BLOCK_LEN;
            let Some(content) = area.read_sealed(at)? else { continue };
            let Ok((raw, _)) = RawJournalHead::ref_from_prefix(&content[..]) else { continue };
            if raw.magic != HEAD_MAGIC {
                continue;
            }
            let (sequence, position) = (raw.sequence.get(), raw.position.get());
            if position > Self::blocks(info) || sequence > u64::MAX / 2 {
                return Err(place(at)
                    .field("position")
                    .corrupt("the position is past the end of the journal"));
            }
            if newest.is_none_or(|(newest, ..)| sequence > newest) {
                newest = Some((sequence, position, head));
            }
        }
        let Some((mut sequence, mut position, head)) = newest else {
            return Err(place(info.journal_at())
                .field("magic")
                .corrupt("both heads of the journal are damaged"));
        };
        let mut replayed = Replayed::default();
        // The loop reads at most as many records as the ring has blocks, because each record has at least one block.
        for _ in 0..Self::blocks(info) {
            let found = match Self::read_record(area, info, sequence, position)? {
                None if position != 0 => {
                    position = 0;
                    Self::read_record(area, info, sequence, 0)?
                }
                found => found,
            };
            let Some(record) = found else { break };
            replay(&record.extents, &record.bytes[record.tuples..], &record.bytes[record.data..])?;
            replayed.records += 1;
            replayed.sectors += record.extents.iter().map(|extent| extent.count).sum::<u64>();
            position += record.bytes.len() as u64 / BLOCK_LEN;
            sequence += 1;
        }
        let memory = Buffer::aligned(0)?;
        // The code skips the sequence number after the last record, because a torn record from before the crash may have this number.
        let (sequence, head) = (sequence + 1, (head + 1) % HEADS);
        let ring = Ring { sequence, position, used: 0, head, memory, closed: false };
        let (ring, gate) = (Mutex::new(ring), RwLock::default());
        let no_discards = AtomicBool::new(false);
        Ok((Self { area: area.clone(), info: *info, ring, gate, no_discards }, replayed))
    }

    /// Reads the record with this sequence number at this position. Returns `None` if there is no complete record with this number.
    fn read_record(
        area: &Area,
        info: &Info,
        sequence: u64,
        position: u64,
    ) -> Result<Option<Record>> {
        let at = info.journal_at() + (HEADS + position) * BLOCK_LEN;
        let room = (Self::blocks(info) - position) * BLOCK_LEN;
        if room == 0 {
            return Ok(None);
        }
        let mut first = [0; BLOCK];
        area.device.read_exact_at(&mut first, DevOffset(at))?;
        let Ok((raw, _)) = RawRecord::ref_from_prefix(&first) else { return Ok(None) };
        let (len, extents) = (raw.len.get(), raw.extents.get() as usize);
        let sound = raw.magic == RECORD_MAGIC
            && raw.uuid == info.uuid
            && raw.sequence.get() == sequence
            && len.is_multiple_of(BLOCK_LEN)
            && (BLOCK_LEN..=room.min(LONGEST)).contains(&len);
        if !sound {
            return Ok(None);
        }
        let mut bytes = vec![0; len as usize];
        area.device.read_exact_at(&mut bytes, DevOffset(at))?;
        let body = nvme64(&bytes[size_of::<RawRecord>()..], 0);
        if checksum(&bytes) != raw.checksum.get() || body != raw.body.get() {
            return Ok(None);
        }
        // An invalid value in a record with correct checksums was already invalid when it was written, so the result is an error instead of
        // the end of the journal.
        let bad =
            |field: &'static str| Err(place(at).field(field).corrupt("the value is not valid"));
        let behind = size_of::<RawRecord>();
        let raws = <[RawExtent]>::ref_from_prefix_with_elems(&bytes[behind..], extents);
        let Ok((raws, _)) = raws else { return bad("extents") };
        let (mut list, mut sectors) = (Vec::new(), 0_u64);
        for raw in raws {
            let (sector, count) = (raw.sector.get(), raw.count.get() & !DISCARDED);
            let discarded = raw.count.get() & DISCARDED != 0;
            if sector.checked_add(count).is_none_or(|end| end > info.sectors()) {
                return bad("sector");
            }
            if discarded && (extents != 1 || count > info.most_discarded()) {
                return bad("count");
            }
            let with_data = if discarded { 0 } else { count };
            sectors = match sectors.checked_add(with_data) {
                Some(sectors) if sectors <= LONGEST / u64::from(info.interval) => sectors,
                _ => return bad("count"),
            };
            list.push(Extent { sector, count, discarded });
        }
        let tuples = behind + extents * size_of::<RawExtent>();
        let data = (tuples as u64 + sectors * info.kind.bytes() as u64).next_multiple_of(BLOCK_LEN);
        if data + sectors * u64::from(info.interval) > len {
            return bad("len");
        }
        Ok(Some(Record { bytes, extents: list, tuples, data: data as usize }))
    }

    /// Appends a record and makes it durable. Returns false if the ring has too little space.
    fn append(
        &self,
        extents: &[RawExtent],
        writes: &[Write<'_>],
        tuples: &[Tuples],
    ) -> Result<bool> {
        let tags: usize = tuples.iter().map(|tuples| tuples.0.len()).sum();
        let head = size_of::<RawRecord>() + size_of_val(extents) + tags;
        let data_at = head.next_multiple_of(BLOCK);
        let data: u64 = writes.iter().map(Write::len).sum();
        let len = data_at + (data as usize).next_multiple_of(BLOCK);
        let (blocks, all) = (len as u64 / BLOCK_LEN, Self::blocks(&self.info));
        let mut ring = self.ring.lock();
        if ring.closed {
            return Err(closed());
        }
        let left = all - ring.position;
        let skipped = if blocks > left { left } else { 0 };
        if ring.used + skipped + blocks > all {
            return Ok(false);
        }
        let position = if skipped > 0 || left == 0 { 0 } else { ring.position };
        if ring.memory.len() < len {
            ring.memory = Buffer::aligned(len)?;
        }
        let sequence = ring.sequence;
        let memory = &mut ring.memory[..len];
        let mut raw = RawRecord::new_zeroed();
        raw.magic = RECORD_MAGIC;
        raw.uuid = self.info.uuid;
        raw.sequence = sequence.into();
        raw.len = (len as u64).into();
        raw.extents = (extents.len() as u32).into();
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            memory[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(raw.as_bytes());
        put(extents.as_bytes());
        tuples.iter().for_each(|tuples| put(&tuples.0));
        put(&[0; BLOCK][..data_at - head]);
        writes.iter().flat_map(|write| write.bufs).for_each(|buf| put(buf));
        memory[at..].fill(0);
        let behind = size_of::<RawRecord>();
        raw.body = nvme64(&memory[behind..], 0).into();
        memory[..behind].copy_from_slice(raw.as_bytes());
        raw.checksum = checksum(memory).into();
        memory[..behind].copy_from_slice(raw.as_bytes());
        let place = self.info.journal_at() + (HEADS + position) * BLOCK_LEN;
        let bufs = [IoSlice::new(&ring.memory[..len])];
        let device = &*self.area.device;
        let write = |through| device.write_all_at(&bufs, DevOffset(place), through);
        let written = self.area.durability.write_durable(device, write);
        ring.sequence += 1;
        if let Err(error) = written {
            // The failed write may have written the whole record. A second record with the same sequence number would confuse a replay, so
            // the ring is marked as full. Before the next record, a checkpoint must write a head with a later sequence number.
            ring.used = all;
            return Err(error.context("write a record of the journal"));
        }
        ring.position = position + blocks;
        ring.used += skipped + blocks;
        Ok(true)
    }

    /// Makes the data and tags of all records durable at their final positions, and empties the journal.
    pub(super) fn checkpoint(&self, home: Home<'_>) -> Result<()> {
        let _alone = self.gate.write();
        self.empty(home)
    }

    /// Makes the data and tags of all records durable at their final positions, and empties the journal. All later attempts to append a
    /// record fail.
    pub(super) fn close(&self, home: Home<'_>) -> Result<()> {
        let _alone = self.gate.write();
        self.empty(home)?;
        self.ring.lock().closed = true;
        Ok(())
    }

    /// Does the work of [`checkpoint`](Self::checkpoint). The caller ensures that no thread is writing the data of a record to their final
    /// positions.
    pub(super) fn empty(&self, Home { data, tags, durability }: Home<'_>) -> Result<()> {
        // After a failed flush, data at their final positions may be lost, so this call fails, and the records stay in the journal.
        durability.check()?;
        let mut ring = self.ring.lock();
        durability.flush_data(data)?;
        tags.write_back()?;
        durability.flush_tags(&*self.area.device)?;
        write_head(&self.area, &self.info, ring.head, ring.sequence, ring.position)?;
        ring.head = (ring.head + 1) % HEADS;
        ring.used = 0;
        Ok(())
    }

    pub(super) fn extent(&self, at: DevOffset, len: u64, flag: u64) -> RawExtent {
        let interval = u64::from(self.info.interval);
        let (sector, count) = (at.0 / interval, (len / interval) | flag);
        RawExtent { sector: sector.into(), count: count.into() }
    }

    /// Appends a record. If the journal has too little space, empties it first. While the returned guard exists, the journal is not emptied
    /// again.
    pub(super) fn enter(
        &self,
        home: Home<'_>,
        extents: &[RawExtent],
        writes: &[Write<'_>],
        tuples: &[Tuples],
    ) -> Result<RwLockReadGuard<'_, ()>> {
        loop {
            let gate = self.gate.read();
            if self.append(extents, writes, tuples)? {
                return Ok(gate);
            }
            drop(gate);
            self.checkpoint(home)?;
        }
    }
}

fn write_head(area: &Area, info: &Info, head: u64, sequence: u64, position: u64) -> Result<()> {
    let raw =
        RawJournalHead { magic: HEAD_MAGIC, sequence: sequence.into(), position: position.into() };
    let mut content = [0; SEALED];
    content[..size_of::<RawJournalHead>()].copy_from_slice(raw.as_bytes());
    area.write_sealed(&content, info.journal_at() + head * BLOCK_LEN, true)
        .context(|| "write the journal's head")
}

/// Returns the checksum of a record, computed with its checksum field as 0.
fn checksum(record: &[u8]) -> u32 {
    let at = std::mem::offset_of!(RawRecord, checksum);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&record[..at]), &[0; 4]);
    crc32c::crc32c_append(sum, &record[at + 4..])
}

/// Returns the error for a device that is opened read-only although its journal must be replayed.
#[cold]
pub(super) fn needs_replay() -> Error {
    Error::unsupported(
        "the integrity journal has writes to replay: open the device for writing once",
    )
}
