//! Computes the possible states of a device after a power cut, from the initial content of the device and a [`Log`] of the requests.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::sim::mix;
use super::{Device, Entry, Log, Ram};
use crate::error::{Error, Result};
use crate::units::DevOffset;

/// The name of one state of a device after a power cut. The same base, log and name always produce the same state. The text form of a name
/// is `seed:cut:subset`, in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CrashState {
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of entries of the log before the power cut.
    pub cut: usize,
    /// Selects which of the writes that were not durable are present anyway. 0 selects none of these writes, 1 selects all, and any other
    /// number selects at random.
    pub subset: u32,
}

impl fmt::Display for CrashState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}:{:x}", self.seed, self.cut, self.subset)
    }
}

impl FromStr for CrashState {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers: Option<Vec<_>> =
            text.split(':').map(|number| u64::from_str_radix(number, 16).ok()).collect();
        match numbers.as_deref() {
            Some(&[seed, cut, subset]) if u32::try_from(subset).is_ok() => {
                Ok(Self { seed, cut: cut as usize, subset: subset as u32 })
            }
            _ => Err(Error::invalid(format!("{text} is not seed:cut:subset in hexadecimal"))),
        }
    }
}

/// The states that a device can have after a crash.
///
/// Every write that was durable at the power cut is present. A write with [FUA](Entry::Write::fua) is durable when it is acknowledged. Any
/// other write or discard becomes durable with the first acknowledged flush that was issued after its acknowledgement. A write that is not
/// durable can be present completely, in part or not at all. It can be torn between logical blocks of the device. On a device without a
/// volatile cache, every acknowledged write is durable. A failed write never becomes durable. If a flush fails, the writes that it covers
/// never become durable, even after later flushes.
#[derive(Debug)]
pub struct Crashes {
    base: Ram,
    log: Log,
    atomic: Vec<Atomic>,
    /// `fates` describes the log up to the most recently requested cut. `durable` is the base plus all changes that later entries cannot
    /// undo.
    fates: Fates,
    durable: Ram,
}

impl Crashes {
    /// Creates the states of a device that contained `base` when the log began. The device has the limits of `base`.
    #[must_use]
    pub fn new(base: &Ram, log: Log) -> Self {
        let fates = Fates::new(base.limits().volatile_cache);
        Self { base: base.snapshot(), log, atomic: Vec::new(), fates, durable: base.snapshot() }
    }

    /// Adds a range that the device writes atomically: each write to the range is present completely or not at all. One example is the ext4
    /// superblock: it has 1024 bytes and one checksum, and Linux does not mount a volume with a torn superblock.
    #[must_use]
    pub fn with_atomic(self, range: Range<DevOffset>) -> Self {
        self.with_atomic_blocks(range, u64::MAX)
    }

    /// Adds a range in which the device writes each block of `block` bytes atomically. One example is XFS metadata, because XFS does not
    /// recover a torn block. If a block is in several ranges, the first range applies.
    #[must_use]
    pub fn with_atomic_blocks(mut self, range: Range<DevOffset>, block: u64) -> Self {
        let unit = u64::from(self.base.limits().logical_block);
        let sectors = range.start.0 / unit..range.end.0.div_ceil(unit);
        self.atomic.push(Atomic { sectors, block: (block / unit).max(1) });
        self
    }

    /// The log of the requests to the device.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Returns the names of several states for every cut of the log. The states of one cut differ in the writes that are not durable: one
    /// state contains none of these writes, one contains all of them, and `random` states contain a random selection. If all writes before
    /// a cut were durable, the cut has only one state. If consecutive cuts allow the same states, only the last of these cuts gets names,
    /// because the application has made the most progress there.
    #[must_use]
    pub fn names(&self, seed: u64, random: u32) -> Vec<CrashState> {
        let mut fates = Fates::new(self.base.limits().volatile_cache);
        let mut cuts = vec![(0, 1)];
        for entry in self.log.entries() {
            if !fates.follow(entry) {
                cuts.pop();
            }
            while fates.pop_durable().is_some() {}
            let subsets = if fates.all_durable() { 1 } else { random.saturating_add(2) };
            cuts.push((fates.cut, subsets));
        }
        let names =
            |(cut, subsets)| (0..subsets).map(move |subset| CrashState { seed, cut, subset });
        cuts.into_iter().flat_map(names).collect()
    }

