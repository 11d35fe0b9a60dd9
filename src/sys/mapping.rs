//! A file that is mapped into memory. Reads and writes are copies from and to the mapping. No Rust reference to the mapped memory exists.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::copy::copy_unseen;
use crate::error::Errno;

/// A shared mapping of a file.
///
/// If another program changes the file, the mapped memory may change at any time. Therefore, this module never creates a reference to this
/// memory. If the file is truncated, the next copy from or to the removed part causes a fault (SIGBUS), as with every mapping of a file. A
/// copy also causes a fault if the file system cannot provide a page because space is exhausted or the device has an error.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping is plain memory that no reference covers. Its bytes are copied by instructions that the compiler does not see. Copies
// may run concurrently, in this process and in other processes that map the file; each byte then has one of the written values.
unsafe impl Send for Mapping {}
// SAFETY: as for Send: no reference covers the memory, and concurrent copies are permitted.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a file, starting at `offset`. `offset` is a multiple of the page size.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> Result<Self, Errno> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, offset) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::EFAULT)?;
        Ok(Self { base, len, writable })
    }

    /// Replaces pages of a read-only mapping with pages of zeros that do not belong to the file. Fails with EINVAL if the mapping is
    /// writable, if the range is not within the mapping, or if `at` is not the start of a page.
    pub(crate) fn cover(&mut self, at: usize, len: usize) -> Result<(), Errno> {
        if self.writable || at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the range is within the mapping, as just checked.
        let target = unsafe { self.base.add(at) }.as_ptr().cast();
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the replaced range is a part of this mapping. No reference to it exists, and no copy of it is under way, because the
        // mapping is borrowed mutably. The kernel refuses an address that is not the start of a page.
        unsafe { mmap_anonymous(target, len, ProtFlags::READ, flags) }?;
        Ok(())
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Copies bytes, starting at `at`, into `buf`. Fails with EINVAL if the range is not mapped.
    #[inline]
    pub(crate) fn read(&self, buf: &mut [u8], at: usize) -> Result<(), Errno> {
        if at.checked_add(buf.len()).is_none_or(|end| end > self.len) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the range is within the mapping, as just checked.
        let source = unsafe { self.base.add(at) };
        // SAFETY: `source` is readable for `buf.len()` bytes; `buf` is a live exclusive slice and cannot overlap the mapping, since no
        // reference to the mapping exists.
        unsafe { copy_unseen(source.as_ptr(), buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }

    /// Copies `buf` to `at`. Fails with EINVAL if the range is not mapped, and with EBADF if the mapping is read-only.
    #[inline]
    pub(crate) fn write(&self, buf: &[u8], at: usize) -> Result<(), Errno> {
        if !self.writable {
            return Err(Errno::EBADF);
        }
        if at.checked_add(buf.len()).is_none_or(|end| end > self.len) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the range is within the mapping, as just checked.
        let target = unsafe { self.base.add(at) };
        // SAFETY: `target` is writable for `buf.len()` bytes and no reference covers it; `buf` cannot overlap the mapping.
        unsafe { copy_unseen(buf.as_ptr(), target.as_ptr(), buf.len()) };
        Ok(())
    }

    /// Makes all writes durable (`msync`).
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
        // SAFETY: the mapping was made by `new` with this base and length, and no reference to it exists.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
