//! Renames: a name is moved, replaces another name, or is exchanged with another name.

use std::collections::HashSet;

use super::create::{CREATE_CREDITS, Plan};
use super::unlink::check_removable;
use super::{check_name, check_project, refuse};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::ext4::names::Directory;
use crate::fs::ext4::operation::{InodeToChange, Locked, MayChange, Operation};
use crate::fs::ext4::order::Ordered;
use crate::fs::ext4::{Inode, ROOT};
use crate::fs::{Credentials, FileType, NewFile, RenameFlags};
use crate::sync::MutexGuard;
use crate::units::InodeNo;

const WHITEOUT: NewFile<'static> = NewFile::CharDevice(0, 0);

/// A directory and a name in it. An entry with this name need not exist.
type DirName<'n> = (InodeNo, &'n [u8]);

/// A rename: the old and the new directory, the old and the new name, and the inodes of these names.
struct Move<'a> {
    from: &'a InodeToChange<'a>,
    from_locked: &'a Locked<'a>,
    old_name: &'a [u8],
    moved: InodeToChange<'a>,
    to: &'a InodeToChange<'a>,
    new_name: &'a [u8],
    there: Option<There<'a>>,
}

/// The file that already has the new name.
struct There<'a> {
    inode: InodeToChange<'a>,
    locked: &'a Locked<'a>,
}

impl<'a> Operation<'a> {
    /// Moves a name within its directory or to another directory. If a file already has the new name, that file is replaced atomically. If
    /// `flags` request a whiteout, the user `who` gets a whiteout with the old name.
    pub(in crate::fs::ext4) fn rename(
        &self,
        (from, old_name): (InodeNo, &[u8]),
        (to, new_name): (InodeNo, &[u8]),
        flags: RenameFlags,
        who: &Credentials,
    ) -> Result<()> {
        check_flags(flags)?;
        if matches!(old_name, b"." | b"..") || matches!(new_name, b"." | b"..") {
            return Err(refuse(ErrorKind::Busy, "`.` and `..` cannot be renamed"));
        }
        check_name(new_name)?;
        let names = [(from, old_name), (to, new_name)];
        if from == to && self.rename_names(names, flags, who, None)? {
            return Ok(());
        }
        let tree = self.lock_renames();
        self.rename_names(names, flags, who, Some(&tree)).map(drop)
    }

    /// Renames a name. `tree` is the guard of the rename lock, if the caller has acquired this lock. Only a thread that has the rename lock
    /// may lock two directories in different branches of the directory tree. If the old and the new name both refer to directories and
    /// `tree` is `None`, the function therefore changes nothing and returns false.
    fn rename_names(
        &self,
        [(from, old_name), (to, new_name)]: [DirName<'_>; 2],
        flags: RenameFlags,
        who: &Credentials,
        tree: Option<&Ordered<MutexGuard<'a, ()>>>,
    ) -> Result<bool> {
        // While this thread has the rename lock, no directory gets another parent. The result of `check_tree` below therefore stays valid.
        let (from_locked, to_locked) = self.lock_directories(from, to)?;
        let from_dir = self.directory_to_shrink(&from_locked)?;
        let to_dir = self.directory(to_locked.as_ref().unwrap_or(&from_locked))?;
        let moved_inode = from_dir.lookup(old_name)?;
        let there_inode = self.entry(&to_dir, new_name)?;
        let (moved, there) =
            (moved_inode.number(), there_inode.as_ref().map(|inode| inode.number()));
        if there.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return Err(refuse(ErrorKind::Exists, "the name exists already"));
        }
        if there.is_none() && flags.contains(RenameFlags::EXCHANGE) {
            return Err(refuse(
                ErrorKind::NotFound,
                "the second name of the exchange does not exist",
            ));
        }
        self.check_tree(from, to, moved, there, flags)?;
        if [Some(moved), there].iter().flatten().any(|below| [from, to].contains(below)) {
            let place = Place::new("directory entry").inode(to);
            return Err(place.corrupt("a directory contains itself"));
        }
        let is_directory = |inode: &Inode| inode.file_type() == FileType::Directory;
        if tree.is_none()
            && is_directory(&moved_inode)
            && there_inode.as_ref().is_some_and(is_directory)
        {
            return Ok(false);
        }
        let (moved_locked, there_locked) = self.lock_two(&moved_inode, there_inode.as_ref());
        let there = there.map(|_| there_locked.as_ref().unwrap_or(&moved_locked));
        let change = Move {
            from: &from_dir,
            from_locked: &from_locked,
            old_name,
            moved: moved_locked.named()?,
            to: &to_dir,
            new_name,
            there: there
                .map(|locked| -> Result<_> { Ok(There { inode: locked.named()?, locked }) })
                .transpose()?,
        };
        check_removable(&change.moved)?;
        check_project(&to_dir, &change.moved)?;
        if flags.contains(RenameFlags::EXCHANGE) {
            return self.exchange(&change).map(|()| true);
        }
        let whiteout = flags.contains(RenameFlags::WHITEOUT);
        let whiteout = whiteout.then(|| self.plan_whiteout(&from_dir, who)).transpose()?;
        match &change.there {
            // The old and the new name already refer to the same file. In this case POSIX requires that nothing changes.
            Some(there) if there.inode.number() == moved => {}
            _ => self.move_name(&change, whiteout.as_ref())?,
        }
        Ok(true)
    }

