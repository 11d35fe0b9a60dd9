//! The space of realtime files: the block numbers that an extent may contain, and the position of each block.
//!
//! Usually the space is on a separate device. That device is mapped past the end of the volume's own device, so realtime blocks are read
//! like all other blocks. With zones, the space can be on the volume's own device, after all other blocks.
//!
//! Without realtime groups, the block number in an extent counts from the beginning of the space. With groups, the upper bits of the number
//! are the group, and the lower bits are the block in the group.

use zerocopy::FromBytes;

use super::disk::realtime::HEADER;
use super::disk::superblock::{REALTIME_CRC, REALTIME_MAGIC, RawRealtimeSuperblock, RawSuperblock};
use super::features::Incompat;
use super::header::crc_of;
use super::{Superblock, Xfs};
use crate::device::Device;
use crate::error::{Context, Error, ErrorKind, Place, Result};
use crate::fs::DeviceRange;
use crate::units::{BlockSize, DevOffset, FsBlock};

/// The maximum value of `log`: a block number within a realtime group has at most this many bits.
const MAX_GROUP_LOG: u8 = 31;
const FEWEST_EXTENTS: u64 = 2;
/// Without groups, a block number has no bits for the group.
const NO_GROUPS_LOG: u8 = 63;

/// The numbering of the blocks of realtime files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Realtime {
    /// The number of low bits of a block number that contain the block within its group. The higher bits contain the group.
    log: u8,
    /// The number of blocks of each group; the last group can have fewer. Without groups this is the total number of blocks.
    group_blocks: u64,
    /// The number of blocks of all groups.
    blocks: u64,
    /// The number of blocks in a realtime extent, which is the unit of allocation.
    pub(super) extent: u64,
    /// Whether the first block of group N is N << `log`. If so, a gap follows each group that has fewer blocks than 1 << `log`.
    has_gaps: bool,
    pub(super) is_zoned: bool,
    has_groups: bool,
    /// The first realtime block on the volume's own device; 0 if the realtime blocks are on another device.
    start: u64,
}

fn wrong<T>(field: &'static str, what: String) -> Result<T> {
    Err(Place::new("superblock").field(field).corrupt(what))
}

/// Checks the size, the number and the numbering of realtime groups.
fn check_groups(raw: &RawSuperblock, group_blocks: u64) -> Result<()> {
    let (extents, extent) = (raw.sb_rextents.get(), raw.sb_rextsize.get());
    let (of_group, log) = (u64::from(raw.sb_rgextents.get()), raw.sb_rgblklog);
    if of_group < FEWEST_EXTENTS || group_blocks > 1 << MAX_GROUP_LOG {
        let what = format!("a realtime group cannot have {of_group} extents of {extent} blocks");
        return wrong("sb_rgextents", what);
    }
    if u64::from(raw.sb_rgcount.get()) != extents.div_ceil(of_group) {
        let what = format!("{} realtime groups do not match {extents} extents", raw.sb_rgcount);
        return wrong("sb_rgcount", what);
    }
    if u32::from(log) != u64::BITS - (group_blocks - 1).leading_zeros() {
        let what = format!(
            "realtime groups of {group_blocks} blocks do not match {log} bits for a block number"
        );
        return wrong("sb_rgblklog", what);
    }
    Ok(())
}

impl Realtime {
    /// Decodes the numbering from the superblock; `None` if there are no realtime blocks. Fields that contradict each other are an error,
    /// as in Linux.
    pub(super) fn new(raw: &RawSuperblock, features: Incompat) -> Result<Option<Self>> {
        let (blocks, extents) = (raw.sb_rblocks.get(), raw.sb_rextents.get());
        let (extent, log) = (u64::from(raw.sb_rextsize.get()), raw.sb_rgblklog);
        if blocks != 0 && (extent == 0 || extents == 0) {
            return wrong(
                "sb_rextsize",
                format!(
                    "{extents} realtime extents of {extent} blocks do not match the number of realtime blocks"
                ),
            );
        }
        if blocks != 0 && blocks / extent != extents {
            let what = format!(
                "{extents} realtime extents of {extent} blocks do not match {blocks} realtime blocks"
            );
            return wrong("sb_rextents", what);
        }
        let has_groups = features.contains(Incompat::METADIR);
        let is_zoned = features.contains(Incompat::ZONED);
        let of_group = u64::from(raw.sb_rgextents.get());
        // The product of two factors with 32 bits each cannot overflow.
        let group_blocks = if has_groups { of_group * extent } else { blocks };
        // The superblock records a group size even if there are no realtime blocks. This size must be valid too.
        if has_groups {
            check_groups(raw, group_blocks)?;
        }
        if blocks == 0 {
            return Ok(None);
        }
        if Some(u32::from(raw.sb_rextslog)) != extents.checked_ilog2() {
            let what = format!("the value {} is not log2 of {extents} extents", raw.sb_rextslog);
            return wrong("sb_rextslog", what);
        }
        let start = if is_zoned { raw.sb_rtstart.get() } else { 0 };
        if start != 0 && start < raw.sb_dblocks.get() {
            return wrong(
                "sb_rtstart",
                format!(
                    "the realtime blocks begin at block {start}, which is within the data blocks"
                ),
            );
        }
        let space = Self {
            log: if has_groups { log } else { NO_GROUPS_LOG },
            group_blocks,
            blocks,
            extent,
            has_gaps: features.contains(Incompat::ZONE_GAPS),
            is_zoned,
            has_groups,
            start,
        };
        let bitmap = space.bitmap_blocks(1 << raw.sb_blocklog);
        let stored = u64::from(raw.sb_rbmblocks.get());
        if !is_zoned && stored != bitmap {
            let what = format!("the bitmap has {stored} blocks, but should have {bitmap}");
            return wrong("sb_rbmblocks", what);
        }
        Ok(Some(space))
    }

