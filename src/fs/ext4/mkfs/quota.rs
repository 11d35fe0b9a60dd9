//! The quota files of a new volume. Each quota file is a tree of four levels. Each level is indexed by one byte of an id. The blocks of
//! entries are below the lowest level.

use zerocopy::{FromZeros, IntoBytes};

use super::inode::{Files, NewInode};
use super::map::put;
use crate::error::Result;
use crate::fs::InodeFlags;
use crate::fs::ext4::RoCompat;
use crate::fs::ext4::disk::quota::{
    BLOCK, MAGICS, ROOT, RawQuotaEntry, RawQuotaHeader, RawQuotaLeaf, VERSION,
};
use crate::fs::ext4::disk::reserved;

/// The time in seconds for which the usage may exceed a soft limit: one week.
const GRACE: u32 = 7 * 24 * 3600;

/// The usage of an id.
struct Usage {
    id: u32,
    inodes: u64,
    bytes: u64,
}

impl Files<'_> {
    /// Creates the quota files of a volume with the feature quota. The quota files record the usage of the root directory and lost+found.
    /// Returns the inode numbers of the quota files of users, groups and projects. The number for projects is 0 without the feature
    /// project.
    pub(super) fn quota(&mut self) -> Result<[u32; 3]> {
        let mut numbers = [reserved::USER_QUOTA, reserved::GROUP_QUOTA, 0];
        if self.sb.ro_compat.contains(RoCompat::PROJECT) {
            numbers[2] = self.next_inode();
        }
        for (kind, number) in numbers.into_iter().enumerate().filter(|(_, number)| *number != 0) {
            let content = content(MAGICS[kind], &self.usage(kind));
            let mut inode = NewInode::new(number, 0o100_600);
            inode.size = content.len() as u64;
            inode.flags |= InodeFlags::IMMUTABLE;
            let size = self.sb.block_size;
            let runs = self.fill(&mut inode, size.blocks_for(content.len() as u64))?;
            for (at, part) in runs.into_iter().flatten().zip(content.chunks(size.bytes())) {
                let mut block = self.block()?;
                block[..part.len()].copy_from_slice(part);
                self.blocks.push((at, block));
            }
            self.inodes.push(inode);
        }
        Ok(numbers)
    }

    /// The usage of the directories, for each user (kind 0), group (kind 1) or project (kind 2). Internal files are not charged.
    fn usage(&self, kind: usize) -> Vec<Usage> {
        let mut usage: Vec<Usage> = Vec::new();
        for inode in self.inodes.iter().filter(|inode| inode.mode & 0o170_000 == 0o040_000) {
            let id = [inode.owner.0, inode.owner.1, 0][kind];
            let bytes = inode.blocks << self.sb.block_size.shift();
            match usage.iter_mut().find(|usage| usage.id == id) {
                Some(usage) => {
                    usage.inodes += 1;
                    usage.bytes += bytes;
                }
                None => usage.push(Usage { id, inodes: 1, bytes }),
            }
        }
        usage
    }
}

/// The content of a quota file whose entries fit into one block.
fn content(magic: u32, usage: &[Usage]) -> Vec<u8> {
    let mut tree = Tree { bytes: vec![0; 2 * BLOCK] };
    let mut leaf = 0;
    for (index, usage) in usage.iter().enumerate() {
        let mut node = ROOT;
        for byte in &usage.id.to_be_bytes()[..3] {
            node = tree.child(node, *byte);
        }
        if leaf == 0 {
            leaf = tree.grow();
        }
        tree.set(node, usage.id as u8, leaf);
        let mut entry = RawQuotaEntry::new_zeroed();
        entry.dqb_id.set(usage.id);
        entry.dqb_curinodes.set(usage.inodes);
        entry.dqb_curspace.set(usage.bytes);
        let at =
            leaf as usize * BLOCK + size_of::<RawQuotaLeaf>() + index * size_of::<RawQuotaEntry>();
        tree.bytes[at..at + size_of::<RawQuotaEntry>()].copy_from_slice(entry.as_bytes());
    }
    let mut head = RawQuotaLeaf::new_zeroed();
    head.dqdh_entries.set(usage.len() as u16);
    let at = leaf as usize * BLOCK;
    tree.bytes[at..at + size_of::<RawQuotaLeaf>()].copy_from_slice(head.as_bytes());
    let header = RawQuotaHeader {
        dqh_magic: magic.into(),
        dqh_version: VERSION.into(),
        dqi_bgrace: GRACE.into(),
        dqi_igrace: GRACE.into(),
        dqi_flags: 0.into(),
        dqi_blocks: ((tree.bytes.len() / BLOCK) as u32).into(),
        dqi_free_blk: 0.into(),
        // The first block of the list of blocks with unused entries. The file has only one block of entries, which is the first block of
        // the list.
        dqi_free_entry: leaf.into(),
    };
    tree.bytes[..size_of::<RawQuotaHeader>()].copy_from_slice(header.as_bytes());
    tree.bytes
}

/// The blocks of the file.
struct Tree {
    bytes: Vec<u8>,
}

impl Tree {
    /// Appends a block and returns its number.
    fn grow(&mut self) -> u32 {
        let number = self.bytes.len() / BLOCK;
        self.bytes.resize((number + 1) * BLOCK, 0);
        number as u32
    }

    fn set(&mut self, node: u32, slot: u8, child: u32) {
        let at = node as usize * BLOCK;
        put(&mut self.bytes[at..at + BLOCK], usize::from(slot), child);
    }

    /// The child in a slot of a node. A missing child is created.
    fn child(&mut self, node: u32, slot: u8) -> u32 {
        let at = node as usize * BLOCK + usize::from(slot) * 4;
        let bytes = &self.bytes[at..at + 4];
        let child = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if child != 0 {
            return child;
        }
        let child = self.grow();
        self.set(node, slot, child);
        child
    }
}
