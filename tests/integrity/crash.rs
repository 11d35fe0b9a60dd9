//! Power cuts of an integrity device. Data and tags (checksums) are on one recorded device, so a cut applies to both at the same time.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ironmap::bio::{BioFlags, BioOp, Buffer, Dev};
use ironmap::device::{
    AnyQueue, BoundedQueue, CrashState, Crashes, Device, DeviceQueue, Entry, Faults, InRange,
    Limits, Log, Ram, Record, Sim,
};
use ironmap::integrity::{FormatOptions, Integrity, IntegrityOptions, Mode, TupleKind};
use ironmap::units::DevOffset;
use ironmap::{QueueOptions, Result};

use crate::rng::Rng;
use crate::stand::{Stand, bio, read, write};

const SIZE: u64 = 512 << 10;
/// The length in bytes that the device below the integrity device writes atomically.
const UNIT: u64 = 512;
const REGION: u64 = 16 << 10;
/// All writes are within a range of this length.
const ARENA: u64 = 128 << 10;

/// A write or a discard, with the numbers of two events: its submission and its completion.
struct Written {
    range: Range<u64>,
    /// Whether this is a discard. On this device, discarded sectors read as zeros.
    discard: bool,
    begun: u64,
    /// The number of the event of the completion. `None` if the workload ended before the completion was collected.
    acknowledged: Option<u64>,
    /// Whether the write is durable when it is acknowledged.
    fua: bool,
}

/// The operations on a device. The submissions and completions are events, which are numbered from 1.
#[derive(Default)]
struct History {
    events: u64,
    writes: Vec<Written>,
    /// For each flush: the numbers of the events at which the flush began and ended.
    flushes: Vec<(u64, u64)>,
}

/// A workload on a recorded device.
struct Case {
    name: String,
    options: FormatOptions,
    base: Ram,
    log: Log,
    history: History,
}

/// The bytes of a sector. They contain the number of the write and the position of the sector.
fn stamp(write: u64, at: u64) -> [u8; UNIT as usize] {
    let mut bytes = [0; UNIT as usize];
    for (number, chunk) in bytes.chunks_exact_mut(16).enumerate() {
        chunk[..8].copy_from_slice(&(write << 8 | number as u64).to_le_bytes());
        chunk[8..].copy_from_slice(&at.to_le_bytes());
    }
    bytes
}

impl Case {
    fn new(seed: u64, length: usize) -> Self {
        let options = FormatOptions::new()
            .interval(if seed & 1 == 0 { 512 } else { 4096 })
            .kind(if seed & 4 == 0 { TupleKind::T10 } else { TupleKind::Nvme64 })
            .mode(if seed & 2 == 0 { Mode::Bitmap } else { Mode::Journal })
            .generations(seed & 10 == 8)
            .region(REGION)
            .journal(96 << 10);
        let stand = Stand::new(SIZE, true, &options, seed);
        let base = stand.data.snapshot();
        let faults = Faults { seed, latency: 4, ..Faults::default() };
        let record = Arc::new(Record::new(Arc::new(Sim::new(stand.data.clone(), faults))));
        let clean_after = if seed & 16 == 0 { Duration::ZERO } else { Duration::MAX };
        let open = IntegrityOptions::new().cache(0).clean_after(clean_after).most_dirty(5);
        let device = Integrity::open_with(record.clone(), None, &open).unwrap().device;
        let mut run = Run {
            queue: device.queue(&QueueOptions::new().depth(8)).unwrap(),
            device,
            record: &record,
            rng: Rng::new(seed),
            history: History::default(),
            flights: Vec::new(),
            unit: u64::from(options.interval),
        };
        (0..length).for_each(|_| run.step());
        run.drain();
        let Run { queue, device, history, .. } = run;
        drop(queue);
        device.close().unwrap();
        drop(device);
        Self {
            name: format!("seed {seed}, {options:?}"),
            options,
            base,
            log: record.log(),
            history,
        }
    }

    /// Checks a crash state, and returns its fault.
    fn check(&self, image: &Arc<Ram>, now: u64) -> Result<(), String> {
        let opened =
            Integrity::open(image.clone(), None).map_err(|error| format!("open: {error}"))?;
        self.check_content(&opened.device, now)
    }