    /// Returns the content of the device in the named state. Log entries after the power cut do not affect this content. A sequence of
    /// calls is fastest if their cuts are in ascending order.
    pub fn state(&mut self, name: CrashState) -> Ram {
        let cut = name.cut.min(self.log.len());
        if cut < self.fates.cut {
            self.fates = Fates::new(self.base.limits().volatile_cache);
            self.durable = self.base.snapshot();
        }
        for entry in &self.log.entries()[self.fates.cut..cut] {
            self.fates.follow(entry);
            while let Some(durable) = self.fates.pop_durable() {
                apply(&self.durable, &self.log.entries()[durable], |_| true);
            }
        }
        let image = self.durable.snapshot();
        let seed = mix(mix(name.seed, cut as u64), u64::from(name.subset));
        for request in &self.fates.open {
            let entry = &self.log.entries()[request.entry];
            match (request.fate, name.subset) {
                (Fate::Durable, _) | (_, 1) => apply(&image, entry, |_| true),
                (_, 0) => {}
                _ => apply(&image, entry, some(seed, request.entry as u64, &self.atomic)),
            }
        }
        image
    }
}

/// A range whose blocks are written atomically. Positions are in logical blocks of the device.
#[derive(Debug)]
struct Atomic {
    sectors: Range<u64>,
    block: u64,
}

impl Atomic {
    /// The first sector of the block that contains `sector`. The sectors of a block are present or absent together.
    fn first(&self, sector: u64) -> Option<u64> {
        let (start, block) = (self.sectors.start, self.block);
        self.sectors.contains(&sector).then(|| start + (sector - start) / block * block)
    }
}

/// Selects sectors of a request at random: usually all or none, and sometimes some of them. The state's seed determines the proportion of
/// requests that are kept: most, about half, or only a few.
fn some(state: u64, entry: u64, atomic: &[Atomic]) -> impl Fn(u64) -> bool {
    let seed = mix(state, entry);
    let kept = mix(seed, 0) % 8 < [1, 4, 7][(state % 3) as usize];
    let torn = mix(seed, 1).is_multiple_of(4);
    move |sector| {
        let sector = atomic.iter().find_map(|atomic| atomic.first(sector)).unwrap_or(sector);
        if torn { mix(seed, 2 + sector).is_multiple_of(2) } else { kept }
    }
}

/// Writes those sectors of a request to an image for which `kept` returns true.
fn apply(image: &Ram, entry: &Entry, kept: impl Fn(u64) -> bool) {
    let (at, len) = match entry {
        Entry::Write { at, data, .. } => (*at, data.len() as u64),
        Entry::Discard { at, len } => (*at, *len),
        Entry::Flush | Entry::End { .. } | Entry::Mark(_) => return,
    };
    let unit = u64::from(image.limits().logical_block);
    let (first, sectors) = (at.0 / unit, len.div_ceil(unit));
    let mut from = 0;
    while from < sectors {
        let reaches = kept(first.saturating_add(from));
        let same = |sector: &u64| kept(first.saturating_add(*sector)) == reaches;
        let run = (from..sectors).take_while(same).count() as u64;
        if reaches {
            let (start, end) = (from * unit, ((from + run) * unit).min(len));
            let place = DevOffset(at.0.saturating_add(start));
            // The log also contains writes past the device's end, which the device refused. The image refuses these writes too, so the code
            // ignores errors.
            let _ = match entry {
                Entry::Write { data, .. } => image.put(&data[start as usize..end as usize], place),
                _ => image.discard(place, end - start).map_err(|error| error.errno()),
            };
        }
        from += run;
    }
}