    /// The number of blocks in a group's bitmap, for blocks of `block` bytes.
    pub(super) fn bitmap_blocks(&self, block: usize) -> u64 {
        let content = block - if self.has_groups { HEADER } else { 0 };
        self.most_extents().div_ceil(8 * content as u64)
    }

    /// The number of realtime groups.
    pub(super) fn groups(&self) -> u64 {
        self.blocks.div_ceil(self.group_blocks)
    }

    /// The number of blocks of a group, rounded down to whole extents.
    pub(super) fn group_len(&self, group: u64) -> u64 {
        let before = group.saturating_mul(self.group_blocks);
        let blocks = self.blocks.saturating_sub(before).min(self.group_blocks);
        blocks - blocks % self.extent
    }

    /// The number of extents in a group of full length. If a volume has only one group, this group can be shorter.
    pub(super) fn most_extents(&self) -> u64 {
        self.group_blocks / self.extent
    }

    pub(super) fn has_groups(&self) -> bool {
        self.has_groups
    }

    /// Whether the first extent of the first group contains the superblock of the realtime device.
    pub(super) fn has_superblock(&self) -> bool {
        self.has_groups && !self.is_zoned
    }

    /// Splits a block number into the group and the block within the group. The number is the first of `count` blocks. Returns `None` if
    /// these blocks are not all in the group, or cannot belong to a file.
    pub(super) fn within(&self, number: u64, count: u64) -> Option<(u64, u64)> {
        if self.has_superblock() && number < self.extent {
            return None;
        }
        let (group, within) = (number >> self.log, number & ((1 << self.log) - 1));
        let end = within.checked_add(count)?;
        (group < self.groups() && end <= self.group_len(group)).then_some((group, within))
    }

    /// The first block of a group, counted from the beginning of the device.
    fn group_start(&self, group: u64) -> Option<u64> {
        if self.has_gaps {
            group.checked_mul(1 << self.log)
        } else {
            group.checked_mul(self.group_blocks)
        }
    }

    /// The first byte past the realtime space, if the space is on the volume's own device.
    fn end(&self, block: BlockSize) -> Option<u64> {
        self.start.checked_mul(block.bytes() as u64)?.checked_add(self.len(block)?)
    }

    /// The minimum length of the device in bytes.
    fn len(&self, block: BlockSize) -> Option<u64> {
        let last = self.groups().checked_sub(1)?;
        let end = self.group_start(last)?.checked_add(self.group_len(last))?;
        end.checked_mul(block.bytes() as u64)
    }

    /// Decodes a block number into a block, counted from the beginning of the device.
    fn block(&self, number: u64, count: u64, place: Place) -> Result<u64> {
        let found = self.within(number, count);
        let block = found.and_then(|(group, within)| self.group_start(group)?.checked_add(within));
        block.ok_or_else(|| place.corrupt("the blocks are outside the realtime blocks"))
    }
}

impl Superblock {
    /// The first byte past the volume. Realtime space on the volume's own device is part of the volume.
    pub(super) fn end(&self) -> u64 {
        let block = self.geometry.block;
        let data = self.geometry.blocks.saturating_mul(block.bytes() as u64);
        let end = self.realtime().filter(|realtime| realtime.start > 0);
        let end = end.and_then(|realtime| realtime.end(block));
        data.max(end.unwrap_or(0))
    }

