//! Writes: over blocks that the file has, written or not. What else a write needs (blocks for holes, privileges taken away, the content
//! held) whoever calls has seen to; what it leaves to be done, it says.

use std::io::IoSlice;

use smallvec::SmallVec;

use super::bounce;
use super::request::{self, Rejected, Write};
use super::{DioFlags, NotSimple, State, Target, simple, transfer};
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, CompletionWork, Memory};
use crate::device::DeviceQueue;
use crate::error::{Errno, Error, Result};
use crate::events::Direction;
use crate::iomap::{Iomap, IomapType, MapFile, Mappings};
use crate::units::{DevOffset, FilePos};

/// Where a write passes the gate to, and what it leaves to be done.
pub(crate) type Passed = (DevOffset, CompletionWork);

/// What the simple path for writes does not do; [`overwrite_now`] can do the first.
pub(super) const REFUSED: DioFlags = DioFlags::DSYNC.union(DioFlags::SYNC).union(DioFlags::ATOMIC);

/// Writes lent memory over one extent with one bio, and waits: the simple path; gives what is left to be done. `None` where it is another
/// write, or the device did not do it at once: nothing has happened then that must not happen again.
///
/// What is copied goes this way too. All of it is inlined into the program's own code: on some processors (AMD's with Linux's Safe RET) the
/// first return behind a system call, from a function that was called before it, takes longer than the copy.
#[inline(always)]
pub(crate) fn overwrite_now<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    buf: &[u8],
    pos: FilePos,
    how: How,
) -> Option<CompletionWork> {
    let refused = if how.through { REFUSED - DioFlags::DSYNC } else { REFUSED };
    if how.flags.intersects(refused) {
        return None;
    }
    let (address, copied) = (buf.as_ptr().addr(), target.geometry.copied);
    let passed = simple::gate_write(state, target, pos, buf.len(), address, copied.ours, how.flags);
    let (at, left) = match passed {
        // What is to be converted is not durable with the data.
        Ok((_, left)) if how.through && !left.is_empty() => return None,
        Ok(passed) => passed,
        Err(reason) => {
            state.stats.miss(reason);
            return None;
        }
    };
    if address & copied.lent_writes == 0 {
        let written = queue.write_now(target.dev, &[IoSlice::new(buf)], at, how.for_bio());
        if written != Ok(buf.len()) {
            go_on(queue, state, target, buf, at, how, written)?;
        }
        state.stats.overwrites += 1;
    } else {
        state.stats.miss(NotSimple::Stable);
        let written = {
            let copy = state.pool.own_copy(buf)?;
            queue.write_now(target.dev, &[IoSlice::new(copy)], at, how.for_bio())
        };
        if written != Ok(buf.len()) {
            go_on_with_copy(queue, state, target, buf.len(), at, how, written)?;
        }
        state.stats.bounced += 1;
        state.stats.writes += 1;
    }
    Some(left)
}

/// Writes the rest of what the device took in part: that can no longer be refused. `None` where it took nothing, or an error ended it.
#[cold]
fn go_on<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    buf: &[u8],
    at: DevOffset,
    how: How,
    written: Result<usize, Errno>,
) -> Option<()> {
    let way = target.way(how.for_bio() - BioFlags::NOWAIT);
    let done = written.inspect_err(|errno| state.write_failed(way.flags, *errno)).ok()?
        & !(way.sector_mask as usize);
    if done == 0 {
        return None;
    }
    state.stats.short += 1;
    let at = DevOffset(at.0 + done as u64);
    transfer::write_all(queue, state, way, &[IoSlice::new(&buf[done..])], at).ok()
}

/// The same of the pool's [own copy](bounce::Pool::own_copy) of so many bytes.
#[cold]
fn go_on_with_copy<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    len: usize,
    at: DevOffset,
    how: How,
    written: Result<usize, Errno>,
) -> Option<()> {
    let piece = state.pool.take_last().ok()?;
    let done = go_on(queue, state, target, &piece[..len], at, how, written);
    state.pool.give_last(piece);
    done
}

