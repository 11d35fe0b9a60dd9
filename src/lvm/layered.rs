//! Segments whose content is on hidden logical volumes: RAID, mirrors, thin pools and thin volumes.

use super::group::{SECTOR, check_name, product};
use super::text::{Section, corrupt};
use crate::error::Result;

/// A segment whose content is on other logical volumes of the group. The names in it are names of logical volumes.
#[derive(Debug)]
pub(super) enum Layered {
    /// A RAID volume: the level, the length of a stripe in bytes, and the legs. Each leg consists of a metadata volume and a data volume.
    /// Legs of level 0 have no metadata volume.
    Raid(u32, u64, Vec<(Option<String>, String)>),
    Mirror(Mirror),
    Pool(Pool),
    /// A thin volume: the pool, the number of the thin volume in the pool, and the volume that contains the blocks that are not in the pool
    /// (the external origin).
    Thin(String, u64, Option<String>),
}

/// A mirror without metadata on its legs.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) legs: Vec<String>,
    /// The log volume. It records which regions are equal on all legs. `None` if the log is only in the memory of a running system.
    pub(super) log: Option<String>,
    /// The length of a region in bytes.
    pub(super) region: u64,
}

/// A pool of thin volumes.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) metadata: String,
    pub(super) data: String,
    /// The transaction number: the number of the last change that LVM made to the set of thin volumes.
    pub(super) transaction: u64,
    /// The length of a data block in bytes.
    pub(super) chunk: u64,
}

fn name(section: &Section, key: &str) -> Result<String> {
    Ok(check_name(section.text(key)?)?.to_owned())
}

fn names(names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<String>> {
    names.into_iter().map(|name| Ok(check_name(name.as_ref())?.to_owned())).collect()
}

impl Layered {
    /// Parses a segment. `None` for other types.
    pub(super) fn parse(kind: &str, segment: &Section) -> Result<Option<Self>> {
        Ok(Some(match kind {
            "mirror" => {
                let legs = names(segment.pairs("mirrors")?.into_iter().map(|(leg, _)| leg))?;
                let log = segment.find_text("mirror_log").map(|_| name(segment, "mirror_log"));
                let region = product(segment.number("region_size")?, SECTOR)?;
                Self::Mirror(Mirror { legs, log: log.transpose()?, region })
            }
            "thin-pool" => Self::Pool(Pool {
                metadata: name(segment, "metadata")?,
                data: name(segment, "pool")?,
                transaction: segment.number("transaction_id")?,
                chunk: product(segment.number("chunk_size")?, SECTOR)?,
            }),
            "thin" => {
                let origin = segment.find_text("external_origin");
                let origin = origin.map(|_| name(segment, "external_origin")).transpose()?;
                Self::Thin(name(segment, "thin_pool")?, segment.number("device_id")?, origin)
            }
            "raid0" | "raid0_meta" => Self::raid(0, segment)?,
            "raid1" => Self::raid(1, segment)?,
            "raid10" | "raid10_near" => Self::raid(10, segment)?,
            "raid4" => Self::raid(4, segment)?,
            kind if kind.starts_with("raid5") => Self::raid(5, segment)?,
            kind if kind.starts_with("raid6") => Self::raid(6, segment)?,
            _ => return Ok(None),
        }))
    }

    fn raid(level: u32, segment: &Section) -> Result<Self> {
        // Segments of level 1 are mirrors and have no stripes.
        let stripe = if level == 1 { 0 } else { product(segment.number("stripe_size")?, SECTOR)? };
        if let Ok(data) = segment.texts("raid0_lvs") {
            let legs = names(data)?.into_iter().map(|data| (None, data)).collect();
            return Ok(Self::Raid(level, stripe, legs));
        }
        let all = segment.texts("raids")?;
        let (pairs, rest) = all.as_chunks::<2>();
        if pairs.is_empty() || !rest.is_empty() {
            return Err(corrupt("the list raids must contain pairs of metadata and data"));
        }
        let legs = pairs.iter().map(|[metadata, data]| {
            Ok((Some(check_name(metadata)?.to_owned()), check_name(data)?.to_owned()))
        });
        Ok(Self::Raid(level, stripe, legs.collect::<Result<_>>()?))
    }
}
