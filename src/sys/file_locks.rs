//! Locks of bytes of a file. A lock belongs to the open file, and not to the process (`F_OFD_SETLK`, `fcntl(2)`).

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::Errno;

/// A lock of a range of bytes. The range must be shorter than `i64::MAX`.
fn lock_of(kind: libc::c_int, range: Range<u64>) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: range.start.cast_signed(),
        l_len: (range.end - range.start).cast_signed(),
        l_pid: 0,
    }
}

fn byte(byte: u32) -> Range<u64> {
    u64::from(byte)..u64::from(byte) + 1
}

fn kind(exclusive: bool) -> libc::c_int {
    if exclusive { libc::F_WRLCK } else { libc::F_RDLCK }
}

fn call(file: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: the descriptor is open, and the lock is a whole `flock` that the call may change.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) };
    if result < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error();
        return Err(Errno(errno.unwrap_or(Errno::EIO.0)));
    }
    Ok(())
}

/// Acquires a lock on a range. The lock exists until it is released or the file is closed. An exclusive lock needs a file that is open for
/// writing.
pub(crate) fn acquire(
    file: BorrowedFd<'_>,
    range: Range<u64>,
    exclusive: bool,
) -> Result<(), Errno> {
    call(file, libc::F_OFD_SETLK, &mut lock_of(kind(exclusive), range))
}

/// Acquires a shared lock on a byte.
pub(crate) fn share(file: BorrowedFd<'_>, at: u32) -> Result<(), Errno> {
    acquire(file, byte(at), false)
}

/// Releases the locks that this open file has in a range.
pub(crate) fn release(file: BorrowedFd<'_>, range: Range<u64>) -> Result<(), Errno> {
    call(file, libc::F_OFD_SETLK, &mut lock_of(libc::F_UNLCK, range))
}

/// Releases all locks that this open file has.
pub(crate) fn release_all(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // With the length 0, the lock covers all bytes from 0 on.
    release(file, 0..0)
}

/// Whether the lock of another open file prevents a lock of this range.
pub(crate) fn is_excluded(
    file: BorrowedFd<'_>,
    range: Range<u64>,
    exclusive: bool,
) -> Result<bool, Errno> {
    let mut lock = lock_of(kind(exclusive), range);
    call(file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}

/// Whether another open file has a lock on this byte.
pub(crate) fn is_held(file: BorrowedFd<'_>, at: u32) -> Result<bool, Errno> {
    is_excluded(file, byte(at), true)
}
