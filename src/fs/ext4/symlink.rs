//! Symbolic links: a short target in `i_block`, a long one in a block, or inline data.

use super::inode::Inode;

use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::FileType;
use crate::fs::InodeFlags;
use crate::units::{FileBlock, FilePos};

impl Inode {
    /// Whether it is a link whose target stands in the inode.
    pub(super) fn is_fast_symlink(&self) -> bool {
        let short = self.size < self.i_block.len() as u64;
        self.file_type == FileType::Symlink && short && !self.has_inline_data()
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `WrongFileType` for anything else; `Encrypted`; `Corrupt` where the target is empty, too long or holds a NUL.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        self.read_current(Self::target)
    }

    fn target(&self) -> Result<Vec<u8>> {
        let number = self.number;
        if self.file_type != FileType::Symlink {
            let what = format!("inode {number} is not a symbolic link");
            return Err(Error::new(ErrorKind::WrongFileType, what));
        }
        if self.flags.contains(InodeFlags::ENCRYPT) {
            let what = format!("the target of link inode {number} is encrypted");
            return Err(Error::new(ErrorKind::Encrypted, what));
        }
        let place = Place::new("symbolic link").inode(number);
        // A target is kept with a NUL after it, in one block at most.
        let block_size = self.fs.superblock.block_size.bytes();
        let len = usize::try_from(self.size).ok().filter(|len| (1..block_size).contains(len));
        let Some(len) = len else {
            return Err(place.field("i_size").corrupt(format!("{} bytes", self.size)));
        };
        let target = if self.has_inline_data() {
            let mut target = vec![0; len];
            self.read_inline_data(&mut target, FilePos(0))?;
            target
        } else if self.is_fast_symlink() {
            self.i_block[..len].to_vec()
        } else {
            let Some(block) = self.fs_block(FileBlock(0))? else {
                return Err(place.corrupt("its block is a hole"));
            };
            self.fs.blocks.read(block, place)?[..len].to_vec()
        };
        if target.contains(&0) {
            return Err(place.corrupt("the target holds a NUL"));
        }
        Ok(target)
    }
}
