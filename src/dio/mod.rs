//! The direct-I/O core, which turns a request for a range of a file into requests to the device. It is modelled on Linux's
//! `fs/iomap/direct-io.c`.
//!
//! A `Request` takes the simple path (`simple`) if one bio is enough and the mapping is in memory. Every other request takes one of four
//! paths. The choice depends on the owner of the memory, and on whether the device accepts the memory.
//!
//! | memory | direct | through bounce buffers |
//! |---|---|---|
//! | borrowed for the call | `generic`, `write` | `bounce` |
//! | owned by the queue until the pop | `queued` (one bio), `split` (several) | `split::bounced` |
//!
//! A fifth path (`bounce::short`) uses one bounce buffer. A request takes this path if it meets all conditions of the simple path except
//! that its data must be copied.

mod bounce;
mod generic;
mod geometry;
mod parts;
mod plan;
mod queued;
mod rejected;
mod request;
mod simple;
mod split;
mod stats;
#[cfg(test)]
mod tests;
mod transfer;
mod write;

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::Arc;

use bitflags::bitflags;

pub(crate) use self::bounce::short::submit as submit_copied;
pub(crate) use self::geometry::Geometry;
pub use self::geometry::StablePages;
pub(crate) use self::plan::blocks_of;
pub use self::rejected::Rejected;
pub(crate) use self::request::{Request, Source};
pub(crate) use self::split::submit as submit_write;
pub use self::stats::{NotSimple, Stats};
pub(crate) use self::write::{overwrite_now, pass_overwrite, submit_overwrite, write_now};
pub use crate::bio::Completion;
pub(crate) use crate::open_file::{Hold, Holding, QueueFiles, Unsynced};

use self::bounce::Pool;
use self::bounce::short::{self, Short};
use self::split::{COPY, Slab, SplitRequest};
use self::transfer::TransferTo;
use crate::bio::{BioEnd, BioFlags, BioOp, Dev, Done, Memory, Whole};
use crate::device::{DeviceQueue, LentPart, Limits, Through, ThroughFlushes};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::events::{Direction, ErrorEvent, Events};
use crate::iomap::{Iomap, MapFile};
use crate::units::{DevOffset, InodeNo};

bitflags! {
    /// The options of a request. Their names are the names of Linux's `RWF_` and `IOMAP_DIO_` flags.
    ///
    /// A device may return EAGAIN even for a request without NOWAIT, for example if it is short of memory. ironmap then repeats the request
    /// up to a hundred times. After that, the request fails with EIO. A transfer of less than a logical block is handled in the same way.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DioFlags: u8 {
        /// The request fails with EAGAIN if it would have to wait for metadata, a slot or the device. It then has no effect.
        const NOWAIT = 0x1;
        /// The queue polls for the completion. The flag has no effect if the device does not support polling, or if the request needs
        /// several bios.
        const HIPRI = 0x2;
        /// The request does not take the simple path. The flag of the same name in Linux also makes the submitter wait; in ironmap, the
        /// submitter does not wait.
        const FORCE_WAIT = 0x4;
        /// If there is not enough space for all data, the write fails and the file keeps its content. Without this flag, the write is
        /// short. In a file with a block map (no extents), the data before the end of the file may have been written despite the error.
        const WHOLE = 0x8;
        /// The data are copied through a bounce buffer even if the device accepts the memory.
        const BOUNCE = 0x10;
        /// When the write completes, its data and the metadata that a read needs are durable (`O_DSYNC`).
        const DSYNC = 0x20;
        /// When the write completes, its data and all metadata of the file are durable (`O_SYNC`).
        const SYNC = 0x40;
        /// The device writes all of the data or nothing, even if power fails (`RWF_ATOMIC`). If the device does not guarantee this, the
        /// write fails with EOPNOTSUPP.
        const ATOMIC = 0x80;
    }
}

/// The largest number of times that a request without NOWAIT is repeated after EAGAIN.
const RETRIES: u8 = 100;
/// An inode number that means "report no event". If a request with this inode number fails, the failure is not reported, because the caller
/// repeats the request on another path, which reports its own failures.
pub(crate) const UNTOLD: InodeNo = InodeNo(0);

impl DioFlags {
    #[inline(always)]
    fn for_bio(self) -> BioFlags {
        // The bits of `DioFlags` and `BioFlags` have the same values, as asserted below, so the flags need not be tested one by one.
        BioFlags::from_bits_truncate(self.bits()) & (BioFlags::NOWAIT | BioFlags::HIPRI)
    }
}

