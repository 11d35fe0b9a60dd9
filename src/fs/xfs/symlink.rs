//! Symbolic links: the target in the inode, or in blocks.

use super::disk::attr::SYMLINK;
use super::fork::Format;
use super::inode::XfsInode;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::FileType;
use crate::units::{FileBlock, FsBlock};

/// The maximum length of a target.
const LONGEST: u64 = 1024;
/// The maximum number of blocks that contain a target.
pub(super) const MOST_BLOCKS: u64 = 3;

impl XfsInode {
    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `WrongFileType` if the inode is not a symbolic link; `Corrupt`.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        if self.stat.file_type != FileType::Symlink {
            return Err(Error::new(ErrorKind::WrongFileType, "is not a symbolic link"));
        }
        let place = Place::new("symbolic link").inode(self.stat.inode);
        if self.stat.size == 0 || self.stat.size > LONGEST {
            let what =
                format!("the target of a symbolic link cannot have {} bytes", self.stat.size);
            return Err(place.field("di_size").corrupt(what));
        }
        let len = self.stat.size as usize;
        let target = match self.data.format {
            // The data fork contains the complete target. An inode that is too small for its target was refused earlier.
            Format::Local => self.data.bytes.get(..len).unwrap_or_default().to_vec(),
            _ => self.remote_target(len, place)?,
        };
        if target.contains(&0) {
            return Err(place.corrupt("the target of the symbolic link contains a NUL"));
        }
        Ok(target)
    }

    /// Reads a target from blocks. Each extent of a target begins with one header. (An attribute value is different: each of its blocks has
    /// a header.)
    fn remote_target(&self, len: usize, place: Place) -> Result<Vec<u8>> {
        let mut content = Vec::with_capacity(len);
        let extents = self.data_map()?.map_or(&[][..], |map| map.extents());
        let mut next = FileBlock(0);
        for extent in extents {
            if content.len() == len || extent.first != next || u64::from(extent.len) > MOST_BLOCKS {
                break;
            }
            next = extent.end();
            let blocks = extent.start.0..extent.start.0 + u64::from(extent.len);
            let blocks: Vec<_> = blocks.map(FsBlock).collect();
            self.remote_part(&blocks, len, SYMLINK, &mut content, place)?;
        }
        if content.len() < len {
            let what = format!("{} blocks do not contain the target's {len} bytes", next.0);
            return Err(place.field("di_size").corrupt(what));
        }
        Ok(content)
    }
}
