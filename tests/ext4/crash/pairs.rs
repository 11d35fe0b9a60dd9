//! Tests every ordered pair of operations, both in one transaction and with a sync between the two.

use ironmap::device::{Device, Ram};

use crate::common::beneath::tail;
use crate::common::rng::Rng;
use crate::crash::Case;
use crate::crash::generator::{KINDS, Kind, Style, choose, push_any, workload};
use crate::crash::history::History;
use crate::crash::op::Op;
use crate::crash::{ours, volume};

/// The number of operations that fill the volume before the pair of operations under test. A larger number would make more files.
const BEFORE: usize = 70;
/// The maximum number of attempts to choose an operation of one kind. After that many failures, the kind counts as impossible.
const TRIES: usize = 60;

/// All ordered pairs of the kinds of operations that change the volume.
pub(crate) fn all() -> Vec<(Kind, Kind)> {
    let kinds = || {
        let kinds = KINDS.iter().map(|(kind, _)| *kind);
        kinds.filter(|kind| !matches!(kind, Kind::Fsync | Kind::Sync))
    };
    kinds().flat_map(|first| kinds().map(move |second| (first, second))).collect()
}

/// A volume on which pairs of operations are tested.
pub(crate) struct Start {
    format: &'static str,
    /// The content of the device: the volume, and the tags of an integrity device below it, if the test uses one.
    base: Ram,
    /// The size of the volume.
    size: u64,
    history: History,
}

impl Start {
    pub(crate) fn new(seed: u64, format: &'static str) -> Self {
        let stale = volume::stale("12M", format);
        let base = tail::tagged(&stale);
        let style = style(seed, format);
        let mut history = workload(seed, BEFORE, style);
        // The volume is closed before a pair, so the removed files that are still open are closed too.
        while history.held() > 0 {
            history.push(Op::LetGo);
        }
        history.push(Op::Sync);
        let mut crashes = ironmap::device::Crashes::new(
            &base,
            ours::record(&base, &history, 0..history.ops.len()),
        );
        let end = *crashes.names(seed, 0).last().expect("a state");
        Self { format, base: crashes.state(end), size: stale.size(), history }
    }

    /// The workload of a pair. `None` if an operation of the pair is impossible on this volume.
    pub(crate) fn case(&self, seed: u64, (first, second): (Kind, Kind)) -> Option<Case> {
        let mut rng = Rng::new(seed);
        let style = style(seed, self.format);
        let synced = rng.below(2) == 0;
        let mut before = self.history.clone();
        let start = before.ops.len();
        for _ in 0..TRIES {
            let mut history = before.clone();
            let mut push = |kind| {
                let op = (0..TRIES).find_map(|_| choose(kind, &mut rng, &history, style))?;
                history.push(op);
                Some(())
            };
            if push(first).is_some()
                && (!synced || push(Kind::Sync).is_some())
                && push(second).is_some()
            {
                let log = ours::record(&self.base, &history, start..history.ops.len());
                let name = format!("{first:?} and {second:?}, {}, seed {seed}", self.format);
                let case = Case::new(name, self.base.snapshot(), log, history);
                return Some(Case { volume: Some(self.size), ..case });
            }
            // The operations before the pair are synced, so that the transaction contains only the pair.
            push_any(&mut rng, &mut before, style);
            if !matches!(before.ops.last(), Some(Op::Sync)) {
                before.push(Op::Sync);
            }
        }
        None
    }
}

/// In every third volume, directories grow.
fn style(seed: u64, format: &str) -> Style {
    let style = Style::of(format);
    if seed.is_multiple_of(3) { style.growing() } else { style }
}
