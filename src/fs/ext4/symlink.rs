//! Symbolic links. A short target is stored in `i_block`. Other targets are stored in a block or as inline data.

use super::features::Incompat;
use super::inode::Inode;
use super::superblock::Superblock;

use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::FileType;
use crate::fs::InodeFlags;
use crate::units::{FileBlock, FilePos};

/// The size of `i_block` in bytes. A short target and the NUL after the target must fit into `i_block`.
pub(super) const SHORT_LINK: u64 = 60;

/// Whether a link's target is in the inode, by the same rule as in Linux: the target is in the inode if the link has no blocks except its
/// attribute block. The length of the target does not decide, because a short target can also be in a block. With the feature ea_inode, the
/// number of blocks also includes blocks of other inodes. In this case the length decides.
pub(super) fn is_in_inode(sb: &Superblock, size: u64, sectors: u64, attributes: bool) -> bool {
    if sb.incompat.contains(Incompat::EA_INODE) {
        return (1..SHORT_LINK).contains(&size);
    }
    let cluster = u64::from(sb.cluster_blocks) << (sb.block_size.shift() - 9);
    sectors == if attributes { cluster } else { 0 }
}

impl Inode {
    /// Whether this inode is a symbolic link with its target in `i_block`, and not in inline data.
    pub(super) fn is_fast_symlink(&self) -> bool {
        let (size, sectors) = (self.size, self.stat().blocks);
        self.file_type == FileType::Symlink
            && !self.has_inline_data()
            && is_in_inode(&self.fs.superblock, size, sectors, self.xattr_block.is_some())
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `WrongFileType` if the inode is not a symbolic link; `Encrypted`; `Corrupt` if the target is empty, too long or contains a NUL.
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
            let what = format!("the target of symbolic link inode {number} is encrypted");
            return Err(Error::new(ErrorKind::Encrypted, what));
        }
        let place = Place::new("symbolic link").inode(number);
        // A target is shorter than a block, because a NUL is stored after the target.
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
            if self.size >= SHORT_LINK {
                let what =
                    format!("the target has {len} bytes, but the symbolic link has no block");
                return Err(place.field("i_size").corrupt(what));
            }
            self.i_block[..len].to_vec()
        } else {
            let Some(block) = self.fs_block(FileBlock(0))? else {
                return Err(place.corrupt("the block of the target is a hole"));
            };
            self.fs.blocks.read(block, place)?[..len].to_vec()
        };
        if target.contains(&0) {
            return Err(place.corrupt("the target contains a NUL"));
        }
        Ok(target)
    }
}
