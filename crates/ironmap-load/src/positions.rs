//! The workload of a bench, and the position of each request of a thread.

use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The values of `--rw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rw {
    /// Sequential reads of the file.
    Read,
    /// Sequential writes to the file.
    Write,
    /// Reads at random positions.
    Randread,
    /// Writes at random positions.
    Randwrite,
    /// Sequential reads and writes of the file.
    Mixed,
    /// Reads and writes at random positions.
    RandMixed,
}

impl Rw {
    const NAMES: [(Self, &'static str); 6] = [
        (Self::Read, "read"),
        (Self::Write, "write"),
        (Self::Randread, "randread"),
        (Self::Randwrite, "randwrite"),
        (Self::Mixed, "rw"),
        (Self::RandMixed, "randrw"),
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(rw, _)| *rw == self).map_or("", |(_, name)| name)
    }

    pub(crate) fn is_random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite | Self::RandMixed)
    }

    /// Whether some requests are writes.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::Randread)
    }

    /// The percentage of reads. `mixed` is the percentage for a mix of reads and writes.
    pub(crate) fn reads(self, mixed: u8) -> u8 {
        match self {
            Self::Read | Self::Randread => 100,
            Self::Write | Self::Randwrite => 0,
            Self::Mixed | Self::RandMixed => mixed,
        }
    }
}

impl FromStr for Rw {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(rw, _)| *rw).ok_or_else(|| {
            "the work must be read, write, randread, randwrite, rw or randrw".to_owned()
        })
    }
}

/// The file and the position of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    /// The number of the file.
    pub(crate) file: usize,
    pub(crate) at: u64,
    pub(crate) write: bool,
}

/// The sequence of a thread's requests, over all files of a target: the positions, random or sequential, and whether each request is a
/// write.
#[derive(Clone, Debug)]
pub(crate) struct Positions {
    pub(crate) state: u64,
    /// The random state that chooses between reading and writing.
    pub(crate) dice: u64,
    /// The number of requests that fit into each file's range.
    pub(crate) blocks: u64,
    pub(crate) block: u64,
    pub(crate) random: bool,
    /// The start of the first file's range, so that a target with one file needs no lookup.
    pub(crate) base: u64,
    /// The start of each file's range.
    pub(crate) bases: Arc<[u64]>,
}

impl Positions {
    /// The number of requests that fit into all ranges.
    pub(crate) fn total(&self) -> u64 {
        self.blocks * self.bases.len() as u64
    }

    /// The next request in the only file.
    #[inline(always)]
    fn next_in_one(&mut self, write: bool) -> Spot {
        let block = if self.random {
            self.state = xorshift(self.state);
            scaled(self.state, self.blocks)
        } else {
            self.state = (self.state + 1) % self.blocks;
            self.state
        };
        Spot { file: 0, at: self.base + block * self.block, write }
    }

    fn next(&mut self, write: bool) -> Spot {
        if self.bases.len() == 1 {
            return self.next_in_one(write);
        }
        let (file, block) = if self.random {
            self.state = xorshift(self.state);
            // The upper bits choose the block, and the lower bits choose the file.
            let file = scaled(self.state << 32, self.bases.len() as u64);
            (file as usize, scaled(self.state, self.blocks))
        } else {
            self.state = (self.state + 1) % self.total();
            ((self.state / self.blocks) as usize, self.state % self.blocks)
        };
        Spot { file, at: self.bases[file] + block * self.block, write }
    }

    /// The next request. `reads` is the percentage of requests that are reads.
    fn next_mixed(&mut self, reads: u8) -> Spot {
        self.dice = xorshift(self.dice);
        let write = scaled(self.dice, 100) >= u64::from(reads);
        self.next(write)
    }
}

/// A sequence of requests for which the compiler knows the parameters. The loop over a target is compiled separately for each type that
/// implements `Course`, so no request loads these parameters from memory.
pub(crate) trait Course {
    /// Whether there is more than one file.
    const MANY: bool;

    fn next(&mut self) -> Spot;
}

/// One file that is only read, or only written.
pub(crate) struct Uniform<'a, const WRITE: bool>(pub(crate) &'a mut Positions);

impl<const WRITE: bool> Course for Uniform<'_, WRITE> {
    const MANY: bool = false;

    #[inline(always)]
    fn next(&mut self) -> Spot {
        self.0.next_in_one(WRITE)
    }
}

/// Any number of files, with reads and writes. The second field is the percentage of reads.
pub(crate) struct Mix<'a>(pub(crate) &'a mut Positions, pub(crate) u8);

impl Course for Mix<'_> {
    const MANY: bool = true;

    #[inline]
    fn next(&mut self) -> Spot {
        self.0.next_mixed(self.1)
    }
}

#[inline(always)]
fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}

/// Scales a random number to a number below `limit`.
#[inline(always)]
fn scaled(random: u64, limit: u64) -> u64 {
    ((u128::from(random) * u128::from(limit)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(random: bool, bases: &[u64]) -> Positions {
        let (base, bases) = (bases[0], bases.into());
        Positions { state: 7, dice: 7, blocks: 10, block: 512, random, base, bases }
    }

    #[test]
    fn positions_stay_in_the_ranges_and_reach_all_of_them() {
        for (random, bases) in
            [(false, &[0][..]), (true, &[0]), (false, &[0, 8192]), (true, &[0, 8192])]
        {
            let mut positions = positions(random, bases);
            let spots = (0..400).map(|_| positions.next(false));
            let mut seen: Vec<_> = spots.map(|spot| (spot.file, spot.at)).collect();
            seen.sort_unstable();
            seen.dedup();
            let all = bases.iter().enumerate();
            let all =
                all.flat_map(|(file, base)| (0..10).map(move |block| (file, base + block * 512)));
            assert_eq!(seen, all.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_mix_has_its_share_of_reads() {
        let mut positions = positions(true, &[0]);
        for (percent, expected) in [(0, 0..=0), (70, 6_800..=7_200), (100, 10_000..=10_000)] {
            let reads = (0..10_000).filter(|_| !positions.next_mixed(percent).write).count();
            assert!(expected.contains(&reads), "{reads} of {percent} %");
        }
    }
}
