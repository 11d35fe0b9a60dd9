//! Writes. An overwrite of one written extent is only one bio. Other writes have their steps in [`LiveFile::prepare`], in the order in which they
//! are taken.

use std::io::IoSlice;
use std::sync::Arc;

use smallvec::SmallVec;

use super::target::{stamp_overwrite, target_by_metadata};
use super::{Live, LiveFile};
use crate::bio::{CompletionWork, Memory};
use crate::device::with_queue;
use crate::dio::{self, DioFlags, Hold, Holding, Keep, Rejected, Request, Source};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::iomap::{Begun, Write, WriteAt, WriteIntent};
use crate::queue::Queue;
use crate::units::FilePos;

pub(super) const SYNCED: DioFlags = DioFlags::DSYNC.union(DioFlags::SYNC);

/// The path by which a prepared write continues.
pub(super) enum Ready {
    /// Over blocks that the file has, perhaps fewer bytes than requested; the content is held.
    Blocks { hold: Hold, request: Request, left: CompletionWork },
    /// At the end of the file, which is not the end of a sector. The value is the position.
    Unaligned(FilePos),
    /// By the file system: the file has no blocks, or cannot have unwritten ones.
    ByFileSystem,
    /// After the remaining bytes of the file's last block are zeroed, because the file grows over them. The value is the size.
    Gap(u64),
}

/// A write that is more than an overwrite, and its progress.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) at: WriteAt,
    pub(super) len: usize,
    pub(super) flags: DioFlags,
    /// How the content is held.
    pub(super) hold: Hold,
    /// The size for which the remaining bytes of the last block have been zeroed.
    pub(super) zeroed: Option<u64>,
}

/// A write of memory that stays with the caller.
pub(super) struct Lent<'a> {
    pub(super) bufs: &'a [IoSlice<'a>],
    pub(super) at: WriteAt,
    pub(super) flags: DioFlags,
    pub(super) source: Source,
    /// The position, also if the write failed after a part.
    pub(super) pos: FilePos,
}

impl<'a> Lent<'a> {
    pub(super) fn new(
        bufs: &'a [IoSlice<'a>],
        at: WriteAt,
        flags: DioFlags,
        source: Source,
    ) -> Self {
        Self { bufs, at, flags, source, pos: FilePos(0) }
    }

    pub(super) fn len(&self) -> usize {
        self.bufs.iter().map(|buf| buf.len()).sum()
    }
}

impl LiveFile {
    #[inline(always)]
    pub(in crate::file) fn write_at(
        &self,
        queue: &mut Queue,
        buf: &[u8],
        request: Request,
    ) -> Result<usize> {
        let live = &*self.0;
        let Request { pos, flags, source, .. } = request;
        let mut full = false;
        if let Some(view) = live.view(&queue.views)
            && let Some(inside) = view.enter()
            && view.takes_overwrites(&inside)
        {
            let target = target_by_metadata(view, live, None);
            // One bio that reaches the medium, if nothing else needs a sync.
            let through =
                flags.contains(DioFlags::DSYNC) && !queue.state.calls_flush() && view.is_durable();
            let request = Request { through, ..request };
            let written = with_queue!(&mut queue.device, device => {
                dio::overwrite_now(device, &mut queue.state, &target, buf, &request)
            });
            if let Some(left) = written {
                stamp_overwrite(view, live);
                if left.is_empty() || !live.open.wrote(pos, buf.len(), left) {
                    return Ok(buf.len());
                }
                full = true;
            }
        }
        if full {
            self.write_done(queue, flags);
            return Ok(buf.len());
        }
        self.write_lent(queue, &[IoSlice::new(buf)], pos, (flags, source))
    }

    #[inline(never)]
    pub(in crate::file) fn write_lent(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        pos: FilePos,
        (flags, source): (DioFlags, Source),
    ) -> Result<usize> {
        self.write_somewhere(queue, &mut Lent::new(bufs, WriteAt::Pos(pos), flags, source))
    }

