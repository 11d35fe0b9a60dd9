//! Copies of the superblock, for reads of a volume whose first superblock is damaged or lost.
//!
//! Each allocation group begins with a copy. A copy must pass three tests before it is used. It passes every check of a superblock. Its
//! position is the start of a group by its own geometry. A second copy has the same geometry. (On a volume with two groups, a header of the
//! second group replaces the second copy.) If a file contains an image of another XFS volume, the superblocks in the image are at other
//! positions and fail the tests.
//!
//! mkfs.xfs marks all copies as incomplete, and stores the number of the root inode in only two copies. XFS does not update the counters in
//! a copy, so the counters are computed from the groups.

use zerocopy::{FromBytes, IntoBytes};

use super::Xfs;
use super::disk::group::{FREE_MAGIC, FREE_SECTOR};
use super::disk::inode::MAGIC as INODE_MAGIC;
use super::disk::superblock::{CRC_OFFSET, MAGIC, RawSuperblock, version};
use super::header::{array, crc_of};
use super::overlay::Replayed;
use super::superblock::Superblock;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{Backup, Rescue};
use crate::sorting::Sorting;
use crate::units::{BlockSize, DevOffset};

/// The values that the search tries: the number of groups, and the block size as an exponent of two.
const GROUP_COUNTS: std::ops::RangeInclusive<u64> = 2..=64;
const SHIFTS: std::ops::RangeInclusive<u8> = 9..=16;
/// The size of the largest group, which mkfs.xfs uses on devices of 4 TiB and more.
const LARGEST_GROUP: u64 = 1 << 40;
/// The size of the smallest group that mkfs.xfs makes.
const SMALLEST_GROUP: u64 = 16 << 20;
/// The maximum number of groups whose copies are compared.
const COMPARED: u32 = 64;
/// A thorough search reads the first `START` bytes of the device, and `AROUND` bytes before and after each likely start of a group. Stripe
/// alignment moves the start of a group by less than `AROUND`.
const START: u64 = 4 << 30;
const AROUND: u64 = 8 << 20;
const CHUNK: usize = 1 << 20;
/// The maximum length of a sector that contains a superblock.
const LARGEST_SECTOR: usize = 32 << 10;
/// The maximum number of blocks that are searched for the root inode.
const ROOT_BLOCKS: u32 = 4096;
/// The value of an inode number that mkfs.xfs has not stored yet.
const NULL: u64 = u64::MAX;

/// A copy of the superblock that is used instead of the first superblock.
pub(super) struct Copy {
    /// The copy, with the inode numbers that mkfs.xfs stores only in the first superblock filled in.
    pub(super) raw: RawSuperblock,
    /// The fault of the first superblock. `None` if the caller has named the copy.
    pub(super) fault: Option<String>,
}

/// The copy of the superblock in the given group, or in the first group that has an undamaged copy.
pub(super) fn find_backup(device: &dyn Device, group: Option<u64>) -> Result<Option<Backup>> {
    if group.is_none() && is_as_written(device) {
        return Ok(None);
    }
    let is_thorough = group.is_some() || Superblock::is_on(device).unwrap_or(false);
    Ok(find(device, group, is_thorough).map(|(superblock, _)| Backup {
        number: superblock.copy.into(),
        counts: "allocation group",
        block_size: superblock.block_size(),
        is_proven: true,
    }))
}

impl Xfs {
    /// Reads the superblock for a volume that is only read: the copy that `rescue` selects, the first superblock, or, if the first
    /// superblock is damaged or lost, a copy.
    pub(super) fn superblock_for_reading(
        device: &dyn Device,
        rescue: &Rescue,
    ) -> Result<(Superblock, Option<Copy>)> {
        if let Some(group) = rescue.superblock {
            let Some((superblock, raw)) = find(device, Some(group), true) else {
                let what =
                    format!("allocation group {group} contains no copy of an XFS superblock");
                return Err(Error::new(ErrorKind::UnknownFormat, what));
            };
            return Ok((superblock, Some(Copy { raw, fault: None })));
        }
        let error = match Superblock::read(device) {
            Err(error)
                if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported)
                    && !is_as_written(device) =>
            {
                error
            }
            read => return read.map(|superblock| (superblock, None)),
        };
        let is_there = Superblock::is_on(device)?;
        let Some((superblock, raw)) = find(device, None, is_there) else { return Err(error) };
        let group = superblock.copy;
        let fault = if is_there { format!("damaged ({error})") } else { "lost".to_owned() };
        let fault = format!("the first superblock is {fault}: the copy in group {group} is used");
        Ok((superblock, Some(Copy { raw, fault: Some(fault) })))
    }
}

