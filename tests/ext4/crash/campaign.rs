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

use crate::common::beneath::tail::{Recoveries, recovered};
use crate::common::rng::Rng;
use crate::crash::fsck::Fsck;
use crate::crash::history::History;
use crate::crash::op::Op;
use crate::crash::seen::{Tree, tree};
use crate::crash::{kernel, ours};

/// Processors are shared with other tests.
const THREADS: usize = 2;

/// Its checksum stands in another sector than what changes in it: Linux refuses a torn one, too.
pub(crate) const SUPERBLOCK: Range<DevOffset> = DevOffset(1024)..DevOffset(2048);

/// The fault, for a reader.
pub(crate) type Verdict = Result<(), String>;

/// The operations on a volume, and the log of its device.
pub(crate) struct Case {
    /// Names the workload, its seed included.
    pub(crate) name: String,
    pub(crate) base: Ram,
    /// The size of the volume where an integrity device may lie beneath it, and with its tags on the same device.
    pub(crate) volume: Option<u64>,
    /// Holds a mark after each operation: [`ours::mark`].
    pub(crate) log: Log,
    /// One for each thread. Threads have names of their own.
    pub(crate) histories: Vec<History>,
    /// The prefix of each of them for its names, where there are several.
    pub(crate) prefixes: &'static [&'static str],
    /// Without one only synced data are promised, and that e2fsck can repair the volume.
    pub(crate) journal: bool,
    /// Linux's, which e2fsck 1.47 does not recover all of: it gives up with EINVAL, and goes on without.
    pub(crate) fast_commits: bool,
}

/// How many states are looked at, and how closely.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// Random states at each cut.
    pub(crate) random: u32,
    /// At most so many states, evenly spread.
    pub(crate) limit: usize,
    /// One state in so many is shown to e2fsck as well.
    pub(crate) fsck_one_in: u64,
    /// The recovery of one state in so many is cut in turn.
    pub(crate) interrupt_one_in: u64,
    /// One state in so many is mounted by the kernel, which takes root.
    pub(crate) mount_one_in: Option<u64>,
}

/// The counts of a campaign.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) states: AtomicUsize,
    pub(crate) recovered: AtomicUsize,
    pub(crate) fsck: AtomicUsize,
    pub(crate) mounted: AtomicUsize,
    /// States of interrupted recoveries.
    pub(crate) interrupted: AtomicUsize,
    pub(crate) beneath: Recoveries,
}

impl Case {
    /// Of one thread, on a volume with a journal.
    pub(crate) fn new(name: String, base: Ram, log: Log, history: History) -> Self {
        let histories = vec![history];
        let volume = None;
        Self {
            name,
            volume,
            base,
            log,
            histories,
            prefixes: &[],
            journal: true,
            fast_commits: false,
        }
    }

