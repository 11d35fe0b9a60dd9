//! The short way of a request that is copied and nothing else: one extent, one piece, one transfer, and no plan.
//!
//! It has the gate of the simple path, but for the memory. What does not pass, and what finds no piece, goes the generic way.

use super::{PIECE, give, hand_over, is_long};
use crate::bio::{Bio, BioEnd, BioOp, Buffer, CompletionWork, Done, Memory};
use crate::device::DeviceQueue;
use crate::dio::live::Owed;
use crate::dio::request::{self, COPY};
use crate::dio::simple;
use crate::dio::write::{Passed, REFUSED};
use crate::dio::{Completion, DioFlags, Hold, Holding, State, Target, read_again};
use crate::error::{Errno, Error, Result};
use crate::events::Direction;
use crate::iomap::MapFile;
use crate::sys::copy;
use crate::units::{DevOffset, FilePos, InodeNo};

/// A request whose piece is with the device, and the caller's memory.
pub(in crate::dio) struct Short {
    token: u64,
    pos: FilePos,
    memory: Buffer,
    of: Of,
}

/// Its file.
#[derive(Clone, Copy)]
enum Of {
    Frozen(InodeNo),
    /// One that can change, whose content it holds by the lane.
    Live {
        slot: u32,
        left: CompletionWork,
    },
}

// Put away and taken again by every one of them.
const _: () = assert!(size_of::<Option<Short>>() <= 64);

impl Short {
    /// What it owes a file that can change.
    pub(in crate::dio) fn owed(&self) -> Option<Owed> {
        let Of::Live { slot, left } = self.of else { return None };
        let holding = Holding { slot, hold: Hold::Lane };
        Some(holding.owes(left, self.pos, self.memory.len()))
    }
}

/// Takes one piece, if one is free.
#[inline(always)]
fn take_one<Q: DeviceQueue>(queue: &mut Q, state: &mut State, len: usize) -> Option<Buffer> {
    if len > PIECE {
        return None;
    }
    state.pool.take_idle(len).or_else(|| make_one(queue, state, len))
}

#[cold]
fn make_one<Q: DeviceQueue>(queue: &mut Q, state: &mut State, len: usize) -> Option<Buffer> {
    state.pool.take(queue, len).ok().flatten()
}

/// A piece for a read into lent memory, and where it reads; `None` where the read is not this way's.
#[inline(never)]
pub(in crate::dio) fn piece_for<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    buf: &[u8],
    pos: FilePos,
    flags: DioFlags,
) -> Option<(Buffer, DevOffset)> {
    let address = buf.as_ptr().addr();
    let at = simple::gate_copied(state, target, pos, buf.len(), address, flags).ok()?;
    Some((take_one(queue, state, buf.len())?, at))
}

/// What comes of that read: its `result` was read into the piece.
#[inline(never)]
#[allow(clippy::too_many_arguments, reason = "a request's parts, and what came of it")]
pub(in crate::dio) fn end_read<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    piece: Buffer,
    result: Result<usize, Errno>,
    buf: &mut [u8],
    pos: FilePos,
    flags: DioFlags,
) -> Result<usize> {
    let clean = result == Ok(buf.len());
    if clean {
        copy(&piece, buf);
        state.stats.bounced += 1;
    }
    state.pool.give(queue, piece);
    if clean { Ok(buf.len()) } else { read_again(queue, state, target, buf, pos, flags, result) }
}

/// Starts a read into owned memory, which is given back where it is not this way's.
#[inline(never)]
pub(in crate::dio) fn submit_read<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    memory: Memory,
    pos: FilePos,
    flags: DioFlags,
    token: u64,
) -> Result<(), Memory> {
    let Memory::Flat(buffer) = memory else { return Err(memory) };
    let (len, address) = (buffer.len(), buffer.address());
    if !can_start(queue, target) {
        return Err(buffer.into());
    }
    let Ok(at) = simple::gate_copied(state, target, pos, len, address, flags) else {
        return Err(buffer.into());
    };
    let Some(piece) = take_one(queue, state, len) else { return Err(buffer.into()) };
    let passed = (at, CompletionWork::empty());
    submit(queue, state, target, BioOp::Read, passed, buffer, piece, pos, flags, token)
}

/// Starts a write of owned memory, which is given back where it is not this way's.
#[inline(never)]
pub(crate) fn submit_overwrite<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    memory: Memory,
    pos: FilePos,
    flags: DioFlags,
    token: u64,
) -> Result<(), Memory> {
    let Memory::Flat(buffer) = memory else { return Err(memory) };
    if flags.intersects(REFUSED) || !can_start(queue, target) {
        return Err(buffer.into());
    }
    let (len, address, aligned) = (buffer.len(), buffer.address(), target.geometry.copied.ours);
    let Ok(passed) = simple::gate_write(state, target, pos, len, address, aligned, flags) else {
        return Err(buffer.into());
    };
    let Some(mut piece) = take_one(queue, state, len) else { return Err(buffer.into()) };
    copy(&buffer, &mut piece);
    submit(queue, state, target, BioOp::Write, passed, buffer, piece, pos, flags, token)?;
    if is_long(len) {
        hand_over(queue);
    }
    state.stats.writes += 1;
    Ok(())
}

