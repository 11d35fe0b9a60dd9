//! Directories, and changes of their names.

use std::collections::BTreeMap;

use ironmap::fs::{Credentials, FileType, NewFile, RenameFlags};
use ironmap::units::InodeNo;
use ironmap::{Error, ErrorKind, Result};

use super::content::Blocks;
use super::tree::{Content, Node, ROOT, Tree};

/// The positions of `.` and `..` in a listing. Every other name has a higher position. A position is never reused.
const PARENT: u64 = 2;

/// The names of a directory.
pub(super) struct Names {
    parent: InodeNo,
    entries: BTreeMap<Vec<u8>, (InodeNo, u64)>,
    last: u64,
}

impl Names {
    pub(super) fn of(parent: InodeNo) -> Self {
        Self { parent, entries: BTreeMap::new(), last: PARENT }
    }

    /// The first name after a position in the listing, with its inode and its own position.
    pub(super) fn behind(&self, dir: InodeNo, place: u64) -> Option<(Vec<u8>, InodeNo, u64)> {
        match place {
            0 => return Some((b".".to_vec(), dir, 1)),
            1 => return Some((b"..".to_vec(), self.parent, PARENT)),
            _ => {}
        }
        let later = self.entries.iter().filter(|(_, (_, at))| *at > place);
        let next = later.min_by_key(|(_, (_, at))| *at);
        next.map(|(name, (number, at))| (name.clone(), *number, *at))
    }
}

impl Tree {
    pub(super) fn names(&self, dir: InodeNo) -> Result<&Names> {
        match &self.node(dir)?.content {
            Content::Names(names) => Ok(names),
            _ => Err(refuse(ErrorKind::NotADirectory, "not a directory")),
        }
    }

    fn names_mut(&mut self, dir: InodeNo) -> Result<&mut Names> {
        match &mut self.node_mut(dir)?.content {
            Content::Names(names) => Ok(names),
            _ => Err(refuse(ErrorKind::NotADirectory, "not a directory")),
        }
    }

    pub(super) fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<InodeNo> {
        let names = self.names(dir)?;
        match name {
            b"." => Ok(dir),
            b".." => Ok(names.parent),
            _ if name.len() > 255 => Err(refuse(ErrorKind::NameTooLong, "more than 255 bytes")),
            _ => {
                let found = names.entries.get(name).map(|(number, _)| *number);
                found.ok_or_else(|| refuse(ErrorKind::NotFound, "no such name"))
            }
        }
    }

