//! Every crash state of a workload, opened by ironmap and checked by e2fsck.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ironmap::Volume;
use ironmap::device::{CrashState, Crashes, Entry, Log, Ram, Record};
use ironmap::fs::ext4::JournalState;
use ironmap::units::DevOffset;

use crate::fsck::Fsck;
use crate::history::History;
use crate::seen::{Tree, tree};
use crate::{kernel, ours};

/// Processors are shared with other tests.
const THREADS: usize = 2;

/// Its checksum stands in another sector than what changes in it: Linux refuses a torn one, too.
const SUPERBLOCK: Range<DevOffset> = DevOffset(1024)..DevOffset(2048);

/// What is wrong, for a reader.
pub(crate) type Verdict = Result<(), String>;

/// What was done to a volume, and what became of its device.
pub(crate) struct Case {
    /// Names the workload, its seed included.
    pub(crate) name: String,
    pub(crate) base: Ram,
    /// Holds the number of each operation as a mark behind it.
    pub(crate) log: Log,
    pub(crate) history: History,
}

/// How many states are looked at, and how closely.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// Random states at each cut.
    pub(crate) random: u32,
    /// At most so many states, evenly spread.
    pub(crate) limit: usize,
    /// One state in so many is shown to e2fsck as well.
    pub(crate) fsck_one_in: usize,
    /// The recovery of one state in so many is cut in turn.
    pub(crate) interrupt_one_in: usize,
    /// One state in so many is mounted by the kernel, which takes root.
    pub(crate) mount_one_in: Option<usize>,
}

/// What a campaign has looked at.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) states: AtomicUsize,
    pub(crate) recovered: AtomicUsize,
    pub(crate) fsck: AtomicUsize,
    pub(crate) mounted: AtomicUsize,
    /// States of interrupted recoveries.
    pub(crate) interrupted: AtomicUsize,
}

impl Case {
    /// Fails the test at a state that breaks a rule. It is kept as an image to look at.
    pub(crate) fn assert_holds(&self, seed: u64, plan: Plan, counts: &Counts) {
        if let Err((state, fault)) = self.check(seed, plan, counts) {
            let image = self.crashes().state(state);
            let under_way = self.history.ops.get(self.returned(state));
            let kept = self.keep(state, &image);
            panic!("{}, state {state}, during {under_way:?}: {fault}\nkept as {kept}.*", self.name);
        }
    }

