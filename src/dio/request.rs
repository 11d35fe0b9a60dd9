//! The generic path for owned memory: a request of several bios, and everything that is not a clean completion.
//!
//! A request's memory is cut into the parts that lie together on the device, each part moves down with its bio and comes
//! back with it, and the parts are joined before the request completes. Nothing here is on the simple path.

use std::collections::VecDeque;

use super::live::Owed;
use super::parts::{Shape, copy_out, join, take, to_memory};
use super::{Completion, DioFlags, Hold, Holding, RETRIES, State, Target, generic, zero_tail};
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Done, Left, Memory};
use crate::device::DeviceQueue;
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::events::Direction;
use crate::iomap::{Iomap, IomapType, MapFile, Mappings};
use crate::units::{DevOffset, FilePos, InodeNo};

/// A request that was not started, and its memory.
#[derive(Debug)]
pub struct Rejected {
    /// Why.
    pub error: Error,
    /// The memory that would have gone down with it.
    pub memory: Memory,
}

impl Rejected {
    /// In a box, so that the result of a submission that goes well is one register.
    #[cold]
    pub(crate) fn boxed(error: Error, memory: Memory) -> Box<Self> {
        Box::new(Self { error, memory })
    }
}

/// The requests of a queue that have parts.
#[derive(Default)]
pub(super) struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<u32>,
}

impl Requests {
    pub(super) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// What requests that are not complete owe.
    pub(super) fn owed(&self) -> impl Iterator<Item = Owed> {
        self.slots.iter().flatten().filter_map(|request| request.owed)
    }

    fn insert(&mut self, request: Request) -> u32 {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = Some(request);
            return index;
        }
        self.slots.push(Some(request));
        self.slots.len() as u32 - 1
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut Request> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    fn remove(&mut self, index: u32) -> Option<Request> {
        let request = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(request)
    }
}

pub(super) struct Request {
    op: BioOp,
    token: u64,
    /// What it owes a file that can change.
    owed: Option<Owed>,
    inode: InodeNo,
    pos: FilePos,
    /// Bytes that the caller gets when all goes well.
    count: usize,
    /// Bytes read from the device; those behind `count` are zeroed.
    device: usize,
    /// The memory in order, each part's own; empty while it is with a bio.
    parts: Vec<Vec<Buffer>>,
    /// The lengths of the caller's buffers, to join the parts to.
    shape: Shape,
    in_flight: usize,
    error: Option<Error>,
    retries: u8,
    bounced_for: Option<BouncedFor>,
}

/// The caller's memory of a request that goes through a bounce buffer.
struct BouncedFor {
    memory: Memory,
    /// Distance of the caller's first byte from the bounce buffer's.
    skip: usize,
    /// Bytes that the caller gets.
    count: usize,
}

/// Submits a request that is one bio.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a request's parts, and where they go")]
pub(super) fn submit_whole<Q: DeviceQueue, M>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    at: DevOffset,
    memory: Memory,
    pos: FilePos,
    flags: DioFlags,
    token: u64,
) -> Result<(), Box<Rejected>> {
    let end = match target.live {
        None => BioEnd::Whole { token, inode: target.inode, pos },
        Some(holding) => BioEnd::Live { token, pos, slot: holding.slot, left: Left::empty() },
    };
    let bio = Bio { op: BioOp::Read, flags: flags.for_bio(), dev: target.dev, at, memory, end };
    submit_bio(queue, state, bio, flags)
}

/// Submits a bio that is a whole request.
#[inline(always)]
pub(super) fn submit_bio<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    bio: Bio,
    flags: DioFlags,
) -> Result<(), Box<Rejected>> {
    match queue.submit(bio) {
        Ok(()) => {}
        Err(bio) => submit_when_room(queue, state, bio, flags)?,
    }
    state.outstanding += 1;
    Ok(())
}

/// Submits a bio that found no slot: waits for one, unless the caller will not.
#[cold]
fn submit_when_room<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    bio: Bio,
    flags: DioFlags,
) -> Result<(), Box<Rejected>> {
    if flags.contains(DioFlags::NOWAIT) {
        let error = Error::new(ErrorKind::WouldBlock, "no slot is free");
        return Err(Rejected::boxed(error, bio.memory));
    }
    submit_waiting(queue, state, bio)
        .map_err(|(errno, bio)| Rejected::boxed(super::hand_over_failed(errno), bio.memory))
}

