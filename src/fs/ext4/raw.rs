//! Changes the superblock, group descriptors and inodes. Each change also stores the new checksum of the structure.

use bitflags::bitflags;
use zerocopy::FromBytes;

use super::disk::inode::{GOOD_OLD_SIZE, RawInode, RawInodeExtra};
use super::disk::superblock::{RawSuperblock, STATE_ERROR};
use super::group::GroupMut;
use super::inode::{InodePlace, seal_inode};
use super::jbd2::Handle;
use super::operation::MayChange;
use super::quota::Usage;
use super::superblock::change_superblock;
use crate::error::{Place, Result};
use crate::units::InodeNo;

const SUPERBLOCK: Place = Place::new("superblock");
const GROUP: Place = Place::new("group descriptor");
const INODE: Place = Place::new("inode");

/// An inode's bytes in the inode table, for changes.
pub(crate) struct InodeMut<'a> {
    number: InodeNo,
    bytes: &'a mut [u8],
    stage: Stage,
    values: i64,
    values_added: i64,
    /// The kinds of time stamps that this change has set. A time stamp of the same kind that was set earlier, in memory only, is discarded.
    times_set: TimesSet,
}

bitflags! {
    /// The kinds of time stamps that can be pending: set in memory, but not yet stored in the inode table.
    #[derive(Clone, Copy)]
    pub(crate) struct TimesSet: u8 {
        const ACCESSED = 1;
        const MODIFIED = 2;
        const CHANGED = 4;
    }
}

/// Whether a change creates an inode, changes an existing inode, or frees an inode. This determines how the quotas of the inode's owners
/// are charged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The inode is new. The inode table may still contain an earlier inode with the same number. The usage of the earlier inode does not
    /// count.
    Begins,
    Goes,
    /// The inode is freed. After the change, no owner is charged.
    Ends,
}

