//! Computes and checks the tuples of a device's sectors. A tuple depends on the data and the position of its sector.

use smallvec::SmallVec;

use super::geometry::Info;
use crate::protection::{Interval, Mismatch, Protection, TupleKind};

/// The longest tuple in bytes.
pub(super) const LONGEST: usize = 16;

/// A tuple as it is stored on the device, followed by zeros up to the longest length.
pub(super) type Packed = [u8; LONGEST];

/// Memory for the tuples of one write. The next write reuses it.
#[derive(Debug, Default)]
pub(super) struct Tuples(pub(super) SmallVec<[u8; LONGEST]>);

/// The parameters from which the tag of a sector is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tagging {
    pub(super) protection: Protection,
    /// The base-2 logarithm of the sector size.
    pub(super) shift: u32,
    /// The application tag of every sector. `None` if the application tag is a generation.
    application: Option<u16>,
}

/// Reads a tuple from the beginning of these bytes.
#[inline]
pub(super) fn load(kind: TupleKind, bytes: &[u8]) -> Packed {
    let mut tuple = [0; LONGEST];
    // The lengths are constants, so the compiler generates copies without a function call.
    match kind {
        TupleKind::T10 => tuple[..8].copy_from_slice(&bytes[..8]),
        TupleKind::Nvme64 => tuple.copy_from_slice(&bytes[..16]),
    }
    tuple
}

impl Tagging {
    pub(super) fn new(info: &Info) -> Self {
        let shift = info.interval.trailing_zeros();
        // The interval is valid, because `Info::check` has accepted it.
        let interval = Interval::from_bytes(info.interval.into()).unwrap_or(Interval::B4096);
        let protection = Protection { kind: info.kind, interval, generation: info.generations };
        let application = (!info.generations).then_some(info.application);
        Self { protection, shift, application }
    }

    /// The size of a sector in bytes.
    #[inline]
    pub(super) fn interval(&self) -> usize {
        1 << self.shift
    }

    /// The size of a tuple in bytes.
    #[inline]
    pub(super) fn size(&self) -> usize {
        self.protection.kind.bytes()
    }

    /// Writes the tuples of consecutive sectors into memory. If application tags are generations, `generation` is the application tag.
    #[inline]
    pub(super) fn encode(&self, first: u64, data: &[u8], generation: u16, tuples: &mut [u8]) {
        let application = self.application.unwrap_or(generation);
        self.protection.encode(data, first, application, tuples);
    }

    /// The tuple of one sector.
    pub(super) fn tuple(&self, sector: u64, data: &[u8], generation: u16) -> Packed {
        let mut tuple = [0; LONGEST];
        self.encode(sector, data, generation, &mut tuple[..self.size()]);
        tuple
    }

    /// The tuple that marks a sector as discarded. It matches any content.
    pub(super) fn unwritten(&self, sector: u64, generation: u16) -> Packed {
        let mut tuple = [0; LONGEST];
        let application = self.application.unwrap_or(generation);
        self.protection.encode_unwritten(sector, application, &mut tuple[..self.size()]);
        tuple
    }

    /// Whether a tuple marks its sector as discarded.
    #[cold]
    pub(super) fn is_unwritten(&self, sector: u64, tuple: &[u8]) -> bool {
        let generation = self.protection.applications(tuple).next().unwrap_or(0);
        self.unwritten(sector, generation)[..self.size()] == *tuple
    }

    /// Checks that the data at this position match their tuples. The tuple of a discarded sector counts as a mismatch.
    #[inline]
    pub(super) fn verify(&self, first: u64, data: &[u8], tuples: &[u8]) -> Result<(), Mismatch> {
        self.protection.verify(data, tuples, first, self.application)
    }

    /// Checks that the data at this position match their tuples. The tuple of a discarded sector matches any data.
    #[inline]
    pub(super) fn check(&self, first: u64, data: &[u8], tuples: &[u8]) -> Result<(), Mismatch> {
        self.verify(first, data, tuples)
            .or_else(|mismatch| self.check_behind(mismatch, first, data, tuples))
    }

    /// Returns the first mismatch. A discarded sector has no mismatch.
    #[cold]
    fn check_behind(
        &self,
        mut mismatch: Mismatch,
        first: u64,
        data: &[u8],
        tuples: &[u8],
    ) -> Result<(), Mismatch> {
        let size = self.size();
        loop {
            let number = (mismatch.sector - first) as usize;
            if !self.is_unwritten(mismatch.sector, &tuples[number * size..][..size]) {
                return Err(mismatch);
            }
            let next = number + 1;
            let (data, tuples) = (&data[next << self.shift..], &tuples[next * size..]);
            match self.verify(mismatch.sector + 1, data, tuples) {
                Ok(()) => return Ok(()),
                Err(behind) => mismatch = behind,
            }
        }
    }

    /// Whether a sector's data match its tuple. A discarded sector matches any data.
    #[inline]
    pub(super) fn fits(&self, sector: u64, data: &[u8], tuple: &Packed) -> bool {
        self.check(sector, data, &tuple[..self.size()]).is_ok()
    }

    /// The generation in a tuple.
    pub(super) fn generation(&self, tuple: &Packed) -> u16 {
        self.protection.applications(&tuple[..self.size()]).next().unwrap_or(0)
    }
}
