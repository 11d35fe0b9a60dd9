//! The direct-I/O core: from a range of a file to requests to the device, modelled on Linux's `fs/iomap/direct-io.c`.
//!
//! The first decision for a `Request` is whether it takes the simple path (`simple`), on which its mapping is found in memory and one bio
//! carries it out. Every other request takes one of four paths, depending on the owner of its memory and on whether the device accepts that
//! memory:
//!
//! | memory | direct | through bounce buffers |
//! |---|---|---|
//! | lent, for the time of the call | `generic`, `write` | `bounce` |
//! | owned, until it is popped | `queued` (one bio), `split` (several) | `split::bounced` |
//!
//! A request that would be simple except for a copy passes the same gate, and uses one piece (`bounce::short`).

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
use crate::device::{DeviceQueue, Limits, Through, ThroughFlushes};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::events::{Direction, ErrorEvent, Events};
use crate::iomap::{Iomap, MapFile};
use crate::units::InodeNo;

bitflags! {
    /// How a request is carried out. The names are those of Linux's `RWF_` and `IOMAP_DIO_` flags.
    ///
    /// A device may return EAGAIN for a request without NOWAIT, for example if it is short of memory. Such a request is repeated at most a
    /// hundred times; then it fails with EIO.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DioFlags: u8 {
        /// The request fails with EAGAIN, without any effect, instead of waiting for metadata, a slot or the device.
        const NOWAIT = 0x1;
        /// The completion is polled if the device supports polling and one bio suffices; otherwise the flag is cleared without an error.
        const HIPRI = 0x2;
        /// The request does not take the simple path. Linux also waits for a request with this flag; here only `read_at` and `write_at` wait.
        const FORCE_WAIT = 0x4;
        /// A write without space for all its data fails, and the file keeps its content: there are no short writes. If the file has no extents,
        /// the part of the data before its end may still have been written, over old content and into holes.
        const WHOLE = 0x8;
        /// The data are copied through a bounce buffer even if the device accepts the memory.
        const BOUNCE = 0x10;
        /// The write is durable when it completes, with the metadata that a read needs (`O_DSYNC`).
        const DSYNC = 0x20;
        /// The write is durable when it completes, with all metadata of the file (`O_SYNC`).
        const SYNC = 0x40;
        /// The device writes all of the data or nothing, whatever happens. The write fails with EOPNOTSUPP if the device does not guarantee
        /// this.
        const ATOMIC = 0x80;
    }
}

/// How many times a request that may wait is repeated after EAGAIN.
const RETRIES: u8 = 100;
/// The inode number of a request whose failure is not an event, because the caller retries by another path and reports the failure of the
/// retry.
pub(crate) const UNTOLD: InodeNo = InodeNo(0);

impl DioFlags {
    #[inline(always)]
    fn for_bio(self) -> BioFlags {
        // The bits are the same, as asserted below, so a request need not test them one by one.
        BioFlags::from_bits_truncate(self.bits()) & (BioFlags::NOWAIT | BioFlags::HIPRI)
    }
}

const _: () = assert!(
    DioFlags::NOWAIT.bits() == BioFlags::NOWAIT.bits()
        && DioFlags::HIPRI.bits() == BioFlags::HIPRI.bits()
);

/// The properties of a request's file that this layer needs.
pub(crate) struct Target<'a, M> {
    pub(crate) map: &'a M,
    /// The device that the map leads to.
    pub(crate) dev: Dev,
    /// The limits of a request that the device and the file's blocks impose.
    pub(crate) geometry: &'a Geometry,
    pub(crate) inode: InodeNo,
    /// `i_size`, sampled at the start of the request.
    pub(crate) size: u64,
    /// Whether the handle accepts only what `O_DIRECT` accepts. This is a reference, so that the simple path need not load the value.
    pub(crate) strict: &'a bool,
    /// How the content of a file that can change is held until the request is complete.
    pub(crate) live: Option<Holding>,
}

