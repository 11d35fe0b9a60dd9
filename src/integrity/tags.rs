//! The tags in memory: a cache of the area's tag blocks, with a limited size.
//!
//! The cache is divided into shards. Each shard has one lock. A thread holds it only while it reads or sets tuples in memory, and never
//! during a request to the device. One call of a thread reads a block from the device or writes it to the device. Other threads may wait
//! for the end of this call.

use std::io::IoSlice;
use std::ops::Range;

use foldhash::HashMap;

use super::area::Area;
use super::disk::{BLOCK, BLOCK_LEN};
use super::geometry::Info;
use super::tag_block::TagBlock;
use crate::bio::Buffer;
use crate::error::{Context, Error, Result};
use crate::protection::TupleKind;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::units::DevOffset;

const SHARDS: usize = 64;
/// The number of failed writes of dirty blocks after which the search for a free slot ends. The cache then grows instead of evicting a
/// block.
const REFUSED: u32 = 4;

/// Consecutive sectors whose tuples are in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) block: u64,
    /// The index of the first sector's tuple in the block.
    pub(super) index: usize,
    pub(super) count: usize,
    /// The number of sectors of the request that precede these sectors.
    pub(super) before: usize,
}

impl Piece {
    pub(super) fn range(&self) -> Range<usize> {
        self.index..self.index + self.count
    }
}

#[derive(Debug)]
pub(super) struct Tags {
    area: Area,
    kind: TupleKind,
    /// The start of the tags on their device.
    start: u64,
    per_block: u64,
    blocks: u64,
    /// The normal limit on the number of blocks in a shard. If no block can be evicted, the shard may contain more blocks.
    most: usize,
    shards: Box<[Shard]>,
}

#[derive(Debug)]
struct Shard {
    state: Mutex<Slots>,
    /// Signalled when a block has been read or written. If threads wait, also signalled when a write ends.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Slots {
    index: HashMap<u64, usize>,
    slots: Vec<TagBlock>,
    hand: usize,
    waiting: u32,
}

/// The result of a search for a slot that can be used for another block.
enum Victim {
    Free(usize),
    Dirty(usize),
    None,
}

impl Slots {
    fn victim(&mut self, most: usize) -> Victim {
        if self.slots.len() < most {
            return Victim::None;
        }
        for _ in 0..2 * self.slots.len() {
            let at = self.hand % self.slots.len();
            self.hand = at + 1;
            let slot = &mut self.slots[at];
            if !slot.is_free() {
                continue;
            }
            if std::mem::take(&mut slot.used) {
                continue;
            }
            return if slot.dirty { Victim::Dirty(at) } else { Victim::Free(at) };
        }
        Victim::None
    }
}

impl Tags {
    pub(super) fn new(area: Area, info: &Info, cache: u64) -> Self {
        let most = (cache / BLOCK_LEN / SHARDS as u64).clamp(2, 1 << 20) as usize;
        let shard = || Shard { state: Mutex::new(Slots::default()), changed: Condvar::new() };
        Self {
            area,
            kind: info.kind,
            start: info.tags_at(),
            per_block: info.tuples_per_block(),
            blocks: info.tag_blocks(),
            most,
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }
    }

    /// Splits a range of sectors into pieces. The tuples of a piece are in one block.
    #[inline]
    pub(super) fn pieces(&self, first: u64, count: usize) -> impl Iterator<Item = Piece> + use<> {
        let (per_block, mut before) = (self.per_block, 0);
        std::iter::from_fn(move || {
            let sector = first + before as u64;
            // The number of tuples in a block is a power of two, so the index is computed with a mask.
            let index = (sector & (per_block - 1)) as usize;
            let len = (per_block as usize - index).min(count - before);
            let block = sector >> per_block.trailing_zeros();
            let piece = Piece { block, index, count: len, before };
            before += len;
            (len > 0).then_some(piece)
        })
    }

    /// The block that contains the tuple of a sector, and the index of the tuple in the block.
    pub(super) fn place(&self, sector: u64) -> (u64, usize) {
        (sector / self.per_block, (sector % self.per_block) as usize)
    }

    fn shard(&self, block: u64) -> &Shard {
        &self.shards[block as usize % SHARDS]
    }

    /// Calls `work` with a block. A block that is not in memory is first read from the device. If `nowait` is set, the block is not read,
    /// and the call fails with EAGAIN.
    ///
    /// # Errors
    /// The errors of the tag device.
    #[inline]
    pub(super) fn with<R>(
        &self,
        block: u64,
        nowait: bool,
        work: impl FnOnce(&mut TagBlock) -> R,
    ) -> Result<R> {
        let shard = self.shard(block);
        let mut state = shard.state.lock();
        let at = match state.index.get(&block) {
            Some(at) if !state.slots[*at].loading => *at,
            _ if nowait => return Err(Error::would_block("the tags are not in memory")),
            _ => self.load(shard, &mut state, block)?,
        };
        let slot = &mut state.slots[at];
        slot.used = true;
        Ok(work(slot))
    }

    /// Calls `work` with a block when a write ends, and wakes waiting threads.
    #[inline]
    pub(super) fn end<R>(&self, block: u64, work: impl FnOnce(&mut TagBlock) -> R) -> Option<R> {
        let shard = self.shard(block);
        let mut state = shard.state.lock();
        let at = *state.index.get(&block)?;
        let result = work(&mut state.slots[at]);
        if state.waiting > 0 {
            shard.changed.notify_all();
        }
        Some(result)
    }

