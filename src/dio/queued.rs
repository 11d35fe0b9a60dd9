//! Queued reads that need one bio, and the submission of a bio.
//!
//! Requests of several bios are in [`split`]. Requests whose data must be copied are in [`short`].

use std::iter::once;

use super::bounce::short;
use super::rejected::Rejected;
use super::{Completion, DioFlags, Io, Request, State, Target, generic, split};
use crate::bio::{Bio, BioEnd, BioOp, CompletionWork, Memory};
use crate::device::DeviceQueue;
use crate::error::{Errno, Error, ErrorKind};
use crate::iomap::MapFile;
use crate::units::DevOffset;

/// Submits a read that needs one bio.
#[inline(always)]
pub(super) fn submit_whole<Q: DeviceQueue, M>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    at: DevOffset,
    memory: Memory,
    request: &Request,
) -> Result<(), Box<Rejected>> {
    submit_bio(queue, state, whole(target, at, memory, request), request.flags)
}

/// Calls [`submit_bio`]. This function is not inlined, so that one copy of the code serves all kinds of files for all requests outside the
/// simple path.
#[inline(never)]
fn submit_bio_out_of_line<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    bio: Bio,
    flags: DioFlags,
) -> Result<(), Box<Rejected>> {
    submit_bio(queue, state, bio, flags)
}

/// Submits a bio that is a whole request.
#[inline(always)]
fn submit_bio<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    bio: Bio,
    flags: DioFlags,
) -> Result<(), Box<Rejected>> {
    if let Err(bio) = queue.submit(bio) {
        Io { queue, state }.submit_when_room(bio, flags)?;
    }
    state.outstanding += 1;
    Ok(())
}

/// Returns the bio of a read that needs only one bio.
#[inline(always)]
fn whole<M>(target: &Target<'_, M>, at: DevOffset, memory: Memory, request: &Request) -> Bio {
    let Request { pos, token, flags, .. } = *request;
    let end = match target.live {
        None => BioEnd::Whole { token, inode: target.inode, pos },
        Some(holding) => {
            BioEnd::Live { token, pos, slot: holding.slot, left: CompletionWork::empty() }
        }
    };
    let flags = target.geometry.for_read(flags);
    Bio { op: BioOp::Read, flags, dev: target.dev, at, memory, end }
}

/// Starts a read of any range. The function is not inlined, because a program contains one copy of it for each kind of device and map.
#[inline(never)]
pub(super) fn submit_read<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    mut memory: Memory,
    request: &Request,
) -> Result<(), Box<Rejected>> {
    if target.geometry.copies_reads() {
        // In this copy of the request, `op` is a constant, so the compiler removes all later tests of `op`.
        let read = Request { op: BioOp::Read, ..*request };
        match short::submit(queue, state, target, memory, &read) {
            Ok(()) => return Ok(()),
            Err(back) => memory = back,
        }
    }
    let Request { pos, len, token, .. } = *request;
    if len == 0 || pos.0 >= target.size {
        state.outstanding += 1;
        let left = CompletionWork::empty();
        let completing = target.live.map(|holding| holding.completing(left, pos, len));
        state.end(completing, &[], Completion { token, memory, result: Ok(0) });
        return Ok(());
    }
    let geometry = target.geometry;
    if *target.strict {
        let addresses = memory.buffers().iter().map(|buf| (buf.address(), buf.len()));
        if !geometry.is_aligned(pos, addresses) {
            return Err(Rejected::boxed(geometry.misaligned(pos, len), memory));
        }
    }
    if let Memory::Flat(buffer) = &memory
        && target.is_light()
        && len as u64 <= target.size - pos.0
        && geometry.is_direct(geometry.copied.reads, request, once((buffer.address(), len)))
    {
        match generic::one_piece(target, pos, len, request.is_nowait()) {
            Ok(Some(at)) => {
                let bio = whole(target, at, memory, request);
                return submit_bio_out_of_line(queue, state, bio, request.flags);
            }
            Ok(None) => {}
            Err(error) => return Err(Rejected::boxed(error, memory)),
        }
    }
    split::submit(queue, state, target, memory, request, CompletionWork::empty())
}

impl Io<'_> {
    /// Submits a bio when no slot is free: waits for a slot, or fails if the request has NOWAIT.
    #[cold]
    fn submit_when_room(&mut self, bio: Bio, flags: DioFlags) -> Result<(), Box<Rejected>> {
        if flags.contains(DioFlags::NOWAIT) {
            let error = Error::new(ErrorKind::WouldBlock, "no slot is free");
            return Err(Rejected::boxed(error, bio.memory));
        }
        self.submit_waiting(bio)
            .map_err(|(errno, bio)| Rejected::boxed(super::hand_over_failed(errno), bio.memory))
    }

    /// Submits a bio. If no slot is free, first waits for a completion and processes it.
    #[allow(
        clippy::result_large_err,
        reason = "the error returns the complete bio without an allocation"
    )]
    pub(super) fn submit_waiting(&mut self, mut bio: Bio) -> Result<(), (Errno, Bio)> {
        loop {
            match self.queue.submit(bio) {
                Ok(()) => return Ok(()),
                Err(back) => bio = back,
            }
            if let Err(errno) = self.queue.wait(1) {
                return Err((errno, bio));
            }
            // One completion frees one slot, but the processing of the completion may submit another part of a split request, which uses
            // the slot. The loop then waits again.
            if let Some(done) = self.queue.pop() {
                self.complete(done);
            }
        }
    }
}
