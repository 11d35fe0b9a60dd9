//! Finds the head of the log (the end of the last complete record) and the tail (the start of recovery).
//!
//! Each block records its cycle. Blocks before the head have the newest cycle, and blocks after the head have the previous cycle. So a
//! binary search finds the head. Several records can be in flight during a crash. Therefore some blocks before the head can be old, and a
//! record can be incomplete.

use super::record::{LogBlocks, Position, cycle_of};
use crate::error::{ErrorKind, Result};
use crate::fs::xfs::Superblock;
use crate::fs::xfs::disk::log::{BLOCK, MAGIC};
use crate::fs::xfs::header::array;

/// The maximum number of records in flight at the same time, and the maximum number of blocks in these records.
const IN_FLIGHT: usize = 8;
const IN_FLIGHT_BLOCKS: u32 = (IN_FLIGHT * (256 << 10) / BLOCK) as u32;

/// The number of blocks that the search for a header reads at a time.
const WINDOW: u32 = 512;

/// The state of the log.
pub(super) enum State {
    /// The volume was unmounted, or the log was never written.
    Clean { head: (u32, u32) },
    /// The records from `tail` to `head` must be recovered.
    Dirty { tail: Position, head: Position },
}

pub(super) fn find(log: &LogBlocks<'_>, superblock: &Superblock) -> Result<State> {
    // A log that was never written begins with cycle 1.
    let Some(head) = find_head(log)? else { return Ok(State::Clean { head: (1, 0) }) };
    let (mut end, mut last) = (head, last_record(log, head)?);
    // The log must belong to this volume. Without this check, a clean log of another volume could hide the need for recovery.
    log.check_uuid(last, superblock)?;
    if !log.outline(last)?.ends_at(end) {
        // The last record is incomplete: it was in flight when power failed.
        (end, last) = (last, last_record(log, last)?);
    }
    if log.outline(last)?.is_unmount {
        return Ok(State::Clean { head: (end.cycle, end.block) });
    }
    if let Some(bad) = first_bad(log, superblock, last)? {
        (end, last) = (bad, last_record(log, bad)?);
        if log.outline(last)?.is_unmount {
            return Ok(State::Clean { head: (end.cycle, end.block) });
        }
    }
    let head = log.record(last, superblock)?.next;
    if head.block != end.block % log.count {
        return Err(log
            .place(last.block)
            .field("h_len")
            .corrupt("the last record does not end at the head of the log"));
    }
    let tail = find_tail(log, superblock, last, head)?;
    Ok(State::Dirty { tail, head })
}

/// Returns the first incomplete record among the last records, if there is one. The last records were in flight during the crash. The
/// incomplete record and all later records count as not written.
fn first_bad(
    log: &LogBlocks<'_>,
    superblock: &Superblock,
    last: Position,
) -> Result<Option<Position>> {
    let tail = log.outline(last)?.tail;
    let (mut at, mut bad) = (last, None);
    for _ in 0..IN_FLIGHT {
        if !is_whole(log, superblock, at)? {
            bad = Some(at);
        }
        if at.block == tail.block {
            break;
        }
        let Some(before) = last_header(log, at)? else { break };
        at = before;
    }
    Ok(bad)
}

fn is_whole(log: &LogBlocks<'_>, superblock: &Superblock, at: Position) -> Result<bool> {
    match log.record(at, superblock) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(false),
        Err(error) => Err(error),
    }
}

/// Finds the tail, starting from the tail that the last record names. All records from the returned tail to the head are complete. So
/// recovery does not fail midway.
///
/// Records that were lost in the crash may have overwritten records directly after the head. A lost record named a newer tail. So the
/// changes of the overwritten records were already written to their final positions. Overwritten records are skipped. If the block at the
/// tail is not a record header, recovery begins at the next header, as in Linux.
fn find_tail(
    log: &LogBlocks<'_>,
    superblock: &Superblock,
    last: Position,
    head: Position,
) -> Result<Position> {
    let outline = log.outline(last)?;
    let mut tail = outline.tail;
    let in_flight = outline.most_blocks.saturating_mul(IN_FLIGHT as u32);
    if tail.block >= log.count {
        let what =
            format!("the tail is at block {}, but the log has {} blocks", tail.block, log.count);
        return Err(log.place(last.block).field("h_tail_lsn").corrupt(what));
    }
    if tail != head && !is_header(&log.read(tail.block, 1)?) {
        tail = next_header(log, tail, head)?.unwrap_or(tail);
    }
    let (mut at, mut passed) = (tail, 0);
    while at != head {
        let behind_head = (at.block + log.count - head.block) % log.count;
        let next = match log.record(at, superblock) {
            Ok(record) => record.next,
            Err(error) => {
                let is_overwritten = behind_head <= in_flight;
                if error.kind() != ErrorKind::Corrupt || !is_overwritten {
                    return Err(error);
                }
                tail = next_header(log, at, head)?.ok_or(error)?;
                tail
            }
        };
        // Each record has at least one block. So a chain with more records than blocks is circular.
        passed += 1;
        if passed > log.count {
            return Err(log
                .place(last.block)
                .field("h_tail_lsn")
                .corrupt("the chain of log records is circular"));
        }
        at = next;
    }
    Ok(tail)
}

