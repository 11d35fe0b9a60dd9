//! Functions that read and write files, and are not inlined. The library's functions are inlined into every caller, with the code of all
//! backings and queues. Inlining suits a program with few callers. This program has many callers, and each inlined copy has 40 KB.

use ironmap::units::FilePos;
use ironmap::{DioFlags, File, Queue, Result};

/// Reads from a file.
///
/// # Errors
/// The errors of `File::read_at`.
#[inline(never)]
pub fn read(file: &File, queue: &mut Queue, buf: &mut [u8], pos: FilePos) -> Result<usize> {
    file.read_at(queue, buf, pos)
}

/// Writes to a file.
///
/// # Errors
/// The errors of `File::write_at_with`.
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
