//! Power cuts during overwrites. Each sector of the data is old or new, and synced data exist. The device received no writes except the
//! data.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use ironmap::bio::Buffer;
use ironmap::device::{Crashes, Device, Entry, Faults, Limits, Log, Ram, Record, Sim};
use ironmap::dio::DioFlags;
use ironmap::fs::Follow;
use ironmap::units::DevOffset;
use ironmap::{File, Queue, QueueOptions, VolumeOptions};

use crate::common::image::Image;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::{Known, SEED, filled, for_writing, known, require};

const SECTOR: u64 = 512;
const STEPS: usize = 500;
/// The maximum number of requests in flight.
const IN_FLIGHT: usize = 6;
/// The maximum delay of a completion, counted in calls. Because of the delays, the order of completions differs from the order of
/// submissions.
const LATENCY: u32 = 6;
/// The number of states to check, and the number of random states for each position at which the power fails.
const STATES: usize = 300;
const RANDOM: u32 = 2;

/// The content of a sector after a write. The numbers in the other fields are numbers of events: when the write was submitted, acknowledged
/// and durable.
struct Version {
    content: [u8; SECTOR as usize],
    issued: u64,
    acknowledged: Option<u64>,
    /// The number of an event. After this event, the sector durably has the content of this write or of a later write.
    durable: Option<u64>,
}

/// For each sector that was written: its contents after each write, in the order of the writes.
type Sectors = BTreeMap<u64, Vec<Version>>;

/// A sequence of overwrites, and the device on which it runs.
struct Load<'a> {
    base: &'a Ram,
    record: &'a Record,
    files: Vec<(File, &'a Known)>,
    queue: Queue,
    rng: Rng,
    event: u64,
    sectors: Sectors,
    /// For each token in flight: the range in `written` with its sectors, and whether the write is durable when it completes.
    flights: HashMap<u64, (Range<usize>, bool)>,
    /// The sectors of all requests, in the order of submission.
    written: Vec<u64>,
}

impl Load<'_> {
    fn event(&mut self) -> u64 {
        self.event += 1;
        self.event
    }

    fn step(&mut self) {
        match self.rng.below(16) {
            0 => self.sync(),
            1..=4 => self.write(false),
            _ => self.write(true),
        }
        if self.flights.len() >= IN_FLIGHT {
            self.complete(IN_FLIGHT / 2);
        }
    }

    /// Overwrites data in blocks that the file does not share. The range has any alignment.
    fn write(&mut self, submit: bool) {
        let which = self.rng.below(self.files.len() as u64) as usize;
        let known = self.files[which].1;
        let unit = [1, SECTOR, 4096][self.rng.below(3) as usize];
        let pos = self.rng.below(known.content.len() as u64) / unit * unit;
        let len = (1 + self.rng.below(20_000)).next_multiple_of(unit);
        if !known.takes(pos..pos + len) {
            return;
        }
        let mut bytes = Buffer::aligned(len as usize).unwrap();
        bytes.copy_from_slice(&self.rng.bytes(len as usize));
        let pieces = pieces(known, pos, len);
        let flying = |sector: &u64| {
            self.flights.values().any(|(range, _)| self.written[range.clone()].contains(sector))
        };
        if pieces.iter().any(|(sector, _)| flying(sector)) {
            self.complete(0);
        }
        let issued = self.event();
        let first = self.written.len();
        for (sector, (within, from)) in pieces {
            let versions = self.sectors.entry(sector).or_default();
            let mut content = match versions.last() {
                Some(version) => version.content,
                None => sector_of(self.base, sector),
            };
            let len = within.len();
            content[within].copy_from_slice(&bytes[from..from + len]);
            versions.push(Version { content, issued, acknowledged: None, durable: None });
            self.written.push(sector);
        }
        let durable = self.rng.below(4) == 0;
        let flags = match (durable, self.rng.below(2)) {
            (true, 0) => DioFlags::SYNC,
            (true, _) => DioFlags::DSYNC,
            (false, _) => DioFlags::empty(),
        };
        self.record.mark(issued);
        self.flights.insert(issued, (first..self.written.len(), durable));
        let Self { files, queue, .. } = self;
        let file = &files[which].0;
        if submit {
            file.submit_write(queue, bytes, pos, flags, issued).map_err(drop).unwrap();
            queue.poll().unwrap();
        } else {
            assert_eq!(file.write_at_with(queue, &bytes, pos, flags).unwrap(), len as usize);
            self.acknowledge(issued);
        }
    }

    /// Waits until at most `left` requests are in flight.
    fn complete(&mut self, left: usize) {
        while self.flights.len() > left {
            self.queue.wait(1).unwrap();
            while let Some(done) = self.queue.pop() {
                assert_eq!(done.result.as_ref().ok(), Some(&done.memory.len()));
                self.acknowledge(done.token);
            }
        }
    }

    /// Records that the writes of this event are acknowledged.
    fn acknowledge(&mut self, issued: u64) {
        let now = self.event();
        let (range, durable) = self.flights.remove(&issued).unwrap();
        for sector in &self.written[range] {
            let versions = self.sectors.get_mut(sector).unwrap();
            let version = versions.iter_mut().find(|version| version.issued == issued).unwrap();
            version.acknowledged = Some(now);
            version.durable = durable.then_some(now);
        }
        self.record.mark(now);
    }

    /// Syncs a file or the volume. Acknowledged writes are durable after the sync. Writes in flight need not be durable.
    fn sync(&mut self) {
        let which = self.rng.below(self.files.len() as u64) as usize;
        self.files[which].0.sync(&mut self.queue).unwrap();
        let now = self.event();
        for version in self.sectors.values_mut().flatten() {
            if version.acknowledged.is_some() && version.durable.is_none() {
                version.durable = Some(now);
            }
        }
        self.record.mark(now);
    }
}

