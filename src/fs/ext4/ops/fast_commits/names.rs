//! The final names and inodes after all fast commits, computed before any change.
//!
//! The number of a file's names is the link count on the device, plus the added names, minus the removed names. If an inode has no name
//! after all fast commits, its record is ignored.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{MAX_LINKS, PLACE};
use crate::error::Result;
use crate::fs::FileType;
use crate::fs::ext4::jbd2::fast_commit::{DirEdit, InodeEdit};
use crate::fs::ext4::{Ext4, Inode, ROOT};
use crate::units::InodeNo;

/// A name that the fast commits have added, removed, or changed to another inode.
pub(super) struct Change<'a> {
    pub(super) dir: InodeNo,
    pub(super) name: &'a [u8],
    pub(super) old: Option<InodeNo>,
    new: Option<InodeNo>,
}

/// An inode that fast commits have recorded, or whose names or directory entries they have changed.
#[derive(Default)]
pub(super) struct Touched<'a> {
    pub(super) edit: Option<&'a InodeEdit>,
    /// The inode on the device, if the inode is in use on the device.
    pub(super) before: Option<Inode>,
    /// The inode after all fast commits, if it then has a name.
    pub(super) after: Option<Inode>,
    /// The number of the inode's names after all fast commits.
    pub(super) names: i64,
    /// The number of subdirectories that the fast commits add, minus the number that they remove. For a new directory, this is its number
    /// of subdirectories.
    pub(super) subdirectories: i64,
    /// The parent directory, if this inode is a directory and the fast commits give it a name.
    pub(super) parent: Option<InodeNo>,
}

impl Touched<'_> {
    /// Whether the inode is new: on the device, its number is unused or belongs to another file.
    pub(super) fn is_new(&self) -> bool {
        self.before.is_none() || self.edit.is_some_and(|edit| edit.created)
    }

    fn was_directory(&self) -> bool {
        self.before.as_ref().is_some_and(|inode| inode.file_type() == FileType::Directory)
    }

    fn names_before(&self) -> i64 {
        let links = self.before.as_ref().map_or(0, |inode| inode.stat().links);
        i64::from(if self.was_directory() { links.min(1) } else { links })
    }
}

/// All changes that the fast commits make, except for changes of the block maps of files.
#[derive(Default)]
pub(super) struct Plan<'a> {
    pub(super) changes: Vec<Change<'a>>,
    pub(super) inodes: BTreeMap<InodeNo, Touched<'a>>,
}

impl<'a> Plan<'a> {
    /// Computes the changes that the fast commits `found` make to the volume `fs` on the device.
    pub(super) fn of(fs: &Arc<Ext4>, found: &'a Arc<Ext4>) -> Result<Self> {
        let mut plan = Self::default();
        for (number, edit) in found.fast_commits.inodes() {
            plan.touch(fs, number)?.edit = Some(edit);
        }
        plan.empty_former_directories(fs)?;
        for (dir, edit) in found.fast_commits.directories() {
            plan.change_entries(fs, dir, edit)?;
        }
        plan.resolve(found)?;
        Ok(plan)
    }

    /// The inodes that are in use after the fast commits.
    pub(super) fn survivors(&self) -> impl Iterator<Item = (InodeNo, &Touched<'a>)> {
        let all = self.inodes.iter().map(|(number, inode)| (*number, inode));
        all.filter(|(_, inode)| inode.after.is_some())
    }

    /// The inode of a name after the fast commits; `None` if the name does not exist after them.
    pub(super) fn target(&self, change: &Change<'_>) -> Option<(InodeNo, &Inode)> {
        let number = change.new?;
        Some((number, self.inodes.get(&number)?.after.as_ref()?))
    }

