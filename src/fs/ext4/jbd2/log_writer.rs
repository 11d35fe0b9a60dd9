//! Writes the log: a transaction's descriptors, copies and revocations, its commit block, and the journal's superblock.
//!
//! Committed blocks stay in memory until a checkpoint writes them to their home locations. The size of the log limits the number of these
//! blocks.

use std::collections::BTreeMap;
use std::io::IoSlice;

use zerocopy::{FromBytes, IntoBytes};

use super::log::Log;
use super::superblock::{JournalFeatures, JournalSuperblock, seal_journal_superblock};
use crate::error::{Errno, Place, Result};
use crate::fs::Timestamp;
use crate::fs::block::Block;
use crate::fs::ext4::blocks::Blocks;
use crate::fs::ext4::checksum::{crc32_be, crc32c_raw};
use crate::fs::ext4::disk::journal::{
    CHECKSUM_CRC32, COMMIT, COMMIT_CHECKSUM, DESCRIPTOR, MAGIC, REVOKE, RawCommit, RawHeader,
    RawJournalSuperblock, RawRevoke, RawTag, RawTag3, TAG_ESCAPED, TAG_LAST, TAG_SAME_UUID,
    TAG_UUID_LEN, TAIL_LEN, tag_len,
};
use crate::sys::Buffer;
use crate::units::{BlockSize, FsBlock};

const PLACE: Place = Place::new("journal");

/// The content of several log blocks, in the order of the log.
type Content = Vec<Block>;

/// The log, and the newest committed versions of the blocks that no checkpoint has written to their home locations yet.
pub(crate) struct LogWriter {
    /// The map of the journal: the device block of each of its blocks.
    layout: Box<[FsBlock]>,
    superblock: JournalSuperblock,
    /// The content of the journal's first block on the device. This block is the journal's superblock.
    raw: Block,
    size: BlockSize,
    uuid: [u8; 16],
    /// `head` is the position of the next transaction in the log. `tail` is the position of the oldest transaction that a recovery needs.
    /// In an empty log, `head` and `tail` are equal.
    head: u32,
    tail: u32,
    used: u32,
    /// The sequence numbers of the next transaction and of the oldest transaction that a recovery needs.
    next: u32,
    oldest: u32,
    committed: BTreeMap<FsBlock, Block>,
}

impl LogWriter {
    /// Creates the writer of a journal that needs no recovery. `next` is the sequence number of the next transaction.
    pub(super) fn new(log: &Log, raw: Block, size: BlockSize, next: u32) -> Result<Self> {
        let layout: Result<Box<[_]>> = (0..log.superblock.blocks).map(|at| log.block(at)).collect();
        let first = log.superblock.log.start;
        let Ok((fields, _)) = RawJournalSuperblock::ref_from_prefix(&raw) else {
            return Err(PLACE.corrupt("the journal superblock is truncated"));
        };
        Ok(Self {
            layout: layout?,
            uuid: fields.s_uuid,
            superblock: log.superblock.clone(),
            raw,
            size,
            head: first,
            tail: first,
            used: 0,
            next,
            oldest: next,
            committed: BTreeMap::new(),
        })
    }

    /// The maximum number of metadata blocks that one transaction may change. The maximum is a quarter of the log, as in Linux. The rest of
    /// the log has enough space for the descriptor blocks.
    pub(crate) fn limit(&self) -> u32 {
        (self.len() / 4).max(1)
    }

    /// Whether a transaction that changes `blocks` blocks fits into an empty log.
    pub(crate) fn has_room_for(&self, blocks: usize) -> bool {
        // A descriptor block has space for the tags of at least 30 changed blocks. The log also needs one commit block.
        (blocks + blocks.div_ceil(30) + 1) < self.len() as usize
    }

    fn len(&self) -> u32 {
        self.superblock.log.end - self.superblock.log.start
    }

    /// The used part of the log in percent.
    pub(crate) fn fill(&self) -> u32 {
        (u64::from(self.used) * 100 / u64::from(self.len())) as u32
    }

