//! Space of realtime files: which of its blocks an extent may name, and where the library sees them.
//!
//! It lies on a device of its own, which is seen past the end of the volume's own device, so that its blocks are read as all others are. With
//! zones it can lie on the volume's own device, past all else. An extent names a block by its number, or, with groups, by the number of a group
//! and of a block in it.

use zerocopy::FromBytes;

use super::disk::superblock::{REALTIME_MAGIC, RawRealtimeSuperblock, RawSuperblock};
use super::features::Incompat;
use super::{Superblock, Xfs};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::DeviceRange;
use crate::units::{BlockSize, DevOffset, FsBlock};

/// A group has 31 bits of the number of a block at most.
const MAX_GROUP_LOG: u8 = 31;
/// Without groups all bits of a number are those of the block.
const NO_GROUPS_LOG: u8 = 63;

/// How the blocks of realtime files are numbered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Realtime {
    /// How many bits of a number are those of the block in its group.
    log: u8,
    /// Blocks of each group; the last one can have fewer. Without groups there is one.
    group_blocks: u64,
    /// Blocks of all groups.
    blocks: u64,
    /// Blocks of an extent, the unit of allocation.
    pub(super) extent: u64,
    /// Groups lie as far from each other as their numbers do, not side by side.
    has_gaps: bool,
    pub(super) is_zoned: bool,
    has_groups: bool,
    /// The first block on the volume's own device; 0 where it is another device.
    start: u64,
}

impl Realtime {
    /// As the superblock has it, not checked: only those who read realtime files need it.
    pub(super) fn new(raw: &RawSuperblock, features: Incompat) -> Option<Self> {
        let blocks = raw.sb_rblocks.get();
        let extent = u64::from(raw.sb_rextsize.get());
        let has_groups = features.contains(Incompat::METADIR);
        let is_zoned = features.contains(Incompat::ZONED);
        let group = if has_groups { u64::from(raw.sb_rgextents.get()) * extent } else { blocks };
        (blocks > 0).then_some(Self {
            log: if has_groups { raw.sb_rgblklog } else { NO_GROUPS_LOG },
            group_blocks: group,
            blocks,
            extent,
            has_gaps: features.contains(Incompat::ZONE_GAPS),
            is_zoned,
            has_groups,
            start: if is_zoned { raw.sb_rtstart.get() } else { 0 },
        })
    }

    /// Checks that blocks can be counted.
    pub(super) fn check(&self) -> Result<()> {
        let Self { log, group_blocks, extent, .. } = *self;
        let fits = !self.has_groups || log <= MAX_GROUP_LOG && group_blocks <= 1 << log;
        if !fits || group_blocks == 0 || extent == 0 {
            let what = format!("realtime groups of {group_blocks} blocks, by {log} bits");
            return Err(Place::new("superblock").field("sb_rgblklog").corrupt(what));
        }
        Ok(())
    }

    /// How many groups there are.
    pub(super) fn groups(&self) -> u64 {
        self.blocks.div_ceil(self.group_blocks)
    }

    /// Blocks of a group: whole extents.
    pub(super) fn group_len(&self, group: u64) -> u64 {
        let before = group.saturating_mul(self.group_blocks);
        let blocks = self.blocks.saturating_sub(before).min(self.group_blocks);
        blocks - blocks % self.extent
    }

    pub(super) fn has_groups(&self) -> bool {
        self.has_groups
    }

    /// The first extent of the first group holds a superblock of the device.
    pub(super) fn has_superblock(&self) -> bool {
        self.has_groups && !self.is_zoned
    }

    /// The group, and the block in it, of a number, if a file can have so many blocks from it on.
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

    /// Bytes that the device has at least.
    fn len(&self, block: BlockSize) -> Option<u64> {
        let last = self.groups().checked_sub(1)?;
        let end = self.group_start(last)?.checked_add(self.group_len(last))?;
        end.checked_mul(block.bytes() as u64)
    }

    /// The block, counted from the beginning of the device, that a number stands for.
    fn block(&self, number: u64, count: u64, place: Place) -> Result<u64> {
        let found = self.within(number, count);
        let block = found.and_then(|(group, within)| self.group_start(group)?.checked_add(within));
        block.ok_or_else(|| place.corrupt("its blocks are not those of realtime files"))
    }
}

