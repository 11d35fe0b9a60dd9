//! Devices on which one request fails while files are written.

use std::sync::Arc;

use ironmap::device::{Faults, Limits, Ram, Sim};
use ironmap::{Errno, Volume};

use crate::crash::fsck::Fsck;
use crate::crash::ours::CLOCK;
use crate::crash::rules::look;
use crate::crash::volume;
use crate::crash_data::LAYOUTS;
use crate::crash_data::workload::{Kind, Outcome, run};

const LENGTH: usize = 40;

/// If a request fails, an operation or an event reports the error. All data that were acknowledged before the error exist. The device has a
/// content that a crash could have left.
#[test]
fn a_request_that_fails_takes_nothing_with_it() {
    let fsck = Fsck::new();
    let mut tried = 0;
    for (seed, (size, format, kind)) in (0..).zip(LAYOUTS) {
        // With large sectors, a crash cannot tear the superblock: see `campaign::SUPERBLOCK`.
        let limits = Limits { logical_block: 1024, ..Ram::LIMITS };
        let base = volume::stale(size, format).with_limits(limits);
        let run = |faults: Faults| {
            let device = Arc::new(base.snapshot());
            let sim = Arc::new(Sim::new(device.clone(), Faults::default()));
            let volume = Volume::writable_on(sim.clone(), CLOCK).unwrap();
            sim.set_faults(faults);
            let mut outcome = run(&volume, kind, seed, LENGTH, &|_| ());
            let closed = volume.close();
            outcome.result = outcome.result.and(closed);
            let events = volume.events().take().0;
            // A run can end without an error and without an event: a retried request makes no event, and an error after the drop of the
            // last handle reaches no caller.
            if outcome.result.is_ok() && events.is_empty() {
                let (begin, end) = (outcome.history.event(), outcome.history.event());
                outcome.history.synced(None, begin, end);
            }
            drop(volume);
            (device, outcome, events, sim.requests())
        };
        let (_, outcome, _, requests) = run(Faults { seed, latency: 6, ..Faults::default() });
        outcome.result.unwrap_or_else(|error| panic!("{format}, seed {seed}: {error}"));
        let step = stride(requests);
        for fail_at in (0..requests).skip(seed as usize % step).step_by(step) {
            let faults = Faults {
                seed,
                latency: 6,
                fail_at: Some(fail_at),
                torn: true,
                ..Faults::default()
            };
            let (device, outcome, events, _) = run(faults);
            let Outcome { history, result, since } = outcome;
            let what = format!("{format}, seed {seed}, request {fail_at} of {requests}");
            if let Err(error) = &result {
                // The fault may have hit an earlier request that was still in flight. In this case, the completion of that earlier request
                // has reported the error.
                assert!(matches!(error.errno(), Errno::EIO | Errno::EROFS), "{what}: {error}");
                assert!(!events.is_empty(), "{what}: {error}: no event");
            }
            let what = format!("{what}: {result:?}");
            let now = history.events();
            tried += 1;
            // Without a journal, ironmap promises nothing for a file until the file has been created.
            if kind == Kind::Overwrites && now <= since {
                continue;
            }
            let found = look(&device).and_then(|(tree, _)| history.check(&tree, now));
            found.unwrap_or_else(|fault| panic!("{what}: {fault}"));
            let repaired = fsck.repaired(&device).and_then(|repaired| look(&repaired));
            let repaired = repaired.and_then(|(tree, _)| history.check(&tree, now));
            repaired.unwrap_or_else(|fault| panic!("{what}, by e2fsck: {fault}"));
        }
    }
    eprintln!("errors of direct writes: {tried}");
}

/// The step between the tested request numbers. Each run of the test makes one request fail. A long run tests every request.
fn stride(requests: u64) -> usize {
    match std::env::var("IRONMAP_CRASH_STATES") {
        Ok(_) => 1,
        Err(_) => (requests as usize / 30).max(1),
    }
}
