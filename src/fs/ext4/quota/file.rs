//! A quota file: a radix tree that is indexed by the four bytes of a user, group or project id. The nodes of the lowest level point to
//! blocks of quota entries.
//!
//! The blocks of a quota file are metadata. They are read through the metadata cache and changed in transactions. The file never shrinks,
//! and no entry is removed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::Headroom;
use crate::error::{Place, Result};
use crate::fs::block::Block;
use crate::fs::ext4::Ext4;
use crate::fs::ext4::disk::quota::{
    BLOCK, LEVELS, LIMIT_UNIT, MAGICS, ROOT, RawQuotaEntry, RawQuotaHeader, RawQuotaLeaf, VERSION,
};
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::{InodeToChange, MayChange, Operation};
use crate::units::{FileBlock, FsBlock, InodeNo};

const ENTRY: usize = size_of::<RawQuotaEntry>();
/// The maximum number of entries in a block.
const PER_BLOCK: u16 = ((BLOCK - size_of::<RawQuotaLeaf>()) / ENTRY) as u16;
/// The maximum number of blocks that a new entry changes: 1 header, 4 nodes of the tree, 2 blocks of entries, 2 blocks (bitmap and group
/// descriptor) for each of at most 5 new blocks, 1 inode, 1 superblock. The blocks of the file's block map are not included.
const INSERT_CREDITS: u32 = 20;
/// The maximum number of ids whose entries are cached.
const MOST_KNOWN: usize = 1 << 16;

/// The position of an entry: a block of the volume, and the byte offset in that block.
type At = (FsBlock, usize);

pub(super) struct QuotaFile {
    number: InodeNo,
    place: Place,
    /// The grace times in seconds: how long the usage may exceed a soft limit for space, and for inodes.
    grace: [u64; 2],
    /// The map of the file: the volume's block for each block of the file.
    blocks: RwLock<Vec<FsBlock>>,
    known: RwLock<HashMap<u32, At>>,
    /// The lock for the insertion of entries. A thread acquires this lock before it begins the transaction that inserts an entry.
    growing: Mutex<()>,
}

/// Only [`insert`](QuotaFile::insert) changes the inode of the file, and `insert` holds the lock `growing`. No other thread therefore
/// changes the inode at the same time.
impl MayChange for QuotaFile {
    fn number(&self) -> InodeNo {
        self.number
    }
}

/// The used entries in a block, and their offsets. An entry that consists of zeros is unused. The used entry of id 0 never consists of
/// zeros.
pub(in crate::fs::ext4) fn entries(block: &[u8]) -> impl Iterator<Item = (usize, &RawQuotaEntry)> {
    positions().filter_map(|at| {
        let entry = RawQuotaEntry::ref_from_bytes(block.get(at..at + ENTRY)?).ok()?;
        (!is_free(entry)).then_some((at, entry))
    })
}

/// The offsets of the entries in a block.
fn positions() -> impl Iterator<Item = usize> {
    (0..usize::from(PER_BLOCK)).map(|index| size_of::<RawQuotaLeaf>() + index * ENTRY)
}

fn is_free(entry: &RawQuotaEntry) -> bool {
    entry.as_bytes().iter().all(|byte| *byte == 0)
}

impl QuotaFile {
    /// Loads the quota file of users (0), groups (1) or projects (2).
    pub(super) fn load(fs: &Arc<Ext4>, kind: usize, number: InodeNo) -> Result<Self> {
        let place = Place::new("quota file").inode(number);
        let inode = fs.inode_or_orphan(number)?;
        let count = fs.superblock.block_size.blocks_for(inode.size());
        if count > fs.superblock.blocks_count {
            return Err(place.field("i_size").corrupt(format!("{count} blocks")));
        }
        inode.keep_map()?;
        let map = (0..count).map(|block| {
            let at = inode.fs_block(FileBlock(block))?;
            at.ok_or_else(|| place.corrupt(format!("block {block} of the quota file is a hole")))
        });
        let mut file = Self {
            number,
            place,
            grace: [0; 2],
            blocks: RwLock::new(map.collect::<Result<_>>()?),
            known: RwLock::default(),
            growing: Mutex::default(),
        };
        let header = file.header(fs)?;
        let (magic, version) = (header.dqh_magic.get(), header.dqh_version.get());
        if magic != MAGICS[kind] || version != VERSION {
            let what = format!("{magic:#x}, version {version}");
            return Err(place.field("dqh_magic").corrupt(what));
        }
        file.grace = [header.dqi_bgrace, header.dqi_igrace].map(|seconds| seconds.get().into());
        Ok(file)
    }

