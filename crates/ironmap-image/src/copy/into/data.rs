//! The ranges of a host file's content that are written to a copy.
//!
//! Host file systems differ in the smallest hole that they can store, but equal files must have equal copies on all host file systems.
//! Therefore, if a file has any hole, each of its blocks of zeros becomes a hole in the copy. A file without holes is copied without holes,
//! because a swap file must not have holes.

use std::os::fd::OwnedFd;

use rustix_libc::fs::SeekFrom;
use rustix_libc::io::{Errno, pread};

/// The length of the blocks that are compared with zeros: the most common block size of volumes.
const BLOCK: u64 = 4096;
/// The maximum length of a range. The bytes of a range are first compared with zeros and then copied. A range ends at a multiple of this
/// length, so that its bytes are still in the page cache for the copy.
const LONGEST: u64 = 64 << 20;
/// The number of bytes that are read at once for the comparison with zeros.
const CHUNK: u64 = 256 << 10;

pub(super) struct DataRanges<'a> {
    fd: &'a OwnedFd,
    size: u64,
    whole: bool,
    /// The last range with data that the host reported, extended to complete blocks.
    data: (u64, u64),
    bytes: Vec<u8>,
}

impl<'a> DataRanges<'a> {
    /// `sectors` is the number of allocated sectors of 512 bytes.
    ///
    /// # Errors
    /// The errors of `lseek`.
    pub(super) fn new(fd: &'a OwnedFd, size: u64, sectors: u64) -> Result<Self, Errno> {
        // A file whose blocks are all allocated counts as a file without holes. `lseek` does not show this, because the kernel reports an
        // unwritten extent as a hole if none of its pages are in memory.
        let is_allocated = sectors.saturating_mul(512) >= size;
        let whole = is_allocated || next_data(fd, 0, size)? == Some((0, size));
        Ok(Self { fd, size, whole, data: (0, 0), bytes: Vec::new() })
    }

    /// Returns the next range to copy, at or after `pos`, which is the end of the previous range. Returns `None` if only a hole follows.
    ///
    /// # Errors
    /// The errors of `lseek` and `pread`.
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
                // The file has shrunk during the copy. The reader of this range finds the new end.
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

    /// Stores the next range for which the host has data. Returns whether there is such a range.
    fn find_data(&mut self, pos: u64) -> Result<bool, Errno> {
        let Some((start, end)) = next_data(self.fd, pos, self.size)? else { return Ok(false) };
        let end = end.checked_next_multiple_of(BLOCK).unwrap_or(self.size).min(self.size);
        self.data = (pos.max(start / BLOCK * BLOCK), end);
        Ok(pos < end)
    }

    /// Reads a range in order to compare its bytes with zeros. Returns `false` if the file ends before the range.
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

/// Returns the next range that is not a hole, at or after a position, or `None` if only a hole follows.
fn next_data(fd: &OwnedFd, pos: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    let start = match rustix_libc::fs::seek(fd, SeekFrom::Data(pos as i64)) {
        Err(Errno::NXIO) => return Ok(None),
        // If the file system does not report holes, the rest of the file counts as data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((pos, size))),
        start => start?,
    };
    if start >= size {
        return Ok(None);
    }
    let end = rustix_libc::fs::seek(fd, SeekFrom::Hole(start as i64))?;
    Ok(Some((start, end.min(size))))
}
