//! Orphans: inodes that were open without a name, or that were being truncated, when the volume was last in use. On a volume that is open
//! for reading, orphans are only counted, for reports.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use zerocopy::FromBytes;

use super::Ext4;
use super::checksum::crc32c_raw;
use super::disk::orphan::{MAGIC, RawOrphanTail};
use super::disk::superblock::RawSuperblock;
use super::inode::Inode;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::units::{FileBlock, FsBlock, InodeNo};

/// The maximum length of the orphan list. With this length, the set of visited inodes needs 16 MiB.
const MAX_LISTED: usize = 1 << 20;
/// The maximum number of blocks of an orphan file. Source: Linux 6.18 does not mount a volume whose orphan file has more blocks.
pub(super) const MAX_BLOCKS: u64 = 512;
const SUPERBLOCK: Place = Place::new("superblock");
const FILE: Place = Place::new("orphan file");

impl Ext4 {
    /// The number of orphans in the orphan list and in the orphan file. The superblock contains the first entry of the list.
    ///
    /// # Errors
    /// `Corrupt` if the list has a loop or contains an invalid inode number, or if a block of the orphan file is damaged; `LimitExceeded`
    /// for a list of more than a million orphans, or for an orphan file of more than 512 blocks.
    pub fn orphans(self: &Arc<Self>) -> Result<u64> {
        let (listed, filed) = (self.listed_orphans()?, self.filed_orphans()?);
        Ok((listed.len() + filed.len()) as u64)
    }

    /// The orphans recorded in the orphan file.
    pub(super) fn filed_orphans(self: &Arc<Self>) -> Result<Vec<FiledOrphan>> {
        match self.superblock.orphan_file {
            Some(number) => self.inode(number)?.filed_orphans(),
            None => Ok(Vec::new()),
        }
    }

    /// The first inode number of the orphan list, from the current superblock. 0 means that the list is empty.
    fn newest_orphan(&self) -> Result<u32> {
        let (block, at) = self.superblock.position();
        let content = self.blocks.read(block, SUPERBLOCK)?;
        let raw = RawSuperblock::ref_from_prefix(&content[at..]);
        raw.map(|(raw, _)| raw.s_last_orphan.get())
            .map_err(|_| SUPERBLOCK.corrupt("the structure is truncated"))
    }

    /// The orphans of the list, newest first.
    fn listed_orphans(self: &Arc<Self>) -> Result<Vec<InodeNo>> {
        match self.follow_orphans(|number| self.inode_or_orphan(number))? {
            (listed, None) => Ok(listed),
            (_, Some(why)) => Err(why),
        }
    }

    /// Follows the list, newest orphan first. The field `i_dtime` of each orphan contains the number of the next orphan. If an error ends
    /// the walk early, returns the orphans before the error, and the error.
    pub(super) fn follow_orphans(
        &self,
        look: impl Fn(InodeNo) -> Result<Inode>,
    ) -> Result<(Vec<InodeNo>, Option<Error>)> {
        let (mut seen, mut listed) = (HashSet::new(), Vec::new());
        let mut next = self.newest_orphan()?;
        while next != 0 {
            let number = InodeNo(u64::from(next));
            let inode = match look(number) {
                _ if !seen.insert(next) => {
                    let place = Place::new("inode").inode(number).field("i_dtime");
                    Err(place.corrupt("the orphan list contains this inode twice"))
                }
                _ if seen.len() > MAX_LISTED => Err(Error::new(
                    ErrorKind::LimitExceeded,
                    "the orphan list has more than a million inodes",
                )),
                found => found,
            };
            match inode {
                Ok(inode) => next = inode.raw_dtime,
                Err(why) => return Ok((listed, Some(why))),
            }
            listed.push(number);
        }
        Ok((listed, None))
    }
}

/// The orphan list in memory, in the order in which the orphans were added. Every method needs at most logarithmic time: a hostile volume
/// can have a million orphans.
#[derive(Debug, Default)]
pub(crate) struct OrphanList {
    by_age: BTreeMap<u64, InodeNo>,
    ages: HashMap<InodeNo, u64>,
}

impl OrphanList {
    pub(super) fn contains(&self, number: InodeNo) -> bool {
        self.ages.contains_key(&number)
    }

    pub(super) fn newest(&self) -> Option<InodeNo> {
        self.by_age.last_key_value().map(|(_, number)| *number)
    }

    pub(super) fn newest_first(&self) -> impl Iterator<Item = InodeNo> {
        self.by_age.values().rev().copied()
    }

