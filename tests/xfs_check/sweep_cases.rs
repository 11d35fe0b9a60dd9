//! Superblocks in which one field has an extreme or invalid value, and the checksum is valid. The tests try every field in turn.

use crate::SEED;
use crate::common::rng::Rng;

pub(crate) type Sector = [u8; 512];

const CRC: usize = 224;
const VERSIONNUM: usize = 100;
/// The name, byte offset and length of each field. Two fields are omitted: the label, because any text is valid, and the checksum, because
/// the test repairs it.
const FIELDS: [(&str, usize, usize); 55] = [
    ("magicnum", 0, 4),
    ("blocksize", 4, 4),
    ("dblocks", 8, 8),
    ("rblocks", 16, 8),
    ("rextents", 24, 8),
    ("uuid", 32, 16),
    ("logstart", 48, 8),
    ("rootino", 56, 8),
    ("rbmino", 64, 8),
    ("rsumino", 72, 8),
    ("rextsize", 80, 4),
    ("agblocks", 84, 4),
    ("agcount", 88, 4),
    ("rbmblocks", 92, 4),
    ("logblocks", 96, 4),
    ("versionnum", 100, 2),
    ("sectsize", 102, 2),
    ("inodesize", 104, 2),
    ("inopblock", 106, 2),
    ("blocklog", 120, 1),
    ("sectlog", 121, 1),
    ("inodelog", 122, 1),
    ("inopblog", 123, 1),
    ("agblklog", 124, 1),
    ("rextslog", 125, 1),
    ("inprogress", 126, 1),
    ("imax_pct", 127, 1),
    ("icount", 128, 8),
    ("ifree", 136, 8),
    ("fdblocks", 144, 8),
    ("frextents", 152, 8),
    ("uquotino", 160, 8),
    ("gquotino", 168, 8),
    ("qflags", 176, 2),
    ("flags", 178, 1),
    ("shared_vn", 179, 1),
    ("inoalignmt", 180, 4),
    ("unit", 184, 4),
    ("width", 188, 4),
    ("dirblklog", 192, 1),
    ("logsectlog", 193, 1),
    ("logsectsize", 194, 2),
    ("logsunit", 196, 4),
    ("features2", 200, 4),
    ("bad_features2", 204, 4),
    ("features_compat", 208, 4),
    ("features_ro_compat", 212, 4),
    ("features_incompat", 216, 4),
    ("features_log_incompat", 220, 4),
    ("spino_align", 228, 4),
    ("pquotino", 232, 8),
    ("lsn", 240, 8),
    ("meta_uuid", 248, 16),
    ("rest", 264, 1),
    ("end", 511, 1),
];
/// Bits that every volume of version 5 must have. Each row contains the byte offset, and the bit in that byte.
const REQUIRED: [(usize, u8); 10] = [
    (101, 0x20),
    (101, 0x80),
    (100, 0x04),
    (100, 0x10),
    (100, 0x20),
    (100, 0x80),
    (203, 0x02),
    (203, 0x08),
    (203, 0x80),
    (202, 0x01),
];

/// The additional fields of a volume with metadata directories. For such a volume, they replace the field "rest".
const TREE_FIELDS: [(&str, usize, usize); 7] = [
    ("metadirino", 264, 8),
    ("rgcount", 272, 4),
    ("rgextents", 276, 4),
    ("rgblklog", 280, 1),
    ("pad", 281, 7),
    ("rtstart", 288, 8),
    ("rtreserved", 296, 8),
];
/// The feature bit of metadata directories: its byte in `sb_features_incompat`, and the bit in this byte.
const METADIR: (usize, u8) = (218, 0x01);

/// A superblock. It differs from a valid superblock in one field.
pub(crate) struct Case {
    pub(crate) field: &'static str,
    pub(crate) sector: Sector,
    what: String,
}

impl Case {
    fn new(sound: &Sector, field: &'static str, at: usize, value: &[u8]) -> Self {
        let mut sector = *sound;
        sector[at..at + value.len()].copy_from_slice(value);
        if sector[VERSIONNUM + 1] & 0xF == 5 {
            sector[CRC..CRC + 4].fill(0);
            let sum = crc32c::crc32c(&sector);
            sector[CRC..CRC + 4].copy_from_slice(&sum.to_le_bytes());
        }
        let before = &sound[at..][..value.len()];
        let what = format!("{field}: byte {at} on {before:02x?} -> {value:02x?}");
        Self { field, sector, what }
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

/// Whether all values are tried instead of a sample.
pub(crate) fn all() -> bool {
    std::env::var("IRONMAP_FIELDS").is_ok_and(|which| which == "all")
}

/// The number of values in a sample. It is the value of `IRONMAP_FIELDS`, or `sample` if this is not set.
fn drawn(sample: usize) -> usize {
    let given = std::env::var("IRONMAP_FIELDS").ok();
    given.and_then(|count| count.parse().ok()).unwrap_or(sample)
}

/// The extreme and invalid values for a field. They are the valid value with one bit flipped, the valid value plus one and minus one, 1,
/// all bits clear, and all bits set.
fn values(sound: &[u8]) -> Vec<Vec<u8>> {
    let mut values = vec![vec![0; sound.len()], vec![0xFF; sound.len()]];
    // All bits of a UUID have the same meaning, so only some of them are flipped.
    let step = if sound.len() == 16 { 13 } else { 1 };
    for bit in (0..sound.len() * 8).step_by(step) {
        let mut value = sound.to_vec();
        value[bit / 8] ^= 1 << (bit % 8);
        values.push(value);
    }
    if sound.len() <= 8 {
        let number = sound.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        for number in [number.wrapping_add(1), number.wrapping_sub(1), 1] {
            values.push(number.to_be_bytes()[8 - sound.len()..].to_vec());
        }
    }
    values.sort();
    values.dedup();
    values.retain(|value| value != sound);
    values
}

/// The fields of a volume, with or without metadata directories.
fn fields(sound: &Sector) -> Vec<(&'static str, usize, usize)> {
    let (at, bit) = METADIR;
    let has_tree = sound[VERSIONNUM + 1] & 0xF == 5 && sound[at] & bit != 0;
    let own = FIELDS.iter().filter(|(name, ..)| !has_tree || *name != "rest");
    own.chain(TREE_FIELDS.iter().filter(|_| has_tree)).copied().collect()
}

/// All cases, or a sample: each required bit of version 5, and some of the other cases.
pub(crate) fn cases(sound: &Sector, sample: usize) -> Vec<Case> {
    let fields = fields(sound);
    let name = |at: usize| {
        let has = |(_, start, len): &&(&str, usize, usize)| (*start..start + len).contains(&at);
        fields.iter().find(has).expect("a field").0
    };
    let required = REQUIRED.map(|(at, bit)| Case::new(sound, name(at), at, &[sound[at] ^ bit]));
    let each = |(name, at, len): &(&'static str, usize, usize)| {
        let values = values(&sound[*at..at + len]).into_iter();
        values.map(|value| Case::new(sound, name, *at, &value)).collect::<Vec<_>>()
    };
    let mut cases: Vec<_> = fields.iter().flat_map(each).collect();
    if all() {
        return cases;
    }
    let rng = &mut Rng::new(SEED);
    let sample =
        (0..drawn(sample)).map(|_| cases.swap_remove(rng.below(cases.len() as u64) as usize));
    let sample: Vec<_> = sample.collect();
    let is_v5 = sound[VERSIONNUM + 1] & 0xF == 5;
    required.into_iter().filter(|_| is_v5).chain(sample).collect()
}
