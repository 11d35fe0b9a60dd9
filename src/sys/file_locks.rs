//! Locks on single bytes of a file. A lock belongs to the open file instead of the process (`F_OFD_SETLK`, `fcntl(2)`).

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::Errno;

fn lock_of(kind: libc::c_int, byte: u32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::from(byte),
        l_len: 1,
        l_pid: 0,
    }
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

/// Acquires a shared lock on a byte. The lock exists until it is released or the file is closed.
pub(crate) fn share(file: BorrowedFd<'_>, byte: u32) -> Result<(), Errno> {
    call(file, libc::F_OFD_SETLK, &mut lock_of(libc::F_RDLCK, byte))
}

/// Releases all locks that this open file has.
pub(crate) fn release_all(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // With the length 0, the lock covers all bytes from `l_start` (0) to the end.
    let mut all = libc::flock { l_len: 0, ..lock_of(libc::F_UNLCK, 0) };
    call(file, libc::F_OFD_SETLK, &mut all)
}

/// Whether another open file has a lock on this byte.
pub(crate) fn is_held(file: BorrowedFd<'_>, byte: u32) -> Result<bool, Errno> {
    let mut lock = lock_of(libc::F_WRLCK, byte);
    call(file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}