impl Handle<'_> {
    /// Changes the superblock.
    ///
    /// # Errors
    /// The errors of [`update`](Self::update).
    pub(crate) fn update_superblock<R>(
        &mut self,
        change: impl FnOnce(&mut RawSuperblock) -> Result<R>,
    ) -> Result<R> {
        let (block, at) = self.fs.superblock.position();
        self.update(block, SUPERBLOCK, |bytes| change_superblock(&mut bytes[at..], change))
    }

    /// Sets the error flag in the superblock. The same transaction contains the changes that leave faults on the volume. A crash therefore
    /// cannot separate the flag from the faults.
    pub(super) fn mark_errors(&mut self) -> Result<()> {
        self.update_superblock(|raw| {
            raw.s_state.set(raw.s_state.get() | STATE_ERROR);
            Ok(())
        })
    }

    /// Changes a group's descriptor. `group` must be less than the number of groups.
    ///
    /// # Errors
    /// The errors of [`update`](Self::update).
    pub(crate) fn update_group<R>(
        &mut self,
        group: u32,
        change: impl FnOnce(&mut GroupMut<'_>) -> Result<R>,
    ) -> Result<R> {
        let fs = self.fs;
        let range = fs.descriptor_range(group);
        let (block, part) = (fs.descriptor_block(group), fs.descriptor_part(group));
        self.update_sealed(block, part, GROUP, |bytes| {
            let descriptor = &mut bytes[range];
            let result = change(&mut GroupMut::new(descriptor))?;
            fs.superblock.seal_descriptor(group, descriptor);
            Ok(result)
        })
    }

    /// Changes an inode in the inode table. Also stores the inode's pending time stamps, which were set in memory only.
    ///
    /// # Errors
    /// The errors of [`update`](Self::update); `Corrupt` for 0 or a number above the volume's number of inodes.
    pub(crate) fn update_inode<R>(
        &mut self,
        inode: &impl MayChange,
        change: impl FnOnce(&mut InodeMut<'_>) -> Result<R>,
    ) -> Result<R> {
        self.change_inode(inode.number(), change)
    }

    /// Stores the pending time stamps of an inode, which were set in memory only, in the inode table. The caller does not need the inode's
    /// lock: this lock does not protect pending time stamps.
    ///
    /// # Errors
    /// The errors of [`update_inode`](Self::update_inode).
    pub(crate) fn store_stamps(&mut self, number: InodeNo) -> Result<()> {
        self.change_inode(number, |_| Ok(()))
    }

    fn change_inode<R>(
        &mut self,
        number: InodeNo,
        change: impl FnOnce(&mut InodeMut<'_>) -> Result<R>,
    ) -> Result<R> {
        let fs = self.fs;
        let InodePlace { block, at, part, .. } = fs.inode_place(number)?;
        let size = usize::from(fs.superblock.inode_size);
        let locks = &self.writing.locks;
        let quota = fs.quota_of(number);
        let usage = |bytes: &[u8]| quota.map(|_| Usage::of(&fs.superblock, bytes));
        let place = INODE.inode(number);
        let (result, before, after) = self.update_sealed(block, part, place, |bytes| {
            let bytes = &mut bytes[at..at + size];
            let mut before = usage(bytes);
            let mut inode = InodeMut {
                number,
                bytes,
                stage: Stage::Goes,
                values: 0,
                values_added: 0,
                times_set: TimesSet::empty(),
            };
            let result = change(&mut inode)?;
            if locks.has_stamps() {
                inode.set_waiting(locks.take_stamps(number))?;
            }
            let InodeMut { bytes, stage, values, values_added, .. } = inode;
            let mut after = usage(bytes);
            if let (Some(before), Some(after)) = (&mut before, &mut after) {
                before.add_values(values);
                after.add_values(values + values_added);
                match stage {
                    Stage::Begins => before.clear(),
                    Stage::Goes => {}
                    Stage::Ends => after.clear(),
                }
            }
            seal_inode(&fs.superblock, number, bytes);
            Ok((result, before, after))
        })?;
        if let (Some(quota), Some(before), Some(after)) = (quota, before, after) {
            quota.charge(self, &before, &after)?;
        }
        Ok(result)
    }
}

impl InodeMut<'_> {
    /// Marks the inode as new. From this change on, the quotas of its owners are charged.
    pub(crate) fn begin(&mut self) {
        self.stage = Stage::Begins;
    }

    /// Marks the inode as freed. From this change on, the quotas of its owners are not charged.
    pub(crate) fn end(&mut self) {
        self.stage = Stage::Ends;
    }

    /// Sets the number of the inode's attributes whose values are in separate inodes. The owners of this inode are charged for these
    /// separate inodes. If the caller also changes an owner, it must set the number first.
    pub(crate) fn has_values(&mut self, count: usize) {
        self.values = count as i64;
    }

    /// Adds to the number of the inode's attributes whose values are in separate inodes.
    pub(crate) fn add_values(&mut self, change: i64) {
        self.values_added += change;
    }

    /// Records that this change has set time stamps of these kinds.
    pub(crate) fn note_set(&mut self, times: TimesSet) {
        self.times_set |= times;
    }

    /// The kinds of time stamps that this change has set.
    pub(crate) fn times_set(&self) -> TimesSet {
        self.times_set
    }

    /// All bytes of the inode.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// The fields in the first 128 bytes, which every inode has.
    pub(crate) fn fields(&mut self) -> Result<&mut RawInode> {
        let place = INODE.inode(self.number);
        let fields = RawInode::mut_from_prefix(self.bytes);
        fields.map(|(fields, _)| fields).map_err(|_| place.corrupt("the inode is truncated"))
    }

    /// The length of the extra fields that are valid. They follow the first 128 bytes.
    pub(crate) fn extra_size(&self) -> usize {
        let length = self.bytes.get(GOOD_OLD_SIZE..).and_then(|rest| rest.first_chunk::<2>());
        length.map_or(0, |length| usize::from(u16::from_le_bytes(*length)))
    }

    /// The extra fields after the first 128 bytes, if the inode has space for all extra fields that ironmap knows. Only the first
    /// [`extra_size`](Self::extra_size) bytes of these fields are valid.
    pub(crate) fn extra(&mut self) -> Option<&mut RawInodeExtra> {
        let rest = self.bytes.get_mut(GOOD_OLD_SIZE..)?;
        RawInodeExtra::mut_from_prefix(rest).ok().map(|(extra, _)| extra)
    }
}