    /// Returns the number of bytes written.
    pub(super) fn write_somewhere(&self, queue: &mut Queue, write: &mut Lent<'_>) -> Result<usize> {
        let live = &*self.0;
        queue.check(live.volume)?;
        write.at = live.writing.admit(write.at)?;
        let (at, flags, len) = (write.at, write.flags, write.len());
        // The end of the file is known only when the content is held.
        write.pos = if let WriteAt::Pos(pos) = at { pos } else { FilePos(0) };
        let pos = write.pos;
        if len == 0 {
            if at == WriteAt::End {
                write.pos = FilePos(self.size());
            }
            return Ok(0);
        }
        let addresses = write.bufs.iter().map(|buf| (buf.as_ptr().addr(), buf.len()));
        if live.strict && !live.geometry.is_aligned(pos, addresses) {
            return Err(live.geometry.misaligned(pos, len));
        }
        if !live.geometry.takes(pos, len) {
            return self.write_unaligned(queue, write);
        }
        let (hold, request, left) = match self.prepare(queue, at, len, flags)? {
            Ready::Blocks { hold, request, left } => (hold, request, left),
            Ready::Unaligned(pos) if live.strict => return Err(live.geometry.misaligned(pos, len)),
            Ready::Unaligned(_) | Ready::Gap(_) => return self.write_unaligned(queue, write),
            Ready::ByFileSystem => return self.write_by_file_system(queue, write),
        };
        self.write_prepared(queue, write, hold, (request, left))
    }

    /// Writes a range that has blocks, and releases the content.
    fn write_prepared(
        &self,
        queue: &mut Queue,
        write: &mut Lent<'_>,
        hold: Hold,
        (mut request, mut left): (Request, CompletionWork),
    ) -> Result<usize> {
        let live = &*self.0;
        if request.through && queue.state.calls_flush() {
            (request.through, left) = (false, left | CompletionWork::DATASYNC);
        }
        request.source = write.source;
        let Request { pos, len, flags, .. } = request;
        write.pos = pos;
        let result = self.write_held(queue, &cut_from(write.bufs, 0, len), &request);
        let full = result.as_ref().is_ok_and(|more| {
            live.stamp_write();
            live.open.wrote(pos, len, left | *more)
        });
        self.end_place(left);
        self.leave(queue, hold);
        if result?.contains(CompletionWork::REMAP) {
            self.convert(queue)?;
        } else if full {
            self.write_done(queue, flags);
        }
        if left.intersects(CompletionWork::SYNC | CompletionWork::DATASYNC) {
            self.sync(queue, !left.contains(CompletionWork::SYNC))?;
        }
        Ok(len)
    }

    /// The steps of a write that is not just an overwrite. The device accepts the position and length.
    ///
    /// The content is held from the first step on, so that no block moves. Changes of the inode come in between, under its own lock. A write with
    /// NOWAIT takes none of these steps.
    fn prepare(
        &self,
        queue: &mut Queue,
        at: WriteAt,
        len: usize,
        flags: DioFlags,
    ) -> Result<Ready> {
        let mut zeroed = None;
        loop {
            let range = at.range(len as u64);
            let hold = self.enter(queue, range, flags.contains(DioFlags::NOWAIT))?;
            let ready = self.prepare_entered(queue, Wanted { at, len, flags, hold, zeroed });
            if !matches!(ready, Ok(Ready::Blocks { .. })) {
                self.leave(queue, hold);
            }
            match ready {
                // The gap consists of the places of appends in flight: an append that holds the file exclusively finds no gap.
                Ok(Ready::Gap(_)) if at == WriteAt::End && !flags.contains(DioFlags::ATOMIC) => {
                    return ready;
                }
                Ok(Ready::Gap(size)) => {
                    self.zero_gap(queue)?;
                    zeroed = Some(size);
                }
                ready => return ready,
            }
        }
    }