/// A device's queue and the state of this layer, for everything except the simple path. The queue is a trait object, because otherwise this
/// code would be compiled for each kind of queue. An indirect call costs little in comparison with a plan or a copy.
pub(crate) struct Io<'a> {
    pub(crate) queue: &'a mut dyn DeviceQueue,
    pub(crate) state: &'a mut State,
}

/// The state of this layer in a queue.
pub(crate) struct State {
    /// The mask of the largest logical block among the devices. A short transfer is rounded down to whole blocks of this size.
    sector_mask: u64,
    /// The strictest value among the devices.
    through_flushes: ThroughFlushes,
    simple: bool,
    stats: Stats,
    /// Requests of several bios.
    splits: Slab<SplitRequest>,
    /// Requests that need only a copy.
    shorts: Slab<Short>,
    finished: VecDeque<Completion>,
    /// Whether a completion that the device's queue does not record was popped since the last [`Self::take_fresh`].
    fresh: bool,
    /// The number of requests that were submitted and not yet popped.
    outstanding: usize,
    /// Whether the caller has waited for the completions that it pops.
    waited: bool,
    /// The number of requests that [`wait`] counted as complete although the device had cut them short. They are counted when the completion is
    /// popped, so that clean completions have no extra cost.
    counted_early: usize,
    /// The bounce buffers.
    pool: Pool,
    /// The memory of the last plan, for reuse.
    spare_plan: Vec<Iomap>,
    /// The files that can change.
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

    /// Records the needs of a device whose requests this queue will carry out.
    pub(crate) fn admit(&mut self, limits: &Limits) {
        self.sector_mask = self.sector_mask.max(u64::from(limits.logical_block) - 1);
        self.through_flushes = self.through_flushes.max(limits.through_flushes);
    }

    /// Whether a write-through request that a call waits for may flush a device.
    pub(crate) fn calls_flush(&self) -> bool {
        self.through_flushes != ThroughFlushes::Never
    }

