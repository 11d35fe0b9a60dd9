//! Guards: the guard in a tuple is the checksum of a sector's data.
//!
//! The crate crc-fast computes the guards. `cargo bench --bench guard` compares it with other crates.

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// The guard of T10 DIF: CRC16 with polynomial 0x8BB7, highest bit first.
///
/// If `seed` is 0, the result is the standard guard. If not, `seed` is the initial value of the CRC register. Each seed gives another guard
/// for the same data.
#[must_use]
#[inline]
pub fn t10_dif(data: &[u8], seed: u16) -> u16 {
    crc(CrcAlgorithm::Crc16T10Dif, u64::from(seed), 0, data) as u16
}

/// The guard of NVMe's 64-bit tuples: CRC64 with polynomial 0xAD93D23594C93659, lowest bit first, inverted before and after.
///
/// If `seed` is 0, the result is the standard guard. If not, the initial value of the CRC register is the inverse of `seed`. Each seed
/// gives another guard for the same data.
#[must_use]
#[inline]
pub fn nvme64(data: &[u8], seed: u64) -> u64 {
    crc(CrcAlgorithm::Crc64Nvme, !seed, !0, data)
}

/// Computes a CRC. `begin` is the initial value of the register, and `standard` is the initial value of the standard algorithm. If the two
/// values differ, a `Digest` is needed, which takes some 20 ns longer. For 512 bytes of data, this is noticeable.
#[inline]
fn crc(algorithm: CrcAlgorithm, begin: u64, standard: u64, data: &[u8]) -> u64 {
    if begin == standard {
        return checksum(algorithm, data);
    }
    let mut digest = Digest::new_with_init_state(algorithm, begin);
    digest.update(data);
    digest.finalize()
}

/// Computes the guards bit by bit, as the standards define them.
#[cfg(test)]
pub(super) mod reference {
    pub(in crate::protection) fn t10_dif(data: &[u8], seed: u16) -> u16 {
        data.iter().fold(seed, |crc, &byte| {
            (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
                crc << 1 ^ if crc >> 15 == 1 { 0x8bb7 } else { 0 }
            })
        })
    }

    pub(in crate::protection) fn nvme64(data: &[u8], seed: u64) -> u64 {
        const REVERSED: u64 = 0xad93_d235_94c9_3659_u64.reverse_bits();
        !data.iter().fold(!seed, |crc, &byte| {
            (0..8).fold(crc ^ u64::from(byte), |crc, _| {
                crc >> 1 ^ if crc & 1 == 1 { REVERSED } else { 0 }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use super::*;
    use crate::protection::tests::Rng;

    #[test]
    fn check_values_of_the_catalogue() {
        assert_eq!(t10_dif(b"123456789", 0), 0xd0db);
        assert_eq!(nvme64(b"123456789", 0), 0xae8b_1486_0a79_9888);
    }

    /// The 32-byte examples in SBC-3, "CRC test cases".
    #[test]
    fn examples_of_the_scsi_standard() {
        let up = Vec::from_iter(0..32);
        let down = Vec::from_iter((0xe0..=0xff).rev());
        let two_ones = Vec::from_iter([0xff; 2].into_iter().chain(repeat_n(0, 30)));
        assert_eq!(t10_dif(&[0; 32], 0), 0);
        assert_eq!(t10_dif(&[0xff; 32], 0), 0xa293);
        assert_eq!(t10_dif(&up, 0), 0x0224);
        assert_eq!(t10_dif(&two_ones, 0), 0x21b8);
        assert_eq!(t10_dif(&down, 0), 0xa0b7);
    }

    /// The 4 KiB examples in the NVM Command Set Specification, "64b CRC Test Cases".
    #[test]
    fn examples_of_the_nvme_standard() {
        let up: Vec<u8> = (0..=255).cycle().take(4096).collect();
        let down: Vec<u8> = (0..=255).rev().cycle().take(4096).collect();
        assert_eq!(nvme64(&[0; 4096], 0), 0x6482_d367_eb22_b64e);
        assert_eq!(nvme64(&[0xff; 4096], 0), 0xc0dd_ba73_02ec_a3ac);
        assert_eq!(nvme64(&up, 0), 0x3e72_9f5f_6750_449c);
        assert_eq!(nvme64(&down, 0), 0x9a2d_f64b_8e9e_517e);
    }

    /// The guards are compared with guards that are computed bit by bit: for every length and every alignment within 16 bytes, with and
    /// without a seed. The longest data are longer than the unit of the fastest loop.
    #[test]
    fn all_lengths_and_alignments_agree_with_the_definition() {
        let mut rng = Rng(0x8bb7);
        let bytes = rng.bytes(1100);
        for len in 0..=1024 + 20 {
            let at = len % 16 + len / 256;
            let data = &bytes[at..at + len];
            let seed = if len % 3 == 0 { 0 } else { rng.next() };
            let (narrow, context) = (seed as u16, format!("length {len}, seed {seed:#x}"));
            assert_eq!(t10_dif(data, narrow), reference::t10_dif(data, narrow), "{context}");
            assert_eq!(nvme64(data, seed), reference::nvme64(data, seed), "{context}");
        }
    }

    /// The generation of a sector (its application tag) can be the seed of its guard. Different seeds must give different guards for the
    /// same data.
    #[test]
    fn every_seed_gives_another_guard() {
        let data = Rng(7).bytes(512);
        let mut seen = vec![false; 1 << 16];
        for seed in 0..=u16::MAX {
            let guard = t10_dif(&data, seed);
            assert!(!std::mem::replace(&mut seen[usize::from(guard)], true), "seed {seed:#x}");
        }
    }
}