    fn touch(&mut self, fs: &Arc<Ext4>, number: InodeNo) -> Result<&mut Touched<'a>> {
        Ok(match self.inodes.entry(number) {
            Entry::Occupied(touched) => touched.into_mut(),
            Entry::Vacant(none) => {
                let in_use = number == ROOT || fs.is_inode_in_use(number)?;
                let before = in_use.then(|| fs.inode_or_orphan(number)).transpose()?;
                none.insert(Touched { before, ..Touched::default() })
            }
        })
    }

    /// Handles a directory whose inode number was reused for another file: plans the removal of all directory entries on the device. The
    /// directory was empty when it was removed. However, the records that had removed its entries were dropped when the number was reused.
    fn empty_former_directories(&mut self, fs: &Arc<Ext4>) -> Result<()> {
        let mut gone = Vec::new();
        for inode in self.inodes.values().filter(|inode| inode.is_new() && inode.was_directory()) {
            for entry in inode.before.iter().map(Inode::entries) {
                for entry in entry? {
                    let entry = entry?;
                    if !matches!(&entry.name[..], b"." | b"..") {
                        gone.push(entry.inode);
                    }
                }
            }
        }
        for number in gone {
            self.touch(fs, number)?.names -= 1;
        }
        Ok(())
    }

    fn change_entries(&mut self, fs: &Arc<Ext4>, dir: InodeNo, edit: &'a DirEdit) -> Result<()> {
        let there = match &self.touch(fs, dir)?.before {
            _ if edit.created_in.is_some() => HashMap::new(),
            Some(before) => entries_among(before, edit)?,
            None => {
                return Err(PLACE
                    .inode(dir)
                    .corrupt("the fast commit adds entries, but the inode is not a directory"));
            }
        };
        for (name, &new) in &edit.names {
            let old = there.get(&name[..]).copied();
            let other = match new {
                Some(new) => self.touch(fs, new)?.is_new(),
                None => false,
            };
            if old == new && !other {
                continue;
            }
            if let Some(old) = old {
                let inode = self.touch(fs, old)?;
                inode.names -= 1;
                let directory = i64::from(inode.was_directory());
                self.touch(fs, dir)?.subdirectories -= directory;
            }
            if let Some(new) = new {
                self.touch(fs, new)?.names += 1;
            }
            self.changes.push(Change { dir, name, old, new });
        }
        Ok(())
    }

    /// Computes the numbers of names and subdirectories, and checks the result.
    fn resolve(&mut self, found: &Arc<Ext4>) -> Result<()> {
        for (number, inode) in &mut self.inodes {
            let place = PLACE.inode(*number);
            inode.names += inode.names_before();
            if !(0..=i64::from(MAX_LINKS)).contains(&inode.names) {
                return Err(place.corrupt(format!(
                    "the inode would have {} names after the fast commit",
                    inode.names
                )));
            }
            if inode.names == 0 {
                continue;
            }
            if inode.is_new() && inode.edit.is_none_or(|edit| edit.bytes.is_none()) {
                return Err(place.corrupt("the fast commit has no inode record for a new inode"));
            }
            let after = found.inode_or_orphan(*number)?;
            let directory = after.file_type() == FileType::Directory;
            let changed = inode.was_directory() != directory && !inode.is_new();
            if changed || (directory && inode.names > 1) {
                return Err(place.corrupt(
                    "the fast commit changes the file type, or gives a directory several names",
                ));
            }
            inode.after = Some(after);
        }
        for change in &self.changes {
            let Some((number, target)) = self.target(change) else { continue };
            let directory = target.file_type() == FileType::Directory;
            if let Some(target) = self.inodes.get_mut(&number).filter(|_| directory) {
                target.parent = Some(change.dir);
            }
            match self.inodes.get_mut(&change.dir).filter(|dir| dir.after.is_some()) {
                Some(dir) => dir.subdirectories += i64::from(directory),
                None => {
                    return Err(PLACE
                        .inode(change.dir)
                        .corrupt("the fast commit adds a name to a removed directory"));
                }
            }
        }
        Ok(())
    }
}

/// Finds the directory entries on the device for the changed names of a directory. Names are compared byte by byte, because a lookup could
/// ignore case.
fn entries_among<'a>(dir: &Inode, edit: &'a DirEdit) -> Result<HashMap<&'a [u8], InodeNo>> {
    let mut there = HashMap::new();
    for entry in dir.entries()? {
        let entry = entry?;
        if let Some((name, _)) = edit.names.get_key_value(&entry.name) {
            there.insert(&name[..], entry.inode);
        }
    }
    Ok(there)
}
