//! The requested changes of a volume.

use crate::error::{Error, Result};
use crate::fs::ext4::OnError;
use crate::setters::setters;

/// The end of the range of times that a superblock can store, in seconds since 1970.
const TIME_END: i64 = 1 << 40;

/// Changes of a volume's superblock, as `tune2fs` makes them. A field with `None` or an empty list is not changed.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TuneOptions {
    /// The label, of at most 16 bytes (`tune2fs -L`).
    pub label: Option<Vec<u8>>,
    /// The UUID (`tune2fs -U`).
    pub uuid: Option<NewUuid>,
    /// The last mount point, of at most 64 bytes (`tune2fs -M`).
    pub last_mounted: Option<Vec<u8>>,
    /// The reaction of the volume to corruption (`tune2fs -e`).
    pub on_error: Option<OnError>,
    /// The blocks reserved for the superuser (`tune2fs -m`, `tune2fs -r`).
    pub reserved: Option<Reserved>,
    /// The user that may also use the reserved blocks (`tune2fs -u`).
    pub reserved_uid: Option<u16>,
    /// The group that may also use the reserved blocks (`tune2fs -g`).
    pub reserved_gid: Option<u16>,
    /// The number of mounts after which the volume is checked, at most 16000 (`tune2fs -c`). With 0, the number of mounts never causes a
    /// check.
    pub max_mount_count: Option<u16>,
    /// The number of mounts since the last check, at most 16000 (`tune2fs -C`).
    pub mount_count: Option<u16>,
    /// The number of seconds after which the volume is checked (`tune2fs -i`). With 0, the time since the last check never causes a check.
    pub check_interval: Option<u32>,
    /// The time of the last check, in seconds since 1970 (`tune2fs -T`).
    pub last_checked: Option<i64>,
    /// Names of default mount options to enable (`tune2fs -o`). A `^` in front of a name disables the option.
    pub mount_options: Vec<String>,
    /// Default mount options as one string, of at most 63 bytes (`tune2fs -E mount_opts`).
    pub mount_options_text: Option<Vec<u8>>,
    /// The hash function of new hash trees (`tune2fs -E hash_alg`).
    pub hash: Option<HashAlgorithm>,
    /// The number of consecutive blocks on one member of a RAID (`tune2fs -E stride`).
    pub stride: Option<u16>,
    /// The number of data blocks in a stripe across all members of a RAID (`tune2fs -E stripe_width`).
    pub stripe_width: Option<u32>,
    /// Names of features to enable (`tune2fs -O`). A `^` in front of a name disables the feature.
    pub features: Vec<String>,
}

impl TuneOptions {
    /// Options that change nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

setters!(TuneOptions {
    label: impl Into<Option<Vec<u8>>>,
    uuid: impl Into<Option<NewUuid>>,
    last_mounted: impl Into<Option<Vec<u8>>>,
    on_error: impl Into<Option<OnError>>,
    reserved: impl Into<Option<Reserved>>,
    reserved_uid: impl Into<Option<u16>>,
    reserved_gid: impl Into<Option<u16>>,
    max_mount_count: impl Into<Option<u16>>,
    mount_count: impl Into<Option<u16>>,
    check_interval: impl Into<Option<u32>>,
    last_checked: impl Into<Option<i64>>,
    mount_options: Vec<String>,
    mount_options_text: impl Into<Option<Vec<u8>>>,
    hash: impl Into<Option<HashAlgorithm>>,
    stride: impl Into<Option<u16>>,
    stripe_width: impl Into<Option<u32>>,
    features: Vec<String>,
});

/// A new UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NewUuid {
    /// A random UUID (version 4).
    Random,
    /// A UUID that is derived from the time (version 1).
    Time,
    /// A UUID of only zeros.
    Clear,
    /// The given UUID.
    Is([u8; 16]),
}

/// The number of blocks reserved for the superuser.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reserved {
    /// A percentage of all blocks, from 0 to 50.
    Percent(f64),
    /// A number of blocks, at most half of all blocks.
    Blocks(u64),
}

/// The hash function for names in directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HashAlgorithm {
    /// The hash function of the first hashed directories (`legacy`). It uses neither MD4 nor TEA.
    Legacy,
    /// MD4 with half of its steps.
    HalfMd4,
    /// The Tiny Encryption Algorithm.
    Tea,
}

impl HashAlgorithm {
    /// The value of `s_def_hash_version`.
    pub(super) const fn to_raw(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
        }
    }
}

impl std::str::FromStr for HashAlgorithm {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "legacy" => Ok(Self::Legacy),
            "half_md4" => Ok(Self::HalfMd4),
            "tea" => Ok(Self::Tea),
            _ => Err(Error::invalid("the hash must be legacy, half_md4 or tea")),
        }
    }
}

impl Reserved {
    /// Computes the number of reserved blocks in a volume of `blocks` blocks.
    ///
    /// # Errors
    /// `InvalidInput` for more than half of the volume's blocks.
    pub(super) fn of(self, blocks: u64) -> Result<u64> {
        match self {
            Self::Percent(percent) if (0.0..=50.0).contains(&percent) => {
                Ok((blocks as f64 * percent / 100.0) as u64)
            }
            Self::Percent(percent) => Err(Error::invalid(format!(
                "{percent} percent of the blocks cannot be reserved: the range is 0 to 50"
            ))),
            Self::Blocks(count) if count <= blocks / 2 => Ok(count),
            Self::Blocks(count) => Err(Error::invalid(format!(
                "{count} blocks cannot be reserved: at most {}, half of the volume, are possible",
                blocks / 2
            ))),
        }
    }
}

/// Checks a number of mounts against tune2fs's limit.
///
/// # Errors
/// `InvalidInput`.
pub(super) fn mounts(count: u16) -> Result<u16> {
    const MOST: u16 = 16000;
    if count <= MOST {
        return Ok(count);
    }
    Err(Error::invalid(format!("the mount count {count} is too large: it can be at most {MOST}")))
}

/// Splits a time into the two fields of the superblock: the lower 32 bits, and the next 8 bits.
///
/// # Errors
/// `InvalidInput`.
pub(super) fn time(seconds: i64) -> Result<(u32, u8)> {
    if (0..TIME_END).contains(&seconds) {
        return Ok((seconds as u32, (seconds >> 32) as u8));
    }
    Err(Error::invalid(format!(
        "the time {seconds}, in seconds since 1970, does not fit into the superblock"
    )))
}

/// Stores a text of at most `most` bytes in a field. The remaining bytes of the field are zeros.
///
/// # Errors
/// `InvalidInput` if the text is longer or contains a zero byte.
pub(super) fn put(field: &mut [u8], text: &[u8], most: usize, what: &str) -> Result<()> {
    if text.len() > most || text.contains(&0) {
        let len = text.len();
        return Err(Error::invalid(format!(
            "the {what} of {len} bytes is not valid: at most {most} bytes without NUL are possible"
        )));
    }
    field.fill(0);
    field[..text.len()].copy_from_slice(text);
    Ok(())
}
