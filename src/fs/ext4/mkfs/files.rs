//! The files of a new volume: the root directory, lost+found, and internal files.

use zerocopy::{FromZeros, IntoBytes};

use super::inode::{Files, NewInode};
use super::layout::Layout;
use super::map::{DIRECT, put};
use super::options::MkfsOptions;
use super::superblock::MMP_INTERVAL;
use crate::error::Result;
use crate::fs::ext4::dir_block::seal_dir_block;
use crate::fs::ext4::disk::dir::{RawDirEntry, RawDirTail};
use crate::fs::ext4::disk::journal::{MAGIC as JOURNAL_MAGIC, RawJournalSuperblock, SUPERBLOCK_V2};
use crate::fs::ext4::disk::mmp::{MAGIC as MMP_MAGIC, RawMmp, SEQ_CLEAN};
use crate::fs::ext4::disk::reserved;
use crate::fs::ext4::jbd2::seal_journal_superblock;
use crate::fs::ext4::mmp::seal_mmp;
use crate::fs::ext4::orphan::seal_orphan_block;
use crate::fs::ext4::{Incompat, ROOT};
use crate::units::{FsBlock, InodeNo};

const LOST_AND_FOUND: &[u8] = b"lost+found";
/// The initial size of the directory lost+found. With this size, e2fsck can add names to lost+found even if the volume has no free blocks.
const LOST_AND_FOUND_BYTES: usize = 16 << 10;
const REGULAR: u16 = 0o100_000;
const DIRECTORY: u16 = 0o040_000;
/// The type code of a directory in directory entries.
const TYPE_DIRECTORY: u8 = 2;