    /// Locks two directories. If one directory is an ancestor of the other, the ancestor is locked first, as in a path walk. If both are
    /// the same directory, only one lock is acquired, and the second is `None`.
    fn lock_directories(
        &self,
        from: InodeNo,
        to: InodeNo,
    ) -> Result<(Locked<'a>, Option<Locked<'a>>)> {
        if from == to {
            return Ok((self.lock(from), None));
        }
        let below =
            |dir, above: &InodeNo| -> Result<bool> { Ok(self.ancestors(dir)?.contains(above)) };
        let from_first = below(to, &from)? || from < to && !below(from, &to)?;
        let first = self.lock(if from_first { from } else { to });
        // The first directory, which this thread has locked, must still have a name. If the directory was removed, its inode may be the
        // last free inode, and another thread that has locked the second directory may be waiting for a free inode. If this thread then
        // waited for the second directory, both threads would wait forever.
        first.named()?;
        Ok(if from_first { (first, Some(self.lock(to))) } else { (self.lock(from), Some(first)) })
    }

    /// Refuses to move a directory below itself, and to replace an ancestor of the moved name.
    fn check_tree(
        &self,
        from: InodeNo,
        to: InodeNo,
        moved: InodeNo,
        there: Option<InodeNo>,
        flags: RenameFlags,
    ) -> Result<()> {
        if from == to {
            return Ok(());
        }
        if self.ancestors(to)?.contains(&moved) {
            return Err(Error::invalid("a directory cannot be moved into itself"));
        }
        let Some(there) = there else { return Ok(()) };
        if self.ancestors(from)?.contains(&there) {
            return Err(if flags.contains(RenameFlags::EXCHANGE) {
                Error::invalid("a directory cannot be moved into itself")
            } else {
                refuse(ErrorKind::NotEmpty, "the directory has entries")
            });
        }
        Ok(())
    }

    /// A directory and all directories above it.
    fn ancestors(&self, dir: InodeNo) -> Result<HashSet<InodeNo>> {
        let mut seen = HashSet::new();
        let mut next = dir;
        // The loop ends, because each directory is visited once.
        while seen.insert(next) && next != ROOT {
            let above = self.parent(next).inspect_err(|_| self.failed_to_read_unlocked());
            next = above?.number();
        }
        Ok(seen)
    }

    /// The parent of a directory. Another thread may remove the directory and its parent during this call.
    fn parent(&self, dir: InodeNo) -> Result<Inode> {
        let dir = self.inode(dir)?;
        dir.lookup(b"..").or_else(|error| {
            self.inode(dir.number())?.check_is(dir.stat())?;
            Err(error)
        })
    }

