//! Small files whose content is stored in the inode: the first 60 bytes in `i_block`, the remaining bytes in the attribute `system.data`.

use super::dir_block::Area;
use super::inode::Inode;
use crate::error::Result;
use crate::fs::InodeFlags;
use crate::units::{FilePos, InodeNo};

/// The number of content bytes in `i_block`.
pub(super) const FRONT: usize = 60;
/// The length of the parent's inode number. An inline directory starts with this number and has no entries `.` and `..`.
pub(super) const PARENT: usize = 4;

impl Inode {
    /// Whether the content is stored in the inode.
    pub(crate) fn has_inline_data(&self) -> bool {
        self.flags.contains(InodeFlags::INLINE_DATA)
    }

    /// The number of content bytes in the inode. If the file's size is larger, the remaining bytes read as zeros. Linux leaves such a file
    /// if it crashes after the write of the new size and before the write of the new blocks. mke2fs creates such a file if the content is
    /// only a hole.
    pub(super) fn inline_len(&self) -> Result<usize> {
        let held = FRONT + self.inline_rest()?.len();
        Ok(usize::try_from(self.size).unwrap_or(usize::MAX).min(held))
    }

    /// Copies inline data from `pos` to `buf`. The range must lie within the file.
    pub(super) fn read_inline_data(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        let rest = if self.size > FRONT as u64 { self.inline_rest()? } else { &[] };
        let start = usize::try_from(pos.0).unwrap_or(usize::MAX);
        let bytes = self.i_block.iter().chain(rest).skip(start).chain(std::iter::repeat(&0));
        for (to, from) in buf.iter_mut().zip(bytes) {
            *to = *from;
        }
        Ok(())
    }

    /// A part of an inline directory by its number. Part 0 contains the implicit entries `.` and `..`. Part 1 is in `i_block`. Part 2 is in
    /// `system.data`.
    pub(super) fn inline_dir_part(&self, part: u64) -> Result<Option<Area>> {
        let bytes = match part {
            0 => return Ok(Some(Area::dots(self.number, self.inline_parent()))),
            1 => self.i_block[PARENT..].to_vec(),
            2 => self.inline_rest()?.to_vec(),
            _ => return Ok(None),
        };
        Ok(Some(Area::inline(bytes, part, self.number)))
    }

    pub(super) fn inline_parent(&self) -> InodeNo {
        let [a, b, c, d, ..] = self.i_block;
        InodeNo(u64::from(u32::from_le_bytes([a, b, c, d])))
    }
}
