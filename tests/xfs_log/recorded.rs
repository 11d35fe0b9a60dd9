//! Power cuts. The kernel's XFS runs on a device that records its writes and flushes. For each possible state, ironmap recovers in memory
//! and the kernel recovers on the device. The results must be the same.
//!
//! `IRONMAP_XFS_CUTS` is the number of states for each layout; set it for long runs. A failure names the layout, the seed and the state.
//! The seed does not determine the order of the threads. If `IRONMAP_XFS_KEEP` names a directory, the image is stored there.

use std::fs::File;
use std::io::IoSlice;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ironmap::device::{self, CrashState, Crashes, Device, Entry, Faults, Ram, Record, Sim};
use ironmap::units::DevOffset;

use crate::common::image::{Image, scratch_in};
use crate::common::loop_device::LoopDevice;
use crate::common::reads::hash;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::common::watched::Watched;
use crate::common::xfs::Layout;
use crate::common::xfsprogs;
use crate::state::{End, Mount, Tally, Unsound, Variant, Work, change, compare, copy, make};
use crate::torn::Log;
use crate::{STEPS_AROUND, STEPS_OF_COPIES, STEPS_OF_FRAGMENTS, require};

const SEED: u64 = 0x00c0_77ed;
/// The default number of states for each layout.
const STATES: u64 = 4;
/// The maximum number of states that are checked for one recorded workload.
const STATES_OF_LOAD: u64 = 20;
/// The maximum number of further workloads. Further workloads are recorded if the earlier ones did not contain the case that the test
/// needs.
const MORE_LOADS: u32 = 10;
/// The maximum number of steps (changes of the volume) of a workload.
const STEPS: u64 = 300;
/// The number of random states for each position in the log of requests at which the power fails. For each position, there are two more
/// states: with all writes, and with only the durable writes.
const RANDOM: u32 = 6;
/// The maximum delay of a completion, counted in requests. Because of the delays, the order of completions differs from the order of
/// submissions.
const LATENCY: u32 = 8;

const SECTOR: u64 = 512;
const BLOCK: u64 = 4096;
/// If the unit of atomic writes has this length, no write is torn. The unit is for volumes whose directory blocks are larger than the
/// volume's blocks, because such a directory block can begin at any block.
const WHOLE: u64 = u64::MAX;
/// The magic numbers of directory blocks and B+tree blocks. The B+trees are those of free space, inodes, owners, maps and shared blocks.
const MAGICS: [&[u8]; 9] =
    [b"XDB3", b"XDD3", b"AB3B", b"AB3C", b"IAB3", b"FIB3", b"RMB3", b"BMA3", b"R3FC"];
/// The length of a group's headers. Each header has one sector.
const HEADERS: u64 = 4 * SECTOR;

fn states() -> u64 {
    std::env::var("IRONMAP_XFS_CUTS").map_or(STATES, |number| number.parse().expect("a number"))
}

/// Records the kernel's requests to a device with the content `base`. The kernel mounts the device, changes the volume, and unmounts it.
/// Also returns the device after the unmount.
fn record(base: &Ram, variant: &Variant, seed: u64, work: (Work, u64)) -> (device::Log, Ram) {
    let dir = scratch_in(Path::new("/dev/shm"));
    let below = Arc::new(base.snapshot());
    let faults = Faults { seed, latency: LATENCY, ..Faults::default() };
    let record = Arc::new(Record::new(Arc::new(Sim::new(below.clone(), faults))));
    let file = Watched::new(record.clone(), &dir.path().join("device"));
    // With direct I/O, the loop device can submit a write before the previous write has completed.
    let device = LoopDevice::with(&["--direct-io=on"], file.path());
    let mount = Mount::of(device, dir.path().join("mnt"), variant.mount);
    let mount = mount.unwrap_or_else(|refusal| panic!("{refusal}"));
    change(&mount, variant, seed, work, End::Unmount);
    drop(mount);
    drop(file);
    (record.log(), below.snapshot())
}

