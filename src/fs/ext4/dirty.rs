//! The versions of metadata blocks that the device does not hold at their place: changed in a transaction that has not been
//! checkpointed.
//!
//! A block that a transaction changes gets a slot. Its content is replaced by a new version when someone holds the old one: a
//! reader, or the commit of the transaction before. The slot goes when its newest version has been written to its place.

use std::sync::Arc;

use foldhash::HashMap;

use super::jbd2::tid::{Member, Tid};
use crate::error::Result;
use crate::fs::block::{Block, Part};
use crate::sync::{Mutex, MutexGuard, RwLock};
use crate::units::FsBlock;

const SHARDS: usize = 64;

/// All slots, by their block.
pub(crate) struct Dirty {
    shards: [RwLock<HashMap<FsBlock, Arc<DirtyBlock>>>; SHARDS],
}

impl Default for Dirty {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()) }
    }
}

/// The newest version of a block.
pub(super) struct DirtyBlock(Mutex<Version>);

pub(super) struct Version {
    content: Block,
    /// The transaction that changed it last.
    tid: Tid,
    /// The slot is no longer the block's: a thread that has a reference to it must look the block up again.
    gone: bool,
}

impl DirtyBlock {
    /// Its version, unless it is gone.
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, Version>> {
        Some(self.0.lock()).filter(|version| !version.gone)
    }
}

impl Version {
    /// Changes the content; says whether the transaction had not changed it before.
    pub(super) fn change<R>(
        &mut self,
        member: &Member,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<(R, bool)> {
        let result = change(self.content.for_change()?)?;
        Ok((result, self.joins(member)))
    }

    /// The same for one part, whose checksum `change` stores.
    pub(super) fn change_sealed<R>(
        &mut self,
        member: &Member,
        part: Part,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<(R, bool)> {
        let result = self.content.change_sealed(part, change)?;
        Ok((result, self.joins(member)))
    }

    /// Takes another content; says the same.
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
        // Neighbours are changed together, by one thread more often than by several.
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

    /// The slot of a block, made of its clean content if it does not exist; that is `None` if it cannot be read. It is asked for under the
    /// lock, because an earlier read may be stale; so it should be in memory by then.
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

    /// The version of a block that a transaction ended with, if it changed it and did not forget it.
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

    /// Ends the slot of a block if this is its newest version, which `keep` gets before anyone can miss it.
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
