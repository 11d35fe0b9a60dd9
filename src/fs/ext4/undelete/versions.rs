//! The inodes of deleted files. They are found in the inode tables, and in older copies of inode-table blocks in the log.

use std::collections::HashMap;
use std::sync::Arc;

use zerocopy::FromBytes;

use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::InodeFlags;
use crate::fs::ext4::Ext4;
use crate::fs::ext4::disk::inode::{RawInode, RawInodeExtra};
use crate::fs::ext4::inode::Inode;
use crate::fs::ext4::jbd2::History;
use crate::sorting::Sorting;
use crate::units::{FsBlock, InodeNo};

const PLACE: Place = Place::new("inode");
/// The maximum number of old inodes in memory. This number of inodes needs 350 MiB.
const MAX_VERSIONS: usize = 1 << 20;

/// The last version of an inode before it was deleted.
pub(super) struct Version {
    number: u32,
    bytes: Box<[u8]>,
    /// The index of the transaction that contains the version. A version in the inode table is newer than all transactions. The index of
    /// such a version is the index of the last transaction plus one.
    pub(super) last: usize,
    /// The index of a transaction: the file is read from the volume in its state before this transaction. `None` means the current state.
    pub(super) view_end: Option<usize>,
    /// `i_dtime`, if it is known.
    pub(super) deleted: Option<u32>,
}

/// The identity of a file. It distinguishes successive files with the same inode number. The number and the generation are not enough: all
/// files that mke2fs made have generation 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Identity {
    number: u32,
    generation: u32,
    created: u32,
}

impl Version {
    /// Decodes the inode of this version. `fs` must be the volume in its state before transaction `view_end`.
    pub(super) fn decode(&self, fs: &Arc<Ext4>) -> Result<Inode> {
        let number = InodeNo(u64::from(self.number));
        Inode::decode(fs, number, &self.bytes, PLACE.inode(number), |_| Ok(()))
    }
}

/// The last versions of all deleted files. Files of all types are included.
pub(super) fn versions(fs: &Arc<Ext4>, history: &History) -> Result<Vec<Version>> {
    let (mut found, tables) = (Found::default(), Tables::of(fs)?);
    for (index, past) in history.transactions.iter().enumerate() {
        for (block, copy) in &past.copies {
            if let Some(first) = tables.first_inode(*block) {
                let content = fs.blocks.read_relocated(*copy)?;
                found.add_copy(fs, first, &content, index)?;
            }
        }
    }
    let deleted_by = |version: &mut Version, end: Option<usize>| {
        let run = history.end_of_run(version.last);
        version.view_end = Some(end.map_or(run, |end| end.min(run)));
    };
    for (identity, version) in &mut found.versions {
        deleted_by(version, found.ends.get(identity).copied());
    }
    found.add_tables(fs, history.transactions.len())?;
    Ok(found.versions.into_values().collect())
}

#[derive(Default)]
struct Found {
    versions: HashMap<Identity, Version>,
    /// For each file, the first transaction after which the file does not exist.
    ends: HashMap<Identity, usize>,
    /// For each inode number, the file that has the number after the last transaction that was read so far.
    current: HashMap<u32, Identity>,
}

impl Found {
    /// Adds the inodes of an inode-table block, in the state after transaction `index`. `first` is the number of the first inode in the
    /// block.
    fn add_copy(&mut self, fs: &Ext4, first: u32, content: &[u8], index: usize) -> Result<()> {
        for (number, bytes) in (first..).zip(content.chunks_exact(fs.superblock.inode_size.into()))
        {
            if number < fs.superblock.first_inode {
                continue;
            }
            let Some((identity, raw)) = identity(number, bytes) else { continue };
            let usable = is_usable(raw);
            let before = self.current.get(&number).copied();
            if let Some(before) = before.filter(|before| !usable || *before != identity) {
                self.ends.entry(before).or_insert(index);
                self.current.remove(&number);
            }
            if usable {
                self.current.insert(number, identity);
                self.ends.remove(&identity);
                self.insert(identity, bytes, index)?;
            } else if let Some(version) = self.versions.get_mut(&identity) {
                version.deleted = deletion(raw).or(version.deleted);
            }
        }
        Ok(())
    }

