//! A tuple is the protection information of a sector. A mismatch is a difference between a sector and its tuple.
//!
//! In this module, no tag has a special meaning. In T10, an application tag of 0xFFFF disables the check of a sector. This module does not
//! implement that rule, because damage must not disable a check. A discarded sector may contain any bytes. Its tuple contains the
//! complement of the normal reference tag, and a guard that is computed from the sector's number. Damage very rarely produces such a tuple.

use std::fmt;
use std::mem::offset_of;
use std::ops::ControlFlow;

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::guard;

/// The number of data bytes that one tuple protects. For protected devices, this is the sector size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// 512 bytes.
    B512,
    /// 4096 bytes.
    B4096,
}

impl Interval {
    /// The length of the interval in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }

    /// The interval that has this length in bytes. `None` if there is no such interval.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        match bytes {
            512 => Some(Self::B512),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }
}

/// The kind of a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TupleKind {
    /// T10 DIF: the tuple contains a CRC16, and the lower 32 bits of the sector's number. Two sectors whose numbers differ by 2^32 have
    /// equal reference tags.
    ///
    /// The guard detects every change of one or two bits. It misses one in 65,536 of the larger changes that spread over more than 16 bits.
    T10,
    /// NVMe with a 64-bit guard: the tuple contains a CRC64, and the lower 48 bits of the sector's number.
    Nvme64,
}

impl TupleKind {
    /// The length of a tuple in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::T10 => size_of::<T10>(),
            Self::Nvme64 => size_of::<Nvme64>(),
        }
    }
}

/// How the sectors of a device are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// The kind of the tuples.
    pub kind: TupleKind,
    /// The number of bytes that a tuple protects.
    pub interval: Interval,
    /// Whether the application tag is a generation, which may differ from sector to sector. The generation is also the seed of the guard.
    /// Therefore a changed bit in the generation is detected even if the expected generation is unknown.
    pub generation: bool,
}

/// A field of a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// The lower bits of the sector's number. A mismatch probably means that a write or read went to another position.
    ReferenceTag,
    /// The application tag. It identifies the owner of the data, or contains a generation.
    ApplicationTag,
    /// The checksum of the data. A mismatch means that the data or the tuple have changed.
    Guard,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReferenceTag => "reference tag",
            Self::ApplicationTag => "application tag",
            Self::Guard => "guard",
        })
    }
}

/// A field of a tuple that does not match its sector. No other fields will be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The number of the sector, counted from the start of the device. A sector has the size of one protection interval.
    pub sector: u64,
    /// The field that does not match.
    pub field: Field,
    /// The expected value. For the guard, this value is computed from the data.
    pub expected: u64,
    /// The value in the tuple.
    pub found: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sector, field, expected, found } = *self;
        match field {
            // A reference tag is a part of a sector's number, so it is printed as a decimal number.
            Field::ReferenceTag => {
                write!(f, "sector {sector}: {field}: expected {expected}, found {found}")
            }
            _ => write!(f, "sector {sector}: {field}: expected {expected:#x}, found {found:#x}"),
        }
    }
}

impl Protection {
    /// Computes the tuples (protection information) of consecutive sectors, and writes the tuples to `tuples`.
    ///
    /// `first` is the number of the first sector, in protection intervals from the start of the device.
    ///
    /// # Panics
    ///
    /// Panics if `data` do not consist of whole sectors, or if the length of `tuples` is not the length of one tuple for each sector.
    pub fn encode(self, data: &[u8], first: u64, application: u16, tuples: &mut [u8]) {
        match self.kind {
            TupleKind::T10 => self.encode_as::<T10>(data, first, application, tuples),
            TupleKind::Nvme64 => self.encode_as::<Nvme64>(data, first, application, tuples),
        }
    }