/// The device sectors that contain a range of a file. For each sector: its bytes that belong to the range, and their position in the range.
fn pieces(known: &Known, pos: u64, len: u64) -> Vec<(u64, (Range<usize>, usize))> {
    let mut pieces = Vec::new();
    let mut at = pos;
    while at < pos + len {
        let (own, start) = known.own.iter().find(|(own, _)| own.contains(&at)).unwrap();
        let place = start + (at - own.start);
        let within = place % SECTOR;
        let count = (SECTOR - within).min(pos + len - at);
        let bytes = within as usize..(within + count) as usize;
        pieces.push((place / SECTOR, (bytes, (at - pos) as usize)));
        at += count;
    }
    pieces
}

fn sector_of(ram: &Ram, sector: u64) -> [u8; SECTOR as usize] {
    let mut bytes = [0; SECTOR as usize];
    ram.read_exact_at(&mut bytes, DevOffset(sector * SECTOR)).unwrap();
    bytes
}

/// Overwrites data of a volume. The device records the requests.
fn run(base: &Ram, files: &BTreeMap<String, Known>, seed: u64) -> (Log, Sectors) {
    let faults = Faults { seed, latency: LATENCY, ..Faults::default() };
    let record = Arc::new(Record::new(Arc::new(Sim::new(Arc::new(base.snapshot()), faults))));
    let volume = VolumeOptions::new().write(true).open_on(record.clone()).unwrap();
    let open = |(name, known)| {
        let inode = volume.fs().resolve(str::as_bytes(name), Follow::All).unwrap();
        (volume.open_inode(inode, for_writing()).unwrap(), known)
    };
    let files = files.iter().map(|(name, known)| (name.as_str(), known)).map(open).collect();
    let queue = volume.queue(&QueueOptions::default()).unwrap();
    let mut load = Load {
        base,
        record: &record,
        files,
        queue,
        rng: Rng::new(seed),
        event: 0,
        sectors: Sectors::new(),
        flights: HashMap::new(),
        written: Vec::new(),
    };
    (0..STEPS).for_each(|_| load.step());
    load.complete(0);
    let sectors = load.sectors;
    drop((load.files, load.queue));
    volume.close().unwrap();
    (record.log(), sectors)
}

