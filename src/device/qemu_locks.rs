//! QEMU's locks on image files and devices.
//!
//! QEMU locks single bytes of a file. Some locks record how QEMU uses the file. Other locks exclude uses by other programs. All locks are
//! shared. QEMU does not check `flock` or `O_EXCL`, so ironmap acquires and checks the same locks as QEMU.
//!
//! Sources: `docs/system/qemu-block-drivers.rst.inc` of QEMU ("Disk image file locking"), and the bytes that `/proc/locks` shows.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, Stat};

use super::holders;
use super::owner::{self, busy};
use crate::error::{Errno, Error, Result};
use crate::sys::file_locks;

/// The positions of the locked bytes. From `USES` on, each lock records a use. From `EXCLUDES` on, each lock excludes a use.
const USES: u32 = 100;
const EXCLUDES: u32 = 200;
/// The uses of a file: to read consistent data, to write, to resize.
const READ: u32 = 0;
const WRITE: u32 = 1;
const RESIZE: u32 = 3;

/// Acquires QEMU's locks for reading, or for reading and writing. Then checks that no other program excludes this use, and that no other
/// program writes or resizes the file.
pub(super) fn lock(file: BorrowedFd<'_>, path: &Path, write: bool) -> Result<()> {
    let uses: &[u32] = if write { &[READ, WRITE, RESIZE] } else { &[READ] };
    let excluded = [WRITE, RESIZE];
    let ours = uses.iter().map(|byte| USES + byte).chain(excluded.map(|byte| EXCLUDES + byte));
    for byte in ours {
        match file_locks::share(file, byte) {
            Ok(()) => {}
            Err(errno) if is_missing(errno) => return Ok(()),
            Err(Errno::EAGAIN | Errno::EACCES) => {
                return Err(holders::locked(path, file));
            }
            Err(errno) => return Err(Error::io(errno, "lock").at(path.display())),
        }
    }
    let against = uses.iter().map(|byte| (EXCLUDES + byte, "in use by QEMU"));
    let writers = excluded.map(|byte| (USES + byte, "being written by QEMU"));
    for (byte, what) in writers.into_iter().chain(against) {
        match file_locks::is_held(file, byte) {
            Ok(false) => {}
            Ok(true) => {
                return Err(busy(
                    path,
                    &format!("{what}, or by another program that uses QEMU's locks"),
                ));
            }
            Err(errno) if is_missing(errno) => return Ok(()),
            Err(errno) => return Err(Error::io(errno, "lock").at(path.display())),
        }
    }
    Ok(())
}

/// Refuses a block device if QEMU writes the same bytes through another device node. A node that cannot be opened is not checked.
pub(super) fn refuse_writers_elsewhere(path: &Path, stat: &Stat) -> Result<()> {
    for node in owner::other_nodes(stat) {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(&node, flags, Mode::empty()) else { continue };
        let is_written = |byte| file_locks::is_held(file.as_fd(), USES + byte) == Ok(true);
        if [WRITE, RESIZE].into_iter().any(is_written) {
            let what = format!("being written by QEMU as {}", node.display());
            return Err(busy(path, &what));
        }
    }
    Ok(())
}

/// Whether the error means that the file system does not support locks. On such a file system, QEMU acquires no locks either.
fn is_missing(errno: Errno) -> bool {
    matches!(errno, Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::ENOLCK)
}
