//! The requests that the tests send both to the kernel and to ironmap.

use crate::common::ranges::pieces;
use crate::common::rng::Rng;
use ironmap::dio::DioFlags;

/// The maximum size of a file.
pub(super) const LARGEST: u64 = 1 << 20;
pub(super) const SECTOR: u64 = 512;

/// A write that is sent both to the kernel and to ironmap.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) pos: u64,
    /// The distance of the memory from an aligned address, in bytes.
    pub(super) offset: usize,
    pub(super) pieces: Vec<usize>,
    pub(super) flags: DioFlags,
    pub(super) append: bool,
    /// Whether the request to ironmap owns its memory. If `false`, the request borrows its memory.
    pub(super) owned: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Write(Write),
    Truncate(u64),
    Punch(u64, u64),
    Allocate { pos: u64, len: u64, keep_size: bool },
    Zero(u64, u64),
    Sync,
}

impl Write {
    /// A write that both the kernel and ironmap must accept, whatever the file contains.
    pub(super) fn plain(pos: u64, len: u64) -> Self {
        let flags = DioFlags::empty();
        Self { pos, offset: 0, pieces: vec![len as usize], flags, append: false, owned: false }
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.iter().sum()
    }

    pub(super) fn is_nowait(&self) -> bool {
        self.flags.contains(DioFlags::NOWAIT)
    }

    /// Whether the position and the lengths are multiples of a sector, and every driver accepts the address.
    pub(super) fn is_aligned(&self) -> bool {
        let whole = |piece: &usize| piece.is_multiple_of(SECTOR as usize);
        self.pos.is_multiple_of(SECTOR)
            && self.offset.is_multiple_of(SECTOR as usize)
            && self.pieces.iter().all(whole)
    }

    fn random(rng: &mut Rng, size: u64) -> Self {
        let units = [SECTOR, SECTOR, 1024, 4096, 4096];
        let unit = units[rng.below(units.len() as u64) as usize];
        let odd = |rng: &mut Rng| match rng.below(12) {
            0 => [1, 4, 100, 256][rng.below(4) as usize],
            _ => 0,
        };
        let near = match rng.below(5) {
            0 => size,
            1 => size + rng.below(40_000),
            _ => rng.below(size + 1),
        };
        let pos = near.min(LARGEST) / unit * unit + odd(rng);
        let longest = [1, 4, 20, 200][rng.below(4) as usize];
        let len = match rng.below(40) {
            0 => 0,
            _ => ((1 + rng.below(longest)) * unit + odd(rng)).min(100 << 10) as usize,
        };
        let pieces = match rng.below(3) {
            0 => pieces(rng, len, SECTOR as usize),
            _ => vec![len],
        };
        let flags = match rng.below(16) {
            0 | 1 => DioFlags::DSYNC,
            2 => DioFlags::SYNC,
            3 => DioFlags::HIPRI,
            4 => DioFlags::DSYNC | DioFlags::NOWAIT,
            5..8 => DioFlags::NOWAIT,
            _ => DioFlags::empty(),
        };
        let append = rng.below(12) == 0 && size < LARGEST;
        let pos = if append { size } else { pos };
        Self { pos, offset: odd(rng) as usize, pieces, flags, append, owned: rng.below(2) == 0 }
    }
}

impl Step {
    pub(super) fn random(rng: &mut Rng, size: u64) -> Self {
        let range = |rng: &mut Rng| {
            let pos = rng.below(size.min(LARGEST) + 10_000);
            let longest = [5000, 50_000, 300_000][rng.below(3) as usize];
            (pos, 1 + rng.below(longest))
        };
        match rng.below(100) {
            0..72 => Self::Write(Write::random(rng, size)),
            72..76 => Self::Truncate(rng.below(size + 20_000).min(LARGEST)),
            76..84 => {
                let (pos, len) = range(rng);
                Self::Punch(pos, len)
            }
            84..92 => {
                let (pos, len) = range(rng);
                Self::Allocate { pos, len, keep_size: rng.below(2) == 0 }
            }
            92..94 => {
                let (pos, len) = range(rng);
                Self::Zero(pos, len)
            }
            _ => Self::Sync,
        }
    }
}
