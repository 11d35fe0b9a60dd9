//! Allocation of blocks near a goal, and freeing of blocks.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::Allocator;
use super::bitmap::{self, Bits};
use super::group::LockedGroup;
use super::loading::{BLOCK_BITMAP, DESCRIPTOR};
use super::search::{BITMAP, Found, PATIENCE, ROOM, Space, Wish};
use super::summary::{GroupState, get};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::{Ext4, Incompat, Inode, Superblock};
use crate::fs::{FileType, InodeFlags};
use crate::units::{FsBlock, InodeNo};

/// The kind of content that freed blocks contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    Data,
    /// Metadata. The journal may contain copies of these blocks.
    Metadata,
}

impl Freed {
    /// Whether the blocks of this inode contain data or metadata. Directory entries, targets of symbolic links, and attribute values are
    /// metadata.
    pub(crate) fn content_of(inode: &Inode) -> Self {
        let data =
            inode.file_type() == FileType::Regular && !inode.flags().contains(InodeFlags::EA_INODE);
        if data { Self::Data } else { Self::Metadata }
    }
}

/// Determines which reserved blocks a caller may allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// All free blocks, including the blocks reserved for nodes of maps.
    Allowed,
    /// All free blocks except the blocks reserved for nodes of maps.
    Superuser,
    Denied,
}

/// The start of a search for blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// The search starts at this block, and prefers blocks after it.
    pub(crate) block: FsBlock,
    /// Whether the file is expected to grow. If the goal block of a growing file is in use, the search prefers a run that leaves space for
    /// the growth. Without this preference, the blocks of files that grow at the same time would alternate on disk, and each block would
    /// become a separate extent.
    pub(crate) grows: bool,
}

/// The allocation or the release of clusters in one group.
struct Change {
    clusters: Range<u32>,
    in_use: bool,
}

impl From<FsBlock> for Goal {
    fn from(block: FsBlock) -> Self {
        Self { block, grows: false }
    }
}