/// Submits a bio, making room by taking completions first.
#[allow(clippy::result_large_err, reason = "the bio moves back whole, without an allocation")]
fn submit_waiting<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    mut bio: Bio,
) -> Result<(), (Errno, Bio)> {
    loop {
        match queue.submit(bio) {
            Ok(()) => return Ok(()),
            Err(back) => bio = back,
        }
        if let Err(errno) = queue.wait(1) {
            return Err((errno, bio));
        }
        // One is enough; the completion of a part may submit that part again, into the slot that became free.
        if let Some(done) = queue.pop() {
            complete(queue, state, done);
        }
    }
}

/// Starts a read of any range.
pub(super) fn submit<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    memory: Memory,
    pos: FilePos,
    flags: DioFlags,
    token: u64,
) -> Result<(), Box<Rejected>> {
    let len = memory.len();
    if len == 0 || pos.0 >= target.size {
        state.outstanding += 1;
        let owed = target.live.map(|holding| holding.owes(Left::empty(), pos, len));
        finish(state, owed, Completion { token, memory, result: Ok(0) });
        return Ok(());
    }
    let aligned = target
        .geometry
        .is_aligned(pos, memory.buffers().iter().map(|buf| (buf.address(), buf.len())));
    if !aligned && target.strict {
        return Err(Rejected::boxed(target.geometry.misaligned(pos, len), memory));
    }
    if aligned
        && !flags.contains(DioFlags::BOUNCE)
        && matches!(memory, Memory::Flat(_))
        && target.live.is_none_or(|holding| holding.is_light())
        && len as u64 <= target.size - pos.0
    {
        match generic::one_piece(target, pos, len, flags) {
            Ok(Some(at)) => {
                return submit_whole(queue, state, target, at, memory, pos, flags, token);
            }
            Ok(None) => {}
            Err(error) => return Err(Rejected::boxed(error, memory)),
        }
    }
    let nowait = flags.contains(DioFlags::NOWAIT);
    let (pos, memory, bounced_for) = if aligned && !flags.contains(DioFlags::BOUNCE) {
        (pos, memory, None)
    } else {
        state.stats.bounced += 1;
        let count = (target.size - pos.0).min(len as u64) as usize;
        let (start, widened, skip) = target.geometry.widen(pos, count);
        match Buffer::aligned(widened) {
            Ok(bounce) => (start, Memory::Flat(bounce), Some(BouncedFor { memory, skip, count })),
            Err(error) => return Err(Rejected::boxed(error, memory)),
        }
    };
    let span = target.span(pos, memory.len());
    let mappings = match plan(target, pos, span.device, nowait) {
        Ok(mappings) => mappings,
        Err(error) => {
            let memory = bounced_for.map_or(memory, |bounced| bounced.memory);
            return Err(Rejected::boxed(error, memory));
        }
    };
    let bios = mappings.iter().filter(|iomap| iomap.kind == IomapType::Mapped).count();
    if nowait && bios > queue.room() {
        let error = Error::new(
            ErrorKind::WouldBlock,
            format!("{bios} slots are needed, {} are free", queue.room()),
        );
        let memory = bounced_for.map_or(memory, |bounced| bounced.memory);
        return Err(Rejected::boxed(error, memory));
    }

    let shape = Shape::of(&memory);
    let request = Request {
        op: BioOp::Read,
        token,
        owed: target.live.map(|holding| holding.owes(Left::empty(), pos, span.count)),
        inode: target.inode,
        pos,
        count: span.count,
        device: span.device,
        parts: Vec::with_capacity(mappings.len() + 1),
        shape,
        // The submission itself counts, so that early completions do not end the request.
        in_flight: 1,
        error: None,
        retries: RETRIES,
        bounced_for,
    };
    state.outstanding += 1;
    let mut bio_flags = flags.for_bio();
    if bios > 1 {
        bio_flags -= BioFlags::HIPRI;
    }
    start(queue, state, target, request, memory, &mappings, bio_flags);
    Ok(())
}

/// A write of what the plan maps, of memory that the device takes as it is.
pub(super) struct Write {
    pub(super) token: u64,
    pub(super) owed: Option<Owed>,
    pub(super) pos: FilePos,
    /// The caller's memory where `memory` is a copy of it.
    pub(super) original: Option<Memory>,
    pub(super) memory: Memory,
}

