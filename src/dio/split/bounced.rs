//! Queued requests whose data are copied through bounce buffers. The request owns the caller's memory, and its bios own pieces from the
//! queue's pool. A write copies its data before the submission. A read copies its data when the completion is processed. After that, the
//! piece is free for another request.

use std::ops::Range;

use super::SplitRequest;
use crate::bio::slices::{cut, cut_mut, within, within_mut};
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Dev, Done, Memory};
use crate::device::LentPart;
use crate::dio::bounce;
use crate::dio::parts::{Buffers, copy, to_memory};
use crate::dio::transfer::{Next, TransferTo};
use crate::dio::{Io, RETRIES, Target};
use crate::error::{Errno, Error, Result};
use crate::iomap::{Iomap, MapFile};
use crate::units::{DevOffset, FilePos};

/// The caller's memory of a request whose data are copied through bounce buffers.
pub(super) struct Bounced {
    pub(super) memory: Memory,
    /// The number of transferred bytes before the first byte of the caller's range.
    pub(super) skip: usize,
}

#[cold]
fn too_long() -> Error {
    Error::invalid("an unaligned request is larger than 4 GiB")
}

impl Io<'_> {
    /// Submits the transfer of one mapping of a request through bounce buffers. `offset` is the position of the mapping in the request. If
    /// no bounce buffer is free, waits for the end of a transfer.
    pub(super) fn start_pieces(
        &mut self,
        dev: Dev,
        index: u32,
        iomap: &Iomap,
        offset: usize,
    ) -> Result<()> {
        let mut done = 0;
        while done < iomap.len as usize {
            let rest = iomap.len as usize - done;
            let part = u32::try_from(offset + done).map_err(|_| too_long())?;
            let Some(split) = self.state.splits.get(index) else { break };
            let flags = split.flags;
            // An atomic write must be one bio, so this bio's bounce buffers must have room for all of the data.
            let atomic = flags.contains(BioFlags::ATOMIC);
            let len = if atomic { rest } else { self.state.pool.next(rest) };
            let mut pieces = self.take_pieces(len, flags.contains(BioFlags::NOWAIT))?;
            let split = self.state.splits.get_mut(index).filter(|split| split.error.is_none());
            let Some(split) = split else {
                // Another transfer of this request failed during the wait, so the request ends.
                self.give_pieces(pieces);
                break;
            };
            let op = split.request.op;
            if op == BioOp::Write {
                split.copy_in(&mut pieces, offset + done);
            }
            split.in_flight += 1;
            let (at, memory) = (DevOffset(iomap.addr.0 + done as u64), to_memory(pieces));
            let end = BioEnd::Part { request: index, part };
            self.submit_part(Bio { op, flags, dev, at, memory, end });
            if op == BioOp::Write && bounce::is_long(len) {
                self.hand_over();
            }
            done += len;
        }
        Ok(())
    }

    /// Processes the completed transfer of a bounce buffer.
    pub(super) fn complete_piece(&mut self, mut done: Done, index: u32, part: u32) {
        let result = self.finish_transfer(&mut done);
        let memory = done.bio.memory;
        if let Some(split) = self.state.splits.get_mut(index)
            && result.is_ok()
            && split.request.op == BioOp::Read
        {
            split.copy_out(&memory, part as usize);
        }
        self.give_memory(memory);
        if let Err(errno) = result {
            self.state.fail(index, errno);
        }
        self.state.release_part(index);
    }

    /// If a bio was short, transfers the remaining bytes. If a bio failed with EAGAIN, repeats it.
    pub(in crate::dio) fn finish_transfer(&mut self, done: &mut Done) -> Result<(), Errno> {
        let Done { bio, result } = done;
        let (len, sector_mask) = (bio.memory.len(), self.state.sector_mask);
        let mut to = TransferTo { dev: bio.dev, sector_mask, flags: bio.flags };
        let mut retries = RETRIES;
        let count = match Next::after(*result, len, sector_mask, bio.flags, &mut retries) {
            Next::Complete => return Ok(()),
            Next::Continue(count) => {
                self.state.stats.short += 1;
                // NOWAIT is cleared, because the device could refuse the remaining bytes after the first part was transferred.
                to.flags -= BioFlags::NOWAIT;
                count
            }
            Next::Repeat => 0,
            Next::Fail(errno) => return Err(errno),
        };
        let at = DevOffset(bio.at.0 + count as u64);
        if bio.op == BioOp::Read {
            let part = LentPart::new(cut_mut(bio.memory.buffers_mut(), count..len), at);
            self.read_parts(to, [part].into_iter().collect())
        } else {
            self.write_all(to, &cut(bio.memory.buffers(), count..len), at)
        }
    }
}

impl SplitRequest {
    /// Reads a mapping without the device: a hole, an unwritten extent, or inline data.
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

    /// Returns the part of the caller's memory for the `len` bytes at `offset` of the transfer.
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
        // In the first sector, the device also transfers bytes before the caller's range. These bytes are not copied.
        let start = (range.start + *skip).saturating_sub(offset);
        let from = within(from.buffers(), start..start + range.len());
        copy(from, within_mut(memory.buffers_mut(), range));
    }
}