impl Handle<'_> {
    /// Allocates one run of at least one block and at most `want` blocks. The run begins as close after `goal` as possible. With bigalloc,
    /// the run consists of complete clusters and can be longer than `want`. Changes two metadata blocks. Does not allocate blocks that are
    /// reserved for nodes of maps. After a call of [`keep_reserve`](Ext4::keep_reserve), also withholds the blocks that are reserved for
    /// the superuser.
    ///
    /// # Errors
    /// `NoSpace` on a full volume; nothing is changed in that case. If [`commit_frees`](Allocator::commit_frees) is true, the next commit
    /// makes blocks available. `Corrupt`.
    pub(crate) fn allocate_blocks(
        &mut self,
        goal: impl Into<Goal>,
        want: u32,
    ) -> Result<(FsBlock, u32)> {
        self.allocate_blocks_for(goal, want, self.writing.alloc.reserve())
    }

    /// Allocates blocks like [`allocate_blocks`](Self::allocate_blocks); `reserve` specifies the reserved blocks that the caller may use.
    pub(crate) fn allocate_blocks_for(
        &mut self,
        goal: impl Into<Goal>,
        want: u32,
        reserve: Reserve,
    ) -> Result<(FsBlock, u32)> {
        let (sb, allocator) = (&self.fs.superblock, &self.writing.alloc);
        let Goal { block: goal, grows } = goal.into();
        let want = want.div_ceil(sb.cluster_blocks).min(allocator.left(self.fs, reserve));
        if want == 0 {
            return Err(no_space());
        }
        let goal = if sb.contains(goal) { goal } else { FsBlock(0) };
        let (first, cluster) = sb.cluster_of(goal);
        let room = if grows { ROOM / sb.cluster_blocks } else { 0 };
        let wish = Wish { want, room, stripe: sb.stripe / sb.cluster_blocks };
        for length in wish.lengths() {
            let mut patience = PATIENCE;
            for group in allocator.groups_with_clusters(first, length) {
                if patience == 0 && length > 1 {
                    break;
                }
                if !allocator.group(group).may_have(length) {
                    patience = patience.saturating_sub(1);
                    continue;
                }
                let goal = (group == first).then_some(cluster);
                if let Some(run) = self.allocate_in(group, wish, goal, length)? {
                    let blocks = (run.end - run.start) * sb.cluster_blocks;
                    return Ok((sb.cluster_start(group, run.start), blocks));
                }
                patience = patience.saturating_sub(BITMAP);
            }
        }
        Err(no_space())
    }

    /// Allocates clusters in one group, if the group has a free run that is long enough.
    fn allocate_in(
        &mut self,
        number: u32,
        wish: Wish,
        goal: Option<u32>,
        length: u32,
    ) -> Result<Option<Range<u32>>> {
        let (sb, allocator) = (&self.fs.superblock, &self.writing.alloc);
        let mut group = allocator.lock_group(self.fs, number)?;
        let content = group.block_bitmap()?;
        let bits = Bits::new(&content, group.state.kept_back());
        let clusters = sb.clusters_in(number);
        let lowest = bits.next_clear(group.state.first_cluster, clusters);
        let start = sb.group_start(number).0 / u64::from(sb.cluster_blocks);
        let phase = start.checked_rem(u64::from(wish.stripe)).unwrap_or(0) as u32;
        let space = Space { bits, clusters: lowest..clusters, phase };
        let found = wish.find(&space, goal, length);
        group.state.first_cluster = lowest;
        let run = match found {
            Found::Run(run) => run,
            Found::Longest(longest) => {
                allocator.group(number).longest.store(longest, Ordering::Relaxed);
                return Ok(None);
            }
        };
        // `content` is dropped here, because the next call would have to copy the block's version while `content` still refers to it.
        drop(content);
        let change = Change { clusters: run.clone(), in_use: true };
        group.mark_clusters(self, change)?;
        allocator.take_clusters(number, &mut group.state, &run);
        let count = u64::from(run.end - run.start);
        allocator.free_clusters.fetch_sub(count, Ordering::Relaxed);
        Ok(Some(run))
    }

    /// Allocates exactly these blocks. A recovery has found them in use by a file. Bigalloc is not supported. Changes two blocks for each
    /// group.
    ///
    /// # Errors
    /// `Corrupt` for blocks that are already in use.
    pub(crate) fn claim_blocks(&mut self, start: FsBlock, count: u64) -> Result<()> {
        let (sb, allocator) = (&self.fs.superblock, &self.writing.alloc);
        if start.0 < u64::from(sb.first_data_block) || !self.fs.blocks.contain(start, count) {
            let all = sb.blocks_count;
            let what = format!(
                "{count} blocks from block {start} on cannot be allocated on a volume of {all} blocks"
            );
            return Err(BLOCK_BITMAP.corrupt(what));
        }
        for (number, range) in sb.cluster_ranges(start, count) {
            let mut group = allocator.lock_group(self.fs, number)?;
            let content = group.block_bitmap()?;
            let used =
                Bits::new(&content, group.state.kept_back()).next_set(range.start, range.end);
            if used < range.end {
                let block = sb.cluster_start(number, used);
                let place = BLOCK_BITMAP.block(group.descriptor.block_bitmap);
                return Err(place
                    .corrupt(format!("block {block} is to be allocated, but is already in use")));
            }
            drop(content);
            let change = Change { clusters: range.clone(), in_use: true };
            group.mark_clusters(self, change)?;
            allocator.take_clusters(number, &mut group.state, &range);
            let count = u64::from(range.end - range.start);
            allocator.free_clusters.fetch_sub(count, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Frees blocks. With bigalloc, the caller frees complete clusters, and no block of these clusters may be in use. Freed blocks become
    /// available when the transaction is committed. Changes two blocks for each group.
    ///
    /// # Errors
    /// `Corrupt` for blocks that are already free or belong to the file system itself; nothing is changed in that case.
    pub(crate) fn free_blocks(&mut self, start: FsBlock, count: u64, kind: Freed) -> Result<()> {
        let sb = &self.fs.superblock;
        let cluster = u64::from(sb.cluster_blocks);
        let first = u64::from(sb.first_data_block);
        if start.0 < first || !self.fs.blocks.contain(start, count) {
            let all = sb.blocks_count;
            return Err(BLOCK_BITMAP.corrupt(format!(
                "{count} blocks from block {start} on cannot be freed on a volume of {all} blocks"
            )));
        }
        if !(start.0 - first).is_multiple_of(cluster) || !count.is_multiple_of(cluster) {
            return Err(Error::invalid(format!(
                "{count} blocks from block {start} on cannot be freed, because they are only a part of a cluster"
            )));
        }
        let several =
            sb.cluster_of(start).0 != sb.cluster_of(FsBlock(start.0 + count.max(1) - 1)).0;
        if several {
            for (group, range) in sb.cluster_ranges(start, count) {
                self.writing.alloc.group_to_free(self.fs, group, &range)?;
            }
        }
        for (group, range) in sb.cluster_ranges(start, count) {
            self.free_in(group, range)?;
        }
        if kind == Freed::Metadata {
            (start.0..start.0 + count).for_each(|block| self.forget(FsBlock(block)));
        }
        self.release(start, count);
        Ok(())
    }

    /// Frees a range of clusters in one group.
    fn free_in(&mut self, number: u32, range: Range<u32>) -> Result<()> {
        let allocator = &self.writing.alloc;
        let mut group = allocator.group_to_free(self.fs, number, &range)?;
        let change = Change { clusters: range.clone(), in_use: false };
        group.mark_clusters(self, change)?;
        let count = u64::from(range.end - range.start);
        let size = self.fs.superblock.block_size.bytes();
        allocator.keep_back(&mut group.state, range, size);
        allocator.free_clusters.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }
}

impl Allocator {
    /// Locks a group, and checks that these clusters may be freed.
    ///
    /// # Errors
    /// `Corrupt` if a cluster is free or belongs to the file system itself.
    fn group_to_free<'a>(
        &'a self,
        fs: &'a Ext4,
        number: u32,
        range: &Range<u32>,
    ) -> Result<LockedGroup<'a>> {
        let mut group = self.lock_group(fs, number)?;
        let content = group.block_bitmap()?;
        group.check_in_use(&content, range)?;
        Ok(group)
    }
}