/// Starts a write.
pub(super) fn start_write<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    write: Write,
    plan: &[Iomap],
    flags: BioFlags,
) {
    let Write { token, owed, pos, original, memory } = write;
    let len = memory.len();
    let request = Request {
        op: BioOp::Write,
        token,
        owed,
        inode: target.inode,
        pos,
        count: len,
        device: len,
        parts: Vec::with_capacity(plan.len() + 1),
        shape: Shape::of(&memory),
        in_flight: 1,
        error: None,
        retries: RETRIES,
        bounced_for: original.map(|memory| BouncedFor { memory, skip: 0, count: len }),
    };
    state.outstanding += 1;
    start(queue, state, target, request, memory, plan, flags);
}

/// The mappings of a range, cut to what one bio may carry.
pub(super) fn plan<M: MapFile>(
    target: &Target<'_, M>,
    pos: FilePos,
    len: usize,
    resident: bool,
) -> Result<Vec<Iomap>> {
    let max = u64::from(target.geometry.limits.max_transfer);
    let mut plan = Vec::new();
    for iomap in Mappings::new(target.map, pos, FilePos(pos.0 + len as u64)).resident(resident) {
        let iomap = iomap?;
        let mut from = iomap.pos;
        while from < iomap.end() {
            let to = FilePos(from.0.saturating_add(max)).min(iomap.end());
            plan.push(iomap.cut(from, to));
            from = to;
        }
    }
    Ok(plan)
}

/// Cuts the memory by the mappings and submits a bio for each that lies on the device. The first error stops it.
fn start<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    request: Request,
    memory: Memory,
    mappings: &[Iomap],
    flags: BioFlags,
) {
    let op = request.op;
    let index = state.requests.insert(request);
    let mut rest: VecDeque<Buffer> = memory.into_buffers().into();
    for (part, iomap) in mappings.iter().enumerate() {
        let mut buffers = take(&mut rest, iomap.len as usize);
        let Some(request) = state.requests.get_mut(index) else { return };
        let failed = request.error.is_some();
        match iomap.kind {
            // Unwritten extents are converted when they hold what is written.
            IomapType::Mapped | IomapType::Unwritten
                if !failed && (op == BioOp::Write || iomap.kind == IomapType::Mapped) =>
            {
                request.parts.push(Vec::new());
                request.in_flight += 1;
                let end = BioEnd::Part { request: index, part: part as u32 };
                let bio = Bio {
                    op,
                    flags,
                    dev: target.dev,
                    at: iomap.addr,
                    memory: to_memory(buffers),
                    end,
                };
                if let Err((errno, bio)) = submit_waiting(queue, state, bio) {
                    complete(queue, state, Done { bio, result: Err(errno) });
                }
                continue;
            }
            IomapType::Hole | IomapType::Unwritten if op == BioOp::Read => {
                buffers.iter_mut().for_each(|buf| buf.fill(0));
            }
            IomapType::Inline if !failed => {
                let mut pos = iomap.pos;
                for buf in &mut buffers {
                    if let Err(error) = target.map.read_inline(buf, pos) {
                        request.error = Some(error);
                        break;
                    }
                    pos = FilePos(pos.0 + buf.len() as u64);
                }
            }
            _ => {}
        }
        request.parts.push(buffers);
    }
    if let Some(request) = state.requests.get_mut(index) {
        // What lies behind the end of the file, untouched, and the end of the submission.
        request.parts.push(rest.into());
    }
    release(state, index);
}

