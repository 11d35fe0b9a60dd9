//! The generic path for owned memory. It carries out requests of several bios, and processes the short and failed completions of all queued
//! requests.
//!
//! The memory of a request is cut into parts that are each contiguous on the device. Each part moves into a bio, and returns with the
//! completed bio. Before the request completes, the parts are joined. A request on the simple path uses this code only if its completion is
//! short or failed.

mod bounced;
mod slab;

use std::collections::VecDeque;

pub(super) use self::slab::Slab;

use self::bounced::Bounced;
use super::parts::{Buffers, Shape, join, take, to_memory, zero};
use super::rejected::Rejected;
use super::transfer::{Next, TransferTo};
use super::{Completion, Hold, Holding, Io, RETRIES, Request, State, Target, plan};
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, CompletionWork, Dev, Done, Memory};
use crate::device::DeviceQueue;
use crate::error::{Errno, Error, Result};
use crate::iomap::{Iomap, MapFile, Written, WrittenParts};
use crate::open_file::Completing;
use crate::units::{DevOffset, InodeNo};

/// A reserved part number. The bio with this number transfers all data of its request through a bounce buffer. A separate variant of
/// [`BioEnd`] would cost each completion of the simple path some instructions.
pub(super) const COPY: u32 = u32::MAX;

/// A request with several parts.
pub(super) struct SplitRequest {
    /// The request as the device receives it. If the data are copied, the range is extended to whole sectors.
    request: Request,
    flags: BioFlags,
    inode: InodeNo,
    /// The work at the completion of the request (for example a conversion of the written range), and the lock on the file's content.
    /// `None` if the file cannot change.
    completing: Option<Completing>,
    /// The parts of a write for which the metadata must be updated.
    written: WrittenParts,
    /// The number of bytes that the caller receives if there is no error. A read may transfer more bytes; they are past the end of the
    /// file, and are zeroed.
    count: usize,
    /// The memory of each part, in order. While a bio contains the memory of a part, the part's entry is empty.
    parts: Vec<Buffers>,
    /// The memory that is not yet cut into parts.
    rest: VecDeque<Buffer>,
    /// The form of the caller's memory, into which the parts are joined.
    shape: Shape,
    /// The caller's memory if its data are copied through bounce buffers. The request then has no `parts`.
    bounced: Option<Bounced>,
    in_flight: usize,
    error: Option<Error>,
    retries: u8,
}

impl SplitRequest {
    pub(super) fn completing(&self) -> Option<Completing> {
        self.completing
    }

    fn new(request: Request, inode: InodeNo, completing: Option<Completing>, count: usize) -> Self {
        Self {
            request,
            flags: BioFlags::empty(),
            inode,
            completing,
            written: WrittenParts::new(),
            count,
            parts: Vec::new(),
            rest: VecDeque::new(),
            shape: Shape::Flat,
            bounced: None,
            // During the submission, the request counts one additional part, so that bios that complete early do not end the request.
            in_flight: 1,
            error: None,
            retries: RETRIES,
        }
    }
}

/// Starts a request of any number of bios. The request is a read that begins before the end of the file, or a write to allocated blocks.
/// `left` is additional completion work.
///
/// # Errors
/// Returns the reason and the memory. The caller must then release the content lock.
pub(crate) fn submit<M: MapFile>(
    queue: &mut dyn DeviceQueue,
    state: &mut State,
    target: &Target<'_, M>,
    memory: Memory,
    request: &Request,
    left: CompletionWork,
) -> Result<(), Box<Rejected>> {
    let (geometry, is_write) = (target.geometry, request.op == BioOp::Write);
    let copied = if is_write { geometry.copied.owned_writes } else { geometry.copied.reads };
    let addresses = memory.buffers().iter().map(|buf| (buf.address(), buf.len()));
    let direct = plan::is_direct(target, copied, request, addresses);
    let span = target.span(request);
    let (pos, len, skip) = if direct {
        (request.pos, span.device, 0)
    } else {
        geometry.widen(request.pos, span.count)
    };
    let device = Request { pos, len, ..*request };
    let planned = plan::plan(state, target, &device).and_then(|plan| {
        plan::check_room(queue, state, &plan, &device, direct)?;
        Ok(plan)
    });
    let plan = match planned {
        Ok(plan) => plan,
        Err(error) => return Err(Rejected::boxed(error, memory)),
    };
    let left = if is_write { left | plan::left_by(&plan) } else { left };
    let completing = target.live.map(|it| it.completing(left, request.pos, span.count));
    let mut split = SplitRequest::new(device, target.inode, completing, span.count);
    split.flags = plan::bio_flags(target, &plan, &device, direct);
    if is_write {
        split.written = plan.iter().filter_map(Written::of).collect();
    }
    if direct {
        split.shape = Shape::of(&memory);
        split.rest = memory.into_buffers().into();
    } else {
        split.bounced = Some(Bounced { memory, skip });
    }
    state.outstanding += 1;
    state.stats.bounced += u64::from(!direct);
    state.stats.writes += u64::from(is_write);
    state.files.expect(left);
    Io { queue, state }.start(target, split, &plan);
    state.spare_plan = plan;
    Ok(())
}