impl Files<'_> {
    /// Creates the root directory and lost+found.
    pub(super) fn directories(&mut self, options: &MkfsOptions) -> Result<()> {
        let root = ROOT.0 as u32;
        let lost = self.next_inode();
        let mut inode = NewInode::new(root, DIRECTORY | 0o755);
        inode.links = 3;
        inode.owner = options.root_owner;
        let entries: [(u32, &[u8]); 3] = [(root, b"."), (root, b".."), (lost, LOST_AND_FOUND)];
        self.directory(inode, 1, &entries)?;

        let size = self.sb.block_size.bytes();
        let mut inode = NewInode::new(lost, DIRECTORY | 0o700);
        inode.links = 2;
        let blocks = (LOST_AND_FOUND_BYTES / size).clamp(2, DIRECT) as u64;
        self.directory(inode, blocks, &[(lost, b"."), (root, b"..")])
    }

    /// Creates a directory of `blocks` blocks. The first block contains `entries`.
    fn directory(
        &mut self,
        mut inode: NewInode,
        blocks: u64,
        entries: &[(u32, &[u8])],
    ) -> Result<()> {
        let runs = self.fill(&mut inode, blocks)?;
        let seed = self.sb.inode_seed(InodeNo(u64::from(inode.number)), 0);
        let mut entries = entries;
        for at in runs.into_iter().flatten() {
            let mut block = self.block()?;
            self.write_entries(&mut block, entries);
            seal_dir_block(seed, &mut block);
            self.blocks.push((at, block));
            entries = &[];
        }
        self.inodes.push(inode);
        Ok(())
    }

    /// Fills a block with directory entries. The last entry extends to the end of the block, or to the tail with the checksum.
    fn write_entries(&self, block: &mut [u8], entries: &[(u32, &[u8])]) {
        let tail = if self.sb.seed.is_some() { size_of::<RawDirTail>() } else { 0 };
        let (end, header) = (block.len() - tail, size_of::<RawDirEntry>());
        let typed = self.sb.incompat.contains(Incompat::FILETYPE);
        let unused: [(u32, &[u8]); 1] = [(0, b"")];
        let entries = if entries.is_empty() { &unused } else { entries };
        let mut at = 0;
        for (index, (number, name)) in entries.iter().enumerate() {
            let last = index + 1 == entries.len();
            let len = if last { end - at } else { (header + name.len()).next_multiple_of(4) };
            let entry = RawDirEntry {
                inode: (*number).into(),
                // An entry may fill a block of 64 KiB. Its length is stored as 65535, because 65536 does not fit into 16 bits.
                rec_len: u16::try_from(len).unwrap_or(u16::MAX).into(),
                name_len: name.len() as u8,
                file_type: if typed && *number != 0 { TYPE_DIRECTORY } else { 0 },
            };
            block[at..at + header].copy_from_slice(entry.as_bytes());
            block[at + header..at + header + name.len()].copy_from_slice(name);
            at += len;
        }
    }

    /// Creates the journal with a journal superblock and an empty log. Returns the block map in the journal's inode. The volume's
    /// superblock stores a copy of this map, so that e2fsck can restore the inode.
    pub(super) fn journal(&mut self, uuid: [u8; 16]) -> Result<[u32; 17]> {
        let mut inode = NewInode::new(reserved::JOURNAL, REGULAR | 0o600);
        let count = self.geometry.journal_blocks;
        let runs = self.fill(&mut inode, u64::from(count))?;
        let mut raw = RawJournalSuperblock::new_zeroed();
        raw.s_header.h_magic.set(JOURNAL_MAGIC);
        raw.s_header.h_blocktype.set(SUPERBLOCK_V2);
        raw.s_blocksize.set(self.sb.block_size.bytes() as u32);
        raw.s_maxlen.set(count);
        raw.s_first.set(1);
        raw.s_sequence.set(1);
        raw.s_uuid = uuid;
        raw.s_nr_users.set(1);
        raw.s_num_fc_blocks.set(self.geometry.fast_commit_blocks);
        seal_journal_superblock(&mut raw);
        let mut block = self.block()?;
        block[..size_of::<RawJournalSuperblock>()].copy_from_slice(raw.as_bytes());

        let mut log = runs;
        if let Some(first) = log.first_mut() {
            self.blocks.push((first.start, block));
            first.start += 1;
        }
        self.zeros.extend(log);
        let mut backup = [0; 17];
        let (words, _) = inode.i_block.as_chunks::<4>();
        for (word, bytes) in backup.iter_mut().zip(words) {
            *word = u32::from_le_bytes(*bytes);
        }
        backup[15] = (inode.size >> 32) as u32;
        backup[16] = inode.size as u32;
        self.inodes.push(inode);
        Ok(backup)
    }

    /// Creates the resize inode, which owns the reserved descriptor blocks.
    pub(super) fn resize_inode(&mut self, layout: &Layout<'_>) -> Result<()> {
        let mut inode = NewInode::new(reserved::RESIZE, REGULAR | 0o600);
        let slots = self.sb.block_size.bytes() as u64 / 4;
        let double = self.space.allocate(self.goal, 1)?[0].start;
        let (blocks, count) = layout.resize_map(double)?;
        self.blocks.extend(blocks);
        put(&mut inode.i_block, DIRECT + 1, double as u32);
        // The size includes all blocks that a double-indirect block can map.
        inode.size = (DIRECT as u64 + slots + slots * slots) << self.sb.block_size.shift();
        inode.blocks = count * u64::from(self.sb.cluster_blocks);
        self.inodes.push(inode);
        Ok(())
    }

    /// Creates the orphan file without orphans. Returns the inode number of the file.
    pub(super) fn orphan_file(&mut self) -> Result<u32> {
        let number = self.next_inode();
        let mut inode = NewInode::new(number, REGULAR | 0o600);
        let runs = self.fill(&mut inode, u64::from(self.geometry.orphan_blocks))?;
        let seed = self.sb.inode_seed(InodeNo(u64::from(number)), 0);
        for at in runs.into_iter().flatten() {
            let mut block = self.block()?;
            seal_orphan_block(seed, FsBlock(at), &mut block);
            self.blocks.push((at, block));
        }
        self.inodes.push(inode);
        Ok(number)
    }

    /// Creates the block of multiple mount protection. The block says that no node holds the volume. Returns the block number.
    pub(super) fn mmp(&mut self, time: i64) -> Result<u64> {
        let at = self.space.allocate(self.goal, 1)?[0].start;
        let mut raw = RawMmp::new_zeroed();
        raw.mmp_magic.set(MMP_MAGIC);
        raw.mmp_seq.set(SEQ_CLEAN);
        raw.mmp_time.set(time as u64);
        raw.mmp_check_interval.set(MMP_INTERVAL);
        seal_mmp(self.sb.seed, &mut raw);
        let mut block = self.block()?;
        block[..size_of::<RawMmp>()].copy_from_slice(raw.as_bytes());
        self.blocks.push((at, block));
        Ok(at)
    }
}
