//! The hash of a name in a hashed directory.
//!
//! Sources: the table "dirhash" in Linux's ext4 documentation; RFC 1320 for the steps of MD4, half of which ext4 uses; the paper by Wheeler
//! and Needham for the Tiny Encryption Algorithm; FreeBSD's description of the format for the legacy function and for the packing of names
//! into words. Tests compare the results with debugfs.

/// No name may have this hash or a higher hash. `readdir` uses these hashes as the end position of a directory.
const END_OF_DIRECTORY: u32 = 0xFFFF_FFFE;
/// The highest hash of a name.
pub(super) const LAST_HASH: u32 = END_OF_DIRECTORY - 2;

/// MD4's initial state, which is the seed if the superblock's seed is zero.
const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// The hash function of a directory. The root of the directory's hash tree contains the number of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HashVersion {
    Legacy,
    HalfMd4,
    Tea,
}

impl HashVersion {
    /// The hash function for a stored number. Number 6 is SipHash, whose key is derived from the encryption key. Only encrypted directories
    /// use SipHash. It is not supported, because names in encrypted directories cannot be looked up.
    pub(super) fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            0 => Some(Self::Legacy),
            1 => Some(Self::HalfMd4),
            2 => Some(Self::Tea),
            _ => None,
        }
    }
}

/// A hash function with its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameHash {
    pub(super) version: HashVersion,
    /// Whether bytes above 127 count as positive numbers. It is `false` for a volume that was made on a machine with a signed `char`.
    pub(super) unsigned: bool,
    /// `s_hash_seed`.
    pub(super) seed: [u32; 4],
}

impl NameHash {
    /// The hash of a name. The lowest bit of the hash is 0. In a node of the tree, this bit marks a leaf that continues the previous leaf.
    pub(super) fn of(&self, name: &[u8]) -> u32 {
        let mut state = if self.seed == [0; 4] { DEFAULT_SEED } else { self.seed };
        let hash = match self.version {
            HashVersion::Legacy => self.legacy(name),
            HashVersion::HalfMd4 => {
                for at in (0..name.len()).step_by(32) {
                    half_md4(&mut state, &self.pack(&name[at..]));
                }
                state[1]
            }
            HashVersion::Tea => {
                for at in (0..name.len()).step_by(16) {
                    tea(&mut state, &self.pack(&name[at..]));
                }
                state[0]
            }
        };
        match hash & !1 {
            END_OF_DIRECTORY => LAST_HASH,
            hash => hash,
        }
    }

    /// Converts a byte of a name to the number that the hash function uses.
    fn widen(&self, byte: u8) -> u32 {
        if self.unsigned { u32::from(byte) } else { byte as i8 as u32 }
    }

    /// Packs the first bytes of `rest` into `N` big-endian words. `rest` is the part of the name that is not hashed yet. Missing bytes are
    /// filled with the length of `rest`.
    fn pack<const N: usize>(&self, rest: &[u8]) -> [u32; N] {
        let pad = rest.len() as u32 * 0x0101_0101;
        let mut words = [pad; N];
        for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
            *word =
                bytes.iter().fold(pad, |word, byte| (word << 8).wrapping_add(self.widen(*byte)));
        }
        words
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut last, mut before) = (0x12A3_FE2D_u32, 0x37AB_E8F9_u32);
        for byte in name {
            let mixed = last ^ self.widen(*byte).wrapping_mul(7_152_373);
            let sum = before.wrapping_add(mixed);
            before = last;
            last = if sum >> 31 == 1 { sum.wrapping_sub(0x7FFF_FFFF) } else { sum };
        }
        last << 1
    }
}

