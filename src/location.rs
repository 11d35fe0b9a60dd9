//! Where a volume is: `DEVICE`, `IMAGE`, `IMAGE@OFFSET` or `IMAGE@pN`.

use std::path::PathBuf;
use std::str::FromStr;

use crate::error::{Error, Result};

/// A block device or image, and the part of it that holds the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Path of the block device or image.
    pub path: PathBuf,
    /// The part that holds the volume.
    pub part: Part,
}

/// A part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// From this byte to the end.
    Offset(u64),
    /// This partition of its GPT or MBR, counted from 1.
    Partition(u32),
}

impl Location {
    /// First byte and length of the part, after the partition table where it names a partition.
    ///
    /// # Errors
    /// `NotFound` for a partition that does not exist, `Corrupt` for a damaged table, `Io`.
    pub fn window(&self) -> Result<Option<(u64, u64)>> {
        match self.part {
            Part::Whole => Ok(None),
            Part::Offset(_) | Part::Partition(_) => Err(Error::unsupported("parts of an image")),
        }
    }
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(Self { path: text.into(), part: Part::Whole })
    }
}
