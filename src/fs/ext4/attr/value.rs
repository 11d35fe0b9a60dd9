//! Large values. Each value is stored in a separate inode, which several attributes may share.
//!
//! The time stamp fields of a value inode contain other data: `i_atime` is the checksum of the value; `i_ctime` and `i_version` together
//! are the number of references. The blocks of a value inode are metadata and are written to the journal.

use super::super::alloc::{Freed, FreshInode};
use super::super::disk::extent::INIT_MAX_LEN;
use super::super::jbd2::Handle;
use super::super::operation::{InodeToChange, MayChange};
use super::super::raw::InodeMut;
use super::super::superblock::Superblock;
use super::Attributes;
use super::create::{Body, NewInode};
use super::fields::Times;
use super::read::{MAX_VALUE, value_checksum};
use crate::error::{Error, Place, Result};
use crate::fs::{InodeFlags, Timestamp};
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock, InodeNo};

/// The type and the permissions of a value inode, which contains one large attribute value.
const MODE: u32 = 0o100_600;

/// The credits of one value are sufficient if the value's blocks are in at most this number of groups.
const GROUPS: u32 = 8;

/// A newly created inode that contains one large attribute value.
pub(super) struct Made {
    pub(super) number: InodeNo,
    pub(super) checksum: u32,
}

/// The inode of a value. Threads do not lock value inodes. The reference count is changed in one update, while the block of the inode table
/// is locked. Other fields are changed only by the thread that drops the last reference.
struct ValueInode(InodeNo);

impl MayChange for ValueInode {
    fn number(&self) -> InodeNo {
        self.0
    }
}

impl Superblock {
    /// The maximum number of blocks that change when one value is created and another value is dropped.
    pub(super) fn value_credits(&self) -> u32 {
        let blocks = self.block_size.blocks_for(MAX_VALUE as u64) as u32;
        // The creation of a value changes these blocks: the value's blocks, the inode, the inode bitmap with its descriptor, block bitmaps
        // with their descriptors, and nodes of the map.
        let making = blocks + 3 + 2 * self.groups.min(GROUPS) + 4;
        // Unmapping starts a new transaction if the remaining credits might be too few for the longest extents. A new transaction would
        // commit a partial change of the attributes. These credits are therefore enough for the longest extents.
        let dropping = 3 + 64 + 2 * (u32::from(INIT_MAX_LEN) / self.blocks_per_group);
        making + dropping
    }
}

