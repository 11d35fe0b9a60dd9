//! The inodes of a new volume, and the blocks of their files.

use std::ops::Range;

use zerocopy::{FromZeros, IntoBytes};

use super::geometry::Geometry;
use super::map::{self, FileMap};
use super::space::Space;
use super::superblock::EXTRA_ISIZE;
use crate::error::Result;
use crate::fs::InodeFlags;
use crate::fs::ext4::Incompat;
use crate::fs::ext4::disk::inode::{GOOD_OLD_SIZE, RawInode, RawInodeExtra};
use crate::fs::ext4::inode::seal_inode;
use crate::fs::ext4::superblock::Superblock;
use crate::sys::Buffer;
use crate::units::InodeNo;

/// An inode of a new volume.
#[derive(Clone, Debug)]
pub(super) struct NewInode {
    pub(super) number: u32,
    pub(super) mode: u16,
    pub(super) owner: (u32, u32),
    pub(super) links: u16,
    pub(super) flags: InodeFlags,
    pub(super) size: u64,
    /// The number of blocks of the file and of its block map. All blocks of an allocated cluster are counted.
    pub(super) blocks: u64,
    pub(super) i_block: [u8; 60],
}

impl NewInode {
    /// An empty file that the superuser owns.
    pub(super) fn new(number: u32, mode: u16) -> Self {
        Self {
            number,
            mode,
            owner: (0, 0),
            links: 1,
            flags: InodeFlags::empty(),
            size: 0,
            blocks: 0,
            i_block: [0; 60],
        }
    }

    /// The bytes of the inode for the inode table.
    fn encode(&self, sb: &Superblock, time: i64) -> Vec<u8> {
        let mut raw = RawInode::new_zeroed();
        let ((uid, gid), sectors) = (self.owner, self.blocks << (sb.block_size.shift() - 9));
        raw.i_mode.set(self.mode);
        raw.i_links_count.set(self.links);
        raw.i_uid.set(uid as u16);
        raw.i_uid_high.set((uid >> 16) as u16);
        raw.i_gid.set(gid as u16);
        raw.i_gid_high.set((gid >> 16) as u16);
        raw.i_size_lo.set(self.size as u32);
        raw.i_size_high.set((self.size >> 32) as u32);
        raw.i_blocks_lo.set(sectors as u32);
        raw.i_blocks_high.set((sectors >> 32) as u16);
        raw.i_flags.set(self.flags.bits());
        raw.i_block = self.i_block;
        let mut extra = RawInodeExtra::new_zeroed();
        extra.i_extra_isize.set(EXTRA_ISIZE);
        // A stored time consists of a signed 32-bit number of seconds, and two further bits (the epoch).
        let epoch = ((time - i64::from(time as i32)) >> 32) as u32 & 3;
        for seconds in [&mut raw.i_atime, &mut raw.i_ctime, &mut raw.i_mtime, &mut extra.i_crtime] {
            seconds.set(time as u32);
        }
        for word in [
            &mut extra.i_atime_extra,
            &mut extra.i_ctime_extra,
            &mut extra.i_mtime_extra,
            &mut extra.i_crtime_extra,
        ] {
            word.set(epoch);
        }
        let mut bytes = vec![0; usize::from(sb.inode_size)];
        bytes[..GOOD_OLD_SIZE].copy_from_slice(raw.as_bytes());
        if let Some(room) = bytes.get_mut(GOOD_OLD_SIZE..GOOD_OLD_SIZE + extra.as_bytes().len()) {
            room.copy_from_slice(extra.as_bytes());
        }
        bytes
    }
}

/// The files of the new volume: their inodes, and the blocks to write.
pub(super) struct Files<'a> {
    pub(super) sb: &'a Superblock,
    pub(super) geometry: &'a Geometry,
    pub(super) space: &'a mut Space,
    pub(super) inodes: Vec<NewInode>,
    pub(super) blocks: Vec<(u64, Buffer)>,
    /// The blocks of the journal's log, which must be zeroed.
    pub(super) zeros: Vec<Range<u64>>,
    /// The block at which the search for free blocks of the next file begins.
    pub(super) goal: u64,
    /// The next free inode number.
    next: u32,
}

impl<'a> Files<'a> {
    pub(super) fn new(
        sb: &'a Superblock,
        geometry: &'a Geometry,
        space: &'a mut Space,
        next: u32,
    ) -> Self {
        Self {
            sb,
            geometry,
            space,
            inodes: Vec::new(),
            blocks: Vec::new(),
            zeros: Vec::new(),
            goal: 0,
            next,
        }
    }

    /// Assigns a number to a file that has no fixed inode number.
    pub(super) fn next_inode(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// The number of used inodes, including reserved inodes. All inodes with higher numbers are free.
    pub(super) fn inodes_in_use(&self) -> u32 {
        self.next - 1
    }

    /// Allocates a buffer of one block, filled with zeros.
    pub(super) fn block(&self) -> Result<Buffer> {
        Buffer::aligned(self.sb.block_size.bytes())
    }

    /// Allocates `count` blocks for a file and builds its block map. Returns the ranges of the blocks. The caller must write the content.
    pub(super) fn fill(&mut self, inode: &mut NewInode, count: u64) -> Result<Vec<Range<u64>>> {
        let runs = self.space.allocate(self.goal, count)?;
        self.goal = runs.last().map_or(self.goal, |run| run.end);
        let size = self.sb.block_size;
        let map = if self.sb.incompat.contains(Incompat::EXTENTS) {
            let seed = self.sb.inode_seed(InodeNo(u64::from(inode.number)), 0);
            inode.flags |= InodeFlags::EXTENTS;
            map::extents(&runs, size, seed, self.space)?
        } else {
            map::indirect(&runs, size, self.space)?
        };
        let FileMap { i_block, blocks } = map;
        let cluster = u64::from(self.sb.cluster_blocks);
        let taken = |count: u64| count.next_multiple_of(cluster);
        inode.blocks = runs.iter().map(|run| taken(run.end - run.start)).sum::<u64>()
            + blocks.len() as u64 * cluster;
        inode.i_block = i_block;
        if inode.size == 0 {
            inode.size = count << size.shift();
        }
        self.blocks.extend(blocks);
        Ok(runs)
    }

    /// The content of group 0's inode table, up to the last used inode. Unused inodes in this range are zeros, without checksums.
    pub(super) fn table(&self, time: i64) -> Result<Buffer> {
        let size = usize::from(self.sb.inode_size);
        let used = self.inodes_in_use() as usize * size;
        let mut table = Buffer::aligned(used.next_multiple_of(self.sb.block_size.bytes()))?;
        for inode in &self.inodes {
            let at = (inode.number as usize - 1) * size;
            table[at..at + size].copy_from_slice(&inode.encode(self.sb, time));
        }
        for (number, bytes) in (1..).zip(table[..used].chunks_exact_mut(size)) {
            seal_inode(self.sb, InodeNo(number), bytes);
        }
        Ok(table)
    }
}