/// Ranges of a device. After a power cut, each of these ranges is written completely or not at all.
struct Parts {
    log: Range<u64>,
    headers: Vec<Range<u64>>,
    size: u64,
}

impl Parts {
    fn of(image: &Image) -> Self {
        let file = File::open(image.path()).expect("the image");
        let size = file.metadata().expect("the image").len();
        let group = Layout::of(&file).group_len();
        let headers = (0..size / group).map(|number| number * group..number * group + HEADERS);
        Self { log: Log::of(image).range(), headers: headers.collect(), size }
    }

    /// The metadata blocks that were written. For each block: the index of the write in the log of requests, and the offset of the block in
    /// the data of this write.
    fn metadata(&self, log: &device::Log) -> Vec<(usize, usize)> {
        let blocks = |(index, entry): (usize, &Entry)| {
            let data = match entry {
                Entry::Write { at, data, .. } if !self.log.contains(&at.0) => &data[..],
                _ => &[],
            };
            let starts = (0..data.len() / BLOCK as usize).map(|block| block * BLOCK as usize);
            let is_metadata = |start: &usize| MAGICS.contains(&&data[*start..*start + 4]);
            starts.filter(is_metadata).map(|start| (index, start)).collect::<Vec<_>>()
        };
        log.entries().iter().enumerate().flat_map(blocks).collect()
    }

    /// The crash states of a recorded workload. XFS recovers from a torn write to its log, but not from a torn metadata block. If the
    /// block's first sector contains a newer log position, the recovery skips the block. So the test does not tear metadata blocks.
    fn crashes(&self, base: &Ram, log: device::Log, block: u64) -> Crashes {
        let bytes = |range: Range<u64>| DevOffset(range.start)..DevOffset(range.end);
        let sectors = self.headers.iter().cloned().map(|range| (range, SECTOR));
        let blocks = [0..self.log.start, self.log.end..self.size].map(|range| (range, block));
        sectors.chain(blocks).fold(Crashes::new(base, log), |crashes, (range, block)| {
            crashes.with_atomic_blocks(bytes(range), block)
        })
    }
}

/// A recorded workload on a volume: the requests that the device received.
struct Recorded {
    seed: u64,
    base: Ram,
    log: device::Log,
    /// The number of states to compare.
    states: u64,
}

/// Records workloads and calls `check` for each of them, until two conditions hold: enough states were checked, and `check` has found the
/// case that the test needs. Each workload begins with the final volume of the previous workload. A short workload sometimes sends few
/// writes before the unmount; then all of its states are clean.
fn record_all(
    variant: &Variant,
    work: (Work, u64),
    states: u64,
    mut check: impl FnMut(&Parts, &Recorded) -> bool,
) {
    let rng = &mut Rng::new(SEED ^ hash(variant.name.as_bytes()));
    let made = make(variant);
    let parts = Parts::of(&made);
    let mut base = Ram::from_image(&std::fs::read(made.path()).expect("the image"));
    let (mut left, mut shown, mut more) = (states, false, MORE_LOADS);
    while left > 0 || !shown && more > 0 {
        let states = if left > 0 { left.min(STATES_OF_LOAD) } else { STATES };
        more -= u32::from(left == 0);
        left = left.saturating_sub(states);
        let seed = rng.next();
        let (log, after) = record(&base, variant, seed, work);
        assert_recorded(&base, &log, &after);
        shown = check(&parts, &Recorded { seed, base, log, states });
        base = after;
    }
}

