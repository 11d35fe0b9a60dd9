//! The interface that all image formats implement for access to the bytes of the disk. The callers have checked that all ranges are within
//! the disk.

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;

use crate::error::{Errno, Error, Result};

/// An open image. Images of some formats can be read but not written.
pub(super) trait Driver: Send + Sync {
    /// The size of the disk in bytes.
    fn size(&self) -> u64;

    /// Whether the image cannot be written, even if the caller opened it for writing.
    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, buf: &mut [u8], at: u64) -> Result<()>;

    /// Returns the first range between `at` and `end` that may contain nonzero bytes. If there is none, the result is an empty range at
    /// `end`. A long search may return an empty range before `end`: all bytes up to this range are zeros, and the caller continues there.
    /// `end` is the end of the disk or of the part in use.
    fn data_from(&self, at: u64, end: u64) -> Result<Range<u64>> {
        Ok(at..end)
    }

    fn write(&self, _bufs: &[IoSlice<'_>], _at: u64) -> Result<()> {
        Err(Error::io(Errno::EROFS, "images of this format can be read but not written"))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _at: u64, _len: u64) -> Result<()> {
        Err(Error::io(Errno::EOPNOTSUPP, "images of this format can be read but not written"))
    }

    /// Makes a range read as zeros. Whole allocation units in the range are freed instead of written.
    fn write_zeroes(&self, _at: u64, _len: u64) -> Result<()> {
        Err(Error::io(Errno::EOPNOTSUPP, "images of this format can be read but not written"))
    }
}

impl fmt::Debug for dyn Driver + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("size", &self.size()).finish_non_exhaustive()
    }
}
