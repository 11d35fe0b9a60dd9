//! Requests whose bios have bounce buffers: the caller's memory stays here, and a piece of the pool goes down for each piece of the range.
//! What is written is copied before it is submitted, what is read by whoever takes the completion; then the piece is free for the next.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

use smallvec::SmallVec;

use super::{Bounced, Request, fail, is_transferred, release, submit_waiting};
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Done, Memory};
use crate::device::{DeviceQueue, LentPart};
use crate::dio::bounce::{self, Pieces};
use crate::dio::parts::{copy, within, within_mut, zero};
use crate::dio::transfer::{self, Way};
use crate::dio::{State, Target};
use crate::error::{Errno, Error, Result};
use crate::iomap::{Iomap, IomapType, MapFile};
use crate::units::{DevOffset, FilePos};

/// Submits the pieces of all mappings, and waits for the request's first ones where the pool has no more. The first error stops it.
pub(super) fn start<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    request: Request,
    plan: &[Iomap],
    flags: BioFlags,
) {
    let op = request.op;
    let index = state.requests.insert(request);
    let mut offset = 0;
    for iomap in plan {
        let started = if is_transferred(op, iomap.kind) {
            start_pieces(queue, state, target, index, iomap, offset, flags)
        } else {
            read_here(state, target, index, iomap, offset)
        };
        if let Err(error) = started {
            if let Some(request) = state.requests.get_mut(index) {
                request.error.get_or_insert(error);
            }
            break;
        }
        offset += iomap.len as usize;
    }
    // The end of the submission.
    release(state, index);
}

fn start_pieces<Q: DeviceQueue, M>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    index: u32,
    iomap: &Iomap,
    offset: usize,
    flags: BioFlags,
) -> Result<()> {
    let mut done = 0;
    while done < iomap.len as usize {
        let left = iomap.len as usize - done;
        let part = u32::try_from(offset + done).map_err(|_| too_long())?;
        // What must not be torn goes down as a whole.
        let atomic = flags.contains(BioFlags::ATOMIC);
        let len = if atomic { left } else { state.pool.next(left) };
        let mut pieces = bounce::take(queue, state, len, flags.contains(BioFlags::NOWAIT))?;
        let Some(request) = state.requests.get_mut(index).filter(|request| request.error.is_none())
        else {
            // One that came back while others were waited for had failed.
            bounce::give(queue, state, pieces);
            break;
        };
        let is_write = request.op == BioOp::Write;
        if is_write {
            request.copy_in(&mut pieces, offset + done);
        }
        request.in_flight += 1;
        let bio = Bio {
            op: request.op,
            flags,
            dev: target.dev,
            at: DevOffset(iomap.addr.0 + done as u64),
            memory: to_memory(pieces),
            end: BioEnd::Part { request: index, part },
        };
        if let Err((errno, bio)) = submit_waiting(queue, state, bio) {
            complete_piece(queue, state, Done { bio, result: Err(errno) }, index, part);
        } else if is_write && bounce::is_long(len) {
            bounce::hand_over(queue);
        }
        done += len;
    }
    Ok(())
}

#[cold]
fn too_long() -> Error {
    Error::invalid("a request of more than 4 GiB that is copied")
}

/// Reads what does not lie on the device.
fn read_here<M: MapFile>(
    state: &mut State,
    target: &Target<'_, M>,
    index: u32,
    iomap: &Iomap,
    offset: usize,
) -> Result<()> {
    let Some(request) = state.requests.get_mut(index) else { return Ok(()) };
    let range = request.callers(offset, iomap.len as usize);
    let Some(Bounced { memory, skip }) = &mut request.bounced else { return Ok(()) };
    if iomap.kind != IomapType::Inline {
        zero(memory.buffers_mut(), range);
        return Ok(());
    }
    let mut pos = FilePos(request.pos.0 + (*skip + range.start) as u64);
    for part in within_mut(memory.buffers_mut(), range) {
        target.map.read_inline(part, pos)?;
        pos = FilePos(pos.0 + part.len() as u64);
    }
    Ok(())
}

/// Takes a piece back.
pub(super) fn complete_piece<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    mut done: Done,
    index: u32,
    part: u32,
) {
    let result = finish_transfer(queue, state, &mut done);
    let memory = done.bio.memory;
    if let Some(request) = state.requests.get_mut(index)
        && result.is_ok()
        && request.op == BioOp::Read
    {
        request.copy_out(&memory, part as usize);
    }
    match memory {
        Memory::Flat(piece) => bounce::give(queue, state, [piece]),
        Memory::Vectored(pieces) => bounce::give(queue, state, pieces),
    }
    if let Err(errno) = result {
        fail(state, index, errno);
    }
    release(state, index);
}

/// Carries out what a bio left of its transfer.
pub(in crate::dio) fn finish_transfer<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    done: &mut Done,
) -> Result<(), Errno> {
    let Done { bio, result } = done;
    let len = bio.memory.len();
    let mut way = Way { dev: bio.dev, sector_mask: state.sector_mask, flags: bio.flags };
    let count = match *result {
        Ok(count) if count == len => return Ok(()),
        Ok(0) => return Err(Errno::EIO),
        Ok(count) => {
            state.stats.short += 1;
            count & !(way.sector_mask as usize)
        }
        Err(Errno::EAGAIN) if !bio.flags.contains(BioFlags::NOWAIT) => 0,
        Err(errno) => {
            state.write_failed(bio.flags, errno);
            return Err(errno);
        }
    };
    if count > 0 {
        // What is done in part is no longer refused.
        way.flags -= BioFlags::NOWAIT;
    }
    let at = DevOffset(bio.at.0 + count as u64);
    if bio.op == BioOp::Read {
        let bufs = within_mut(bio.memory.buffers_mut(), count..len).map(IoSliceMut::new).collect();
        let part = LentPart::new(bufs, at);
        transfer::read_parts(queue, state, way, [part].into_iter().collect())
    } else {
        let bufs: SmallVec<[_; 2]> =
            within(bio.memory.buffers(), count..len).map(IoSlice::new).collect();
        transfer::write_all(queue, state, way, &bufs, at)
    }
}

fn to_memory(mut pieces: Pieces) -> Memory {
    match pieces.pop() {
        Some(only) if pieces.is_empty() => Memory::Flat(only),
        last => {
            pieces.extend(last);
            Memory::Vectored(pieces.into_vec())
        }
    }
}

impl Request {
    /// The part of the caller's memory that belongs to `len` bytes of the device's range.
    fn callers(&self, offset: usize, len: usize) -> Range<usize> {
        let skip = self.bounced.as_ref().map_or(0, |bounced| bounced.skip);
        let place = |offset: usize| offset.saturating_sub(skip).min(self.count);
        place(offset)..place(offset + len)
    }

    fn copy_in(&self, pieces: &mut Pieces, offset: usize) {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let range = self.callers(offset, len);
        let Some(Bounced { memory, .. }) = &self.bounced else { return };
        copy(within(memory.buffers(), range), within_mut(pieces, 0..len));
    }

    fn copy_out(&mut self, from: &Memory, offset: usize) {
        let range = self.callers(offset, from.len());
        let Some(Bounced { memory, skip }) = &mut self.bounced else { return };
        // Before the caller's first byte may stand the rest of a sector.
        let start = (range.start + *skip).saturating_sub(offset);
        let from = within(from.buffers(), start..start + range.len());
        copy(from, within_mut(memory.buffers_mut(), range));
    }
}
