//! The image file that a volume is made in: a new one, or one that becomes longer.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind as IoErrorKind;
use std::path::Path;

use ironmap::Location;
use ironmap::device::{BlockFile, OpenMode};
use ironmap::location::{Part, Site};

use super::Args;
use crate::failure::Failure;

/// What was done to an image to give it the size that was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// It was made.
    New,
    /// It was extended from this length.
    Extended(u64),
    /// Nothing.
    Old,
}

impl Room {
    /// No volume was made: the image is as it was. Nothing helps if that fails too.
    pub(super) fn undo(self, path: &Path) {
        let _ = match self {
            Self::New => std::fs::remove_file(path),
            Self::Extended(len) => set_len(path, len),
            Self::Old => Ok(()),
        };
    }
}

/// Makes an image of the size that was asked for, or extends one.
pub(super) fn make_room(args: &Args) -> Result<Room, Failure> {
    let Location::Plain(Site { path, part: Part::Whole }) = &args.volume else {
        return Ok(Room::Old);
    };
    let Some(size) = args.size else { return Ok(Room::Old) };
    let failed = |error| Failure::host(path.display(), error);
    match File::create_new(path) {
        Ok(file) => file.set_len(size).map(|()| Room::New).map_err(failed),
        Err(error) if error.kind() == IoErrorKind::AlreadyExists => extend(path, size),
        Err(error) => Err(failed(error)),
    }
}

fn extend(path: &Path, size: u64) -> Result<Room, Failure> {
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

pub(super) fn set_len(path: &Path, len: u64) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(len)
}
