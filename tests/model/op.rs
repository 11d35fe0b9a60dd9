//! The operations, and how they are chosen at random. There are few names, so several operations often affect the same file.

use crate::common::rng::Rng;

/// A path of at most three names.
pub(crate) type Path = Vec<&'static str>;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create(Path, u32),
    Mkdir(Path, u32),
    Symlink(Path, usize),
    Fifo(Path),
    Unlink(Path),
    Rmdir(Path),
    Link(Path, Path),
    Rename(Path, Path, Renaming),
    Write(Path, u64, usize, u8),
    Truncate(Path, u64),
    Fallocate(Path, Space, u64, u64),
    Chmod(Path, u32),
    Chown(Path, u32, u32),
    SetXattr(Path, &'static str, usize, u8),
    RemoveXattr(Path, &'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renaming {
    Plain,
    NoReplace,
    Exchange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Allocate,
    KeepSize,
    Punch,
    Zero,
    Collapse,
    Insert,
}

/// A common multiple of all block sizes and cluster sizes. COLLAPSE_RANGE and INSERT_RANGE accept only lengths that are multiples of these
/// sizes.
pub(crate) const UNIT: u64 = 16384;

const NAMES: [&str; 6] = [
    "a",
    "b",
    "c",
    "a name that is longer than the others, so that a block of a directory is full sooner than with short ones",
    "e",
    "F",
];
const XATTRS: [&str; 4] =
    ["user.a", "user.colour", "trusted.x", "user.a-long-name-of-an-attribute"];

fn path(rng: &mut Rng) -> Path {
    let depth = 1 + rng.below(3);
    (0..depth).map(|_| NAMES[rng.below(NAMES.len() as u64) as usize]).collect()
}

impl Op {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let first = path(rng);
        match rng.below(32) {
            0..=4 => Self::Create(first, rng.below(0o1000) as u32),
            5..=9 => Self::Mkdir(first, rng.below(0o1000) as u32 | 0o700),
            10 => Self::Symlink(first, 1 + rng.below(200) as usize),
            11 => Self::Fifo(first),
            12..=13 => Self::Unlink(first),
            14 => Self::Rmdir(first),
            15 => Self::Link(first, path(rng)),
            16..=18 => {
                let how = [Renaming::Plain, Renaming::NoReplace, Renaming::Exchange];
                Self::Rename(first, path(rng), how[rng.below(3) as usize])
            }
            19..=22 => {
                let pos = if rng.below(2) == 0 { rng.below(5000) } else { rng.below(300_000) };
                let most = if rng.below(3) == 0 { 100_000 } else { 3000 };
                let len = 1 + rng.below(most);
                Self::Write(first, pos, len as usize, rng.below(256) as u8)
            }
            23..=24 => Self::Truncate(first, rng.below(400_000)),
            25..=26 => {
                let how = [Space::Allocate, Space::KeepSize, Space::Punch, Space::Zero];
                let shift = [Space::Collapse, Space::Insert];
                if rng.below(3) == 0 {
                    let odd = u64::from(rng.below(16) == 0);
                    let (pos, len) = (rng.below(12) * UNIT + odd, (1 + rng.below(4)) * UNIT);
                    return Self::Fallocate(first, shift[rng.below(2) as usize], pos, len);
                }
                let how = how[rng.below(4) as usize];
                Self::Fallocate(first, how, rng.below(300_000), 1 + rng.below(100_000))
            }
            27 => Self::Chmod(first, rng.below(0o1000) as u32),
            28 => Self::Chown(first, rng.below(100_000) as u32, rng.below(100_000) as u32),
            29..=30 => {
                let len = [0, 10, 100, 180][rng.below(4) as usize];
                Self::SetXattr(first, XATTRS[rng.below(4) as usize], len, rng.below(256) as u8)
            }
            _ => Self::RemoveXattr(first, XATTRS[rng.below(4) as usize]),
        }
    }
}

/// A target of this length for a symbolic link. No file with this name exists.
pub(crate) fn target(len: usize) -> Vec<u8> {
    (0..len).map(|at| b'p' + (at % 9) as u8).collect()
}
