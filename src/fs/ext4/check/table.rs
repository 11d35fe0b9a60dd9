//! The records of all used inodes and directories.

use crate::fs::FileType;
use crate::fs::ext4::dir_block::entry_code;
use crate::fs::ext4::superblock::Superblock;
use crate::units::{FsBlock, InodeNo};

/// The properties of an inode that later passes need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    /// The type code of directory entries; 0 if the inode is unused.
    pub(super) file_type: u8,
    /// Whether the inode is a value inode, which contains an attribute's value. No directory entry refers to a value inode.
    pub(super) is_value: bool,
    /// `i_links_count`.
    pub(super) links: u16,
    /// The number of names found so far, at most 65535.
    pub(super) names: u16,
}

impl Record {
    pub(super) fn is_directory(&self) -> bool {
        self.file_type == entry_code(FileType::Directory)
    }
}

/// The records of all inodes. Only groups with used inodes need memory.
pub(super) struct Inodes {
    groups: Vec<Option<Box<[Record]>>>,
    per_group: u32,
}

impl Inodes {
    pub(super) fn new(sb: &Superblock) -> Self {
        let groups = std::iter::repeat_with(|| None).take(sb.groups as usize).collect();
        Self { groups, per_group: sb.inodes_per_group }
    }

    /// Stores the record of an inode. The inode number must be valid.
    pub(super) fn insert(&mut self, number: u32, record: Record) {
        let (group, index) = self.place(number);
        let per_group = self.per_group as usize;
        let records = self.groups[group]
            .get_or_insert_with(|| vec![Record::default(); per_group].into_boxed_slice());
        records[index] = record;
    }

    /// The record of an inode, or `None` if the inode is not used.
    pub(super) fn get(&self, number: u32) -> Option<&Record> {
        let (group, index) = self.place(number);
        let record = &self.groups.get(group)?.as_ref()?[index];
        (record.file_type != 0).then_some(record)
    }

    /// Counts a name of an inode, if the inode is used.
    pub(super) fn count_name(&mut self, number: u32) {
        let (group, index) = self.place(number);
        if let Some(Some(records)) = self.groups.get_mut(group) {
            records[index].names = records[index].names.saturating_add(1);
        }
    }

    /// The used inodes of a group, each with its index in the group.
    pub(super) fn of_group(&self, group: u32) -> impl Iterator<Item = (u32, &Record)> {
        let records = self.groups[group as usize].as_deref().unwrap_or_default();
        records
            .iter()
            .enumerate()
            .filter_map(|(index, record)| (record.file_type != 0).then_some((index as u32, record)))
    }

    pub(super) fn used(&self) -> u64 {
        (0..self.groups.len() as u32).map(|group| self.of_group(group).count() as u64).sum()
    }

    fn place(&self, number: u32) -> (usize, usize) {
        let index = number.wrapping_sub(1);
        ((index / self.per_group) as usize, (index % self.per_group) as usize)
    }
}

/// A directory. Directories are listed in the order of their inode numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Directory {
    pub(super) number: u32,
    /// The number of the block that contains the inode.
    pub(super) inode_block: FsBlock,
    /// The inode number in the entry `..`; 0 while unknown.
    pub(super) dot_dot: u32,
    /// The inode number of the directory that contains this directory; 0 while unknown.
    pub(super) parent: u32,
    /// Whether the directory's map is damaged. If so, the directory's blocks are not read again.
    pub(super) broken: bool,
}

impl Directory {
    pub(super) fn inode(&self) -> InodeNo {
        InodeNo(u64::from(self.number))
    }
}