const _: () = assert!(
    DioFlags::NOWAIT.bits() == BioFlags::NOWAIT.bits()
        && DioFlags::HIPRI.bits() == BioFlags::HIPRI.bits()
);

/// The properties of the request's file.
pub(crate) struct Target<'a, M> {
    pub(crate) map: &'a M,
    /// The device that contains the file's blocks. The map returns offsets on this device.
    pub(crate) dev: Dev,
    /// The limits of requests to the file.
    pub(crate) geometry: &'a Geometry,
    pub(crate) inode: InodeNo,
    /// `i_size`, read at the start of the request.
    pub(crate) size: u64,
    /// Whether the handle refuses misaligned requests, as `O_DIRECT` does. The simple path does not need this value. The field is a
    /// reference, so that the simple path does not load the value.
    pub(crate) strict: &'a bool,
    /// The request's lock on the file's content, which is released when the request is complete. `None` if the file cannot change.
    pub(crate) live: Option<Holding>,
}

/// A device's queue, with the state that this module stores for it. All code except the simple path uses this type. The queue is a trait
/// object, so that this code is compiled only once for all kinds of queues. The indirect calls cost little compared with the other work of
/// this code.
pub(crate) struct Io<'a> {
    pub(crate) queue: &'a mut dyn DeviceQueue,
    pub(crate) state: &'a mut State,
}

/// The state that this module stores for a queue.
pub(crate) struct State {
    /// The largest logical block size of all devices, minus one. The length of a short transfer is rounded down to a multiple of this block
    /// size.
    sector_mask: u64,
    /// The write-through requests that may flush a device. If the devices of the queue differ, this is the largest of their values.
    through_flushes: ThroughFlushes,
    simple: bool,
    stats: Stats,
    /// Queued requests that consist of several bios.
    splits: Slab<SplitRequest>,
    /// Requests on the short path, each of which copies its data through one bounce buffer.
    shorts: Slab<Short>,
    finished: VecDeque<Completion>,
    /// Whether a completion from the list `finished` was popped since the last [`Self::take_fresh`]. A completion that was popped directly
    /// from the device's queue does not set this field.
    fresh: bool,
    /// The number of requests that were submitted but not yet popped.
    outstanding: usize,
    /// Whether the caller has called [`wait`] since its last [`poll`].
    waited: bool,
    /// The number of requests that [`wait`] has counted as complete although their transfers were short or failed. The number is increased
    /// when the completion of such a transfer is popped, so completions of full transfers need no additional work.
    counted_early: usize,
    /// The bounce buffers of the queue.
    pool: Pool,
    /// The memory of the previous list of mappings (plan). The next request that needs such a list reuses this memory.
    spare_plan: Vec<Iomap>,
    /// The files that can change, and this queue's requests to these files.
    pub(crate) files: QueueFiles,
    events: Arc<Events>,
}

impl State {
    pub(crate) fn new(depth: usize, events: Arc<Events>) -> Self {
        Self {
            sector_mask: 0,
            through_flushes: ThroughFlushes::Never,
            simple: true,
            stats: Stats::default(),
            splits: Slab::default(),
            shorts: Slab::default(),
            finished: VecDeque::with_capacity(depth),
            fresh: false,
            outstanding: 0,
            waited: false,
            counted_early: 0,
            pool: Pool::default(),
            spare_plan: Vec::new(),
            files: QueueFiles::default(),
            events,
        }
    }

    /// Adds the limits of a device, so that the queue can send requests to it.
    pub(crate) fn admit(&mut self, limits: &Limits) {
        self.sector_mask = self.sector_mask.max(u64::from(limits.logical_block) - 1);
        self.through_flushes = self.through_flushes.max(limits.through_flushes);
    }

    /// Whether a synchronous write-through request may flush a device.
    pub(crate) fn calls_flush(&self) -> bool {
        self.through_flushes != ThroughFlushes::Never
    }

    /// Whether a queued write-through request with this memory may cause a device to be flushed.
    pub(crate) fn queued_flushes(&self, memory: &Memory) -> bool {
        match self.through_flushes {
            ThroughFlushes::Never => false,
            // A write from several buffers to an NVMe namespace is a system call, and such a call may flush the device.
            ThroughFlushes::OfCalls => matches!(memory, Memory::Vectored(_)),
            ThroughFlushes::Always => true,
        }
    }

    pub(crate) fn set_simple(&mut self, on: bool) {
        self.simple = on;
    }