    /// Commits a transaction. On return, the transaction is durable.
    pub(crate) fn commit(
        &mut self,
        blocks: &Blocks,
        versions: Vec<(FsBlock, Block)>,
        revoked: &[FsBlock],
        now: Timestamp,
    ) -> Result<()> {
        let mut content = self.revocations(revoked)?;
        self.copies(&versions, &mut content)?;
        let needed = content.len() as u32 + 1;
        if needed + self.used >= self.len() {
            self.checkpoint(blocks)?;
        }
        if needed >= self.len() {
            let (len, what) = (self.len(), "the transaction is larger than the log");
            return Err(PLACE.corrupt(format!("{what}: {needed} blocks, but the log has {len}")));
        }
        let commit = self.commit_block(&content, now)?;
        self.write(blocks, &content)?;
        blocks.flush()?;
        let at = self.block(content.len() as u32);
        blocks.write_device(at, &[IoSlice::new(&commit)], true)?;
        self.head = self.after(self.head, needed);
        self.used += needed;
        self.next = self.next.wrapping_add(1);
        for block in revoked {
            self.committed.remove(block);
        }
        self.committed.extend(versions);
        Ok(())
    }

    /// Writes committed blocks to their home locations, and empties the log.
    pub(crate) fn checkpoint(&mut self, blocks: &Blocks) -> Result<()> {
        if self.used == 0 {
            return Ok(());
        }
        let versions: Vec<_> =
            self.committed.iter().map(|(block, version)| (*block, version.clone())).collect();
        blocks.write_home(&versions)?;
        blocks.flush()?;
        (self.tail, self.oldest, self.used) = (self.head, self.next, 0);
        self.write_superblock(blocks, self.tail)?;
        self.committed.clear();
        for (block, version) in versions {
            blocks.written(block, &version);
        }
        Ok(())
    }

    /// Empties the log, and then records in the journal's superblock that no recovery is needed.
    pub(crate) fn close(&mut self, blocks: &Blocks) -> Result<()> {
        self.checkpoint(blocks)?;
        self.write_superblock(blocks, 0)
    }

    /// Whether the journal's superblock records an error. After such an error, the journal accepts no commits.
    pub(crate) fn has_recorded_abort(&self) -> bool {
        let raw = RawJournalSuperblock::ref_from_prefix(&self.raw);
        raw.is_ok_and(|(fields, _)| fields.s_errno.get() != 0)
    }

    /// Removes the error from the superblock in memory. The next write of the journal's superblock stores this change.
    pub(crate) fn forget_abort(&mut self) -> Result<()> {
        self.record(0)
    }

    /// Records in the journal's superblock that a recovery must begin at the tail.
    pub(crate) fn open(&mut self, blocks: &Blocks) -> Result<()> {
        self.write_superblock(blocks, self.tail)
    }

    /// Records the error that aborted the journal in the journal's superblock. After this error, no commits are possible.
    pub(crate) fn record_abort(&mut self, blocks: &Blocks, errno: Errno) -> Result<()> {
        self.record(-errno.0)?;
        self.write_superblock(blocks, self.tail)
    }

    fn record(&mut self, errno: i32) -> Result<()> {
        let mut raw = self.raw.clone();
        self.edit(&mut raw, |fields| fields.s_errno.set(errno as u32))?;
        self.raw = raw;
        Ok(())
    }

    fn write_superblock(&mut self, blocks: &Blocks, start: u32) -> Result<()> {
        let mut raw = self.raw.clone();
        let sequence = self.oldest;
        self.edit(&mut raw, |fields| {
            fields.s_start.set(start);
            fields.s_sequence.set(sequence);
        })?;
        blocks.write_device(self.layout[0], &[IoSlice::new(&raw)], true)?;
        self.raw = raw;
        Ok(())
    }