impl LockedGroup<'_> {
    fn check_in_use(&self, content: &[u8], range: &Range<u32>) -> Result<()> {
        let place = BLOCK_BITMAP.block(self.descriptor.block_bitmap);
        let start = |cluster| self.fs.superblock.cluster_start(self.number, cluster);
        let free = Bits::new(content, None).next_clear(range.start, range.end);
        if free < range.end {
            return Err(
                place.corrupt(format!("block {} is to be freed, but is already free", start(free)))
            );
        }
        let mut system = self.system().iter();
        let hit = system.find(|own| own.start < range.end && range.start < own.end);
        match hit {
            Some(own) => {
                let block = start(own.start.max(range.start));
                Err(place.corrupt(format!(
                    "block {block} is to be freed, but contains metadata of the file system"
                )))
            }
            None => Ok(()),
        }
    }

    /// Sets or clears the bits of clusters in a group's bitmap, and updates the group's descriptor. Before the call, the bits must have the
    /// opposite value.
    fn mark_clusters(
        &self,
        handle: &mut Handle<'_>,
        Change { clusters, in_use }: Change,
    ) -> Result<()> {
        let count = clusters.end - clusters.start;
        let free = if in_use {
            self.descriptor.free_clusters.checked_sub(count)
        } else {
            self.descriptor.free_clusters.checked_add(count)
        };
        let Some(free) = free.filter(|free| *free <= self.fs.superblock.clusters_in(self.number))
        else {
            let place = DESCRIPTOR.block(self.fs.descriptor_block(self.number));
            let what = format!("group {}: {}", self.number, self.descriptor.free_clusters);
            return Err(place.field("bg_free_blocks_count").corrupt(what));
        };
        let change = |bytes: &mut [u8]| {
            if in_use {
                bitmap::set(bytes, clusters);
            } else {
                bitmap::clear(bytes, clusters);
            }
            self.fs.superblock.block_bitmap_checksum(bytes)
        };
        let sum = if self.descriptor.blocks_uninit {
            handle.create(self.descriptor.block_bitmap, |bytes| {
                self.fill_block_bitmap(bytes);
                change(bytes)
            })?
        } else {
            handle.update(self.descriptor.block_bitmap, BLOCK_BITMAP, |bytes| Ok(change(bytes)))?
        };
        handle.update_group(self.number, |group| {
            group.set_free_clusters(free);
            group.set_blocks_initialised();
            if let Some(sum) = sum {
                group.set_block_bitmap_checksum(sum);
            }
            Ok(())
        })
    }
}

impl Allocator {
    /// The reserved blocks that operations may allocate by default.
    pub(crate) fn reserve(&self) -> Reserve {
        if self.keep_reserve.load(Ordering::Relaxed) { Reserve::Denied } else { Reserve::Superuser }
    }

    /// The number of free clusters that a caller may allocate. `reserve` specifies the reserved blocks that the caller may use.
    fn left(&self, fs: &Ext4, reserve: Reserve) -> u32 {
        let free = self.free_clusters.load(Ordering::Relaxed);
        let sb = &fs.superblock;
        let kept = match reserve {
            Reserve::Allowed => 0,
            Reserve::Superuser => sb.clusters_for_nodes(),
            Reserve::Denied => {
                let superusers = sb.reserved_blocks.div_ceil(u64::from(sb.cluster_blocks));
                superusers + sb.clusters_for_nodes()
            }
        };
        free.saturating_sub(kept).min(u64::from(u32::MAX)) as u32
    }
}

impl Superblock {
    /// The goal for the first block of an inode: the start of the inode's group.
    pub(crate) fn goal_of(&self, inode: InodeNo) -> FsBlock {
        self.group_start(self.group_of(inode))
    }

    /// The number of free clusters reserved for nodes of extent trees, as in Linux. A punched hole, or a write to a part of a preallocated
    /// extent, splits an extent and may need a new node.
    pub(super) fn clusters_for_nodes(&self) -> u64 {
        if !self.incompat.contains(Incompat::EXTENTS) {
            return 0;
        }
        (self.blocks_count / u64::from(self.cluster_blocks) / 50).min(4096)
    }
}

impl GroupState {
    /// Whether a group with this summary may contain a free run of `length` clusters.
    fn may_have(&self, length: u32) -> bool {
        get(&self.available) >= length && get(&self.longest) >= length
    }
}

fn no_space() -> Error {
    Error::new(ErrorKind::NoSpace, "no free blocks remain")
}
