//! The backups of the superblock. They are updated after an operation has enabled a feature.
//!
//! Linux does not update the backups. This can lose data: if `e2fsck -b` repairs a volume from a backup without the feature ext_attr,
//! e2fsck removes all extended attributes. A close therefore stores the enabled features in the backups, together with the revision that
//! these features need. The primary superblock is written first: `Superblock::check_revision` refuses a primary superblock of revision 0 if
//! a backup has revision 1.

use std::io::IoSlice;
use std::sync::atomic::Ordering;

use zerocopy::FromBytes;

use super::Ext4;
use super::disk::superblock::{MAGIC, RawSuperblock};
use super::features::{Compat, RoCompat};
use super::superblock::{change_features, change_superblock, features, superblock_checksum};
use crate::error::Result;

impl Ext4 {
    /// Copies the features that operations have enabled into every backup. A damaged or unreadable backup stays unchanged.
    ///
    /// # Errors
    /// The device's errors on writes.
    pub(super) fn raise_backups(&self) -> Result<()> {
        let writing = self.writing()?;
        if !writing.features_switched.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let sb = &self.superblock;
        let now = features(&self.raw_superblock()?);
        let switched = (now.compat & Compat::EXT_ATTR, now.ro_compat & RoCompat::LARGE_FILE);
        let has = |backup: &[u8]| {
            RawSuperblock::ref_from_prefix(backup).is_ok_and(|(raw, _)| {
                let there = features(raw);
                (there.compat & switched.0, there.ro_compat & switched.1) == switched
            })
        };
        for group in (1..sb.groups).filter(|group| sb.group_has_backup(*group)) {
            let block = sb.group_start(group);
            let Ok(mut content) = self.blocks.read_device(block) else { continue };
            if !self.is_backup_of(&content, group) || has(&content) {
                continue;
            }
            change_superblock(content.for_change()?, |raw| {
                change_features(raw, |features| {
                    features.compat |= switched.0;
                    features.ro_compat |= switched.1;
                });
                Ok(())
            })?;
            self.blocks.write_device(block, &[IoSlice::new(&content)], false)?;
            // Each backup is flushed before the next backup is written. A power failure then damages at most one backup.
            self.blocks.flush()?;
        }
        Ok(())
    }

    fn is_backup_of(&self, bytes: &[u8], group: u32) -> bool {
        let Ok((raw, _)) = RawSuperblock::ref_from_prefix(bytes) else { return false };
        let summed =
            self.superblock.seed.is_none() || raw.s_checksum.get() == superblock_checksum(bytes);
        raw.s_magic.get() == MAGIC
            && raw.s_uuid == self.superblock.uuid
            && raw.s_block_group_nr.get() == group as u16
            && summed
    }
}