    /// Does the same with the content held. A write that makes the file longer has a place from here on.
    fn prepare_entered(&self, queue: &mut Queue, wanted: Wanted) -> Result<Ready> {
        let Wanted { at, len, flags, .. } = wanted;
        let pending = &self.0.open.pending;
        let order = (at == WriteAt::End).then(|| pending.order());
        let pos = self.place(at, len, flags)?;
        let mut ready = if self.0.geometry.takes(pos, len) {
            self.prepare_held(queue, pos, wanted)
        } else {
            Ok(Ready::Unaligned(pos))
        };
        match &mut ready {
            Ok(Ready::Blocks { request, left, .. }) => {
                if at != WriteAt::End && left.contains(CompletionWork::GROW) {
                    pending.extends(request.pos.0 + request.len as u64);
                }
                // There are fewer blocks than requested: the next append begins after these.
                let end = request.pos.0 + request.len as u64;
                order.iter().for_each(|order| pending.shorten(order, end));
                // Writes after an append may have already made the file longer.
                let reserved = at == WriteAt::End || left.contains(CompletionWork::GROW);
                left.set(CompletionWork::RESERVED, reserved);
            }
            _ => order.iter().for_each(|order| pending.give_back(order, pos)),
        }
        ready
    }

    pub(super) fn zero_gap(&self, queue: &mut Queue) -> Result<()> {
        queue.alone(|| self.0.file.zero_tail())
    }

    /// The steps while the content is held, at the position of the write.
    pub(super) fn prepare_held(
        &self,
        queue: &mut Queue,
        pos: FilePos,
        wanted: Wanted,
    ) -> Result<Ready> {
        let Wanted { at, len, flags, hold, zeroed } = wanted;
        let (live, nowait) = (&*self.0, flags.contains(DioFlags::NOWAIT));
        let end = pos.0.saturating_add(len as u64);
        let view = live.current(&mut queue.views, &mut queue.state.files, nowait)?;
        let size = match view.size_at_once() {
            Some(size) => size,
            None if nowait => return Err(would_change()),
            None => view.size(),
        };
        live.check_atomic(pos, len, flags)?;
        let mut intent = live.intent;
        intent.set(WriteIntent::NOWAIT, nowait);
        intent.set(WriteIntent::APPEND, at == WriteAt::End);
        let write = Write { pos, len: len as u64, size, zeroed, intent };
        let allocates = match view.map().begin(&write)? {
            Begun::Direct { allocates } => allocates,
            Begun::ByFileSystem => return Ok(Ready::ByFileSystem),
            Begun::ZeroTail => return Ok(Ready::Gap(size)),
        };
        let grows = end > size;
        let view = live.current(&mut queue.views, &mut queue.state.files, nowait)?;
        let mut len = len;
        let written = match dio::blocks_of(view, pos, len, nowait)? {
            Some(true) => true,
            // A separate transaction would record its blocks and their state.
            Some(false) | None if flags.contains(DioFlags::ATOMIC) => {
                let what = "an atomic write to a range without data";
                return Err(Error::io(Errno::EOPNOTSUPP, what));
            }
            Some(false) => false,
            None if nowait => return Err(would_change()),
            None if !allocates => return Ok(Ready::ByFileSystem),
            None => {
                let whole = flags.contains(DioFlags::WHOLE);
                let reached = live.file.allocate(pos.0..end, whole)?;
                // The length ends at the end of the write, or at the end of a block.
                len = (reached.min(end) - pos.0) as usize;
                live.current(&mut queue.views, &mut queue.state.files, false)?;
                false
            }
        };
        let mut left = CompletionWork::empty();
        left.set(CompletionWork::GROW, grows);
        let through = flags.intersection(SYNCED) == DioFlags::DSYNC
            && written
            && !grows
            && live.file.is_durable();
        if !through && flags.contains(DioFlags::SYNC) {
            left |= CompletionWork::SYNC;
        } else if !through && flags.contains(DioFlags::DSYNC) {
            left |= CompletionWork::DATASYNC;
        }
        let request = Request { through, ..Request::write(pos, len, flags) };
        Ok(Ready::Blocks { hold, request, left })
    }

    /// Writes the range that is held and has blocks.
    pub(super) fn write_held(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        request: &Request,
    ) -> Result<CompletionWork> {
        let live = &*self.0;
        let view = live.current(&mut queue.views, &mut queue.state.files, request.is_nowait())?;
        let target = target_by_metadata(view, live, None);
        dio::write_now(queue.device.as_dyn(), &mut queue.state, &target, bufs, request)
    }

