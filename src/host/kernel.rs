//! Reads a host file through the kernel's file system. The rules for these reads are the rules for raw reads, which go directly to the
//! device.

use std::io::IoSliceMut;
use std::path::Path;
use std::sync::Arc;

use rustix::io::{Errno as OsErrno, ReadWriteFlags};
use smallvec::SmallVec;

use super::open::OpenFile;
use crate::device::{BlockFile, OpenMode};
use crate::dio::{DioFlags, Geometry, Request, State};
use crate::error::{Errno, Error, Result};
use crate::iomap::{Iomap, IomapFlags, IomapType, MapFile};
use crate::units::{DevOffset, FilePos};

/// The descriptor of a file for direct reads, with the limits of these reads.
pub(crate) struct Descriptor {
    pub(crate) file: Arc<BlockFile>,
    pub(crate) geometry: Geometry,
}

impl Descriptor {
    /// Opens the file of a descriptor again, through its link in `/proc/self/fd`. This also succeeds if the file was renamed.
    pub(crate) fn open(file: &std::fs::File, block: u64) -> Result<Self> {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mode = OpenMode { exclusive: false, ..OpenMode::default() };
        let file = BlockFile::open(Path::new(&path), &mode)?;
        let geometry = Geometry::new(file.limits(), block);
        Ok(Self { file: Arc::new(file), geometry })
    }
}

/// The identity map of a file that is read through its descriptor: each position maps to itself.
pub(crate) struct Straight {
    pub(crate) size: u64,
}

impl MapFile for Straight {
    fn map(&self, _pos: FilePos, _len: u64) -> Result<Iomap> {
        let (pos, addr) = (FilePos(0), DevOffset(0));
        let (kind, flags) = (IomapType::Mapped, IomapFlags::LAST);
        Ok(Iomap { pos, len: self.size.max(1), addr, kind, flags })
    }

    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        self.map(pos, 1).ok()
    }

    fn read_inline(&self, _buf: &mut [u8], _pos: FilePos) -> Result<()> {
        Err(Error::invalid("a file descriptor has no inline data"))
    }
}

/// How a range is read through the kernel.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    /// The descriptor for a direct read; `None` for a read through the page cache.
    direct: Option<&'a Descriptor>,
    /// Whether a direct read that the kernel refuses is an error. If not, the refused range is read through the page cache.
    strict: bool,
    /// Whether a direct read of the range has failed.
    failed: bool,
}

/// The largest number of repeated direct reads. A direct read may return the error of an earlier write to the file.
const REPEATS: u32 = 8;

impl OpenFile {
    /// The file's present size from `fstat`, or 0 if `fstat` fails.
    pub(crate) fn size(&self) -> u64 {
        rustix::fs::fstat(self.file.file()).map_or(0, |stat| stat.st_size as u64)
    }

    /// Reads through the kernel. The read is direct if possible. If not, the read uses the page cache.
    #[cold]
    #[inline(never)]
    pub(crate) fn read_kernel(
        &self,
        state: &mut State,
        bufs: &mut [IoSliceMut<'_>],
        request: &Request,
        strict: bool,
    ) -> Result<usize> {
        state.stats_mut().kernel_served += 1;
        let Request { pos, len, .. } = *request;
        let descriptor = self.descriptor();
        let shape = bufs.iter().map(|buf| (buf.as_ptr().addr(), buf.len()));
        let aligned = descriptor.filter(|found| found.geometry.is_aligned(pos, shape));
        let refusing = descriptor.filter(|_| strict && aligned.is_none());
        // The kernel refuses positions from 2^63 on, and interprets 2^64 - 1 as the current position of the descriptor.
        let far = pos.0.saturating_add(len as u64) > i64::MAX as u64;
        if (far || refusing.is_some()) && (len == 0 || pos.0 >= self.size()) {
            return Ok(0);
        }
        if let Some(descriptor) = refusing {
            return Err(descriptor.geometry.misaligned(pos, len));
        }
        self.read_pieces(state, bufs, request, Attempt { direct: aligned, strict, failed: false })
    }

    /// Reads a range through the page cache after the kernel's direct read has failed.
    pub(crate) fn read_kernel_again(
        &self,
        state: &mut State,
        bufs: &mut [IoSliceMut<'_>],
        request: &Request,
    ) -> Result<usize> {
        let attempt = Attempt { direct: self.descriptor(), strict: false, failed: true };
        self.read_pieces(state, bufs, request, attempt)
    }

    fn read_pieces(
        &self,
        state: &State,
        bufs: &mut [IoSliceMut<'_>],
        request: &Request,
        attempt: Attempt<'_>,
    ) -> Result<usize> {
        let Attempt { mut direct, strict, mut failed } = attempt;
        let mut repeats = REPEATS;
        let Request { pos, len, flags, .. } = *request;
        let mut rw_flags = ReadWriteFlags::empty();
        rw_flags.set(ReadWriteFlags::NOWAIT, flags.contains(DioFlags::NOWAIT));
        // The loop below advances the slices in this list, so that the caller's slices stay unchanged.
        let mut slices: SmallVec<[_; 2]> =
            bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        let mut left = &mut slices[..];
        let mut done = 0;
        while done < len {
            let at = pos.0.saturating_add(done as u64);
            // Only the first read of the loop is direct, except that a direct read is repeated after some errors. The remaining bytes are
            // read through the page cache: they may begin at an unaligned position, or the file system may refuse all direct reads.
            let descriptor = direct.take();
            let was_direct = descriptor.is_some();
            let result = match descriptor {
                Some(descriptor) => descriptor.file.read_once(left, at, rw_flags),
                None => rustix::io::preadv2(self.file.file(), left, at, rw_flags),
            };
            match result {
                Ok(0) if !was_direct => break,
                // A repeated direct read has succeeded, so the first error belonged to an earlier write. The data of that write are only in
                // the page cache. So the range is read from the page cache.
                Ok(_) if was_direct && failed => {}
                Ok(count) => {
                    done += count;
                    IoSliceMut::advance_slices(&mut left, count);
                }
                Err(OsErrno::INTR) => direct = descriptor,
                Err(OsErrno::INVAL) if was_direct && !strict => {}
                // Before a direct read, the kernel writes back dirty pages of the range. The read may then return the error of an earlier
                // write to the file, but only once (Linux's `filemap_check_errors`). So the read is repeated. If the repeated read fails
                // too, the device has failed, or another write has failed in the meantime.
                Err(OsErrno::IO | OsErrno::NOSPC) if was_direct && repeats > 0 => {
                    (failed, repeats) = (true, repeats - 1);
                    direct = descriptor;
                }
                // If the kernel returns EAGAIN after some bytes were read, the result is a short count, as in the kernel's own reads.
                Err(OsErrno::AGAIN) if done > 0 => break,
                // The file system does not support NOWAIT, so the read might block.
                Err(OsErrno::OPNOTSUPP) if flags.contains(DioFlags::NOWAIT) => {
                    return Err(state.failed(Errno::EAGAIN, self.file.inode(), request));
                }
                Err(errno) => {
                    let (errno, inode) = (Errno::from(errno), self.file.inode());
                    return Err(state.failed(errno, inode, request));
                }
            }
        }
        Ok(done)
    }
}
