//! The direct-I/O core. It turns a request for a range of a file into requests to the device. The model is Linux's `fs/iomap/direct-io.c`.
//!
//! A `Request` takes the simple path (`simple`) if its mapping is in memory and one bio suffices. Every other request takes one of four
//! paths. The path depends on the owner of the memory, and on whether the device accepts the memory:
//!
//! | memory | direct | through bounce buffers |
//! |---|---|---|
//! | borrowed for the call | `generic`, `write` | `bounce` |
//! | owned by the queue until the pop | `queued` (one bio), `split` (several) | `split::bounced` |
//!
//! A request that would be simple if its data needed no copy takes a path of its own, with one bounce buffer (`bounce::short`).

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
    /// The options of a request. The names are those of Linux's `RWF_` and `IOMAP_DIO_` flags.
    ///
    /// A device may return EAGAIN even for a request without NOWAIT, for example if it is short of memory. Such a request is repeated at
    /// most a hundred times, and then fails with EIO. The same applies to a transfer of less than a logical block.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DioFlags: u8 {
        /// The request fails with EAGAIN, without any effect, instead of waiting for metadata, a slot or the device.
        const NOWAIT = 0x1;
        /// The completion is polled if the device supports polling and one bio suffices. Otherwise the flag has no effect.
        const HIPRI = 0x2;
        /// The request does not take the simple path. In Linux the flag also makes the submitter wait. Here the flag does not change
        /// whether a call waits.
        const FORCE_WAIT = 0x4;
        /// If there is not enough space for all data, the write fails and the file keeps its content; there is no short write. There is one
        /// exception: in a file with a block map (no extents), the data before the end of the file may have been written.
        const WHOLE = 0x8;
        /// The data are copied through a bounce buffer even if the device accepts the memory.
        const BOUNCE = 0x10;
        /// The write is durable when it completes, with the metadata that a read needs (`O_DSYNC`).
        const DSYNC = 0x20;
        /// The write is durable when it completes, with all metadata of the file (`O_SYNC`).
        const SYNC = 0x40;
        /// The device writes all of the data or nothing, even at a power failure (`RWF_ATOMIC`). The write fails with EOPNOTSUPP if the
        /// device does not guarantee this.
        const ATOMIC = 0x80;
    }
}

/// How many times a request that may wait is repeated after EAGAIN.
const RETRIES: u8 = 100;
/// The inode number of a request whose failure is not reported as an event. The caller of such a request repeats it on another path, and
/// reports the failure of the repeat.
pub(crate) const UNTOLD: InodeNo = InodeNo(0);

impl DioFlags {
    #[inline(always)]
    fn for_bio(self) -> BioFlags {
        // The values of the bits are equal, as asserted below, so no bit needs a separate test.
        BioFlags::from_bits_truncate(self.bits()) & (BioFlags::NOWAIT | BioFlags::HIPRI)
    }
}

const _: () = assert!(
    DioFlags::NOWAIT.bits() == BioFlags::NOWAIT.bits()
        && DioFlags::HIPRI.bits() == BioFlags::HIPRI.bits()
);

/// The properties of a file that this layer needs for a request.
pub(crate) struct Target<'a, M> {
    pub(crate) map: &'a M,
    /// The device to which the offsets in the map belong.
    pub(crate) dev: Dev,
    /// The limits for requests that follow from the device and the block size.
    pub(crate) geometry: &'a Geometry,
    pub(crate) inode: InodeNo,
    /// `i_size`, sampled at the start of the request.
    pub(crate) size: u64,
    /// Whether the handle refuses misaligned requests, as `O_DIRECT` does. This is a reference, so that the simple path need not load the
    /// value.
    pub(crate) strict: &'a bool,
    /// The lock that the request has on the content until it is complete; `None` if the file cannot change.
    pub(crate) live: Option<Holding>,
}

/// A device's queue and the state of this layer, for all code except the simple path. The queue is a trait object, because otherwise this
/// code would be compiled for each kind of queue. An indirect call costs little in comparison with the other work of this code.
pub(crate) struct Io<'a> {
    pub(crate) queue: &'a mut dyn DeviceQueue,
    pub(crate) state: &'a mut State,
}

/// The state of this layer in a queue.
pub(crate) struct State {
    /// The largest logical block size among the devices, minus one. A short transfer is rounded down to whole blocks of this size.
    sector_mask: u64,
    /// Which write-through requests may flush a device: the strictest value among the devices.
    through_flushes: ThroughFlushes,
    simple: bool,
    stats: Stats,
    /// Requests of several bios.
    splits: Slab<SplitRequest>,
    /// Requests of the short path, which copies their data through one bounce buffer.
    shorts: Slab<Short>,
    finished: VecDeque<Completion>,
    /// Whether, since the last [`Self::take_fresh`], a completion was popped that did not come from the device's queue.
    fresh: bool,
    /// The number of requests that were submitted and not yet popped.
    outstanding: usize,
    /// Whether the caller has called [`wait`] since its last [`poll`].
    waited: bool,
    /// The number of requests that [`wait`] counted as complete, but whose transfers the device had cut short. Such requests are counted
    /// when their completions are popped, so that other completions have no extra cost.
    counted_early: usize,
    /// The bounce buffers.
    pool: Pool,
    /// The memory of the last plan, for reuse.
    spare_plan: Vec<Iomap>,
    /// The files that can change, with this queue's requests to them.
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

    /// Records the limits of a device to which this queue will send requests.
    pub(crate) fn admit(&mut self, limits: &Limits) {
        self.sector_mask = self.sector_mask.max(u64::from(limits.logical_block) - 1);
        self.through_flushes = self.through_flushes.max(limits.through_flushes);
    }

