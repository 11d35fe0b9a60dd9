//! The rules for direct writes: durable data exist, and the files show only data that were written to them.

use std::sync::Arc;

use ironmap::device::{Device, Faults, Log, Ram, Record, Sim};
use ironmap::fs::ext4::ROOT;
use ironmap::{Result, Volume};

use crate::common::beneath::tail;
use crate::crash::campaign::{Case, Crashed, Rules, Verdict, count};
use crate::crash::ours::CLOCK;
use crate::crash::rules::{look, rewritten};
use crate::crash::seen::{Body, Tree, tree};
use crate::crash_data::history::History;
use crate::crash_data::workload::{Kind, run};

/// The maximum delay of a completion. Because of the delays, the order of completions differs from the order of submissions.
const LATENCY: u32 = 6;

/// The check extends each file by this length. Old content of blocks past the end of the file then becomes visible.
const LONGER: u64 = 12 << 10;

pub(crate) struct Writes {
    pub(crate) kind: Kind,
    /// The operations of the workload, as numbered events. Marks in the log of requests contain the numbers of the events.
    pub(crate) history: History,
    /// The number of the first event (begin or return of an operation) to which the rules apply.
    pub(crate) since: u64,
    /// Whether the volume has clusters (bigalloc). On such a volume, e2fsck 1.47 does not complete the truncation of an orphan: it frees
    /// the cluster, but does not remove the extent from the map.
    pub(crate) clusters: bool,
}

impl Case<Writes> {
    /// Runs `count` operations on a volume on a recorded device, and closes the volume.
    pub(crate) fn new(name: String, kind: Kind, volume: &Ram, seed: u64, count: usize) -> Self {
        let (base, size) = (tail::tagged(volume), Some(volume.size()));
        let faults = Faults { seed, latency: LATENCY, ..Faults::default() };
        let record = Arc::new(Record::new(Arc::new(Sim::new(Arc::new(base.snapshot()), faults))));
        let volume =
            Volume::writable_on(tail::open(record.clone()), CLOCK).expect("open the volume");
        let outcome = run(&volume, kind, seed, count, &|event| record.mark(event));
        outcome.result.unwrap_or_else(|error| panic!("{name}: {error}"));
        volume.close().expect("close the volume");
        drop(volume);
        let clusters = name.contains("bigalloc");
        let rules = Writes { kind, history: outcome.history, since: outcome.since, clusters };
        Self { name, base, volume: size, log: record.log(), rules }
    }
}

impl Rules for Writes {
    fn apply(&self, log: &Log, cut: usize) -> bool {
        events(log, cut) >= self.since
    }

    fn check(&self, state: &Crashed<'_>) -> Verdict {
        let now = events(state.log, state.cut);
        // The check by `look` writes nothing to the device.
        self.history.check(&look(&state.image)?.0, now)?;
        if state.one_in(state.plan.fsck_one_in) {
            count(&state.counts.fsck);
            self.check_closely(state, now)?;
        }
        Ok(())
    }

    fn progress(&self, log: &Log, cut: usize) -> String {
        format!("after event {}", events(log, cut))
    }

    fn operations(&self) -> String {
        format!("{:?}\n", self.kind)
    }
}

impl Writes {
    /// e2fsck and ironmap each recover the volume to the device. Afterwards there is no fault, the files contain only allowed data, and
    /// blocks past their ends show no old content.
    fn check_closely(&self, state: &Crashed<'_>, now: u64) -> Verdict {
        let Crashed { image, fsck, .. } = state;
        if !self.clusters {
            let (behind_fsck, _) = look(&fsck.recovered(image)?)?;
            self.history.check(&behind_fsck, now).map_err(|fault| format!("e2fsck: {fault}"))?;
        }
        if self.kind == Kind::Overwrites {
            return Ok(());
        }
        let device = Arc::new(rewritten(image)?.0);
        fsck.clean(&device).map_err(|fault| format!("after ironmap: {fault}"))?;
        let (seen, _) = look(&device)?;
        self.history.check(&seen, now).map_err(|fault| format!("recovered: {fault}"))?;
        longer_ones_show_nothing(&device, &seen)
    }
}

/// The number of events (begins and returns of operations) before a cut of the log.
fn events(log: &Log, cut: usize) -> u64 {
    log.marks(cut).max().unwrap_or(0)
}

fn longer_ones_show_nothing(device: &Arc<Ram>, seen: &Tree) -> Result<(), String> {
    let longer = || -> Result<Tree> {
        let volume = Volume::writable_on(device.clone(), CLOCK)?;
        for (path, seen) in seen {
            if let Body::File(content) = &seen.body {
                let number = volume.fs().lookup(ROOT, path.as_bytes())?.number();
                volume.fs().writable().unwrap().truncate(number, content.len() as u64 + LONGER)?;
            }
        }
        volume.close()?;
        tree(&Volume::on(device.clone())?)
    };
    for (path, longer) in longer().map_err(|error| error.to_string())? {
        let (Body::File(now), Body::File(before)) = (&longer.body, &seen[&path].body) else {
            return Err(format!("{path} is no file"));
        };
        let (content, behind) = now.split_at(before.len());
        if content != before {
            return Err(format!("{path} changed when it became longer"));
        }
        if let Some(at) = behind.iter().position(|byte| *byte != 0) {
            let (end, shown) = (before.len(), &behind[at..behind.len().min(at + 16)]);
            return Err(format!(
                "{path}, of {end} bytes, shows {shown:02x?} {at} bytes past its end"
            ));
        }
    }
    Ok(())
}
