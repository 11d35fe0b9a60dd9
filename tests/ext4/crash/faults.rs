//! Devices on which one request fails. The caller gets the error, and all data that were reported as durable exist.

use crate::require;
use std::sync::Arc;

use ironmap::device::{Faults, Limits, Ram, Sim};
use ironmap::fs::ext4::MkfsOptions;
use ironmap::fs::{Clock, NewFile};
use ironmap::{Errno, ErrorKind, Volume};

use crate::common::skip::Need;
use crate::crash::fsck::Fsck;
use crate::crash::generator::{Style, workload};
use crate::crash::history::History;
use crate::crash::layouts::{KERNEL, OURS, QUOTA, UNJOURNALED};
use crate::crash::ours::WHO;
use crate::crash::rules::{look, same};
use crate::crash::seen::Tree;
use crate::crash::{Effort, by_kernel, ours, volume, workloads};

/// Opens a volume for writing on a device with faults, and closes it. Returns the number of requests.
fn open_and_close(device: &Arc<Ram>, faults: Faults) -> (ironmap::Result<()>, u64) {
    let sim = Arc::new(Sim::new(device.clone(), faults));
    let volume = Volume::writable_on(sim.clone(), Clock::System);
    (volume.and_then(|volume| volume.close()), sim.requests())
}

/// One request of a recovery fails. The open or the close of the volume returns the error, and the next recovery succeeds. If the request was
/// a read ahead, the volume reads the blocks again, so the recovery has more requests and succeeds.
#[test]
fn a_recovery_that_meets_an_error_can_be_repeated() {
    require!([Need::Root, Need::Tool("losetup")]);
    let fsck = Fsck::new();
    for (seed, layout) in (0..).zip(KERNEL) {
        let case = by_kernel(seed, layout);
        let mut crashes = case.crashes();
        let names = crashes.names(seed, 0);
        // A crash state in the middle of the workload's writes. All writes before the crash are on the device.
        let image = crashes.state(names[names.len() / 2]);
        // With large sectors, a crash cannot tear the superblock: see `campaign::SUPERBLOCK`.
        let image = image.with_limits(Limits { logical_block: 1024, ..Ram::LIMITS });
        let (seen, _) = look(&image).unwrap();
        let (result, requests) = open_and_close(&Arc::new(image.snapshot()), Faults::default());
        result.unwrap();
        assert!(requests > 20, "{}: {requests} requests", case.name);
        for fail_at in 0..requests {
            let errno = [Errno::EIO, Errno::ENOSPC][fail_at as usize % 2];
            let faults = Faults {
                seed,
                fail_at: Some(fail_at),
                errno: Some(errno),
                torn: true,
                ..Faults::default()
            };
            let what = format!("{}, request {fail_at} of {requests}", case.name);
            let device = Arc::new(image.snapshot());
            match open_and_close(&device, faults) {
                (Err(error), _) => {
                    assert_eq!(error.kind(), ErrorKind::Io(errno), "{what}: {error}");
                }
                (Ok(()), made) => assert!(made > requests, "{what}: no error"),
            }
            let found = look(&device).and_then(|(tree, _)| same(&tree, &seen));
            found.unwrap_or_else(|fault| panic!("{what}: {fault}"));
            if fail_at % 8 == 0 && !case.rules.fast_commits {
                let repaired = fsck.repaired(&device).and_then(|repaired| look(&repaired));
                let repaired = repaired.and_then(|(tree, _)| same(&tree, &seen));
                repaired.unwrap_or_else(|fault| panic!("{what}, by e2fsck: {fault}"));
            }
        }
    }
}

/// The file that is created after an error.
const LATER: &str = "later";

/// The result of a workload on a device with faults.
struct Outcome {
    device: Arc<Ram>,
    /// The first error of the workload or of the close of the volume.
    result: ironmap::Result<()>,
    returned: usize,
    /// The number of I/O errors that the volume recorded as events, or `None` if the volume could not be opened.
    events: Option<usize>,
    /// Whether [`LATER`] was made and synced.
    later: bool,
    requests: u64,
}

fn run(base: &Ram, history: &History, faults: Faults) -> Outcome {
    let device = Arc::new(base.snapshot());
    let sim = Arc::new(Sim::new(device.clone(), faults));
    let mut outcome =
        Outcome { device, result: Ok(()), returned: 0, events: None, later: false, requests: 0 };
    match Volume::writable_on(sim.clone(), ours::CLOCK) {
        Err(error) => outcome.result = Err(error),
        Ok(volume) => {
            let ops = 0..history.ops.len();
            let ran = ours::run(&volume, history, ops, |number| outcome.returned = number);
            if ran.is_err() {
                let root = ironmap::fs::ext4::ROOT;
                let fs = volume.fs();
                let made = fs.writable().unwrap().create(
                    root,
                    LATER.as_bytes(),
                    NewFile::Regular,
                    0o644,
                    &WHO,
                );
                outcome.later = made.and_then(|_| fs.sync()).is_ok();
            }
            let closed = volume.close();
            // If the volume accepts a change after the error, the close must succeed too.
            assert!(!outcome.later || closed.is_ok(), "{ran:?}, then {closed:?}");
            outcome.result = ran.and(closed);
            outcome.events = Some(volume.events().take().0.len());
        }
    }
    outcome.requests = sim.requests();
    outcome
}

