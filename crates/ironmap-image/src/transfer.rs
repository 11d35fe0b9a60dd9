//! Functions that read and write files, and that are not inlined. The library inlines `read_at` and `write_at` into every caller, together
//! with the code for all kinds of files and queues. Inlining suits a program with few callers. This program has many, and each inlined copy
//! of `read_at` has 40 KB.

use std::io::IoSliceMut;

use ironmap::units::FilePos;
use ironmap::{DioFlags, File, Queue, Result};

/// Reads from a file. This function calls `read_vectored_at`, because the library does not inline the code of vectored reads.
///
/// # Errors
/// The errors of `File::read_at`.
pub fn read(file: &File, queue: &mut Queue, buf: &mut [u8], pos: FilePos) -> Result<usize> {
    file.read_vectored_at(queue, &mut [IoSliceMut::new(buf)], pos, DioFlags::empty())
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
