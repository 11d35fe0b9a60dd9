//! Backups of the superblock, for reads of a volume whose primary superblock is damaged.
//!
//! A backup is trusted if it passes every check of a superblock and is at the start of the group whose number it contains. The group
//! descriptors next to the backup are then used, as with Linux's mount option `sb=N`. A backup does not record whether the journal needs
//! recovery. The journal's own superblock decides this, as in e2fsck.

use zerocopy::FromBytes;

use super::disk::superblock::{MAGIC, REV_DYNAMIC, RawSuperblock};
use super::features::Incompat;
use super::superblock::{PLACE, Superblock};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Backup;
use crate::units::{BlockSize, DevOffset, FsBlock};

/// The groups in which the search looks for a backup. These groups have a backup in most layouts, for example with the feature
/// sparse_super.
const GROUPS: [u32; 8] = [1, 3, 5, 7, 9, 25, 27, 49];
/// The possible block sizes, as exponents of two.
const SHIFTS: std::ops::RangeInclusive<u8> = 10..=16;
/// The cluster sizes that the search tries, in blocks: 1 for a volume without bigalloc, and 16, which is mke2fs's default with bigalloc.
const CLUSTERS: [u64; 2] = [1, 16];

impl Superblock {
    /// Reads the superblock in block `block` of the volume. The block size is not known. Every block size is tried.
    ///
    /// # Errors
    /// `UnknownFormat` if the block has no superblock; the errors of [`parse`](Self::parse); errors of the device.
    pub(super) fn backup_at(device: &dyn Device, block: u64) -> Result<Self> {
        for size in SHIFTS.filter_map(BlockSize::from_shift) {
            // The primary superblock is at byte 1024, after the boot block.
            let at = match block {
                0 => Some(Self::RANGE.0.0),
                block => block.checked_mul(size.bytes() as u64),
            };
            let found = at.map_or(Ok(None), |at| copy_at(device, at))?;
            if let Some(superblock) = found
                && superblock.block_size == size
            {
                return Ok(superblock);
            }
        }
        let what = format!("block {block} contains no superblock of ext2, ext3 or ext4");
        Err(Error::new(ErrorKind::UnknownFormat, what))
    }

    /// Refuses a primary superblock of revision 0 if a backup has a higher revision. No program lowers the revision. The primary superblock
    /// was therefore partly overwritten. An open as revision 0 would not check the fields that only later revisions define.
    ///
    /// # Errors
    /// `Corrupt`; errors of the device.
    pub(super) fn check_revision(&self, device: &dyn Device) -> Result<()> {
        if self.revision >= REV_DYNAMIC {
            return Ok(());
        }
        let Some(backup) = Self::find_backup(device)? else { return Ok(()) };
        // In revision 0, the upper half of the number of blocks is not defined.
        let same = backup.blocks_count as u32 == self.blocks_count as u32
            && backup.inodes_count == self.inodes_count;
        if !same || backup.revision == self.revision {
            return Ok(());
        }
        let block = backup.group_start(backup.copy);
        let what = format!(
            "the revision is {}, but the backup in block {block} has revision {}",
            self.revision, backup.revision
        );
        Err(PLACE.field("s_rev_level").corrupt(what))
    }

    /// The first valid backup. The search computes the positions of groups in two ways: from the damaged superblock, and from the layouts
    /// that mke2fs makes.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn find_backup(device: &dyn Device) -> Result<Option<Self>> {
        let mut layouts = Vec::new();
        let (at, len) = Self::RANGE;
        let mut bytes = vec![0; len];
        if device.size() >= at.0 + len as u64 && device.read_exact_at(&mut bytes, at).is_ok() {
            layouts.extend(claimed(&bytes));
        }
        for size in SHIFTS.filter_map(BlockSize::from_shift) {
            for cluster in CLUSTERS {
                let blocks = size.bytes() as u64 * 8 * cluster;
                // Blocks of 1 KiB are counted from 1, except with bigalloc.
                let first = u64::from(size.bytes() == 1024 && cluster == 1);
                layouts.push((size, first, blocks));
            }
        }
        for group in GROUPS {
            for (size, first, blocks) in &layouts {
                let block = first + u64::from(group) * blocks;
                let Some(at) = block.checked_mul(size.bytes() as u64) else { continue };
                // A damaged or unreadable copy is ignored.
                if let Ok(Some(superblock)) = copy_at(device, at)
                    && superblock.copy == group
                {
                    return Ok(Some(superblock));
                }
            }
        }
        Ok(None)
    }
}

/// The backup in `block`, or, without `block`, the first valid backup.
pub(super) fn find_backup(device: &dyn Device, block: Option<u64>) -> Result<Option<Backup>> {
    let backup = match block {
        Some(block) => Superblock::backup_at(device, block).ok(),
        None => Superblock::find_backup(device)?,
    };
    Ok(backup.map(|superblock| Backup {
        number: superblock.group_start(superblock.copy).0,
        counts: "block",
        block_size: superblock.block_size.bytes(),
        is_proven: false,
    }))
}

/// The block size, the first data block, and the number of blocks per group. They are read from a damaged superblock and are not checked
/// further.
fn claimed(bytes: &[u8]) -> Option<(BlockSize, u64, u64)> {
    let (raw, _) = RawSuperblock::ref_from_prefix(bytes).ok()?;
    let blocks = u64::from(raw.s_blocks_per_group.get());
    let size = Superblock::block_size_of(bytes).filter(|_| blocks > 0)?;
    Some((size, u64::from(raw.s_first_data_block.get().min(1)), blocks))
}

/// Reads the superblock at byte `at` of the device. Returns `None` if there is no superblock, or if the group of the superblock does not
/// begin at that byte.
fn copy_at(device: &dyn Device, at: u64) -> Result<Option<Superblock>> {
    let len = Superblock::RANGE.1;
    if at.checked_add(len as u64).is_none_or(|end| end > device.size()) {
        return Ok(None);
    }
    let mut bytes = vec![0; len];
    device.read_exact_at(&mut bytes, DevOffset(at))?;
    let Ok((raw, _)) = RawSuperblock::ref_from_prefix(&bytes) else { return Ok(None) };
    if raw.s_magic.get() != MAGIC {
        return Ok(None);
    }
    let number = raw.s_block_group_nr.get();
    let mut superblock = Superblock::parse(&bytes, device.size())?;
    if DevOffset(at) == Superblock::RANGE.0 {
        return Ok(Some(superblock));
    }
    let block = FsBlock(at >> superblock.block_size.shift());
    let Some(group) = superblock.group_of_block(block) else { return Ok(None) };
    if superblock.group_start(group) != block || group as u16 != number || group == 0 {
        return Ok(None);
    }
    superblock.copy = group;
    // A backup does not record whether the journal needs recovery. The feature needs_recovery is set here, so that the journal's superblock
    // is read.
    if superblock.journal_inode.is_some() || superblock.has_external_journal() {
        superblock.incompat.insert(Incompat::RECOVER);
    }
    Ok(Some(superblock))
}