impl Superblock {
    /// The first byte after everything, with the realtime space that is on the volume's own device.
    pub(super) fn end(&self) -> u64 {
        let block = self.geometry.block;
        let data = self.geometry.blocks.saturating_mul(block.bytes() as u64);
        let own = self.realtime.filter(|realtime| realtime.start > 0 && realtime.check().is_ok());
        let end = own.and_then(|realtime| {
            realtime.start.checked_mul(block.bytes() as u64)?.checked_add(realtime.len(block)?)
        });
        data.max(end.unwrap_or(0))
    }

    /// The part of the volume's own device that has the realtime files.
    fn own_realtime_range(&self, device: &dyn Device) -> Result<Option<DeviceRange>> {
        let Some(Realtime { start, .. }) = self.realtime.filter(|realtime| realtime.start > 0)
        else {
            return Ok(None);
        };
        let start_byte = start.checked_mul(self.geometry.block.bytes() as u64);
        let range = start_byte.filter(|_| start >= self.geometry.blocks).and_then(|start| {
            device.size().checked_sub(start).map(|len| DeviceRange { start, len })
        });
        let wrong = || {
            let what = format!("block {start} of a device of {} bytes", device.size());
            Place::new("superblock").field("sb_rtstart").corrupt(what)
        };
        range.map(Some).ok_or_else(wrong)
    }

    /// Checks that the device that is seen at this range has the realtime files, as far as that can be told.
    fn check_realtime_device(&self, device: &dyn Device, range: DeviceRange) -> Result<()> {
        let Some(realtime) = &self.realtime else {
            return Err(Error::invalid("the XFS volume has no realtime device"));
        };
        realtime.check()?;
        if realtime.len(self.geometry.block).is_none_or(|len| len > range.len) {
            let (blocks, bytes) = (self.realtime_blocks, range.len);
            let what = format!("a device of {bytes} bytes for {blocks} realtime blocks");
            return Err(Error::invalid(what));
        }
        if realtime.has_superblock() {
            let mut bytes = vec![0; self.geometry.block.bytes()];
            device.read_exact_at(&mut bytes, DevOffset(range.start))?;
            let (raw, _) = RawRealtimeSuperblock::read_from_prefix(&bytes)
                .map_err(|_| Place::new("realtime superblock").corrupt("it is cut short"))?;
            let magic = raw.rsb_magicnum.get();
            if magic != REALTIME_MAGIC {
                let what =
                    format!("the device holds no realtime files: rsb_magicnum is {magic:#x}");
                return Err(Error::new(ErrorKind::UnknownFormat, what));
            }
            if raw.rsb_uuid != self.uuid {
                let what = "the device holds the realtime files of another volume";
                return Err(Error::invalid(what));
            }
        }
        Ok(())
    }
}

impl Xfs {
    /// Realtime files are read from now on, where their device is given, or is the volume's own.
    pub(super) fn join_realtime(&mut self, given: Option<DeviceRange>) -> Result<()> {
        let device = self.metadata.device();
        let own = self.superblock.own_realtime_range(&**device)?;
        if own.is_some() && given.is_some() {
            let what = "the realtime files of the XFS volume are on its own device";
            return Err(Error::invalid(what));
        }
        let Some(range) = own.or(given) else { return Ok(()) };
        self.superblock.check_realtime_device(&**device, range)?;
        self.realtime_start = Some(DevOffset(range.start));
        Ok(())
    }

    /// Where an extent of a realtime file is seen.
    pub(super) fn realtime_extent(&self, number: u64, count: u64, place: Place) -> Result<FsBlock> {
        let (Some(start), Some(realtime)) = (self.realtime_start, &self.superblock.realtime) else {
            return Err(not_given(place));
        };
        let first = realtime.block(number, count, place)?;
        let start = start.0 >> self.superblock.geometry.block.shift();
        let at = start.checked_add(first);
        at.map(FsBlock).ok_or_else(|| place.corrupt("its blocks are not those of realtime files"))
    }
}

fn not_given(place: Place) -> Error {
    let inode = place.inode.unwrap_or_default();
    Error::unsupported(format!(
        "inode {inode}: its data lie on the realtime device, which is not given"
    ))
}