    /// Sets the largest number of bytes of bounce buffers.
    pub(crate) fn set_bounce_limit(&mut self, queue: &mut dyn DeviceQueue, limit: usize) {
        self.pool.set_limit(queue, limit);
    }

    /// Returns the current number of bytes of bounce buffers, both used and unused.
    pub(crate) fn bounce_bytes(&self) -> usize {
        self.pool.bytes()
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn stats_mut(&mut self) -> &mut Stats {
        &mut self.stats
    }

    /// Adds a completion that did not come from the device's queue. The caller pops it like any other completion.
    pub(crate) fn finish(&mut self, completion: Completion) {
        self.outstanding += 1;
        self.finished.push_back(completion);
    }

    /// Adds the completion of a request whose completion work is done. The caller can then pop it.
    pub(crate) fn release(&mut self, completion: Completion) {
        self.finished.push_back(completion);
    }

    /// Whether a completion from the list `finished` was popped since the last call. [`DeviceQueue::take_fresh`] reports the same for
    /// completions of the device's queue, but omits reads of holes and reads past the end of the file, which complete without the device.
    #[inline(always)]
    pub(crate) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Returns the error of a failed request, and reports it as an event. EAGAIN is not reported, because only a request with NOWAIT gets
    /// this error.
    #[cold]
    pub(crate) fn failed(&self, errno: Errno, inode: InodeNo, request: &Request) -> Error {
        let Request { pos, len, .. } = *request;
        let (direction, what) = match request.op {
            BioOp::Read => (Direction::DirectRead, "read"),
            _ => (Direction::DirectWrite, "write"),
        };
        if inode != UNTOLD {
            let event = ErrorEvent { direction, inode, pos, len: len as u64, errno };
            self.events.report(event);
        }
        if errno == Errno::EAGAIN {
            return Error::new(
                ErrorKind::WouldBlock,
                "the request would have to wait for the device",
            );
        }
        // The request obeys the limits that the device had when it was opened. If the device refuses the request, the limits may have
        // changed.
        let why = if errno == Errno::EINVAL {
            ", which the device does not support, or no longer supports"
        } else {
            ""
        };
        Error::io(errno, format!("inode {inode}: direct {what} of {len} bytes at {pos}{why}"))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // The requests that the queue still contains have completed, or their memory is leaked. Their callers get no completions. Requests
        // of other queues may be waiting for the locks and reserved ranges of these requests, so this drop releases them.
        let shorts = self.shorts.iter().filter_map(Short::completing);
        let splits = self.splits.iter().filter_map(SplitRequest::completing);
        splits.chain(shorts).for_each(|completing| self.files.abandon(completing));
    }
}

/// Reads into borrowed memory and waits. Returns the number of bytes read. A read is shorter than requested only at the end of the file.
///
/// All code that runs for most reads, down to the system call, is inlined into the caller; rare code is not. The reason is the first `ret`
/// after a system call, which can cost a third of a read, as measured with AMD's Safe RET mitigation (docs/BENCHMARKS.md, "Returns across a
/// system call").
#[inline(always)]
pub(crate) fn read_now<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    buf: &mut [u8],
    request: &Request,
) -> Result<usize> {
    match simple::gate(state, target, request, buf.as_ptr().addr()) {
        Ok(at) => {
            state.stats.simple_hits += 1;
            match queue.read_now(target.dev, buf, at, request.flags.for_bio()) {
                Ok(count) if count == buf.len() => Ok(count),
                other => {
                    let target = *target;
                    let request = *request;
                    Io { queue, state }.read_again(&target, buf, &request, other)
                }
            }
        }
        Err(reason) => {
            state.stats.miss(reason);
            // The functions that are called below get copies of the target and the request. A value that is passed by reference must be in
            // memory. With the copies, the simple path keeps the values in registers, and only these calls write them to memory.
            let target = *target;
            let Request { pos, flags, .. } = *request;
            if target.geometry.copies_reads()
                && let Some((mut piece, at)) =
                    short::piece_for(queue, state, &target, buf, pos, flags)
            {
                let read = queue.read_now(target.dev, &mut piece, at, flags.for_bio());
                if read == Ok(buf.len()) {
                    short::end_read(queue, state, buf, piece);
                    return Ok(buf.len());
                }
                let request = Request::read(pos, buf.len(), flags);
                return Io { queue, state }.read_short_again(&target, buf, &request, (piece, read));
            }
            generic::read_now(queue, state, &target, &mut [IoSliceMut::new(buf)], request)
        }
    }
}

