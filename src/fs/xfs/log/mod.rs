//! Recovers the log in memory. The recovered sectors are stored in an overlay, and nothing is written to the device.
//!
//! The log contains parts of buffers, not whole blocks, so the overlay consists of sectors. Unlike ext4's journal, the log never contains
//! file data. So extents need not be split at logged blocks. Unfinished map changes are applied when a map is read.

mod attr_intent;
mod finish;
mod head;
pub(super) mod history;
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

/// The byte range of the log on its device.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogRange {
    pub(super) start: u64,
    pub(super) len: u64,
    /// The block size of the volume.
    pub(super) block: BlockSize,
}

/// The state in which the log was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogState {
    /// Whether the log was recovered in memory.
    pub recovered: bool,
    /// The number of recovered transactions.
    pub transactions: u64,
    /// The number of changes of attributes and file maps that recovery finished in memory. The intents of these changes were unfinished in
    /// the log.
    pub finished: u64,
    /// The number of attribute changes in `finished`.
    pub finished_attributes: u64,
    /// The operations that recovery does not finish. Each has a name and a number of unfinished intents.
    pub unfinished: Vec<(&'static str, u64)>,
    /// The position of the head: cycle and block.
    pub head: (u32, u32),
    /// The position of the tail.
    pub tail: (u32, u32),
}

impl LogState {
    /// The position of the head as an LSN. Each metadata block stores the position of its last change in this form.
    pub(super) fn head_lsn(&self) -> u64 {
        let (cycle, block) = self.head;
        u64::from(cycle) << 32 | u64::from(block)
    }
}

/// The result of a recovery.
pub(super) struct Recovery {
    pub(super) state: LogState,
    /// Sectors whose recovered content is not on the device.
    pub(super) overlay: Overlay,
    /// Unfinished changes of maps and attributes from the log.
    pub(super) changes: MapChanges,
    pub(super) attributes: AttributeChanges,
}

/// Recovers the log in memory.
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
    // The first pass collects the freed buffers, because their earlier content in the log must not be applied.
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

/// Calls `work` with each committed transaction, in order.
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
