//! The generic path for owned memory: a request of several bios, and everything that is not a clean completion.
//!
//! A request's memory is cut into the parts that lie together on the device, each part moves down with its bio and comes
//! back with it, and the parts are joined before the request completes. Nothing here is on the simple path.

mod bounced;
mod slab;

use std::collections::VecDeque;

pub(super) use self::bounced::finish_transfer;
pub(super) use self::slab::Slab;

use super::bounce::short;
use super::live::Owed;
use super::parts::{Shape, join, take, to_memory, zero};
use super::transfer::Way;
use super::{Completion, DioFlags, Hold, Holding, RETRIES, State, Target, bounce, generic};
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, CompletionWork, Done, Memory};
use crate::device::DeviceQueue;
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::events::Direction;
use crate::iomap::{Iomap, IomapType, MapFile, Mappings};
use crate::units::{DevOffset, FilePos, InodeNo};

/// The part of a bio that is a copy of a whole request. It is no kind of end by itself, since another kind costs the simple path's completions
/// instructions.
pub(super) const COPY: u32 = u32::MAX;

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
pub(super) type Requests = Slab<Request>;

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
    /// What it has instead of parts if its bios have bounce buffers.
    bounced: Option<Bounced>,
    in_flight: usize,
    error: Option<Error>,
    retries: u8,
}

/// The caller's memory of a request that goes through bounce buffers.
struct Bounced {
    memory: Memory,
    /// Distance of its first byte from the first that the device transfers.
    skip: usize,
}

/// What a request is about.
#[derive(Clone, Copy)]
struct About {
    op: BioOp,
    token: u64,
    owed: Option<Owed>,
    inode: InodeNo,
    pos: FilePos,
    count: usize,
    device: usize,
}

impl Request {
    /// What it owes a file that can change.
    pub(super) fn owed(&self) -> Option<Owed> {
        self.owed
    }

    fn new(about: About) -> Self {
        let About { op, token, owed, inode, pos, count, device } = about;
        Self {
            op,
            token,
            owed,
            inode,
            pos,
            count,
            device,
            parts: Vec::new(),
            shape: Shape::Flat,
            bounced: None,
            // The submission itself counts, so that early completions do not end the request.
            in_flight: 1,
            error: None,
            retries: RETRIES,
        }
    }
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
        Some(holding) => {
            BioEnd::Live { token, pos, slot: holding.slot, left: CompletionWork::empty() }
        }
    };
    let bio_flags = target.geometry.for_read(flags);
    let bio = Bio { op: BioOp::Read, flags: bio_flags, dev: target.dev, at, memory, end };
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
    let memory = if target.geometry.copies_reads() {
        match short::submit_read(queue, state, target, memory, pos, flags, token) {
            Ok(()) => return Ok(()),
            Err(memory) => memory,
        }
    } else {
        memory
    };
    let len = memory.len();
    if len == 0 || pos.0 >= target.size {
        state.outstanding += 1;
        let owed = target.live.map(|holding| holding.owes(CompletionWork::empty(), pos, len));
        finish(state, owed, Completion { token, memory, result: Ok(0) });
        return Ok(());
    }
    let geometry = target.geometry;
    let addresses = memory.buffers().iter().map(|buf| (buf.address(), buf.len()));
    if target.strict && !geometry.is_aligned(pos, addresses.clone()) {
        return Err(Rejected::boxed(geometry.misaligned(pos, len), memory));
    }
    let direct = geometry.is_direct(geometry.copied.reads, pos, addresses, flags);
    if direct
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
    state.stats.bounced += u64::from(!direct);
    let span = target.span(pos, len);
    let (start, device, skip) =
        if direct { (pos, span.device, 0) } else { geometry.widen(pos, span.count) };
    let nowait = flags.contains(DioFlags::NOWAIT);
    let planned = plan(state, target, start, device, nowait).and_then(|plan| {
        check_room(queue, state, BioOp::Read, &plan, direct, nowait)?;
        Ok(plan)
    });
    let plan = match planned {
        Ok(plan) => plan,
        Err(error) => return Err(Rejected::boxed(error, memory)),
    };
    let request = Request::new(About {
        op: BioOp::Read,
        token,
        owed: target.live.map(|holding| holding.owes(CompletionWork::empty(), pos, span.count)),
        inode: target.inode,
        pos: start,
        count: span.count,
        device,
    });
    let memory = if direct { Ok(memory) } else { Err(Bounced { memory, skip }) };
    let mut bio_flags = geometry.for_read(flags);
    if plan.len() > 1 {
        bio_flags -= BioFlags::HIPRI;
    }
    start_request(queue, state, target, request, memory, &plan, bio_flags);
    state.spare_plan = plan;
    Ok(())
}

/// A write of what the plan maps, of memory that the device takes as it is.
pub(super) struct Write {
    pub(super) token: u64,
    pub(super) owed: Option<Owed>,
    pub(super) pos: FilePos,
    pub(super) memory: Memory,
    /// The memory goes to the device as it is.
    pub(super) direct: bool,
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
    let Write { token, owed, pos, memory, direct } = write;
    let len = memory.len();
    let request = Request::new(About {
        op: BioOp::Write,
        token,
        owed,
        inode: target.inode,
        pos,
        count: len,
        device: len,
    });
    let memory = if direct { Ok(memory) } else { Err(Bounced { memory, skip: 0 }) };
    start_request(queue, state, target, request, memory, plan, flags);
}

