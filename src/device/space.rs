//! The space that an image needs in its file system. A store to a mapping may need space. If there is none, the process gets SIGBUS instead
//! of an error.

use std::fs::File;
use std::ops::Range;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno as OsErrno;

use crate::error::{Errno, Error, ErrorKind, Result};

/// The largest number of holes in an image. Each hole splits the mapping into more mappings, and by default Linux allows a process about
/// 65,000 mappings.
const MAX_HOLES: usize = 1 << 14;

// Values of `f_type` in `statfs`, from Linux's include/uapi/linux/magic.h.
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
    /// Returns the holes of the part, in order: their start and end in the file.
    ///
    /// # Errors
    /// `LimitExceeded` if there are too many holes; `Io`.
    pub(super) fn holes(&self) -> Result<Vec<(u64, u64)>> {
        let end = self.end();
        let mut holes = Vec::new();
        let mut at = self.start;
        while at < end {
            let hole = match self.seek(SeekFrom::Hole(at))? {
                Some(hole) if hole < end => hole,
                _ => break,
            };
            // If no data follow, the hole ends at the end of the file.
            at = self.seek(SeekFrom::Data(hole))?.map_or(end, |data| data.min(end));
            if at <= hole {
                // The result shows that another program has changed the file during this search.
                break;
            }
            holes.push((hole, at));
            if holes.len() > MAX_HOLES {
                let what = format!(
                    "the image has more than {MAX_HOLES} holes: use another engine, or a copy without holes"
                );
                return Err(Error::new(ErrorKind::LimitExceeded, what));
            }
        }
        Ok(holes)
    }

    /// Returns the first range at or after a position of the file that is not a hole. If only a hole follows, the result is an empty range
    /// at the end of the part. If the file system does not report holes, or if the file changes during the call, the whole remainder counts
    /// as data.
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

    /// Allocates space for all holes. Returns true if no later write needs more space. Returns false if the file system may write
    /// overwritten data to a new location, so that an overwrite may need space.
    ///
    /// # Errors
    /// `Io`, with ENOSPC if there is too little space, or EOPNOTSUPP if the image has holes that cannot be filled. If the call can detect
    /// the lack of space in advance, it allocates nothing.
    pub(super) fn reserve(&self) -> Result<bool> {
        let stat = rustix::fs::fstatfs(self.file).map_err(|errno| failed("statfs", errno))?;
        let magic = stat.f_type as u32;
        if magic == RAMFS {
            // ramfs has no limit except the free memory, so no space is reserved.
            return Ok(true);
        }
        let free = stat.f_bavail.saturating_mul(stat.f_bsize as u64);
        let keep = FallocateFlags::KEEP_SIZE;
        if magic == XFS {
            self.expect_space(free)?;
            // The image may share blocks with other files. A write to a shared block copies the block, so it needs space too. One call
            // allocates the space for all holes.
            self.allocate(keep | FallocateFlags::UNSHARE_RANGE, self.start, self.end())?;
            return Ok(true);
        }
        let holes = self.holes()?;
        // A tmpfs without a size limit reports a total of 0 blocks. The code then does not check the free space.
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
        allocated.map_err(|errno| failed("allocate the space of the image", errno))
    }

    /// Returns an error before the allocation if there is too little space, because a failing allocation would fill the disk.
    fn expect_space(&self, free: u64) -> Result<()> {
        let stat = rustix::fs::fstat(self.file).map_err(|errno| failed("stat", errno))?;
        let has = (stat.st_blocks as u64).saturating_mul(512);
        if self.len.saturating_sub(has) > free {
            return Err(failed("allocate the space of the image", OsErrno::NOSPC));
        }
        Ok(())
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Finds the next data or the next hole. Returns `None` at the end of the file.
    fn seek(&self, to: SeekFrom) -> Result<Option<u64>> {
        match rustix::fs::seek(self.file, to) {
            Ok(at) => Ok(Some(at)),
            // If a file system does not report holes, the image is treated as an image without holes.
            Err(OsErrno::NXIO | OsErrno::INVAL | OsErrno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(failed("search for holes", errno)),
        }
    }
}

fn failed(what: &'static str, errno: impl Into<Errno>) -> Error {
    Error::io(errno, what)
}