/// Where a write of owned memory goes that may take the simple path, and what it leaves to be done.
#[inline(always)]
pub(crate) fn pass_overwrite<M: MapFile>(
    state: &mut State,
    target: &Target<'_, M>,
    memory: &Memory,
    pos: FilePos,
    flags: DioFlags,
) -> Option<Passed> {
    let Memory::Flat(buffer) = memory else { return None };
    if flags.intersects(REFUSED) {
        return None;
    }
    let (address, copied) = (buffer.address(), target.geometry.copied.owned_writes);
    match simple::gate_write(state, target, pos, buffer.len(), address, copied, flags) {
        Ok(passed) => Some(passed),
        Err(reason) => {
            state.stats.miss(reason);
            None
        }
    }
}

/// Starts that write. Gives the memory back where there is no slot for it.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a request's parts, and where they go")]
pub(crate) fn submit_overwrite<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    (at, left): Passed,
    memory: Memory,
    pos: FilePos,
    flags: DioFlags,
    token: u64,
) -> Result<(), Memory> {
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

/// How a write goes to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) flags: DioFlags,
    /// Each bio is durable when it completes: then nothing else is to be synced.
    pub(crate) through: bool,
    /// Lent memory is the queue's own, and nobody else's.
    pub(crate) ours: bool,
}

impl How {
    #[inline(always)]
    pub(super) fn for_bio(self) -> BioFlags {
        let mut flags = self.flags.for_bio();
        flags.set(BioFlags::DSYNC, self.through);
        flags.set(BioFlags::ATOMIC, self.flags.contains(DioFlags::ATOMIC));
        flags
    }

    /// The same of a write that may be several bios. Of those the device could refuse one that is not to wait when another is done, and the
    /// write would be a part: they wait for the device, if it comes to that.
    fn for_bios(self, plan: &[Iomap], direct: bool) -> BioFlags {
        let several =
            plan.len() > 1 || !direct && plan.iter().any(|iomap| iomap.len > bounce::PIECE as u64);
        let flags = self.for_bio();
        if several { flags - (BioFlags::HIPRI | BioFlags::NOWAIT) } else { flags }
    }
}

/// Writes lent memory over blocks that the file has, and waits. Position and length are what the device takes.
pub(crate) fn write_now<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    bufs: &[IoSlice<'_>],
    pos: FilePos,
    how: How,
) -> Result<CompletionWork> {
    let len: usize = bufs.iter().map(|buf| buf.len()).sum();
    let plan = plan_write(state, target, pos, len, how)?;
    let copied = &target.geometry.copied;
    let copied = if how.ours { copied.ours } else { copied.lent_writes };
    let addresses = bufs.iter().map(|buf| (buf.as_ptr().addr(), buf.len()));
    let direct = target.geometry.is_direct(copied, pos, addresses, how.flags);
    // What goes directly needs neither.
    let nowait = how.flags.contains(DioFlags::NOWAIT) && !direct;
    request::check_room(queue, state, BioOp::Write, &plan, direct, nowait)?;
    let bio_flags = how.for_bios(&plan, direct);
    state.stats.bounced += u64::from(!direct);
    let (way, mut rest) = (target.way(bio_flags), Rest { bufs, skip: 0 });
    let failed = |state: &State, errno| {
        state.failed_as(Direction::DirectWrite, errno, target.inode, pos, len)
    };
    for iomap in &plan {
        let (at, count) = (iomap.addr, iomap.len as usize);
        if direct {
            transfer::write_all(queue, state, way, &rest.take(count), at)
                .map_err(|errno| failed(state, errno))?;
        } else {
            bounce::write_now(queue, state, way, &mut rest, at, count, failed)?;
        }
    }
    state.stats.writes += 1;
    let left = left_by(&plan);
    state.spare_plan = plan;
    Ok(left)
}