/// Reads into several borrowed buffers and waits.
pub(crate) fn read_vectored_now<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    bufs: &mut [IoSliceMut<'_>],
    request: &Request,
) -> Result<usize> {
    state.stats.miss(NotSimple::Vectored);
    generic::read_now(queue, state, target, bufs, request)
}

/// Returns the device offset of a read into lent memory, or `None` if one transfer cannot carry out the read.
#[inline(always)]
pub(crate) fn place_lent<M: MapFile>(
    state: &mut State,
    target: &Target<'_, M>,
    request: &Request,
    address: usize,
) -> Option<DevOffset> {
    match simple::gate_lent(state, target, request, address) {
        Ok(at) => Some(at),
        Err(reason) => {
            state.stats.miss(reason);
            None
        }
    }
}

/// Carries out several reads together. Their device offsets come from [`place_lent`].
#[inline(always)]
pub(crate) fn read_parts_now<Q: DeviceQueue>(
    queue: &mut Q,
    state: &mut State,
    dev: Dev,
    parts: &mut [LentPart<'_>],
    flags: DioFlags,
) {
    state.stats.simple_hits += parts.len() as u64;
    queue.read_parts_now(dev, parts, flags.for_bio());
}

/// Starts a [queued](Request::queued) read into owned memory.
#[inline(always)]
pub(crate) fn submit_read<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    memory: Memory,
    request: &Request,
) -> Result<(), Box<Rejected>> {
    let gate = match &memory {
        Memory::Flat(buffer) => {
            // The length is read from the buffer, because `memory.len()` would need one more branch: the memory could also be several
            // buffers.
            let request = Request { len: buffer.len(), ..*request };
            simple::gate(state, target, &request, buffer.address())
        }
        Memory::Vectored(_) => Err(NotSimple::Vectored),
    };
    match gate {
        // One bio cannot describe a range lock. Therefore, a request on the simple path needs no lock, or only the shared lock of its queue
        // (the lane) on the file's content.
        Ok(at) if target.is_light() => {
            queued::submit_whole(queue, state, target, at, memory, request)?;
            state.stats.simple_hits += 1;
            Ok(())
        }
        other => {
            other.err().into_iter().for_each(|reason| state.stats.miss(reason));
            let target = *target;
            let request = Request { len: memory.len(), ..*request };
            queued::submit_read(queue, state, &target, memory, &request)
        }
    }
}

/// Pops a completion, if there is one, and returns it after conversion. [`wait`] counts a request as complete even if its transfer was
/// short. If only such a request remains, this function waits until the rest is transferred.
#[inline(always)]
pub(crate) fn pop_as<Q: DeviceQueue, T>(
    queue: &mut Q,
    state: &mut State,
    convert: impl Fn(Completion) -> T,
) -> Option<T> {
    loop {
        match queue.pop_whole() {
            Some(Ok(Whole { token, slot, memory })) => {
                if let Some(slot) = slot {
                    state.files.leave(slot, Hold::Lane);
                }
                state.outstanding -= 1;
                let result = Ok(memory.len());
                return Some(convert(Completion { token, memory, result }));
            }
            Some(Err(done)) => match (done.bio.end, &done.result) {
                (BioEnd::Part { request, part: COPY }, Ok(count))
                    if *count == done.bio.memory.len() && short::is_light(state, request) =>
                {
                    return short::pop(queue, state, done, request).map(convert);
                }
                _ => Io { queue, state }.unclean(done),
            },
            None => {
                if let Some(completion) = state.finished.pop_front() {
                    state.outstanding -= 1;
                    state.fresh = true;
                    return Some(convert(completion));
                }
                if state.counted_early == 0 || !(Io { queue, state }).wait_for_counted() {
                    return None;
                }
            }
        }
    }
}