    /// The numbering of realtime blocks, if the volume has realtime blocks.
    pub(super) fn realtime(&self) -> Option<&Realtime> {
        self.realtime.as_ref()
    }

    /// The range of the realtime space on the volume's own device; `None` if the space is not on that device.
    fn own_realtime_range(&self, device: &dyn Device) -> Result<Option<DeviceRange>> {
        let own = self.realtime().filter(|realtime| realtime.start > 0);
        let Some(realtime) = own else { return Ok(None) };
        let (block, size) = (self.geometry.block, device.size());
        if realtime.end(block).is_none_or(|end| end > size) {
            let (start, blocks) = (realtime.start, realtime.blocks);
            let what = format!(
                "the {blocks} realtime blocks from block {start} on exceed the device of {size} bytes"
            );
            return Err(Place::new("superblock").field("sb_rtstart").corrupt(what));
        }
        let start = block.offset_of(FsBlock(realtime.start)).0;
        Ok(Some(DeviceRange { start, len: size - start }))
    }

    /// Checks that `range` of the device contains the realtime files of the volume. The check reads only the device itself.
    fn check_realtime_device(&self, device: &dyn Device, range: DeviceRange) -> Result<()> {
        let Some(realtime) = &self.realtime else {
            return Err(Error::invalid("the XFS volume has no realtime device"));
        };
        if realtime.len(self.geometry.block).is_none_or(|len| len > range.len) {
            let (blocks, bytes) = (self.realtime_blocks, range.len);
            let what = format!(
                "a realtime device of {bytes} bytes is too small for {blocks} realtime blocks"
            );
            return Err(Error::invalid(what));
        }
        if realtime.has_superblock() {
            let mut bytes = vec![0; self.geometry.block.bytes()];
            device.read_exact_at(&mut bytes, DevOffset(range.start))?;
            let (raw, _) = RawRealtimeSuperblock::read_from_prefix(&bytes).map_err(|_| {
                Place::new("realtime superblock").corrupt("the realtime superblock is truncated")
            })?;
            let magic = raw.rsb_magicnum.get();
            if magic != REALTIME_MAGIC {
                let what =
                    format!("the device is not an XFS realtime device: rsb_magicnum is {magic:#x}");
                return Err(Error::new(ErrorKind::UnknownFormat, what));
            }
            if raw.rsb_uuid != self.uuid {
                let what = "the realtime device belongs to another volume";
                return Err(Error::invalid(what));
            }
            let place = Place::new("realtime superblock");
            let (stored, computed) =
                (u32::from_le_bytes(raw.rsb_crc), crc_of(&bytes, REALTIME_CRC));
            if stored != computed {
                return Err(place.field("rsb_crc").bad_checksum(stored, computed));
            }
            if raw.rsb_meta_uuid != self.meta_uuid {
                let what = "the UUID differs from sb_meta_uuid of the volume";
                return Err(place.field("rsb_meta_uuid").corrupt(what));
            }
        }
        Ok(())
    }
}

impl Xfs {
    /// Enables reads of realtime files, if their device is given or if they are on the volume's own device.
    pub(super) fn join_realtime(&mut self, given: Option<DeviceRange>) -> Result<()> {
        let device = self.metadata.device();
        let own = self.superblock.own_realtime_range(&**device)?;
        if own.is_some() && given.is_some() {
            let what = "no realtime device is needed: the realtime files of the XFS volume are on the volume's own device";
            return Err(Error::invalid(what));
        }
        let Some(range) = own.or(given) else { return Ok(()) };
        let checked = self.superblock.check_realtime_device(&**device, range);
        if given.is_some() {
            checked.context(|| "realtime device")?;
        } else {
            checked?;
        }
        self.realtime_start = Some(DevOffset(range.start));
        Ok(())
    }

    /// Converts the block number in a realtime file's extent into a block of the mapped device.
    pub(super) fn realtime_extent(&self, number: u64, count: u64, place: Place) -> Result<FsBlock> {
        let (Some(start), Some(realtime)) = (self.realtime_start, self.superblock.realtime())
        else {
            return Err(not_given(place));
        };
        let first = realtime.block(number, count, place)?;
        let start = start.0 >> self.superblock.geometry.block.shift();
        let at = start.checked_add(first);
        at.map(FsBlock).ok_or_else(|| place.corrupt("the blocks are outside the realtime blocks"))
    }
}

fn not_given(place: Place) -> Error {
    let inode = place.inode.unwrap_or_default();
    Error::unsupported(format!(
        "inode {inode}: the data is on the realtime device: name this device with --realtime DEVICE"
    ))
}