/// Asserts that the device received writes only to sectors whose data were overwritten.
fn assert_only_data(log: &Log, sectors: &Sectors, what: &str) {
    for entry in log.entries() {
        match entry {
            Entry::Write { at, data, .. } => {
                for sector in at.0 / SECTOR..(at.0 + data.len() as u64).div_ceil(SECTOR) {
                    assert!(sectors.contains_key(&sector), "{what}: sector {sector} was written");
                }
            }
            Entry::Discard { at, .. } => panic!("{what}: a discard at {at}"),
            _ => {}
        }
    }
}

/// Returns the first sector of a state whose content is not permitted: no write to the sector that may be visible has this content.
fn fault(state: &Ram, base: &Ram, sectors: &Sectors, now: u64) -> Option<String> {
    sectors.iter().find_map(|(&sector, versions)| {
        let is_durable = |version: &Version| version.durable.is_some_and(|durable| durable <= now);
        let oldest = versions.iter().rposition(is_durable);
        let later = versions[oldest.unwrap_or(0)..].iter().take_while(|next| next.issued <= now);
        let mut permitted: Vec<_> = later.map(|version| version.content).collect();
        if oldest.is_none() {
            permitted.push(sector_of(base, sector));
        }
        let found = sector_of(state, sector);
        let place = versions.iter().position(|version| version.content == found);
        let expected = format!("not older than {oldest:?} of {}", versions.len());
        (!permitted.contains(&found))
            .then(|| format!("sector {sector} has version {place:?}, which is {expected}"))
    })
}

/// Checks the states. Returns their number, or the first fault.
fn check(base: &Ram, log: &Log, sectors: &Sectors, seed: u64) -> Result<usize, String> {
    let mut crashes = Crashes::new(base, log.clone());
    let names = crashes.names(seed, RANDOM);
    let stride = names.len().div_ceil(STATES);
    let chosen: Vec<_> = names.into_iter().step_by(stride).collect();
    for name in &chosen {
        let now = log.marks(name.cut).max().unwrap_or(0);
        if let Some(fault) = fault(&crashes.state(*name), base, sectors, now) {
            return Err(format!("state {name}, event {now}: {fault}"));
        }
    }
    Ok(chosen.len())
}

fn base_of(image: &Image, fua: bool) -> Ram {
    let content = std::fs::read(image.path()).unwrap();
    Ram::from_image(&content).with_limits(Limits { fua, ..Ram::LIMITS })
}

#[test]
fn sectors_are_old_or_new_and_synced_data_are_there() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("filefrag")]);
    for (number, mkfs) in [&[][..], &["-b", "size=1024", "-m", "rmapbt=1"]].into_iter().enumerate()
    {
        let block = if number == 0 { 4096 } else { 1024 };
        let Some(image) = filled(mkfs, block) else { return };
        let files = known(&image);
        for fua in [true, false] {
            let seed = SEED + 2 * number as u64 + u64::from(fua);
            let what = format!("{mkfs:?}, FUA {fua}, seed {seed:#x}");
            let base = base_of(&image, fua);
            let (log, sectors) = run(&base, &files, seed);
            assert_only_data(&log, &sectors, &what);
            let states = check(&base, &log, &sectors, seed).unwrap_or_else(|fault| {
                panic!("{what}, {fault}");
            });
            println!("{what}: {} sectors, {states} states", sectors.len());
        }
    }
}

/// The test shows that the check detects a device that loses durable data.
#[test]
fn broken_promises_are_found() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("filefrag")]);
    let Some(image) = filled(&[], 4096) else { return };
    let (files, base) = (known(&image), base_of(&image, true));
    let (log, sectors) = run(&base, &files, SEED);
    let without_flushes = log.entries().iter().map(|entry| match entry {
        Entry::End { of, .. } if log.entries()[*of] == Entry::Flush => Entry::Mark(0),
        other => other.clone(),
    });
    let without_fua = log.entries().iter().map(|entry| match entry.clone() {
        Entry::Write { at, data, .. } => Entry::Write { at, data, fua: false },
        other => other,
    });
    check(&base, &without_flushes.collect(), &sectors, SEED).expect_err("flushes do nothing");
    check(&base, &without_fua.collect(), &sectors, SEED).expect_err("FUA does nothing");
}
