//! A file that is being copied into a volume.

use ironmap::fs::{Fallocate, Xattr};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{ErrorKind, File};

use super::step::Entry;
use super::stream::{Pieces, Stream, finish};
use crate::copy::keep::is_access_list;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::volumes::Name;

/// A copy that has begun, and has not ended.
pub(super) struct Open {
    pub(super) entry: Box<Entry>,
    pub(super) name: Name,
    pub(super) number: InodeNo,
    /// Whether the copy made the file. If not, the file existed before.
    pub(super) new: bool,
    /// Whether the copy is a directory with the set-group bit. New files in this directory get its group.
    pub(super) gives_group: bool,
    /// The end of the content written so far.
    pub(super) size: u64,
    /// The open file, for direct writes. `None` for a small file.
    pub(super) file: Option<File>,
    /// The end of the blocks allocated for direct writes.
    pub(super) allocated: u64,
    /// Whether a write of the content has failed. Such a failure has been reported.
    pub(super) broken: bool,
}

impl Open {
    /// Marks the copy as failed, and refuses further content.
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
        // `allocated` is set before the allocation, because an allocation that fails may have allocated a part of the range.
        self.allocated = pos.0 + len;
        match name.fs().writable().and_then(|writer| writer.fallocate(*number, how, pos, len)) {
            // A file with indirect blocks cannot be preallocated. This is not an error, because the writes allocate the blocks.
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

    /// Sets the final size of a file, and frees blocks beyond it.
    pub(super) fn set_size(&self, size: u64) -> Result<(), Failure> {
        let Self { name, number, .. } = self;
        name.fs()
            .writable()
            .and_then(|writer| writer.truncate(*number, size))
            .map_err(|error| name.failed(&error))?;
        self.give_back_room()
    }

    /// Removes access control lists that the source does not have, because they would grant additional rights. A list can come from the
    /// file that the copy overwrites, or from the directory that contains the copy.
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

    /// Frees the allocated blocks beyond the content.
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