    /// Waits until no other write to these sectors is in flight. Then begins the write.
    pub(super) fn claim_exclusively(&self, piece: Piece, tuples: &[u8]) -> Result<()> {
        let shard = self.shard(piece.block);
        let mut state = shard.state.lock();
        loop {
            let at = self.load(shard, &mut state, piece.block)?;
            if !state.slots[at].any_busy(piece.range()) {
                state.slots[at].claim(piece.range(), tuples);
                return Ok(());
            }
            wait(shard, &mut state);
        }
    }

    /// Returns the slot of a block. If the block is not in memory, reads it from the device.
    #[cold]
    fn load(&self, shard: &Shard, state: &mut MutexGuard<'_, Slots>, block: u64) -> Result<usize> {
        if block >= self.blocks {
            return Err(Error::invalid(format!("tag block {block} does not exist")));
        }
        let mut refused = 0;
        let at = loop {
            match state.index.get(&block).copied() {
                Some(at) if !state.slots[at].loading => return Ok(at),
                Some(_) => {
                    wait(shard, state);
                    continue;
                }
                None => {}
            }
            match state.victim(self.most) {
                Victim::Free(at) => break at,
                // A block that cannot be written stays in memory. The code ignores the error here.
                Victim::Dirty(at) if refused < REFUSED => {
                    refused += u32::from(self.write_slot(shard, state, at).is_err());
                }
                Victim::Dirty(_) | Victim::None => {
                    let slot = TagBlock::new(self.kind)?;
                    state.slots.push(slot);
                    break state.slots.len() - 1;
                }
            }
        };
        if let Some(old) = state.slots[at].block.replace(block) {
            state.index.remove(&old);
        }
        state.index.insert(block, at);
        let slot = &mut state.slots[at];
        slot.loading = true;
        let mut tuples = std::mem::replace(&mut slot.tuples, Vec::new().into());
        let read = MutexGuard::unlocked(state, || {
            self.area.device.read_exact_at(&mut tuples, DevOffset(self.start + block * BLOCK_LEN))
        });
        let slot = &mut state.slots[at];
        (slot.tuples, slot.loading) = (tuples, false);
        if read.is_err() {
            slot.block = None;
            state.index.remove(&block);
        }
        if state.waiting > 0 {
            shard.changed.notify_all();
        }
        read.context(|| format!("read tag block {block}")).map(|()| at)
    }

    /// Writes the block in a slot to the device.
    fn write_slot(
        &self,
        shard: &Shard,
        state: &mut MutexGuard<'_, Slots>,
        at: usize,
    ) -> Result<()> {
        let mut copy = Buffer::aligned(BLOCK)?;
        let slot = &mut state.slots[at];
        let Some(block) = slot.block else { return Ok(()) };
        copy.copy_from_slice(&slot.tuples);
        (slot.writing, slot.dirty) = (true, false);
        let place = DevOffset(self.start + block * BLOCK_LEN);
        let written = MutexGuard::unlocked(state, || {
            self.area.device.write_all_at(&[IoSlice::new(&copy)], place, false)
        });
        let slot = &mut state.slots[at];
        slot.writing = false;
        slot.dirty |= written.is_err();
        if state.waiting > 0 {
            shard.changed.notify_all();
        }
        written.context(|| format!("write tag block {block}"))
    }

    /// Compares a block in memory with the block on the device. If they differ, returns the content on the device: the device has lost a
    /// write of the block, or has changed the block. A block that changes in memory during the call is not compared.
    ///
    /// # Errors
    /// The errors of the tag device.
    pub(super) fn differing(&self, block: u64) -> Result<Option<Buffer>> {
        let shard = self.shard(block);
        let mut state = shard.state.lock();
        let changes = loop {
            let Some(at) = state.index.get(&block).copied() else { return Ok(None) };
            let slot = &state.slots[at];
            if slot.loading || slot.writing {
                wait(shard, &mut state);
            } else if slot.dirty {
                self.write_slot(shard, &mut state, at)?;
            } else {
                break slot.changes;
            }
        };
        let mut stored = Buffer::aligned(BLOCK)?;
        MutexGuard::unlocked(&mut state, || {
            self.area.device.read_exact_at(&mut stored, DevOffset(self.start + block * BLOCK_LEN))
        })
        .context(|| format!("read tag block {block}"))?;
        let slot = state.index.get(&block).map(|at| &state.slots[*at]);
        let differs =
            slot.is_some_and(|slot| slot.changes == changes && slot.tuples[..] != stored[..]);
        Ok(differs.then_some(stored))
    }

    /// Writes changed blocks to the device. Blocks that change during the call may be omitted. Does not flush the device.
    ///
    /// # Errors
    /// The errors of the tag device. A write that failed is repeated by the next call.
    pub(super) fn write_back(&self) -> Result<()> {
        for shard in &self.shards {
            let mut state = shard.state.lock();
            let mut at = 0;
            while at < state.slots.len() {
                let slot = &state.slots[at];
                if slot.writing {
                    wait(shard, &mut state);
                } else if slot.dirty {
                    self.write_slot(shard, &mut state, at)?;
                    at += 1;
                } else {
                    at += 1;
                }
            }
        }
        Ok(())
    }
}

fn wait(shard: &Shard, state: &mut MutexGuard<'_, Slots>) {
    state.waiting += 1;
    shard.changed.wait(state);
    state.waiting -= 1;
}