/// Asserts that the log contains all writes to the device. Asserts that the kernel sent flushes, and had several writes in flight at a
/// time.
fn assert_recorded(base: &Ram, log: &device::Log, after: &Ram) {
    let all = CrashState { seed: 0, cut: log.len(), subset: 1 };
    let all = Crashes::new(base, log.clone()).state(all);
    let (mut ours, mut theirs) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for at in (0..after.size()).step_by(1 << 20).map(DevOffset) {
        all.read_exact_at(&mut ours, at).expect("a part of the state");
        after.read_exact_at(&mut theirs, at).expect("a part of the device");
        assert!(ours == theirs, "a write at or after byte {at} was not recorded");
    }
    let (mut in_flight, mut most, mut flushes) = (0_u64, 0, 0);
    for entry in log.entries() {
        match entry {
            Entry::Write { .. } => in_flight += 1,
            Entry::End { of, .. } if log.entries()[*of] == Entry::Flush => flushes += 1,
            Entry::End { .. } => in_flight -= 1,
            _ => {}
        }
        most = most.max(in_flight);
    }
    assert!(most > 1 && flushes > 0, "{most} writes at a time, {flushes} flushes");
}

fn image_of(state: &Ram) -> Image {
    let image = Image::no_xfs();
    let file = File::create(image.path()).expect("the image");
    state.store(&file).expect("store the image");
    image
}

/// For each state, compares the recovery by ironmap with the recovery by the kernel. When the kernel recovers an inode, it verifies the
/// checksum of the inode before it updates this checksum. So the kernel may refuse a log that changes the owners of map blocks, but no
/// other log. Power cuts do not tear blocks of the length `block`.
fn compare_states(variant: &Variant, work: (Work, u64), block: u64) {
    let gives_owners = variant.name == "owners";
    let mut tally = Tally::default();
    // The kernel refuses about half of the states in which blocks of maps get new owners, so the test needs more states.
    let states = if gives_owners { states().max(16) } else { states() };
    record_all(variant, work, states, |parts, load| {
        let rng = &mut Rng::new(load.seed);
        let mut crashes = parts.crashes(&load.base, load.log.clone(), block);
        let names = crashes.names(load.seed, RANDOM);
        let mut chosen: Vec<_> =
            (0..load.states).map(|_| names[rng.below(names.len() as u64) as usize]).collect();
        // The states are sorted by the positions of their cuts in the log of requests. In this order, it needs the least work to compute
        // them.
        chosen.sort_by_key(|name| name.cut);
        for name in chosen {
            let what = format!("{variant:?}, seed {:#x}, state {name}", load.seed);
            let log = compare(&image_of(&crashes.state(name)), &what, load.seed, &mut tally);
            let is_refused = log == Err(Unsound::Refused);
            assert!(!is_refused || gives_owners, "{what}: the kernel refuses it");
        }
        tally.dirty > 0
    });
    println!("{}: {tally:?}", variant.name);
    assert!(tally.dirty > 0, "{}: {tally:?}", variant.name);
}

macro_rules! layouts {
    ($($name:ident: $size:literal, $mkfs:literal, $mount:literal, $work:expr, $block:expr;)+) => {
        $(#[test]
        fn $name() {
            require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io"), Need::Tool("xfs_fsr")]);
            let (name, size, mkfs, mount) = (stringify!($name), $size, $mkfs, $mount);
            let variant = Variant { name, size, mkfs, mount, newer: false };
            compare_states(&variant, $work, $block);
        })+
    };
}

const ALL: (Work, u64) = (Work::All, STEPS);
const AROUND: (Work, u64) = (Work::All, STEPS_AROUND);
const COPIES: (Work, u64) = (Work::CopyOnWrite, STEPS_OF_COPIES);
const FRAGMENTS: (Work, u64) = (Work::Defragment, STEPS_OF_FRAGMENTS / 2);

