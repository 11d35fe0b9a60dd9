//! Large values: each in an inode of its own, which several attributes may share.
//!
//! Its time stamp fields hold other values: `i_atime` is the value's checksum, `i_ctime` and `i_version` are a count of the attributes that have it. The
//! blocks are metadata and go through the journal.

use super::super::Ext4;
use super::super::alloc::Freed;
use super::super::disk::extent::INIT_MAX_LEN;
use super::super::inode::Inode;
use super::super::jbd2::Handle;
use super::super::raw::InodeMut;
use super::create::{Body, NewInode};
use super::fields::Times;
use super::read::{MAX_VALUE, value_checksum};
use crate::error::{Error, Place, Result};
use crate::fs::{InodeFlags, Timestamp};
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock, InodeNo};

/// Type and permissions of such an inode.
const MODE: u32 = 0o100_600;

/// In how many groups the blocks of one value lie at most, as a rule.
const GROUPS: u32 = 8;

/// A value that was given an inode.
pub(super) struct Made {
    pub(super) number: InodeNo,
    pub(super) checksum: u32,
}

impl Ext4 {
    /// How many blocks it may change to make a value and to drop another.
    pub(super) fn value_credits(&self) -> u32 {
        let sb = &self.superblock;
        let blocks = sb.block_size.blocks_for(MAX_VALUE as u64) as u32;
        // The inode and the two blocks that say so of it; bitmaps and descriptors; nodes of its map.
        let making = blocks + 3 + 2 * sb.groups.min(GROUPS) + 4;
        // Unmapping begins another transaction where fewer are left than it may take for the longest extents, and half a change of
        // attributes must not be committed.
        let dropping = 3 + 64 + 2 * (u32::from(INIT_MAX_LEN) / sb.blocks_per_group);
        making + dropping
    }

    /// Gives a value an inode that one attribute refers to.
    ///
    /// # Errors
    /// `NoSpace`, and then everything is as before.
    pub(super) fn create_value(
        &self,
        h: &mut Handle<'_>,
        owner: &Inode,
        value: &[u8],
    ) -> Result<Made> {
        let checksum = value_checksum(&self.superblock, value);
        let blocks = self.superblock.block_size.blocks_for(value.len() as u64);
        self.check_quota(owner, blocks, 1)?;
        let number = self.allocate_inode(h, owner.number, false)?;
        let runs = match self.allocate_runs(h, number, value) {
            Ok(runs) => runs,
            Err(error) => {
                self.free_inode(h, number, false)?;
                return Err(error);
            }
        };
        self.init_value(h, owner, number)?;
        let count = self.superblock.block_size.blocks_for(value.len() as u64) as u32;
        if let Err((error, mapped)) = self.map_runs(h, owner, number, &runs, count) {
            // Nothing was written to the blocks yet.
            for (start, len) in &runs[mapped..] {
                self.free_blocks(h, *start, u64::from(*len), Freed::Data)?;
            }
            self.free_value(h, &owner.fs.inode(number)?)?;
            return Err(error);
        }
        let blocks = runs.iter().flat_map(|(start, len)| start.0..start.0 + u64::from(*len));
        for (block, part) in blocks.zip(value.chunks(self.superblock.block_size.bytes())) {
            h.create(FsBlock(block), |bytes| bytes[..part.len()].copy_from_slice(part))?;
        }
        self.update_inode(h, number, |inode| {
            let seconds = i64::from(checksum as i32);
            let accessed = Some(Timestamp { seconds, nanoseconds: 0 });
            inode.set_size(value.len() as u64)?;
            inode.set_times(&Times { accessed, ..Times::default() })?;
            set_references(inode, 1)
        })?;
        Ok(Made { number, checksum })
    }

    fn init_value(&self, h: &mut Handle<'_>, owner: &Inode, number: InodeNo) -> Result<()> {
        let stat = owner.stat();
        let new = NewInode {
            mode: MODE,
            uid: stat.uid,
            gid: stat.gid,
            links: 1,
            flags: InodeFlags::EA_INODE,
            time: h.now(),
            // The older form is known by a generation that is the owner's.
            generation: !owner.generation,
            project: stat.project.unwrap_or(0),
            body: Body::Mapped,
        };
        self.init_inode(h, number, &new)
    }

