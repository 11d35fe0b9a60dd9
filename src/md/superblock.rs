//! The superblock of a member in the versions 1.0, 1.1 and 1.2, and the choice between several superblocks of a device. The three versions
//! differ only in the position of the superblock. All numbers are little-endian.

use std::fmt;
use std::ops::Range;

use super::old;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::partition::{u32_at, u64_at};
use crate::sorting::Sorting;
use crate::units::DevOffset;

/// The unit of positions and lengths in a superblock of version 1, in bytes.
pub(super) const SECTOR: u64 = 512;
/// The first four bytes of a superblock, little-endian.
pub(super) const MAGIC: u32 = 0xA92B_4EFC;
/// The longest superblock in bytes.
pub(super) const LONGEST: usize = 4096;
/// The length of a superblock of version 1 without its table of roles, in bytes.
const FIXED: usize = 256;
/// The largest number of roles in a superblock of version 1.
const ROLES: usize = (LONGEST - FIXED) / 2;
/// A mask: the bits of a time stamp that contain seconds. The other bits contain microseconds.
const SECONDS: u64 = 0xFF_FFFF_FFFF;
/// The longest log of bad blocks in sectors. Linux writes logs of 8 sectors.
const LOG: u64 = 128;

/// Special values of a role: the member has no position in the array.
pub(super) const SPARE: u16 = 0xFFFF;
pub(super) const FAULTY: u16 = 0xFFFE;
pub(super) const JOURNAL: u16 = 0xFFFD;

/// Bits of the feature map in a superblock.
mod feature {
    pub(super) const RECOVERY: u32 = 2;
    pub(super) const RESHAPE: u32 = 4;
    pub(super) const BAD_BLOCKS: u32 = 8;
    pub(super) const REPLACEMENT: u32 = 16;
    pub(super) const NEW_OFFSET: u32 = 64;
    pub(super) const RECOVERY_BITMAP: u32 = 128;
    pub(super) const JOURNAL: u32 = 512;
    pub(super) const RAID0_LAYOUT: u32 = 4096;
    /// The features that Linux knows.
    pub(super) const KNOWN: u32 = 0x1FFF;
}

/// The content of a superblock. All positions and lengths are in bytes.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    pub(super) version: &'static str,
    pub(super) uuid: String,
    /// The name of the array. It is empty in version 0.90.
    pub(super) name: String,
    /// The time at which the array was created, in seconds.
    pub(super) created: u64,
    pub(super) level: i32,
    /// The number of the layout. `None` if the array is of level 0 and its superblock does not contain the layout.
    pub(super) layout: Option<u32>,
    /// The number of bytes that the array uses of each member. Not valid for the levels linear and 0.
    pub(super) size: u64,
    pub(super) chunk: u64,
    /// The number of members of the complete array.
    pub(super) disks: usize,
    /// The number of changes of the superblock. The superblock with the highest number is the newest one.
    pub(super) events: u64,
    /// The time of the last change of the superblock, in seconds.
    pub(super) updated: u64,
    /// Whether the array was not stopped cleanly, or its first synchronization is not complete.
    pub(super) dirty: bool,
    /// The reason why ironmap cannot read the array. `None` if it can be read.
    pub(super) refusal: Option<String>,
    /// The role of each member. The index is the number of the member.
    pub(super) roles: Vec<u16>,
    /// The number of this member.
    pub(super) number: usize,
    /// The identity of this member. It is empty in version 0.90.
    pub(super) device: Vec<u8>,
    /// The position of this member's data on its device, and the length of the data.
    pub(super) start: u64,
    pub(super) len: u64,
    /// The length of the part of the data that is in sync.
    pub(super) synced: u64,
    /// Whether the member is a replacement: a copy of another member with the same role.
    pub(super) replacement: bool,
    /// The ranges of the device that cannot be read, in ascending order.
    pub(super) bad: Vec<Range<u64>>,
}

/// The properties that are equal in all members of an array.
#[derive(PartialEq, Eq)]
pub(super) struct ArrayShape {
    level: i32,
    layout: Option<u32>,
    chunk: u64,
    disks: usize,
}

impl fmt::Display for ArrayShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, layout, chunk, disks } = self;
        write!(f, "level {level}, ")?;
        if let Some(layout) = layout {
            write!(f, "layout {layout}, ")?;
        }
        write!(f, "chunks of {chunk} bytes, {disks} devices")
    }
}

