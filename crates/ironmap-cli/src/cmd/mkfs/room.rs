//! The image file that a volume is made in: a new one, or one that becomes longer.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind as IoErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ironmap::Location;
use ironmap::device::{BlockFile, OpenMode};
use ironmap::location::{Part, Site};
use rustix::fs::{Mode, OFlags};

use super::Args;
use crate::failure::Failure;

/// What was done to an image to give it the size that was asked for.
pub(crate) enum Room {
    /// It was made.
    New(NewImage),
    /// It was extended from this length.
    Extended(u64),
    /// Nothing.
    Old,
}

impl Room {
    /// It was of no use: the image is as it was. Nothing helps if that fails too.
    pub(crate) fn undo(self, path: &Path) {
        if let Self::Extended(len) = self {
            let _ = set_len(path, len);
        }
    }

    /// A volume was made.
    pub(super) fn keep(self) {
        if let Self::New(image) = self {
            image.keep();
        }
    }
}

/// An image file that this command has made. It is removed when it is dropped, unless it is kept.
pub(crate) struct NewImage {
    /// Open for nothing: whether a loop device serves the image is told by leases, which other descriptors prevent.
    file: OwnedFd,
    path: PathBuf,
    kept: bool,
}

impl NewImage {
    /// Makes one; `None` where a file has the name. What a symbolic link without a file leads to is made.
    pub(super) fn create(path: &Path) -> Result<Option<Self>, Failure> {
        let failed = |error: io::Error| Failure::host(path.display(), error);
        let target = target_of(path);
        let made = match File::create_new(&target) {
            Err(error) if error.kind() == IoErrorKind::AlreadyExists => return Ok(None),
            made => made.map_err(failed)?,
        };
        let file =
            rustix::fs::open(proc_path(&made), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let file = file.map_err(|errno| failed(errno.into()))?;
        Ok(Some(Self { file, path: target, kept: false }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it this length, without any content.
    pub(super) fn empty(&self, len: u64) -> Result<(), Failure> {
        let failed = |error| Failure::host(self.path.display(), error);
        if !self.has_name() {
            let path = self.path.display();
            return Err(Failure::new(format!("{path}: another program has replaced the image")));
        }
        let path = proc_path(&self.file);
        set_len(&path, 0).and_then(|()| set_len(&path, len)).map_err(failed)
    }

    pub(super) fn keep(mut self) {
        self.kept = true;
    }

    /// Whether its name is still its own.
    fn has_name(&self) -> bool {
        let (own, named) = (proc_path(&self.file).metadata(), self.path.symlink_metadata());
        let (Ok(own), Ok(named)) = (own, named) else { return false };
        (own.dev(), own.ino()) == (named.dev(), named.ino())
    }
}

impl Drop for NewImage {
    fn drop(&mut self) {
        if !self.kept && self.has_name() {
            // Nothing helps if that fails too.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A path that leads to an open file, whatever its name is by now.
fn proc_path(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Where a path leads, also where no file is there.
fn target_of(path: &Path) -> PathBuf {
    let mut target = path.to_owned();
    // The kernel follows so many symbolic links.
    for _ in 0..40 {
        let Ok(link) = target.read_link() else { break };
        target = target.parent().unwrap_or(Path::new("")).join(link);
    }
    target
}

/// Makes an image of the size that was asked for, or extends one.
pub(super) fn make_room(args: &Args) -> Result<Room, Failure> {
    let Location::Plain(Site { path, part: Part::Whole }) = &args.volume else {
        return Ok(Room::Old);
    };
    let Some(size) = args.size else { return Ok(Room::Old) };
    let Some(image) = NewImage::create(path)? else { return extend(path, size) };
    image.empty(size)?;
    Ok(Room::New(image))
}

/// Extends an image file that is shorter; a device, and an image that is long enough, stay as they are.
pub(crate) fn extend(path: &Path, size: u64) -> Result<Room, Failure> {
    let failed = |error| Failure::host(path.display(), error);
    let metadata = path.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.len() >= size {
        return Ok(Room::Old);
    }
    // Not that of somebody who has it.
    let mode = OpenMode { write: true, ..OpenMode::default() };
    drop(BlockFile::open(path, &mode).map_err(|error| Failure::open(&error))?);
    set_len(path, size).map(|()| Room::Extended(metadata.len())).map_err(failed)
}

/// Gives an image file a length.
pub(crate) fn set_len(path: &Path, len: u64) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(len)
}
