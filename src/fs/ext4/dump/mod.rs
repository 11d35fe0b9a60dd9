//! Dumps on-disk structures, field by field, for repairs and for learning the format.
//!
//! A damaged structure is shown with its stored values. If a structure cannot be decoded, the dump also contains a field `problem`. A dump
//! shows the volume after the journal's recovery, as all reads do. Changes by fast commits are not shown: a fast commit records operations,
//! not blocks.

mod block;
mod fields;
mod inode;
mod value;

use std::ops::Deref;
use std::sync::Arc;

use zerocopy::FromBytes;

pub use self::value::{Fields, Value};
use super::checksum::crc32c_raw;
use super::disk::group::{BLOCK_UNINIT, INODE_UNINIT, INODE_ZEROED, RawGroupHigh, RawGroupLow};
use super::disk::journal::RawJournalSuperblock;
use super::disk::superblock::RawSuperblock;
use super::{Compat, Ext4, Incompat, RoCompat};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::units::{FileBlock, FsBlock, InodeNo};

const SUPERBLOCK: Place = Place::new("superblock");
const GROUP: Place = Place::new("group descriptor");
const JOURNAL: Place = Place::new("journal superblock");
const CHECKSUM_OFFSET: usize = std::mem::offset_of!(RawSuperblock, s_checksum);

/// The fields of a volume's structures.
struct Dumper<'a>(&'a Ext4);

impl Deref for Dumper<'_> {
    type Target = Ext4;

    fn deref(&self) -> &Ext4 {
        self.0
    }
}

impl Ext4 {
    /// The primary superblock, or the backup in a group.
    ///
    /// # Errors
    /// `NotFound` for a group that does not exist or has no backup; `Io`.
    pub fn dump_superblock(&self, backup: Option<u32>) -> Result<Fields> {
        let group = backup.unwrap_or(0);
        Dumper(self).check_group(group)?;
        if !self.superblock.group_has_backup(group) {
            let what = format!("group {group} has no backup of the superblock");
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        let (block, at) = if group == 0 {
            self.superblock.position()
        } else {
            (self.superblock.group_start(group), 0)
        };
        let content = self.blocks.read(block, SUPERBLOCK)?;
        let mut record = vec![("group", group.into()), ("block", block.0.into())];
        record.extend(superblock(&content[at..], SUPERBLOCK.block(block))?);
        Ok(record)
    }

    /// The descriptor of a group.
    ///
    /// # Errors
    /// `NotFound` for a group that does not exist; `Io`.
    pub fn dump_group(&self, group: u32) -> Result<Fields> {
        Dumper(self).check_group(group)?;
        let sb = &self.superblock;
        let block = self.descriptor_block(group);
        let content = self.blocks.read(block, GROUP)?;
        let start = sb.group_start(group).0;
        let end = (start + u64::from(sb.blocks_per_group)).min(sb.blocks_count);
        let mut record = vec![
            ("group", group.into()),
            ("block", block.0.into()),
            ("first_block", start.into()),
            ("last_block", end.saturating_sub(1).into()),
            ("superblock", sb.group_has_backup(group).into()),
        ];
        record.extend(Dumper(self).descriptor(group, &content[self.descriptor_range(group)])?);
        Ok(record)
    }

    /// The journal's superblock, and the position of the journal's first block.
    ///
    /// # Errors
    /// `NotFound` if this device has no journal; `Corrupt`; `Io`.
    pub fn dump_journal(self: &Arc<Self>) -> Result<Fields> {
        let Some(number) = self.superblock.journal_inode else {
            let what = if self.superblock.compat.contains(Compat::HAS_JOURNAL) {
                "the journal is on another device (journal_dev)"
            } else {
                "the volume has no journal"
            };
            return Err(Error::new(ErrorKind::NotFound, what));
        };
        let inode = self.inode(number)?;
        let place = JOURNAL.inode(number);
        let Some(block) = inode.allocated_block(FileBlock(0))? else {
            return Err(place.corrupt("the journal's first block is a hole"));
        };
        let content = self.blocks.read(block, place)?;
        let Ok((raw, _)) = RawJournalSuperblock::ref_from_prefix(&content) else {
            return Err(place.corrupt("the structure is truncated"));
        };
        let mut record = vec![
            ("inode", number.0.into()),
            ("block", block.0.into()),
            ("size", inode.size().into()),
        ];
        record.extend(fields::journal_superblock(raw));
        Ok(record)
    }

    /// A block. The field `kind` names the structure in the block. Metadata at a fixed position are recognised by the position, other
    /// structures by their magic number or the form of their content. The last field contains all bytes of the block.
    ///
    /// # Errors
    /// `NotFound` for a block that does not exist; `Io`.
    pub fn dump_block(&self, block: FsBlock) -> Result<Fields> {
        Dumper(self).block(block)
    }

    /// A used or unused inode: its fields, its block map and its extended attributes. At most 1024 nodes of an extent tree are shown.
    ///
    /// # Errors
    /// `NotFound` for 0 or a number above the volume's number of inodes; `Corrupt` if the group's inode table is outside the volume; `Io`.
    pub fn dump_inode(self: &Arc<Self>, number: InodeNo) -> Result<Fields> {
        Dumper(self).inode(number, || self.inode_or_orphan(number)?.xattrs())
    }
}

impl Dumper<'_> {
    /// The fields of a descriptor. A field that is stored in two halves is added once more at the end, as one combined value.
    fn descriptor(&self, group: u32, bytes: &[u8]) -> Result<Fields> {
        let (Ok((low, rest)), Some(decoded)) =
            (RawGroupLow::ref_from_prefix(bytes), self.superblock.decode_group(bytes))
        else {
            return Err(GROUP.corrupt("the structure is truncated"));
        };
        let high = RawGroupHigh::ref_from_prefix(rest).ok().map(|(high, _)| high);
        let mut record = fields::group(low, high);
        let flags = low.bg_flags.get();
        let named = [
            (INODE_UNINIT, "INODE_UNINIT"),
            (BLOCK_UNINIT, "BLOCK_UNINIT"),
            (INODE_ZEROED, "ITABLE_ZEROED"),
        ];
        let named = named.iter().filter(|(bit, _)| flags & bit != 0);
        record.extend([
            ("flags", Value::texts(named.map(|(_, name)| (*name).to_owned()))),
            ("block_bitmap", decoded.block_bitmap.0.into()),
            ("inode_bitmap", decoded.inode_bitmap.0.into()),
            ("inode_table", decoded.inode_table.0.into()),
            ("free_clusters", decoded.free_clusters.into()),
            ("free_inodes", decoded.free_inodes.into()),
            ("directories", decoded.directories.into()),
            ("unused_inodes", decoded.unused_inodes.into()),
        ]);
        if let Some((stored, computed)) = self.superblock.descriptor_checksums(group, bytes) {
            record.push(("checksum_is_right", (stored == computed).into()));
        }
        Ok(record)
    }