pub(super) fn corrupt(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("MD superblock: {what}"))
}

/// The product of a number of units and their length in bytes.
pub(super) fn bytes(count: u64, unit: u64) -> Result<u64> {
    count.checked_mul(unit).ok_or_else(|| corrupt("a length exceeds 64 bits"))
}

impl Superblock {
    /// Reads the superblock of a device. If the device has valid superblocks of several versions, returns the superblock of the array that
    /// was created last, as mdadm does. Returns `None` if there is no superblock.
    ///
    /// # Errors
    /// `Corrupt` if there is only a damaged superblock; `Unsupported` for a superblock of version 0.90 with big-endian numbers; `Io`.
    pub(super) fn read(device: &dyn Device) -> Result<Option<Self>> {
        let sectors = device.size() / SECTOR;
        let last = (sectors.saturating_sub(16) & !7) * SECTOR;
        let places = [("1.0", last), ("1.1", 0), ("1.2", 4096)];
        let mut all = Vec::with_capacity(4);
        if let Some((at, content)) = old::block(device)? {
            all.extend(old::parse(&content, at));
        }
        for (version, at) in places {
            if let Some(content) = block(device, at)? {
                all.extend(Self::parse(device, &content, version, at));
            }
        }
        let mut damage = None;
        let mut newest: Option<Self> = None;
        for found in all {
            match found {
                Ok(found) if newest.as_ref().is_none_or(|old| found.created > old.created) => {
                    newest = Some(found);
                }
                Ok(_) => {}
                Err(error) => damage = damage.or(Some(error)),
            }
        }
        match (newest, damage) {
            (None, Some(error)) => Err(error),
            (newest, _) => Ok(newest),
        }
    }

    /// Decodes a superblock of version 1. Returns `None` if the bytes are not a superblock of version 1, or if the superblock names another
    /// position.
    fn parse(
        device: &dyn Device,
        block: &[u8],
        version: &'static str,
        at: u64,
    ) -> Option<Result<Self>> {
        let is_one = u32_at(block, 0) == MAGIC && u32_at(block, 4) == 1;
        (is_one && u64_at(block, 144) == at / SECTOR)
            .then(|| Self::parse_checked(device, block, version, at))
    }

    fn parse_checked(
        device: &dyn Device,
        block: &[u8],
        version: &'static str,
        at: u64,
    ) -> Result<Self> {
        let count = u32_at(block, 220) as usize;
        if count > ROLES {
            return Err(corrupt(format_args!("{count} roles are not valid")));
        }
        let end = FIXED + 2 * count;
        if checksum(&block[..end]) != u32_at(block, 216) {
            return Err(corrupt(format_args!(
                "the checksum of the superblock (version {version}) is wrong"
            )));
        }
        let features = u32_at(block, 8);
        let has = |bits| features & bits != 0;
        let level = u32_at(block, 72).cast_signed();
        let (roles, _) = block[FIXED..end].as_chunks::<2>();
        let recovered = match has(feature::RECOVERY) {
            // With a bitmap, the recovery offset does not show which part of the member is in sync. So no part counts as in sync.
            true if has(feature::RECOVERY_BITMAP) => 0,
            true => bytes(u64_at(block, 152), SECTOR)?,
            false => u64::MAX,
        };
        let mut found = Self {
            version,
            uuid: grouped(&block[16..32]),
            name: printable(&block[32..64]),
            created: u64_at(block, 64) & SECONDS,
            level,
            layout: (level != 0 || has(feature::RAID0_LAYOUT)).then(|| u32_at(block, 76)),
            size: bytes(u64_at(block, 80), SECTOR)?,
            chunk: u64::from(u32_at(block, 88)) * SECTOR,
            disks: u32_at(block, 92) as usize,
            events: u64_at(block, 200),
            updated: u64_at(block, 192) & SECONDS,
            dirty: u64_at(block, 208) != u64::MAX,
            refusal: refusal(features),
            roles: roles.iter().map(|role| u16::from_le_bytes(*role)).collect(),
            number: u32_at(block, 160) as usize,
            device: block[168..184].to_vec(),
            start: bytes(u64_at(block, 128), SECTOR)?,
            len: bytes(u64_at(block, 136), SECTOR)?,
            synced: recovered,
            replacement: has(feature::REPLACEMENT),
            bad: Vec::new(),
        };
        if has(feature::BAD_BLOCKS) {
            let offset = i64::from(u32_at(block, 188).cast_signed()) * SECTOR.cast_signed();
            let log = at.checked_add_signed(offset).filter(|_| offset != 0);
            let sectors = u64::from(u16::from_le_bytes([block[186], block[187]]));
            found.bad = bad_blocks(device, log, sectors, block[185])?;
        }
        Ok(found)
    }

