//! Writes to allocated blocks, which may be written or unwritten. The caller first allocates blocks for holes, removes set-id bits, and
//! locks the content. These functions return the completion work, which the caller then does.

use std::io::IoSlice;

use super::simple::Passed;
use super::transfer::TransferTo;
use super::{DioFlags, Io, NotSimple, Request, State, Target, plan, simple};
use crate::bio::slices;
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Memory};
use crate::device::DeviceQueue;
use crate::error::{Errno, Result};
use crate::iomap::{MapFile, Written, WrittenParts};
use crate::units::DevOffset;

/// The flags that the simple path for writes does not support, with one exception: [`overwrite_now`] supports DSYNC if the request is
/// write-through.
pub(super) const REFUSED: DioFlags = DioFlags::DSYNC.union(DioFlags::SYNC).union(DioFlags::ATOMIC);

/// Writes borrowed memory to one extent with one bio, and waits (the simple path). Returns the place of the data, and the completion work.
/// Returns `None` if the write cannot take this path, or if the device failed. After `None`, the caller can repeat the whole write.
///
/// A write whose data must be copied takes this path too. All code of the path is inlined into the program, because returns after the
/// system call are slow. With Linux's Safe RET mitigation for AMD, the first return takes longer than the copy.
#[inline(always)]
pub(crate) fn overwrite_now<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    buf: &[u8],
    request: &Request,
) -> Option<Passed> {
    let refused = if request.through { REFUSED - DioFlags::DSYNC } else { REFUSED };
    if request.flags.intersects(refused) {
        return None;
    }
    let (address, copied) = (buf.as_ptr().addr(), target.geometry.copied);
    let passed = simple::gate_write(state, target, request, address, copied.ours);
    let (at, left) = match passed {
        // If the range is unwritten, a write-through bio is not enough: the range must also be converted before the data are durable.
        Ok((_, left)) if request.through && !left.is_empty() => return None,
        Ok(passed) => passed,
        Err(reason) => {
            state.stats.miss(reason);
            return None;
        }
    };
    if address & copied.writes_of(request.source) == 0 {
        let written = queue.write_now(target.dev, &[IoSlice::new(buf)], at, request.for_write());
        if written != Ok(buf.len()) {
            let to = target.transfer_to(request.for_write());
            Io { queue, state }.go_on(to, buf, (at, written))?;
        }
        state.stats.overwrites += 1;
    } else {
        state.stats.miss(NotSimple::Stable);
        let written = {
            let copy = state.pool.own_copy(buf)?;
            queue.write_now(target.dev, &[IoSlice::new(copy)], at, request.for_write())
        };
        if written != Ok(buf.len()) {
            let to = target.transfer_to(request.for_write());
            Io { queue, state }.go_on_with_copy(to, buf.len(), (at, written))?;
        }
        state.stats.bounced += 1;
        state.stats.writes += 1;
    }
    Some((at, left))
}

impl Io<'_> {
    /// Writes the remaining bytes after the device has written a part. From here on, the request must not fail with EAGAIN. Returns `None`
    /// if the device wrote nothing, or after an error.
    #[cold]
    fn go_on(
        &mut self,
        mut to: TransferTo,
        buf: &[u8],
        (at, written): (DevOffset, Result<usize, Errno>),
    ) -> Option<()> {
        to.flags -= BioFlags::NOWAIT;
        let done = written.ok()? & !(to.sector_mask as usize);
        if done == 0 {
            return None;
        }
        self.state.stats.short += 1;
        let at = DevOffset(at.0 + done as u64);
        self.write_all(to, &[IoSlice::new(&buf[done..])], at).ok()
    }

    /// Writes the remaining bytes like [`go_on`](Self::go_on). The data are the first `len` bytes of the pool's reserved buffer, into which
    /// [`own_copy`](super::bounce::Pool::own_copy) has copied them.
    #[cold]
    fn go_on_with_copy(
        &mut self,
        to: TransferTo,
        len: usize,
        written: (DevOffset, Result<usize, Errno>),
    ) -> Option<()> {
        let piece = self.state.pool.take_last().ok()?;
        let done = self.go_on(to, &piece[..len], written);
        self.state.pool.give_last(piece);
        done
    }
}

/// Checks whether a write of owned memory can take the simple path. Returns the write's device offset and its completion work.
#[inline(always)]
pub(crate) fn pass_overwrite<M: MapFile>(
    state: &mut State,
    target: &Target<'_, M>,
    memory: &Memory,
    request: &Request,
) -> Option<Passed> {
    let Memory::Flat(buffer) = memory else { return None };
    if request.flags.intersects(REFUSED) {
        return None;
    }
    let (address, copied) = (buffer.address(), target.geometry.copied.owned_writes);
    // The length of a queued request is not set, so this code uses the buffer's length.
    let request = Request { len: buffer.len(), ..*request };
    match simple::gate_write(state, target, &request, address, copied) {
        Ok(passed) => Some(passed),
        Err(reason) => {
            state.stats.miss(reason);
            None
        }
    }
}

/// Starts a write that [`pass_overwrite`] accepted. Returns the memory if there is no free slot.
#[inline(always)]
pub(crate) fn submit_overwrite<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    (at, left): Passed,
    memory: Memory,
    request: &Request,
) -> Result<(), Memory> {
    let Request { pos, token, flags, .. } = *request;
    let slot = target.live.map_or(0, |holding| holding.slot);
    let end = BioEnd::Live { token, pos, slot, left };
    let (flags, dev) = (flags.for_bio(), target.dev);
    if let Err(bio) = queue.submit(Bio { op: BioOp::Write, flags, dev, at, memory, end }) {
        return Err(bio.memory);
    }
    state.stats.overwrites += 1;
    state.outstanding += 1;
    Ok(())
}

/// Writes borrowed memory to allocated blocks, and waits. The position and the length are aligned. Returns the parts for which the metadata
/// must be updated.
pub(crate) fn write_now<M: MapFile>(
    queue: &mut dyn DeviceQueue,
    state: &mut State,
    target: &Target<'_, M>,
    bufs: &[IoSlice<'_>],
    request: &Request,
) -> Result<WrittenParts> {
    let plan = plan::plan(state, target, request)?;
    let copied = target.geometry.copied.writes_of(request.source);
    let addresses = bufs.iter().map(|buf| (buf.as_ptr().addr(), buf.len()));
    let direct = plan::is_direct(target, copied, request, addresses);
    // Only transfers through bounce buffers are checked for NOWAIT, because a direct synchronous transfer needs no slots and no bounce
    // buffers.
    if !direct {
        plan::check_room(queue, state, &plan, request, direct)?;
        state.stats.bounced += 1;
    }
    let to = target.transfer_to(plan::bio_flags(target, &plan, request, direct));
    let failed = |state: &State, errno| state.failed(errno, target.inode, request);
    let (mut done, mut io) = (0, Io { queue, state });
    for iomap in &plan {
        let (from, at) = (done, iomap.addr);
        done += iomap.len as usize;
        let slices = slices::cut(bufs, from..done);
        if direct {
            io.write_all(to, &slices, at).map_err(|errno| failed(io.state, errno))?;
        } else {
            io.write_bounced(to, &slices, at, failed)?;
        }
    }
    io.state.stats.writes += 1;
    let written = plan.iter().filter_map(Written::of).collect();
    io.state.spare_plan = plan;
    Ok(written)
}