    fn check_group(&self, group: u32) -> Result<()> {
        let count = self.superblock.groups;
        if group < count {
            return Ok(());
        }
        let what = format!("group {group}: the number is outside 0 to {}", count - 1);
        Err(Error::new(ErrorKind::NotFound, what))
    }

    /// The byte offset of the primary superblock or a backup within this block. Returns `None` if the volume has no superblock in this
    /// block.
    fn superblock_in(&self, block: FsBlock) -> Option<usize> {
        let sb = &self.superblock;
        let (primary, at) = self.superblock.position();
        if block == primary {
            return Some(at);
        }
        let group = sb.group_of_block(block)?;
        (group > 0 && sb.group_start(group) == block && sb.group_has_backup(group)).then_some(0)
    }
}

/// The fields of a superblock, and the names of its features.
fn superblock(bytes: &[u8], place: Place) -> Result<Fields> {
    let Ok((raw, _)) = RawSuperblock::ref_from_prefix(bytes) else {
        return Err(place.corrupt("the structure is truncated"));
    };
    let mut record = fields::superblock(raw);
    let compat = Compat::from_bits_retain(raw.s_feature_compat.get());
    let incompat = Incompat::from_bits_retain(raw.s_feature_incompat.get());
    let ro_compat = RoCompat::from_bits_retain(raw.s_feature_ro_compat.get());
    let names = compat.names().chain(incompat.names()).chain(ro_compat.names());
    record.push(("features", Value::texts(names)));
    if ro_compat.contains(RoCompat::METADATA_CSUM) {
        let right = crc32c_raw(!0, &bytes[..CHECKSUM_OFFSET]) == raw.s_checksum.get();
        record.push(("checksum_is_right", right.into()));
    }
    Ok(record)
}