impl Attributes<'_> {
    /// Creates an inode for a value, with one reference.
    ///
    /// # Errors
    /// `NoSpace`; nothing is changed in that case.
    pub(super) fn create_value(&self, h: &mut Handle<'_>, value: &[u8]) -> Result<Made> {
        let checksum = value_checksum(&self.fs.superblock, value);
        let blocks = self.fs.superblock.block_size.blocks_for(value.len() as u64);
        self.check_quota(blocks, 1)?;
        let fresh = h.allocate_inode(self.number, false)?;
        let number = fresh.number();
        let runs = match self.allocate_runs(h, number, value) {
            Ok(runs) => runs,
            Err(error) => {
                h.free_inode(&fresh, false)?;
                return Err(error);
            }
        };
        self.init_value(h, &fresh)?;
        let count = self.fs.superblock.block_size.blocks_for(value.len() as u64) as u32;
        if let Err((error, mapped)) = self.map_runs(h, &fresh, &runs, count) {
            // Blocks that could not be mapped belong to no file. They are freed separately from the inode.
            for (start, len) in &runs[mapped..] {
                h.free_blocks(*start, u64::from(*len), Freed::Data)?;
            }
            free_value(h, &InodeToChange::read_named(&self.fs, &fresh)?)?;
            return Err(error);
        }
        let blocks = runs.iter().flat_map(|(start, len)| start.0..start.0 + u64::from(*len));
        for (block, part) in blocks.zip(value.chunks(self.fs.superblock.block_size.bytes())) {
            h.create(FsBlock(block), |bytes| bytes[..part.len()].copy_from_slice(part))?;
        }
        h.update_inode(&fresh, |inode| {
            let seconds = i64::from(checksum as i32);
            let accessed = Some(Timestamp { seconds, nanoseconds: 0 });
            inode.set_size(value.len() as u64)?;
            inode.set_times(&Times { accessed, ..Times::default() })?;
            set_references(inode, 1)
        })?;
        Ok(Made { number, checksum })
    }

    fn init_value(&self, h: &mut Handle<'_>, fresh: &FreshInode<'_>) -> Result<()> {
        let stat = self.stat();
        let new = NewInode {
            mode: MODE,
            uid: stat.uid,
            gid: stat.gid,
            links: 1,
            flags: InodeFlags::EA_INODE,
            time: h.now(),
            // A value inode in the older form has the generation of its owner. The new value inode has the newer form, and therefore gets
            // another generation.
            generation: !self.generation,
            project: stat.project.unwrap_or(0),
            body: Body::Mapped,
        };
        h.init_inode(fresh, &new)
    }

    /// Maps the first `count` blocks of these runs, in the order of the runs. On failure, the error is returned together with the number of
    /// runs that were mapped.
    fn map_runs(
        &self,
        h: &mut Handle<'_>,
        fresh: &FreshInode<'_>,
        runs: &[(FsBlock, u32)],
        count: u32,
    ) -> Result<(), (Error, usize)> {
        let mut first = FileBlock(0);
        let mut left = count;
        for (at, (start, len)) in runs.iter().enumerate() {
            // The last blocks of a cluster may be unused.
            let (start, len, state) = (*start, left.min(*len), ExtentState::Written);
            let extent = Extent { first, start, len, state };
            let inode = InodeToChange::read_named(&self.fs, fresh);
            let inode = inode.map_err(|error| (error, at))?;
            inode.map_extent(h, extent).map_err(|error| (error, at))?;
            (first, left) = (extent.end(), left - len);
        }
        Ok(())
    }

    /// Allocates the blocks of a value in as many runs as needed. If there are too few free blocks, no block is allocated.
    fn allocate_runs(
        &self,
        h: &mut Handle<'_>,
        number: InodeNo,
        value: &[u8],
    ) -> Result<Vec<(FsBlock, u32)>> {
        let mut runs: Vec<(FsBlock, u32)> = Vec::new();
        let mut goal = self.fs.superblock.goal_of(number);
        let mut left = self.fs.superblock.block_size.blocks_for(value.len() as u64) as u32;
        while left > 0 {
            match h.allocate_blocks(goal, left) {
                Ok((start, len)) => {
                    runs.push((start, len));
                    left = left.saturating_sub(len);
                    goal = FsBlock(start.0 + u64::from(len));
                }
                Err(error) => {
                    for (start, len) in runs {
                        h.free_blocks(start, u64::from(len), Freed::Data)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(runs)
    }

    /// Adds a reference to the value in inode `number`.
    pub(super) fn share_value(&self, h: &mut Handle<'_>, number: InodeNo) -> Result<()> {
        h.update_inode(&ValueInode(number), |inode| {
            check_value(inode, number)?;
            let references = references(inode)?;
            set_references(inode, references.saturating_add(1))
        })
    }

    /// Drops a reference to the value in inode `number`. Dropping the last reference frees the inode.
    pub(super) fn drop_value(&self, h: &mut Handle<'_>, number: InodeNo) -> Result<()> {
        let proof = ValueInode(number);
        let value = InodeToChange::read_named(&self.fs, &proof)?;
        let counted = !self.is_owner_of(&value);
        let last = h.update_inode(&value, |inode| {
            check_value(inode, number)?;
            let left = if counted { references(inode)?.saturating_sub(1) } else { 0 };
            set_references(inode, left)?;
            Ok(left == 0)
        })?;
        if last { free_value(h, &value) } else { Ok(()) }
    }
}

fn free_value(h: &mut Handle<'_>, value: &InodeToChange<'_>) -> Result<()> {
    value.unmap_range(h, FileBlock(0)..FileBlock(u64::from(u32::MAX)))?;
    let now = h.now().seconds as u32;
    h.update_inode(value, |inode| {
        inode.end();
        inode.set_links(0)?;
        inode.set_size(0)?;
        inode.set_dtime(now)
    })?;
    h.free_inode(value, false)
}

fn check_value(inode: &mut InodeMut<'_>, number: InodeNo) -> Result<()> {
    if inode.flags()?.contains(InodeFlags::EA_INODE) {
        return Ok(());
    }
    let place = Place::new("attribute").field("e_value_inum");
    Err(place.corrupt(format!("inode {number} does not contain an attribute's value")))
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
