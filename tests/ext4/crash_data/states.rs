//! Every crash state of a workload, opened by ironmap and checked by e2fsck.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ironmap::device::{CrashState, Crashes, Device, Faults, Log, Ram, Record, Sim};
use ironmap::fs::ext4::ROOT;
use ironmap::{Result, Volume};

use crate::common::beneath::tail::{self, Recoveries, recovered};
use crate::crash::campaign::{SUPERBLOCK, check_some};
use crate::crash::fsck::Fsck;
use crate::crash::seen::{Body, Tree, tree};
use crate::crash_data::history::History;
use crate::crash_data::workload::{CLOCK, Kind, run};

/// Completions come so much later than they could at most, so that their order is not that of submission.
const LATENCY: u32 = 6;

/// A file that becomes longer by so much shows what its last blocks held.
const LONGER: u64 = 12 << 10;

/// A workload and what became of its device.
pub(crate) struct Case {
    /// Names the workload, its seed included.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// With the layer beneath the volume.
    pub(crate) base: Ram,
    /// Of the volume.
    pub(crate) size: u64,
    /// Holds the number of each event as a mark.
    pub(crate) log: Log,
    pub(crate) history: History,
    /// Promises are kept from this event on.
    pub(crate) since: u64,
    /// With bigalloc e2fsck 1.47 does not end truncations: it takes an orphan's cluster away, and leaves the extent.
    pub(crate) clusters: bool,
}

/// How many states are looked at, and how closely.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// Random states at each cut.
    pub(crate) random: u32,
    /// At most so many states, evenly spread.
    pub(crate) limit: usize,
    /// One state in so many is recovered to the device and shown to e2fsck.
    pub(crate) fsck_one_in: usize,
}

/// The counts of checks.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) workloads: AtomicUsize,
    pub(crate) states: AtomicUsize,
    pub(crate) fsck: AtomicUsize,
    pub(crate) beneath: Recoveries,
}

impl Case {
    /// Runs so many operations on a recorded device that holds `base`, and closes the volume.
    pub(crate) fn new(name: String, kind: Kind, volume: &Ram, seed: u64, count: usize) -> Self {
        let (base, size) = (tail::tagged(volume), volume.size());
        let faults = Faults { seed, latency: LATENCY, ..Faults::default() };
        let record = Arc::new(Record::new(Arc::new(Sim::new(Arc::new(base.snapshot()), faults))));
        let volume =
            Volume::writable_on(tail::open(record.clone()), CLOCK).expect("open the volume");
        let outcome = run(&volume, kind, seed, count, &|event| record.mark(event));
        outcome.result.unwrap_or_else(|error| panic!("{name}: {error}"));
        volume.close().expect("close the volume");
        drop(volume);
        let clusters = name.contains("bigalloc");
        Self {
            name,
            kind,
            base,
            size,
            log: record.log(),
            history: outcome.history,
            since: outcome.since,
            clusters,
        }
    }

    /// Fails the test at a state that breaks a rule. It is kept as an image to look at.
    pub(crate) fn assert_holds(&self, seed: u64, plan: Plan, counts: &Counts) {
        counts.workloads.fetch_add(1, Relaxed);
        if let Err((state, fault)) = self.check(seed, plan, counts) {
            let name =
                format!("crash-data-{}-{state}.img", self.name).replace([' ', ':', ','], "-");
            let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
            let file = File::create(&path).expect("a file");
            self.crashes().state(state).store(&file).expect("store the image");
            let event = self.events(state);
            let path = path.display();
            panic!("{}, state {state}, after event {event}: {fault}\nkept as {path}", self.name);
        }
    }

    /// Looks at states of the workload's log, as many as the plan allows.
    ///
    /// # Errors
    /// The first state that breaks a rule, and its fault.
    pub(crate) fn check(
        &self,
        seed: u64,
        plan: Plan,
        counts: &Counts,
    ) -> Result<(), (CrashState, String)> {
        let mut names = self.crashes().names(seed, plan.random);
        names.retain(|name| self.events(*name) >= self.since);
        check_some(names, seed, plan.limit, |part| self.check_states(part, plan, counts))
    }

    fn check_states(
        &self,
        names: &[CrashState],
        plan: Plan,
        counts: &Counts,
    ) -> Result<(), (CrashState, String)> {
        let (mut crashes, fsck) = (self.crashes(), Fsck::new());
        for (index, name) in names.iter().enumerate() {
            let (image, now) = (crashes.state(*name), self.events(*name));
            let image = recovered(image, self.size, &counts.beneath);
            let image = image.map_err(|fault| (*name, fault))?;
            counts.states.fetch_add(1, Relaxed);
            let closely = index.is_multiple_of(plan.fsck_one_in);
            let checked = self.check_state(&image, now).and_then(|()| {
                if closely {
                    counts.fsck.fetch_add(1, Relaxed);
                    self.check_closely(&image, now, &fsck)?;
                }
                Ok(())
            });
            checked.map_err(|fault| (*name, fault))?;
        }
        Ok(())
    }

    fn crashes(&self) -> Crashes {
        Crashes::new(&self.base, self.log.clone()).with_atomic(SUPERBLOCK)
    }

    /// How many events had happened in a state.
    fn events(&self, state: CrashState) -> u64 {
        self.log.marks(state.cut).max().unwrap_or(0)
    }

    /// The volume as ironmap sees it, with nothing written.
    fn check_state(&self, image: &Ram, now: u64) -> Result<(), String> {
        self.history.check(&look(image)?, now)
    }

    /// e2fsck and ironmap recover it to the device: then nothing is wrong, the files hold allowed data, and blocks past their ends
    /// show nothing.
    fn check_closely(&self, image: &Ram, now: u64, fsck: &Fsck) -> Result<(), String> {
        if !self.clusters {
            let behind_fsck = look(&fsck.recovered(image)?)?;
            self.history.check(&behind_fsck, now).map_err(|fault| format!("e2fsck: {fault}"))?;
        }
        if self.kind == Kind::Overwrites {
            return Ok(());
        }
        let device = Arc::new(image.snapshot());
        let recovered =
            Volume::writable_on(device.clone(), CLOCK).and_then(|volume| volume.close());
        recovered.map_err(|error| format!("opened for writing: {error}"))?;
        fsck.clean(&device).map_err(|fault| format!("after ironmap: {fault}"))?;
        let seen = look(&device)?;
        self.history.check(&seen, now).map_err(|fault| format!("recovered: {fault}"))?;
        longer_ones_show_nothing(&device, &seen)
    }
}

fn longer_ones_show_nothing(device: &Arc<Ram>, seen: &Tree) -> Result<(), String> {
    let longer = || -> Result<Tree> {
        let volume = Volume::writable_on(device.clone(), CLOCK)?;
        for (path, seen) in seen {
            if let Body::File(content) = &seen.body {
                let number = volume.fs().lookup(ROOT, path.as_bytes())?.number();
                volume.fs().truncate(number, content.len() as u64 + LONGER)?;
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

/// The files of a volume. Nothing is written.
pub(crate) fn look(image: &Ram) -> Result<Tree, String> {
    let volume = Volume::on(Arc::new(image.snapshot())).map_err(|error| error.to_string())?;
    tree(&volume).map_err(|error| error.to_string())
}