/// Half of MD4: three rounds of eight steps on eight words, instead of sixteen steps on sixteen words.
fn half_md4(state: &mut [u32; 4], words: &[u32; 8]) {
    type Round = (fn(u32, u32, u32) -> u32, u32, [usize; 8], [u32; 4]);
    const ROUNDS: [Round; 3] = [
        (|x, y, z| x & y | !x & z, 0, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19]),
        (|x, y, z| x & y | x & z | y & z, 0x5A82_7999, [1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13]),
        (|x, y, z| x ^ y ^ z, 0x6ED9_EBA1, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15]),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, constant, order, shifts) in ROUNDS {
        for (step, word) in order.into_iter().enumerate() {
            let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(words[word]).wrapping_add(constant);
            (a, b, c, d) = (d, sum.rotate_left(shifts[step % 4]), b, c);
        }
    }
    for (word, new) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(new);
    }
}

/// Sixteen cycles of TEA with the name's words as the key.
fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let half = |value: u32, sum: u32, low: u32, high: u32| {
        (value << 4).wrapping_add(low) ^ value.wrapping_add(sum) ^ (value >> 5).wrapping_add(high)
    };
    let (mut x, mut y, mut sum) = (state[0], state[1], 0_u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        x = x.wrapping_add(half(y, sum, key[0], key[1]));
        y = y.wrapping_add(half(x, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of the seed 00112233-4455-6677-8899-aabbccddeeff.
    const SEED: [u32; 4] = [0x3322_1100, 0x7766_5544, 0xBBAA_9988, 0xFFEE_DDCC];

    /// The three hash functions give the same results as debugfs's `dx_hash -h N [-s SEED] NAME`, with signed and with unsigned bytes.
    #[test]
    fn hashes_are_those_of_debugfs() {
        #[rustfmt::skip]
        let expected = [
            ([0; 4], "a", [0xE74B_53E2, 0xD5FA_7D7A, 0x6D0E_A4C0, 0xE74B_53E2, 0xD5FA_7D7A, 0x6D0E_A4C0]),
            (SEED, "a", [0xE74B_53E2, 0x9375_2EE6, 0xF9B9_0E84, 0xE74B_53E2, 0x9375_2EE6, 0xF9B9_0E84]),
            ([0; 4], "lost+found", [0x5E2A_BA24, 0x591D_E422, 0x2DBF_9E80, 0x5E2A_BA24, 0x591D_E422, 0x2DBF_9E80]),
            (SEED, "lost+found", [0x5E2A_BA24, 0x1EFB_822C, 0xD062_09F0, 0x5E2A_BA24, 0x1EFB_822C, 0xD062_09F0]),
            ([0; 4], &"x".repeat(32), [0xCCF8_E87C, 0xAE38_AE70, 0x4235_B328, 0xCCF8_E87C, 0xAE38_AE70, 0x4235_B328]),
            (SEED, &"x".repeat(32), [0xCCF8_E87C, 0x7AE8_2A38, 0x4573_4296, 0xCCF8_E87C, 0x7AE8_2A38, 0x4573_4296]),
            ([0; 4], "Grüße aus der 世界, dreiunddreißig Bytes", [0xE0C7_26BC, 0x3FC6_01AA, 0xF555_F956, 0xB436_D2B4, 0x30E4_BD60, 0xB81E_4160]),
            (SEED, "Grüße aus der 世界, dreiunddreißig Bytes", [0xE0C7_26BC, 0x234A_82C8, 0x9F6D_2F8A, 0xB436_D2B4, 0xD1AC_AF32, 0xD03C_94C4]),
            ([0; 4], &"ÿ".repeat(127), [0x6757_40EA, 0xD706_C71E, 0xFF10_EECC, 0x3160_2BCE, 0x26BB_6B40, 0x7ED4_2276]),
            (SEED, &"ÿ".repeat(127), [0x6757_40EA, 0xC032_612E, 0xEC5B_8602, 0x3160_2BCE, 0xBE2E_14B4, 0xEA96_6A78]),
        ];
        for (seed, name, hashes) in expected {
            for (number, hash) in hashes.into_iter().enumerate() {
                let version =
                    [HashVersion::Legacy, HashVersion::HalfMd4, HashVersion::Tea][number % 3];
                let function = NameHash { version, unsigned: number >= 3, seed };
                assert_eq!(function.of(name.as_bytes()), hash, "{function:?} of {name}");
            }
        }
    }
}
