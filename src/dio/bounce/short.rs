//! The short path: one extent, one bounce buffer (a piece), one transfer, and no list of mappings. A request takes this path if it meets
//! all conditions of the simple path (one bio, mapping in memory) except that its data must be copied.
//!
//! If no bounce buffer is free, the request takes the generic path, which can wait for a buffer.

use super::{PIECE, is_long};
use crate::bio::{Bio, BioEnd, BioOp, Buffer, CompletionWork, Done, Memory};
use crate::device::DeviceQueue;
use crate::dio::split::COPY;
use crate::dio::write::REFUSED;
use crate::dio::{Completion, DioFlags, Hold, Holding, Io, Request, State, Target, simple};
use crate::error::{Errno, Result};
use crate::iomap::{MapFile, Written};
use crate::open_file::Completing;
use crate::sys::copy;
use crate::units::{DevOffset, FilePos, InodeNo};

/// A request whose bounce buffer is in flight. It contains the caller's memory.
pub(in crate::dio) struct Short {
    token: u64,
    pos: FilePos,
    memory: Buffer,
    of: Of,
}

/// The file of the request.
#[derive(Clone, Copy)]
enum Of {
    Frozen(InodeNo),
    /// A file that can change. The request holds a shared lock on the file's content. The lock is a counter of the queue's requests (a
    /// lane).
    Live {
        slot: u32,
        left: CompletionWork,
    },
}

// Each request on this path stores and removes one `Short`, so this type must stay small.
const _: () = assert!(size_of::<Option<Short>>() <= 64);

impl Short {
    /// Returns the work at the completion of the request (for example a conversion of the written range), and the lock on the file's
    /// content. Returns `None` if the file cannot change.
    pub(in crate::dio) fn completing(&self) -> Option<Completing> {
        let Of::Live { slot, left } = self.of else { return None };
        let holding = Holding { slot, hold: Hold::Lane };
        Some(holding.completing(left, self.pos, self.memory.len()))
    }
}

impl Io<'_> {
    /// Takes one bounce buffer for `len` bytes from the pool, if a large enough buffer is free.
    #[inline(always)]
    fn take_one(&mut self, len: usize) -> Option<Buffer> {
        if len > PIECE {
            return None;
        }
        self.state.pool.take_idle(len).or_else(|| make_one(self.queue, self.state, len))
    }

    /// Handles a bio that the queue refused although it had reported a free slot. The request continues on the generic path, which can wait
    /// for a slot.
    #[cold]
    fn refused(&mut self, bio: Bio, request: u32) -> Result<(), Memory> {
        self.give_memory(bio.memory);
        self.state.shorts.remove(request).map_or(Ok(()), |short| Err(short.memory.into()))
    }

    /// Ends a transfer, and returns its bounce buffer to the pool. For a read with `clean` set (the transfer has succeeded), first copies
    /// the data to the caller's memory.
    #[inline(always)]
    fn end_transfer(&mut self, done: Done, request: u32, clean: bool) -> Option<Short> {
        let Bio { op, memory: piece, .. } = done.bio;
        let mut short = self.state.shorts.remove(request);
        if let (true, BioOp::Read, Memory::Flat(piece), Some(short)) =
            (clean, op, &piece, &mut short)
        {
            copy(piece, &mut short.memory);
        }
        self.give_memory(piece);
        short
    }

    /// Handles a read into borrowed memory that was short or failed. Returns its bounce buffer to the pool, and repeats the read if the
    /// error permits this.
    #[cold]
    #[inline(never)]
    pub(in crate::dio) fn read_short_again<M: MapFile>(
        &mut self,
        target: &Target<'_, M>,
        buf: &mut [u8],
        request: &Request,
        (piece, read): (Buffer, Result<usize, Errno>),
    ) -> Result<usize> {
        self.state.pool.give(self.queue, piece);
        self.read_again(target, buf, request, read)
    }

    /// Ends a request of this path whose bio has completed, with or without an error.
    pub(in crate::dio) fn complete_short(&mut self, mut done: Done, request: u32) {
        let (op, at, result) = (done.bio.op, done.bio.at, self.finish_transfer(&mut done));
        let Some(short) = self.end_transfer(done, request, result.is_ok()) else { return };
        let (completing, pos, len) = (short.completing(), short.pos, short.memory.len());
        let inode = match short.of {
            Of::Frozen(inode) => inode,
            Of::Live { slot, .. } => self.state.files.number(slot),
        };
        let failed = |errno| self.state.failed(errno, inode, &Request::of(op, pos, len));
        let result = result.map(|()| len).map_err(failed);
        let completion = Completion { token: short.token, memory: short.memory.into(), result };
        let written = completing.and_then(|it| Written::at(pos, len, at, it.left));
        self.state.end(completing, written.as_slice(), completion);
    }
}

