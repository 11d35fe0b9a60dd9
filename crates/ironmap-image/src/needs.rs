//! Estimates the space that a tree needs in a volume.

use ironmap::fs::FileType;

use crate::progress::Total;

/// The maximum length of a symbolic link's target that is stored in the inode.
const IN_INODE: u64 = 59;

/// The inodes and the space that a tree needs. The space includes files, directories and extended attributes, but not the blocks that map
/// them.
#[derive(Clone, Debug)]
pub struct Needs {
    /// The number of inodes: one for each file.
    pub inodes: u64,
    /// The space in bytes. The space of each file is rounded up to whole blocks or clusters.
    pub bytes: u64,
    /// The content to copy.
    pub total: Total,
    block: u64,
}

/// The dimensions of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimensions {
    /// The size in bytes.
    pub size: u64,
    /// The unit in which files use space, in bytes: the block or the cluster.
    pub unit: u64,
    /// The number of inodes, including those that the file system itself uses.
    pub inodes: u64,
    /// The size of an inode in bytes.
    pub inode_size: u64,
}

impl Needs {
    /// Creates the needs of an empty tree, in a volume with blocks of `block` bytes.
    pub fn new(block: u64) -> Self {
        Self { inodes: 0, bytes: 0, total: Total::default(), block: block.max(1) }
    }

    /// Adds a name in a directory.
    pub fn name(&mut self, name: &[u8]) {
        // An entry has a header of eight bytes, and directory blocks are assumed to be two thirds full.
        self.add((name.len() as u64 + 12) * 3 / 2);
    }

    /// Adds a file without its content. `size` counts only for symbolic links. `attributes` contains the lengths of the names and values.
    pub fn file(
        &mut self,
        file_type: FileType,
        size: u64,
        attributes: impl Iterator<Item = usize>,
    ) {
        self.inodes += 1;
        let own =
            file_type == FileType::Directory || file_type == FileType::Symlink && size > IN_INODE;
        // An entry of an extended attribute has a header of 16 bytes.
        let attributes: u64 = attributes.map(|len| len as u64 + 20).sum();
        self.whole(u64::from(own) * self.block);
        self.whole(attributes);
    }

    /// Adds a range of a file that is not a hole.
    pub fn range(&mut self, offset: u64, len: u64) {
        let begin = offset / self.block * self.block;
        self.whole(offset.saturating_add(len).saturating_sub(begin));
    }

    fn whole(&mut self, len: u64) {
        self.add(len.checked_next_multiple_of(self.block).unwrap_or(u64::MAX));
    }

    fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }
}
