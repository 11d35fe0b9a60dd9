//! Reads and writes of files, one copy of each. The library inlines its own into every caller, with all backings and queues, for programs
//! that do little else; here they have many callers, and each copy has 40 KB.

use ironmap::units::FilePos;
use ironmap::{DioFlags, File, Queue, Result};

/// Reads from a file.
///
/// # Errors
/// As `File::read_at`.
#[inline(never)]
pub fn read(file: &File, queue: &mut Queue, buf: &mut [u8], pos: FilePos) -> Result<usize> {
    file.read_at(queue, buf, pos)
}

/// Writes to a file.
///
/// # Errors
/// As `File::write_at_with`.
#[inline(never)]
pub fn write(
    file: &File,
    queue: &mut Queue,
    buf: &[u8],
    pos: FilePos,
    flags: DioFlags,
) -> Result<usize> {
    file.write_at_with(queue, buf, pos, flags)
}
