//! The file of an image. It is a regular file, and its reads and writes use the page cache.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno as OsErrno;

use crate::device::{BlockFile, OpenMode};
use crate::error::{Errno, Error, Result};

/// The maximum number of buffers of a request in Linux (`IOV_MAX`).
const MAX_SEGMENTS: usize = 1024;

/// An open file of an image.
#[derive(Debug)]
pub(super) struct ImageFile {
    file: BlockFile,
    len: AtomicU64,
}

/// The device and the inode number of a file.
pub(super) type Identity = (u64, u64);

/// Returns the identity of a regular file. An image may name any file, so this function refuses other kinds of files before they are
/// opened.
pub(super) fn identity_of(path: &Path) -> Result<Identity> {
    let failed = |errno: OsErrno| Error::io(errno, path.display().to_string());
    let stat = rustix::fs::stat(path).map_err(failed)?;
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    if kind != rustix::fs::FileType::RegularFile {
        return Err(Error::invalid("the image is not a regular file").at(path.display()));
    }
    Ok((stat.st_dev, stat.st_ino))
}

impl ImageFile {
    /// Opens the file. If `locked` is set, also locks it.
    pub(super) fn open(path: &Path, write: bool, locked: bool) -> Result<Self> {
        identity_of(path)?;
        let mode = OpenMode { direct: false, exclusive: locked, write, window: None };
        let file = BlockFile::open(path, &mode)?;
        let len = AtomicU64::new(file.size());
        Ok(Self { file, len })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.file.path().to_owned()
    }

    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Fills the buffers from `at`. Bytes past the end of the file are zeros.
    pub(super) fn read(&self, mut bufs: &mut [IoSliceMut<'_>], at: u64) -> Result<(), Errno> {
        let mut at = at;
        while bufs.iter().any(|buf| !buf.is_empty()) {
            let most = bufs.len().min(MAX_SEGMENTS);
            // An offset beyond the kernel's limit is past the end of every file, so no read is needed.
            let past = i64::try_from(at).is_err();
            let done =
                if past { Ok(0) } else { rustix::io::preadv(self.fd(), &mut bufs[..most], at) };
            match done {
                Ok(0) => {
                    bufs.iter_mut().for_each(|buf| buf.fill(0));
                    return Ok(());
                }
                Ok(count) => {
                    IoSliceMut::advance_slices(&mut bufs, count);
                    at = at.saturating_add(count as u64);
                }
                Err(OsErrno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Fills one buffer as [`read`](Self::read) does. An error contains the position in the file.
    #[inline]
    pub(super) fn read_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        // Most reads are complete after one call.
        match rustix::io::pread(self.fd(), &mut *buf, at) {
            Ok(count) if count == buf.len() => Ok(()),
            _ => self.read_all_at(buf, at),
        }
    }

    /// Fills a buffer with data. If the file ends within a unit of `granule` bytes, the rest of this unit reads as zeros.
    ///
    /// # Errors
    /// `Io`, with EIO for bytes past this unit, because the file is truncated.
    #[inline]
    pub(super) fn read_data(&self, buf: &mut [u8], at: u64, granule: u64) -> Result<()> {
        match rustix::io::pread(self.fd(), &mut *buf, at) {
            Ok(count) if count == buf.len() => Ok(()),
            _ => self.read_last_data(buf, at, granule),
        }
    }

    #[cold]
    fn read_last_data(&self, buf: &mut [u8], at: u64, granule: u64) -> Result<()> {
        let (len, end) = (self.len(), at.saturating_add(buf.len() as u64));
        if len.checked_next_multiple_of(granule).is_some_and(|last| end > last) {
            let what =
                format!("the file is truncated: bytes {at} to {end} are past its end at {len}");
            return Err(Error::io(Errno::EIO, what).at(self.path().display()));
        }
        self.read_all_at(buf, at)
    }

    #[cold]
    fn read_all_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let len = buf.len();
        self.read(&mut [IoSliceMut::new(buf)], at).map_err(|errno| {
            Error::io(errno, format!("read of {len} bytes at {at}")).at(self.path().display())
        })
    }

    /// Writes the buffers at `at`.
    pub(super) fn write(&self, bufs: &[IoSlice<'_>], at: u64) -> Result<(), Errno> {
        #[cfg(test)]
        recorded::write(bufs, at);
        let mut at = at;
        for bufs in bufs.chunks(MAX_SEGMENTS) {
            let mut slices = bufs.to_vec();
            let mut left = &mut slices[..];
            while left.iter().any(|buf| !buf.is_empty()) {
                match rustix::io::pwritev(self.fd(), left, at) {
                    Ok(0) => return Err(Errno::EIO),
                    Ok(count) => {
                        IoSlice::advance_slices(&mut left, count);
                        at = at.checked_add(count as u64).ok_or(Errno::EFBIG)?;
                        self.len.fetch_max(at, Ordering::Relaxed);
                    }
                    Err(OsErrno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }

    /// Reserves the space for a table that is not in the file yet, so that a later write of the table cannot run out of space. The length
    /// of the file does not change.
    ///
    /// # Errors
    /// `Io`, with ENOSPC if the file system is full.
    pub(super) fn reserve_new(&self, at: u64, len: u64) -> Result<()> {
        let failed = |errno: Errno| {
            Error::io(errno, format!("allocation of {len} bytes at {at}")).at(self.path().display())
        };
        loop {
            match rustix::fs::fallocate(self.fd(), FallocateFlags::KEEP_SIZE, at, len) {
                Err(OsErrno::INTR) => {}
                // The file system cannot reserve space, so zeros are written.
                Err(OsErrno::OPNOTSUPP | OsErrno::NOSYS) => {
                    let zeros = vec![0; len as usize];
                    return self.write(&[IoSlice::new(&zeros)], at).map_err(failed);
                }
                result => return result.map_err(|errno| failed(errno.into())),
            }
        }
    }

    /// Reserves the space for an existing table, parts of which may be holes in the file.
    ///
    /// # Errors
    /// `Io`, with ENOSPC if the file system is full.
    pub(super) fn reserve_table(&self, at: u64, len: u64) -> Result<()> {
        // A full file system may refuse the allocation even if there is no hole, so this code searches for holes first.
        match rustix::fs::seek(self.fd(), SeekFrom::Hole(at)) {
            Ok(hole) if hole < at + len => {}
            _ => return Ok(()),
        }
        match rustix::fs::fallocate(self.fd(), FallocateFlags::KEEP_SIZE, at, len) {
            Err(OsErrno::NOSPC | OsErrno::DQUOT) => {
                let what = format!("allocation of {len} bytes at {at}");
                Err(Error::io(Errno::ENOSPC, what).at(self.path().display()))
            }
            // The code ignores all other errors here, because the later write of the table reports them.
            _ => Ok(()),
        }
    }

    /// Makes all earlier writes durable.
    pub(super) fn sync(&self) -> Result<(), Errno> {
        #[cfg(test)]
        recorded::sync();
        loop {
            match rustix::fs::fdatasync(self.fd()) {
                Err(OsErrno::INTR) => {}
                result => return result.map_err(Errno::from),
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd()
    }
}

/// Records the writes and syncs of a thread, for tests that compute the states after a power cut.
#[cfg(test)]
pub(super) mod recorded {
    use std::cell::RefCell;
    use std::io::IoSlice;

    /// The writes since the last sync are `pending`. Earlier writes are in `durable`, which is the content of the file.
    #[derive(Default)]
    pub(in crate::device::image) struct Recording {
        pub(in crate::device::image) durable: Vec<u8>,
        pub(in crate::device::image) pending: Vec<(usize, Vec<u8>)>,
    }

    thread_local! {
        pub(in crate::device::image) static RECORDING: RefCell<Recording> = RefCell::default();
    }

    pub(super) fn write(bufs: &[IoSlice<'_>], at: u64) {
        let bytes = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        RECORDING.with_borrow_mut(|recording| recording.pending.push((at as usize, bytes)));
    }

    pub(super) fn sync() {
        RECORDING.with_borrow_mut(|Recording { durable, pending }| {
            for (at, bytes) in pending.drain(..) {
                put(durable, at, &bytes);
            }
        });
    }

    /// Writes to a file in memory, which grows if necessary.
    pub(in crate::device::image) fn put(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
        file.resize(file.len().max(at + bytes.len()), 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
