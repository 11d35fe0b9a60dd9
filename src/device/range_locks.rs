//! Locks of ranges of an image. They permit several processes to use different parts of one image, for example two partitions.
//!
//! The locked bytes are the bytes of the part, moved by `BASE`. So these locks never meet QEMU's locks, which are at the beginning of the
//! file, and the file has no data at these positions. A user of the whole image locks all bytes.
//!
//! QEMU's locks do not distinguish parts. A process that finds another user of a part cannot know which program has QEMU's locks, so it
//! relies on the check of the other process. The lock of the gate makes sure that the other process has completed its check: a process has
//! the gate from before its first lock until after its last check. Writers lock the gate exclusively, readers lock it shared.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::FlockOperation;

use super::block_file::{OpenMode, PAGE};
use super::qemu_locks::{Extent, is_missing};
use super::{holders, owner};
use crate::error::{Errno, Error, Result};
use crate::sys::file_locks;

const BASE: u64 = 1 << 62;
/// The end of the last range. The largest position of a lock is `i64::MAX`.
const END: u64 = i64::MAX as u64;
const GATE: Range<u64> = BASE - 1..BASE;

/// Enters the gate, and locks the part of an image. The caller then acquires QEMU's locks for the returned extent, and leaves the gate.
///
/// # Errors
/// `Busy` if another program uses the part.
pub(super) fn lock(file: &File, path: &Path, mode: &OpenMode) -> Result<Extent> {
    let part = mode.window.map_or(BASE..END, moved);
    for range in [GATE, part] {
        match acquire(file.as_fd(), range, mode.write) {
            Ok(()) => {}
            Err(errno) if is_missing(errno) => {
                // The file system has no locks of ranges, so a writer locks the whole image.
                return owner::lock_image(path, file, mode.write).map(|()| Extent::Whole);
            }
            Err(Errno::EAGAIN | Errno::EACCES) => {
                // The error lists the programs that have locked the file. This process shall not be one of them.
                let _ = rustix::fs::flock(file, FlockOperation::NonBlockingUnlock);
                return Err(holders::locked(path, file.as_fd()));
            }
            Err(errno) => return Err(Error::io(errno, "lock").at(path.display())),
        }
    }
    if mode.window.is_none() {
        return Ok(Extent::Whole);
    }
    let others = file_locks::is_excluded(file.as_fd(), BASE..END, mode.write);
    let others = others.map_err(|errno| Error::io(errno, "lock").at(path.display()))?;
    Ok(if others { Extent::BesidePart } else { Extent::Part })
}

/// Leaves the gate, because all locks are acquired and checked.
pub(super) fn leave_gate(file: BorrowedFd<'_>) {
    // An error means that the file system has no locks of ranges.
    let _ = file_locks::release(file, GATE);
}

/// Whether another ironmap process has opened a part of the image, or the whole image, for writing.
pub(super) fn is_written(file: BorrowedFd<'_>) -> bool {
    file_locks::is_excluded(file, BASE..END, false) == Ok(true)
}

fn acquire(file: BorrowedFd<'_>, range: Range<u64>, exclusive: bool) -> Result<(), Errno> {
    owner::patiently(
        || file_locks::acquire(file, range.clone(), exclusive),
        |done| matches!(done, Err(Errno::EAGAIN | Errno::EACCES)),
    )
}

/// The bytes that are locked for a part. They include the rest of the first and of the last page: two processes must not share a page of
/// the page cache, because the old bytes of one process in a page could overwrite new bytes that the other process wrote directly.
fn moved((start, len): (u64, u64)) -> Range<u64> {
    let page = u64::from(PAGE);
    let limit = END - BASE;
    let end = start.saturating_add(len).checked_next_multiple_of(page).unwrap_or(limit);
    let start = (start / page * page).min(limit - 1);
    BASE + start..BASE + end.clamp(start + 1, limit)
}