impl Io<'_> {
    /// Handles a read on the simple path that was short or failed. After a short read or EAGAIN, the generic path repeats the whole read.
    #[cold]
    #[inline(never)]
    fn read_again<M: MapFile>(
        &mut self,
        target: &Target<'_, M>,
        buf: &mut [u8],
        request: &Request,
        result: Result<usize, Errno>,
    ) -> Result<usize> {
        match result {
            Err(Errno::EILSEQ) if target.geometry.rereads() => {
                self.reread_whole(target, buf, request)
            }
            Err(errno) if errno != Errno::EAGAIN || request.is_nowait() => {
                Err(self.state.failed(errno, target.inode, request))
            }
            _ => {
                let (queue, bufs) = (&mut Through::new(self.queue), &mut [IoSliceMut::new(buf)]);
                generic::read_now(queue, self.state, target, bufs, request)
            }
        }
    }

    /// Processes every completion except the successful completion of a whole request.
    #[cold]
    #[inline(never)]
    fn unclean(&mut self, done: Done) {
        if !matches!(done.bio.end, BioEnd::Part { part, .. } if part != COPY) {
            self.state.counted_early += usize::from(self.state.waited);
        }
        let there = |state: &State| state.finished.len() + state.files.unsynced();
        let before = there(self.state);
        self.complete(done);
        // `complete` may have added completions to `finished` or `unsynced`. [`wait`] counts the entries of these lists too. The added
        // completions are subtracted from the requests that were counted early, so that no request is counted twice.
        self.state.counted_early =
            self.state.counted_early.saturating_sub(there(self.state) - before);
    }

    /// Waits for the completion of a request that [`wait`] counted too early. An error resets the count to 0; the next [`wait`] gets the
    /// same error and returns it.
    #[cold]
    #[inline(never)]
    fn wait_for_counted(&mut self) -> bool {
        while self.queue.in_flight() > 0 && self.queue.wait(1).is_ok() {
            self.take_completed();
            if !self.state.finished.is_empty() {
                self.state.counted_early =
                    self.state.counted_early.saturating_sub(self.state.finished.len());
                return true;
            }
        }
        self.state.counted_early = 0;
        false
    }

    /// Processes all completions that the device has available. The caller can then pop their requests.
    #[cold]
    pub(crate) fn take_completed(&mut self) {
        while let Some(done) = self.queue.pop() {
            self.complete(done);
        }
    }

    /// Processes one completion of the device. The caller can then pop its request. If no completion is available, submits all queued
    /// requests together, and waits for a completion.
    pub(crate) fn pump(&mut self) -> Result<()> {
        let mut done = self.queue.pop();
        if done.is_none() {
            self.queue.wait(1).map_err(hand_over_failed)?;
            done = self.queue.pop();
        }
        done.into_iter().for_each(|done| self.complete(done));
        Ok(())
    }
}

/// Waits until `min` requests can be popped. If fewer requests are outstanding, waits for all of them.
#[inline]
pub(crate) fn wait<Q: DeviceQueue>(queue: &mut Q, state: &mut State, min: usize) -> Result<()> {
    let min = min.min(state.outstanding);
    state.waited = true;
    // If copies take long, the loop below waits for one completion at a time, so that the data of a completed read are copied while the
    // device works on the other reads.
    let copies = state.pool.has_long();
    if state.splits.is_empty() && !copies {
        // Without split requests and long copies, each bio in flight is a whole request, so the device's queue can count the requests. If a
        // transfer is short, `pop` continues it.
        let missing = min.saturating_sub(state.finished.len());
        return queue.wait(missing).map_err(hand_over_failed);
    }
    loop {
        Io { queue, state }.take_completed();
        let missing = min.saturating_sub(state.finished.len() + state.files.unsynced());
        if missing == 0 {
            return queue.commit().map_err(hand_over_failed);
        }
        // Each incomplete request has at least one bio in flight, so this wait ends.
        queue.wait(if copies { 1 } else { missing }).map_err(hand_over_failed)?;
    }
}

/// Submits queued requests and collects completions. Does not wait.
#[inline]
pub(crate) fn poll<Q: DeviceQueue>(queue: &mut Q, state: &mut State) -> Result<()> {
    (state.waited, state.counted_early) = (false, 0);
    queue.commit().map_err(hand_over_failed)
}

#[cold]
fn hand_over_failed(errno: Errno) -> Error {
    Error::io(errno, "the device's queue")
}

impl<M> Clone for Target<'_, M> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Target<'_, M> {}

impl<M> Target<'_, M> {
    /// The longest transfer of the device.
    pub(crate) fn longest(&self) -> usize {
        self.geometry.longest()
    }

    /// Returns the parameters of transfers to or from this file.
    fn transfer_to(&self, flags: BioFlags) -> TransferTo {
        TransferTo { dev: self.dev, sector_mask: self.geometry.sector_mask, flags }
    }

    /// Whether one bio can describe the request's lock on the file's content: the request has no lock, or the shared lock of its queue.
    #[inline(always)]
    fn is_light(&self) -> bool {
        self.live.is_none_or(|holding| holding.is_light())
    }
}
