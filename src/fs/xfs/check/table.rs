//! Tables of the inodes and directories that the check has read.

use super::super::geometry::Geometry;
use crate::fs::FileType;
use crate::sorting::Sorting;
use crate::units::{FsBlock, InodeNo};

/// Inodes in a chunk.
pub(super) const CHUNK: u64 = 64;

/// The properties of an inode that later passes of the check need.
#[derive(Clone, Copy, Default)]
pub(super) struct State {
    /// The file type; `None` if the inode is free or cannot be read.
    pub(super) file_type: Option<FileType>,
    /// Whether the inode is in use, according to its mode.
    pub(super) used: bool,
    /// Whether the inode's blocks may be shared.
    pub(super) shares: bool,
    /// Whether the inode points to a next inode of an unlinked list.
    pub(super) has_next: bool,
    /// Whether an unlinked list contains the inode.
    pub(super) unlinked: bool,
    /// Whether the inode is internal to the file system.
    pub(super) metadata: bool,
    /// The sum of the fingerprints of the inode's names, minus the fingerprints of its parent pointers. The result is 0 if names and parent
    /// pointers agree.
    pub(super) parents: u64,
    /// The stored link count, and the number of names that were found.
    pub(super) links: u32,
    pub(super) names: u32,
}

/// A chunk of inodes.
pub(super) struct Chunk {
    /// The number of the chunk's first inode.
    pub(super) first: u64,
    /// The allocation group of the chunk.
    pub(super) group: u32,
    /// Bit masks of the inodes that do not exist, and of the free inodes.
    pub(super) holes: u64,
    pub(super) free: u64,
    pub(super) states: Box<[State; CHUNK as usize]>,
}

impl Chunk {
    pub(super) fn exists(&self, index: u64) -> bool {
        self.holes >> index & 1 == 0
    }

    pub(super) fn is_free(&self, index: u64) -> bool {
        self.free >> index & 1 == 1
    }

    /// The block of an inode of the chunk, and the inode's index in the block.
    pub(super) fn place(&self, geometry: &Geometry, index: u64) -> (FsBlock, usize) {
        let within = (self.first + index)
            & ((1 << geometry.group_blocks_log << geometry.inodes_per_block_log) - 1);
        let log = geometry.inodes_per_block_log;
        let block = geometry.group_block(self.group).0 + (within >> log);
        (FsBlock(block), (within & ((1 << log) - 1)) as usize)
    }
}

/// All chunks of all groups, in the order of inode numbers.
#[derive(Default)]
pub(super) struct Inodes {
    pub(super) chunks: Vec<Chunk>,
}

impl Inodes {
    pub(super) fn sort(&mut self) {
        self.chunks.order_by_key(|chunk| chunk.first);
    }

    /// The state of an inode, if a chunk contains it.
    pub(super) fn get_mut(&mut self, number: InodeNo) -> Option<&mut State> {
        let at = self.chunks.partition_point(|chunk| chunk.first <= number.0).checked_sub(1)?;
        let chunk = self.chunks.get_mut(at)?;
        let index = number.0 - chunk.first;
        (index < CHUNK && chunk.exists(index)).then(|| &mut chunk.states[index as usize])
    }

    pub(super) fn get(&self, number: InodeNo) -> Option<&State> {
        let at = self.chunks.partition_point(|chunk| chunk.first <= number.0).checked_sub(1)?;
        let chunk = self.chunks.get(at)?;
        let index = number.0 - chunk.first;
        (index < CHUNK && chunk.exists(index)).then(|| &chunk.states[index as usize])
    }

    /// All existing inodes, with their numbers.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (InodeNo, &State)> {
        self.chunks.iter().flat_map(|chunk| {
            let states = (0..CHUNK).zip(chunk.states.iter());
            let exist = states.filter(|(index, _)| chunk.exists(*index));
            exist.map(|(index, state)| (InodeNo(chunk.first + index), state))
        })
    }

    /// The number of used inodes.
    pub(super) fn used(&self) -> u64 {
        let states = self.chunks.iter().flat_map(|chunk| chunk.states.iter());
        states.filter(|state| state.used).count() as u64
    }
}

/// A directory.
pub(super) struct Directory {
    pub(super) number: InodeNo,
    /// The target of `..`; 0 if it was not found.
    pub(super) dot_dot: InodeNo,
    /// The directory that contains this directory; 0 if there is none.
    pub(super) parent: InodeNo,
    /// The number of subdirectories.
    pub(super) children: u32,
}

// The documentation states how much memory a check needs for each inode: the size of `State`.
const _: () = assert!(size_of::<State>() == 24);
