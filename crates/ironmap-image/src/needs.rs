//! The space that a tree takes in a volume.

use ironmap::fs::FileType;

use crate::progress::Total;

/// A symbolic link is in its inode up to this length.
const IN_INODE: u64 = 59;

/// How many inodes and blocks; the blocks are those of files, directories and attributes, without what maps them.
#[derive(Clone, Debug)]
pub struct Needs {
    /// One for each file.
    pub inodes: u64,
    /// In whole blocks or clusters.
    pub bytes: u64,
    /// The content to copy.
    pub total: Total,
    block: u64,
}

impl Needs {
    /// Of nothing, in blocks of so many bytes.
    pub fn new(block: u64) -> Self {
        Self { inodes: 0, bytes: 0, total: Total::default(), block: block.max(1) }
    }

    /// A name in a directory.
    pub fn name(&mut self, name: &[u8]) {
        // An entry has a head of eight bytes, and blocks of entries are two thirds full.
        self.add((name.len() as u64 + 12) * 3 / 2);
    }

    /// A file without its content: `size` is for symbolic links, `attributes` are the lengths of names and values.
    pub fn file(
        &mut self,
        file_type: FileType,
        size: u64,
        attributes: impl Iterator<Item = usize>,
    ) {
        self.inodes += 1;
        let own =
            file_type == FileType::Directory || file_type == FileType::Symlink && size > IN_INODE;
        // An entry of attributes has a head of 16 bytes.
        let attributes: u64 = attributes.map(|len| len as u64 + 20).sum();
        self.whole(u64::from(own) * self.block);
        self.whole(attributes);
    }

    /// A range of a file that is not a hole.
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