    /// Maps the first `count` blocks of these runs, one run after the other; if one fails, says how many were mapped.
    fn map_runs(
        &self,
        h: &mut Handle<'_>,
        owner: &Inode,
        number: InodeNo,
        runs: &[(FsBlock, u32)],
        count: u32,
    ) -> Result<(), (Error, usize)> {
        let mut first = FileBlock(0);
        let mut left = count;
        for (at, (start, len)) in runs.iter().enumerate() {
            // Of a cluster the last blocks may be left over.
            let (start, len, state) = (*start, left.min(*len), ExtentState::Written);
            let extent = Extent { first, start, len, state };
            let inode = owner.fs.inode(number).map_err(|error| (error, at))?;
            self.map_extent(h, &inode, extent).map_err(|error| (error, at))?;
            (first, left) = (extent.end(), left - len);
        }
        Ok(())
    }

    /// Blocks for a value, in as many runs as it takes; none if they do not suffice.
    fn allocate_runs(
        &self,
        h: &mut Handle<'_>,
        number: InodeNo,
        value: &[u8],
    ) -> Result<Vec<(FsBlock, u32)>> {
        let mut runs: Vec<(FsBlock, u32)> = Vec::new();
        let mut goal = self.goal_of(number);
        let mut left = self.superblock.block_size.blocks_for(value.len() as u64) as u32;
        while left > 0 {
            match self.allocate_blocks(h, goal, left) {
                Ok((start, len)) => {
                    runs.push((start, len));
                    left = left.saturating_sub(len);
                    goal = FsBlock(start.0 + u64::from(len));
                }
                Err(error) => {
                    for (start, len) in runs {
                        self.free_blocks(h, start, u64::from(len), Freed::Data)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(runs)
    }

    /// One more attribute has the value of this inode.
    pub(super) fn share_value(&self, h: &mut Handle<'_>, number: InodeNo) -> Result<()> {
        self.update_inode(h, number, |inode| {
            check_value(inode, number)?;
            let references = references(inode)?;
            set_references(inode, references.saturating_add(1))
        })
    }

    /// An attribute no longer has the value of this inode, which goes with its last one.
    pub(super) fn drop_value(
        &self,
        h: &mut Handle<'_>,
        owner: &Inode,
        number: InodeNo,
    ) -> Result<()> {
        let value = owner.fs.inode(number)?;
        let counted = !owner.is_owner_of(&value);
        let last = self.update_inode(h, number, |inode| {
            check_value(inode, number)?;
            let left = if counted { references(inode)?.saturating_sub(1) } else { 0 };
            set_references(inode, left)?;
            Ok(left == 0)
        })?;
        if last { self.free_value(h, &value) } else { Ok(()) }
    }

    fn free_value(&self, h: &mut Handle<'_>, value: &Inode) -> Result<()> {
        self.unmap_range(h, value, FileBlock(0)..FileBlock(u64::from(u32::MAX)))?;
        let now = h.now().seconds as u32;
        self.update_inode(h, value.number, |inode| {
            inode.end();
            inode.set_links(0)?;
            inode.set_size(0)?;
            inode.set_dtime(now)
        })?;
        self.free_inode(h, value.number, false)
    }
}

fn check_value(inode: &mut InodeMut<'_>, number: InodeNo) -> Result<()> {
    if inode.flags()?.contains(InodeFlags::EA_INODE) {
        return Ok(());
    }
    let place = Place::new("attribute").field("e_value_inum");
    Err(place.corrupt(format!("inode {number} holds no value")))
}

fn references(inode: &mut InodeMut<'_>) -> Result<u64> {
    let fields = inode.fields()?;
    Ok(u64::from(fields.i_ctime.get()) << 32 | u64::from(fields.i_version_lo.get()))
}

fn set_references(inode: &mut InodeMut<'_>, count: u64) -> Result<()> {
    let high = Timestamp { seconds: ((count >> 32) as i32).into(), nanoseconds: 0 };
    inode.set_times(&Times::changed(high))?;
    inode.fields()?.i_version_lo.set(count as u32);
    Ok(())
}
