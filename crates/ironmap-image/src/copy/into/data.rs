//! The ranges of a host file's content that go into a copy.
//!
//! Host file systems differ in how small a hole they keep. So a file with a hole has one wherever a whole block is zeros: the copies of equal
//! files are equal. A file without a hole is copied as it is, since a swap file may have none.

use std::os::fd::OwnedFd;

use rustix_libc::fs::{SeekFrom, fstat};
use rustix_libc::io::{Errno, pread};

/// The blocks that are compared with zeros, the most common ones of volumes.
const BLOCK: u64 = 4096;
/// A range ends at a multiple of this: the host still has the compared bytes in memory when they are copied.
const LONGEST: u64 = 64 << 20;
/// So much is compared at once.
const CHUNK: u64 = 256 << 10;

pub(super) struct DataRanges<'a> {
    fd: &'a OwnedFd,
    size: u64,
    whole: bool,
    /// Where the host has data, in whole blocks: the last range that was asked for.
    data: (u64, u64),
    bytes: Vec<u8>,
}

impl<'a> DataRanges<'a> {
    /// # Errors
    /// The kernel's of `lseek`.
    pub(super) fn new(fd: &'a OwnedFd, size: u64) -> Result<Self, Errno> {
        // A preallocated range without data is a hole to the kernel, except while its pages are in memory: it is none here.
        let is_allocated = fstat(fd)?.st_blocks.cast_unsigned().saturating_mul(512) >= size;
        let whole = is_allocated || next_data(fd, 0, size)? == Some((0, size));
        Ok(Self { fd, size, whole, data: (0, 0), bytes: Vec::new() })
    }

    /// The next range from a position on, where the one before it ended; `None` where only a hole is left.
    ///
    /// # Errors
    /// The kernel's of `lseek` and `pread`.
    pub(super) fn next(&mut self, pos: u64) -> Result<Option<(u64, u64)>, Errno> {
        if self.whole {
            return Ok(Some((pos, self.size)));
        }
        let (mut at, mut start) = (pos, None);
        let mut longest = self.size;
        while at < longest {
            if at >= self.data.1 && !self.find_data(at)? {
                break;
            }
            if at < self.data.0 {
                if start.is_some() {
                    break;
                }
                at = self.data.0;
            }
            let end = self.data.1.min(longest).min(at.saturating_add(CHUNK));
            if !self.fill(at, end)? {
                // The file has become shorter: its reader finds the end.
                return Ok(Some((start.unwrap_or(at), self.data.1)));
            }
            for block in self.bytes.chunks(BLOCK as usize) {
                let zeros = block.iter().all(|byte| *byte == 0);
                match start {
                    Some(start) if zeros => return Ok(Some((start, at))),
                    None if !zeros => {
                        start = Some(at);
                        let next = (at / LONGEST + 1).saturating_mul(LONGEST);
                        longest = self.size.min(next);
                    }
                    _ => {}
                }
                at += block.len() as u64;
            }
        }
        Ok(start.map(|start| (start, at.min(longest))))
    }

    /// Takes the next range with data in the host; says whether there is one.
    fn find_data(&mut self, pos: u64) -> Result<bool, Errno> {
        let Some((start, end)) = next_data(self.fd, pos, self.size)? else { return Ok(false) };
        let end = end.checked_next_multiple_of(BLOCK).unwrap_or(self.size).min(self.size);
        self.data = (pos.max(start / BLOCK * BLOCK), end);
        Ok(pos < end)
    }

    /// Reads a range to compare it; says whether the file has all of it.
    fn fill(&mut self, start: u64, end: u64) -> Result<bool, Errno> {
        self.bytes.resize((end - start) as usize, 0);
        let mut have = 0;
        while have < self.bytes.len() {
            match pread(self.fd, &mut self.bytes[have..], start + have as u64) {
                Ok(0) => return Ok(false),
                Ok(count) => have += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }
}

/// The next range that is no hole, from a position on; `None` where only a hole is left.
fn next_data(fd: &OwnedFd, pos: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    let start = match rustix_libc::fs::seek(fd, SeekFrom::Data(pos as i64)) {
        Err(Errno::NXIO) => return Ok(None),
        // The file system does not tell.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((pos, size))),
        start => start?,
    };
    if start >= size {
        return Ok(None);
    }
    let end = rustix_libc::fs::seek(fd, SeekFrom::Hole(start as i64))?;
    Ok(Some((start, end.min(size))))
}