    /// The properties that are equal in all members of an array. Only a reshape changes them.
    pub(super) fn shape(&self) -> ArrayShape {
        let Self { level, layout, chunk, disks, .. } = *self;
        ArrayShape { level, layout, chunk, disks }
    }

    /// The role of the member that has this number.
    pub(super) fn role(&self, number: usize) -> u16 {
        self.roles.get(number).copied().unwrap_or(SPARE)
    }
}

/// The reason why an array with these features cannot be read.
fn refusal(features: u32) -> Option<String> {
    if features & !feature::KNOWN != 0 {
        return Some(format!("it has unknown features (0x{:x})", features & !feature::KNOWN));
    }
    if features & (feature::RESHAPE | feature::NEW_OFFSET) != 0 {
        return Some(old::RESHAPED.to_owned());
    }
    let journal = "it has a write journal, which ironmap does not replay";
    (features & feature::JOURNAL != 0).then(|| journal.to_owned())
}

/// Reads as many bytes as the longest superblock has. Returns `None` if these bytes are not all within the device.
pub(super) fn block(device: &dyn Device, at: u64) -> Result<Option<Vec<u8>>> {
    let end = at.checked_add(LONGEST as u64);
    if end.is_none_or(|end| end > device.size()) {
        return Ok(None);
    }
    let mut block = vec![0; LONGEST];
    device.read_exact_at(&mut block, DevOffset(at))?;
    Ok(Some(block))
}

/// The checksum of a superblock: the sum of all 32-bit words except the checksum, with the carry added. If two bytes remain at the end,
/// they count as a word.
fn checksum(block: &[u8]) -> u32 {
    let (words, rest) = block.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum();
    sum -= u64::from(u32_at(block, 216));
    if let [low, high] = rest {
        sum += u64::from(u16::from_le_bytes([*low, *high]));
    }
    folded(sum)
}

/// The sum of the low half and the high half of a 64-bit number.
pub(super) fn folded(sum: u64) -> u32 {
    (sum as u32).wrapping_add((sum >> 32) as u32)
}

/// The identity of an array as mdadm shows it: four groups of eight digits.
pub(super) fn grouped(uuid: &[u8]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in uuid.iter().enumerate() {
        if at > 0 && at % 4 == 0 {
            text.push(':');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// A name from the superblock. Control characters are escaped.
fn printable(name: &[u8]) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).escape_debug().to_string()
}

/// Reads the log of bad blocks of a member. An entry consists of the number of the first bad unit on the device (54 bits), and the number
/// of bad units. An entry with all bits set ends the log.
fn bad_blocks(
    device: &dyn Device,
    log: Option<u64>,
    sectors: u64,
    shift: u8,
) -> Result<Vec<Range<u64>>> {
    let wrong = || corrupt("the log of bad blocks is not valid");
    let log = log.filter(|_| sectors <= LOG && shift < 32).ok_or_else(wrong)?;
    let mut entries = vec![0; (sectors * SECTOR) as usize];
    device.read_exact_at(&mut entries, DevOffset(log))?;
    let unit = SECTOR << shift;
    let mut bad = Vec::new();
    for entry in entries.chunks(8).map(|entry| u64_at(entry, 0)) {
        if entry == u64::MAX {
            break;
        }
        let (start, len) = (bytes(entry >> 10, unit)?, (entry & 0x3FF) * unit);
        if len > 0 {
            bad.push(start..start.checked_add(len).ok_or_else(wrong)?);
        }
    }
    bad.order_by_key(|range| range.start);
    // Overlapping ranges are merged, so that both the starts and the ends of the ranges are in ascending order.
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(bad.len());
    for range in bad {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    Ok(merged)
}