    /// Whether a queued write-through request with this memory may flush a device.
    pub(crate) fn queued_flushes(&self, memory: &Memory) -> bool {
        match self.through_flushes {
            ThroughFlushes::Never => false,
            // An NVMe namespace's queue makes system calls for memory that has too many pieces.
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

    /// The present number of bytes of bounce buffers, in use or not.
    pub(crate) fn bounce_bytes(&self) -> usize {
        self.pool.bytes()
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn stats_mut(&mut self) -> &mut Stats {
        &mut self.stats
    }

    /// Adds a completion that did not come from the device's queue. It is popped like the others.
    pub(crate) fn finish(&mut self, completion: Completion) {
        self.outstanding += 1;
        self.finished.push_back(completion);
    }

    /// Adds a completion that was held back, so that it can be popped.
    pub(crate) fn release(&mut self, completion: Completion) {
        self.finished.push_back(completion);
    }

    /// The implementation of [`DeviceQueue::take_fresh`] for requests that complete without the device: reads of holes, and reads past the end.
    #[inline(always)]
    pub(crate) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The error of a failed request, which is also reported as an event. EAGAIN occurs only for a request with NOWAIT.
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
        // The request obeyed the limits that the device had when it was opened.
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
        // The device has ended these requests, or they are leaked. Their callers get no completion, but other requests wait for their ranges.
        let shorts = self.shorts.iter().filter_map(Short::completing);
        let splits = self.splits.iter().filter_map(SplitRequest::completing);
        splits.chain(shorts).for_each(|completing| self.files.abandon(completing));
    }
}

/// Reads into lent memory and waits. Returns the number of bytes read, which is less than asked only at the end of the file.
///
/// All of its frequent code down to the system call is inlined into its caller, and no rare code is: the first `ret` after a system call can
/// cost a third of a read (measured with AMD's Safe RET mitigation; docs/BENCHMARKS.md, "Returns across a system call").
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
            // These are copies: a value that a function borrows must be in memory, and so it is stored only on this path.
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

/// Reads into several lent buffers and waits.
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
            // The length is taken from the flat buffer, because the length of any memory needs one more branch.
            let request = Request { len: buffer.len(), ..*request };
            simple::gate(state, target, &request, buffer.address())
        }
        Memory::Vectored(_) => Err(NotSimple::Vectored),
    };
    match gate {
        // One bio cannot describe a range lock, so only a request that holds its content by the lane passes.
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

/// Takes an available completion. After [`wait`], it waits for the remaining bytes of a transfer that the device cut short.
#[inline(always)]
pub(crate) fn pop<Q: DeviceQueue>(queue: &mut Q, state: &mut State) -> Option<Completion> {
    loop {
        match queue.pop_whole() {
            Some(Ok(Whole { token, slot, memory })) => {
                if let Some(slot) = slot {
                    state.files.leave(slot, Hold::Lane);
                }
                state.outstanding -= 1;
                let result = Ok(memory.len());
                return Some(Completion { token, memory, result });
            }
            Some(Err(done)) => match (done.bio.end, &done.result) {
                (BioEnd::Part { request, part: COPY }, Ok(count))
                    if *count == done.bio.memory.len() && short::is_light(state, request) =>
                {
                    return short::pop(queue, state, done, request);
                }
                _ => Io { queue, state }.unclean(done),
            },
            None => {
                if let Some(completion) = state.finished.pop_front() {
                    state.outstanding -= 1;
                    state.fresh = true;
                    return Some(completion);
                }
                if state.counted_early == 0 || !(Io { queue, state }).wait_for_counted() {
                    return None;
                }
            }
        }
    }
}

impl Io<'_> {
    /// The result of a simple read that was not clean. A read that was short or temporarily refused is repeated from its start if transfers are
    /// continued.
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

    /// Processes a completion that is not the clean completion of a whole request.
    #[cold]
    #[inline(never)]
    fn unclean(&mut self, done: Done) {
        if !matches!(done.bio.end, BioEnd::Part { part, .. } if part != COPY) {
            self.state.counted_early += usize::from(self.state.waited);
        }
        let there = |state: &State| state.finished.len() + state.files.unsynced();
        let before = there(self.state);
        self.complete(done);
        // Requests that this completed can be popped, immediately or after a sync.
        self.state.counted_early =
            self.state.counted_early.saturating_sub(there(self.state) - before);
    }

    /// Waits until one of the requests that were counted early has completed. After an error none counts as complete, because the next [`wait`]
    /// gets the error again, and returns it.
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

    /// Takes the completed requests of the device, and keeps them to be popped.
    #[cold]
    pub(crate) fn take_completed(&mut self) {
        while let Some(done) = self.queue.pop() {
            self.complete(done);
        }
    }

    /// Takes one completion from the device's queue, and keeps it to be popped. If none is available, submits all queued requests together, and
    /// waits for one.
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

/// Waits until `min` completions (or all that are outstanding, if fewer) can be popped.
#[inline]
pub(crate) fn wait<Q: DeviceQueue>(queue: &mut Q, state: &mut State, min: usize) -> Result<()> {
    let min = min.min(state.outstanding);
    state.waited = true;
    // The first completed read is copied while the device works on the others.
    let copies = state.pool.has_long();
    if state.splits.is_empty() && !copies {
        // Each bio in flight is a whole request here, so the device's queue can count them. `pop` continues a transfer that the device cut
        // short.
        let missing = min.saturating_sub(state.finished.len());
        return queue.wait(missing).map_err(hand_over_failed);
    }
    loop {
        Io { queue, state }.take_completed();
        let missing = min.saturating_sub(state.finished.len() + state.files.unsynced());
        if missing == 0 {
            return queue.commit().map_err(hand_over_failed);
        }
        // Each missing request has at least one bio in flight.
        queue.wait(if copies { 1 } else { missing }).map_err(hand_over_failed)?;
    }
}

/// Submits queued requests and collects completions, without waiting.
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
    /// The target of its transfers.
    fn transfer_to(&self, flags: BioFlags) -> TransferTo {
        TransferTo { dev: self.dev, sector_mask: self.geometry.sector_mask, flags }
    }

    /// Whether one bio can describe the completion work of its file.
    #[inline(always)]
    fn is_light(&self) -> bool {
        self.live.is_none_or(|holding| holding.is_light())
    }
}