/// The faults to test: for each request of the workload, two kinds of failure. A short run tests a sample of these faults.
fn places(seed: u64, requests: u64, one_in: u64) -> impl Iterator<Item = Faults> {
    let errnos = move |fail_at: u64| {
        let both = [Errno::EIO, Errno::ENOSPC];
        let chosen = if one_in == 1 { &both[..] } else { &both[fail_at as usize % 2..][..1] };
        chosen.to_vec()
    };
    let numbers = (seed % one_in..requests).step_by(one_in as usize);
    numbers.flat_map(move |fail_at| {
        errnos(fail_at).into_iter().map(move |errno| Faults {
            seed,
            fail_at: Some(fail_at),
            errno: Some(errno),
            torn: true,
            ..Faults::default()
        })
    })
}

/// If any read, write or flush of a workload fails, one of the operations or an event reports the error. The device then has a content that
/// a crash could have left. After the error, the volume is read-only or works without restriction.
#[test]
fn a_workload_that_meets_an_error_keeps_its_promises() {
    let Effort { states, long, .. } = Effort::new();
    let fsck = Fsck::new();
    let (mut faulty, mut read_only, mut repairs) = (0, 0, 0);
    for (seed, format) in workloads(&[&OURS[..], &QUOTA, &UNJOURNALED].concat()) {
        let base = volume::stale("12M", format);
        // With large sectors, a crash cannot tear the superblock: see `campaign::SUPERBLOCK`.
        let base = base.with_limits(Limits { logical_block: 1024, ..Ram::LIMITS });
        let history = workload(seed, 60, Style::of(format));
        let journal = !UNJOURNALED.contains(&format);
        let Outcome { result, requests, .. } = run(&base, &history, Faults::default());
        result.unwrap_or_else(|error| panic!("{format}, seed {seed}: {error}"));
        for faults in places(seed, requests, if long { 1 } else { 17 }) {
            let (fail_at, errno) = (faults.fail_at.unwrap(), faults.errno.unwrap());
            let outcome = run(&base, &history, faults);
            let Outcome { device, result, returned, events, later, .. } = outcome;
            let what = format!("{format}, seed {seed}, {errno:?} at {fail_at} of {requests}");
            // The drop of a file returns no error, so only an event can report that the request failed.
            assert!(result.is_err() || events != Some(0), "{what}: the error was not reported");
            let error = result.err().map_or("an event".to_owned(), |error| error.to_string());
            assert!(events != Some(0), "{what}: {error}: no event");
            let holds = |(mut tree, _): (Tree, bool)| {
                let there = tree.remove(LATER).is_some();
                if later && !there {
                    Err("later changes are lost".to_owned())
                } else {
                    history.check(&tree, returned)
                }
            };
            if journal {
                let held = look(&device).and_then(holds);
                held.unwrap_or_else(|fault| panic!("{what}: {error}: {fault}"));
            }
            // The repair by e2fsck is slow, so the test runs it after some of the faults only.
            if !long || faulty % 4 == 0 {
                let repaired = fsck.repaired(&device).and_then(|repaired| look(&repaired));
                let repaired = repaired.and_then(|seen| if journal { holds(seen) } else { Ok(()) });
                repaired.unwrap_or_else(|fault| panic!("{what}: {error}, by e2fsck: {fault}"));
                repairs += 1;
            }
            faulty += 1;
            read_only += usize::from(!later);
        }
        if faulty * 10 >= states && seed >= 20 {
            break;
        }
    }
    eprintln!(
        "{faulty} errors of devices, {read_only} made the volume read-only, e2fsck saw {repairs}"
    );
}

/// If a request of mkfs fails, mkfs returns an error. If a volume can be opened on the device afterwards, this volume is valid.
#[test]
fn a_volume_that_is_made_on_a_device_with_an_error_is_good_or_none() {
    let Effort { long, .. } = Effort::new();
    let (fsck, mut faulty, mut volumes) = (Fsck::new(), 0, 0);
    let features = [
        "",
        "quota,project",
        "^metadata_csum,^64bit,quota",
        "^has_journal",
        "bigalloc",
        "meta_bg,^resize_inode",
    ];
    for (seed, edit) in (0..).zip(features) {
        let mut options = MkfsOptions::new().uuid([7; 16]).time(1).force(true);
        options.features.edit(edit).expect("known features");
        // The device contains an older volume. Parts of the older volume must not appear in the new volume.
        let base = volume::stale("24M", "-t ext4 -b 4096 -O ^metadata_csum");
        let make = |faults| {
            let device = Arc::new(base.snapshot());
            let sim = Sim::new(device.clone(), faults);
            let made = ironmap::tools::make(&sim, &options).map(drop);
            (device, made, sim.requests())
        };
        let (device, made, requests) = make(Faults::default());
        made.unwrap_or_else(|error| panic!("{edit}: {error}"));
        fsck.clean(&device).unwrap();
        for faults in places(seed, requests, if long { 1 } else { 3 }).flat_map(|faults| {
            // Each seed tears the failed write at different positions.
            (0..4).map(move |tear| Faults { seed: seed << 8 | tear, ..faults.clone() })
        }) {
            let what =
                format!("{edit:?}, {:?} at {:?} of {requests}", faults.errno, faults.fail_at);
            let (device, made, _) = make(faults);
            assert!(made.is_err(), "{what}: the error was not reported");
            faulty += 1;
            if Volume::on(device.clone()).is_ok() {
                volumes += 1;
                fsck.clean(&device).unwrap_or_else(|fault| panic!("{what}: {fault}"));
            }
        }
    }
    eprintln!(
        "{faulty} errors while volumes were made, {volumes} of which left one; each of these was shown to e2fsck"
    );
}