/// Fails where what a plan asks for is not free, if the request is not to wait for it.
pub(super) fn check_room<Q: DeviceQueue>(
    queue: &Q,
    state: &State,
    op: BioOp,
    plan: &[Iomap],
    direct: bool,
    nowait: bool,
) -> Result<()> {
    if !nowait {
        return Ok(());
    }
    let transferred = plan.iter().filter(|iomap| is_transferred(op, iomap.kind));
    let lens = transferred.map(|iomap| iomap.len as usize);
    let (bios, bytes) = if direct {
        (lens.count(), 0)
    } else {
        lens.fold((0, 0), |(bios, bytes), len| {
            (bios + len.div_ceil(bounce::PIECE), bytes + bounce::room_for(len))
        })
    };
    let (room, free) = (queue.room(), state.pool.free());
    if bios > room || bytes > free {
        return Err(Error::would_block(format!(
            "{bios} slots are needed and {bytes} bytes of bounce buffers, {room} and {free} are free"
        )));
    }
    Ok(())
}

/// Whether a bio goes to the device: what is unwritten is zeros for who reads it, and is converted when it holds what is written.
pub(super) fn is_transferred(op: BioOp, kind: IomapType) -> bool {
    match kind {
        IomapType::Mapped => true,
        IomapType::Unwritten => op == BioOp::Write,
        IomapType::Hole | IomapType::Inline => false,
    }
}

/// The mappings of a range, cut to what one bio may carry.
pub(super) fn plan<M: MapFile>(
    state: &mut State,
    target: &Target<'_, M>,
    pos: FilePos,
    len: usize,
    resident: bool,
) -> Result<Vec<Iomap>> {
    let max = u64::from(target.geometry.limits.max_transfer);
    let mut plan = std::mem::take(&mut state.spare_plan);
    plan.clear();
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

/// Starts a request with its memory, which goes to the device or is bounced.
fn start_request<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    mut request: Request,
    memory: Result<Memory, Bounced>,
    plan: &[Iomap],
    flags: BioFlags,
) {
    state.outstanding += 1;
    match memory {
        Ok(memory) => {
            request.shape = Shape::of(&memory);
            start(queue, state, target, request, memory, plan, flags);
        }
        Err(bounced) => {
            request.bounced = Some(bounced);
            bounced::start(queue, state, target, request, plan, flags);
        }
    }
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
            kind if !failed && is_transferred(op, kind) => {
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
    if done.result == Err(Errno::EILSEQ) && done.bio.flags.contains(BioFlags::REREAD) {
        let Bio { dev, at, flags, memory, .. } = &mut done.bio;
        let way = Way { dev: *dev, sector_mask: state.sector_mask, flags: *flags };
        done.result =
            bounce::read_again(queue, state, way, *at, memory.buffers_mut()).map(|()| len);
    }
    let (token, inode, pos, owed) = match done.bio.end {
        BioEnd::Part { request, part: COPY } => {
            return short::complete(queue, state, done, request);
        }
        BioEnd::Part { request, part } => {
            let bounced = state.requests.get_mut(request).is_some_and(|it| it.bounced.is_some());
            let complete = if bounced { bounced::complete_piece } else { complete_part };
            return complete(queue, state, done, request, part);
        }
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
    let mut request =
        Request::new(About { op: done.bio.op, token, owed, inode, pos, count: len, device: len });
    request.parts.push(Vec::new());
    let index = state.requests.insert(request);
    // What is submitted again belongs to that request.
    done.bio.end = BioEnd::Part { request: index, part: 0 };
    complete_part(queue, state, done, index, 0);
}

/// Ends a request that has its result.
pub(super) fn finish(state: &mut State, owed: Option<Owed>, completion: Completion) {
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
            // Of what is done in part the rest is no longer refused.
            let flags = bio.flags - BioFlags::NOWAIT;
            let bio = Bio { at, flags, memory: to_memory(rest.into()), ..bio };
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
    if let Some(errno) = errno {
        state.write_failed(bio.flags, errno);
        fail(state, index, errno);
    }
    release(state, index);
}

/// A request has failed; the first error is told.
#[cold]
fn fail(state: &mut State, index: u32, errno: Errno) {
    let Some(request) = state.requests.get_mut(index) else { return };
    let direction = match request.op {
        BioOp::Read => Direction::DirectRead,
        _ => Direction::DirectWrite,
    };
    let (inode, pos, asked) = (request.inode, request.pos, request.device);
    if request.error.is_none() {
        let error = state.failed_as(direction, errno, inode, pos, asked);
        if let Some(request) = state.requests.get_mut(index) {
            request.error = Some(error);
        }
    }
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
        let memory = match self.bounced {
            Some(bounced) => bounced.memory,
            None => {
                let mut memory = join(self.parts.into_iter().flatten(), &self.shape);
                if self.op == BioOp::Read {
                    zero(memory.buffers_mut(), self.count..self.device);
                }
                memory
            }
        };
        Completion { token: self.token, memory, result: self.error.map_or(Ok(self.count), Err) }
    }
}
