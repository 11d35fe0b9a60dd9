//! The head and the tail of the log: where the last whole record ends, and where recovery begins.
//!
//! Each block tells its cycle. Up to the head blocks are of the newest cycle, after it of the one before; so the head is found by
//! halving. Records are written several at a time, so that a crash can leave old blocks before the head, or a record without its end.

use super::record::{LogBlocks, Position, cycle_of};
use crate::error::{ErrorKind, Result};
use crate::fs::xfs::Superblock;
use crate::fs::xfs::disk::log::{BLOCK, MAGIC};
use crate::fs::xfs::header::array;

/// Records that can be written at the same time, and blocks that they have at most.
const IN_FLIGHT: usize = 8;
const IN_FLIGHT_BLOCKS: u32 = (IN_FLIGHT * (256 << 10) / BLOCK) as u32;

/// The state of the log.
pub(super) enum State {
    /// The volume was unmounted, or the log was never written.
    Clean { head: (u32, u32) },
    /// Records from `tail` to `head` are to be recovered.
    Dirty { tail: Position, head: Position },
}

pub(super) fn find(log: &LogBlocks<'_>, superblock: &Superblock) -> Result<State> {
    // A log that was never written begins with cycle 1.
    let Some(head) = find_head(log)? else { return Ok(State::Clean { head: (1, 0) }) };
    let (mut end, mut last) = (head, last_record(log, head)?);
    // A clean log of another volume would hide that this one needs recovery.
    log.check_uuid(last, superblock)?;
    if !log.outline(last)?.ends_at(end) {
        // It was being written when the power went.
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
            .corrupt("the last record does not end at the head"));
    }
    let tail = find_tail(log, superblock, last, head)?;
    Ok(State::Dirty { tail, head })
}

/// The first of the last records that is not whole, if any: these were in flight, and all from that one on are as if not written.
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

/// The tail that the last record names. All records from there on are whole, so that recovery meets no bad one half-way.
///
/// Records that are lost may have begun to overwrite it, by a newer tail that is lost with them: the overwritten part was at its place.
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
        let what = format!("block {} of a log of {} blocks", tail.block, log.count);
        return Err(log.place(last.block).field("h_tail_lsn").corrupt(what));
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
        // Each record has a block at least.
        passed += 1;
        if passed > log.count {
            return Err(log
                .place(last.block)
                .field("h_tail_lsn")
                .corrupt("the records make a circle"));
        }
        at = next;
    }
    Ok(tail)
}

/// The next block after a bad record that can begin one, before the head.
fn next_header(log: &LogBlocks<'_>, bad: Position, head: Position) -> Result<Option<Position>> {
    let mut at = bad;
    loop {
        at.block += 1;
        if at.block == log.count {
            at = Position { cycle: at.cycle.wrapping_add(1), block: 0 };
        }
        if at.block == head.block {
            return Ok(None);
        }
        let block = log.read(at.block, 1)?;
        if is_header(&block) && cycle_of(&block) == at.cycle {
            return Ok(Some(at));
        }
    }
}

/// The first block after the newest one, with the cycle that a record there would have; `None` for a log that was never written.
fn find_head(log: &LogBlocks<'_>) -> Result<Option<Position>> {
    let (first, last) = (log.cycle(0)?, log.cycle(log.count - 1)?);
    if first == 0 {
        return Ok(None);
    }
    if first == last {
        // The newest cycle ends with the log's last block, unless blocks before that were not written.
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
        // Zeroed blocks, which no crash leaves, are before the head, as in Linux: the record that ends at them is not the last one.
        if log.cycle(middle)? == last { high = middle } else { low = middle }
    }
    // Before block 0 the log's end is of the cycle before, unless that was not written either.
    let wrapped = last.wrapping_sub(1);
    let stale = |is_wrapped: bool| if is_wrapped { wrapped } else { last };
    let block = first_stale(log, high, stale)?.unwrap_or(high);
    let cycle = if block > high { last } else { first };
    Ok(Some(Position { cycle, block }))
}

/// The first block of an older cycle among those before the head that can have been in flight.
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

/// The last record that begins before a position; a log that was written has one.
fn last_record(log: &LogBlocks<'_>, end: Position) -> Result<Position> {
    let none = || log.place(end.block % log.count).corrupt("none is before the head of the log");
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