layouts! {
    plain: "96M", "", "rw", ALL, BLOCK;
    reverse_mappings: "96M", "-m rmapbt=1,reflink=1", "rw", ALL, BLOCK;
    small_log: "32M", "-m rmapbt=1,reflink=1", "rw", AROUND, BLOCK;
    large_log_units: "512M", "-l version=2,su=256k", "rw", ALL, BLOCK;
    large_log_buffers: "96M", "", "rw,logbsize=256k", ALL, BLOCK;
    large_inodes: "96M", "-i size=2048", "rw", ALL, BLOCK;
    large_directory_blocks: "96M", "-n size=16384", "rw", ALL, WHOLE;
    many_groups: "256M", "-d agcount=16", "rw", ALL, BLOCK;
    without_newer_features: "96M", "-m bigtime=0,inobtcount=0,finobt=0,reflink=0 -i sparse=0", "rw", ALL, BLOCK;
    synchronous: "96M", "-m rmapbt=1", "rw,wsync", ALL, BLOCK;
    copies: "96M", "-m rmapbt=1", "rw", COPIES, BLOCK;
    exchanges: "96M", "-m rmapbt=1", "rw", FRAGMENTS, BLOCK;
    owners: "96M", "-m reflink=0", "rw", FRAGMENTS, BLOCK;
}

macro_rules! newer_layouts {
    ($($name:ident: $mkfs:literal, $block:expr;)+) => {
        $(#[test]
        fn $name() {
            require!([Need::Root, Need::Variable(xfsprogs::VARIABLE), Need::Tool("xfs_io")]);
            let (name, size, mkfs, mount) = (stringify!($name), "96M", $mkfs, "rw");
            let variant = Variant { name, size, mkfs, mount, newer: true };
            compare_states(&variant, ALL, $block);
        })+
    };
}

newer_layouts! {
    blocks_of_1024_with_parents: "-b size=1024 -n parent=1", WHOLE;
    exchange_of_ranges: "-i exchange=1 -n parent=1", BLOCK;
    tree_of_metadata: "-m metadir=1,uquota,gquota", BLOCK;
}

/// A metadata block is torn, and its first sector is newer than the log. So the recovery skips the block, and the block stays torn. The
/// kernel then refuses the volume. ironmap opens the volume, and its check finds the damage.
#[test]
fn torn_blocks_are_found() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    let name = "torn_blocks";
    let variant = Variant { name, size: "96M", mkfs: "-m rmapbt=1", mount: "rw", newer: false };
    let (mut tally, mut refused) = (Tally::default(), 0);
    // The kernel refuses about half of the states, so the test needs more of them.
    record_all(&variant, ALL, states().max(32), |parts, load| {
        let rng = &mut Rng::new(load.seed);
        let mut crashes = Crashes::new(&load.base, load.log.clone());
        let blocks = parts.metadata(&load.log);
        for _ in 0..load.states {
            let (cut, start) = blocks[rng.below(blocks.len() as u64) as usize];
            let Entry::Write { at, data, .. } = &load.log.entries()[cut] else { unreachable!() };
            // The device gets the state before the write of a metadata block. In this state, the XFS log already contains the record of the
            // change. Then the test writes only the first sector of the block.
            let state = crashes.state(CrashState { seed: load.seed, cut, subset: 0 });
            let first = IoSlice::new(&data[start..start + SECTOR as usize]);
            state.write_all_at(&[first], DevOffset(at.0 + start as u64), false).expect("a sector");
            let what = format!("seed {:#x}, entry {cut}, byte {start} torn", load.seed);
            let image = image_of(&state);
            if Mount::new(&copy(&image), "ro").is_ok() {
                let compared = compare(&image, &what, load.seed, &mut tally);
                assert_ne!(compared, Err(Unsound::Refused), "{what}: it can be mounted");
                continue;
            }
            refused += 1;
            if let Ok(volume) = image.open() {
                let report = volume.fs().check(&mut |_| {}).expect("a check");
                assert!(!report.is_clean(), "{what}: the kernel refuses it, and nothing is found");
            }
        }
        refused > 0
    });
    println!("{name}: {refused} refused, {tally:?}");
    assert!(refused > 0, "no block was torn: {tally:?}");
}