    /// Compares consecutive sectors with their tuples. All tuples must have the application tag `application`. If `application` is `None`,
    /// any tag is accepted, for example a generation.
    ///
    /// # Errors
    ///
    /// The first field that does not match. The tags are compared before the guard. A wrong tag with intact data means that a write or read
    /// went to a wrong position.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`encode`](Self::encode).
    pub fn verify(
        self,
        data: &[u8],
        tuples: &[u8],
        first: u64,
        application: Option<u16>,
    ) -> Result<(), Mismatch> {
        match self.compare(data, tuples, first, application, ControlFlow::Break) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(mismatch) => Err(mismatch),
        }
    }

    /// Compares as [`verify`](Self::verify) does, but returns every field that does not match.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`encode`](Self::encode).
    pub fn mismatches(
        self,
        data: &[u8],
        tuples: &[u8],
        first: u64,
        application: Option<u16>,
        mut found: impl FnMut(Mismatch),
    ) {
        let _: ControlFlow<()> = self.compare(data, tuples, first, application, |mismatch| {
            found(mismatch);
            ControlFlow::Continue(())
        });
    }

    /// Writes the tuple of a discarded sector, which may contain any bytes. [`verify`](Self::verify) rejects this tuple for all data.
    ///
    /// # Panics
    ///
    /// Panics if `tuple` does not have the length of a tuple.
    pub fn encode_unwritten(self, sector: u64, application: u16, tuple: &mut [u8]) {
        match self.kind {
            TupleKind::T10 => self.encode_unwritten_as::<T10>(sector, application, tuple),
            TupleKind::Nvme64 => self.encode_unwritten_as::<Nvme64>(sector, application, tuple),
        }
    }

    fn encode_unwritten_as<T: Tuple>(self, sector: u64, application: u16, tuple: &mut [u8]) {
        let tuple = T::mut_from_bytes(tuple).expect("a whole tuple");
        let guard = T::guard(&sector.to_be_bytes(), self.seed(application));
        *tuple = T::new(Fields { guard, application, reference: !sector & T::REFERENCE });
    }

    /// Returns the application tags of tuples. The tuples are not verified.
    pub fn applications(self, tuples: &[u8]) -> impl Iterator<Item = u16> {
        let at = match self.kind {
            TupleKind::T10 => offset_of!(T10, application),
            TupleKind::Nvme64 => offset_of!(Nvme64, application),
        };
        let tuples = tuples.chunks_exact(self.kind.bytes());
        tuples.map(move |tuple| u16::from_be_bytes([tuple[at], tuple[at + 1]]))
    }

    fn encode_as<T: Tuple>(self, data: &[u8], first: u64, application: u16, tuples: &mut [u8]) {
        let tuples = <[T]>::mut_from_bytes(tuples).expect("whole tuples");
        let sectors = self.sectors(data, tuples.len());
        for ((sector, data), tuple) in (first..).zip(sectors).zip(tuples) {
            let guard = T::guard(data, self.seed(application));
            *tuple = T::new(Fields { guard, application, reference: sector & T::REFERENCE });
        }
    }

    fn compare<B>(
        self,
        data: &[u8],
        tuples: &[u8],
        first: u64,
        application: Option<u16>,
        wrong: impl FnMut(Mismatch) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        match self.kind {
            TupleKind::T10 => self.compare_as::<T10, B>(data, tuples, first, application, wrong),
            TupleKind::Nvme64 => {
                self.compare_as::<Nvme64, B>(data, tuples, first, application, wrong)
            }
        }
    }

    fn compare_as<T: Tuple, B>(
        self,
        data: &[u8],
        tuples: &[u8],
        first: u64,
        application: Option<u16>,
        mut wrong: impl FnMut(Mismatch) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let tuples = <[T]>::ref_from_bytes(tuples).expect("whole tuples");
        let sectors = self.sectors(data, tuples.len());
        for ((sector, data), tuple) in (first..).zip(sectors).zip(tuples) {
            let has = tuple.fields();
            let mut hold = |field, expected, found| {
                if expected == found {
                    return ControlFlow::Continue(());
                }
                wrong(Mismatch { sector, field, expected, found })
            };
            hold(Field::ReferenceTag, sector & T::REFERENCE, has.reference)?;
            let expected = application.unwrap_or(has.application);
            hold(Field::ApplicationTag, expected.into(), has.application.into())?;
            hold(Field::Guard, T::guard(data, self.seed(has.application)), has.guard)?;
        }
        ControlFlow::Continue(())
    }

    fn sectors(self, data: &[u8], count: usize) -> impl Iterator<Item = &[u8]> {
        let interval = self.interval.bytes();
        assert_eq!(data.len(), count * interval, "the tuples of these sectors");
        data.chunks_exact(interval)
    }

    fn seed(self, application: u16) -> u16 {
        if self.generation { application } else { 0 }
    }
}

/// The fields of a tuple. Both kinds of tuples have these fields.
struct Fields {
    guard: u64,
    application: u16,
    reference: u64,
}

trait Tuple: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {
    /// A mask: the bits of the sector's number that the reference tag contains.
    const REFERENCE: u64;

    fn guard(data: &[u8], seed: u16) -> u64;

    /// Packs the fields into a tuple. The caller ensures that the values fit.
    fn new(fields: Fields) -> Self;

    fn fields(&self) -> Fields;
}

/// The tuple of T10 DIF (SBC, "Protection information").
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct T10 {
    guard: U16,
    application: U16,
    reference: U32,
}

impl Tuple for T10 {
    const REFERENCE: u64 = u32::MAX as u64;