    /// Adds to the recorded usage of an id. The caller has created the entry of a new owner before. If the id nevertheless has no entry,
    /// its recorded usage was already wrong, and nothing is recorded.
    pub(super) fn add(
        &self,
        handle: &mut Handle<'_>,
        id: u32,
        bytes: i64,
        inodes: i64,
    ) -> Result<()> {
        if (bytes, inodes) == (0, 0) {
            return Ok(());
        }
        let Some((block, at)) = self.find(handle.fs, id)? else { return Ok(()) };
        let now = now(handle);
        handle.update(block, self.place.block(block), |content| {
            if let Ok((entry, _)) = RawQuotaEntry::mut_from_prefix(&mut content[at..]) {
                let bytes = entry.dqb_curspace.get().saturating_add_signed(bytes);
                let inodes = entry.dqb_curinodes.get().saturating_add_signed(inodes);
                entry.dqb_curspace.set(bytes);
                entry.dqb_curinodes.set(inodes);
                self.watch(entry, now);
            }
            Ok(())
        })
    }

    /// For each soft limit: if the usage exceeds the limit, starts the grace time. If the usage does not exceed the limit, clears the grace
    /// time.
    fn watch(&self, entry: &mut RawQuotaEntry, now: u64) {
        let soft = entry.dqb_bsoftlimit.get().saturating_mul(LIMIT_UNIT);
        let space = (soft, entry.dqb_curspace.get());
        let inodes = (entry.dqb_isoftlimit.get(), entry.dqb_curinodes.get());
        let times = [(space, &mut entry.dqb_btime), (inodes, &mut entry.dqb_itime)];
        for (((soft, used), time), grace) in times.into_iter().zip(self.grace) {
            if soft == 0 || used <= soft {
                time.set(0);
            } else if time.get() == 0 {
                time.set(now + grace);
            }
        }
        if is_free(entry) {
            // Only the entry of id 0 can consist of zeros although it is in use: its id is 0, and its usage may be 0. An entry of zeros
            // counts as unused. A grace time of 1 therefore marks the entry as used.
            entry.dqb_itime.set(1);
        }
    }

    /// The space and the number of inodes that an id may still use.
    pub(super) fn left(&self, fs: &Ext4, id: u32) -> Result<Headroom> {
        let none = Headroom { bytes: u64::MAX, inodes: u64::MAX };
        let Some((block, at)) = self.find(fs, id)? else { return Ok(none) };
        let content = fs.blocks.read(block, self.place)?;
        let Ok((entry, _)) = RawQuotaEntry::ref_from_prefix(&content[at..]) else {
            return Ok(none);
        };
        let now = fs.writing()?.clock.now().seconds as u64;
        let left = |hard: u64, soft: u64, time: u64, used: u64| {
            let over = soft != 0 && time != 0 && now >= time;
            let limits = [(hard, hard != 0), (soft, over)];
            let least = limits.iter().filter(|(_, holds)| *holds).map(|(limit, _)| *limit).min();
            least.map_or(u64::MAX, |limit| limit.saturating_sub(used))
        };
        let bytes = |limit: u64| limit.saturating_mul(LIMIT_UNIT);
        let (hard, soft) = (entry.dqb_bhardlimit.get(), entry.dqb_bsoftlimit.get());
        let (time, used) = (entry.dqb_btime.get(), entry.dqb_curspace.get());
        let space = left(bytes(hard), bytes(soft), time, used);
        let (hard, soft) = (entry.dqb_ihardlimit.get(), entry.dqb_isoftlimit.get());
        let (time, used) = (entry.dqb_itime.get(), entry.dqb_curinodes.get());
        Ok(Headroom { bytes: space, inodes: left(hard, soft, time, used) })
    }

