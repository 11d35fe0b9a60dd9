//! Writes. An overwrite of one written extent is one bio and nothing else; what is more has its steps in [`LiveFile::prepare`], in the order in
//! which they are taken.

use std::io::IoSlice;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Live, LiveFile};
use crate::bio::{CompletionWork, Memory};
use crate::device::with_queue;
use crate::dio::{self, DioFlags, Hold, Holding, How, Keep, Rejected};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::fs::ext4::{Access, Ext4, InodeFlags, Patience};
use crate::inode::At;
use crate::queue::Queue;
use crate::units::FilePos;

pub(super) const SYNCED: DioFlags = DioFlags::DSYNC.union(DioFlags::SYNC);

/// What a write is ready for.
pub(super) enum Ready {
    /// Over blocks that the file has now, so many bytes of it, held like this.
    Blocks { hold: Hold, pos: FilePos, len: usize, how: How, left: CompletionWork },
    /// The end of the file, where it goes, is not that of a sector.
    Unaligned(FilePos),
    /// The file system writes it: the file has no blocks, or cannot have unwritten ones.
    ByFileSystem,
    /// The file grows over the rest of the block in which it ends, which is to be zeroed first: this is its size.
    Gap(u64),
}

impl LiveFile {
    #[inline(always)]
    pub(in crate::file) fn write_at(
        &self,
        queue: &mut Queue,
        buf: &[u8],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        let live = &*self.0;
        let mut full = false;
        if let Some(view) = queue.views.get(live)
            && let Some(inside) = view.enter()
            && view.takes_overwrites(&inside)
        {
            let target = view.target_by_metadata(live, None);
            // By one bio that reaches the medium, where nothing else is to be synced.
            let through = flags.contains(DioFlags::DSYNC) && view.is_durable(live);
            let written = with_queue!(&mut queue.device, device => {
                let how = How { flags, through, ours: false };
                dio::overwrite_now(device, &mut queue.state, &target, buf, pos, how)
            });
            if let Some(left) = written {
                view.stamp_write(live);
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
        self.write_vectored_at(queue, &[IoSlice::new(buf)], pos, flags)
    }

    #[inline(never)]
    pub(in crate::file) fn write_vectored_at(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        self.write_somewhere(queue, bufs, At::Pos(pos), flags, &mut FilePos(pos.0))
    }

    /// Gives how many bytes were written. `place` becomes where, also where it fails behind a part.
    pub(super) fn write_somewhere(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        at: At,
        flags: DioFlags,
        place: &mut FilePos,
    ) -> Result<usize> {
        let live = &*self.0;
        queue.check(live.volume)?;
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        // That of the end is known when the content is held.
        let pos = if let At::Pos(pos) = at { pos } else { FilePos(0) };
        if len == 0 {
            *place = if at == At::End { FilePos(self.size()) } else { pos };
            return Ok(0);
        }
        let addresses = bufs.iter().map(|buf| (buf.as_ptr().addr(), buf.len()));
        if live.strict && !live.geometry.is_aligned(pos, addresses) {
            return Err(live.geometry.misaligned(pos, len));
        }
        if !live.geometry.takes(pos, len) {
            return self.write_unaligned(queue, bufs, at, flags, place);
        }
        let (hold, pos, len, how, left) = match self.prepare(queue, at, len, flags)? {
            Ready::Blocks { hold, pos, len, how, left } => (hold, pos, len, how, left),
            Ready::Unaligned(pos) if live.strict => return Err(live.geometry.misaligned(pos, len)),
            Ready::Unaligned(_) | Ready::Gap(_) => {
                return self.write_unaligned(queue, bufs, at, flags, place);
            }
            Ready::ByFileSystem => return self.write_by_file_system(queue, bufs, at, flags, place),
        };
        *place = pos;
        let result = self.write_held(queue, &cut(bufs, len), pos, how);
        let full = match &result {
            Ok(more) => {
                live.stamp_write();
                live.open.wrote(pos, len, left | *more)
            }
            Err(_) => false,
        };
        self.end_place(left);
        self.leave(queue, hold);
        result?;
        if full {
            self.write_done(queue, flags);
        }
        if left.intersects(CompletionWork::SYNC | CompletionWork::DATASYNC) {
            self.sync(queue, !left.contains(CompletionWork::SYNC))?;
        }
        Ok(len)
    }

    /// The steps of a write that is not just an overwrite. Position and length are what the device takes.
    ///
    /// The content is held from the first step on, so that nothing moves any more; what is done to the inode comes in between, under its
    /// own lock. A write with NOWAIT does none of that.
    fn prepare(&self, queue: &mut Queue, at: At, len: usize, flags: DioFlags) -> Result<Ready> {
        let mut zeroed = None;
        loop {
            let range = at.range(len as u64);
            let hold = self.enter(queue, range, flags.contains(DioFlags::NOWAIT))?;
            let ready = self.prepare_entered(queue, at, len, flags, hold, zeroed);
            if !matches!(ready, Ok(Ready::Blocks { .. })) {
                self.leave(queue, hold);
            }
            match ready {
                // Of appends that come behind those in flight: that is no gap for who is alone.
                Ok(Ready::Gap(_)) if at == At::End && !flags.contains(DioFlags::ATOMIC) => {
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

    /// The same with the content held. What makes the file longer has a place from here on.
    fn prepare_entered(
        &self,
        queue: &mut Queue,
        at: At,
        len: usize,
        flags: DioFlags,
        hold: Hold,
        zeroed: Option<u64>,
    ) -> Result<Ready> {
        let pending = &self.0.open.pending;
        let pos = self.place(at, len, flags)?;
        let mut ready = if self.0.geometry.takes(pos, len) {
            self.prepare_held(queue, pos, at == At::End, len, flags, hold, zeroed)
        } else {
            Ok(Ready::Unaligned(pos))
        };
        match &mut ready {
            Ok(Ready::Blocks { pos, len, left, .. }) => {
                if at != At::End && left.contains(CompletionWork::GROW) {
                    pending.extends(pos.0 + *len as u64);
                }
                // Others behind an append may have made the file longer already.
                left.set(
                    CompletionWork::PLACE,
                    at == At::End || left.contains(CompletionWork::GROW),
                );
            }
            _ if at == At::End => pending.place_ended(),
            _ => {}
        }
        ready
    }

    pub(super) fn zero_gap(&self, queue: &mut Queue) -> Result<()> {
        self.alone(queue, |live| live.fs().zero_behind_end(live.number()))
    }

    /// The steps in the content that is held. `is_end`: it goes where the file ends, wherever that is. `zeroed`: the size behind which the
    /// last block has been zeroed.
    #[allow(clippy::too_many_arguments, reason = "a request's parts, and what is known of it")]
    pub(super) fn prepare_held(
        &self,
        queue: &mut Queue,
        pos: FilePos,
        is_end: bool,
        len: usize,
        flags: DioFlags,
        hold: Hold,
        zeroed: Option<u64>,
    ) -> Result<Ready> {
        let (live, nowait) = (&*self.0, flags.contains(DioFlags::NOWAIT));
        let (fs, number) = (live.fs(), live.number());
        let end = pos.0.saturating_add(len as u64);
        let view = queue.views.current(&mut queue.state.lives, live, nowait)?;
        let size = match view.size_at_once() {
            Some(size) => size,
            None if nowait => return Err(would_change()),
            None => view.size(),
        };
        let anywhere = live.write_back || is_end;
        fs.admit_write(&view.inode, pos, len as u64, (!anywhere).then_some(size))?;
        live.check_atomic(pos, len, flags)?;
        if !view.is_plain() && Ext4::has_privileges(&view.inode, live.keep_set_id)? {
            if nowait {
                return Err(would_change());
            }
            fs.strip_privileges(number, live.keep_set_id)?;
        }
        let has_extents = view.inode.flags().contains(InodeFlags::EXTENTS);
        if view.inode.has_inline_data() || is_end && !has_extents {
            return if nowait { Err(would_change()) } else { Ok(Ready::ByFileSystem) };
        }
        let grows = end > size;
        if grows && nowait {
            return Err(would_change());
        }
        let block = fs.superblock().block_size.bytes() as u64;
        if pos.0 > size && !size.is_multiple_of(block) && zeroed != Some(size) {
            return Ok(Ready::Gap(size));
        }
        let view = queue.views.current(&mut queue.state.lives, live, nowait)?;
        let mut len = len;
        let written = match dio::blocks_of(view, pos, len, nowait)? {
            Some(true) => true,
            // Its blocks and their state would be told by a transaction of its own.
            Some(false) | None if flags.contains(DioFlags::ATOMIC) => {
                let what = "an atomic write to what holds no data yet";
                return Err(Error::io(Errno::EOPNOTSUPP, what));
            }
            Some(false) => false,
            None if nowait => return Err(would_change()),
            None if !has_extents => return Ok(Ready::ByFileSystem),
            None => {
                let whole = flags.contains(DioFlags::WHOLE);
                let reached = fs.allocate_for_write(number, &live.open, pos.0..end, whole)?;
                // To the end, or to a block's.
                len = (reached.min(end) - pos.0) as usize;
                queue.views.current(&mut queue.state.lives, live, false)?;
                false
            }
        };
        let mut left = CompletionWork::empty();
        left.set(CompletionWork::GROW, grows);
        let through = flags.intersection(SYNCED) == DioFlags::DSYNC
            && written
            && !grows
            && fs.map_is_durable(&live.open);
        if !through && flags.contains(DioFlags::SYNC) {
            left |= CompletionWork::SYNC;
        } else if !through && flags.contains(DioFlags::DSYNC) {
            left |= CompletionWork::DATASYNC;
        }
        Ok(Ready::Blocks { hold, pos, len, how: How { flags, through, ours: false }, left })
    }

    /// Writes what is held and has blocks.
    pub(super) fn write_held(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        pos: FilePos,
        how: How,
    ) -> Result<CompletionWork> {
        let live = &*self.0;
        let view = queue.views.current(
            &mut queue.state.lives,
            live,
            how.flags.contains(DioFlags::NOWAIT),
        )?;
        let target = view.target_by_metadata(live, None);
        with_queue!(&mut queue.device, device => {
            dio::write_now(device, &mut queue.state, &target, bufs, pos, how)
        })
    }

    /// Converts the file behind a write of which much was left, unless that is not to wait. The write is done: what cannot be converted now
    /// is when the file is synced or closed, and the error is met again.
    pub(super) fn write_done(&self, queue: &mut Queue, flags: DioFlags) {
        if !flags.contains(DioFlags::NOWAIT) {
            let _ = self.convert(queue);
        }
    }

    pub(super) fn convert(&self, queue: &mut Queue) -> Result<()> {
        self.alone(queue, |live| live.fs().convert(live.number(), &live.open, Patience::Some))
    }

    /// Makes durable what was written, and the metadata that are needed to read it, or all.
    pub(in crate::file) fn sync(&self, queue: &mut Queue, data_only: bool) -> Result<()> {
        self.alone(queue, |live| live.fs().sync_open(live.number(), &live.open, data_only))
    }

    /// Does what may have to wait for requests in flight: those of this queue first, if it does.
    pub(super) fn alone<R>(
        &self,
        queue: &mut Queue,
        work: impl Fn(&Live) -> Result<R>,
    ) -> Result<R> {
        loop {
            match work(&self.0) {
                Err(error) if error.kind() == ErrorKind::Busy && !queue.state.lives.is_idle() => {
                    with_queue!(&mut queue.device, device => dio::pump(device, &mut queue.state))?;
                }
                result => return result,
            }
        }
    }

    /// Writes by the file system's own way.
    pub(super) fn write_by_file_system(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        at: At,
        flags: DioFlags,
        place: &mut FilePos,
    ) -> Result<usize> {
        let (cache, whole) = (self.0.write_back, flags.contains(DioFlags::WHOLE));
        *place = if let At::Pos(pos) = at { pos } else { FilePos(self.size()) };
        let (pos, count) =
            self.alone(queue, |live| live.fs().write_from(live.number(), at, bufs, cache, whole))?;
        *place = pos;
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
        pos: FilePos,
        flags: DioFlags,
        token: u64,
    ) -> Result<(), Box<Rejected>> {
        let live = &*self.0;
        let keep = || Arc::clone(&self.0) as Keep;
        if let Some(view) = queue.views.get(live)
            && let Some(inode) = queue.state.lives.enter(&view.known, keep)
        {
            let holding = Holding { slot: live.slot.number, hold: Hold::Lane };
            let target = view.target_by_metadata(live, Some(holding));
            if view.takes_overwrites(inode)
                && let Some(passed) =
                    dio::pass_overwrite(&mut queue.state, &target, &memory, pos, flags)
            {
                let submitted = with_queue!(&mut queue.device, device => {
                    dio::submit_overwrite(device, &mut queue.state, &target, passed, memory, pos, flags, token)
                });
                return match submitted {
                    Ok(()) => {
                        view.stamp_write(live);
                        Ok(())
                    }
                    Err(memory) => {
                        queue.state.lives.turn_back(&view.known);
                        self.submit_write_slowly(queue, memory, pos, flags, token)
                    }
                };
            }
            queue.state.lives.turn_back(&view.known);
        }
        self.submit_write_slowly(queue, memory, pos, flags, token)
    }

    #[inline(never)]
    fn submit_write_slowly(
        &self,
        queue: &mut Queue,
        memory: Memory,
        pos: FilePos,
        flags: DioFlags,
        token: u64,
    ) -> Result<(), Box<Rejected>> {
        let memory = if self.0.geometry.copies_owned_writes() {
            match self.submit_copied(queue, memory, pos, flags, token) {
                Ok(()) => return Ok(()),
                Err(memory) => memory,
            }
        } else {
            memory
        };
        self.submit_somewhere(queue, memory, At::Pos(pos), flags, token).map(drop)
    }

    /// Starts a write that is not just an overwrite; gives where it goes.
    pub(super) fn submit_somewhere(
        &self,
        queue: &mut Queue,
        memory: Memory,
        at: At,
        flags: DioFlags,
        token: u64,
    ) -> Result<FilePos, Box<Rejected>> {
        let live = &*self.0;
        // That of the end is known when the content is held.
        let pos = if let At::Pos(pos) = at { pos } else { FilePos(0) };
        if let Err(error) = queue.check(live.volume) {
            return Err(Rejected::boxed(error, memory));
        }
        let len = memory.len();
        let addresses = memory.buffers().iter().map(|buf| (buf.address(), buf.len()));
        if live.strict && len > 0 && !live.geometry.is_aligned(pos, addresses) {
            return Err(Rejected::boxed(live.geometry.misaligned(pos, len), memory));
        }
        if !live.geometry.takes(pos, len) || len == 0 {
            return self.write_at_once(queue, memory, at, flags, token);
        }
        let (hold, pos, reached, how, left) = match self.prepare(queue, at, len, flags) {
            Ok(Ready::Blocks { hold, pos, len, how, left }) => (hold, pos, len, how, left),
            Ok(_) => return self.write_at_once(queue, memory, at, flags, token),
            Err(error) => return Err(Rejected::boxed(error, memory)),
        };
        if reached < len {
            self.end_place(left);
            self.leave(queue, hold);
            return self.write_at_once(queue, memory, at, flags, token);
        }
        let holding = Holding { slot: live.slot.number, hold };
        queue.state.lives.begin(holding, || Arc::clone(&self.0) as Keep);
        let submitted = match queue.views.current(
            &mut queue.state.lives,
            live,
            how.flags.contains(DioFlags::NOWAIT),
        ) {
            Err(error) => Err(Rejected::boxed(error, memory)),
            Ok(view) => {
                let target = view.target_by_metadata(live, Some(holding));
                with_queue!(&mut queue.device, device => {
                    dio::submit_write(device, &mut queue.state, &target, memory, pos, how, left, token)
                })
            }
        };
        match &submitted {
            Ok(()) => {
                live.stamp_write();
                queue.state.lives.expect(left);
            }
            Err(_) => {
                self.end_place(left);
                queue.state.lives.cancel(holding);
            }
        }
        submitted.map(|()| pos)
    }

    /// Writes before it returns; the completion is there to be popped.
    fn write_at_once(
        &self,
        queue: &mut Queue,
        memory: Memory,
        at: At,
        flags: DioFlags,
        token: u64,
    ) -> Result<FilePos, Box<Rejected>> {
        let bufs: Vec<_> = memory.buffers().iter().map(|buf| IoSlice::new(buf)).collect();
        let mut place = FilePos(0);
        let result = self.write_somewhere(queue, &bufs, at, flags, &mut place);
        drop(bufs);
        let result = match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(Rejected::boxed(error, memory));
            }
            result => result,
        };
        // A part may have been written of what fails.
        queue.state.finish(dio::Completion { token, memory, result });
        Ok(place)
    }
}

impl Live {
    #[cold]
    pub(super) fn stamp_write(&self) {
        self.held.stamp(Access::Write);
    }

    /// What Linux asks of an atomic write, and the device must promise.
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
    Error::would_block("the file's metadata would have to change, or to be read")
}

/// The first `len` bytes of several buffers.
pub(super) fn cut<'a>(bufs: &'a [IoSlice<'_>], len: usize) -> SmallVec<[IoSlice<'a>; 2]> {
    cut_from(bufs, 0, len)
}

/// `len` bytes of several buffers, from `skip` on.
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
