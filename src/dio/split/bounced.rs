//! Requests whose bios have bounce buffers: the caller's memory stays here, and a piece of the pool goes down for each piece of the range.
//! Writes are copied before they are submitted, reads by the thread that takes the completion; then the piece is free for the next.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

use smallvec::SmallVec;

use super::{SplitRequest, fail, release, submit_part};
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Dev, Done, Memory};
use crate::device::{DeviceQueue, LentPart};
use crate::dio::bounce;
use crate::dio::parts::{Buffers, copy, to_memory, within, within_mut};
use crate::dio::transfer::{self, TransferTo};
use crate::dio::{State, Target};
use crate::error::{Errno, Error, Result};
use crate::iomap::{Iomap, MapFile};
use crate::units::{DevOffset, FilePos};

/// The caller's memory of a request that goes through bounce buffers.
pub(super) struct Bounced {
    pub(super) memory: Memory,
    /// Distance of its first byte from the first that the device transfers.
    pub(super) skip: usize,
}

/// Submits the pieces of a mapping, which begins at `offset` in the request, and waits for its first ones where the pool has no more.
pub(super) fn start_pieces<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    dev: Dev,
    index: u32,
    iomap: &Iomap,
    offset: usize,
) -> Result<()> {
    let mut done = 0;
    while done < iomap.len as usize {
        let left = iomap.len as usize - done;
        let part = u32::try_from(offset + done).map_err(|_| too_long())?;
        let Some(split) = state.splits.get(index) else { break };
        let flags = split.flags;
        // An atomic write is submitted as a whole.
        let atomic = flags.contains(BioFlags::ATOMIC);
        let len = if atomic { left } else { state.pool.next(left) };
        let mut pieces = bounce::take(queue, state, len, flags.contains(BioFlags::NOWAIT))?;
        let Some(split) = state.splits.get_mut(index).filter(|split| split.error.is_none()) else {
            // One that came back while others were waited for had failed.
            bounce::give(queue, state, pieces);
            break;
        };
        let op = split.request.op;
        if op == BioOp::Write {
            split.copy_in(&mut pieces, offset + done);
        }
        split.in_flight += 1;
        let bio = Bio {
            op,
            flags,
            dev,
            at: DevOffset(iomap.addr.0 + done as u64),
            memory: to_memory(pieces),
            end: BioEnd::Part { request: index, part },
        };
        submit_part(queue, state, bio);
        if op == BioOp::Write && bounce::is_long(len) {
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
    if let Some(split) = state.splits.get_mut(index)
        && result.is_ok()
        && split.request.op == BioOp::Read
    {
        split.copy_out(&memory, part as usize);
    }
    bounce::give_back(queue, state, memory);
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
    let mut to = TransferTo { dev: bio.dev, sector_mask: state.sector_mask, flags: bio.flags };
    let count = match *result {
        Ok(count) if count == len => return Ok(()),
        Ok(0) => return Err(Errno::EIO),
        Ok(count) => {
            state.stats.short += 1;
            count & !(to.sector_mask as usize)
        }
        Err(Errno::EAGAIN) if !bio.flags.contains(BioFlags::NOWAIT) => 0,
        Err(errno) => {
            state.write_failed(bio.flags, errno);
            return Err(errno);
        }
    };
    if count > 0 {
        // A request that is done in part is no longer refused.
        to.flags -= BioFlags::NOWAIT;
    }
    let at = DevOffset(bio.at.0 + count as u64);
    if bio.op == BioOp::Read {
        let bufs = within_mut(bio.memory.buffers_mut(), count..len).map(IoSliceMut::new).collect();
        let part = LentPart::new(bufs, at);
        transfer::read_parts(queue, state, to, [part].into_iter().collect())
    } else {
        let bufs: SmallVec<[_; 2]> =
            within(bio.memory.buffers(), count..len).map(IoSlice::new).collect();
        transfer::write_all(queue, state, to, &bufs, at)
    }
}

impl SplitRequest {
    /// Reads content that is not on the device.
    pub(super) fn read_unmapped_bounced<M: MapFile>(
        &mut self,
        target: &Target<'_, M>,
        iomap: &Iomap,
        offset: usize,
    ) -> Result<()> {
        let range = self.callers(offset, iomap.len as usize);
        let Some(Bounced { memory, skip }) = &mut self.bounced else { return Ok(()) };
        let pos = FilePos(self.request.pos.0 + (*skip + range.start) as u64);
        target.read_unmapped(iomap.kind, pos, within_mut(memory.buffers_mut(), range))
    }

    /// The part of the caller's memory that belongs to `len` bytes of the device's range.
    fn callers(&self, offset: usize, len: usize) -> Range<usize> {
        let skip = self.bounced.as_ref().map_or(0, |bounced| bounced.skip);
        let place = |offset: usize| offset.saturating_sub(skip).min(self.count);
        place(offset)..place(offset + len)
    }

    fn copy_in(&self, pieces: &mut Buffers, offset: usize) {
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
