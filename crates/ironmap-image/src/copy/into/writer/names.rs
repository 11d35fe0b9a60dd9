//! Gives copies their names: makes new files, and handles existing files that have the name of a copy.

use ironmap::fs::{FileType, Follow, NewFile};
use ironmap::units::InodeNo;
use ironmap::{Error, ErrorKind};

use super::super::places::stays;
use super::super::step::{Entry, Identity};
use super::{SET_GROUP, SET_ID, Writer};
use crate::failure::Failure;
use crate::report::Report;
use crate::volumes::{Found, Name};

/// The treatment of an existing file that has the name of a copy.
pub(super) enum There {
    /// The file is kept, and nothing is copied.
    Skip,
    /// The file becomes the copy. The fields are its inode number and its mode.
    Use(InodeNo, u32),
    /// The file was removed.
    Removed,
}

/// Refuses two kinds of names for a copy that is not a directory: a name that ends with a slash, and a name that this command has already
/// given to another copy.
pub(in super::super) fn check_name(
    to: &Name,
    kind: FileType,
    writer: &mut Writer,
) -> Result<(), Failure> {
    if kind == FileType::Directory {
        return Ok(());
    }
    if to.wants_directory() && to.look(Follow::All)?.is_none() {
        return Err(to.failed(&Error::new(ErrorKind::NotADirectory, "not a directory")));
    }
    if !writer.made.insert((to.dir, to.name.clone())) {
        return Err(to.refused(
            "an earlier source has created this file, so this source does not replace it",
        ));
    }
    Ok(())
}

impl Writer {
    pub(super) fn is_set_group(&self, name: &Name) -> Result<bool, Failure> {
        let dir = name.fs().inode(name.dir).map_err(|error| name.failed(&error))?;
        Ok(dir.stat().mode & SET_GROUP != 0)
    }

    pub(super) fn create(&self, name: &Name, entry: &Entry) -> ironmap::Result<InodeNo> {
        let (keep, stat) = (self.how.keep, &entry.stat);
        let (major, minor) = stat.device.unwrap_or_default();
        let new = match stat.file_type {
            FileType::Regular => NewFile::Regular,
            FileType::Directory => NewFile::Directory,
            FileType::Symlink => NewFile::Symlink(entry.target.as_deref().unwrap_or_default()),
            FileType::CharDevice => NewFile::CharDevice(major, minor),
            FileType::BlockDevice => NewFile::BlockDevice(major, minor),
            FileType::Fifo => NewFile::Fifo,
            FileType::Socket => NewFile::Socket,
        };
        let mut permissions = stat.mode & 0o7777;
        if !keep.mode && stat.file_type != FileType::Symlink {
            permissions &= !SET_ID;
        }
        if stat.file_type == FileType::Directory {
            // The set-group bit is set after the entries are copied, because new files in a directory with this bit get the group of the
            // directory.
            permissions &= !SET_GROUP;
        }
        let mut who = self.caller;
        if keep.mode {
            who.umask = 0;
        }
        if keep.ownership {
            (who.uid, who.gid) = (stat.uid, stat.gid);
        }
        name.fs()
            .writable()
            .and_then(|writer| writer.create(name.dir, &name.name, new, permissions, &who))
    }

    /// Handles an existing file that has the name of a copy.
    pub(super) fn there(
        &mut self,
        name: &Name,
        entry: &Entry,
        report: &mut Report,
    ) -> Result<There, Failure> {
        let mut there = name.find(Follow::NotLast)?;
        let (new, mut old) = (entry.stat.file_type, there.file_type());
        if self.how.replace && !stays(old, new) {
            self.places.remove(Found { name: name.clone(), inode: there }, report)?;
            return Ok(There::Removed);
        }
        let fails = |kind, what| Err(name.failed(&Error::new(kind, what)));
        match (new, old) {
            (FileType::Directory, FileType::Directory) => {
                return Ok(There::Use(there.number(), there.stat().mode));
            }
            (FileType::Directory, _) => {
                return fails(ErrorKind::Exists, "a directory cannot replace a file");
            }
            (_, FileType::Directory) => {
                return fails(ErrorKind::IsADirectory, "a file cannot replace a directory");
            }
            _ => {}
        }
        if self.how.no_clobber {
            return Ok(There::Skip);
        }
        if new == FileType::Regular && old == FileType::Symlink {
            there = name.find(Follow::All)?;
            old = there.file_type();
        }
        // cp(1) would write to the device or pipe of the existing special file. This is not possible on an unmounted volume, so the copy is
        // refused.
        if new == FileType::Regular && !matches!(old, FileType::Regular | FileType::Symlink) {
            return fails(ErrorKind::Exists, "a regular file cannot replace a special file");
        }
        // If a symbolic link replaced the file to which it points, it would point to itself.
        let replaced_by_its_link = entry.leads_to == Some(there.number());
        if self.same && there.number().0 == entry.identity.1 || replaced_by_its_link {
            return Err(name.refused("the file is the source of the copy"));
        }
        let several = self.how.keep.links && there.stat().links > 1;
        if new == FileType::Regular && old == FileType::Regular && !several {
            name.fs()
                .writable()
                .and_then(|writer| writer.truncate(there.number(), 0))
                .map_err(|error| name.failed(&error))?;
            return Ok(There::Use(there.number(), there.stat().mode));
        }
        name.fs()
            .writable()
            .and_then(|writer| writer.unlink(name.dir, &name.name))
            .map_err(|error| name.failed(&error))?;
        Ok(There::Removed)
    }

    pub(super) fn link(&self, name: &Name, identity: Identity) -> Result<(), Failure> {
        if self.how.no_clobber && name.look(Follow::NotLast)?.is_some() {
            return Ok(());
        }
        let Some(number) = self.links.get(&identity) else {
            return Err(name.refused("the name is a hard link to a file that was not copied"));
        };
        let fs = name.fs();
        let linked =
            match fs.writable().and_then(|writer| writer.link(*number, name.dir, &name.name)) {
                Err(error) if error.kind() == ErrorKind::Exists => {
                    let there = name.find(Follow::NotLast)?;
                    if there.number() == *number {
                        return Ok(());
                    }
                    fs.writable().and_then(|writer| writer.unlink(name.dir, &name.name)).and_then(
                        |()| {
                            fs.writable()
                                .and_then(|writer| writer.link(*number, name.dir, &name.name))
                        },
                    )
                }
                linked => linked,
            };
        linked.map_err(|error| name.failed(&error))
    }
}