    fn edit(&self, raw: &mut Block, edit: impl FnOnce(&mut RawJournalSuperblock)) -> Result<()> {
        let bytes = raw.for_change()?;
        let Ok((fields, _)) = RawJournalSuperblock::mut_from_prefix(bytes) else {
            return Err(PLACE.corrupt("the journal superblock is truncated"));
        };
        edit(fields);
        seal_journal_superblock(fields);
        Ok(())
    }

    /// The device block that stores the log block `distance` blocks after the head. The head is the position of the next transaction in the
    /// log.
    fn block(&self, distance: u32) -> FsBlock {
        self.layout[self.after(self.head, distance) as usize]
    }

    fn after(&self, index: u32, distance: u32) -> u32 {
        let log = &self.superblock.log;
        log.start + (index - log.start + distance) % self.len()
    }

    /// Writes blocks to the log, beginning at the head (the position of the next transaction). Adjoining blocks are written together.
    fn write(&self, blocks: &Blocks, content: &Content) -> Result<()> {
        let mut at = 0;
        while at < content.len() {
            let first = self.block(at as u32);
            let adjoins =
                |next: &usize| self.block(*next as u32).0 == first.0 + (*next - at) as u64;
            let end = at + (at..content.len()).take_while(adjoins).count();
            let bufs: Vec<_> = content[at..end].iter().map(|block| IoSlice::new(block)).collect();
            blocks.write_device(first, &bufs, false)?;
            at = end;
        }
        Ok(())
    }

    fn header(&self, kind: u32) -> RawHeader {
        RawHeader { h_magic: MAGIC.into(), h_blocktype: kind.into(), h_sequence: self.next.into() }
    }

    fn has(&self, feature: JournalFeatures) -> bool {
        self.superblock.has(feature)
    }

    /// Builds a descriptor or revoke block. `fill` receives the bytes between the header and the checksum.
    fn own(&self, kind: u32, fill: impl FnOnce(&mut [u8])) -> Result<Block> {
        let mut buffer = Buffer::aligned(self.size.bytes())?;
        let header = size_of::<RawHeader>();
        buffer[..header].copy_from_slice(self.header(kind).as_bytes());
        let end = buffer.len() - self.tail_len();
        fill(&mut buffer[header..end]);
        if let Some(seed) = self.superblock.seed {
            let sum = crc32c_raw(crc32c_raw(seed, &buffer[..end]), &[0; TAIL_LEN]);
            buffer[end..].copy_from_slice(&sum.to_be_bytes());
        }
        Ok(Block::new(buffer))
    }

    fn tail_len(&self) -> usize {
        if self.superblock.seed.is_some() { TAIL_LEN } else { 0 }
    }

    /// The revoke blocks of a transaction.
    fn revocations(&self, revoked: &[FsBlock]) -> Result<Content> {
        let wide = self.has(JournalFeatures::SIXTY_FOUR_BIT);
        let width = if wide { 8 } else { 4 };
        let first = size_of::<RawRevoke>();
        let room = (self.size.bytes() - self.tail_len() - first) / width;
        let revoke_block = |revoked: &[FsBlock]| {
            self.own(REVOKE, |body| {
                let used = (first + revoked.len() * width) as u32;
                let (count, numbers) = body.split_at_mut(first - size_of::<RawHeader>());
                count.copy_from_slice(&used.to_be_bytes());
                for (to, block) in numbers.chunks_exact_mut(width).zip(revoked) {
                    to.copy_from_slice(&block.0.to_be_bytes()[8 - width..]);
                }
            })
        };
        revoked.chunks(room).map(revoke_block).collect()
    }

