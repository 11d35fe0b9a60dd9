//! A file mapped into memory, read by copies only.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::Errno;

/// A shared mapping of a file.
///
/// Another program may change the file, and so the mapping, at any time: no reference into it is ever made. Whoever truncates
/// the file below the mapping makes the next copy fault (SIGBUS), as with every mapping of a file.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Present in a writable mapping: keeps a copy in from running beside a copy in or out, which would be a data race. A mapping
    /// for reading only, which is what a volume that is not written has, pays nothing.
    writers: Option<RwLock<()>>,
}

// SAFETY: the mapping is plain memory that no reference covers. Copies out of it may run side by side; a copy into it is alone,
// by the lock. What other processes do to the file is outside of this program's memory model, as with every mapping.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a file from `offset`, a multiple of the page size.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> Result<Self, Errno> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, offset) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::EFAULT)?;
        Ok(Self { base, len, writers: writable.then(RwLock::default) })
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writers.is_some()
    }

    /// Copies from `at` into `buf`. EINVAL where the range is not mapped.
    #[inline]
    pub(crate) fn read(&self, buf: &mut [u8], at: usize) -> Result<(), Errno> {
        if at.checked_add(buf.len()).is_none_or(|end| end > self.len) {
            return Err(Errno::EINVAL);
        }
        let _shared =
            self.writers.as_ref().map(|lock| lock.read().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the range lies within the mapping, as just checked.
        let source = unsafe { self.base.add(at) };
        // SAFETY: `source` is readable for `buf.len()` bytes; `buf` is a live exclusive slice and cannot overlap the mapping, of
        // which no reference exists.
        unsafe { source.copy_to_nonoverlapping(NonNull::from(&mut *buf).cast(), buf.len()) };
        Ok(())
    }

    /// Copies `buf` to `at`. EINVAL where the range is not mapped, EBADF where the mapping is read-only.
    pub(crate) fn write(&self, buf: &[u8], at: usize) -> Result<(), Errno> {
        let Some(writers) = &self.writers else { return Err(Errno::EBADF) };
        if at.checked_add(buf.len()).is_none_or(|end| end > self.len) {
            return Err(Errno::EINVAL);
        }
        let _alone = writers.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the range lies within the mapping, as just checked.
        let target = unsafe { self.base.add(at) };
        // SAFETY: `target` is writable for `buf.len()` bytes and no reference covers it; `buf` cannot overlap the mapping.
        unsafe { target.copy_from_nonoverlapping(NonNull::from(buf).cast(), buf.len()) };
        Ok(())
    }

    /// Makes what was written durable (`msync`).
    pub(crate) fn flush(&self) -> Result<(), Errno> {
        // SAFETY: the range is the mapping itself.
        unsafe {
            rustix::mm::msync(self.base.as_ptr().cast(), self.len, rustix::mm::MsyncFlags::SYNC)
        }?;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this base and length, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