    /// Converts ranges of the file after a write that left many of them, unless the write must not wait. The write itself is complete: a range
    /// that cannot be converted now is converted at the next sync or close, which reports the error again.
    pub(super) fn write_done(&self, queue: &mut Queue, flags: DioFlags) {
        if !flags.contains(DioFlags::NOWAIT) {
            let _ = self.convert(queue);
        }
    }

    pub(super) fn convert(&self, queue: &mut Queue) -> Result<()> {
        queue.alone(|| self.0.file.convert())
    }

    /// Makes written data durable, with the metadata needed to read them, or with all metadata.
    pub(in crate::file) fn sync(&self, queue: &mut Queue, data_only: bool) -> Result<()> {
        queue.alone(|| self.0.file.sync(data_only))
    }

    /// Writes through the file system's own path.
    pub(super) fn write_by_file_system(
        &self,
        queue: &mut Queue,
        write: &mut Lent<'_>,
    ) -> Result<usize> {
        let (at, flags) = (write.at, write.flags);
        let mut intent = self.0.intent;
        intent.set(WriteIntent::WHOLE, flags.contains(DioFlags::WHOLE));
        write.pos = if let WriteAt::Pos(pos) = at { pos } else { FilePos(self.size()) };
        let (pos, count) = queue.alone(|| self.0.file.write_from(at, write.bufs, intent))?;
        write.pos = pos;
        if flags.intersects(SYNCED) {
            self.sync(queue, !flags.contains(DioFlags::SYNC))?;
        }
        Ok(count)
    }

    #[inline(always)]
    pub(in crate::file) fn submit_write(
        &self,
        queue: &mut Queue,
        memory: Memory,
        request: Request,
    ) -> Result<(), Box<Rejected>> {
        let live = &*self.0;
        let keep = || Arc::clone(&self.0) as Keep;
        let holding = Holding { slot: live.index.number, hold: Hold::Lane };
        if let Some(view) = live.view(&queue.views)
            && let Some(inode) = queue.state.files.enter(&view.queue_file, keep)
        {
            let target = target_by_metadata(view, live, Some(holding));
            if view.takes_overwrites(inode)
                && let Some(passed) =
                    dio::pass_overwrite(&mut queue.state, &target, &memory, &request)
            {
                let submitted = with_queue!(&mut queue.device, device => {
                    dio::submit_overwrite(device, &mut queue.state, &target, passed, memory, &request)
                });
                return match submitted {
                    Ok(()) => {
                        stamp_overwrite(view, live);
                        Ok(())
                    }
                    Err(memory) => {
                        queue.state.files.turn_back(&view.queue_file);
                        let request = Request { len: memory.len(), ..request };
                        self.submit_write_slowly(queue, memory, request)
                    }
                };
            }
            queue.state.files.turn_back(&view.queue_file);
        }
        let request = Request { len: memory.len(), ..request };
        self.submit_write_slowly(queue, memory, request)
    }

    #[inline(never)]
    fn submit_write_slowly(
        &self,
        queue: &mut Queue,
        mut memory: Memory,
        request: Request,
    ) -> Result<(), Box<Rejected>> {
        if self.0.geometry.copies_owned_writes() {
            match self.submit_copied(queue, memory, &request) {
                Ok(()) => return Ok(()),
                Err(back) => memory = back,
            }
        }
        self.submit_somewhere(queue, memory, WriteAt::Pos(request.pos), request).map(drop)
    }

