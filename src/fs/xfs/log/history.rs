//! Reads old transactions of the log, for the search for deleted files. The log is a ring, so it contains transactions from a time before
//! its tail, until newer records overwrite them.

use super::LogRange;
use super::head::{State, find, next_header};
pub(in crate::fs::xfs) use super::inode_item::InodeChange;
use super::record::{LogBlocks, Position};
use super::replay::{buffer_item, logged_parts};
use super::transactions::{Item, Transaction, Transactions};
use crate::error::{ErrorKind, Result};
use crate::fs::xfs::Xfs;
use crate::fs::xfs::disk::log::{buffer, item};
use crate::fs::xfs::geometry::BASIC_SHIFT;

/// The maximum length of a buffer in bytes.
const MAX_BUFFER: u64 = 64 << 10;

/// A change in an old transaction.
pub(in crate::fs::xfs) enum Past<'a> {
    Inode(InodeChange),
    /// A logged part of a buffer: the first byte of the buffer on the device, the offset of the part in the buffer, and the content.
    Buffer(u64, usize, &'a [u8]),
}

impl Xfs {
    /// Calls `each` with every change in the log, the oldest first. Also passes the number of the transaction that contains the change.
    /// Damaged records and items are skipped.
    ///
    /// # Errors
    /// Errors of the device; errors of `each`.
    pub(in crate::fs::xfs) fn for_each_past(
        &self,
        mut each: impl FnMut(u64, Past<'_>) -> Result<()>,
    ) -> Result<()> {
        let range: LogRange = self.superblock.log_range(self.log_device)?;
        let log = LogBlocks::new(self.metadata.device(), range)?;
        let head = match find(&log, &self.superblock)? {
            State::Clean { head: (cycle, block) } => Position { cycle, block },
            State::Dirty { head, .. } => head,
        };
        let head = Position { block: head.block % log.count, ..head };
        let (mut transactions, mut number) = (Transactions::default(), 0);
        // The blocks after the head belong to the previous cycle.
        let before = Position { cycle: head.cycle.wrapping_sub(1), block: head.block };
        let mut at = next_header(&log, before, head)?;
        let mut passed = 0_u64;
        while let Some(position) = at {
            // The log can also contain records of an earlier file system on the device.
            let own = log.check_uuid(position, &self.superblock);
            let record = match own.and_then(|()| log.record(position, &self.superblock)) {
                Ok(record) => record,
                Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => return Err(error),
                Err(_) => {
                    transactions = Transactions::default();
                    at = next_header(&log, position, head)?;
                    continue;
                }
            };
            let mut result = Ok(());
            let read = transactions.record(&record, |transaction| {
                number += 1;
                if result.is_ok() {
                    result = self.tell_past(number, transaction, &mut each);
                }
                Ok(())
            });
            result?;
            if read.is_err() {
                transactions = Transactions::default();
            }
            let next = record.next;
            passed += u64::from((next.block + log.count - position.block) % log.count);
            if next.block == head.block || passed >= u64::from(log.count) {
                break;
            }
            at = Some(next);
        }
        Ok(())
    }

    fn tell_past(
        &self,
        number: u64,
        transaction: Transaction,
        each: &mut impl FnMut(u64, Past<'_>) -> Result<()>,
    ) -> Result<()> {
        let place = transaction.place;
        for item in transaction.items {
            match item.code() {
                item::INODE => {
                    if let Some(change) = InodeChange::new(&self.superblock, item) {
                        each(number, Past::Inode(change))?;
                    }
                }
                item::BUFFER => {
                    for (at, offset, content) in parts(&item, place) {
                        each(number, Past::Buffer(at, offset, content))?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The logged parts of a buffer item; none if the item is damaged, or if it is the cancellation of a buffer.
fn parts(item: &Item, place: crate::error::Place) -> Vec<(u64, usize, &[u8])> {
    let Ok(raw) = buffer_item(item, place) else { return Vec::new() };
    let len = u64::from(raw.blf_len.get()) << BASIC_SHIFT;
    if raw.blf_flags.get() & (buffer::CANCEL | buffer::INODES) != 0 || len > MAX_BUFFER {
        return Vec::new();
    }
    let Some(at) = raw.blf_blkno.get().checked_mul(1 << BASIC_SHIFT) else { return Vec::new() };
    let parts = logged_parts(item, raw, len as usize, place).unwrap_or_default();
    parts.into_iter().map(|(range, content)| (at, range.start, content)).collect()
}