/// The next block, after a bad record and before the head, that can begin a record.
pub(super) fn next_header(
    log: &LogBlocks<'_>,
    bad: Position,
    head: Position,
) -> Result<Option<Position>> {
    let mut at = bad;
    loop {
        at.block += 1;
        if at.block == log.count {
            at = Position { cycle: at.cycle.wrapping_add(1), block: 0 };
        }
        if at.block == head.block {
            return Ok(None);
        }
        let end = if head.block > at.block { head.block } else { log.count };
        let count = (end - at.block).min(WINDOW);
        let bytes = log.read(at.block, count)?;
        let begins = |block: &[u8]| is_header(block) && cycle_of(block) == at.cycle;
        if let Some(step) = bytes.chunks_exact(BLOCK).position(begins) {
            return Ok(Some(Position { block: at.block + step as u32, ..at }));
        }
        at.block += count - 1;
    }
}

/// Returns the position after the newest block. The cycle of this position is the cycle that the next record would get. `None` means that
/// the log was never written.
fn find_head(log: &LogBlocks<'_>) -> Result<Option<Position>> {
    let (first, last) = (log.cycle(0)?, log.cycle(log.count - 1)?);
    if first == 0 {
        return Ok(None);
    }
    if first == last {
        // The first and the last block have the same cycle. Therefore the head is the end of the log, or an earlier block that was not
        // written.
        let stale = first.wrapping_sub(1);
        let head = first_stale(log, log.count, |_| stale)?;
        return Ok(Some(match head {
            Some(block) => Position { cycle: first, block },
            None => Position { cycle: first.wrapping_add(1), block: 0 },
        }));
    }
    let (mut low, mut high) = (0, log.count - 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        // A crash cannot leave zeroed blocks in this range. Like Linux, the search treats a zeroed block as a block before the head. If it
        // treated such a block as the head, it could return a record before the zeroed block as the last record.
        if log.cycle(middle)? == last { high = middle } else { low = middle }
    }
    // A stale block is an older block that lies before the head. Such a block has the cycle `last`. If the range wraps, its first blocks
    // are at the end of the log. In this part of the range, current blocks have the cycle `last`, and stale blocks have the previous cycle.
    let wrapped = last.wrapping_sub(1);
    let stale = |is_wrapped: bool| if is_wrapped { wrapped } else { last };
    let block = first_stale(log, high, stale)?.unwrap_or(high);
    let cycle = if block > high { last } else { first };
    Ok(Some(Position { cycle, block }))
}

/// Returns the first block that has an older cycle. Searches only blocks before the head that may have been in flight.
fn first_stale(log: &LogBlocks<'_>, head: u32, stale: impl Fn(bool) -> u32) -> Result<Option<u32>> {
    let count = IN_FLIGHT_BLOCKS.min(log.count);
    let start = (head + log.count - count) % log.count;
    let bytes = log.read(start, count)?;
    let mut found = (0..count).zip(bytes.chunks_exact(BLOCK)).filter_map(|(step, bytes)| {
        let block = start + step;
        let is_wrapped = head < count && block < log.count && block >= head;
        let block = block % log.count;
        (cycle_of(bytes) == stale(is_wrapped)).then_some(block)
    });
    Ok(found.next())
}

/// The last record that begins before a position. A written log without such a record is damaged.
fn last_record(log: &LogBlocks<'_>, end: Position) -> Result<Position> {
    let none =
        || log.place(end.block % log.count).corrupt("no record precedes the head of the log");
    last_header(log, end)?.ok_or_else(none)
}

fn is_header(block: &[u8]) -> bool {
    u32::from_be_bytes(array(block, 0)) == MAGIC
}

/// The header of the last record that begins before a position.
fn last_header(log: &LogBlocks<'_>, end: Position) -> Result<Option<Position>> {
    let window = IN_FLIGHT_BLOCKS.min(log.count - 1);
    let start = (end.block % log.count + log.count - window) % log.count;
    let bytes = log.read(start, window)?;
    let blocks = bytes.chunks_exact(BLOCK).enumerate();
    let last = blocks.rev().find(|(_, block)| is_header(block));
    Ok(last.map(|(step, block)| {
        let number = ((u64::from(start) + step as u64) % u64::from(log.count)) as u32;
        Position { cycle: cycle_of(block), block: number }
    }))
}