#[cold]
fn make_one(queue: &mut dyn DeviceQueue, state: &mut State, len: usize) -> Option<Buffer> {
    state.pool.take(queue, len).ok().flatten()
}

/// Takes a bounce buffer for a read into borrowed memory, and finds the device offset. Returns `None` if the read cannot take the short
/// path.
#[inline(never)]
pub(in crate::dio) fn piece_for<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    buf: &[u8],
    pos: FilePos,
    flags: DioFlags,
) -> Option<(Buffer, DevOffset)> {
    let request = Request::read(pos, buf.len(), flags);
    let at = simple::gate_copied(state, target, &request, buf.as_ptr().addr()).ok()?;
    Some((Io { queue, state }.take_one(buf.len())?, at))
}

/// Ends a read whose bounce buffer the device has filled: copies the data, and returns the buffer to the pool.
#[inline(never)]
pub(in crate::dio) fn end_read<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    buf: &mut [u8],
    piece: Buffer,
) {
    copy(&piece, buf);
    state.stats.bounced += 1;
    state.pool.give(queue, piece);
}

/// Starts a request for owned memory. Returns the memory if the request cannot take this path.
#[inline(always)]
pub(crate) fn submit<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    memory: Memory,
    request: &Request,
) -> Result<(), Memory> {
    let Memory::Flat(buffer) = memory else { return Err(memory) };
    let (is_write, len, address) = (request.op == BioOp::Write, request.len, buffer.address());
    // Unlike this path, the generic path can wait for a free slot. A [`Short`] is small: it cannot describe a range lock or several bios.
    // It also does not support the flags in [`REFUSED`].
    if queue.room() == 0 || !target.is_light() || is_write && request.flags.intersects(REFUSED) {
        return Err(buffer.into());
    }
    let passed = if is_write {
        simple::gate_write(state, target, request, address, target.geometry.copied.ours)
    } else {
        simple::gate_copied(state, target, request, address).map(|at| (at, CompletionWork::empty()))
    };
    let Ok((at, left)) = passed else { return Err(buffer.into()) };
    let piece = Io { queue, state }.take_one(len);
    let Some(mut piece) = piece else { return Err(buffer.into()) };
    let flags = if is_write {
        copy(&buffer, &mut piece);
        request.flags.for_bio()
    } else {
        target.geometry.for_read(request.flags)
    };
    let of = match target.live {
        None => Of::Frozen(target.inode),
        Some(holding) => Of::Live { slot: holding.slot, left },
    };
    let short = Short { token: request.token, pos: request.pos, memory: buffer, of };
    let index = state.shorts.insert(short);
    let end = BioEnd::Part { request: index, part: COPY };
    let bio = Bio { op: request.op, flags, dev: target.dev, at, memory: Memory::Flat(piece), end };
    if let Err(bio) = queue.submit(bio) {
        return Io { queue, state }.refused(bio, index);
    }
    state.outstanding += 1;
    state.stats.bounced += 1;
    state.stats.writes += u64::from(is_write);
    if is_write && is_long(len) {
        Io { queue, state }.hand_over();
    }
    Ok(())
}

/// Whether a request on the short path is complete when its transfer ends, without further work such as a conversion of extents.
#[inline(always)]
pub(in crate::dio) fn is_light(state: &State, request: u32) -> bool {
    let short = state.shorts.get(request);
    short.is_some_and(|short| !matches!(short.of, Of::Live { left, .. } if !left.is_empty()))
}

/// Ends a [light](is_light) request whose bounce buffer was transferred completely.
#[inline(never)]
pub(in crate::dio) fn pop(
    queue: &mut dyn DeviceQueue,
    state: &mut State,
    done: Done,
    request: u32,
) -> Option<Completion> {
    let short = Io { queue, state }.end_transfer(done, request, true)?;
    if let Of::Live { slot, .. } = short.of {
        state.files.leave(slot, Hold::Lane);
    }
    state.outstanding -= 1;
    let result = Ok(short.memory.len());
    Some(Completion { token: short.token, memory: short.memory.into(), result })
}
