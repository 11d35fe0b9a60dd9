//! ext4, and with it ext2 and ext3: the formats as Linux writes them.

mod acl;
mod blocks;
mod casefold;
mod checksum;
mod dir;
mod disk;
mod extent;
mod features;
mod group;
mod hash;
mod htree;
mod indirect;
mod inline_data;
mod inode;
mod map;
mod path;
mod superblock;
mod symlink;
mod xattr;

use std::sync::Arc;

pub use dir::ReadDir;
pub use features::{Compat, Incompat, RoCompat};
pub use inode::{Inode, InodeFlags};
pub use path::Follow;
pub use superblock::{RecordedErrors, Superblock, Times};

use self::blocks::Blocks;
use crate::device::Device;
use crate::error::Result;
use crate::units::InodeNo;

/// The root directory's inode.
pub const ROOT: InodeNo = InodeNo(2);

/// An ext4 file system, read-only.
pub struct Ext4 {
    pub(crate) superblock: Superblock,
    pub(crate) blocks: Blocks,
}

impl Ext4 {
    /// Opens the file system on a device.
    ///
    /// # Errors
    /// `UnknownFormat` where there is none, `Unsupported` by name, `Corrupt` with the field.
    pub fn open(device: Arc<dyn Device>) -> Result<Arc<Self>> {
        let (at, len) = Superblock::RANGE;
        let mut bytes = vec![0; len];
        device.read_exact_at(&mut bytes, at)?;
        let superblock = Superblock::parse(&bytes, device.size())?;
        let blocks = Blocks::new(device, superblock.block_size, superblock.blocks_count);
        Ok(Arc::new(Self { superblock, blocks }))
    }

    /// What the superblock says.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }
}
