//! The transactions that the log still contains, even if their blocks were written to their home locations long ago. Undelete reads older
//! versions of blocks from these transactions.
//!
//! The log is a ring, and new transactions overwrite the oldest blocks. Only a part of an old transaction may therefore remain in the log.
//! The descriptor blocks of this part identify the transaction, and may be at any position. Transactions with consecutive numbers form a
//! run. The log is emptied only after all of its blocks were written to their home locations. After a given transaction, the content of a
//! block is therefore the newest copy in the run up to that transaction. If the run contains no copy of the block, the content is at the
//! block's home location.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use zerocopy::FromBytes;

use super::external;
use super::log::Log;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::ext4::Ext4;
use crate::fs::ext4::blocks::{Overlay, Relocated};
use crate::fs::ext4::disk::journal::{COMMIT, DESCRIPTOR, MAGIC, REVOKE, RawHeader};
use crate::sorting::Sorting;
use crate::units::FsBlock;

const PLACE: Place = Place::new("journal block");
/// The maximum number of copies and revocations in the history. The number of copies in a recovery has the same limit.
const MAX_BLOCKS: usize = 4 << 20;

/// The transactions in the log, with the oldest first.
#[derive(Default)]
pub(in crate::fs::ext4) struct History {
    pub(in crate::fs::ext4) transactions: Vec<Transaction>,
    /// The block numbers that represent the blocks of an external journal's device. The range is empty if the journal is internal.
    outside: Range<u64>,
}

/// A transaction, or the part of an overwritten transaction that remains in the log.
pub(in crate::fs::ext4) struct Transaction {
    sequence: u32,
    pub(in crate::fs::ext4) copies: Vec<(FsBlock, Relocated)>,
    revoked: Vec<FsBlock>,
    committed: bool,
}

impl History {
    /// Reads the complete log. If the journal is missing or unreadable, the history is empty.
    ///
    /// # Errors
    /// `Io`, `LimitExceeded`; `Corrupt` if the journal's superblock is damaged.
    pub(in crate::fs::ext4) fn read(fs: &Arc<Ext4>) -> Result<Self> {
        let log = match (fs.superblock.journal_inode, fs.journal_range) {
            (Some(number), _) => Log::open(fs, number)?,
            (None, Some(range)) => external::open(fs, range)?,
            (None, None) => return Ok(Self::default()),
        };
        let mut found = Found::default();
        let mut index = log.superblock.log.start;
        while index < log.superblock.log.end {
            let (_, content) = log.read(index)?;
            index += 1;
            match header(&content) {
                Some((DESCRIPTOR, sequence)) => {
                    index += found.take_copies(&log, &content, sequence, index - 1)?;
                }
                Some((REVOKE, sequence)) if log.verify_tail(&content, PLACE).is_ok() => {
                    let revoked = log.revocations(&content, PLACE).unwrap_or_default();
                    found.blocks += revoked.len();
                    found.of(sequence).revoked.extend(revoked);
                }
                Some((COMMIT, sequence)) if log.verify_commit(&content, PLACE).is_ok() => {
                    found.of(sequence).committed = true;
                }
                _ => {}
            }
            if found.blocks > MAX_BLOCKS {
                let what = format!("the journal names more than {MAX_BLOCKS} blocks");
                return Err(Error::new(ErrorKind::LimitExceeded, what));
            }
        }
        let mut transactions: Vec<_> = found.transactions.into_values().collect();
        transactions.retain(|past| past.committed);
        // Transaction numbers wrap around. Two numbers are therefore compared by their distances to a recent number.
        let recent = log.superblock.sequence;
        transactions.order_by_key(|past| past.sequence.wrapping_sub(recent) as i32);
        Ok(Self { transactions, outside: log.outside() })
    }

    /// Finds the transactions after transaction `index` whose numbers are consecutive (a run). Returns the index after the last of these
    /// transactions.
    pub(in crate::fs::ext4) fn end_of_run(&self, index: usize) -> usize {
        let pairs = self.transactions[index..].windows(2);
        let length = pairs.take_while(|pair| follows(&pair[0], &pair[1])).count();
        index + length + 1
    }

    /// Finds the transactions before transaction `end - 1` whose numbers are consecutive (a run). Returns the index of the first of these
    /// transactions.
    fn start_of_run(&self, end: usize) -> usize {
        let pairs = self.transactions[..end].windows(2).rev();
        let length = pairs.take_while(|pair| follows(&pair[0], &pair[1])).count() + 1;
        end.saturating_sub(length)
    }
}

/// The state of the volume's blocks after a past transaction. The state consists of the copies of transactions with consecutive numbers.
#[derive(Default)]
pub(in crate::fs::ext4) struct Past {
    pub(in crate::fs::ext4) overlay: Overlay,
    end: usize,
}

impl Past {
    /// Advances to the state after transaction `end - 1`. `end` must not be less than in the previous call.
    pub(in crate::fs::ext4) fn advance(&mut self, history: &History, end: usize) {
        let start = history.start_of_run(end);
        if self.end <= start {
            *self = Self { overlay: Overlay::outside(history.outside.clone()), end: start };
        }
        for transaction in &history.transactions[self.end..end] {
            let Transaction { copies, revoked, .. } = transaction;
            copies.iter().for_each(|(block, copy)| self.overlay.insert(*block, *copy));
            revoked.iter().for_each(|block| self.overlay.remove(*block));
        }
        self.end = end;
    }
}

/// The transactions that the scan of the log has found so far.
#[derive(Default)]
struct Found {
    transactions: HashMap<u32, Transaction>,
    /// The number of block copies and revocations that the scan of the log has found so far.
    blocks: usize,
}

impl Found {
    fn of(&mut self, sequence: u32) -> &mut Transaction {
        self.transactions.entry(sequence).or_insert_with(|| Transaction {
            sequence,
            copies: Vec::new(),
            revoked: Vec::new(),
            committed: false,
        })
    }

    /// Adds the block copies that a descriptor block lists, if their checksums are correct. Returns the number of log blocks with copies
    /// after the descriptor block.
    fn take_copies(
        &mut self,
        log: &Log,
        descriptor: &[u8],
        sequence: u32,
        index: u32,
    ) -> Result<u32> {
        if log.verify_tail(descriptor, PLACE).is_err() {
            return Ok(0);
        }
        let (mut at, mut taken, mut copies) = (index, 0, Vec::new());
        for tag in log.tags(descriptor) {
            at = log.after(at);
            let (_, content) = log.read(at)?;
            // A copy never begins with a journal header. A header here means that a later transaction has overwritten the copy.
            if header(&content).is_some() || at == index {
                break;
            }
            // Copies may continue at the start of the ring. These copies are not counted, because the scan has already passed their blocks.
            taken += u32::from(at > index);
            if log.verify_copy(&tag, sequence, &content, PLACE).is_ok() {
                let block = log.block(at)?;
                let copy =
                    if tag.escaped { Relocated::Escaped(block) } else { Relocated::Journal(block) };
                copies.push((tag.target, copy));
            }
        }
        self.blocks += copies.len();
        self.of(sequence).copies.extend(copies);
        Ok(taken)
    }
}

fn follows(one: &Transaction, next: &Transaction) -> bool {
    one.sequence.wrapping_add(1) == next.sequence
}

/// The block type and the transaction number in a block's journal header; `None` for a block without this header.
fn header(content: &[u8]) -> Option<(u32, u32)> {
    let (raw, _) = RawHeader::ref_from_prefix(content).ok()?;
    (raw.h_magic.get() == MAGIC).then(|| (raw.h_blocktype.get(), raw.h_sequence.get()))
}
