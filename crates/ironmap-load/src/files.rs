//! Files that a load reads and writes.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ironmap::{Errno, Error};

/// The fill word: a page of one repeated word costs zram a memset to read and to write.
pub const FILL: u32 = 0xdead_beef;
/// The files that a target's path stands for: itself, or as many with a number after it.
pub fn paths(path: &Path, files: usize) -> Vec<PathBuf> {
    if files == 1 {
        return vec![path.to_owned()];
    }
    let numbered = |number| {
        let mut name = OsString::from(path);
        name.push(format!(".{number}"));
        name.into()
    };
    (0..files).map(numbered).collect()
}

/// Fills memory with the word.
pub fn fill(buffer: &mut [u8]) {
    buffer.chunks_mut(4).for_each(|word| word.copy_from_slice(&FILL.to_le_bytes()[..word.len()]));
}

/// An error of the host, with what failed.
pub fn io(error: &std::io::Error, what: impl Into<Cow<'static, str>>) -> Error {
    Error::io(Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)), what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_files_are_numbered() {
        assert_eq!(paths(Path::new("/f"), 1), [PathBuf::from("/f")]);
        assert_eq!(paths(Path::new("/f"), 2), [PathBuf::from("/f.0"), PathBuf::from("/f.1")]);
    }
}