    /// Whether a write-through request may flush a device if a call waits for it.
    pub(crate) fn calls_flush(&self) -> bool {
        self.through_flushes != ThroughFlushes::Never
    }

    /// Whether a queued write-through request that writes this memory may flush a device.
    pub(crate) fn queued_flushes(&self, memory: &Memory) -> bool {
        match self.through_flushes {
            ThroughFlushes::Never => false,
            // For memory of several pieces, the queue of an NVMe namespace makes system calls, and these flush.
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

    /// Adds a completion that did not come from the device's queue. It is popped like all other completions.
    pub(crate) fn finish(&mut self, completion: Completion) {
        self.outstanding += 1;
        self.finished.push_back(completion);
    }

    /// Adds a completion that had to wait for completion work, so that it can be popped.
    pub(crate) fn release(&mut self, completion: Completion) {
        self.finished.push_back(completion);
    }

    /// Does the same as [`DeviceQueue::take_fresh`] for requests that complete without the device: reads of holes, and reads past the end.
    #[inline(always)]
    pub(crate) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Returns the error of a failed request, and reports it as an event. EAGAIN occurs only for a request with NOWAIT.
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
        // The request obeyed the limits that the device had when it was opened. If it is refused now, the limits may have changed.
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
        // These requests are complete or leaked, and their callers get no completions. Their locks and reserved ranges must still be
        // released, because other requests may wait for the locks.
        let shorts = self.shorts.iter().filter_map(Short::completing);
        let splits = self.splits.iter().filter_map(SplitRequest::completing);
        splits.chain(shorts).for_each(|completing| self.files.abandon(completing));
    }
}

/// Reads into borrowed memory and waits. Returns the number of bytes read, which is less than requested only at the end of the file.
///
/// All frequent code, down to the system call, is inlined into the caller. Rare code is not. The reason is the first `ret` after a system
/// call, which can cost a third of a read (measured with AMD's Safe RET mitigation; docs/BENCHMARKS.md, "Returns across a system call").
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
            // The paths below get copies of the target and the request. A value that is passed by reference must be in memory. With a copy,
            // only these paths store the value in memory, and the simple path keeps it in registers.
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

/// The place on the device of a read into lent memory that one transfer can carry out; `None` for any other read.
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

/// Carries out several reads together. Their [places](place_lent) are known.
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
            // The length comes from the buffer. `memory.len()` would need one more branch, because memory can be several buffers.
            let request = Request { len: buffer.len(), ..*request };
            simple::gate(state, target, &request, buffer.address())
        }
        Memory::Vectored(_) => Err(NotSimple::Vectored),
    };
    match gate {
        // One bio cannot describe a range lock. So a request passes only if it has locked the content by the lane, or needs no lock.
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

/// Returns a completion if one is available. After [`wait`], waits for the remaining bytes of a transfer that the device cut short.
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
    /// Handles a simple read that was short or failed. A read that was short or got EAGAIN is repeated from its start on the generic path,
    /// which continues short transfers.
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

    /// Processes any completion except a successful one of a whole request.
    #[cold]
    #[inline(never)]
    fn unclean(&mut self, done: Done) {
        if !matches!(done.bio.end, BioEnd::Part { part, .. } if part != COPY) {
            self.state.counted_early += usize::from(self.state.waited);
        }
        let there = |state: &State| state.finished.len() + state.files.unsynced();
        let before = there(self.state);
        self.complete(done);
        // Requests that `complete` has completed can be popped immediately or after a sync. They are subtracted here, so that they are not
        // counted twice.
        self.state.counted_early =
            self.state.counted_early.saturating_sub(there(self.state) - before);
    }

    /// Waits for the completion of a request that [`wait`] counted too early. After an error no request counts as complete, because the
    /// next [`wait`] gets the same error and returns it.
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

    /// Processes all available completions of the device, so that they can be popped.
    #[cold]
    pub(crate) fn take_completed(&mut self) {
        while let Some(done) = self.queue.pop() {
            self.complete(done);
        }
    }

    /// Processes one completion of the device, so that it can be popped. If none is available, submits all queued requests together, and
    /// waits for a completion.
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

/// Waits until `min` completions can be popped, or all outstanding ones if there are fewer.
#[inline]
pub(crate) fn wait<Q: DeviceQueue>(queue: &mut Q, state: &mut State, min: usize) -> Result<()> {
    let min = min.min(state.outstanding);
    state.waited = true;
    // If copies take long, the loop below waits for one completion at a time. So the first completed read is copied while the device works
    // on the others.
    let copies = state.pool.has_long();
    if state.splits.is_empty() && !copies {
        // Without split requests and long copies, each bio in flight is a whole request, so the device's queue can count the requests.
        // `pop` continues a transfer that the device cut short.
        let missing = min.saturating_sub(state.finished.len());
        return queue.wait(missing).map_err(hand_over_failed);
    }
    loop {
        Io { queue, state }.take_completed();
        let missing = min.saturating_sub(state.finished.len() + state.files.unsynced());
        if missing == 0 {
            return queue.commit().map_err(hand_over_failed);
        }
        // Each missing request has at least one bio in flight, so the wait can end.
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
    /// The longest transfer of the device.
    pub(crate) fn longest(&self) -> usize {
        self.geometry.longest()
    }

    /// The target of transfers to or from this file.
    fn transfer_to(&self, flags: BioFlags) -> TransferTo {
        TransferTo { dev: self.dev, sector_mask: self.geometry.sector_mask, flags }
    }

    /// Whether one bio can describe the lock that the request has on the content.
    #[inline(always)]
    fn is_light(&self) -> bool {
        self.live.is_none_or(|holding| holding.is_light())
    }
}