/// Whether there is room for a bio, and the file's content is held in a way that is told by little.
#[inline(always)]
fn can_start<Q: DeviceQueue, M>(queue: &Q, target: &Target<'_, M>) -> bool {
    queue.room() > 0 && target.live.is_none_or(|holding| holding.is_light())
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a request's parts, and where they go")]
fn submit<Q: DeviceQueue, M>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    op: BioOp,
    (at, left): Passed,
    buffer: Buffer,
    piece: Buffer,
    pos: FilePos,
    flags: DioFlags,
    token: u64,
) -> Result<(), Memory> {
    let of = match target.live {
        None => Of::Frozen(target.inode),
        Some(holding) => Of::Live { slot: holding.slot, left },
    };
    let short = Short { token, pos, memory: buffer, of };
    let request = state.shorts.insert(short);
    let flags = match op {
        BioOp::Read => target.geometry.for_read(flags),
        _ => flags.for_bio(),
    };
    let memory = Memory::Flat(piece);
    let bio =
        Bio { op, flags, dev: target.dev, at, memory, end: BioEnd::Part { request, part: COPY } };
    if let Err(bio) = queue.submit(bio) {
        return refused(queue, state, bio, request);
    }
    state.outstanding += 1;
    state.stats.bounced += 1;
    Ok(())
}

/// There was room, and yet a bio was not taken: the generic way can wait for some.
#[cold]
fn refused<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    bio: Bio,
    request: u32,
) -> Result<(), Memory> {
    give_back(queue, state, bio.memory);
    match state.shorts.remove(request) {
        Some(short) => Err(short.memory.into()),
        None => Ok(()),
    }
}

/// Whether one leaves nothing to be done that could be waited for.
#[inline(always)]
pub(in crate::dio) fn is_light(state: &State, request: u32) -> bool {
    let short = state.shorts.get(request);
    short.is_some_and(|short| !matches!(short.of, Of::Live { left, .. } if !left.is_empty()))
}

/// Takes a [light](is_light) one whose piece was transferred wholly.
#[inline(never)]
pub(in crate::dio) fn pop<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    done: Done,
    request: u32,
) -> Option<Completion> {
    let short = finish(queue, state, done, request)?;
    if let Of::Live { slot, .. } = short.of {
        state.lives.leave(slot, Hold::Lane);
    }
    state.outstanding -= 1;
    let result = Ok(short.memory.len());
    Some(Completion { token: short.token, memory: short.memory.into(), result })
}

/// Copies what was read, and gives the piece back.
#[inline(always)]
fn finish<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    done: Done,
    request: u32,
) -> Option<Short> {
    let Bio { op, memory: piece, .. } = done.bio;
    let short = state.shorts.remove(request).map(|mut short| {
        if let (BioOp::Read, Memory::Flat(piece)) = (op, &piece) {
            copy(piece, &mut short.memory);
        }
        short
    });
    give_back(queue, state, piece);
    short
}

/// Goes on with one that the device has given back, in whatever way.
pub(in crate::dio) fn complete<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    mut done: Done,
    request: u32,
) {
    let completion = match request::finish_transfer(queue, state, &mut done) {
        Ok(()) => finish(queue, state, done, request).and_then(|short| end(state, short, None)),
        Err(errno) => {
            let direction = match done.bio.op {
                BioOp::Read => Direction::DirectRead,
                _ => Direction::DirectWrite,
            };
            give_back(queue, state, done.bio.memory);
            state.shorts.remove(request).and_then(|short| {
                let inode = match short.of {
                    Of::Frozen(inode) => inode,
                    Of::Live { slot, .. } => state.lives.number(slot),
                };
                let len = short.memory.len();
                let error = state.failed_as(direction, errno, inode, short.pos, len);
                end(state, short, Some(error))
            })
        }
    };
    state.finished.extend(completion);
}

fn end(state: &mut State, short: Short, error: Option<Error>) -> Option<Completion> {
    let (owed, token, len) = (short.owed(), short.token, short.memory.len());
    let result = error.map_or(Ok(len), Err);
    let completion = Completion { token, memory: short.memory.into(), result };
    match owed {
        None => Some(completion),
        Some(owed) => state.lives.end(owed, completion),
    }
}

#[inline(always)]
fn give_back<Q: DeviceQueue>(queue: &mut Q, state: &mut State, memory: Memory) {
    match memory {
        Memory::Flat(piece) => state.pool.give(queue, piece),
        Memory::Vectored(pieces) => give(queue, state, pieces),
    }
}