impl Io<'_> {
    /// Submits a bio of a started request. The bio may be new or repeated.
    fn submit_part(&mut self, bio: Bio) {
        if let Err((errno, bio)) = self.submit_waiting(bio) {
            self.complete(Done { bio, result: Err(errno) });
        }
    }

    /// Submits a bio for each mapping that needs the device. Reads all other mappings without the device. Stops at the first error.
    fn start<M: MapFile>(&mut self, target: &Target<'_, M>, split: SplitRequest, plan: &[Iomap]) {
        let index = self.state.splits.insert(split);
        let mut offset = 0;
        for iomap in plan {
            let split = self.state.splits.get_mut(index).filter(|split| split.error.is_none());
            let Some(split) = split else { break };
            let started = if !plan::is_transferred(split.request.op, iomap.kind) {
                split.read_unmapped(target, iomap, offset)
            } else if split.bounced.is_some() {
                self.start_pieces(target.dev, index, iomap, offset)
            } else {
                let bio = split.next_part(target.dev, index, iomap);
                self.submit_part(bio);
                Ok(())
            };
            if let Err(error) = started
                && let Some(split) = self.state.splits.get_mut(index)
            {
                split.error.get_or_insert(error);
            }
            offset += iomap.len as usize;
        }
        // This call ends the submission. Until now, the request has counted one additional part, so that it could not complete too early.
        self.state.release_part(index);
    }

    /// Processes every completion except a successful completion of the simple path.
    #[cold]
    pub(super) fn complete(&mut self, mut done: Done) {
        let len = done.bio.memory.len();
        if done.result == Err(Errno::EILSEQ) && done.bio.flags.contains(BioFlags::REREAD) {
            let Bio { dev, at, flags, memory, .. } = &mut done.bio;
            let (sector_mask, flags) = (self.state.sector_mask, *flags);
            let to = TransferTo { dev: *dev, sector_mask, flags };
            done.result = self.reread(to, *at, memory.buffers_mut()).map(|()| len);
        }
        let (token, inode, pos, completing, written) = match done.bio.end {
            BioEnd::Part { request, part: COPY } => return self.complete_short(done, request),
            BioEnd::Part { request, part } => {
                let split = self.state.splits.get(request);
                return match split.is_some_and(|split| split.bounced.is_some()) {
                    true => self.complete_piece(done, request, part),
                    false => self.complete_part(done, request, part),
                };
            }
            BioEnd::Whole { token, inode, pos } => (token, inode, pos, None, None),
            BioEnd::Live { token, pos, slot, left } => {
                let holding = Holding { slot, hold: Hold::Lane };
                let completing = holding.completing(left, pos, len);
                let written = Written::at(pos, len, done.bio.at, left);
                (token, self.state.files.number(slot), pos, Some(completing), written)
            }
        };
        if done.result == Ok(len) {
            let completion = Completion { token, memory: done.bio.memory, result: Ok(len) };
            return self.state.end(completing, written.as_slice(), completion);
        }
        // A whole request in one bio has failed or was short. It becomes a request of one part, because the code for parts handles errors
        // and short transfers.
        let request = Request::of(done.bio.op, pos, len).token(token);
        let mut split = SplitRequest::new(request, inode, completing, len);
        split.written.extend(written);
        split.parts.push(Buffers::new());
        let index = self.state.splits.insert(split);
        // A repeated submission of the bio must refer to the new request.
        done.bio.end = BioEnd::Part { request: index, part: 0 };
        self.complete_part(done, index, 0);
    }

    fn complete_part(&mut self, done: Done, index: u32, part: u32) {
        let Done { bio, result } = done;
        let len = bio.memory.len();
        let sector_mask = self.state.sector_mask;
        let Some(split) = self.state.splits.get_mut(index) else { return };
        let Some(buffers) = split.parts.get_mut(part as usize) else { return };
        let next = Next::after(result, len, sector_mask, bio.flags, &mut split.retries);
        let failed = split.error.is_some();
        let errno = match next {
            Next::Complete => None,
            Next::Fail(errno) => Some(errno),
            // The request has already failed, so the remaining bytes are not transferred.
            Next::Continue(_) | Next::Repeat if failed => None,
            Next::Continue(count) => {
                self.state.stats.short += 1;
                let mut rest: VecDeque<Buffer> = bio.memory.into_buffers().into();
                buffers.extend(take(&mut rest, count));
                let at = DevOffset(bio.at.0 + count as u64);
                // NOWAIT is cleared, because the device could refuse the remaining bytes after the first part was transferred.
                let flags = bio.flags - BioFlags::NOWAIT;
                let memory = to_memory(rest.into_iter().collect());
                return self.submit_part(Bio { at, flags, memory, ..bio });
            }
            Next::Repeat => return self.submit_part(bio),
        };
        buffers.extend(bio.memory.into_buffers());
        if let Some(errno) = errno {
            self.state.fail(index, errno);
        }
        self.state.release_part(index);
    }
}