    fn check_content(&self, device: &Integrity, now: u64) -> Result<(), String> {
        let mut wrong = Ok(());
        let mut found = |finding| wrong = Err(format!("{finding:?}"));
        device.scrub(&mut found, &mut |_, _| {}).map_err(|error| format!("scrub: {error}"))?;
        wrong?;
        let content = read(device, 0, ARENA as usize).map_err(|error| error.to_string())?;
        let mut newest = vec![0; (ARENA / UNIT) as usize];
        for (at, unit) in (0..ARENA).step_by(UNIT as usize).zip(content.chunks(UNIT as usize)) {
            let number = u64::from_le_bytes(unit[..8].try_into().unwrap()) >> 8;
            let durable = self.durable(at, now);
            if let Some(discard) = self.discarded(at, now)
                && durable.is_none_or(|durable| durable < discard)
                && unit == [0; UNIT as usize]
            {
                newest[(at / UNIT) as usize] = discard + 1;
                continue;
            }
            let known = number < self.history.writes.len() as u64 && unit == stamp(number, at);
            match durable {
                // If no write to this sector is durable, the sector may contain its first content, which is checked here, or the data of
                // any write to this sector.
                None if !known => {
                    let mut first = [0; UNIT as usize];
                    self.base.read_exact_at(&mut first, DevOffset(at)).unwrap();
                    if unit != first {
                        return Err(format!("{at} holds what nobody wrote"));
                    }
                    continue;
                }
                _ if !known => return Err(format!("{at} lost write {durable:?}")),
                Some(durable) if number < durable => {
                    return Err(format!("{at} holds write {number}, {durable} was durable"));
                }
                _ => {}
            }
            let write = &self.history.writes[number as usize];
            if !write.range.contains(&at) || write.begun > now {
                return Err(format!("{at} holds write {number}, which is not of then and there"));
            }
            newest[(at / UNIT) as usize] = number + 1;
        }
        if self.options.mode == Mode::Journal {
            let numbered = (0_u64..).zip(&self.history.writes);
            for (number, write) in numbered.filter(|(_, write)| !write.discard) {
                let units = write.range.start / UNIT..write.range.end / UNIT;
                let units = &newest[units.start as usize..units.end as usize];
                if units.contains(&(number + 1)) && units.iter().any(|newest| *newest < number + 1)
                {
                    return Err(format!("write {number} is torn: {units:?}"));
                }
            }
        }
        Ok(())
    }

    /// The number of the last write to a sector that is durable. The sector must not contain data that are older than this write.
    fn durable(&self, at: u64, now: u64) -> Option<u64> {
        let is_durable = |write: &Written| {
            write.range.contains(&at)
                && !write.discard
                && write.acknowledged.is_some_and(|acknowledged| {
                    let flushed =
                        |(begun, ended): &(u64, u64)| acknowledged < *begun && *ended <= now;
                    acknowledged <= now && (write.fua || self.history.flushes.iter().any(flushed))
                })
        };
        self.history.writes.iter().rposition(is_durable).map(|number| number as u64)
    }

    /// The last discard of a sector that the device may have carried out before the cut.
    fn discarded(&self, at: u64, now: u64) -> Option<u64> {
        let reaches = |it: &Written| it.discard && it.range.contains(&at) && it.begun <= now;
        self.history.writes.iter().rposition(reaches).map(|number| number as u64)
    }

    fn crashes(&self) -> Crashes {
        Crashes::new(&self.base, self.log.clone())
    }

    fn now(&self, state: CrashState) -> u64 {
        self.log.marks(state.cut).max().unwrap_or(0)
    }

    /// Checks at most `limit` states. For one of every `again` states, the power also fails at each write of the recovery.
    fn assert_holds(&self, seed: u64, limit: usize, again: usize) -> usize {
        let mut crashes = self.crashes();
        let names = crashes.names(seed, 2);
        let stride = names.len().div_ceil(limit).max(1);
        let mut count = 0;
        for (index, name) in names.into_iter().step_by(stride).enumerate() {
            let (image, now) = (Arc::new(crashes.state(name)), self.now(name));
            let before = image.snapshot();
            let fail = |fault: String| panic!("{}, state {name}: {fault}", self.name);
            self.check(&image, now).unwrap_or_else(fail);
            // A device that was recovered and closed is clean.
            let opened = Integrity::open(image, None).unwrap();
            let recovered = opened.recovered;
            assert!(
                !recovered.crashed && recovered.regions == 0 && recovered.records == 0,
                "{recovered:?}"
            );
            count += 1;
            if index % again == 0 {
                count += self.cut_recovery(&before, now, seed).unwrap_or_else(|fault| {
                    fail(format!("recovery cut: {fault}"));
                    0
                });
            }
        }
        count
    }