/// Starts a write of owned memory over blocks that the file has.
///
/// # Errors
/// Gives the memory back with the reason; the content is still held then.
#[allow(clippy::too_many_arguments, reason = "a request's parts, and where they go")]
pub(crate) fn submit_write<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    memory: Memory,
    pos: FilePos,
    how: How,
    left: CompletionWork,
    token: u64,
) -> Result<(), Box<Rejected>> {
    let len = memory.len();
    let addresses = memory.buffers().iter().map(|buf| (buf.address(), buf.len()));
    let copied = target.geometry.copied.owned_writes;
    let direct = target.geometry.is_direct(copied, pos, addresses, how.flags);
    let planned = plan_write(state, target, pos, len, how).and_then(|plan| {
        let nowait = how.flags.contains(DioFlags::NOWAIT);
        request::check_room(queue, state, BioOp::Write, &plan, direct, nowait)?;
        Ok(plan)
    });
    let plan = match planned {
        Ok(plan) => plan,
        Err(error) => return Err(Rejected::boxed(error, memory)),
    };
    state.stats.bounced += u64::from(!direct);
    state.stats.writes += 1;
    let owed = target.live.map(|holding| holding.owes(left | left_by(&plan), pos, len));
    let flags = how.for_bios(&plan, direct);
    let write = Write { token, owed, pos, memory, direct };
    request::start_write(queue, state, target, write, &plan, flags);
    state.spare_plan = plan;
    Ok(())
}

fn plan_write<M: MapFile>(
    state: &mut State,
    target: &Target<'_, M>,
    pos: FilePos,
    len: usize,
    how: How,
) -> Result<Vec<Iomap>> {
    let nowait = how.flags.contains(DioFlags::NOWAIT);
    let plan = request::plan(state, target, pos, len, nowait)?;
    let has_blocks = |iomap: &Iomap| matches!(iomap.kind, IomapType::Mapped | IomapType::Unwritten);
    if !plan.iter().all(has_blocks) {
        return Err(Error::invalid("a write where the file has no blocks"));
    }
    if how.flags.contains(DioFlags::ATOMIC)
        && !matches!(&plan[..], [one] if one.kind == IomapType::Mapped)
    {
        let what = "an atomic write over more than one written extent";
        return Err(Error::io(Errno::EOPNOTSUPP, what));
    }
    Ok(plan)
}

fn left_by(plan: &[Iomap]) -> CompletionWork {
    let converts = plan.iter().any(|iomap| iomap.kind == IomapType::Unwritten);
    if converts { CompletionWork::CONVERT } else { CompletionWork::empty() }
}

/// Whether the file has blocks for a range, and whether all of them are written: `None` where it has not.
pub(crate) fn blocks_of<M: MapFile>(
    map: &M,
    pos: FilePos,
    len: usize,
    resident: bool,
) -> Result<Option<bool>> {
    let mut written = true;
    for iomap in Mappings::new(map, pos, FilePos(pos.0 + len as u64)).resident(resident) {
        match iomap?.kind {
            IomapType::Mapped => {}
            IomapType::Unwritten => written = false,
            IomapType::Hole | IomapType::Inline => return Ok(None),
        }
    }
    Ok(Some(written))
}

/// The memory that is left of a write.
pub(super) struct Rest<'s, 'a> {
    bufs: &'s [IoSlice<'a>],
    /// Bytes of the first buffers that are done.
    skip: usize,
}

impl<'s> Rest<'s, '_> {
    /// Takes the first `count` bytes off.
    pub(super) fn take(&mut self, count: usize) -> SmallVec<[IoSlice<'s>; 2]> {
        let mut taken = SmallVec::new();
        let mut left = count;
        while let Some(first) = self.bufs.first().filter(|_| left > 0) {
            let part = &first[self.skip.min(first.len())..];
            let part = &part[..part.len().min(left)];
            left -= part.len();
            self.skip += part.len();
            if !part.is_empty() {
                taken.push(IoSlice::new(part));
            }
            if self.skip >= first.len() {
                self.skip -= first.len();
                self.bufs = &self.bufs[1..];
            }
        }
        taken
    }
}
