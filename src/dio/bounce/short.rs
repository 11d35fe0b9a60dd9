//! The short way of a request that is copied and nothing else: one extent, one piece, one transfer, and no plan.
//!
//! It has the gate of the simple path, but for the memory. What does not pass, and what finds no piece, goes the generic way.

use std::io::IoSlice;

use super::{PIECE, give};
use crate::bio::{Bio, BioEnd, BioOp, Buffer, Done, Left, Memory};
use crate::device::DeviceQueue;
use crate::dio::live::Owed;
use crate::dio::request::{self, COPY, finish};
use crate::dio::simple;
use crate::dio::write::{How, Passed, REFUSED};
use crate::dio::{Completion, DioFlags, State, Target, read_again};
use crate::error::Result;
use crate::events::Direction;
use crate::iomap::MapFile;
use crate::sys::copy;
use crate::units::{FilePos, InodeNo};

/// A request whose piece is with the device, and the caller's memory.
pub(in crate::dio) struct Short {
    token: u64,
    owed: Option<Owed>,
    inode: InodeNo,
    pos: FilePos,
    memory: Buffer,
}

impl Short {
    /// What it owes a file that can change.
    pub(in crate::dio) fn owed(&self) -> Option<Owed> {
        self.owed
    }
}

/// Takes one piece, if one is free.
fn take_one(state: &mut State, len: usize) -> Option<Buffer> {
    if len > PIECE {
        return None;
    }
    state.pool.take(len).ok().flatten()
}

/// Reads into lent memory and waits; `None` where it is not this way's.
#[inline(never)]
pub(in crate::dio) fn read_now<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    buf: &mut [u8],
    pos: FilePos,
    flags: DioFlags,
) -> Option<Result<usize>> {
    let address = buf.as_ptr().addr();
    let at = simple::gate_copied(state, target, pos, buf.len(), address, flags).ok()?;
    let mut piece = take_one(state, buf.len())?;
    let result = queue.read_now(target.dev, &mut piece, at, flags.for_bio());
    let clean = result == Ok(buf.len());
    if clean {
        copy(&piece, buf);
        state.stats.bounced += 1;
    }
    give(state, [piece]);
    Some(if clean {
        Ok(buf.len())
    } else {
        read_again(queue, state, target, buf, pos, flags, result)
    })
}

/// Writes lent memory and waits; gives what is left to be done. `None` where it is not this way's, or the device did not do it at once.
#[inline(never)]
pub(crate) fn overwrite_now<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    buf: &[u8],
    pos: FilePos,
    how: How,
) -> Option<Left> {
    if how.flags.intersects(REFUSED) {
        return None;
    }
    let (address, aligned) = (buf.as_ptr().addr(), target.geometry.copied.ours);
    let passed = simple::gate_write(state, target, pos, buf.len(), address, aligned, how.flags);
    let (at, left) = passed.ok()?;
    let mut piece = take_one(state, buf.len())?;
    copy(buf, &mut piece);
    let written = queue.write_now(target.dev, &[IoSlice::new(&piece)], at, how.for_bio());
    give(state, [piece]);
    if written != Ok(buf.len()) {
        return None;
    }
    state.stats.bounced += 1;
    state.stats.writes += 1;
    Some(left)
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
    let Ok(at) = simple::gate_copied(state, target, pos, len, address, flags) else {
        return Err(buffer.into());
    };
    let Some(piece) = take_one(state, len) else { return Err(buffer.into()) };
    let passed = (at, Left::empty());
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
    if flags.intersects(REFUSED) {
        return Err(buffer.into());
    }
    let (len, address, aligned) = (buffer.len(), buffer.address(), target.geometry.copied.ours);
    let Ok(passed) = simple::gate_write(state, target, pos, len, address, aligned, flags) else {
        return Err(buffer.into());
    };
    let Some(mut piece) = take_one(state, len) else { return Err(buffer.into()) };
    copy(&buffer, &mut piece);
    submit(queue, state, target, BioOp::Write, passed, buffer, piece, pos, flags, token)?;
    state.stats.writes += 1;
    Ok(())
}

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
    if queue.room() == 0 {
        give(state, [piece]);
        return Err(buffer.into());
    }
    let owed = target.live.map(|holding| holding.owes(left, pos, buffer.len()));
    let short = Short { token, owed, inode: target.inode, pos, memory: buffer };
    let request = state.shorts.insert(short);
    let flags = match op {
        BioOp::Read => target.geometry.for_read(flags),
        _ => flags.for_bio(),
    };
    let memory = Memory::Flat(piece);
    let bio =
        Bio { op, flags, dev: target.dev, at, memory, end: BioEnd::Part { request, part: COPY } };
    if let Err(bio) = queue.submit(bio) {
        // There was room: none the less, the generic way can wait for some.
        give_back(state, bio.memory);
        return match state.shorts.remove(request) {
            Some(short) => Err(short.memory.into()),
            None => Ok(()),
        };
    }
    state.outstanding += 1;
    state.stats.bounced += 1;
    Ok(())
}

/// Takes a piece back.
pub(in crate::dio) fn complete<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    mut done: Done,
    request: u32,
) {
    let transferred = request::finish_transfer(queue, state, &mut done);
    let Bio { op, memory, .. } = done.bio;
    let Some(Short { token, owed, inode, pos, memory: mut buffer }) = state.shorts.remove(request)
    else {
        return give_back(state, memory);
    };
    let len = buffer.len();
    let result = match transferred {
        Ok(()) => Ok(len),
        Err(errno) => {
            let direction =
                if op == BioOp::Read { Direction::DirectRead } else { Direction::DirectWrite };
            Err(state.failed_as(direction, errno, inode, pos, len))
        }
    };
    if let (BioOp::Read, Ok(_), Memory::Flat(piece)) = (op, &result, &memory) {
        copy(piece, &mut buffer);
    }
    give_back(state, memory);
    finish(state, owed, Completion { token, memory: buffer.into(), result });
}

fn give_back(state: &mut State, memory: Memory) {
    match memory {
        Memory::Flat(piece) => give(state, [piece]),
        Memory::Vectored(pieces) => give(state, pieces),
    }
}
