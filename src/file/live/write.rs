//! Writes. An overwrite within one written extent needs only one bio. All other writes are [prepared](LiveFile::prepare) first.

use std::io::IoSlice;
use std::sync::Arc;

use super::LiveFile;
use super::prepare::{Ready, SYNCED};
use super::target::{no_view, stamp_overwrite, target_by_metadata};
use crate::bio::slices::cut;
use crate::bio::{CompletionWork, Memory};
use crate::device::with_queue;
use crate::dio::{self, DioFlags, Hold, Holding, Rejected, Request, Source};
use crate::error::{ErrorKind, Result};
use crate::iomap::{WriteAt, WriteIntent, Written, WrittenParts};
use crate::open_file::Entered;
use crate::queue::Queue;
use crate::units::{DevOffset, FilePos};

/// A write of memory that is borrowed from the caller.
pub(super) struct Lent<'a> {
    pub(super) bufs: &'a [IoSlice<'a>],
    pub(super) at: WriteAt,
    pub(super) flags: DioFlags,
    pub(super) source: Source,
    /// The position at which the data were written. The position is also set if only a part of the data was written.
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
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(in crate::file) fn write_at(
        &self,
        queue: &mut Queue,
        buf: &[u8],
        request: Request,
    ) -> Result<usize> {
        let Request { pos, flags, source, .. } = request;
        let mut full = false;
        if let Some(view) = queue.views.get(&self.handle)
            && let Some(inside) = view.enter()
            && view.takes_overwrites(&inside)
        {
            let target = target_by_metadata(view, self, None);
            // If the file's metadata are already durable, a write-through bio is enough, and no sync is necessary.
            let through =
                flags.contains(DioFlags::DSYNC) && !queue.state.calls_flush() && view.is_durable();
            let request = Request { through, ..request };
            let written = with_queue!(&mut queue.device, device => {
                dio::overwrite_now(device, &mut queue.state, &target, buf, &request)
            });
            if let Some((at, left)) = written {
                stamp_overwrite(view, self);
                if left.is_empty() || !self.record(pos, buf.len(), at, left) {
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

    /// Records a write to one place. Returns whether so many parts of writes are recorded that they must be converted.
    #[inline(never)]
    fn record(&self, pos: FilePos, len: usize, at: DevOffset, left: CompletionWork) -> bool {
        self.handle.inode.wrote(Written::at(pos, len, at, left).as_slice(), None)
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

    /// Checks the arguments, and carries out the write. Returns the number of bytes written.
    pub(super) fn write_somewhere(&self, queue: &mut Queue, write: &mut Lent<'_>) -> Result<usize> {
        queue.check(self.volume)?;
        write.at = self.writing.admit(write.at)?;
        let (at, flags, len) = (write.at, write.flags, write.len());
        // An append gets its position, the end of the file, after the content was locked. Before that, the position is 0.
        write.pos = if let WriteAt::Pos(pos) = at { pos } else { FilePos(0) };
        let pos = write.pos;
        if len == 0 {
            if at == WriteAt::End {
                write.pos = FilePos(self.size());
            }
            return Ok(0);
        }
        let addresses = write.bufs.iter().map(|buf| (buf.as_ptr().addr(), buf.len()));
        if self.strict && !self.geometry.is_aligned(pos, addresses) {
            return Err(self.geometry.misaligned(pos, len));
        }
        if !self.geometry.takes(pos, len) {
            return self.write_unaligned(queue, write);
        }
        let (ready, entered) = self.prepare(queue, at, len, flags)?;
        if let Ready::Blocks { request, left } = ready {
            return self.write_prepared(queue, write, entered, (request, left));
        }
        drop(entered);
        match ready {
            Ready::Unaligned(pos) if self.strict => Err(self.geometry.misaligned(pos, len)),
            Ready::ByFileSystem => self.write_by_file_system(queue, write),
            _ => self.write_unaligned(queue, write),
        }
    }

    /// Writes a range that has blocks, and unlocks the content.
    fn write_prepared(
        &self,
        queue: &mut Queue,
        write: &mut Lent<'_>,
        entered: Entered,
        (mut request, mut left): (Request, CompletionWork),
    ) -> Result<usize> {
        if request.through && queue.state.calls_flush() {
            (request.through, left) = (false, left | CompletionWork::DATASYNC);
        }
        request.source = write.source;
        let Request { pos, len, flags, .. } = request;
        write.pos = pos;
        let result = self.write_held(queue, &cut(write.bufs, 0..len), &request);
        let full = match &result {
            Ok(written) => {
                self.stamp_write();
                let end = left.contains(CompletionWork::GROW).then(|| pos.0 + len as u64);
                let full = self.handle.inode.wrote(written, end);
                self.end_place(left);
                full
            }
            Err(_) => self.cancel(pos, len, left),
        };
        drop(entered);
        if full && result.is_err() {
            self.write_done(queue, flags);
        }
        if result?.iter().any(|part| part.work.contains(CompletionWork::REMAP)) {
            self.convert(queue)?;
        } else if full {
            self.write_done(queue, flags);
        }
        if left.intersects(CompletionWork::SYNC | CompletionWork::DATASYNC) {
            self.sync(queue, !left.contains(CompletionWork::SYNC))?;
        }
        Ok(len)
    }

    /// Writes a range that has blocks. The caller has locked the content. Returns the parts for which the metadata need work.
    pub(super) fn write_held(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        request: &Request,
    ) -> Result<WrittenParts> {
        let view = queue.views.get(&self.handle).ok_or_else(no_view)?;
        let target = target_by_metadata(view, self, None);
        dio::write_now(queue.device.as_dyn(), &mut queue.state, &target, bufs, request)
    }

    /// Converts ranges of unwritten extents that contain data. A write calls this function if there are many of these ranges. A write with
    /// NOWAIT does not call this function, because it must not wait. An error is ignored here, because the write itself is complete. The
    /// next sync or close converts the remaining ranges, and reports an error.
    pub(super) fn write_done(&self, queue: &mut Queue, flags: DioFlags) {
        if !flags.contains(DioFlags::NOWAIT) {
            let _ = self.convert(queue);
        }
    }

    pub(super) fn convert(&self, queue: &mut Queue) -> Result<()> {
        queue.alone(|| self.handle.file.convert())
    }

    /// Makes written data durable, with all metadata. If `data_only` is set, only the metadata that a read of the data needs become
    /// durable.
    pub(in crate::file) fn sync(&self, queue: &mut Queue, data_only: bool) -> Result<()> {
        queue.alone(|| self.handle.file.sync(data_only))
    }

    /// Calls [`WriteFile::write_from`](crate::iomap::WriteFile::write_from). The file system itself then writes the data.
    pub(super) fn write_by_file_system(
        &self,
        queue: &mut Queue,
        write: &mut Lent<'_>,
    ) -> Result<usize> {
        let (at, flags) = (write.at, write.flags);
        let mut intent = self.handle.intent;
        intent.set(WriteIntent::WHOLE, flags.contains(DioFlags::WHOLE));
        write.pos = if let WriteAt::Pos(pos) = at { pos } else { FilePos(self.size()) };
        let (pos, count) = queue.alone(|| self.handle.file.write_from(at, write.bufs, intent))?;
        write.pos = pos;
        if flags.intersects(SYNCED) {
            self.sync(queue, !flags.contains(DioFlags::SYNC))?;
        }
        Ok(count)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(in crate::file) fn submit_write(
        &self,
        queue: &mut Queue,
        memory: Memory,
        request: Request,
    ) -> Result<(), Box<Rejected>> {
        let keep = || Arc::clone(&self.handle);
        let holding = Holding { slot: self.handle.index(), hold: Hold::Lane };
        if let Some(view) = queue.views.get(&self.handle)
            && let Some(inode) = queue.state.files.enter(&view.queue_file, keep)
        {
            let target = target_by_metadata(view, self, Some(holding));
            if view.takes_overwrites(inode)
                && let Some(passed) =
                    dio::pass_overwrite(&mut queue.state, &target, &memory, &request)
            {
                let submitted = with_queue!(&mut queue.device, device => {
                    dio::submit_overwrite(device, &mut queue.state, &target, passed, memory, &request)
                });
                return match submitted {
                    Ok(()) => {
                        stamp_overwrite(view, self);
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
        if self.geometry.copies_owned_writes() {
            match self.submit_copied(queue, memory, &request) {
                Ok(()) => return Ok(()),
                Err(back) => memory = back,
            }
        }
        self.submit_somewhere(queue, memory, WriteAt::Pos(request.pos), request).map(drop)
    }

    /// Starts a write that is not only an overwrite, and returns its position.
    pub(in crate::file) fn submit_somewhere(
        &self,
        queue: &mut Queue,
        memory: Memory,
        at: WriteAt,
        request: Request,
    ) -> Result<FilePos, Box<Rejected>> {
        let at = match queue.check(self.volume).and_then(|()| self.writing.admit(at)) {
            Ok(at) => at,
            Err(error) => return Err(Rejected::boxed(error, memory)),
        };
        let Request { flags, token, len, .. } = request;
        // An append gets its position, the end of the file, after the content was locked. Before that, the position is 0.
        let pos = if let WriteAt::Pos(pos) = at { pos } else { FilePos(0) };
        let addresses = memory.buffers().iter().map(|buf| (buf.address(), buf.len()));
        if self.strict && len > 0 && !self.geometry.is_aligned(pos, addresses) {
            return Err(Rejected::boxed(self.geometry.misaligned(pos, len), memory));
        }
        let write = Self::write_somewhere;
        if !self.geometry.takes(pos, len) || len == 0 {
            return self.write_at_once(queue, memory, at, &request, write);
        }
        let (entered, mut ready, mut left) = match self.prepare(queue, at, len, flags) {
            Ok((Ready::Blocks { request, left }, entered)) => (entered, request.token(token), left),
            Ok((_, entered)) => {
                drop(entered);
                return self.write_at_once(queue, memory, at, &request, write);
            }
            Err(error) => return Err(Rejected::boxed(error, memory)),
        };
        if ready.through && queue.state.queued_flushes(&memory) {
            (ready.through, left) = (false, left | CompletionWork::DATASYNC);
        }
        if ready.len < len {
            // Blocks were allocated for only a part of the data. The write keeps its reserved position, because a concurrent append may
            // already have reserved the range that follows.
            let write = |file: &Self, queue: &mut Queue, lent: &mut Lent<'_>| {
                file.write_prepared(queue, lent, entered, (ready, left))
            };
            return self.write_at_once(queue, memory, at, &request, write);
        }
        let Queue { device, state, views, .. } = queue;
        let Some(view) = views.get(&self.handle) else {
            self.cancel(ready.pos, ready.len, left);
            return Err(Rejected::boxed(no_view(), memory));
        };
        let holding = state.files.begin(&self.handle, entered);
        let target = target_by_metadata(view, self, holding);
        let submitted = dio::submit_write(device.as_dyn(), state, &target, memory, &ready, left);
        match &submitted {
            Ok(()) => self.stamp_write(),
            Err(_) => {
                self.cancel(ready.pos, ready.len, left);
                holding.into_iter().for_each(|holding| state.files.cancel(holding));
            }
        }
        submitted.map(|()| ready.pos)
    }

    /// Carries out a write completely before it returns. The completion can then be popped.
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
            // After WouldBlock, nothing was written, and the error returns the memory. After any other error, a part of the data may have
            // been written, so the completion reports the error.
            result => queue.state.finish(dio::Completion { token, memory, result }),
        }
        Ok(pos)
    }
}
