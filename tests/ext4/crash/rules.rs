//! The rules for workloads that change names, attributes and content. After a crash, ironmap, e2fsck and the kernel must each find all data
//! that ironmap has reported as durable.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ironmap::Volume;
use ironmap::device::{Crashes, Entry, Log, Ram, Record};
use ironmap::fs::ext4::JournalState;

use crate::crash::campaign::{Case, Crashed, Rules, SUPERBLOCK, Verdict, count};
use crate::crash::history::History;
use crate::crash::op::Op;
use crate::crash::seen::{Tree, tree};
use crate::crash::{kernel, ours};

pub(crate) struct Histories {
    /// The operations and the expected states, one history for each thread. Each thread uses separate names. The log contains a mark after
    /// each operation: [`ours::mark`].
    pub(crate) of_threads: Vec<History>,
    /// The name prefix of each thread, if there are several.
    pub(crate) prefixes: &'static [&'static str],
    /// Whether the volume has a journal. Without a journal ironmap promises only that synced data survive, and that e2fsck can repair the
    /// volume.
    pub(crate) journal: bool,
    /// Whether Linux writes fast commits. e2fsck 1.47 cannot replay all of them. At the first fast commit that it cannot replay, e2fsck
    /// reports EINVAL and ignores the rest.
    pub(crate) fast_commits: bool,
}

impl Case<Histories> {
    /// The rules for a workload of one thread, on a volume with a journal.
    pub(crate) fn new(name: String, base: Ram, log: Log, history: History) -> Self {
        let of_threads = vec![history];
        let rules = Histories { of_threads, prefixes: &[], journal: true, fast_commits: false };
        Self { name, base, volume: None, log, rules }
    }
}

impl Rules for Histories {
    fn check(&self, state: &Crashed<'_>) -> Verdict {
        if !self.journal {
            return self.check_unjournaled(state);
        }
        let (seen, recovered) = look(&state.image)?;
        self.check_tree(&seen, state.log, state.cut)?;
        state.counts.recovered.fetch_add(usize::from(recovered), Ordering::Relaxed);
        if state.one_in(state.plan.fsck_one_in) {
            self.by_e2fsck(state, &seen)?;
        }
        if state.one_in(state.plan.interrupt_one_in) {
            interrupted(state, &seen)?;
        }
        if state.plan.mount_one_in.is_some_and(|count| state.one_in(count)) {
            by_kernel(state, &seen)?;
        }
        Ok(())
    }

    fn progress(&self, log: &Log, cut: usize) -> String {
        let under_way: Vec<_> = (0..)
            .zip(&self.of_threads)
            .map(|(index, history)| history.ops.get(returned(log, cut, index)))
            .collect();
        format!("during {under_way:?}")
    }

    fn operations(&self) -> String {
        let mut text = String::new();
        for (index, history) in self.of_threads.iter().enumerate() {
            for (number, op) in (1..).zip(&history.ops) {
                let _ = writeln!(text, "{index}, {number}: {op:?}");
            }
        }
        text
    }
}