    /// The position of an id's entry.
    fn find(&self, fs: &Ext4, id: u32) -> Result<Option<At>> {
        if let Some(at) = self.known.read().get(&id) {
            return Ok(Some(*at));
        }
        let mut block = ROOT;
        for byte in id.to_be_bytes() {
            block = self.pointer(fs, block, byte)?;
            if block == 0 {
                return Ok(None);
            }
        }
        let (content, start) = self.read(fs, block)?;
        let mut entries = entries(&content[start..start + BLOCK]);
        let Some((within, _)) = entries.find(|(_, entry)| entry.dqb_id.get() == id) else {
            return Ok(None);
        };
        let at = (self.position(fs, block)?.0, start + within);
        let mut known = self.known.write();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(id, at);
        Ok(Some(at))
    }

    /// Creates the entry of an id in a separate transaction, if the id has no entry.
    pub(super) fn insert(&self, op: &Operation<'_>, id: u32) -> Result<()> {
        if self.find(op, id)?.is_some() {
            return Ok(());
        }
        let _growing = self.growing.lock();
        if self.find(op, id)?.is_some() {
            return Ok(());
        }
        let credits = INSERT_CREDITS + InodeToChange::read(op, self)?.credits_for_map();
        op.transact_for_space(credits, |handle| self.insert_entry(op, handle, id))
    }

    fn insert_entry(&self, fs: &Arc<Ext4>, handle: &mut Handle<'_>, id: u32) -> Result<()> {
        let mut header = self.header(fs)?;
        let bytes = id.to_be_bytes();
        // The existing nodes on the path to the entry, from the root downwards.
        let mut way = vec![ROOT];
        while way.len() < LEVELS as usize {
            match self.pointer(fs, way[way.len() - 1], bytes[way.len() - 1])? {
                0 => break,
                node => way.push(node),
            }
        }
        let (last, slot) = (way[way.len() - 1], bytes[way.len() - 1]);
        if self.pointer(fs, last, slot)? != 0 {
            return Err(self.place.corrupt(format!("the tree has no entry of id {id}")));
        }
        let mut leaf = header.dqi_free_entry.get();
        let missing = LEVELS as usize - way.len() + usize::from(leaf == 0);
        let mut new = self.take_blocks(fs, handle, &mut header, missing)?;
        if leaf == 0 {
            leaf = new.pop().unwrap_or(0);
            header.dqi_free_entry.set(leaf);
        }
        self.put_entry(fs, handle, &mut header, leaf, id)?;
        let mut child = leaf;
        // New nodes are linked into the tree from the lowest level upwards. A concurrent reader therefore finds either the complete path or
        // no new node.
        for depth in (way.len()..LEVELS as usize).rev() {
            let Some(node) = new.pop() else { break };
            self.set_pointer(fs, handle, node, bytes[depth], child)?;
            child = node;
        }
        self.set_pointer(fs, handle, last, slot, child)?;
        self.update(fs, handle, 0, |block| {
            block[..size_of::<RawQuotaHeader>()].copy_from_slice(header.as_bytes());
            Ok(())
        })
    }

    /// Writes an entry without usage into block `leaf`, which must have an unused entry. If the block is full afterwards, removes the block
    /// from the list of blocks with unused entries.
    fn put_entry(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        header: &mut RawQuotaHeader,
        leaf: u32,
        id: u32,
    ) -> Result<()> {
        let mut entry = RawQuotaEntry::new_zeroed();
        entry.dqb_id.set(id);
        self.watch(&mut entry, 0);
        let next = self.update(fs, handle, leaf, |block| {
            let free = |at: &usize| block[*at..at + ENTRY].iter().all(|byte| *byte == 0);
            let Some(at) = positions().find(free) else {
                return Err(self
                    .place
                    .field("dqi_free_entry")
                    .corrupt("the block has no free entry"));
            };
            block[at..at + ENTRY].copy_from_slice(entry.as_bytes());
            let Ok((head, _)) = RawQuotaLeaf::mut_from_prefix(block) else { return Ok(None) };
            let entries = head.dqdh_entries.get().saturating_add(1);
            head.dqdh_entries.set(entries);
            if entries < PER_BLOCK {
                return Ok(None);
            }
            let next = head.dqdh_next_free.get();
            head.dqdh_next_free.set(0);
            head.dqdh_prev_free.set(0);
            Ok(Some(next))
        })?;
        let Some(next) = next else { return Ok(()) };
        header.dqi_free_entry.set(next);
        if next == 0 {
            return Ok(());
        }
        self.update(fs, handle, next, |block| {
            if let Ok((head, _)) = RawQuotaLeaf::mut_from_prefix(block) {
                head.dqdh_prev_free.set(0);
            }
            Ok(())
        })
    }