    /// Looks at states of the workload's log, as many as the plan allows.
    ///
    /// # Errors
    /// The first state that breaks a rule, and what is wrong.
    pub(crate) fn check(
        &self,
        seed: u64,
        plan: Plan,
        counts: &Counts,
    ) -> Result<(), (CrashState, String)> {
        let all = self.crashes().names(seed, plan.random);
        let stride = all.len().div_ceil(plan.limit).max(1);
        let names: Vec<_> = all.into_iter().skip(seed as usize % stride).step_by(stride).collect();
        std::thread::scope(|scope| {
            let parts = names.chunks(names.len().div_ceil(THREADS).max(1));
            let threads: Vec<_> =
                parts.map(|part| scope.spawn(|| self.check_states(part, plan, counts))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a thread"))
        })
    }

    fn check_states(
        &self,
        names: &[CrashState],
        plan: Plan,
        counts: &Counts,
    ) -> Result<(), (CrashState, String)> {
        let (mut crashes, fsck) = (self.crashes(), Fsck::new());
        for (index, name) in names.iter().enumerate() {
            let image = crashes.state(*name);
            let checked = self.check_state(&image, self.returned(*name), counts);
            let checked = checked.and_then(|seen| {
                if index.is_multiple_of(plan.fsck_one_in) {
                    by_e2fsck(&image, &seen, &fsck, counts)?;
                }
                if index.is_multiple_of(plan.interrupt_one_in) {
                    interrupted(&image, &seen, plan, counts)?;
                }
                if plan.mount_one_in.is_some_and(|one_in| index.is_multiple_of(one_in)) {
                    by_kernel(&image, &seen, counts)?;
                }
                Ok(())
            });
            checked.map_err(|fault| (*name, fault))?;
        }
        Ok(())
    }

    pub(crate) fn crashes(&self) -> Crashes {
        Crashes::new(&self.base, self.log.clone()).with_atomic(SUPERBLOCK)
    }

    /// The image of a state, the operations, and what reached the device until then; the path without the last part.
    fn keep(&self, state: CrashState, image: &Ram) -> String {
        let name = format!("crash-{}-{state}", self.name).replace([' ', ':', ','], "-");
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let file = |kind| File::create(format!("{}.{kind}", path.display())).expect("a file");
        image.store(&file("img")).expect("store the image");
        let mut ops = file("ops");
        for (number, op) in (1..).zip(&self.history.ops) {
            writeln!(ops, "{number}: {op:?}").expect("write the operations");
        }
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

    /// How many operations had returned in a state.
    fn returned(&self, state: CrashState) -> usize {
        self.log.marks(state.cut).max().unwrap_or(0) as usize
    }

    /// What ironmap sees of it, with nothing written.
    fn check_state(&self, image: &Ram, returned: usize, counts: &Counts) -> Result<Tree, String> {
        let (seen, recovered) = look(image)?;
        self.history.check(&seen, returned)?;
        count(&counts.states);
        counts.recovered.fetch_add(usize::from(recovered), Ordering::Relaxed);
        Ok(seen)
    }
}

/// e2fsck recovers the same, and has nothing more to do where ironmap has recovered the volume to the device and closed it.
fn by_e2fsck(image: &Ram, seen: &Tree, fsck: &Fsck, counts: &Counts) -> Verdict {
    count(&counts.fsck);
    same(&look(&fsck.recovered(image)?)?.0, seen).map_err(|fault| format!("e2fsck: {fault}"))?;
    let (written, _) = rewritten(image)?;
    fsck.clean(&written).map_err(|fault| format!("behind ironmap: {fault}"))
}

/// The kernel recovers the same, and shows it of what ironmap has recovered.
fn by_kernel(image: &Ram, seen: &Tree, counts: &Counts) -> Verdict {
    count(&counts.mounted);
    same(&kernel::look(image)?, seen).map_err(|fault| format!("the kernel: {fault}"))?;
    let (written, _) = rewritten(image)?;
    same(&kernel::look(&written)?, seen)
        .map_err(|fault| format!("the kernel, behind ironmap: {fault}"))
}

/// A recovery to the device shows the same when it is complete, and can itself be cut anywhere.
fn interrupted(image: &Ram, seen: &Tree, plan: Plan, counts: &Counts) -> Verdict {
    let (written, log) = rewritten(image)?;
    same(&look(&written)?.0, seen).map_err(|fault| format!("opened for writing: {fault}"))?;
    let mut crashes = Crashes::new(image, log).with_atomic(SUPERBLOCK);
    for name in crashes.names(0, plan.random) {
        count(&counts.interrupted);
        let found = look(&crashes.state(name)).and_then(|(tree, _)| same(&tree, seen));
        found.map_err(|fault| format!("recovery interrupted, state {name}: {fault}"))?;
    }
    Ok(())
}

fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Whether a volume shows what another way of recovery shows.
pub(crate) fn same(tree: &Tree, expected: &Tree) -> Verdict {
    let differs = |path: &&String| tree.get(*path) != expected.get(*path);
    match tree.keys().chain(expected.keys()).find(differs) {
        None => Ok(()),
        Some(path) => Err(format!("{path} is not the same")),
    }
}

/// The volume recovered to the device and closed, and what that did to the device.
fn rewritten(image: &Ram) -> Result<(Ram, Log), String> {
    let device = Arc::new(image.snapshot());
    let record = Arc::new(Record::new(device.clone()));
    let volume = Volume::writable_on(record.clone(), ours::CLOCK);
    let closed = volume.and_then(|volume| volume.close());
    closed.map_err(|error| format!("opened for writing: {error}"))?;
    Ok((device.snapshot(), record.log()))
}

/// What is on a volume, and whether its journal was recovered for that. Nothing is written.
pub(crate) fn look(image: &Ram) -> Result<(Tree, bool), String> {
    let volume = Volume::on(Arc::new(image.snapshot())).map_err(|error| error.to_string())?;
    let recovered = matches!(volume.fs().journal().state, JournalState::Recovered(_));
    let tree = tree(&volume).map_err(|error| error.to_string())?;
    Ok((tree, recovered))
}
