//! The persistent bitmaps of an image. A bitmap records which parts of the disk were written since a backup. ironmap does not update
//! bitmaps. Before the first write to an image, ironmap marks all of its bitmaps as in use, and QEMU treats such bitmaps as inconsistent.
//! The clusters of the bitmaps stay allocated until `qemu-img bitmap --remove` frees them.

use std::io::IoSlice;

use super::super::file::ImageFile;
use super::header::{Header, u32_at, u64_at};
use crate::error::{Errno, Place, Result};
use crate::units::FsBlock;

/// The length in bytes of the header extension for bitmaps.
pub(super) const EXTENSION: usize = 24;
/// QEMU's limits: the maximum number of bitmaps, and the maximum length of their directory in bytes.
const MAX_COUNT: u32 = 65535;
const MAX_DIRECTORY: u64 = 64 << 20;
/// The length of a directory entry without its name and its extra data.
const FIXED: u64 = 24;
/// The offset of the flags in a directory entry, and the flag of a bitmap that is in use.
const FLAGS: u64 = 12;
const IN_USE: u32 = 1;

/// The directory of the bitmaps, to which a header extension points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Directory {
    count: u32,
    pub(super) at: u64,
    pub(super) len: u64,
}

impl Directory {
    pub(super) fn parse(extension: &[u8; EXTENSION]) -> Self {
        let (len, at) = (u64_at(extension, 8), u64_at(extension, 16));
        Self { count: u32_at(extension, 0), at, len }
    }

    pub(super) fn place() -> Place {
        Place::new("qcow2 bitmap directory")
    }

    /// Finds the flags of all bitmaps that are not in use: the flags' positions in the file, and their values.
    ///
    /// # Errors
    /// `Corrupt` for an entry that ends past the directory; `Io`.
    pub(super) fn flags(&self, file: &ImageFile, header: &Header) -> Result<Vec<(u64, u32)>> {
        let fits = self.len <= MAX_DIRECTORY && self.at.is_multiple_of(header.cluster());
        let end = self.at.checked_add(self.len).filter(|_| fits && self.count <= MAX_COUNT);
        let Some(end) = end else {
            return Err(Self::place().corrupt("the position or the length is not valid"));
        };
        let (mut at, mut flags) = (self.at, Vec::new());
        for number in 0..self.count {
            let mut entry = [0; FIXED as usize];
            let wrong = || {
                let place = Self::place().block(FsBlock(number.into()));
                place.corrupt("the entry ends past the directory")
            };
            if at + FIXED > end {
                return Err(wrong());
            }
            file.read_at(&mut entry, at)?;
            let value = u32_at(&entry, FLAGS as usize);
            if value & IN_USE == 0 {
                flags.push((at + FLAGS, value));
            }
            let name = u64::from(entry[18]) << 8 | u64::from(entry[19]);
            let len = FIXED + name + u64::from(u32_at(&entry, 20));
            at += len.next_multiple_of(8);
            if at > end {
                return Err(wrong());
            }
        }
        Ok(flags)
    }
}

/// Marks bitmaps as in use. `flags` contains the position and the current value of each bitmap's flags.
pub(super) fn mark(file: &ImageFile, flags: &[(u64, u32)]) -> Result<(), Errno> {
    for (at, value) in flags {
        file.write(&[IoSlice::new(&(value | IN_USE).to_be_bytes())], *at)?;
    }
    Ok(())
}