    /// Lets the power fail at each write of the recovery.
    fn cut_recovery(&self, before: &Ram, now: u64, seed: u64) -> Result<usize, String> {
        let record = Arc::new(Record::new(Arc::new(before.snapshot())));
        drop(Integrity::open(record.clone(), None).unwrap());
        let mut crashes = Crashes::new(before, record.log());
        let names = crashes.names(seed, 1);
        let stride = names.len().div_ceil(12).max(1);
        let mut count = 0;
        for name in names.into_iter().step_by(stride) {
            self.check(&Arc::new(crashes.state(name)), now)
                .map_err(|fault| format!("{name}: {fault}"))?;
            count += 1;
        }
        Ok(count)
    }
}

/// A running workload.
struct Run<'r> {
    queue: BoundedQueue,
    device: Integrity,
    record: &'r Record,
    rng: Rng,
    history: History,
    /// The numbers of the writes in flight.
    flights: Vec<u64>,
    unit: u64,
}

impl Run<'_> {
    fn event(&mut self) -> u64 {
        self.history.events += 1;
        self.record.mark(self.history.events);
        self.history.events
    }

    fn step(&mut self) {
        match self.rng.below(13) {
            0 => {
                let begun = self.event();
                self.device.flush().unwrap();
                let ended = self.event();
                self.history.flushes.push((begun, ended));
            }
            1 => {
                let begun = self.event();
                self.queue.flush_now(Dev::OWN).unwrap();
                let ended = self.event();
                self.history.flushes.push((begun, ended));
            }
            2..5 => self.write_now(),
            5 => self.drain(),
            6 => self.discard(),
            _ => self.submit(),
        }
    }

    /// Begins a new write. It overlaps no write in flight. Returns its number, its range and its data.
    fn new_write(&mut self, fua: bool) -> (u64, Range<u64>, Buffer) {
        let at = self.rng.below(ARENA / self.unit) * self.unit;
        let most = [4, 16][self.rng.below(2) as usize];
        let len = ((1 + self.rng.below(most)) * self.unit).min(ARENA - at).min(20 << 10);
        let range = at..at + len;
        let writes = &self.history.writes;
        let overlaps = |number: &u64| {
            let other = &writes[*number as usize].range;
            other.start < range.end && range.start < other.end
        };
        if self.flights.iter().any(overlaps) {
            self.drain();
        }
        let number = self.history.writes.len() as u64;
        let begun = self.event();
        let written =
            Written { range: range.clone(), discard: false, begun, acknowledged: None, fua };
        self.history.writes.push(written);
        let mut buffer = Buffer::aligned(len as usize).unwrap();
        for (at, unit) in range.clone().step_by(UNIT as usize).zip(buffer.chunks_mut(UNIT as usize))
        {
            unit.copy_from_slice(&stamp(number, at));
        }
        (number, range, buffer)
    }

    fn is_durable_at_once(&self) -> bool {
        self.device.info().mode == Mode::Journal
    }

    fn write_now(&mut self) {
        let dsync = self.rng.below(3) == 0;
        let (number, range, buffer) = self.new_write(dsync || self.is_durable_at_once());
        let (at, bufs) = (DevOffset(range.start), [IoSlice::new(&buffer)]);
        if self.rng.below(2) == 0 {
            self.device.write_all_at(&bufs, at, dsync).unwrap();
        } else {
            let flags = if dsync { BioFlags::DSYNC } else { BioFlags::empty() };
            assert_eq!(self.queue.write_now(Dev::OWN, &bufs, at, flags), Ok(buffer.len()));
        }
        let event = self.event();
        self.history.writes[number as usize].acknowledged = Some(event);
    }

    fn discard(&mut self) {
        let (number, range, _) = self.new_write(false);
        self.history.writes[number as usize].discard = true;
        self.device.discard(DevOffset(range.start), range.end - range.start).unwrap();
        self.event();
    }

    fn submit(&mut self) {
        if self.queue.room() == 0 {
            self.drain();
        }
        let (number, range, buffer) = self.new_write(self.is_durable_at_once());
        self.queue.submit(bio(BioOp::Write, range.start, buffer, number)).unwrap();
        self.flights.push(number);
        if self.rng.below(3) == 0 {
            self.queue.commit().unwrap();
            self.pop();
        }
    }

    fn drain(&mut self) {
        self.queue.wait(usize::MAX).unwrap();
        self.pop();
        assert!(self.flights.is_empty());
    }

    fn pop(&mut self) {
        while let Some(done) = self.queue.pop() {
            assert_eq!(done.result, Ok(done.bio.memory.len()));
            let ironmap::bio::BioEnd::Whole { token, .. } = done.bio.end else {
                panic!("another end")
            };
            self.flights.retain(|number| *number != token);
            let event = self.event();
            self.history.writes[token as usize].acknowledged = Some(event);
        }
    }
}

/// The total number of states to check.
fn wanted() -> usize {
    std::env::var("IRONMAP_CRASH_STATES").map_or(1500, |states| states.parse().expect("a number"))
}

