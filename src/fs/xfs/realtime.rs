//! The realtime device: which of its blocks an extent may name, and where the library sees them.
//!
//! A realtime file's extents name blocks of that device: by their number, or, with metadata directories, by the number of a group and of a block
//! in it. It is seen past the end of the volume's own device, so that its blocks are read as all others are.

use zerocopy::FromBytes;

use super::disk::superblock::{REALTIME_MAGIC, RawRealtimeSuperblock, RawSuperblock};
use super::{Superblock, Xfs};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::DeviceRange;
use crate::units::{DevOffset, FsBlock};

/// A group has 31 bits of the number of a block at most.
const MAX_GROUP_LOG: u8 = 31;

/// The groups of a realtime device.
#[derive(Clone, Copy, Debug)]
pub(super) struct RealtimeGroups {
    /// How many bits of a number are those of the block in its group.
    log: u8,
    /// Blocks of each group; the last one can have fewer.
    blocks: u64,
    /// Blocks of an extent, of which the first one of all has the superblock.
    extent: u64,
}

impl RealtimeGroups {
    /// The groups as the superblock has them, not checked: they matter to those who read realtime files.
    pub(super) fn new(raw: &RawSuperblock) -> Self {
        let extent = u64::from(raw.sb_rextsize.get());
        let blocks = u64::from(raw.sb_rgextents.get()) * extent;
        Self { log: raw.sb_rgblklog, blocks, extent }
    }

    fn check(self) -> Result<()> {
        let Self { log, blocks, .. } = self;
        if log > MAX_GROUP_LOG || blocks == 0 || blocks > 1 << log {
            let what = format!("realtime groups of {blocks} blocks, by {log} bits");
            return Err(Place::new("superblock").field("sb_rgblklog").corrupt(what));
        }
        Ok(())
    }
}

impl Superblock {
    /// Checks that the device that is seen at this range is the realtime device, as far as that can be told.
    fn check_realtime_device(&self, device: &dyn Device, range: DeviceRange) -> Result<()> {
        if self.realtime_blocks == 0 {
            return Err(Error::invalid("the XFS volume has no realtime device"));
        }
        let len = self.realtime_blocks.checked_mul(self.geometry.block.bytes() as u64);
        if len.is_none_or(|len| len > range.len) {
            let (blocks, bytes) = (self.realtime_blocks, range.len);
            let what = format!("a device of {bytes} bytes for {blocks} realtime blocks");
            return Err(Error::invalid(what));
        }
        if let Some(groups) = self.realtime_groups {
            groups.check()?;
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

    /// The block of the realtime device that a number stands for, if so many blocks from it on are there.
    fn realtime_block(&self, number: u64, count: u64, place: Place) -> Result<u64> {
        let outside = || place.corrupt("its blocks are outside the realtime device");
        let first = match self.realtime_groups {
            None => number,
            Some(groups) => {
                let RealtimeGroups { log, blocks, extent } = groups;
                if number < extent {
                    return Err(place.corrupt("its blocks are those of the realtime superblock"));
                }
                let within = number & ((1 << log) - 1);
                if within.checked_add(count).is_none_or(|end| end > blocks) {
                    return Err(outside());
                }
                (number >> log).checked_mul(blocks).ok_or_else(outside)? + within
            }
        };
        let end = first.checked_add(count).filter(|end| *end <= self.realtime_blocks);
        end.map(|_| first).ok_or_else(outside)
    }
}

impl Xfs {
    /// Realtime files are read from now on, where their device is given.
    pub(super) fn join_realtime(&mut self, range: Option<DeviceRange>) -> Result<()> {
        let Some(range) = range else { return Ok(()) };
        self.superblock.check_realtime_device(&**self.metadata.device(), range)?;
        self.realtime = Some(DevOffset(range.start));
        Ok(())
    }

    /// Where an extent of a realtime file is seen.
    pub(super) fn realtime_extent(&self, number: u64, count: u64, place: Place) -> Result<FsBlock> {
        let Some(start) = self.realtime else { return Err(not_given(place)) };
        let first = self.superblock.realtime_block(number, count, place)?;
        Ok(FsBlock((start.0 >> self.superblock.geometry.block.shift()) + first))
    }
}

fn not_given(place: Place) -> Error {
    let inode = place.inode.unwrap_or_default();
    Error::unsupported(format!(
        "inode {inode}: its data lie on the realtime device, which is not given"
    ))
}
