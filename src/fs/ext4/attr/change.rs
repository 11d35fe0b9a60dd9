//! Setting and removing attributes. An attribute is stored in the inode if it fits there. If not, it is stored in the attribute block. A
//! value that is too large for the inode and the block is stored in a separate inode.

use std::sync::atomic::Ordering;

use super::super::disk::inode::GOOD_OLD_SIZE;
use super::super::features::{Compat, Incompat};
use super::super::inode::Inode;
use super::super::jbd2::Handle;
use super::super::raw::InodeMut;
use super::super::superblock::change_features;
use super::Attributes;
use super::block::Rewritten;
use super::fields::Times;
use super::lists::{Home, Lists, no_room};
use super::name::{Name, NameIndex};
use super::read::{Entry, MAX_VALUE, Value, hash_of_checksum};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::SetXattr;
use crate::units::{FsBlock, InodeNo};

/// The old version of a changed attribute: the list that contained the attribute, and the separate inode of its value, if there was one.
/// The change must release this inode.
type Old = Option<(Home, Option<InodeNo>)>;

impl Attributes<'_> {
    /// Sets an attribute. The name and the value have the form of the system calls. If the attribute is an access list, the permissions are
    /// also changed.
    ///
    /// # Errors
    /// `AttributeNameLength` and `AttributeTooBig` for a name or value that the system calls refuse; `Unsupported` for a prefix that cannot
    /// be set; `InvalidInput` for an invalid access list; `NotPermitted` if the file's type cannot have the attribute; `NoSpace`; and the
    /// errors of [`SetXattr`].
    pub(crate) fn set_xattr(
        &self,
        h: &mut Handle<'_>,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let name = Name::parse(name)?;
        name.check_type(self)?;
        if value.len() > MAX_VALUE {
            return Err(Error::new(
                ErrorKind::AttributeTooBig,
                format!("the attribute's value of {} bytes is too long", value.len()),
            ));
        }
        match name.index {
            NameIndex::ACL_ACCESS => self.set_access_acl(h, value),
            NameIndex::ACL_DEFAULT => self.set_default_acl(h, value),
            _ => self.put(h, &name, value, how),
        }
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `NoData` if the attribute does not exist and is not an access list; the errors for the name as in [`set_xattr`](Self::set_xattr).
    pub(crate) fn remove_xattr(&self, h: &mut Handle<'_>, name: &[u8]) -> Result<()> {
        let name = Name::parse(name)?;
        name.check_type(self)?;
        let removed = self.remove(h, &name)?;
        let is_acl = matches!(name.index, NameIndex::ACL_ACCESS | NameIndex::ACL_DEFAULT);
        if removed || is_acl {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NoData, "the attribute does not exist"))
    }

    /// Drops the attribute block and the values of an inode that is being deleted. The inode must not be used afterwards.
    ///
    /// # Errors
    /// The errors of [`Handle::renew`], which is called between large values: one transaction may be too small for all values. After an
    /// error, the remaining values can be dropped later.
    pub(crate) fn drop_xattrs(&self, h: &mut Handle<'_>) -> Result<()> {
        let block = self.read_xattr_block()?;
        let mut lists = Lists::new(self, block.as_ref())?;
        let credits = self.xattr_credits();
        if let Some((_, number)) = &block {
            // If other inodes share the attribute block, the values to which the block refers stay in use.
            if !self.is_shared(*number)? {
                self.drop_values(h, &mut lists, Home::Block, credits)?;
            }
            self.release_xattr_block(h, *number, &lists.values_of_block())?;
            let charged = lists.charged();
            lists.clear_block();
            let charged = charged - lists.charged();
            let blocks = i64::from(self.fs.superblock.cluster_blocks) + charged.blocks;
            h.update_inode(self.0, |raw| {
                raw.add_blocks(&self.fs.superblock, -blocks)?;
                raw.add_values(-charged.values);
                raw.set_xattr_block(None)
            })?;
        }
        self.drop_values(h, &mut lists, Home::Inode, credits)
    }

    /// Sets an attribute. `value` has the on-disk form.
    pub(super) fn put(
        &self,
        h: &mut Handle<'_>,
        name: &Name<'_>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let block = self.read_xattr_block()?;
        let mut lists = Lists::new(self, block.as_ref())?;
        let old = lists.take(name);
        match (how, &old) {
            (SetXattr::Create, Some(_)) => {
                return Err(Error::new(ErrorKind::Exists, "the attribute exists already"));
            }
            (SetXattr::Replace, None) => {
                return Err(Error::new(ErrorKind::NoData, "the attribute does not exist"));
            }
            _ => {}
        }
        let (index, name) = (name.index, name.name);
        let mut entry = Entry { index, name, value: Value::Here(value), hash: 0 };
        let mut made = None;
        let home = match lists.room_for(&entry) {
            Some(home) => home,
            None if self.fs.superblock.incompat.contains(Incompat::EA_INODE) => {
                entry.value = Value::Inode(InodeNo(0), value.len());
                let home = lists.room_for(&entry).ok_or_else(|| no_room(value.len()))?;
                let new = self.create_value(h, value)?;
                entry.value = Value::Inode(new.number, value.len());
                entry.hash = hash_of_checksum(name, new.checksum);
                made = Some(new.number);
                home
            }
            None => return Err(no_room(value.len())),
        };
        lists.insert(entry, home);
        let stored = self.store(h, &lists, left_of(old), made);
        if let (Err(error), Some(made)) = (&stored, made)
            && error.is_for_space()
        {
            self.drop_value(h, made)?;
        }
        stored
    }

    /// Removes an attribute. Returns whether the attribute existed.
    pub(super) fn remove(&self, h: &mut Handle<'_>, name: &Name<'_>) -> Result<bool> {
        let block = self.read_xattr_block()?;
        let mut lists = Lists::new(self, block.as_ref())?;
        let Some(old) = lists.take(name) else { return Ok(false) };
        self.store(h, &lists, left_of(Some(old)), None)?;
        Ok(true)
    }

    /// Stores changed lists. `made` is the new inode of a value, if one was created.
    ///
    /// Blocks and values are released last, after the inode has stopped referring to them. A reader without the inode's lock therefore
    /// finds all blocks and values to which the inode refers.
    ///
    /// # Errors
    /// `NoSpace` and `Quota`; nothing is changed in that case.
    fn store(
        &self,
        h: &mut Handle<'_>,
        lists: &Lists<'_>,
        old: Old,
        made: Option<InodeNo>,
    ) -> Result<()> {
        let area = lists.inode_area()?;
        let (mut block, mut released) = (self.xattr_block, None);
        if lists.block_changed() {
            (block, released) = self.store_block(h, lists, old, made)?;
        }
        let clusters = i64::from(block.is_some()) - i64::from(self.xattr_block.is_some());
        let blocks = clusters * i64::from(self.fs.superblock.cluster_blocks);
        let added = lists.charge_added();
        let now = h.now();
        h.update_inode(self.0, |raw| {
            raw.add_blocks(&self.fs.superblock, added.blocks + blocks)?;
            raw.add_values(added.values);
            raw.set_xattr_block(block)?;
            raw.set_times(&Times::changed(now))?;
            set_area(raw, area.as_deref());
            Ok(())
        })?;
        if let Some((Home::Inode, Some(value))) = old {
            self.drop_value(h, value)?;
        }
        if let Some(Released { block, values }) = released {
            self.release_xattr_block(h, block, &values)?;
        }
        self.say_attributes_are_used(h)
    }

    /// Stores the list of the attribute block. Returns the inode's new attribute block, and the old block if the inode has released it.
    fn store_block(
        &self,
        h: &mut Handle<'_>,
        lists: &Lists<'_>,
        old: Old,
        made: Option<InodeNo>,
    ) -> Result<(Option<FsBlock>, Option<Released>)> {
        let old = old.and_then(|(home, value)| value.filter(|_| home == Home::Block));
        let kept = lists.values_of_block();
        let released = |block| {
            let values = kept.iter().filter(|value| Some(**value) != made).chain(&old).copied();
            Some(Released { block, values: values.collect() })
        };
        let Some(block) = self.xattr_block else {
            let new = self.create_xattr_block(h, &lists.block()?)?;
            return Ok((Some(new), None));
        };
        if lists.block_is_empty() {
            return Ok((None, released(block)));
        }
        let content = lists.block()?;
        if self.rewrite_xattr_block(h, block, &content)? == Rewritten::InPlace {
            if let Some(value) = old {
                self.drop_value(h, value)?;
            }
            return Ok((Some(block), None));
        }
        // Other inodes keep the old block, and the old block keeps its references to values. The new block therefore needs its own
        // references to the same values.
        let new = self.create_xattr_block(h, &content)?;
        for value in kept.iter().filter(|value| Some(**value) != made) {
            self.share_value(h, *value)?;
        }
        Ok((Some(new), released(block)))
    }

    /// Drops all values of a list that are in separate inodes, and removes their entries. The drop of one value changes `credits` blocks.
    fn drop_values(
        &self,
        h: &mut Handle<'_>,
        lists: &mut Lists<'_>,
        home: Home,
        credits: u32,
    ) -> Result<()> {
        while let Some((value, charged)) = lists.take_large(home) {
            if h.credits_left() < credits {
                h.renew(credits)?;
            }
            if let (Home::Block, Some(block)) = (home, self.xattr_block) {
                self.rewrite_xattr_block(h, block, &lists.block()?)?;
            }
            let area = lists.inode_area()?;
            h.update_inode(self.0, |raw| {
                raw.add_blocks(&self.fs.superblock, -charged.blocks)?;
                raw.add_values(-charged.values);
                set_area(raw, area.as_deref());
                Ok(())
            })?;
            self.drop_value(h, value)?;
        }
        Ok(())
    }

    /// Sets the attribute feature in the superblock. Recent versions of mke2fs set this feature on new volumes.
    fn say_attributes_are_used(&self, h: &mut Handle<'_>) -> Result<()> {
        if self.fs.superblock.compat.contains(Compat::EXT_ATTR) {
            return Ok(());
        }
        h.update_superblock(|raw| {
            change_features(raw, |features| features.compat.insert(Compat::EXT_ATTR));
            Ok(())
        })?;
        self.fs.writing()?.features_switched.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Inode {
    /// The maximum number of blocks that one change of attributes modifies.
    pub(crate) fn xattr_credits(&self) -> u32 {
        // The changed blocks are the inode, the superblock, and two attribute blocks (old and new), each with a bitmap and a descriptor.
        let credits = 8;
        if !self.fs.superblock.incompat.contains(Incompat::EA_INODE) {
            return credits;
        }
        let block = self.read_xattr_block().ok().flatten();
        let lists = Lists::new(self, block.as_ref());
        // In addition, a change can create one value, drop one value, and change each value inode to which the old and the new attribute
        // block refer.
        let shared = lists.map_or(0, |lists| lists.value_inodes()) as u32;
        let credits = credits + self.fs.superblock.value_credits() + shared;
        // The credits are limited to three quarters of a transaction, because the calling operation needs the remaining credits for other
        // blocks.
        let most =
            self.fs.writing().map_or(credits, |writing| writing.transactions.limit() / 4 * 3);
        credits.min(most)
    }

    /// The number of separate inodes of attribute values that are charged to the quota of this inode's owner.
    pub(crate) fn value_inodes(&self) -> Result<usize> {
        let block = self.read_xattr_block()?;
        Ok(Lists::new(self, block.as_ref())?.charged().values as usize)
    }
}

/// An attribute block that an inode has released, and the separate inodes of attribute values to which the block refers.
struct Released {
    block: FsBlock,
    values: Vec<InodeNo>,
}

/// Stores the inode's list in the inode, if the list was changed.
pub(super) fn set_area(inode: &mut InodeMut<'_>, area: Option<&[u8]>) {
    let at = GOOD_OLD_SIZE + inode.extra_size();
    if let Some((to, area)) = inode.bytes().get_mut(at..).zip(area) {
        to.copy_from_slice(area);
    }
}

fn left_of(old: Option<(Entry<'_>, Home)>) -> Old {
    old.map(|(entry, home)| match entry.value {
        Value::Here(_) => (home, None),
        Value::Inode(number, _) => (home, Some(number)),
    })
}
