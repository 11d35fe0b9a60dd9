//! Lists open directories. Each reply continues after the last entry of the previous reply.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{FileAttr, FileHandle, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use ironmap::fs::{DirCursor, DirEntry, FileType};
use ironmap::units::InodeNo;

use super::Mount;
use super::attributes::kind;
use super::fail::Result;
use super::handles::{OpenDirectory, Reading};
use super::names::Entry;
use super::nodes::Manner;

impl Mount {
    pub(super) fn open_directory(&self, inode: InodeNo, flags: i32) -> Result<FileHandle> {
        let held = self.fs().hold(inode)?;
        let no_atime = self.is_read_without_time(inode, flags);
        Ok(self.directories.insert(OpenDirectory { held, no_atime, reading: Mutex::default() }))
    }

    pub(super) fn read_directory(
        &self,
        handle: FileHandle,
        position: u64,
        reply: &mut ReplyDirectory,
    ) -> Result<()> {
        self.entries(handle, position, |entry, behind| {
            let asked = || self.fs().inspect(entry.inode, |inode| Ok(inode.file_type())).ok();
            let file_type = entry.file_type.or_else(asked).unwrap_or(FileType::Regular);
            let name = OsStr::from_bytes(&entry.name);
            reply.add(INodeNo(entry.inode.0), behind, kind(file_type), name)
        })
    }

    /// Works like [`Self::read_directory`]. For each entry, the reply also contains the reply of a `lookup`.
    pub(super) fn read_directory_plus(
        &self,
        handle: FileHandle,
        position: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<()> {
        let dir = self.directories.get(handle)?.held.number();
        self.entries(handle, position, |entry, behind| {
            // `entry` counts the lookup before the kernel gets the reply. The kernel may forget the inode immediately after the reply, so a
            // later count could be too late.
            let found = self.entry(dir, entry.inode).unwrap_or_else(|fail| {
                self.report(&fail);
                self.nodes.remember(entry.inode, Manner::default());
                Entry { attr: unknown(entry), generation: Generation(0), valid: Duration::ZERO }
            });
            let Entry { attr, generation, valid } = found;
            let name = OsStr::from_bytes(&entry.name);
            let full = reply.add(attr.ino, behind, name, &valid, &attr, generation);
            // The kernel counts no lookup for `.`, for `..`, and for an entry that does not fit into the reply. It never sends FORGET for
            // such a lookup, so the mount subtracts the lookup here.
            if full || matches!(&entry.name[..], b"." | b"..") {
                self.nodes.forget(entry.inode, 1);
            }
            full
        })
    }

    /// Passes each entry and the position after the entry to `add`. Stops when `add` returns true, which means that the reply is full. If
    /// an error follows some entries, the reply contains these entries. The next call reports the error.
    fn entries(
        &self,
        handle: FileHandle,
        position: u64,
        mut add: impl FnMut(&DirEntry, u64) -> bool,
    ) -> Result<()> {
        let open = self.directories.get(handle)?;
        let mut place = open.reading();
        let names = self.nodes.get(open.held.number()).names();
        let mut reading = match place.take() {
            Some(reading) if reading.position() == position && reading.names == names => reading,
            _ => Reading {
                listing: open.held.inode()?.list(DirCursor::from_raw(position))?,
                names,
                left: None,
            },
        };
        if !open.no_atime {
            self.read_stamp(&open.held);
        }
        let mut any = false;
        loop {
            match reading.next() {
                Ok(None) => break,
                Ok(Some((before, entry, behind))) => {
                    if add(&entry, behind) {
                        reading.left = Some((before, entry));
                        break;
                    }
                    any = true;
                }
                Err(fail) if any => {
                    self.report(&fail);
                    return Ok(());
                }
                Err(fail) => return Err(fail),
            }
        }
        *place = Some(reading);
        Ok(())
    }

    /// Makes the changes of the directory durable, together with all other changes. On a read-only mount, there are no changes, and the
    /// call succeeds.
    pub(super) fn sync_directory(&self) -> Result<()> {
        if !self.options.is_read_only() {
            self.fs().sync()?;
        }
        Ok(())
    }
}

/// Returns attributes for an entry whose inode cannot be read or must not be used. The attributes are the inode number, the file type, and
/// an impossible size. The kernel then lists the entry, but does not cache a lookup. A later lookup of the name returns the error.
fn unknown(entry: &DirEntry) -> FileAttr {
    FileAttr {
        ino: INodeNo(entry.inode.0),
        size: u64::MAX,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: kind(entry.file_type.unwrap_or(FileType::Regular)),
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}