/// The state of a write or discard at a cut of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The request was issued, but not yet acknowledged.
    Issued,
    /// The log entry with this index acknowledged the request. A flush that is issued after this entry makes the request durable.
    Acknowledged(usize),
    /// All data of the request are durable.
    Durable,
    /// The request failed, or a flush that covered it failed. Any part of its data may be present, even after later flushes.
    Doubtful,
}

#[derive(Debug)]
struct Open {
    /// The index of the log entry that issued the request.
    entry: usize,
    fua: bool,
    fate: Fate,
}

/// Follows a log and records the state of each write and discard.
#[derive(Debug)]
struct Fates {
    volatile_cache: bool,
    /// The number of log entries that were processed.
    cut: usize,
    /// The writes and discards in log order, beginning with the oldest request that is not durable.
    open: VecDeque<Open>,
}

impl Fates {
    fn new(volatile_cache: bool) -> Self {
        Self { volatile_cache, cut: 0, open: VecDeque::new() }
    }

    /// Applies the next entry. Returns whether the entry changes the set of contents that the device may have.
    fn follow(&mut self, entry: &Entry) -> bool {
        let index = self.cut;
        self.cut += 1;
        match *entry {
            Entry::Write { fua, .. } => {
                self.open.push_back(Open { entry: index, fua, fate: Fate::Issued });
                true
            }
            Entry::Discard { .. } => {
                self.open.push_back(Open { entry: index, fua: false, fate: Fate::Issued });
                true
            }
            Entry::End { of, ok } => match self.open.binary_search_by_key(&of, |open| open.entry) {
                Ok(place) => self.end(place, index, ok),
                Err(_) => self.end_flush(of, ok),
            },
            Entry::Flush | Entry::Mark(_) => false,
        }
    }

    fn end(&mut self, place: usize, index: usize, ok: bool) -> bool {
        let open = &mut self.open[place];
        open.fate = match ok {
            false => Fate::Doubtful,
            true if open.fua || !self.volatile_cache => Fate::Durable,
            true => Fate::Acknowledged(index),
        };
        open.fate == Fate::Durable
    }

    fn end_flush(&mut self, flush: usize, ok: bool) -> bool {
        let mut changed = false;
        for open in &mut self.open {
            if matches!(open.fate, Fate::Acknowledged(at) if at < flush) {
                open.fate = if ok { Fate::Durable } else { Fate::Doubtful };
                changed |= ok;
            }
        }
        changed
    }

    /// Removes the oldest request if it is durable. From then on, only an overwrite can change its data.
    fn pop_durable(&mut self) -> Option<usize> {
        let durable = self.open.front().is_some_and(|open| open.fate == Fate::Durable);
        durable.then(|| self.open.pop_front())?.map(|open| open.entry)
    }