impl Histories {
    fn check_tree(&self, seen: &Tree, log: &Log, cut: usize) -> Verdict {
        for (index, history) in self.of_threads.iter().enumerate() {
            let returned = returned(log, cut, index);
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

    /// e2fsck recovers the same tree as ironmap. If ironmap recovers the volume to the device and closes it, e2fsck finds nothing to
    /// change.
    fn by_e2fsck(&self, state: &Crashed<'_>, seen: &Tree) -> Verdict {
        let Crashed { image, fsck, .. } = state;
        count(&state.counts.fsck);
        if self.fast_commits {
            return fsck.clean(&rewritten(image)?.0);
        }
        let (theirs, _) = look(&fsck.recovered(image)?)?;
        // Linux checks only the first fields of a commit block. e2fsck checks all of them. The changes of a transaction with a torn commit
        // block may exist or be missing.
        let held = same(&theirs, seen).or_else(|fault| {
            self.check_tree(&theirs, state.log, state.cut)
                .map_err(|other| format!("{fault}; {other}"))
        });
        held.map_err(|fault| format!("e2fsck: {fault}"))?;
        let (written, _) = rewritten(image)?;
        fsck.clean(&written).map_err(|fault| format!("after ironmap: {fault}"))
    }

    /// Without a journal, ironmap may report faults, but must not panic. A file must exist if it was synced and not changed later. e2fsck
    /// must be able to repair the rest.
    fn check_unjournaled(&self, state: &Crashed<'_>) -> Verdict {
        let Crashed { image, fsck, counts, .. } = state;
        let (seen, repair) = (look(image), state.one_in(state.plan.fsck_one_in));
        if self.is_synced(state.log, state.cut) {
            let (seen, _) = seen?;
            count(&counts.recovered);
            self.check_tree(&seen, state.log, state.cut)?;
            if repair {
                count(&counts.fsck);
                return same(&look(&fsck.recovered(image)?)?.0, &seen);
            }
        } else if repair {
            count(&counts.fsck);
            // A crash can leave a half-written attribute value. e2fsck does not check the checksum of the value, so a read of the value may
            // fail.
            let _ = look(&fsck.repaired(image)?);
        }
        Ok(())
    }

    /// Whether the last sync comes after all writes, in the part of the log before the cut.
    fn is_synced(&self, log: &Log, cut: usize) -> bool {
        let history = &self.of_threads[0];
        for entry in log.entries()[..cut].iter().rev() {
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

/// The number of operations of a thread that returned before a cut of the log.
fn returned(log: &Log, cut: usize, thread: usize) -> usize {
    let numbers = log.marks(cut).filter_map(|mark| {
        let number = mark.checked_sub(ours::mark(thread, 0))?;
        u32::try_from(number).ok()
    });
    numbers.max().unwrap_or(0) as usize
}

/// The kernel recovers the same tree as ironmap. On the volume that ironmap has recovered, the kernel sees the same tree too.
fn by_kernel(state: &Crashed<'_>, seen: &Tree) -> Verdict {
    let image = &state.image;
    count(&state.counts.mounted);
    same(&kernel::look(image)?, seen).map_err(|fault| format!("the kernel: {fault}"))?;
    let (written, _) = rewritten(image)?;
    same(&kernel::look(&written)?, seen)
        .map_err(|fault| format!("the kernel, after ironmap: {fault}"))
}

/// A recovery that writes to the device gives the same tree as a recovery in memory, even if a crash interrupts the recovery at any point.
fn interrupted(state: &Crashed<'_>, seen: &Tree) -> Verdict {
    let image = &state.image;
    let (written, log) = rewritten(image)?;
    same(&look(&written)?.0, seen).map_err(|fault| format!("opened for writing: {fault}"))?;
    let mut crashes = Crashes::new(image, log).with_atomic(SUPERBLOCK);
    for name in crashes.names(0, state.plan.random) {
        count(&state.counts.interrupted);
        let found = look(&crashes.state(name)).and_then(|(tree, _)| same(&tree, seen));
        found.map_err(|fault| format!("recovery interrupted, state {name}: {fault}"))?;
    }
    Ok(())
}

/// Checks that two trees, from two ways of recovery, are equal.
pub(crate) fn same(tree: &Tree, expected: &Tree) -> Verdict {
    let differs = |path: &&String| tree.get(*path) != expected.get(*path);
    match tree.keys().chain(expected.keys()).find(differs) {
        None => Ok(()),
        Some(path) => Err(format!("{path} is {:?}, not {:?}", tree.get(path), expected.get(path))),
    }
}

/// Lets ironmap recover the volume to the device and close it. Returns the volume, and the log of all writes of the recovery and the close.
pub(crate) fn rewritten(image: &Ram) -> Result<(Ram, Log), String> {
    let device = Arc::new(image.snapshot());
    let record = Arc::new(Record::new(device.clone()));
    let volume = Volume::writable_on(record.clone(), ours::CLOCK);
    let closed = volume.and_then(|volume| volume.close());
    closed.map_err(|error| format!("opened for writing: {error}"))?;
    Ok((device.snapshot(), record.log()))
}

/// The tree of a volume, and whether its journal had to be replayed. This function writes nothing to the device.
pub(crate) fn look(image: &Ram) -> Result<(Tree, bool), String> {
    let volume = Volume::on(Arc::new(image.snapshot())).map_err(|error| error.to_string())?;
    let recovered = matches!(volume.ext4().unwrap().journal().state, JournalState::Recovered(_));
    let tree = tree(&volume).map_err(|error| error.to_string())?;
    Ok((tree, recovered))
}
