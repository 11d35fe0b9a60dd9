//! The space below an image, as its file system has it: an access to a mapping that needs some and gets none is a fault, not an error.

use std::fs::File;
use std::ops::Range;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno as OsErrno;

use crate::error::{Errno, Error, ErrorKind, Result};

/// How many holes of an image are kept apart. A mapping is split by each, and Linux allows a process some 65,000 mappings by default.
const MAX_HOLES: usize = 1 << 14;

// `statfs`'s f_type, as in Linux's include/uapi/linux/magic.h.
const TMPFS: u32 = 0x0102_1994;
const RAMFS: u32 = 0x8584_58F6;
const EXT: u32 = 0xEF53;
const XFS: u32 = 0x5846_5342;

/// The part of an image that is in use.
pub(super) struct Part<'a> {
    pub(super) file: &'a File,
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Part<'_> {
    /// The parts without data, in order: start and end in the file.
    ///
    /// # Errors
    /// `LimitExceeded` where there are too many; `Io`.
    pub(super) fn holes(&self) -> Result<Vec<(u64, u64)>> {
        let end = self.end();
        let mut holes = Vec::new();
        let mut at = self.start;
        while at < end {
            let hole = match self.seek(SeekFrom::Hole(at))? {
                Some(hole) if hole < end => hole,
                _ => break,
            };
            // No data after it: the hole goes to the end of the file.
            at = self.seek(SeekFrom::Data(hole))?.map_or(end, |data| data.min(end));
            if at <= hole {
                // It changes while it is looked at.
                break;
            }
            holes.push((hole, at));
            if holes.len() > MAX_HOLES {
                let what = format!(
                    "more than {MAX_HOLES} holes: another engine, or a copy without holes, can be used"
                );
                return Err(Error::new(ErrorKind::LimitExceeded, what));
            }
        }
        Ok(holes)
    }

    /// The first range from a position of the file on that is not a hole; empty, at the end of the part, where all the rest is a hole. Where the file system
    /// knows of no holes, and where the file changes meanwhile, all may be data.
    pub(super) fn data_from(&self, at: u64) -> Result<Range<u64>> {
        let end = self.end();
        let hole = self.seek(SeekFrom::Hole(at))?.unwrap_or(end).min(end);
        if hole > at {
            return Ok(at..hole);
        }
        let start = self.seek(SeekFrom::Data(at))?.map_or(end, |data| data.clamp(at, end));
        if start == end {
            return Ok(end..end);
        }
        let hole = self.seek(SeekFrom::Hole(start))?.filter(|hole| *hole > start);
        Ok(start..hole.unwrap_or(end).min(end))
    }

    /// Allocates space for all holes. True if no write needs space from then on; false on a file system that may need space to
    /// overwrite, because it does not write in place.
    ///
    /// # Errors
    /// `Io`: ENOSPC where there is not enough, of which nothing is taken then as far as that can be told before; EOPNOTSUPP where the image has
    /// holes that cannot be filled.
    pub(super) fn reserve(&self) -> Result<bool> {
        let stat = rustix::fs::fstatfs(self.file).map_err(|errno| failed("statfs", errno))?;
        let magic = stat.f_type as u32;
        if magic == RAMFS {
            // Without a limit of its own: the free memory.
            return Ok(true);
        }
        let free = stat.f_bavail.saturating_mul(stat.f_bsize as u64);
        let keep = FallocateFlags::KEEP_SIZE;
        if magic == XFS {
            self.expect_space(free)?;
            // Blocks that it shares with other files need a copy too. One call for all holes, however many.
            self.allocate(keep | FallocateFlags::UNSHARE_RANGE, self.start, self.end())?;
            return Ok(true);
        }
        let holes = self.holes()?;
        // A tmpfs without a limit counts no blocks.
        if !holes.is_empty() && stat.f_blocks != 0 {
            self.expect_space(free)?;
        }
        let known = matches!(magic, TMPFS | EXT);
        for (start, end) in holes {
            match self.allocate(keep, start, end) {
                Err(error) if !known && error.kind() == ErrorKind::Io(Errno::EOPNOTSUPP) => break,
                done => done?,
            }
        }
        Ok(known)
    }

    fn allocate(&self, how: FallocateFlags, start: u64, end: u64) -> Result<()> {
        let allocated = rustix::fs::fallocate(self.file, how, start, end - start);
        allocated.map_err(|errno| failed("allocate its space", errno))
    }

    /// A disk shall not be filled up for an image that does not go on it.
    fn expect_space(&self, free: u64) -> Result<()> {
        let stat = rustix::fs::fstat(self.file).map_err(|errno| failed("stat", errno))?;
        let has = (stat.st_blocks as u64).saturating_mul(512);
        if self.len.saturating_sub(has) > free {
            return Err(failed("allocate its space", OsErrno::NOSPC));
        }
        Ok(())
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// `None` where there is no such place up to the end of the file.
    fn seek(&self, to: SeekFrom) -> Result<Option<u64>> {
        match rustix::fs::seek(self.file, to) {
            Ok(at) => Ok(Some(at)),
            // A file system that knows of no holes has none that need anything.
            Err(OsErrno::NXIO | OsErrno::INVAL | OsErrno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(failed("look for holes", errno)),
        }
    }
}

fn failed(what: &'static str, errno: impl Into<Errno>) -> Error {
    Error::io(errno, what)
}