    fn move_name(&self, change: &Move<'_>, whiteout: Option<&Plan<'_>>) -> Result<()> {
        let Move { from, from_locked, old_name, moved, to, new_name, there } = change;
        let directory = moved.file_type() == FileType::Directory;
        let crosses = from.number() != to.number();
        let mut fate = None;
        let replaced = there.as_ref().filter(|there| there.inode.number() != moved.number());
        if let Some(there) = replaced {
            self.check_replaced(moved, &there.inode)?;
            fate = Some(self.fate(&there.inode)?);
        } else if directory && crosses {
            self.check_room_for_link(to)?;
        }
        let credits = self.name_credits(from)
            + self.name_credits(to)
            + replaced
                .zip(fate)
                .map_or(0, |(there, fate)| self.eviction_credits(&there.inode, fate))
            + whiteout.map_or(0, |_| CREATE_CREDITS)
            + 8;
        let failed = self.transact_for_space(credits, |handle| {
            let whiteout = whiteout.map(|plan| self.make(handle, from, WHITEOUT, plan));
            let whiteout = whiteout.transpose()?;
            // The steps that can fail for lack of space come before the other steps.
            let kind = moved.file_type();
            let placed = match there {
                Some(_) => Directory::of(to).set_entry(handle, new_name, moved.number(), kind),
                None => Directory::of(to).add_entry(handle, new_name, moved.number(), kind),
            };
            if let Err(error) = placed {
                if let Some(fresh) = whiteout {
                    self.take_back(handle, &fresh, false)?;
                }
                return Err(error);
            }
            let from = &from_locked.named()?;
            match whiteout {
                Some(fresh) => {
                    Directory::of(from).set_entry(
                        handle,
                        old_name,
                        fresh.number(),
                        FileType::CharDevice,
                    )?;
                }
                None => Directory::of(from).remove_entry(handle, old_name)?,
            }
            if directory && crosses {
                Directory::of(moved).set_entry(handle, b"..", to.number(), FileType::Directory)?;
            }
            let replaces_directory =
                replaced.is_some_and(|there| there.inode.file_type() == FileType::Directory);
            let gained = i16::from(directory && crosses) - i16::from(replaces_directory);
            let lost = i16::from(directory && crosses);
            if crosses {
                self.touch_directory(handle, from, -lost)?;
                self.touch_directory(handle, to, gained)?;
            } else {
                self.touch_directory(handle, to, -i16::from(replaces_directory))?;
            }
            self.touch_changed(handle, moved)?;
            match replaced.zip(fate) {
                Some((there, fate)) => self.drop_name(handle, &there.inode, fate),
                None => Ok(None),
            }
        })?;
        match replaced.zip(fate) {
            Some((there, fate)) => self.finish(there.locked, fate, failed),
            None => Ok(()),
        }
    }

    fn check_replaced(&self, moved: &Inode, there: &Inode) -> Result<()> {
        check_removable(there)?;
        match (moved.file_type(), there.file_type()) {
            (FileType::Directory, FileType::Directory) => self.check_empty(there),
            (FileType::Directory, _) => Err(refuse(ErrorKind::NotADirectory, "not a directory")),
            (_, FileType::Directory) => Err(refuse(ErrorKind::IsADirectory, "is a directory")),
            _ => Ok(()),
        }
    }

    fn exchange(&self, change: &Move<'_>) -> Result<()> {
        let Move { from, from_locked, old_name, moved, to, new_name, there } = change;
        let Some(There { inode: there, .. }) = there else { return Ok(()) };
        check_removable(there)?;
        check_project(from, there)?;
        if there.number() == moved.number() {
            return Ok(());
        }
        let is_directory = |inode: &Inode| inode.file_type() == FileType::Directory;
        let crosses = from.number() != to.number();
        let (out, back) = (is_directory(moved), is_directory(there));
        if crosses && out && !back {
            self.check_room_for_link(to)?;
        }
        if crosses && back && !out {
            self.check_room_for_link(from)?;
        }
        self.transact_for_space(self.name_credits(from) + self.name_credits(to) + 8, |handle| {
            Directory::of(to).set_entry(handle, new_name, moved.number(), moved.file_type())?;
            // `from` and `to` may be the same directory. If this directory stores its entries in its inode, the change of `to` has made
            // `from` outdated. The directory is therefore read again.
            let from = &from_locked.named()?;
            Directory::of(from).set_entry(handle, old_name, there.number(), there.file_type())?;
            if crosses && out {
                Directory::of(moved).set_entry(handle, b"..", to.number(), FileType::Directory)?;
            }
            if crosses && back {
                Directory::of(there).set_entry(
                    handle,
                    b"..",
                    from.number(),
                    FileType::Directory,
                )?;
            }
            if crosses {
                let gained = i16::from(out) - i16::from(back);
                self.touch_directory(handle, to, gained)?;
                self.touch_directory(handle, from, -gained)?;
            } else {
                self.touch_directory(handle, to, 0)?;
            }
            self.touch_changed(handle, moved)?;
            self.touch_changed(handle, there)
        })
    }

    fn plan_whiteout(&self, dir: &Inode, who: &Credentials) -> Result<Plan<'static>> {
        let plan = self.plan(dir, WHITEOUT, 0, who)?;
        self.admit_inode(plan.owners())?;
        Ok(plan)
    }
}

fn check_flags(flags: RenameFlags) -> Result<()> {
    let unknown = flags - RenameFlags::all();
    let exchange = flags.contains(RenameFlags::EXCHANGE);
    if !unknown.is_empty()
        || exchange && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT)
    {
        return Err(Error::invalid("the flags of the rename cannot be combined"));
    }
    Ok(())
}