    fn insert(&mut self, identity: Identity, bytes: &[u8], last: usize) -> Result<()> {
        if self.versions.len() >= MAX_VERSIONS {
            let what = format!("the log contains more than {MAX_VERSIONS} inodes");
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        let (number, bytes) = (identity.number, bytes.into());
        let version = Version { number, bytes, last, view_end: None, deleted: None };
        self.versions.insert(identity, version);
        Ok(())
    }

    /// Adds the inodes in the current inode tables. A file that is in use in these tables was not deleted, and is removed from the result.
    /// A deleted inode in the tables may still contain its block map.
    fn add_tables(&mut self, fs: &Ext4, last: usize) -> Result<()> {
        let sb = &fs.superblock;
        let size = usize::from(sb.inode_size);
        let per_block = (sb.block_size.bytes() / size) as u32;
        for number in 0..sb.groups {
            // A group without a usable descriptor is lost; the other groups are not.
            let Ok(group) = fs.group(number) else { continue };
            if group.inodes_uninit {
                continue;
            }
            let bitmap = fs
                .blocks
                .read(group.inode_bitmap, Place::new("inode bitmap").block(group.inode_bitmap))?;
            for index in (0..sb.inodes_per_group).step_by(per_block as usize) {
                let block = FsBlock(group.inode_table.0 + u64::from(index / per_block));
                let content = fs.blocks.read(block, PLACE.block(block))?;
                let slots = (index..sb.inodes_per_group).zip(content.chunks_exact(size));
                for (slot, bytes) in slots {
                    let inode = number * sb.inodes_per_group + slot + 1;
                    let used = bitmap
                        .get(slot as usize / 8)
                        .is_some_and(|byte| byte >> (slot % 8) & 1 != 0);
                    if inode >= sb.first_inode {
                        self.add_slot(inode, bytes, used, last)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn add_slot(&mut self, number: u32, bytes: &[u8], used: bool, last: usize) -> Result<()> {
        let Some((identity, raw)) = identity(number, bytes) else { return Ok(()) };
        // An orphan is marked as used, and has not been deleted yet.
        if used || raw.i_links_count.get() > 0 {
            self.versions.remove(&identity);
            return Ok(());
        }
        let Some(deleted) = deletion(raw) else { return Ok(()) };
        if is_usable(raw) {
            self.insert(identity, bytes, last)?;
        }
        if let Some(version) = self.versions.get_mut(&identity) {
            version.deleted = Some(deleted);
        }
        Ok(())
    }
}

/// The identity of the file to which an inode belongs; `None` for an inode that was never used.
fn identity(number: u32, bytes: &[u8]) -> Option<(Identity, &RawInode)> {
    let (raw, rest) = RawInode::ref_from_prefix(bytes).ok()?;
    let extra = RawInodeExtra::ref_from_prefix(rest).ok().map(|(extra, _)| extra);
    let created = extra.filter(|extra| extra.i_extra_isize.get() >= 24);
    let created = created.map_or(0, |extra| extra.i_crtime.get());
    let identity = Identity { number, generation: raw.i_generation.get(), created };
    (raw.i_mode.get() != 0).then_some((identity, raw))
}

/// Whether the inode still contains its block map. Linux sets the size to 0 before it clears the map.
fn is_usable(raw: &RawInode) -> bool {
    let flags = InodeFlags::from_bits_retain(raw.i_flags.get());
    let size = raw.i_size_lo.get() != 0 || raw.i_size_high.get() != 0;
    let content = size && raw.i_block != [0; 60];
    !flags.contains(InodeFlags::EA_INODE) && (raw.i_links_count.get() > 0 || content)
}

fn deletion(raw: &RawInode) -> Option<u32> {
    (raw.i_links_count.get() == 0).then(|| raw.i_dtime.get()).filter(|time| *time != 0)
}

/// The positions of the inode tables.
struct Tables {
    /// The first block of each inode table and its group, sorted by block.
    starts: Vec<(FsBlock, u32)>,
    /// The number of blocks of one inode table.
    blocks: u64,
    inodes_per_group: u64,
    inodes_per_block: u64,
}

impl Tables {
    fn of(fs: &Ext4) -> Result<Self> {
        let sb = &fs.superblock;
        let start = |group| Some((fs.group(group).ok()?.inode_table, group));
        let mut starts: Vec<_> = (0..sb.groups).filter_map(start).collect();
        starts.order();
        Ok(Self {
            starts,
            blocks: sb.inode_table_blocks(),
            inodes_per_group: sb.inodes_per_group.into(),
            inodes_per_block: (sb.block_size.bytes() / usize::from(sb.inode_size)) as u64,
        })
    }

    /// The number of the first inode in a block of an inode table; `None` for any other block.
    fn first_inode(&self, block: FsBlock) -> Option<u32> {
        let after = self.starts.partition_point(|(start, _)| *start <= block);
        let (start, group) = self.starts[..after].last()?;
        let index = Some(block.0 - start.0).filter(|index| *index < self.blocks)?;
        let first = u64::from(*group) * self.inodes_per_group + index * self.inodes_per_block;
        u32::try_from(first + 1).ok()
    }
}