/// Whether the first superblock is unchanged since a program wrote it. If an unchanged superblock is refused, a copy does not help: the
/// volume has an unsupported feature, needs a repair, is incomplete or is truncated.
fn is_as_written(device: &dyn Device) -> bool {
    let bytes = read(device, 0, LARGEST_SECTOR).unwrap_or_default();
    let Ok((raw, _)) = RawSuperblock::ref_from_prefix(&bytes) else { return false };
    if raw.sb_magicnum.get() != MAGIC {
        return false;
    }
    if raw.sb_versionnum.get() & version::NUMBER < 5 && raw.sb_crc == [0; 4] {
        // Without a checksum, an invalid field is taken as damage. The exception is the size: it is also invalid on a truncated volume.
        return Superblock::read(device).map_or_else(
            |error| {
                error.kind() == ErrorKind::Unsupported
                    || error.place().is_some_and(|place| place.field == "sb_dblocks")
            },
            |_| true,
        );
    }
    let sector = bytes.get(..raw.sb_sectsize.get().into());
    sector.is_some_and(|sector| sector.len() >= size_of::<RawSuperblock>() && is_sealed(sector))
}

/// Searches for a copy. Errors of the device are ignored, because other copies may be readable.
fn find(
    device: &dyn Device,
    group: Option<u64>,
    is_thorough: bool,
) -> Option<(Superblock, RawSuperblock)> {
    // The caller may have given the block number of an ext4 superblock instead of a group number. The device is too small for a group with
    // this number, so no search is made.
    if group.is_some_and(|group| group.saturating_mul(SMALLEST_GROUP) >= device.size()) {
        return None;
    }
    let group = group.map(|group| u32::try_from(group).unwrap_or(u32::MAX));
    let starts = likely_starts(device);
    let found = starts.iter().find_map(|at| proven(device, *at, group));
    if found.is_some() || !is_thorough {
        return found;
    }
    let around = starts.iter().map(|at| at.saturating_sub(AROUND)..at.saturating_add(AROUND));
    std::iter::once(0..START).chain(around).find_map(|range| scan(device, range, group))
}

/// The byte positions at which a group is likely to begin. They are computed from the damaged superblock, and from the group sizes that
/// mkfs.xfs chooses.
fn likely_starts(device: &dyn Device) -> Vec<u64> {
    let mut starts = Vec::new();
    let first = read(device, 0, 512).unwrap_or_default();
    if let Ok((raw, _)) = RawSuperblock::ref_from_prefix(&first) {
        let len = u64::from(raw.sb_agblocks.get()) << raw.sb_blocklog.min(*SHIFTS.end());
        starts.extend((1..4).map(|group| group * len));
    }
    for shift in SHIFTS {
        for groups in GROUP_COUNTS {
            let blocks = (device.size() >> shift).div_ceil(groups);
            starts.push((blocks << shift).min(LARGEST_GROUP));
        }
    }
    starts.retain(|at| *at > 0 && *at < device.size());
    starts.order();
    starts.dedup();
    starts
}

/// Reads a range of the device and tries each sector that begins like a superblock.
fn scan(
    device: &dyn Device,
    range: std::ops::Range<u64>,
    group: Option<u32>,
) -> Option<(Superblock, RawSuperblock)> {
    let end = range.end.min(device.size());
    let mut at = range.start / CHUNK as u64 * CHUNK as u64;
    while at < end {
        let len = (end - at).min(CHUNK as u64) as usize;
        // The search ends at the first read error: on a truncated device, all further reads would fail too.
        let bytes = read(device, at, len)?;
        let sectors = bytes.chunks(512).enumerate();
        let alike = sectors.filter(|(_, sector)| sector.starts_with(&MAGIC.to_be_bytes()));
        for (index, _) in alike {
            let start = at + index as u64 * 512;
            if start > 0
                && let Some(found) = proven(device, start, group)
            {
                return Some(found);
            }
        }
        at += CHUNK as u64;
    }
    None
}

/// The superblock at byte `at`, if other structures of the volume confirm that it is a copy. If `group` is given, returns the copy in that
/// group.
fn proven(device: &dyn Device, at: u64, group: Option<u32>) -> Option<(Superblock, RawSuperblock)> {
    let first = copy_at(device, at)?;
    let (groups, len) = (first.sb_agcount.get(), group_bytes(&first));
    let own = u32::try_from(at / len).ok().filter(|own| *own > 0 && *own < groups)?;
    if !at.is_multiple_of(len) {
        return None;
    }
    let mut root = first.sb_rootino.get();
    let mut others = 0;
    // mkfs.xfs stores the number of the root inode in the copies of the last group and of the middle group.
    let compared = (1..groups.min(COMPARED)).chain([(groups - 1) / 2, groups - 1]);
    for other in compared.filter(|other| *other != own && *other > 0) {
        let Some(copy) = copy_at(device, u64::from(other) * len) else { continue };
        if geometry(&copy) == geometry(&first) {
            others += 1;
            root = if root == NULL { copy.sb_rootino.get() } else { root };
        }
    }
    // On a truncated volume, other copies can be missing. Therefore a copy in a group that the caller names needs no second copy.
    let needs_other = groups > 2 && group.is_none();
    if others == 0 && (needs_other || !has_header(device, at, &first, own)) {
        return None;
    }
    let (mut raw, group) = match group {
        Some(group) if group != own => {
            let is_inside = group > 0 && group < groups;
            let copy = is_inside.then(|| copy_at(device, u64::from(group) * len)).flatten()?;
            (Some(copy).filter(|copy| geometry(copy) == geometry(&first))?, group)
        }
        _ => (first, own),
    };
    if root == NULL || root == 0 {
        root = root_inode(device, &raw)?;
    }
    complete(&mut raw, root);
    let superblock = Superblock::decode(&sector_of(&raw), device.size(), Replayed::Yes).ok()?;
    Some((superblock.of_copy(group), raw))
}

