//! The transactions that the log still holds, including those that were written home long ago: older contents of blocks, for an undelete.
//!
//! A log that restarts at its beginning overwrites the oldest blocks first, so the rest of a transaction is found by its descriptor blocks, at
//! any position. Transactions with consecutive numbers form a run. Before the log restarts at its beginning, all its blocks are written home:
//! a run on top of the home blocks gives the volume after each of its transactions.

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
use crate::units::FsBlock;

const PLACE: Place = Place::new("journal block");
/// The same limit as for a recovery.
const MAX_BLOCKS: usize = 4 << 20;

/// The transactions in the log, oldest first.
#[derive(Default)]
pub(in crate::fs::ext4) struct History {
    pub(in crate::fs::ext4) transactions: Vec<Transaction>,
    /// The range at which an external journal's device appears; otherwise empty.
    outside: Range<u64>,
}

/// A transaction, or its remaining part.
pub(in crate::fs::ext4) struct Transaction {
    sequence: u32,
    pub(in crate::fs::ext4) copies: Vec<(FsBlock, Relocated)>,
    revoked: Vec<FsBlock>,
    committed: bool,
}

impl History {
    /// Reads the whole log. A volume without a readable journal has no history.
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
        // Numbers wrap after the largest, so they are compared by their distance to a recent one.
        let recent = log.superblock.sequence;
        transactions.sort_unstable_by_key(|past| past.sequence.wrapping_sub(recent) as i32);
        Ok(Self { transactions, outside: log.outside() })
    }

    /// The index after the last transaction of the run that contains `index`.
    pub(in crate::fs::ext4) fn end_of_run(&self, index: usize) -> usize {
        let pairs = self.transactions[index..].windows(2);
        let length = pairs.take_while(|pair| follows(&pair[0], &pair[1])).count();
        index + length + 1
    }

    /// The first transaction of the run that ends before `end`.
    fn start_of_run(&self, end: usize) -> usize {
        let pairs = self.transactions[..end].windows(2).rev();
        let length = pairs.take_while(|pair| follows(&pair[0], &pair[1])).count() + 1;
        end.saturating_sub(length)
    }
}

/// The blocks of the volume after some transactions, which must be in one run.
#[derive(Default)]
pub(in crate::fs::ext4) struct Past {
    pub(in crate::fs::ext4) overlay: Overlay,
    end: usize,
}

impl Past {
    /// Advances to the transactions before `end`, which must not be less than last time.
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

/// The transactions found so far.
#[derive(Default)]
struct Found {
    transactions: HashMap<u32, Transaction>,
    /// The number of copies and revocations.
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

    /// Adds the copies of a descriptor block that are its own and verified. Gives how many blocks after it they take.
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
            // A copy never begins like a block of the journal, so a later transaction begins here.
            if header(&content).is_some() || at == index {
                break;
            }
            // The blocks at the start of the ring were already visited, and do not begin like blocks of the journal.
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

/// The type and the transaction of one of the journal's own blocks.
fn header(content: &[u8]) -> Option<(u32, u32)> {
    let (raw, _) = RawHeader::ref_from_prefix(content).ok()?;
    (raw.h_magic.get() == MAGIC).then(|| (raw.h_blocktype.get(), raw.h_sequence.get()))
}