/// Deals with a completion that is not a clean one of the simple path.
#[cold]
pub(super) fn complete<Q: DeviceQueue>(queue: &mut Q, state: &mut State, mut done: Done) {
    let len = done.bio.memory.len();
    let (token, inode, pos, owed) = match done.bio.end {
        BioEnd::Part { request, part } => return complete_part(queue, state, done, request, part),
        BioEnd::Whole { token, inode, pos } => (token, inode, pos, None),
        BioEnd::Live { token, pos, slot, left } => {
            let holding = Holding { slot, hold: Hold::Lane };
            (token, state.lives.number(slot), pos, Some(holding.owes(left, pos, len)))
        }
    };
    if done.result == Ok(len) {
        let completion = Completion { token, memory: done.bio.memory, result: Ok(len) };
        return finish(state, owed, completion);
    }
    // Anything else makes it a request of one part, which knows what to do.
    let index = state.requests.insert(Request {
        op: done.bio.op,
        token,
        owed,
        inode,
        pos,
        count: len,
        device: len,
        parts: vec![Vec::new()],
        shape: Shape::Flat,
        in_flight: 1,
        error: None,
        retries: RETRIES,
        bounced_for: None,
    });
    // What is submitted again belongs to that request.
    done.bio.end = BioEnd::Part { request: index, part: 0 };
    complete_part(queue, state, done, index, 0);
}

/// Ends a request that has its result.
fn finish(state: &mut State, owed: Option<Owed>, completion: Completion) {
    let completion = match owed {
        None => Some(completion),
        Some(owed) => state.lives.end(owed, completion),
    };
    state.finished.extend(completion);
}

fn complete_part<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    done: Done,
    index: u32,
    part: u32,
) {
    let Done { bio, result } = done;
    let len = bio.memory.len();
    let whole = result.map(|count| count & !(state.sector_mask as usize));
    let none = matches!(result, Ok(0));
    let Some(request) = state.requests.get_mut(index) else { return };
    let Some(buffers) = request.parts.get_mut(part as usize) else { return };
    let errno = match whole {
        _ if result == Ok(len) => None,
        // A part was transferred: the rest, from a whole logical block on, is asked for again.
        Ok(count) if count > 0 && request.error.is_none() => {
            state.stats.short += 1;
            let mut rest: VecDeque<Buffer> = bio.memory.into_buffers().into();
            buffers.extend(take(&mut rest, count));
            let at = DevOffset(bio.at.0 + count as u64);
            let bio = Bio { at, memory: to_memory(rest.into()), ..bio };
            return resubmit(queue, state, bio);
        }
        // Less than a logical block of the coarsest device is asked for again too.
        Ok(_) | Err(Errno::EAGAIN) if !none && !bio.flags.contains(BioFlags::NOWAIT) => {
            if request.retries > 0 && request.error.is_none() {
                request.retries -= 1;
                return resubmit(queue, state, bio);
            }
            Some(Errno::EIO)
        }
        Ok(_) => Some(Errno::EIO),
        Err(errno) => Some(errno),
    };
    buffers.extend(bio.memory.into_buffers());
    let (inode, pos, asked) = (request.inode, request.pos, request.device);
    let direction = match request.op {
        BioOp::Read => Direction::DirectRead,
        _ => Direction::DirectWrite,
    };
    if let Some(errno) = errno.filter(|_| request.error.is_none()) {
        let error = state.failed_as(direction, errno, inode, pos, asked);
        if let Some(request) = state.requests.get_mut(index) {
            request.error = Some(error);
        }
    }
    release(state, index);
}

fn resubmit<Q: DeviceQueue>(queue: &mut Q, state: &mut State, bio: Bio) {
    if let Err((errno, bio)) = submit_waiting(queue, state, bio) {
        complete(queue, state, Done { bio, result: Err(errno) });
    }
}

/// Lets go of one of the things that keep a request open; the last one completes it.
fn release(state: &mut State, index: u32) {
    let Some(request) = state.requests.get_mut(index) else { return };
    request.in_flight -= 1;
    if request.in_flight > 0 {
        return;
    }
    if let Some(mut request) = state.requests.remove(index) {
        let owed = request.owed.take();
        finish(state, owed, request.finish());
    }
}

impl Request {
    fn finish(self) -> Completion {
        let mut memory = join(self.parts.into_iter().flatten(), &self.shape);
        let read = self.op == BioOp::Read;
        if read {
            zero_tail(memory.buffers_mut(), self.count, self.device);
        }
        let (memory, count) = match self.bounced_for {
            None => (memory, self.count),
            Some(BouncedFor { memory: mut caller, skip, count }) => {
                if let (true, None, Memory::Flat(bounce)) = (read, &self.error, &memory) {
                    copy_out(&bounce[skip..skip + count], caller.buffers_mut());
                }
                (caller, count)
            }
        };
        Completion { token: self.token, memory, result: self.error.map_or(Ok(count), Err) }
    }
}
