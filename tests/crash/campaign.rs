//! Every crash state of a workload, opened by ironmap and checked by e2fsck.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ironmap::Volume;
use ironmap::device::{CrashState, Crashes, Log, Ram};
use ironmap::fs::ext4::JournalState;
use ironmap::units::DevOffset;

use crate::fsck::Fsck;
use crate::history::History;
use crate::seen::{Tree, tree};

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
}

/// What a campaign has looked at.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) states: AtomicUsize,
    pub(crate) recovered: AtomicUsize,
    pub(crate) fsck: AtomicUsize,
}

impl Case {
    /// Looks at states of the workload's log, as many as the plan allows.
    ///
    /// # Errors
    /// The first state that breaks a rule, by its name, and what is wrong. It is kept as an image to look at.
    pub(crate) fn check(&self, seed: u64, plan: Plan, counts: &Counts) -> Verdict {
        let all = Crashes::new(&self.base, self.log.clone()).names(seed, plan.random);
        let stride = all.len().div_ceil(plan.limit).max(1);
        let names: Vec<_> = all.into_iter().skip(seed as usize % stride).step_by(stride).collect();
        std::thread::scope(|scope| {
            let parts = names.chunks(names.len().div_ceil(THREADS).max(1));
            let threads: Vec<_> =
                parts.map(|part| scope.spawn(|| self.check_states(part, plan, counts))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a thread"))
        })
    }

    fn check_states(&self, names: &[CrashState], plan: Plan, counts: &Counts) -> Verdict {
        let crashes = Crashes::new(&self.base, self.log.clone());
        let mut crashes = crashes.with_atomic(SUPERBLOCK);
        let fsck = Fsck::new();
        for (index, name) in names.iter().enumerate() {
            let image = crashes.state(*name);
            let fsck = index.is_multiple_of(plan.fsck_one_in).then_some(&fsck);
            let returned = self.log.marks(name.cut).max().unwrap_or(0) as usize;
            self.check_state(&image, returned, fsck, counts).map_err(|fault| {
                let kept = keep(&self.name, *name, &image);
                let under_way = self.history.ops.get(returned);
                let what = format!("{}, state {name}, during {under_way:?}", self.name);
                format!("{what}: {fault}\nkept as {}", kept.display())
            })?;
        }
        Ok(())
    }

    fn check_state(
        &self,
        image: &Ram,
        returned: usize,
        fsck: Option<&Fsck>,
        counts: &Counts,
    ) -> Verdict {
        let (seen, recovered) = look(image)?;
        self.history.check(&seen, returned)?;
        counts.states.fetch_add(1, Ordering::Relaxed);
        counts.recovered.fetch_add(usize::from(recovered), Ordering::Relaxed);
        let Some(fsck) = fsck else { return Ok(()) };
        counts.fsck.fetch_add(1, Ordering::Relaxed);
        // Two programs recover the same.
        let (by_e2fsck, _) = look(&fsck.recovered(image)?)?;
        if by_e2fsck == seen {
            return Ok(());
        }
        let differs = |path: &&String| by_e2fsck.get(*path) != seen.get(*path);
        let path = by_e2fsck.keys().chain(seen.keys()).find(differs);
        Err(format!("e2fsck recovers something else: {path:?}"))
    }
}

/// What is on a volume, and whether its journal was recovered for that. Nothing is written.
pub(crate) fn look(image: &Ram) -> Result<(Tree, bool), String> {
    let volume = Volume::on(Arc::new(image.snapshot())).map_err(|error| error.to_string())?;
    let recovered = matches!(volume.fs().journal().state, JournalState::Recovered(_));
    let tree = tree(&volume).map_err(|error| error.to_string())?;
    Ok((tree, recovered))
}

fn keep(case: &str, state: CrashState, image: &Ram) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = dir.join(format!("crash-{case}-{state}.img").replace([' ', ':', ','], "-"));
    image.store(&File::create(&path).expect("a file")).expect("store the image");
    path
}
