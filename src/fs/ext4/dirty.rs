//! Changed metadata blocks that have not been written to their home location yet. A checkpoint writes them there.
//!
//! Each changed block has a slot that contains the newest version of the block. A change creates a new version if a reader or a commit
//! still has a reference to the newest version. The slot is removed when its newest version has been written to the block's home location.

use std::sync::Arc;

use foldhash::HashMap;

use super::jbd2::tid::{Member, Tid};
use crate::error::Result;
use crate::fs::block::{Block, Part};
use crate::sync::{Mutex, MutexGuard, RwLock};
use crate::units::FsBlock;

const SHARDS: usize = 64;

/// The newest version of each changed block, by block number.
pub(crate) struct Dirty {
    shards: [RwLock<HashMap<FsBlock, Arc<DirtyBlock>>>; SHARDS],
}

impl Default for Dirty {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()) }
    }
}

/// The newest version of a changed block.
pub(super) struct DirtyBlock(Mutex<Version>);

pub(super) struct Version {
    content: Block,
    /// The transaction that last changed the block.
    tid: Tid,
    /// Whether the slot was removed. A thread that has a reference to a removed slot must look up the block again.
    gone: bool,
}

impl DirtyBlock {
    /// Locks the newest version of the block. Returns `None` if the slot was removed.
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, Version>> {
        Some(self.0.lock()).filter(|version| !version.gone)
    }
}

impl Version {
    /// Changes the content. Returns whether this is the transaction's first change of the block.
    pub(super) fn change<R>(
        &mut self,
        member: &Member,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<(R, bool)> {
        let result = change(self.content.for_change()?)?;
        Ok((result, self.joins(member)))
    }

    /// Changes one part of the block. `change` stores the part's checksum.
    pub(super) fn change_sealed<R>(
        &mut self,
        member: &Member,
        part: Part,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<(R, bool)> {
        let result = self.content.change_sealed(part, change)?;
        Ok((result, self.joins(member)))
    }

    /// Replaces the content. Returns whether this is the transaction's first change of the block.
    pub(super) fn replace(&mut self, member: &Member, content: Block) -> bool {
        self.content = content;
        self.joins(member)
    }

    fn joins(&mut self, member: &Member) -> bool {
        std::mem::replace(&mut self.tid, member.tid()) != member.tid()
    }
}

impl Dirty {
    fn shard(&self, block: FsBlock) -> &RwLock<HashMap<FsBlock, Arc<DirtyBlock>>> {
        // Adjoining blocks share a shard, because one thread usually changes them together.
        &self.shards[(block.0 / 4 % SHARDS as u64) as usize]
    }

    fn find(&self, block: FsBlock) -> Option<Arc<DirtyBlock>> {
        self.shard(block).read().get(&block).cloned()
    }

    /// The newest version of a block.
    pub(super) fn get(&self, block: FsBlock) -> Option<Block> {
        let shard = self.shard(block).read();
        shard.get(&block).map(|slot| slot.0.lock().content.clone())
    }

    /// Returns the slot of a block. If the block has no slot, creates a slot with the content that `clean` returns. If `clean` returns
    /// `None`, creates no slot and returns `None`. `clean` is called while the shard is locked, because content from an earlier read could
    /// be outdated. The caller should read the block into the cache first, so that `clean` finds the block there.
    pub(super) fn slot(
        &self,
        block: FsBlock,
        clean: impl FnOnce() -> Option<Block>,
    ) -> Option<Arc<DirtyBlock>> {
        if let Some(slot) = self.find(block) {
            return Some(slot);
        }
        let mut shard = self.shard(block).write();
        if let Some(slot) = shard.get(&block) {
            return Some(Arc::clone(slot));
        }
        let version = Version { content: clean()?, tid: Tid::default(), gone: false };
        let slot = Arc::new(DirtyBlock(Mutex::new(version)));
        shard.insert(block, Arc::clone(&slot));
        Some(slot)
    }

    /// The newest version of a block, if transaction `tid` last changed the block. Returns `None` for other blocks and for freed blocks.
    pub(super) fn of_transaction(&self, block: FsBlock, tid: Tid) -> Option<Block> {
        let slot = self.find(block)?;
        let version = slot.lock()?;
        (version.tid == tid).then(|| version.content.clone())
    }

    pub(super) fn forget(&self, block: FsBlock, _member: &Member) {
        if let Some(slot) = self.shard(block).write().remove(&block) {
            slot.0.lock().gone = true;
        }
    }

    /// Removes the slot of a block, if `version` is the block's newest version. `keep` receives the version before the slot is removed.
    pub(super) fn convert(&self, block: FsBlock, version: &Block, keep: impl FnOnce(Block)) {
        let mut shard = self.shard(block).write();
        let Some(slot) = shard.get(&block).cloned() else { return };
        let mut newest = slot.0.lock();
        if newest.content.is(version) {
            keep(newest.content.clone());
            newest.gone = true;
            shard.remove(&block);
        }
    }
}