/// Sets the fields that mkfs.xfs and mounts store in the first superblock only.
fn complete(raw: &mut RawSuperblock, root: u64) {
    raw.sb_inprogress = 0;
    raw.sb_rootino.set(root);
    let next = [(&mut raw.sb_rbmino, 1), (&mut raw.sb_rsumino, 2), (&mut raw.sb_metadirino, 1)];
    for (field, after) in next {
        if field.get() == NULL {
            field.set(root + after);
        }
    }
    for quota in [&mut raw.sb_uquotino, &mut raw.sb_gquotino, &mut raw.sb_pquotino] {
        quota.set(0);
    }
}

/// A sector that contains a superblock.
fn sector_of(raw: &RawSuperblock) -> Vec<u8> {
    let mut bytes = raw.as_bytes().to_vec();
    bytes.resize(LARGEST_SECTOR, 0);
    bytes
}

/// The fields that are equal in all copies, and that no mount changes.
fn geometry(raw: &RawSuperblock) -> impl PartialEq {
    let sizes = [
        raw.sb_blocksize.get(),
        raw.sb_agblocks.get(),
        raw.sb_agcount.get(),
        raw.sb_logblocks.get(),
        raw.sb_sectsize.get().into(),
        raw.sb_inodesize.get().into(),
        raw.sb_dirblklog.into(),
    ];
    (raw.sb_uuid, sizes, raw.sb_dblocks.get(), raw.sb_logstart.get())
}

/// The length of a group.
fn group_bytes(raw: &RawSuperblock) -> u64 {
    u64::from(raw.sb_agblocks.get()) << raw.sb_blocklog
}

/// The superblock at byte `at`, if its checksum and its sizes are valid.
fn copy_at(device: &dyn Device, at: u64) -> Option<RawSuperblock> {
    if !read(device, at, 512)?.starts_with(&MAGIC.to_be_bytes()) {
        return None;
    }
    let bytes = read(device, at, LARGEST_SECTOR)?;
    let (raw, _) = RawSuperblock::read_from_prefix(&bytes).ok()?;
    let sector = bytes.get(..raw.sb_sectsize.get().into())?;
    let number = raw.sb_versionnum.get() & version::NUMBER;
    let fits = BlockSize::from_shift(raw.sb_blocklog).is_some() && raw.sb_agblocks.get() > 0;
    let is_sound = number == 4 || sector.len() >= size_of::<RawSuperblock>() && is_sealed(sector);
    (fits && is_sound).then_some(raw)
}

fn is_sealed(sector: &[u8]) -> bool {
    u32::from_le_bytes(array(sector, CRC_OFFSET)) == crc_of(sector, CRC_OFFSET)
}

/// Whether the group at byte `at` contains a free-space header (AGF) with the number of this group.
fn has_header(device: &dyn Device, at: u64, raw: &RawSuperblock, group: u32) -> bool {
    let sector = u64::from(raw.sb_sectsize.get());
    read(device, at + FREE_SECTOR * sector, 512).is_some_and(|bytes| {
        bytes.starts_with(&FREE_MAGIC) && u32::from_be_bytes(array(&bytes, 8)) == group
    })
}

/// The number of the root inode: the first inode of the first group. mkfs.xfs makes it before any other inode.
fn root_inode(device: &dyn Device, raw: &RawSuperblock) -> Option<u64> {
    (1..ROOT_BLOCKS.min(raw.sb_agblocks.get())).find_map(|block| {
        let number = u64::from(block) << raw.sb_inopblog.min(8);
        let bytes = read(device, u64::from(block) << raw.sb_blocklog, 512)?;
        let is_directory = u16::from_be_bytes(array(&bytes, 2)) >> 12 == 4;
        let is_inode = bytes.starts_with(&INODE_MAGIC.to_be_bytes());
        let own = bytes[4] < 3 || u64::from_be_bytes(array(&bytes, 152)) == number;
        (is_inode && is_directory && own).then_some(number)
    })
}

/// Reads a range of the device, or the part of it before the end of the device. The request covers whole sectors.
fn read(device: &dyn Device, at: u64, len: usize) -> Option<Vec<u8>> {
    let unit = u64::from(device.limits().logical_block);
    let from = at / unit * unit;
    let end = at.checked_add(len as u64)?.checked_next_multiple_of(unit)?.min(device.size());
    let mut bytes = vec![0; usize::try_from(end.checked_sub(from)?).ok()?];
    device.read_exact_at(&mut bytes, DevOffset(from)).ok()?;
    let mut bytes = bytes.split_off(((at - from) as usize).min(bytes.len()));
    bytes.truncate(len);
    (bytes.len() >= len.min(512)).then_some(bytes)
}
