//! Open directories: entries from where the last reply ended.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fuser::{FileHandle, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use ironmap::fs::DirEntry;
use ironmap::fs::ext4::{DirCursor, Held, Listing};
use ironmap::units::InodeNo;

use super::Mount;
use super::adapter::FOREVER;
use super::attributes::kind;
use super::fail::Result;

/// An open directory. The position of an entry is that of the [cursor](DirCursor) behind it.
pub(super) struct OpenDirectory {
    held: Held,
    reading: Mutex<Option<Reading>>,
}

/// A listing that is under way.
struct Reading {
    listing: Listing,
    /// What did not fit into the last reply, and the position before it.
    left: Option<(u64, DirEntry)>,
}

impl Reading {
    /// The position from which on it has not given anything.
    fn position(&self) -> u64 {
        self.left.as_ref().map_or(self.listing.cursor().to_raw(), |(position, _)| *position)
    }

    /// The next entry, with the positions before and behind it.
    fn next(&mut self) -> Result<Option<(u64, DirEntry, u64)>> {
        let (before, entry) = match self.left.take() {
            Some(left) => left,
            None => {
                let before = self.listing.cursor().to_raw();
                match self.listing.next().transpose()? {
                    Some(entry) => (before, entry),
                    None => return Ok(None),
                }
            }
        };
        Ok(Some((before, entry, self.listing.cursor().to_raw())))
    }
}

impl Mount {
    pub(super) fn open_directory(&self, inode: InodeNo) -> Result<FileHandle> {
        let held = self.fs().hold(inode)?;
        Ok(self.directories.insert(OpenDirectory { held, reading: Mutex::default() }))
    }

    pub(super) fn read_directory(
        &self,
        handle: FileHandle,
        position: u64,
        reply: &mut ReplyDirectory,
    ) -> Result<()> {
        self.entries(handle, position, |entry, behind| {
            let file_type = match entry.file_type {
                Some(file_type) => file_type,
                None => self.fs().inspect(entry.inode, |inode| Ok(inode.file_type()))?,
            };
            let name = OsStr::from_bytes(&entry.name);
            Ok(reply.add(INodeNo(entry.inode.0), behind, kind(file_type), name))
        })
    }

    /// The same with what `lookup` tells of each.
    pub(super) fn read_directory_plus(
        &self,
        handle: FileHandle,
        position: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<()> {
        self.entries(handle, position, |entry, behind| {
            // Before the kernel hears of it: it may forget it at once.
            let remembered = !matches!(&entry.name[..], b"." | b"..");
            if remembered {
                self.nodes.remember(entry.inode);
            }
            let told = self.entry_of(entry.inode);
            let full = told.map(|(attr, generation)| {
                let name = OsStr::from_bytes(&entry.name);
                reply.add(attr.ino, behind, name, &FOREVER, &attr, generation)
            });
            if remembered && !matches!(full, Ok(false)) {
                self.nodes.forget(entry.inode, 1);
            }
            full
        })
    }

    /// Gives entries to `add`, with the position behind each, until it says that there is no room for this one.
    fn entries(
        &self,
        handle: FileHandle,
        position: u64,
        mut add: impl FnMut(&DirEntry, u64) -> Result<bool>,
    ) -> Result<()> {
        let open = self.directories.get(handle)?;
        let mut reading = open.reading();
        let reading = match &mut *reading {
            Some(reading) if reading.position() == position => reading,
            place => place.insert(Reading {
                listing: open.held.inode()?.list(DirCursor::from_raw(position))?,
                left: None,
            }),
        };
        self.read_stamp(&open.held);
        let mut any = false;
        while let Some((before, entry, behind)) = reading.next()? {
            match add(&entry, behind) {
                Ok(false) => any = true,
                Ok(true) => {
                    reading.left = Some((before, entry));
                    break;
                }
                // What was read is told first; the entry comes again, and its error with it.
                Err(_) if any => {
                    reading.left = Some((before, entry));
                    break;
                }
                Err(fail) => return Err(fail),
            }
        }
        Ok(())
    }

    /// A directory's changes are durable with all others.
    pub(super) fn sync_directory(&self) -> Result<()> {
        Ok(self.fs().sync()?)
    }
}

impl OpenDirectory {
    fn reading(&self) -> MutexGuard<'_, Option<Reading>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