    /// Checks whether a name can be created in a directory. The directory must exist, and the name must not exist in it.
    fn check_free(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        if self.node(dir)?.stat.links == 0 {
            return Err(refuse(ErrorKind::NotFound, "the directory has been removed"));
        }
        match self.lookup(dir, name) {
            Ok(_) => Err(refuse(ErrorKind::Exists, "the name is taken")),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Adds a directory entry that refers to an inode. If the inode is a directory, its entry `..` is a further link to the parent
    /// directory.
    fn attach(&mut self, dir: InodeNo, name: &[u8], number: InodeNo) -> Result<()> {
        if let Ok(below) = self.names_mut(number) {
            below.parent = dir;
            self.node_mut(dir)?.stat.links += 1;
        }
        let names = self.names_mut(dir)?;
        names.last += 1;
        names.entries.insert(name.to_vec(), (number, names.last));
        Ok(())
    }

    fn detach(&mut self, dir: InodeNo, name: &[u8]) -> Result<()> {
        let removed = self.names_mut(dir)?.entries.remove(name);
        let is_dir = removed.is_some_and(|(number, _)| self.names(number).is_ok());
        self.node_mut(dir)?.stat.links -= u32::from(is_dir);
        Ok(())
    }

    pub(super) fn create(
        &mut self,
        dir: InodeNo,
        name: &[u8],
        file: NewFile<'_>,
        permissions: u32,
        who: &Credentials,
    ) -> Result<InodeNo> {
        self.check_free(dir, name)?;
        let (file_type, content, device) = match file {
            NewFile::Regular => (FileType::Regular, Content::Blocks(Blocks::default()), None),
            NewFile::Directory => (FileType::Directory, Content::Names(Names::of(dir)), None),
            NewFile::Symlink(target) => (FileType::Symlink, Content::Link(target.to_vec()), None),
            NewFile::CharDevice(major, minor) => {
                (FileType::CharDevice, Content::Nothing, Some((major, minor)))
            }
            NewFile::BlockDevice(major, minor) => {
                (FileType::BlockDevice, Content::Nothing, Some((major, minor)))
            }
            NewFile::Fifo => (FileType::Fifo, Content::Nothing, None),
            NewFile::Socket => (FileType::Socket, Content::Nothing, None),
            _ => return Err(Error::unsupported("a file of this kind")),
        };
        let Node { stat, .. } = self.add(file_type, content);
        stat.links = if file_type == FileType::Directory { 2 } else { 1 };
        let masked = if file_type == FileType::Symlink { 0 } else { who.umask };
        stat.mode |= permissions & !masked;
        (stat.uid, stat.gid, stat.device) = (who.uid, who.gid, device);
        let number = stat.inode;
        self.attach(dir, name, number)?;
        Ok(number)
    }

    pub(super) fn link(&mut self, number: InodeNo, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.check_free(dir, name)?;
        if self.names(number).is_ok() {
            return Err(refuse(ErrorKind::NotPermitted, "a directory has one name"));
        }
        let stat = &mut self.node_mut(number)?.stat;
        if stat.links == 0 {
            return Err(refuse(ErrorKind::NotFound, "the file has been removed"));
        }
        stat.links += 1;
        self.attach(dir, name, number)
    }

    pub(super) fn unlink(&mut self, dir: InodeNo, name: &[u8]) -> Result<()> {
        let number = self.lookup(dir, name)?;
        if self.names(number).is_ok() {
            return Err(refuse(ErrorKind::IsADirectory, "is a directory"));
        }
        self.detach(dir, name)?;
        self.node_mut(number)?.stat.links -= 1;
        self.end_unused(number);
        Ok(())
    }

    pub(super) fn rmdir(&mut self, dir: InodeNo, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(Error::invalid("a directory from within it")),
            b".." => return Err(refuse(ErrorKind::NotEmpty, "the directory has entries")),
            _ => {}
        }
        let number = self.lookup(dir, name)?;
        if !self.names(number)?.entries.is_empty() {
            return Err(refuse(ErrorKind::NotEmpty, "the directory has entries"));
        }
        self.detach(dir, name)?;
        self.node_mut(number)?.stat.links = 0;
        self.end_unused(number);
        Ok(())
    }

    pub(super) fn rename(
        &mut self,
        (from, old): (InodeNo, &[u8]),
        (to, new): (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Error::unsupported("whiteouts"));
        }
        let moved = self.lookup(from, old)?;
        self.check_not_within(moved, to)?;
        let there = match self.check_free(to, new) {
            Ok(()) => None,
            Err(error) if error.kind() == ErrorKind::Exists => Some(self.lookup(to, new)?),
            Err(error) => return Err(error),
        };
        match there {
            None if flags.contains(RenameFlags::EXCHANGE) => {
                return Err(refuse(ErrorKind::NotFound, "no name to change places with"));
            }
            None => {}
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => {
                return Err(refuse(ErrorKind::Exists, "the name is taken"));
            }
            Some(other) if flags.contains(RenameFlags::EXCHANGE) => {
                self.check_not_within(other, from)?;
                self.detach(to, new)?;
                self.detach(from, old)?;
                self.attach(from, old, other)?;
                return self.attach(to, new, moved);
            }
            Some(other) if other == moved => return Ok(()),
            Some(_) if self.names(moved).is_ok() => self.rmdir(to, new)?,
            Some(_) => self.unlink(to, new)?,
        }
        self.detach(from, old)?;
        self.attach(to, new, moved)
    }

    /// A directory cannot be moved into itself or below itself.
    fn check_not_within(&self, moved: InodeNo, mut dir: InodeNo) -> Result<()> {
        loop {
            if dir == moved {
                return Err(Error::invalid("a directory into itself"));
            }
            if dir == ROOT {
                return Ok(());
            }
            dir = self.names(dir)?.parent;
        }
    }
}

fn refuse(kind: ErrorKind, what: &'static str) -> Error {
    Error::new(kind, what)
}