    #[inline]
    fn guard(data: &[u8], seed: u16) -> u64 {
        guard::t10_dif(data, seed).into()
    }

    fn new(fields: Fields) -> Self {
        Self {
            guard: U16::new(fields.guard as u16),
            application: U16::new(fields.application),
            reference: U32::new(fields.reference as u32),
        }
    }

    fn fields(&self) -> Fields {
        Fields {
            guard: self.guard.into(),
            application: self.application.into(),
            reference: self.reference.into(),
        }
    }
}

/// The tuple of the NVM Command Set Specification, "64b Guard Protection Information". Without a storage tag, all 48 bits are the reference
/// tag.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Nvme64 {
    guard: U64,
    application: U16,
    reference_high: U16,
    reference_low: U32,
}

impl Tuple for Nvme64 {
    const REFERENCE: u64 = (1 << 48) - 1;

    #[inline]
    fn guard(data: &[u8], seed: u16) -> u64 {
        guard::nvme64(data, seed.into())
    }

    fn new(fields: Fields) -> Self {
        Self {
            guard: U64::new(fields.guard),
            application: U16::new(fields.application),
            reference_high: U16::new((fields.reference >> 32) as u16),
            reference_low: U32::new(fields.reference as u32),
        }
    }

    fn fields(&self) -> Fields {
        Fields {
            guard: self.guard.into(),
            application: self.application.into(),
            reference: u64::from(self.reference_high) << 32 | u64::from(self.reference_low),
        }
    }
}

