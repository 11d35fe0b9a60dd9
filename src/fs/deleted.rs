//! A deleted file whose blocks are still known. The formats find such files; this type reads their content.

use crate::error::Result;
use crate::fs::Stat;
use crate::iomap::{Extent, ExtentState};
use crate::units::{BlockSize, FilePos, InodeNo};

/// A deleted regular file.
pub struct Deleted {
    /// The attributes that the file had before it was deleted.
    pub stat: Stat,
    /// The time of deletion, in seconds since 1970. `None` if neither the inode nor the log contains the time.
    pub deleted: Option<u32>,
    /// The path of the file from the root. If the name of a directory in the path is found neither on the volume nor in the log, the path
    /// begins with the inode number of the last such directory, as in `<12>/name`. `None` if the name of the file itself is not found.
    pub path: Option<Vec<u8>>,
    /// The number of data blocks in the file's map.
    pub blocks: u64,
    /// The number of data blocks that are free and do not belong to a file that was deleted later.
    pub free: u64,
    /// The reason why the content cannot be read, or a fault of the map. `None` if the complete content can be read.
    pub problem: Option<String>,
    /// The file's extents in file order.
    pub(crate) extents: Vec<Extent>,
    pub(crate) block_size: BlockSize,
    pub(crate) content: Box<dyn Content>,
}

/// Reads the content of a deleted file.
pub(crate) trait Content: Send + Sync {
    /// Reads a range of the device from byte `at` on. The range lies within one extent.
    fn read_extent(&self, buf: &mut [u8], at: u64) -> Result<()>;

    /// The number of bytes that the inode itself contains, if the content is in the inode and not in blocks.
    fn inline_len(&self) -> Option<u64> {
        None
    }

    /// Reads content that is in the inode.
    fn read_inline(&self, buf: &mut [u8], _pos: FilePos) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    /// Refuses a file whose content cannot be read.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The path of a file below a directory whose name is not known. `below` is the rest of the path. If the name of the file itself is not
/// known, `below` is empty and the result is `None`.
pub(crate) fn below_unnamed(dir: InodeNo, below: &[u8]) -> Option<Vec<u8>> {
    (!below.is_empty()).then(|| [format!("<{dir}>").as_bytes(), below].concat())
}

impl Deleted {
    /// The inode number.
    #[must_use]
    pub fn number(&self) -> InodeNo {
        self.stat.inode
    }

    /// Whether the file's map is complete and all blocks of the file are still free.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.problem.is_none() && self.free == self.blocks
    }

    /// The first position at or after `pos` at which the file may contain a byte other than zero; `None` if only zeros follow.
    #[must_use]
    pub fn next_data(&self, pos: FilePos) -> Option<FilePos> {
        if let Some(len) = self.content.inline_len() {
            return (pos.0 < len).then_some(pos);
        }
        let size = self.block_size;
        let end = |extent: &Extent| size.pos_of(extent.end()).0;
        let from = self.extents.partition_point(|extent| end(extent) <= pos.0);
        let mut data = self.extents[from..].iter();
        let extent = data.find(|extent| extent.state != ExtentState::Unwritten)?;
        let start = size.pos_of(extent.first).0.max(pos.0);
        (start < self.stat.size).then_some(FilePos(start))
    }

    /// Reads bytes from a position on into the buffer. Ranges without blocks read as zeros. Returns the number of bytes. At the end of the
    /// file, this number is less than the length of the buffer.
    ///
    /// # Errors
    /// `Io`; `Encrypted`.
    pub fn read_at(&self, buf: &mut [u8], pos: FilePos) -> Result<usize> {
        self.content.check()?;
        let left = self.stat.size.saturating_sub(pos.0);
        let count = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let buf = &mut buf[..count];
        if self.content.inline_len().is_some() {
            self.content.read_inline(buf, pos)?;
            return Ok(count);
        }
        buf.fill(0);
        let size = self.block_size;
        let end = pos.0 + count as u64;
        let from = self.extents.partition_point(|extent| size.pos_of(extent.end()).0 <= pos.0);
        for extent in &self.extents[from..] {
            let first = size.pos_of(extent.first).0;
            if first >= end {
                break;
            }
            if extent.state == ExtentState::Unwritten {
                continue;
            }
            let start = first.max(pos.0);
            let stop = size.pos_of(extent.end()).0.min(end);
            let piece = &mut buf[(start - pos.0) as usize..(stop - pos.0) as usize];
            self.content.read_extent(piece, size.offset_of(extent.start).0 + (start - first))?;
        }
        Ok(count)
    }
}
