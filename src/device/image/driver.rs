//! The common interface of all image formats to the bytes of the disk. The callers have checked all ranges against the size of the disk.

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;

use crate::error::{Errno, Error, Result};

/// An open image. Images of some formats can only be read.
pub(super) trait Driver: Send + Sync {
    /// The size of the disk in bytes.
    fn size(&self) -> u64;

    /// Whether the image cannot be written, regardless of the mode in which it is opened.
    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, buf: &mut [u8], at: u64) -> Result<()>;

    /// The first range between `at` and `end` that may contain nonzero bytes; an empty range at `end` if there is no such range. `end` is
    /// the end of the disk or of a part.
    fn data_from(&self, at: u64, end: u64) -> Result<Range<u64>> {
        Ok(at..end)
    }

    fn write(&self, _bufs: &[IoSlice<'_>], _at: u64) -> Result<()> {
        Err(Error::io(Errno::EROFS, "images of this format can only be read"))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _at: u64, _len: u64) -> Result<()> {
        Err(Error::io(Errno::EOPNOTSUPP, "images of this format can only be read"))
    }

    /// Zeroes a range without writing zeros.
    fn write_zeroes(&self, _at: u64, _len: u64) -> Result<()> {
        Err(Error::io(Errno::EOPNOTSUPP, "images of this format can only be read"))
    }
}

impl fmt::Debug for dyn Driver + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("size", &self.size()).finish_non_exhaustive()
    }
}
