//! Damages structures of an XFS volume.

use crate::common::rng::Rng;

/// Boundary values that a change stores in fields.
const EXTREMES: [u32; 10] =
    [0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, u32::MAX];

/// Changes some fields of a structure, or copies bytes from another structure of the same kind. Most changes are near the start, because
/// structures have their counts and links there.
pub(crate) fn damage(bytes: &mut [u8], like: &[u8], rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        let most = if rng.below(3) == 0 { bytes.len() } else { bytes.len().min(200) };
        let at = rng.below(most as u64) as usize;
        match rng.below(6) {
            0 => bytes[at] = rng.below(256) as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes[at] = bytes[at].wrapping_add(1),
            3 => put(bytes, at & !1, &(rng.below(1 << 16) as u16).to_be_bytes()),
            4 => {
                let value = EXTREMES[rng.below(EXTREMES.len() as u64) as usize];
                put(bytes, at & !3, &value.to_be_bytes());
            }
            _ => {
                let end = (at + 1 + rng.below(64) as usize).min(bytes.len()).min(like.len());
                if at < end {
                    bytes[at..end].copy_from_slice(&like[at..end]);
                }
            }
        }
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    let end = (at + value.len()).min(bytes.len());
    bytes[at..end].copy_from_slice(&value[..end - at]);
}
