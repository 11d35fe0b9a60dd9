//! Directories: names in the inode, in one block, or in many blocks with an index by hash.

mod data;
mod index;
mod list;
mod short;

pub(super) use list::{OnFault, XfsListing};

use super::Xfs;
use super::inode::XfsInode;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::block::Block;
use crate::fs::{DirCursor, DirEntry, FileType};
use crate::iomap::ExtentMap;
use crate::units::{FsBlock, InodeNo};

const LONGEST_NAME: usize = 255;

/// An entry and its address, in units of 8 bytes from the start of the directory. An entry in the inode gets the address that the entry
/// would have in a block.
struct Entry {
    name: Vec<u8>,
    inode: InodeNo,
    file_type: Option<FileType>,
    at: u64,
    /// The lowest possible address of the next entry.
    next: u64,
}

impl Entry {
    fn public(self) -> DirEntry {
        DirEntry::new(self.name, self.inode, self.file_type)
    }
}

/// A block of a directory: its file-system blocks and its content.
struct DirBlock {
    content: Block,
    blocks: Vec<FsBlock>,
}

impl Xfs {
    /// The length of an entry with a name of `name` bytes.
    pub(super) fn entry_len(&self, name: usize) -> usize {
        let file_type = usize::from(self.superblock.has_ftype);
        (8 + 1 + name + file_type + 2).next_multiple_of(super::disk::dir::ALIGN)
    }

    /// The file type for the code in an entry.
    fn file_type(&self, code: u8) -> Option<FileType> {
        FileType::from_entry(code).filter(|_| self.superblock.has_ftype)
    }

    /// The hash of a name in a directory.
    pub(super) fn hash_name(&self, name: &[u8]) -> u32 {
        if self.superblock.ascii_ci {
            let fold = |hash: u32, byte: &u8| fold_case(*byte) ^ hash.rotate_left(7);
            return name.iter().fold(0, fold);
        }
        hash(name)
    }

    /// Whether a name equals `wanted`. Case is ignored if the volume ignores case.
    fn is_name(&self, name: &[u8], wanted: &[u8]) -> bool {
        name == wanted || self.superblock.ascii_ci && Self::folded(name) == Self::folded(wanted)
    }

    /// The name in lower case.
    pub(super) fn folded(name: &[u8]) -> Vec<u8> {
        name.iter().map(|byte| fold_case(*byte) as u8).collect()
    }
}

/// Converts a letter of ISO 8859-1 to lower case. Linux folds bytes in this way for every encoding of the name.
fn fold_case(byte: u8) -> u32 {
    let is_upper = matches!(byte, b'A'..=b'Z' | 0xC0..=0xD6 | 0xD8..=0xDE);
    u32::from(if is_upper { byte + 32 } else { byte })
}

/// The hash of names in directories and of attribute names, four bytes per step. Source: "Directory Hash" in "XFS Algorithms & Data
/// Structures".
pub(super) fn hash(name: &[u8]) -> u32 {
    let mut hash = 0_u32;
    let (words, rest) = name.as_chunks::<4>();
    for [a, b, c, d] in words {
        let word = u32::from(*a) << 21 ^ u32::from(*b) << 14 ^ u32::from(*c) << 7 ^ u32::from(*d);
        hash = word ^ hash.rotate_left(28);
    }
    let tail = rest.iter().fold(0, |tail, byte| tail << 7 ^ u32::from(*byte));
    tail ^ hash.rotate_left(7 * rest.len() as u32)
}

impl XfsInode {
    fn check_directory(&self) -> Result<()> {
        if self.stat.file_type == FileType::Directory {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotADirectory, "is not a directory"))
    }

    /// The directory block that begins at the file-system block `first` of the file; `None` for a hole.
    fn dir_block(&self, map: Option<&ExtentMap>, first: u64) -> Result<Option<DirBlock>> {
        let count = 1 << self.fs.superblock.geometry.dir_block_log;
        let Some(blocks) = self.fs_blocks(&self.data, map, first, count)? else { return Ok(None) };
        let content = self.fs.metadata.blocks(&blocks)?;
        Ok(Some(DirBlock { content, blocks }))
    }

    /// Looks up a name in this directory and returns its inode.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`; `Corrupt` if the directory or the inode is damaged.
    pub fn lookup(&self, name: &[u8]) -> Result<XfsInode> {
        self.check_directory()?;
        if name.len() > LONGEST_NAME {
            return Err(Error::new(ErrorKind::NameTooLong, "the name has more than 255 bytes"));
        }
        let number = if name == b"." { Some(self.stat.inode) } else { self.find(name)? };
        let number =
            number.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such file or directory"))?;
        self.fs.inode(number).map_err(|error| {
            if error.kind() != ErrorKind::NotFound {
                return error;
            }
            let place = Place::new("directory entry").inode(self.stat.inode).field("inumber");
            place.corrupt(format!("inode {number} is not in use"))
        })
    }

    fn find(&self, name: &[u8]) -> Result<Option<InodeNo>> {
        if self.data.format == super::fork::Format::Local {
            let found = self.short_entries()?.into_iter();
            return Ok(found
                .filter(|entry| self.fs.is_name(&entry.name, name))
                .map(|entry| entry.inode)
                .next());
        }
        match self.find_by_hash(name) {
            Err(error) if self.fs.overwriting.is_none() => self.find_in_listing(name, error),
            found => found,
        }
    }

    /// Looks for a name block by block, because the hash index is damaged. `error` is the fault of the index.
    fn find_in_listing(&self, name: &[u8], error: Error) -> Result<Option<InodeNo>> {
        let entries = self.list(DirCursor::START, OnFault::Report)?.flatten();
        match entries.into_iter().find(|entry| self.fs.is_name(&entry.name, name)) {
            Some(entry) => Ok(Some(entry.inode)),
            None => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hashes of names equal the hashes that `xfs_db -c 'hash NAME'` prints.
    #[test]
    fn hashes_are_those_of_xfs_db() {
        let of = |name: &str| hash(name.as_bytes());
        for (name, expected) in [
            (".", 0x2e),
            ("..", 0x172e),
            ("abc", 0x0018_7163),
            ("abcd", 0x0c38_b1e4),
            ("abcdefghi", 0x3d1c_7b4f),
            ("name-00000", 0x67d7_8d6c),
            ("lost+found", 0x021a_a60c),
        ] {
            assert_eq!(of(name), expected, "{name}");
        }
    }
}
