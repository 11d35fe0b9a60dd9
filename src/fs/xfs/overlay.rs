//! Sectors that the log's recovery changed, in memory.

use std::collections::BTreeMap;
use std::ops::Range;

use super::geometry::BASIC_SHIFT;

/// The length of a sector of the overlay in bytes. Replay rounds the logged parts of buffers to whole sectors.
const SECTOR: u64 = 1 << BASIC_SHIFT;

/// Whether a part of a structure was replayed from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replayed {
    No,
    Yes,
}

/// The sectors that recovery changed, by their numbers on the device.
#[derive(Default)]
pub(crate) struct Overlay(BTreeMap<u64, [u8; SECTOR as usize]>);

impl Overlay {
    /// Replaces bytes that were read from a range of the device with the overlay's sectors in that range. The range must consist of whole
    /// sectors.
    pub(super) fn patch(&self, at: u64, bytes: &mut [u8]) -> Replayed {
        let mut replayed = Replayed::No;
        for (number, sector) in self.0.range(Self::sectors(at, bytes.len())) {
            let from = ((number << BASIC_SHIFT) - at) as usize;
            bytes[from..from + sector.len()].copy_from_slice(sector);
            replayed = Replayed::Yes;
        }
        replayed
    }

    /// Whether the overlay contains sectors in a range of the device.
    pub(super) fn touches(&self, at: u64, len: usize) -> Replayed {
        let any = self.0.range(Self::sectors(at, len)).next().is_some();
        if any { Replayed::Yes } else { Replayed::No }
    }

    /// Stores the sectors of a range of the device.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        let (sectors, _) = bytes.as_chunks();
        for (number, sector) in (at >> BASIC_SHIFT..).zip(sectors) {
            self.0.insert(number, *sector);
        }
    }

    fn sectors(at: u64, len: usize) -> Range<u64> {
        at >> BASIC_SHIFT..(at + len as u64) >> BASIC_SHIFT
    }
}