    fn all_durable(&self) -> bool {
        self.open.iter().all(|open| open.fate == Fate::Durable)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SECTORS: u64 = 24;
    const SECTOR: usize = 512;

    fn sectors(ram: &Ram) -> Vec<u8> {
        let mut bytes = vec![0; SECTORS as usize * SECTOR];
        ram.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
        let fill = |sector: &[u8]| {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
            sector[0]
        };
        bytes.chunks(SECTOR).map(fill).collect()
    }

    fn base() -> Ram {
        Ram::from_image(&[0xBA; SECTORS as usize * SECTOR])
    }

    fn write(at: u64, sectors: u64, fill: u8, fua: bool) -> Entry {
        let data = vec![fill; sectors as usize * SECTOR].into();
        Entry::Write { at: DevOffset(at * SECTOR as u64), data, fua }
    }

    fn end(of: usize) -> Entry {
        Entry::End { of, ok: true }
    }

    /// Random requests. Up to three are in flight at the same time, and some of them fail.
    fn random_log(seed: u64, len: usize) -> Log {
        let mut entries = Vec::new();
        let mut flying = Vec::new();
        for step in 0..len as u64 {
            let random = mix(seed, step);
            if flying.len() == 3 || (!flying.is_empty() && random.is_multiple_of(2)) {
                let of = flying.remove(mix(random, 1) as usize % flying.len());
                entries.push(Entry::End { of, ok: !mix(random, 2).is_multiple_of(16) });
                continue;
            }
            let (at, fill) = (mix(random, 3) % SECTORS, (step % 180) as u8 + 1);
            let count = 1 + mix(random, 4) % (SECTORS - at).min(5);
            flying.push(entries.len());
            entries.push(match mix(random, 5) % 8 {
                0 | 1 => Entry::Flush,
                2 => {
                    Entry::Discard { at: DevOffset(at * SECTOR as u64), len: count * SECTOR as u64 }
                }
                3 => write(at, count, fill, true),
                _ => write(at, count, fill, false),
            });
        }
        entries.into_iter().collect()
    }

    /// Computes the permitted contents of each sector directly from the rules: the last write that must be present, and each later write
    /// that may be present.
    fn allowed(log: &Log, cut: usize) -> Vec<Vec<u8>> {
        let entries = &log.entries()[..cut];
        let acknowledged = |of: usize, before: usize| {
            let is_end = |entry: &Entry| *entry == Entry::End { of, ok: true };
            entries[..before].iter().position(is_end)
        };
        let durable = |of: usize| {
            let Some(at) = acknowledged(of, cut) else { return false };
            if matches!(entries[of], Entry::Write { fua: true, .. }) {
                return true;
            }
            // If several flushes cover the write, the flush that ends first determines whether the write is durable.
            let decided = entries.iter().find_map(|entry| match *entry {
                Entry::End { of, ok } if entries[of] == Entry::Flush && of > at => Some(ok),
                _ => None,
            });
            decided == Some(true)
        };
        let mut sectors = vec![vec![0xBA]; SECTORS as usize];
        for (of, entry) in entries.iter().enumerate() {
            let (at, len, fill) = match entry {
                Entry::Write { at, data, .. } => (at.0, data.len() as u64, data[0]),
                Entry::Discard { at, len } => (at.0, *len, 0),
                _ => continue,
            };
            for sector in at / SECTOR as u64..(at + len) / SECTOR as u64 {
                let values = &mut sectors[sector as usize];
                if durable(of) {
                    values.clear();
                }
                values.push(fill);
            }
        }
        sectors
    }

    /// In every state of a random log, each sector has a content that the rules allow. Over all states, nearly every allowed content
    /// occurs.
    #[test]
    fn states_hold_what_was_durable_and_any_part_of_the_rest() {
        for seed in 0..20 {
            let log = random_log(seed, 60);
            let mut crashes = Crashes::new(&base(), log.clone());
            let mut seen = vec![BTreeSet::new(); SECTORS as usize];
            let mut possible = seen.clone();
            for name in crashes.names(seed, 60) {
                let sectors = sectors(&crashes.state(name));
                let allowed = allowed(&log, name.cut);
                for (sector, (fill, allowed)) in sectors.iter().zip(&allowed).enumerate() {
                    assert!(allowed.contains(fill), "{name}: sector {sector}: {fill}");
                    match name.subset {
                        0 => assert_eq!(*fill, allowed[0], "{name}: sector {sector}"),
                        1 => assert_eq!(fill, allowed.last().unwrap(), "{name}: sector {sector}"),
                        _ => {}
                    }
                    seen[sector].insert((name.cut, *fill));
                    possible[sector].extend(allowed.iter().map(|fill| (name.cut, *fill)));
                }
            }
            let count = |sets: &[BTreeSet<_>]| sets.iter().map(BTreeSet::len).sum::<usize>();
            let (seen, possible) = (count(&seen), count(&possible));
            assert!(seen * 100 > possible * 95, "seed {seed}: {seen} of {possible} values");
        }
    }

    /// A write in flight can be torn at any of its sectors.
    #[test]
    fn writes_are_torn() {
        let log = [write(0, 3, 7, false)].into_iter().collect();
        let mut crashes = Crashes::new(&base(), log);
        let states: BTreeSet<_> = crashes
            .names(1, 200)
            .into_iter()
            .map(|name| sectors(&crashes.state(name))[..3].to_vec())
            .collect();
        assert_eq!(states.len(), 8, "{states:?}");
    }

    /// A write is not torn within a range that was added as atomic. In this test, only the second and third sectors of the write are in
    /// such a range.
    #[test]
    fn an_atomic_write_is_not_torn() {
        let log = [write(10, 4, 7, false)].into_iter().collect();
        let bytes = |sector: u64| DevOffset(sector * SECTOR as u64);
        let mut crashes = Crashes::new(&base(), log).with_atomic(bytes(11)..bytes(13));
        let states: BTreeSet<_> = crashes
            .names(1, 200)
            .into_iter()
            .map(|name| sectors(&crashes.state(name))[10..14].to_vec())
            .collect();
        assert_eq!(states.len(), 8, "{states:?}");
        assert!(states.iter().all(|sectors| sectors[1] == sectors[2]), "{states:?}");
    }

    #[test]
    fn atomic_blocks_are_torn_only_between_them() {
        let log = [write(9, 5, 7, false)].into_iter().collect();
        let bytes = |sector: u64| DevOffset(sector * SECTOR as u64);
        let crashes = Crashes::new(&base(), log);
        let mut crashes = crashes.with_atomic_blocks(bytes(8)..bytes(SECTORS), 2 * SECTOR as u64);
        let states: BTreeSet<_> = crashes
            .names(1, 200)
            .into_iter()
            .map(|name| sectors(&crashes.state(name))[8..14].to_vec())
            .collect();
        assert_eq!(states.len(), 8, "{states:?}");
        let is_whole = |sectors: &Vec<u8>| sectors[2..].chunks(2).all(|pair| pair[0] == pair[1]);
        assert!(states.iter().all(is_whole), "{states:?}");
    }

    /// A name alone reproduces its state, regardless of the order in which states are requested.
    #[test]
    fn a_name_gives_its_state_again() {
        let mut crashes = Crashes::new(&base(), random_log(3, 80));
        let names = crashes.names(9, 4);
        let states: Vec<_> = names.iter().map(|name| sectors(&crashes.state(*name))).collect();
        for (name, state) in names.iter().zip(&states).rev() {
            let name: CrashState = name.to_string().parse().unwrap();
            assert_eq!(sectors(&crashes.state(name)), *state, "{name}");
        }
        for wrong in ["", "1:2", "1:2:3:4", "1:2:x", "1:2:100000000"] {
            assert!(wrong.parse::<CrashState>().is_err(), "{wrong}");
        }
    }

    /// If consecutive cuts have the same states, only the last of these cuts is named. In this test, the marks, the acknowledgement of the
    /// write and the start of the flush do not change the set of states.
    #[test]
    fn of_cuts_with_the_same_states_the_last_is_named() {
        let mark = Entry::Mark(5);
        let log = [mark.clone(), write(0, 1, 1, false), end(1), Entry::Flush, end(3), mark];
        let crashes = Crashes::new(&base(), log.into_iter().collect());
        let names: Vec<_> =
            crashes.names(0, 1).into_iter().map(|name| (name.cut, name.subset)).collect();
        assert_eq!(names, [(1, 0), (4, 0), (4, 1), (4, 2), (6, 0)]);
    }

    /// On a device without a volatile cache, an acknowledged write is durable. A write is torn only between logical blocks of the device.
    #[test]
    fn limits_are_those_of_the_base() {
        let limits =
            crate::device::Limits { volatile_cache: false, logical_block: 4096, ..Ram::LIMITS };
        let base = Ram::new(SECTORS * SECTOR as u64).with_limits(limits);
        let log = [write(0, 8, 1, false), end(0), write(8, 16, 2, false)].into_iter().collect();
        let mut crashes = Crashes::new(&base, log);
        for name in crashes.names(0, 20) {
            let sectors = sectors(&crashes.state(name));
            let halves = [&sectors[..8], &sectors[8..16], &sectors[16..]];
            assert!(halves.iter().all(|half| half.iter().all(|fill| fill == &half[0])));
            assert!(name.cut < 2 || sectors[0] == 1, "{name}");
        }
    }
}
