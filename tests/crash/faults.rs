//! Devices that fail at one request: whoever asked hears of it, and nothing that was promised is lost.

use std::sync::Arc;

use ironmap::device::{Faults, Limits, Ram, Sim};
use ironmap::fs::ext4::Clock;
use ironmap::{Errno, ErrorKind, Volume};

use crate::campaign::{look, same};
use crate::common::skip::Need;
use crate::fsck::Fsck;
use crate::generator::workload;
use crate::{KERNEL, OURS, by_kernel, ours, require, volume};

/// Opens a volume for writing, and closes it, on a device with faults; how many requests there were.
fn open_and_close(device: &Arc<Ram>, faults: Faults) -> (ironmap::Result<()>, u64) {
    let sim = Arc::new(Sim::new(device.clone(), faults));
    let volume = Volume::writable_on(sim.clone(), Clock::System);
    (volume.and_then(|volume| volume.close()), sim.requests())
}

/// An error at any one request of a recovery is the error of who opens or closes the volume, and the next recovery completes it.
#[test]
fn a_recovery_that_meets_an_error_can_be_repeated() {
    require!([Need::Root, Need::Tool("losetup")]);
    let fsck = Fsck::new();
    for (seed, layout) in (0..).zip(KERNEL) {
        let case = by_kernel(seed, layout);
        let mut crashes = case.crashes();
        let names = crashes.names(seed, 0);
        // In the middle, with everything that was written.
        let image = crashes.state(names[names.len() / 2]);
        // No superblock is torn: see `campaign::SUPERBLOCK`.
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
            let (result, _) = open_and_close(&device, faults);
            let error = result.expect_err(&what);
            assert_eq!(error.kind(), ErrorKind::Io(errno), "{what}: {error}");
            let found = look(&device).and_then(|(tree, _)| same(&tree, &seen));
            found.unwrap_or_else(|fault| panic!("{what}: {fault}"));
            if fail_at % 8 == 0 {
                let repaired = fsck.repaired(&device).and_then(|repaired| look(&repaired));
                let repaired = repaired.and_then(|(tree, _)| same(&tree, &seen));
                repaired.unwrap_or_else(|fault| panic!("{what}, by e2fsck: {fault}"));
            }
        }
    }
}

/// An error at any one request of a workload is an error of one of its operations, and an event; what is then on the device is
/// what a crash could have left there.
#[test]
fn a_workload_that_meets_an_error_keeps_its_promises() {
    let fsck = Fsck::new();
    for (seed, format) in (0..).zip(OURS) {
        let base = volume::stale("12M", format);
        let base = base.with_limits(Limits { logical_block: 1024, ..Ram::LIMITS });
        let history = workload(seed, 40, !format.contains("ext3"));
        let run = |faults| {
            let device = Arc::new(base.snapshot());
            let sim = Arc::new(Sim::new(device.clone(), Faults::default()));
            let volume = Volume::writable_on(sim.clone(), ours::CLOCK).unwrap();
            sim.set_faults(faults);
            let mut returned = 0;
            let result = ours::run(&volume, &history, |number| returned = number);
            let result = result.and_then(|()| volume.close());
            let events = volume.events().take().0.len();
            drop(volume);
            (device, result, returned, events, sim.requests())
        };
        let (_, result, .., requests) = run(Faults::default());
        result.unwrap_or_else(|error| panic!("{format}, seed {seed}: {error}"));
        for fail_at in (0..requests).skip(seed as usize % 5).step_by(5) {
            let errno = [Errno::EIO, Errno::ENOSPC][fail_at as usize % 2];
            let faults = Faults {
                seed,
                fail_at: Some(fail_at),
                errno: Some(errno),
                torn: true,
                ..Faults::default()
            };
            let (device, result, returned, events, _) = run(faults);
            let what = format!("{format}, seed {seed}, request {fail_at} of {requests}");
            let error = result.expect_err(&what);
            assert_eq!(error.kind(), ErrorKind::Io(errno), "{what}: {error}");
            assert!(events > 0, "{what}: {error}: no event");
            let found = look(&device).and_then(|(tree, _)| history.check(&tree, returned));
            found.unwrap_or_else(|fault| panic!("{what}: {error}: {fault}"));
            let repaired = fsck.repaired(&device).and_then(|repaired| look(&repaired));
            let repaired = repaired.and_then(|(tree, _)| history.check(&tree, returned));
            repaired.unwrap_or_else(|fault| panic!("{what}: {error}, by e2fsck: {fault}"));
        }
    }
}
