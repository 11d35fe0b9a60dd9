//! Serves requests about names: lookups, and the creation, renaming and removal of names.

use std::time::Duration;

use fuser::{FileAttr, Generation};
use ironmap::Errno;
use ironmap::fs::{Access, Credentials, FileType, InodeOps, NewFile, RenameFlags};
use ironmap::units::InodeNo;

use super::Mount;
use super::attributes::device_numbers;
use super::fail::{Fail, Result};
use super::nodes::PROTOCOL_ROOT;

/// The maximum length of a name in bytes. The protocol allows longer names.
const LONGEST: usize = 255;

/// The time for which the kernel may cache a reply. No other program changes the volume, so the time is practically unlimited.
pub(super) const FOREVER: Duration = Duration::from_secs(1 << 30);

/// The reply to a lookup: the inode that a name leads to.
pub(super) struct Entry {
    pub(super) attr: FileAttr,
    pub(super) generation: Generation,
    /// The time for which the kernel may cache the entry.
    pub(super) valid: Duration,
}

fn check(name: &[u8]) -> Result<()> {
    if name.len() > LONGEST { Err(Fail::new(Errno::ENAMETOOLONG)) } else { Ok(()) }
}

/// Refuses internal inodes. A damaged directory may have an entry with the journal's inode number. Without the check, the kernel could
/// write to the journal.
pub(super) fn check_named(inode: &dyn InodeOps) -> Result<()> {
    if inode.is_internal() { Err(Fail::new(Errno::EUCLEAN)) } else { Ok(()) }
}

impl Mount {
    pub(super) fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Entry> {
        check(name)?;
        match name {
            // The kernel looks up `.` and `..` only to open a file handle (as for NFS). In this case, `dir` can be any inode, even a freed
            // inode.
            b"." => self.entry_by_number(dir),
            b".." => self.entry_by_number(self.fs().lookup(dir, name)?.number()),
            _ => self.entry(dir, self.fs().lookup(dir, name)?.number()),
        }
    }

    /// Returns the entry of an inode that is looked up by its number. The kernel checks the generation of the file handle.
    fn entry_by_number(&self, inode: InodeNo) -> Result<Entry> {
        let mut entry = self.entry(inode, inode)?;
        if inode == self.fs().root() {
            // The kernel knows the root by the node number 1. It would treat any other node number as another inode. The entry must not be
            // cached, because programs must not see 1 as the inode number of the root.
            entry.attr.ino = fuser::INodeNo(PROTOCOL_ROOT);
            entry.valid = Duration::ZERO;
        }
        Ok(entry)
    }

    /// The entry of a name in a directory. The lookup is counted, because the kernel uses the inode after the reply.
    pub(super) fn entry(&self, dir: InodeNo, inode: InodeNo) -> Result<Entry> {
        let valid = self.valid_in(dir);
        let (entry, manner) = self.fs().inspect(inode, |inode| {
            let stat = inode.stat();
            let (attr, generation) = (self.attr(stat), Generation(stat.generation.into()));
            let entry = Entry { attr, generation, valid };
            Ok(check_named(inode).map(|()| (entry, self.options.manner(inode))))
        })??;
        self.nodes.remember(inode, manner);
        Ok(entry)
    }

    /// Returns the time for which the kernel may cache the names of a directory. In a casefolded directory, the removal of a name also
    /// removes its other spellings. The kernel would cache each spelling as a separate name. Therefore the kernel must not cache these
    /// names.
    fn valid_in(&self, dir: InodeNo) -> Duration {
        if self.nodes.get(dir).manner().casefold { Duration::ZERO } else { FOREVER }
    }

    pub(super) fn read_link(&self, link: InodeNo) -> Result<Vec<u8>> {
        let target = self.fs().inspect(link, |link| link.read_link())?;
        let node = self.nodes.get(link);
        node.link_read();
        if !node.manner().no_atime
            && self.needs_read_stamp(link)
            && let Ok(held) = self.fs().hold(link)
        {
            held.stamp(Access::Read);
        }
        Ok(target)
    }

    /// Creates a file of a type that `mknod` accepts: any type except a directory and a symbolic link.
    pub(super) fn mknod(
        &self,
        dir: InodeNo,
        name: &[u8],
        mode: u32,
        device: u32,
        who: &Credentials,
    ) -> Result<Entry> {
        let (major, minor) = device_numbers(device);
        let file = match FileType::from_mode(mode) {
            Some(FileType::Regular) | None => NewFile::Regular,
            Some(FileType::CharDevice) => NewFile::CharDevice(major, minor),
            Some(FileType::BlockDevice) => NewFile::BlockDevice(major, minor),
            Some(FileType::Fifo) => NewFile::Fifo,
            Some(FileType::Socket) => NewFile::Socket,
            Some(FileType::Directory | FileType::Symlink) => return Err(Fail::new(Errno::EINVAL)),
        };
        self.make(dir, name, file, mode, who)
    }

    /// Creates a file of any type.
    pub(super) fn make(
        &self,
        dir: InodeNo,
        name: &[u8],
        file: NewFile<'_>,
        mode: u32,
        who: &Credentials,
    ) -> Result<Entry> {
        check(name)?;
        let made = self.fs().writable()?.create(dir, name, file, mode & 0o7777, who)?;
        self.changed(&[dir])?;
        self.entry(dir, made)
    }

    pub(super) fn link(&self, inode: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Entry> {
        check(name)?;
        self.fs().writable()?.link(inode, dir, name)?;
        self.changed(&[dir, inode])?;
        self.entry(dir, inode)
    }

    pub(super) fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        check(name)?;
        self.removing(dir, name, &[], || {
            self.fs().writable().and_then(|writer| writer.unlink(dir, name))
        })
    }

    pub(super) fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        check(name)?;
        self.removing(dir, name, &[], || {
            self.fs().writable().and_then(|writer| writer.rmdir(dir, name))
        })
    }

    pub(super) fn rename(
        &self,
        (from, old_name): (InodeNo, &[u8]),
        (to, new_name): (InodeNo, &[u8]),
        flags: u32,
        who: &Credentials,
    ) -> Result<()> {
        check(old_name)?;
        check(new_name)?;
        let Some(flags) = RenameFlags::from_bits(flags) else {
            return Err(Fail::new(Errno::EINVAL));
        };
        let fs = self.fs();
        let moved = fs.lookup(from, old_name)?.number();
        let rename = || {
            fs.writable()
                .and_then(|writer| writer.rename((from, old_name), (to, new_name), flags, who))
        };
        self.nodes.get(from).names_changed();
        self.removing(to, new_name, &[from, moved], rename)
    }

    /// Runs an operation that may remove a name and change the inodes in `also`. If an inode loses its last name, the inode is kept until
    /// the kernel forgets it. The kernel serialises changes of a directory, so the name still belongs to the same inode when the operation
    /// runs.
    fn removing(
        &self,
        dir: InodeNo,
        name: &[u8],
        also: &[InodeNo],
        remove: impl FnOnce() -> ironmap::Result<()>,
    ) -> Result<()> {
        let fs = self.fs();
        let there = fs.lookup(dir, name).and_then(|inode| fs.hold(inode.number()));
        self.nodes.get(dir).names_changed();
        remove()?;
        let mut changed = [&[dir], also].concat();
        if let Ok(held) = there {
            changed.push(held.number());
            if held.inode()?.stat().links == 0 {
                self.nodes.keep(held);
            }
        }
        self.changed(&changed)
    }
}