impl State {
    /// Ends a request whose result is known.
    pub(super) fn end(
        &mut self,
        completing: Option<Completing>,
        written: &[Written],
        completion: Completion,
    ) {
        let completion = match completing {
            None => Some(completion),
            Some(completing) => self.files.end(completing, written, completion),
        };
        self.finished.extend(completion);
    }

    /// Records the failure of a request. A request reports only its first failure.
    #[cold]
    fn fail(&mut self, index: u32, errno: Errno) {
        let split = self.splits.get(index).filter(|split| split.error.is_none());
        let Some(split) = split else { return };
        let error = self.failed(errno, split.inode, &split.request);
        if let Some(split) = self.splits.get_mut(index) {
            split.error = Some(error);
        }
    }

    /// Ends a part of a request. The end of the last part completes the request.
    fn release_part(&mut self, index: u32) {
        let Some(split) = self.splits.get_mut(index) else { return };
        split.in_flight -= 1;
        if split.in_flight == 0
            && let Some(mut split) = self.splits.remove(index)
        {
            let written = std::mem::take(&mut split.written);
            self.end(split.completing, &written, split.into_completion());
        }
    }
}

impl SplitRequest {
    /// Returns the bio of the next part. The part covers one whole mapping.
    fn next_part(&mut self, dev: Dev, request: u32, iomap: &Iomap) -> Bio {
        let end = BioEnd::Part { request, part: self.parts.len() as u32 };
        self.parts.push(Buffers::new());
        self.in_flight += 1;
        let memory = to_memory(take(&mut self.rest, iomap.len as usize));
        Bio { op: self.request.op, flags: self.flags, dev, at: iomap.addr, memory, end }
    }

    /// Reads a mapping without the device: a hole, an unwritten extent, or inline data.
    fn read_unmapped<M: MapFile>(
        &mut self,
        target: &Target<'_, M>,
        iomap: &Iomap,
        offset: usize,
    ) -> Result<()> {
        if self.bounced.is_some() {
            return self.read_unmapped_bounced(target, iomap, offset);
        }
        let mut part = take(&mut self.rest, iomap.len as usize);
        let bufs = part.iter_mut().map(|buf| &mut **buf);
        let result = target.read_unmapped(iomap.kind, iomap.pos, bufs);
        self.parts.push(part);
        result
    }

    fn into_completion(self) -> Completion {
        let Request { op, len, token, .. } = self.request;
        let memory = match self.bounced {
            Some(bounced) => bounced.memory,
            None => {
                let parts = self.parts.into_iter().flatten().chain(self.rest);
                let mut memory = join(parts, &self.shape);
                if op == BioOp::Read {
                    zero(memory.buffers_mut(), self.count..len);
                }
                memory
            }
        };
        Completion { token, memory, result: self.error.map_or(Ok(self.count), Err) }
    }
}