    /// The two neighbours of an inode in the list: the next newer orphan, and the next older orphan. Returns `None` if the inode is not in
    /// the list.
    pub(super) fn beside(&self, number: InodeNo) -> Option<(Option<InodeNo>, Option<InodeNo>)> {
        let age = *self.ages.get(&number)?;
        let newer = self.by_age.range(age + 1..).next();
        let older = self.by_age.range(..age).next_back();
        Some((newer.map(|(_, number)| *number), older.map(|(_, number)| *number)))
    }

    pub(super) fn push(&mut self, number: InodeNo) {
        let age = self.by_age.last_key_value().map_or(0, |(age, _)| age + 1);
        self.by_age.insert(age, number);
        self.ages.insert(number, age);
    }

    pub(super) fn remove(&mut self, number: InodeNo) {
        if let Some(age) = self.ages.remove(&number) {
            self.by_age.remove(&age);
        }
    }
}

impl FromIterator<InodeNo> for OrphanList {
    /// Makes a list. `numbers` must begin with the oldest orphan.
    fn from_iter<I: IntoIterator<Item = InodeNo>>(numbers: I) -> Self {
        let mut list = Self::default();
        numbers.into_iter().for_each(|number| list.push(number));
        list
    }
}

/// An entry of the orphan file.
pub(super) struct FiledOrphan {
    /// The position of an entry: the block of the orphan file, and the index of the entry in the block.
    pub(super) block: FsBlock,
    pub(super) index: usize,
    pub(super) inode: InodeNo,
}

impl Inode {
    fn filed_orphans(&self) -> Result<Vec<FiledOrphan>> {
        let size = self.fs.superblock.block_size;
        // An incomplete block at the end of the file is ignored.
        let blocks = self.size >> size.shift();
        if blocks > MAX_BLOCKS {
            let what = format!("the orphan file has {blocks} blocks; the limit is {MAX_BLOCKS}");
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        if let Some(block) = self.xattr_block {
            let place = FILE.inode(self.number).field("i_file_acl");
            return Err(place.corrupt(format!(
                "the orphan file has the attribute block {block}, but cannot have attributes"
            )));
        }
        self.check_own()?;
        let mut filed = Vec::new();
        for block in 0..blocks {
            let Some(home) = self.home_block(FileBlock(block))? else {
                return Err(FILE
                    .inode(self.number)
                    .corrupt(format!("block {block} of the orphan file is a hole")));
            };
            self.orphans_in(home, &mut filed)?;
        }
        Ok(filed)
    }

    fn orphans_in(&self, block: FsBlock, filed: &mut Vec<FiledOrphan>) -> Result<()> {
        let place = FILE.inode(self.number).block(block);
        let content = self.fs.blocks.read(block, place)?;
        let Ok((entries, tail)) = RawOrphanTail::ref_from_suffix(&content) else {
            return Err(place.corrupt("the structure is truncated"));
        };
        let magic = tail.ob_magic.get();
        if magic != MAGIC {
            return Err(place
                .field("ob_magic")
                .corrupt(format!("the magic number is {magic:#x} instead of {MAGIC:#x}")));
        }
        if let Some(seed) = self.fs.superblock.seed {
            let seed = seed.of_inode(self.number, self.generation);
            let computed = orphan_checksum(seed, block, entries);
            let stored = tail.ob_checksum.get();
            if stored != computed {
                return Err(place.field("ob_checksum").bad_checksum(stored, computed));
            }
        }
        let (entries, _) = entries.as_chunks::<4>();
        for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| **entry != [0; 4]) {
            let inode = InodeNo(u32::from_le_bytes(*entry).into());
            filed.push(FiledOrphan { block, index, inode });
        }
        Ok(())
    }
}

/// The checksum of a block of the orphan file. The checksum covers the number of the block and its entries.
fn orphan_checksum(seed: u32, block: FsBlock, entries: &[u8]) -> u32 {
    crc32c_raw(crc32c_raw(seed, &block.0.to_le_bytes()), entries)
}

/// Writes the tail of the block of the orphan file at `block`. `seed` is the orphan file's seed.
pub(crate) fn seal_orphan_block(seed: Option<u32>, block: FsBlock, bytes: &mut [u8]) {
    let (entries, tail) = bytes.split_at_mut(bytes.len() - size_of::<RawOrphanTail>());
    let Ok(tail) = RawOrphanTail::mut_from_bytes(tail) else { return };
    tail.ob_magic.set(MAGIC);
    if let Some(seed) = seed {
        tail.ob_checksum.set(orphan_checksum(seed, block, entries));
    }
}