    /// The descriptor blocks of a transaction, each followed by its copies.
    fn copies(&self, versions: &[(FsBlock, Block)], content: &mut Content) -> Result<()> {
        let version3 = self.has(JournalFeatures::CSUM_V3);
        let wide = self.has(JournalFeatures::SIXTY_FOUR_BIT);
        let len = if version3 {
            size_of::<RawTag3>()
        } else {
            tag_len(wide, self.has(JournalFeatures::CSUM_V2))
        };
        let body = self.size.bytes() - size_of::<RawHeader>() - self.tail_len();
        for versions in versions.chunks((body - TAG_UUID_LEN) / len) {
            let mut copies = Vec::with_capacity(versions.len());
            let mut tags = Vec::with_capacity(body);
            for (at, (target, version)) in versions.iter().enumerate() {
                let mut flags = 0;
                let mut copy = version.clone();
                if copy[..4] == MAGIC.to_be_bytes() {
                    flags |= TAG_ESCAPED;
                    copy.for_change()?[..4].fill(0);
                }
                flags |= if at == 0 { 0 } else { TAG_SAME_UUID };
                flags |= if at + 1 == versions.len() { TAG_LAST } else { 0 };
                let start = tags.len();
                if version3 {
                    tags.extend_from_slice(self.tag3(*target, flags, &copy).as_bytes());
                } else {
                    tags.extend_from_slice(self.tag(*target, flags, &copy).as_bytes());
                    if wide {
                        tags.extend_from_slice(&((target.0 >> 32) as u32).to_be_bytes());
                    }
                }
                tags.resize(start + len, 0);
                if at == 0 {
                    tags.extend_from_slice(&self.uuid);
                }
                copies.push(copy);
            }
            content.push(self.own(DESCRIPTOR, |body| body[..tags.len()].copy_from_slice(&tags))?);
            content.append(&mut copies);
        }
        Ok(())
    }

    fn copy_checksum(&self, copy: &[u8]) -> u32 {
        let Some(seed) = self.superblock.seed else { return 0 };
        crc32c_raw(crc32c_raw(seed, &self.next.to_be_bytes()), copy)
    }

    fn tag3(&self, target: FsBlock, flags: u32, copy: &[u8]) -> RawTag3 {
        RawTag3 {
            t_blocknr: (target.0 as u32).into(),
            t_flags: flags.into(),
            t_blocknr_high: ((target.0 >> 32) as u32).into(),
            t_checksum: self.copy_checksum(copy).into(),
        }
    }

    fn tag(&self, target: FsBlock, flags: u32, copy: &[u8]) -> RawTag {
        RawTag {
            t_blocknr: (target.0 as u32).into(),
            t_checksum: (self.copy_checksum(copy) as u16).into(),
            t_flags: (flags as u16).into(),
        }
    }

    /// The commit block of a transaction. `content` are the other log blocks of the transaction.
    fn commit_block(&self, content: &Content, now: Timestamp) -> Result<Block> {
        let mut buffer = Buffer::aligned(self.size.bytes())?;
        let Ok((raw, _)) = RawCommit::mut_from_prefix(&mut buffer) else {
            return Err(PLACE.corrupt("the blocks are too small for a commit block"));
        };
        raw.h_header = self.header(COMMIT);
        raw.h_commit_sec.set(now.seconds as u64);
        raw.h_commit_nsec.set(now.nanoseconds);
        if self.has(JournalFeatures::CHECKSUM) {
            let copies = content.iter().filter(|block| !self.is_revocation(block));
            let sum = copies.fold(!0, |sum, block| crc32_be(sum, block));
            (raw.h_chksum_type, raw.h_chksum_size) = (CHECKSUM_CRC32, 4);
            raw.h_chksum[0].set(sum);
        }
        if let Some(seed) = self.superblock.seed {
            let sum = crc32c_raw(seed, &buffer);
            buffer[COMMIT_CHECKSUM].copy_from_slice(&sum.to_be_bytes());
        }
        Ok(Block::new(buffer))
    }

    /// Whether a block of the log is a revoke block. A copy of metadata never looks like a revoke block: a magic number at the start of a
    /// copy is escaped.
    fn is_revocation(&self, block: &[u8]) -> bool {
        block.starts_with(self.header(REVOKE).as_bytes())
    }
}