    /// Allocates zeroed blocks of the file: first from the file's free list, and then at the end of the file.
    fn take_blocks(
        &self,
        fs: &Arc<Ext4>,
        handle: &mut Handle<'_>,
        header: &mut RawQuotaHeader,
        count: usize,
    ) -> Result<Vec<u32>> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let block = match header.dqi_free_blk.get() {
                0 => {
                    let block = header.dqi_blocks.get();
                    let Some(blocks) = block.checked_add(1).filter(|_| block > ROOT) else {
                        let what = format!("{block} blocks");
                        return Err(self.place.field("dqi_blocks").corrupt(what));
                    };
                    header.dqi_blocks.set(blocks);
                    self.grow(fs, handle, blocks)?;
                    block
                }
                block => {
                    let (content, at) = self.read(fs, block)?;
                    let head = RawQuotaLeaf::ref_from_prefix(&content[at..]);
                    let next = head.map_or(0, |(head, _)| head.dqdh_next_free.get());
                    header.dqi_free_blk.set(next);
                    block
                }
            };
            if block <= ROOT || taken.contains(&block) {
                return Err(self
                    .place
                    .field("dqi_free_blk")
                    .corrupt("the block on the free list is in use"));
            }
            taken.push(block);
        }
        for block in &taken {
            self.update(fs, handle, *block, |block| {
                block.fill(0);
                Ok(())
            })?;
        }
        Ok(taken)
    }

    /// Grows the file to at least `blocks` quota blocks. If the volume has too few free blocks, the file may keep the blocks that were
    /// already added.
    fn grow(&self, fs: &Arc<Ext4>, handle: &mut Handle<'_>, blocks: u32) -> Result<()> {
        let size = fs.superblock.block_size;
        let needed = size.blocks_for(u64::from(blocks) * BLOCK as u64);
        loop {
            let inode = InodeToChange::read(fs, self)?;
            let count = self.blocks.read().len() as u64;
            let bytes = count << size.shift();
            if inode.size() < bytes {
                handle.update_inode(self, |inode| inode.set_size(bytes))?;
            }
            if count >= needed {
                return Ok(());
            }
            let block = inode.map_next_block(handle, FileBlock(count))?;
            handle.create(block, |_| ())?;
            self.blocks.write().push(block);
        }
    }

    fn header(&self, fs: &Ext4) -> Result<RawQuotaHeader> {
        let (content, at) = self.read(fs, 0)?;
        let header = RawQuotaHeader::read_from_prefix(&content[at..]);
        header
            .map(|(header, _)| header)
            .map_err(|_| self.place.corrupt("the block is too small for a header"))
    }

    fn pointer(&self, fs: &Ext4, node: u32, slot: u8) -> Result<u32> {
        let (content, at) = self.read(fs, node)?;
        let pointers = content[at..at + BLOCK].as_chunks::<4>().0;
        Ok(u32::from_le_bytes(pointers[usize::from(slot)]))
    }

    fn set_pointer(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        node: u32,
        slot: u8,
        child: u32,
    ) -> Result<()> {
        self.update(fs, handle, node, |block| {
            block.as_chunks_mut::<4>().0[usize::from(slot)] = child.to_le_bytes();
            Ok(())
        })
    }

    /// Reads the volume's block that contains a block of the quota file. Also returns the offset of the quota block in the volume's block.
    fn read(&self, fs: &Ext4, block: u32) -> Result<(Block, usize)> {
        let (at, start) = self.position(fs, block)?;
        Ok((fs.blocks.read(at, self.place)?, start))
    }

    /// Changes a block of the quota file.
    fn update<R>(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        block: u32,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let (at, start) = self.position(fs, block)?;
        let place = self.place.block(at);
        handle.update(at, place, |content| change(&mut content[start..start + BLOCK]))
    }

    fn position(&self, fs: &Ext4, block: u32) -> Result<At> {
        let size = fs.superblock.block_size;
        let byte = u64::from(block) * BLOCK as u64;
        let at = self.blocks.read().get((byte >> size.shift()) as usize).copied();
        let Some(at) = at else {
            return Err(self
                .place
                .corrupt(format!("block {block} is past the end of the quota file")));
        };
        Ok((at, byte as usize & (size.bytes() - 1)))
    }
}

fn now(handle: &Handle<'_>) -> u64 {
    handle.now().seconds as u64
}