#[test]
fn whatever_a_power_cut_leaves_is_recovered() {
    let (mut count, mut seed) = (0, 0);
    while count < wanted() || seed < 32 {
        count += Case::new(seed, 60).assert_holds(seed, 60, 20);
        seed += 1;
    }
    eprintln!("{count} states of {seed} workloads");
}

/// The test shows that the rules detect a device that loses flushed data.
#[test]
fn broken_promises_are_found() {
    for (mode, seeds) in [(Mode::Bitmap, [0, 1, 4, 5]), (Mode::Journal, [2, 3, 6, 7])] {
        let broken = seeds.into_iter().any(|seed| {
            let case = Case::new(seed, 60);
            assert_eq!(case.options.mode, mode);
            let forget = |entry: &Entry| match entry {
                Entry::Write { at, data, .. } => {
                    Entry::Write { at: *at, data: data.clone(), fua: false }
                }
                Entry::End { of, .. } if case.log.entries()[*of] == Entry::Flush => Entry::Mark(0),
                other => other.clone(),
            };
            let log = case.log.entries().iter().map(forget).collect();
            let case = Case { log, ..case };
            let mut crashes = case.crashes();
            let names = crashes.names(seed, 2);
            names.into_iter().step_by(5).any(|name| {
                let image = Arc::new(crashes.state(name));
                case.check(&image, case.now(name)).is_err()
            })
        });
        assert!(broken, "{mode:?} does not need its flushes");
    }
}

/// A layer that counts how many bytes are read from the data device.
#[derive(Debug)]
struct Counted {
    below: Arc<Ram>,
    read: AtomicU64,
}

impl Device for Counted {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.below.read_exact_at(buf, at)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        _: InRange,
    ) -> Result<()> {
        self.below.write_all_at(bufs, at, fua)
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn queue_within(&self, options: &QueueOptions, checked: InRange) -> Result<AnyQueue> {
        self.below.queue_within(options, checked)
    }
}

#[test]
fn only_regions_in_use_are_read_after_a_crash() {
    let options = FormatOptions::new().region(REGION);
    let stand = Stand::new(4 << 20, false, &options, 1);
    let device = stand.open().device;
    for region in [3, 4, 77, 200] {
        write(&device, region * REGION, &[9; 4096], false).unwrap();
    }
    device.flush().unwrap();
    // The tags (checksums) of the sectors were not written before the cut. So the recovery computes the tags from the data.
    let crashed = stand.snapshot();
    let data = Arc::new(Counted { below: crashed.data.clone(), read: AtomicU64::new(0) });
    let tags = crashed.tags.clone().map(|tags| tags as Arc<dyn Device>);
    let opened = Integrity::open(data.clone(), tags).unwrap();
    let recovered = opened.recovered;
    assert_eq!((recovered.crashed, recovered.regions, recovered.retagged), (true, 4, 4));
    assert_eq!(data.read.load(Ordering::Relaxed), 4 * REGION);
    assert_eq!(read(&opened.device, 77 * REGION, 4096).unwrap(), [9; 4096]);
    opened.device.scrub(&mut |found| panic!("{found:?}"), &mut |_, _| {}).unwrap();
}

/// In many file system formats, data end with their own CRC32C. Two records with such data at the same position then have the same CRC32C.
/// If a write is torn, its record can contain the data of an earlier record. ironmap must not replay such a record.
#[test]
fn a_record_with_other_data_that_check_themselves_is_not_whole() {
    let options = FormatOptions::new().mode(Mode::Journal).journal(96 << 10);
    let stand = Stand::new(SIZE, false, &options, 1);
    let checked = |fill: u8| {
        let mut bytes = vec![fill; 4096];
        let sum = crc32c::crc32c(&bytes[..4092]);
        bytes[4092..].copy_from_slice(&sum.to_le_bytes());
        bytes
    };
    let device = stand.open().device;
    for fill in [1, 2] {
        write(&device, 8192, &checked(fill), false).unwrap();
    }
    let crashed = stand.snapshot();
    let journal = crashed.info.area_len() - 4096 - crashed.info.journal;
    // The data of the second record begin after two headers and the first record, which has two blocks.
    let place = journal + (2 + 2 + 1) * 4096;
    assert_eq!(read(crashed.tag_ram(), place, 4096).unwrap(), checked(2));
    write(crashed.tag_ram(), place, &checked(1), false).unwrap();
    let opened = crashed.open();
    assert_eq!(opened.recovered.records, 1);
    let found = &mut |found| panic!("{found:?}");
    opened.device.scrub(found, &mut |_, _| {}).unwrap();
}