    /// Fails the test at a state that breaks a rule. It is kept as an image to look at.
    pub(crate) fn assert_holds(&self, seed: u64, plan: Plan, counts: &Counts) {
        if let Err((state, fault)) = self.check(seed, plan, counts) {
            let image = self.crashes().state(state);
            let under_way: Vec<_> = (0..)
                .zip(&self.histories)
                .map(|(index, history)| history.ops.get(self.returned(state, index)))
                .collect();
            let kept = self.keep(state, &image);
            panic!("{}, state {state}, during {under_way:?}: {fault}\nkept as {kept}.*", self.name);
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
        let all = self.crashes().names(seed, plan.random);
        check_some(all, seed, plan.limit, |part| self.check_states(part, plan, counts))
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
            // The same ones each time.
            let chance =
                Rng::new(name.seed ^ (name.cut as u64) << 32 ^ u64::from(name.subset) << 24).next();
            let one_in = |count: u64| chance.is_multiple_of(count);
            let image = match self.volume {
                Some(size) => recovered(image, size, &counts.beneath),
                None => Ok(image),
            };
            let image = image.map_err(|fault| (*name, fault))?;
            let checked = if self.journal {
                self.check_state(&image, *name, counts).and_then(|seen| {
                    if one_in(plan.fsck_one_in) {
                        self.by_e2fsck(&image, *name, &seen, &fsck, counts)?;
                    }
                    if one_in(plan.interrupt_one_in) {
                        interrupted(&image, &seen, plan, counts)?;
                    }
                    if plan.mount_one_in.is_some_and(one_in) {
                        by_kernel(&image, &seen, counts)?;
                    }
                    Ok(())
                })
            } else {
                self.check_unjournaled(&image, *name, one_in(plan.fsck_one_in), &fsck, counts)
            };
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
        for (index, history) in self.histories.iter().enumerate() {
            for (number, op) in (1..).zip(&history.ops) {
                writeln!(ops, "{index}, {number}: {op:?}").expect("write the operations");
            }
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

    /// How many operations of a history had returned in a state.
    fn returned(&self, state: CrashState, history: usize) -> usize {
        let numbers = self.log.marks(state.cut).filter_map(|mark| {
            let number = mark.checked_sub(ours::mark(history, 0))?;
            u32::try_from(number).ok()
        });
        numbers.max().unwrap_or(0) as usize
    }

    fn check_tree(&self, seen: &Tree, state: CrashState) -> Verdict {
        for (index, history) in self.histories.iter().enumerate() {
            let returned = self.returned(state, index);
            match self.prefixes.get(index) {
                None => history.check(seen, returned)?,
                Some(prefix) => {
                    let own = seen.iter().filter(|(path, _)| path.starts_with(prefix));
                    let own = own.map(|(path, seen)| (path.clone(), seen.clone())).collect();
                    history.check(&own, returned)?;
                }
            }
        }
        Ok(())
    }

    /// The volume as ironmap sees it, with nothing written.
    fn check_state(&self, image: &Ram, state: CrashState, counts: &Counts) -> Result<Tree, String> {
        let (seen, recovered) = look(image)?;
        self.check_tree(&seen, state)?;
        count(&counts.states);
        counts.recovered.fetch_add(usize::from(recovered), Ordering::Relaxed);
        Ok(seen)
    }

    /// e2fsck recovers the same, and has nothing more to do where ironmap has recovered the volume to the device and closed it.
    fn by_e2fsck(
        &self,
        image: &Ram,
        state: CrashState,
        seen: &Tree,
        fsck: &Fsck,
        counts: &Counts,
    ) -> Verdict {
        count(&counts.fsck);
        if self.fast_commits {
            return fsck.clean(&rewritten(image)?.0);
        }
        let (theirs, _) = look(&fsck.recovered(image)?)?;
        // Of a commit block Linux believes the first fields alone, e2fsck only the whole: the changes of a torn one may be there
        // or not.
        let held = same(&theirs, seen).or_else(|fault| {
            self.check_tree(&theirs, state).map_err(|other| format!("{fault}; {other}"))
        });
        held.map_err(|fault| format!("e2fsck: {fault}"))?;
        let (written, _) = rewritten(image)?;
        fsck.clean(&written).map_err(|fault| format!("after ironmap: {fault}"))
    }

    /// Without a journal: ironmap, which may see faults, does not panic; a synced file, with nothing changed since, is
    /// there; and e2fsck can repair the rest.
    fn check_unjournaled(
        &self,
        image: &Ram,
        state: CrashState,
        repair: bool,
        fsck: &Fsck,
        counts: &Counts,
    ) -> Verdict {
        let seen = look(image);
        count(&counts.states);
        if self.is_synced(state) {
            let (seen, _) = seen?;
            count(&counts.recovered);
            self.check_tree(&seen, state)?;
            if repair {
                count(&counts.fsck);
                return same(&look(&fsck.recovered(image)?)?.0, &seen);
            }
        } else if repair {
            count(&counts.fsck);
            // An attribute's value that is half there has a checksum that e2fsck does not check: a read may fail.
            let _ = look(&fsck.repaired(image)?);
        }
        Ok(())
    }

    /// Whether nothing was written since a sync.
    fn is_synced(&self, state: CrashState) -> bool {
        let history = &self.histories[0];
        for entry in self.log.entries()[..state.cut].iter().rev() {
            match entry {
                Entry::Write { .. } | Entry::Discard { .. } => return false,
                Entry::Mark(number) => {
                    let op =
                        (*number as usize).checked_sub(1).and_then(|index| history.ops.get(index));
                    if matches!(op, Some(Op::Sync | Op::Fsync(_))) {
                        return true;
                    }
                }
                Entry::Flush | Entry::End { .. } => {}
            }
        }
        false
    }
}

/// Looks at so many states at most, evenly spread, on several threads.
///
/// # Errors
/// The first state that breaks a rule, and its fault.
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

/// The kernel recovers the same, and shows it of what ironmap has recovered.
fn by_kernel(image: &Ram, seen: &Tree, counts: &Counts) -> Verdict {
    count(&counts.mounted);
    same(&kernel::look(image)?, seen).map_err(|fault| format!("the kernel: {fault}"))?;
    let (written, _) = rewritten(image)?;
    same(&kernel::look(&written)?, seen)
        .map_err(|fault| format!("the kernel, after ironmap: {fault}"))
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
        Some(path) => Err(format!("{path} is {:?}, not {:?}", tree.get(path), expected.get(path))),
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

/// The files of a volume, and whether its journal was recovered for that. Nothing is written.
pub(crate) fn look(image: &Ram) -> Result<(Tree, bool), String> {
    let volume = Volume::on(Arc::new(image.snapshot())).map_err(|error| error.to_string())?;
    let recovered = matches!(volume.ext4().unwrap().journal().state, JournalState::Recovered(_));
    let tree = tree(&volume).map_err(|error| error.to_string())?;
    Ok((tree, recovered))
}
