//! Computes the positions of inodes on an XFS volume, and forges inodes. Source: "XFS Algorithms & Data Structures", "Inode Numbers".

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Byte offsets of fields in a version 3 inode.
const CRC: usize = 100;
const NUMBER: usize = 152;

/// Sizes from the superblock of an image.
pub(crate) struct Layout {
    pub(crate) block: u64,
    pub(crate) inode: u64,
    group_blocks: u64,
    group_log: u8,
    inodes_log: u8,
}

impl Layout {
    pub(crate) fn of(image: &File) -> Self {
        let mut sector = [0; 512];
        image.read_exact_at(&mut sector, 0).expect("the superblock");
        let word = |at: usize| u32::from_be_bytes(sector[at..at + 4].try_into().unwrap()).into();
        Self {
            block: word(4),
            inode: u16::from_be_bytes([sector[104], sector[105]]).into(),
            group_blocks: word(84),
            group_log: sector[124],
            inodes_log: sector[123],
        }
    }

    /// The byte position in the image at which the inode with this number begins.
    pub(crate) fn place_of(&self, number: u64) -> u64 {
        let (block, index) = (number >> self.inodes_log, number & ((1 << self.inodes_log) - 1));
        let (group, within) = (block >> self.group_log, block & ((1 << self.group_log) - 1));
        (group * self.group_blocks + within) * self.block + index * self.inode
    }

    /// The byte position in the image at which the block with this number begins.
    pub(crate) fn place_of_block(&self, number: u64) -> u64 {
        let (group, within) = (number >> self.group_log, number & ((1 << self.group_log) - 1));
        (group * self.group_blocks + within) * self.block
    }

    /// The byte position in the image at which the allocation group of an inode begins.
    pub(crate) fn group_of(&self, number: u64) -> u64 {
        (number >> self.inodes_log >> self.group_log) * self.group_blocks * self.block
    }

    /// The length of an allocation group in bytes. The last group may be shorter.
    pub(crate) fn group_len(&self) -> u64 {
        self.group_blocks * self.block
    }

    /// The inode numbers that belong to one block of the image according to its position. The block need not contain inodes.
    pub(crate) fn numbers_in(&self, at: u64) -> impl Iterator<Item = u64> + use<> {
        let block = at / self.block;
        let (group, within) = (block / self.group_blocks, block % self.group_blocks);
        let first = (group << self.group_log | within) << self.inodes_log;
        first..first + (1 << self.inodes_log)
    }

    pub(crate) fn read(&self, image: &File, number: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.inode as usize];
        image.read_exact_at(&mut bytes, self.place_of(number)).expect("read an inode");
        bytes
    }

    /// Forges an inode: writes the content `like` to the position that belongs to inode `number`, with this number and a valid checksum.
    /// The inode B+trees do not contain the number, so the inode is not in use.
    pub(crate) fn forge(&self, image: &File, like: &[u8], number: u64) {
        let mut bytes = like.to_vec();
        bytes[NUMBER..NUMBER + 8].copy_from_slice(&number.to_be_bytes());
        bytes[CRC..CRC + 4].fill(0);
        let sum = crc32c::crc32c(&bytes);
        bytes[CRC..CRC + 4].copy_from_slice(&sum.to_le_bytes());
        image.write_all_at(&bytes, self.place_of(number)).expect("forge an inode");
    }
}