    /// Starts a write that is not just an overwrite; returns its position.
    pub(in crate::file) fn submit_somewhere(
        &self,
        queue: &mut Queue,
        memory: Memory,
        at: WriteAt,
        request: Request,
    ) -> Result<FilePos, Box<Rejected>> {
        let live = &*self.0;
        let at = match queue.check(live.volume).and_then(|()| live.writing.admit(at)) {
            Ok(at) => at,
            Err(error) => return Err(Rejected::boxed(error, memory)),
        };
        let Request { flags, token, len, .. } = request;
        // The end of the file is known only when the content is held.
        let pos = if let WriteAt::Pos(pos) = at { pos } else { FilePos(0) };
        let addresses = memory.buffers().iter().map(|buf| (buf.address(), buf.len()));
        if live.strict && len > 0 && !live.geometry.is_aligned(pos, addresses) {
            return Err(Rejected::boxed(live.geometry.misaligned(pos, len), memory));
        }
        let write = Self::write_somewhere;
        if !live.geometry.takes(pos, len) || len == 0 {
            return self.write_at_once(queue, memory, at, &request, write);
        }
        let (hold, mut ready, mut left) = match self.prepare(queue, at, len, flags) {
            Ok(Ready::Blocks { hold, request, left }) => (hold, request.token(token), left),
            Ok(_) => return self.write_at_once(queue, memory, at, &request, write),
            Err(error) => return Err(Rejected::boxed(error, memory)),
        };
        if ready.through && queue.state.queued_flushes(&memory) {
            (ready.through, left) = (false, left | CompletionWork::DATASYNC);
        }
        if ready.len < len {
            // The position is kept, because a later append may follow it.
            let write = |file: &Self, queue: &mut Queue, lent: &mut Lent<'_>| {
                file.write_prepared(queue, lent, hold, (ready, left))
            };
            return self.write_at_once(queue, memory, at, &request, write);
        }
        let holding = Holding { slot: live.index.number, hold };
        queue.state.files.begin(holding, || Arc::clone(&self.0) as Keep);
        let Queue { device, state, views, .. } = queue;
        let submitted = match live.current(views, &mut state.files, ready.is_nowait()) {
            Err(error) => Err(Rejected::boxed(error, memory)),
            Ok(view) => {
                let target = target_by_metadata(view, live, Some(holding));
                dio::submit_write(device.as_dyn(), state, &target, memory, &ready, left)
            }
        };
        match &submitted {
            Ok(()) => live.stamp_write(),
            Err(_) => {
                self.end_place(left);
                state.files.cancel(holding);
            }
        }
        submitted.map(|()| ready.pos)
    }

    /// Completes a write before it returns; the completion can then be popped.
    fn write_at_once(
        &self,
        queue: &mut Queue,
        memory: Memory,
        at: WriteAt,
        &Request { flags, token, .. }: &Request,
        write: impl FnOnce(&Self, &mut Queue, &mut Lent<'_>) -> Result<usize>,
    ) -> Result<FilePos, Box<Rejected>> {
        let bufs: Vec<_> = memory.buffers().iter().map(|buf| IoSlice::new(buf)).collect();
        let mut lent = Lent::new(&bufs, at, flags, Source::Buffer);
        let result = write(self, queue, &mut lent);
        let pos = lent.pos;
        drop(bufs);
        match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(Rejected::boxed(error, memory));
            }
            // A failed write may have written a part.
            result => queue.state.finish(dio::Completion { token, memory, result }),
        }
        Ok(pos)
    }
}

impl Live {
    /// Checks Linux's rules for an atomic write, which the device must guarantee.
    fn check_atomic(&self, pos: FilePos, len: usize, flags: DioFlags) -> Result<()> {
        if !flags.contains(DioFlags::ATOMIC) {
            return Ok(());
        }
        let most = self.geometry.atomic();
        if most == 0 {
            let what = "the device does not promise atomic writes";
            return Err(Error::io(Errno::EOPNOTSUPP, what));
        }
        let fits = len.is_power_of_two() && len <= most && pos.0.is_multiple_of(len as u64);
        if !fits {
            return Err(Error::invalid(format!(
                "an atomic write of {len} bytes at {pos}: a power of two up to {most}, at a multiple of it"
            )));
        }
        Ok(())
    }
}

pub(super) fn would_change() -> Error {
    Error::would_block("the request would change or read the file's metadata")
}

/// The `len` bytes of several buffers from `skip` on.
pub(super) fn cut_from<'a>(
    bufs: &'a [IoSlice<'_>],
    skip: usize,
    len: usize,
) -> SmallVec<[IoSlice<'a>; 2]> {
    let (mut skip, mut left) = (skip, len);
    let mut parts = SmallVec::new();
    for buf in bufs {
        let from = skip.min(buf.len());
        let count = left.min(buf.len() - from);
        if count > 0 {
            parts.push(IoSlice::new(&buf[from..from + count]));
        }
        (skip, left) = (skip - from, left - count);
    }
    parts
}
