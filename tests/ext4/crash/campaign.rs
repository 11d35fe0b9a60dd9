//! Checks the states that a crash can leave on a device. Each workload defines the rules that these states must satisfy.

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use ironmap::device::{CrashState, Crashes, Entry, Log, Ram};
use ironmap::units::DevOffset;

use crate::common::beneath::tail::{Recoveries, recovered};
use crate::common::rng::Rng;
use crate::crash::fsck::Fsck;

/// The number of threads is low, because other tests run at the same time.
const THREADS: usize = 2;

/// The range of the superblock. The checksum of the superblock and its changing fields are in different sectors, so a torn superblock is
/// invalid, and Linux refuses it too. The tests therefore do not tear writes to this range.
pub(crate) const SUPERBLOCK: Range<DevOffset> = DevOffset(1024)..DevOffset(2048);

/// The first broken rule as text, or success.
pub(crate) type Verdict = Result<(), String>;

/// A workload: the operations on a volume, and the log of its device.
pub(crate) struct Case<R> {
    /// The name of the workload, with its seed.
    pub(crate) name: String,
    /// The content of the device before the workload.
    pub(crate) base: Ram,
    /// The size of the volume. An integrity device below the volume stores its tags after the volume, on the same device.
    pub(crate) volume: Option<u64>,
    /// The log of the device's requests. Marks between the requests record the progress of the workload.
    pub(crate) log: Log,
    pub(crate) rules: R,
}

/// The rules that each crash state of a workload must satisfy.
pub(crate) trait Rules: Sync {
    /// Whether the rules apply to the crash states of a cut. A cut is a position in the log of requests at which the power fails.
    fn apply(&self, _log: &Log, _cut: usize) -> bool {
        true
    }

    /// Checks whether a state satisfies the rules.
    fn check(&self, state: &Crashed<'_>) -> Verdict;

    /// Describes, for a message, which operations of the workload had returned before a cut (power failure) in the log of requests.
    fn progress(&self, log: &Log, cut: usize) -> String;

    /// Lists the operations of the workload, one per line.
    fn operations(&self) -> String;
}

/// A state after a crash, with functions that check it.
pub(crate) struct Crashed<'a> {
    pub(crate) image: Ram,
    pub(crate) log: &'a Log,
    pub(crate) cut: usize,
    pub(crate) plan: Plan,
    pub(crate) fsck: &'a Fsck,
    pub(crate) counts: &'a Counts,
    chance: u64,
}

impl Crashed<'_> {
    /// Returns true for about one of `count` states. The choice is the same in each run.
    pub(crate) fn one_in(&self, count: u64) -> bool {
        self.chance.is_multiple_of(count)
    }
}

/// How many states are checked, and which checks are made for each state.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// The number of random states for each position at which the power fails (cut).
    pub(crate) random: u32,
    /// The maximum number of states to check. The checked states are spread evenly over all states.
    pub(crate) limit: usize,
    /// e2fsck also checks one of every `fsck_one_in` states.
    pub(crate) fsck_one_in: u64,
    /// One of every `interrupt_one_in` states is recovered with interruptions. The states after these interruptions are also checked.
    pub(crate) interrupt_one_in: u64,
    /// The kernel mounts one of every `mount_one_in` states, which needs root. `None` means that the kernel mounts none of them.
    pub(crate) mount_one_in: Option<u64>,
}

/// Counts the checks of several workloads.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) workloads: AtomicUsize,
    pub(crate) states: AtomicUsize,
    pub(crate) recovered: AtomicUsize,
    pub(crate) fsck: AtomicUsize,
    pub(crate) mounted: AtomicUsize,
    /// The number of checked states that a crash during a recovery left.
    pub(crate) interrupted: AtomicUsize,
    pub(crate) beneath: Recoveries,
}

pub(crate) fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<R: Rules> Case<R> {
    /// If a state breaks a rule, stores an image of this state and fails the test.
    pub(crate) fn assert_holds(&self, seed: u64, plan: Plan, counts: &Counts) {
        count(&counts.workloads);
        if let Err((state, fault)) = self.check(seed, plan, counts) {
            let progress = self.rules.progress(&self.log, state.cut);
            let kept = self.keep(state);
            panic!("{}, state {state}, {progress}: {fault}\nkept as {kept}.*", self.name);
        }
    }

    /// Derives crash states from the workload's log, and checks as many of them as the plan says.
    ///
    /// # Errors
    /// The first state that breaks a rule, with the broken rule.
    pub(crate) fn check(
        &self,
        seed: u64,
        plan: Plan,
        counts: &Counts,
    ) -> Result<(), (CrashState, String)> {
        let mut names = self.crashes().names(seed, plan.random);
        names.retain(|name| self.rules.apply(&self.log, name.cut));
        check_some(names, seed, plan.limit, |part| self.check_states(part, plan, counts))
    }

    fn check_states(
        &self,
        names: &[CrashState],
        plan: Plan,
        counts: &Counts,
    ) -> Result<(), (CrashState, String)> {
        let (mut crashes, fsck) = (self.crashes(), Fsck::new());
        for name in names {
            let image = crashes.state(*name);
            let image = match self.volume {
                Some(size) => recovered(image, size, &counts.beneath),
                None => Ok(image),
            };
            let image = image.map_err(|fault| (*name, fault))?;
            let seed = name.seed ^ (name.cut as u64) << 32 ^ u64::from(name.subset) << 24;
            let chance = Rng::new(seed).next();
            let (log, cut, fsck) = (&self.log, name.cut, &fsck);
            count(&counts.states);
            let state = Crashed { image, log, cut, plan, fsck, counts, chance };
            self.rules.check(&state).map_err(|fault| (*name, fault))?;
        }
        Ok(())
    }

    pub(crate) fn crashes(&self) -> Crashes {
        Crashes::new(&self.base, self.log.clone()).with_atomic(SUPERBLOCK)
    }

    /// Stores the image of a state, the list of operations, and the writes that led to the state. Returns the path of these files without
    /// the extension.
    fn keep(&self, state: CrashState) -> String {
        let name = format!("crash-{}-{state}", self.name).replace([' ', ':', ','], "-");
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let file = |kind| File::create(format!("{}.{kind}", path.display())).expect("a file");
        self.crashes().state(state).store(&file("img")).expect("store the image");
        let ops = format!("{}.ops", path.display());
        fs::write(ops, self.rules.operations()).expect("write the operations");
        let mut log = file("log");
        for (index, entry) in self.log.entries().iter().take(state.cut).enumerate() {
            let entry = match entry {
                Entry::Write { at, data, fua } => {
                    format!("write {} at {at}, fua {fua}", data.len())
                }
                other => format!("{other:?}"),
            };
            writeln!(log, "{index}: {entry}").expect("write the log");
        }
        path.display().to_string()
    }
}

/// Checks at most `limit` states, evenly spread, on several threads.
///
/// # Errors
/// The first state that breaks a rule, with the broken rule.
pub(crate) fn check_some(
    all: Vec<CrashState>,
    seed: u64,
    limit: usize,
    check: impl Fn(&[CrashState]) -> Result<(), (CrashState, String)> + Sync,
) -> Result<(), (CrashState, String)> {
    let stride = all.len().div_ceil(limit).max(1);
    let names: Vec<_> = all.into_iter().skip(seed as usize % stride).step_by(stride).collect();
    std::thread::scope(|scope| {
        let parts = names.chunks(names.len().div_ceil(THREADS).max(1));
        let threads: Vec<_> = parts.map(|part| scope.spawn(|| check(part))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread"))
    })
}