const _: () = assert!(size_of::<T10>() == 8 && size_of::<Nvme64>() == 16);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::protection::guard::reference;
    use crate::protection::tests::Rng;

    const APPLICATION: u16 = 0x1234;
    /// A sector number that does not fit in a reference tag of either kind.
    const FIRST: u64 = 0xabcd_1234_ffff_fffe;

    fn all() -> impl Iterator<Item = Protection> {
        let kinds = [TupleKind::T10, TupleKind::Nvme64].into_iter();
        let both = kinds.flat_map(|kind| [Interval::B512, Interval::B4096].map(|i| (kind, i)));
        both.flat_map(|(kind, interval)| {
            [false, true].map(|generation| Protection { kind, interval, generation })
        })
    }

    fn sectors(protection: Protection, count: usize, seed: u64) -> (Vec<u8>, Vec<u8>) {
        let data = Rng(seed).bytes(count * protection.interval.bytes());
        let mut tuples = vec![0xee; count * protection.kind.bytes()];
        protection.encode(&data, FIRST, APPLICATION, &mut tuples);
        assert_eq!(protection.verify(&data, &tuples, FIRST, None), Ok(()));
        assert_eq!(protection.verify(&data, &tuples, FIRST, Some(APPLICATION)), Ok(()));
        (data, tuples)
    }

    fn mismatches(protection: Protection, data: &[u8], tuples: &[u8]) -> Vec<Mismatch> {
        // If the application tags are generations, the test does not know the expected tag, so any tag is accepted.
        let application = (!protection.generation).then_some(APPLICATION);
        let mut found = Vec::new();
        protection.mismatches(data, tuples, FIRST, application, |wrong| found.push(wrong));
        let first = protection.verify(data, tuples, FIRST, application).err();
        assert_eq!(first.as_ref(), found.first(), "verify returns the first mismatch");
        found
    }

    /// The tuples have the layout that the standards define. The test computes the expected bytes independently.
    #[test]
    fn tuples_are_those_of_the_standards() {
        for protection in all() {
            let (data, tuples) = sectors(protection, 3, 1);
            let mut expected = Vec::new();
            let seed = if protection.generation { APPLICATION } else { 0 };
            for (sector, data) in (FIRST..).zip(data.chunks(protection.interval.bytes())) {
                match protection.kind {
                    TupleKind::T10 => {
                        expected.extend(reference::t10_dif(data, seed).to_be_bytes());
                        expected.extend(APPLICATION.to_be_bytes());
                        expected.extend(&sector.to_be_bytes()[4..]);
                    }
                    TupleKind::Nvme64 => {
                        expected.extend(reference::nvme64(data, seed.into()).to_be_bytes());
                        expected.extend(APPLICATION.to_be_bytes());
                        expected.extend(&sector.to_be_bytes()[2..]);
                    }
                }
            }
            assert_eq!(tuples, expected, "{protection:?}");
            assert!(protection.applications(&tuples).eq([APPLICATION; 3]), "{protection:?}");
        }
    }

    #[test]
    fn every_flipped_bit_is_seen_and_only_at_its_sector() {
        for protection in all() {
            let (mut data, mut tuples) = sectors(protection, 3, 2);
            let interval = protection.interval.bytes();
            for bit in interval * 8..2 * interval * 8 {
                data[bit / 8] ^= 1 << (bit % 8);
                let found = mismatches(protection, &data, &tuples);
                let which = Vec::from_iter(found.iter().map(|wrong| (wrong.sector, wrong.field)));
                assert_eq!(which, [(FIRST + 1, Field::Guard)], "{protection:?}, data bit {bit}");
                data[bit / 8] ^= 1 << (bit % 8);
            }
            let tuple = protection.kind.bytes();
            for bit in tuple * 8..2 * tuple * 8 {
                tuples[bit / 8] ^= 1 << (bit % 8);
                let found = mismatches(protection, &data, &tuples);
                assert_eq!(found.len(), 1, "{protection:?}, tuple bit {bit}: {found:?}");
                assert_eq!(found[0].sector, FIRST + 1, "{protection:?}, tuple bit {bit}");
                assert_ne!(found[0].expected, found[0].found, "{protection:?}, tuple bit {bit}");
                tuples[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    /// The tuple of a discarded sector matches no data, and differs from the tuple of any other discarded sector. Damage of a normal tuple
    /// does not produce it.
    #[test]
    fn nothing_is_taken_for_a_sector_that_may_hold_anything() {
        for protection in all() {
            let unwritten = |sector: u64| {
                let mut tuple = vec![0; protection.kind.bytes()];
                protection.encode_unwritten(sector, APPLICATION, &mut tuple);
                tuple
            };
            let (data, tuples) = sectors(protection, 3, 5);
            let (interval, size) = (protection.interval.bytes(), protection.kind.bytes());
            for (number, sector) in (FIRST..FIRST + 3).enumerate() {
                let data = &data[number * interval..(number + 1) * interval];
                let verified = protection.verify(data, &unwritten(sector), sector, None);
                assert_eq!(verified.unwrap_err().field, Field::ReferenceTag, "{protection:?}");
                for bit in 0..size * 8 {
                    let mut tuple = tuples[number * size..(number + 1) * size].to_vec();
                    tuple[bit / 8] ^= 1 << (bit % 8);
                    assert_ne!(tuple, unwritten(sector), "{protection:?}, bit {bit}");
                }
                assert_ne!(unwritten(sector), unwritten(sector + 1), "{protection:?}");
            }
        }
    }

    #[test]
    fn swapped_sectors_are_seen_with_and_without_their_tuples() {
        for protection in all() {
            let (mut data, mut tuples) = sectors(protection, 2, 3);
            data.rotate_left(protection.interval.bytes());
            let found = mismatches(protection, &data, &tuples);
            assert!(found.iter().all(|wrong| wrong.field == Field::Guard), "{found:?}");
            assert_eq!(found.len(), 2, "{protection:?}: {found:?}");
            tuples.rotate_left(protection.kind.bytes());
            let found = mismatches(protection, &data, &tuples);
            assert!(found.iter().all(|wrong| wrong.field == Field::ReferenceTag), "{found:?}");
            assert_eq!(found.len(), 2, "{protection:?}: {found:?}");
        }
    }

    #[test]
    fn a_mismatch_says_what_the_tuple_would_hold_and_what_it_holds() {
        let (kind, interval) = (TupleKind::T10, Interval::B512);
        let protection = Protection { kind, interval, generation: false };
        let data = [0; 512];
        let mut tuple = [0; 8];
        protection.encode(&data, 9, 2, &mut tuple);
        tuple[1] = 0xab;
        let mut lines = Vec::new();
        protection.mismatches(&data, &tuple, 7, Some(1), |wrong| lines.push(wrong.to_string()));
        assert_eq!(
            lines,
            [
                "sector 7: reference tag: expected 7, found 9",
                "sector 7: application tag: expected 0x1, found 0x2",
                "sector 7: guard: expected 0x0, found 0xab",
            ]
        );
    }

    /// Tests the guarantee of [`TupleKind::T10`]. Each change of a single bit changes the guard in a different way, so a second changed bit
    /// cannot hide the first.
    #[test]
    fn any_two_flipped_bits_are_seen() {
        let mut data = Rng(4).bytes(4096);
        let mut guards = HashSet::new();
        for bit in 0..data.len() * 8 {
            data[bit / 8] ^= 1 << (bit % 8);
            assert!(guards.insert(guard::t10_dif(&data, 0)), "bit {bit}");
            data[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    #[should_panic = "the tuples of these sectors"]
    fn a_run_has_a_tuple_for_each_sector() {
        let (kind, interval) = (TupleKind::T10, Interval::B512);
        let protection = Protection { kind, interval, generation: false };
        let _ = protection.verify(&[0; 1024], &[0; 8], 0, None);
    }
}
