//! A copy in a volume that has begun and not ended.

use ironmap::fs::{Fallocate, Xattr};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{ErrorKind, File};

use super::step::Entry;
use super::stream::{Pieces, Stream, finish};
use crate::copy::keep::is_access_list;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::volumes::Name;

/// A copy that has begun.
pub(super) struct Open {
    pub(super) entry: Box<Entry>,
    pub(super) name: Name,
    pub(super) number: InodeNo,
    /// It was made now.
    pub(super) new: bool,
    /// A directory whose set-group bit gives new files its group.
    pub(super) gives_group: bool,
    /// How much of the file is there.
    pub(super) size: u64,
    /// A large file, for direct writes.
    pub(super) file: Option<File>,
    /// Up to here it was given blocks for them.
    pub(super) allocated: u64,
    /// Its content could not be written; that was reported.
    pub(super) broken: bool,
}

impl Open {
    /// Its content could not be written: no more of it is wanted.
    pub(super) fn is_broken(&mut self) {
        self.broken = true;
        self.entry.wanted = None;
    }

    pub(super) fn make_room(
        &mut self,
        stream: &mut Option<Stream>,
        pieces: &Pieces,
        pos: FilePos,
        len: u64,
        progress: &Progress,
    ) -> Result<(), Failure> {
        let Self { name, number, .. } = self;
        finish(stream, progress).map_err(|error| name.failed(&error))?;
        let how = Fallocate::Allocate { keep_size: true };
        // Where space runs out a part is allocated.
        self.allocated = pos.0 + len;
        match name.fs().writable().and_then(|writer| writer.fallocate(*number, how, pos, len)) {
            // Files with indirect blocks have no space without content.
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
            made => made.map_err(|error| name.failed(&error))?,
        }
        if stream.is_none() {
            *stream = Some(Stream::new(name.source.queue()?, pieces.clone()));
        }
        if self.file.is_none() {
            let inode = name.source.inode(*number, name.path())?;
            self.file = Some(name.source.file(inode, name.path())?);
        }
        Ok(())
    }

    /// Ends the content of a file, and sees that the metadata tell all that was written.
    pub(super) fn set_size(&self, size: u64) -> Result<(), Failure> {
        let Self { name, number, .. } = self;
        name.fs()
            .writable()
            .and_then(|writer| writer.truncate(*number, size))
            .map_err(|error| name.failed(&error))?;
        self.give_back_room()
    }

    /// Removes access lists that the source does not have: they were there, or come from the directory above, and give other rights.
    pub(super) fn drop_access_lists(&self) -> ironmap::Result<()> {
        let Self { entry, name, number, .. } = self;
        let (fs, given) = (name.fs(), &entry.xattrs);
        for Xattr { name, .. } in fs.inode(*number)?.xattrs()? {
            if is_access_list(&name) && given.iter().all(|xattr| xattr.name != name) {
                fs.writable().and_then(|writer| writer.removexattr(*number, &name))?;
            }
        }
        Ok(())
    }

    /// Frees what was allocated for more content than there is.
    pub(super) fn give_back_room(&self) -> Result<(), Failure> {
        let Self { name, number, allocated, .. } = self;
        let size = match &self.file {
            Some(file) => Ok(file.size()),
            None => name.fs().inode(*number).map(|inode| inode.size()),
        };
        let given = size.and_then(|size| {
            if size >= *allocated {
                return Ok(());
            }
            name.fs().writable().and_then(|writer| {
                writer.fallocate(*number, Fallocate::Punch, FilePos(size), allocated - size)
            })
        });
        given.map_err(|error| name.failed(&error))
    }
}
