//! Checks whether a tag area is consistent. The check writes nothing, and verifies no sector.

use std::fmt;
use std::sync::Arc;

use super::area::{Area, Superblock};
use super::dirty::Regions;
use super::geometry::{Info, Mode};
use super::journal::Journal;
use crate::device::Device;
use crate::error::{Error, Result};

/// The result of a check of a tag area.
#[derive(Clone, Debug)]
pub struct CheckedArea {
    /// The geometry of the device.
    pub info: Info,
    /// Whether the device was closed and needs no recovery.
    pub clean: bool,
    /// The number of regions whose bits are set in the dirty map, or 0 if the device was closed.
    pub dirty: u64,
    /// The number of journal records that the recovery would replay when the device is opened.
    pub records: u64,
    /// The number of sectors that the replay would write.
    pub sectors: u64,
    /// The faults that the check found.
    pub problems: Vec<Problem>,
}

/// A fault in a tag area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// One copy of the superblock cannot be used. The remaining copy can be used.
    Superblock {
        /// The copy that cannot be used.
        copy: &'static str,
        /// The reason why the copy cannot be used.
        why: String,
    },
    /// The data device is shorter than the tag area requires. The check ended at this fault.
    ShortData {
        /// The size of the data device in bytes.
        size: u64,
        /// The smallest expected size.
        needed: u64,
    },
    /// Blocks of the dirty map or of the generations do not match their checksums.
    Map {
        /// The number of blocks that do not match.
        blocks: u64,
    },
    /// The tag device refuses to read a block of the dirty map or of the generations.
    Unreadable {
        /// The block and the reason.
        why: String,
    },
    /// The journal cannot be used.
    Journal {
        /// The reason why the journal cannot be used.
        why: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock { copy, why } => write!(f, "{copy} superblock: {why}"),
            Self::ShortData { size, needed } => {
                write!(f, "the data device has {size} bytes, but the tags cover {needed}")
            }
            Self::Map { blocks } => {
                write!(f, "dirty map: the checksums of {blocks} blocks are wrong")
            }
            Self::Unreadable { why } => f.write_str(why),
            Self::Journal { why } => write!(f, "journal: {why}"),
        }
    }
}

/// Reads the superblocks, the dirty map and the journal of an integrity device. No program may have the device open for writing.
///
/// # Errors
/// `UnknownFormat` if there is no tag area; `Corrupt` if no copy of the superblock is intact; `Unsupported`, with the feature's name; `Io`.
pub fn check(data: &Arc<dyn Device>, tags: Option<&Arc<dyn Device>>) -> Result<CheckedArea> {
    let (device, tail) = (tags.unwrap_or(data), tags.is_none());
    let superblock = Superblock::read(&**device, tail)?;
    let (info, clean) = (superblock.info, superblock.clean);
    let mut problems = Vec::new();
    for (copy, name) in Superblock::copies(&**device, tail)?.iter().zip(["first", "last"]) {
        if let Err(error) = copy {
            problems.push(Problem::Superblock { copy: name, why: error.to_string() });
        }
    }
    if data.size() < info.data_size {
        // The check ends here, because the superblock may contain a wrong size, from which the length of the map is computed.
        problems.push(Problem::ShortData { size: data.size(), needed: info.data_size });
        return Ok(CheckedArea { info, clean, dirty: 0, records: 0, sectors: 0, problems });
    }
    let area = Area { device: Arc::clone(device), durability: Arc::default() };
    let mut refused = |error: Error| {
        problems.push(Problem::Unreadable { why: error.to_string() });
        Ok(())
    };
    let map = Regions::read(&area, &info, clean, &mut refused)?;
    if map.bad_blocks > 0 {
        problems.push(Problem::Map { blocks: map.bad_blocks });
    }
    let (mut records, mut sectors) = (0, 0);
    if info.mode == Mode::Journal {
        match Journal::open(&area, &info, |_, _, _| Ok(())) {
            Ok((_, found)) => (records, sectors) = (found.records, found.sectors),
            Err(error) => problems.push(Problem::Journal { why: error.to_string() }),
        }
    }
    Ok(CheckedArea { info, clean, dirty: map.dirty.len() as u64, records, sectors, problems })
}
