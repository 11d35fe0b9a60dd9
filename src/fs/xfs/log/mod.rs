//! The log: recovered in memory, into an overlay of sectors. Nothing is written.
//!
//! The log has parts of buffers, not blocks, so the overlay has sectors. Data are never in it, so extents are not split, as they are at the blocks of
//! ext4's log. Changes of maps that the log has begun are made when a map is read.

mod attr_intent;
mod finish;
mod head;
mod inode_item;
mod owner;
mod record;
mod replay;
mod transactions;

use self::finish::Ended;
use self::head::State;
use self::record::LogBlocks;
use self::replay::{Cancelled, Replay};
use self::transactions::Transactions;
use super::Superblock;
use super::attr::AttributeChanges;
use super::map_changes::MapChanges;
use super::metadata::Metadata;
use super::overlay::Overlay;
use crate::error::Result;
use crate::fs::DeviceRange;
use crate::units::BlockSize;

/// The place of the log on its device: bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogRange {
    pub(super) start: u64,
    pub(super) len: u64,
    /// The size of a block of the volume.
    pub(super) block: BlockSize,
}

/// The state in which the log was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogState {
    /// It was recovered, in memory.
    pub recovered: bool,
    /// Transactions that were recovered.
    pub transactions: u64,
    /// Changes of attributes and of the maps of files whose intent is in the log and whose end is not: they were finished, in memory.
    pub finished: u64,
    /// How many of these are changes of attributes.
    pub finished_attributes: u64,
    /// Other operations with an intent and without an end, which were left so, by what they do.
    pub unfinished: Vec<(&'static str, u64)>,
    /// The position of its head: cycle and block.
    pub head: (u32, u32),
    /// The same of its tail.
    pub tail: (u32, u32),
}

impl LogState {
    /// The position of the head, as metadata have it of their last change.
    pub(super) fn head_lsn(&self) -> u64 {
        let (cycle, block) = self.head;
        u64::from(cycle) << 32 | u64::from(block)
    }
}

/// The result of a recovery.
pub(super) struct Recovery {
    pub(super) state: LogState,
    /// Changes that the device does not have at their place.
    pub(super) overlay: Overlay,
    /// Changes of maps and of attributes beyond these.
    pub(super) changes: MapChanges,
    pub(super) attributes: AttributeChanges,
}

/// Reads the log.
pub(super) fn recover(
    metadata: &Metadata,
    superblock: &Superblock,
    outside: Option<DeviceRange>,
) -> Result<Recovery> {
    let log = LogBlocks::new(metadata.device(), superblock.log_range(outside)?)?;
    let (tail, head) = match head::find(&log, superblock)? {
        State::Clean { head } => {
            let state = LogState { head, tail: head, ..LogState::default() };
            let (overlay, changes) = (Overlay::default(), MapChanges::default());
            let attributes = AttributeChanges::default();
            return Ok(Recovery { state, overlay, changes, attributes });
        }
        State::Dirty { tail, head } => (tail, head),
    };
    superblock.check_log_features()?;
    // First the blocks that were freed later: their content is not to be seen.
    let mut cancelled = Cancelled::default();
    for_each_transaction(&log, superblock, (tail, head), |transaction| {
        cancelled.collect(&transaction)
    })?;
    let mut replay = Replay::new(metadata, superblock, cancelled);
    let mut transactions = 0;
    for_each_transaction(&log, superblock, (tail, head), |transaction| {
        transactions += 1;
        replay.transaction(&transaction)
    })?;
    let (overlay, ended) = replay.end()?;
    let Ended { changes, attributes, finished, finished_attributes, unfinished } = ended;
    let position = |block: record::Position| (block.cycle, block.block);
    let (head, tail) = (position(head), position(tail));
    let state = LogState {
        recovered: true,
        transactions,
        finished,
        finished_attributes,
        unfinished,
        head,
        tail,
    };
    Ok(Recovery { state, overlay, changes, attributes })
}

/// Calls `work` with each committed transaction, in their order.
fn for_each_transaction(
    log: &LogBlocks<'_>,
    superblock: &Superblock,
    (tail, head): (record::Position, record::Position),
    mut work: impl FnMut(transactions::Transaction) -> Result<()>,
) -> Result<()> {
    let mut transactions = Transactions::default();
    let mut at = tail;
    while at != head {
        let record = log.record(at, superblock)?;
        let next = record.next;
        transactions.record(&record, &mut work)?;
        at = next;
    }
    Ok(())
}
