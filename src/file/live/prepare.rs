//! The steps of a write that is not just an overwrite, in the order in which they are taken.

use super::target::would_change;
use super::{Access, LiveFile};
use crate::bio::CompletionWork;
use crate::dio::{self, DioFlags, Request};
use crate::error::{Errno, Error, Result};
use crate::iomap::{Begun, Write, WriteAt, WriteIntent};
use crate::open_file::Entered;
use crate::queue::Queue;
use crate::units::FilePos;

pub(super) const SYNCED: DioFlags = DioFlags::DSYNC.union(DioFlags::SYNC);

/// The way that a write is ready for.
pub(super) enum Ready {
    /// Over blocks that the file has now, perhaps fewer bytes than were asked for.
    Blocks { request: Request, left: CompletionWork },
    /// The end of the file, where it goes, is not that of a sector.
    Unaligned(FilePos),
    /// The file system writes it: the file has no blocks, or cannot have unwritten ones.
    ByFileSystem,
    /// The file grows over the rest of the block in which it ends, which is to be zeroed first: this is its size.
    Gap(u64),
}

/// A write that is more than an overwrite, and its state.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) at: WriteAt,
    pub(super) len: usize,
    pub(super) flags: DioFlags,
    /// The size after which the last block has been zeroed.
    pub(super) zeroed: Option<u64>,
}

impl LiveFile {
    /// The steps of a write that is not just an overwrite. Position and length are what the device takes.
    ///
    /// The content is held from the first step on, so that nothing moves any more, and is released with the guard that this gives. Changes of the inode
    /// come in between, under its own lock. A write with NOWAIT does none of that.
    pub(super) fn prepare(
        &self,
        queue: &mut Queue,
        at: WriteAt,
        len: usize,
        flags: DioFlags,
    ) -> Result<(Ready, Entered)> {
        let mut zeroed = None;
        loop {
            let (range, nowait) = (at.range(len as u64), flags.contains(DioFlags::NOWAIT));
            let entered = self.enter(queue, range, Access::Shared, nowait)?;
            match self.prepare_entered(queue, Wanted { at, len, flags, zeroed })? {
                // The gap is the places of appends in flight: an append that holds the whole file meets none.
                Ready::Gap(size) if at != WriteAt::End || flags.contains(DioFlags::ATOMIC) => {
                    drop(entered);
                    self.zero_gap(queue)?;
                    zeroed = Some(size);
                }
                ready => return Ok((ready, entered)),
            }
        }
    }

    /// The same with the content held. A write that makes the file longer has a place from here on.
    fn prepare_entered(&self, queue: &mut Queue, wanted: Wanted) -> Result<Ready> {
        let Wanted { at, len, flags, .. } = wanted;
        let pending = &self.handle.inode.pending;
        let order = (at == WriteAt::End).then(|| pending.order());
        let pos = self.place(at, len, flags)?;
        let mut ready = if self.geometry.takes(pos, len) {
            self.prepare_held(queue, pos, wanted)
        } else {
            Ok(Ready::Unaligned(pos))
        };
        match &mut ready {
            Ok(Ready::Blocks { request, left }) => {
                if at != WriteAt::End && left.contains(CompletionWork::GROW) {
                    pending.extends(request.pos.0 + request.len as u64);
                }
                // Fewer blocks than were asked for: the next append comes after these.
                let end = request.pos.0 + request.len as u64;
                order.iter().for_each(|order| pending.shorten(order, end));
                // Writes after an append may have made the file longer already.
                let reserved = at == WriteAt::End || left.contains(CompletionWork::GROW);
                left.set(CompletionWork::RESERVED, reserved);
            }
            _ => order.iter().for_each(|order| pending.give_back(order, pos)),
        }
        ready
    }

    pub(super) fn zero_gap(&self, queue: &mut Queue) -> Result<()> {
        queue.alone(|| self.handle.file.zero_tail())
    }

    /// The steps in the content that is held, at the position where the write goes. The queue's view is current at first, and is read again only where
    /// a step has changed the inode.
    pub(super) fn prepare_held(
        &self,
        queue: &mut Queue,
        pos: FilePos,
        wanted: Wanted,
    ) -> Result<Ready> {
        let Wanted { at, len, flags, zeroed } = wanted;
        let (handle, nowait) = (&*self.handle, flags.contains(DioFlags::NOWAIT));
        let end = pos.0.saturating_add(len as u64);
        let view = self.view(queue)?;
        let size = match view.size_at_once() {
            Some(size) => size,
            None if nowait => return Err(would_change()),
            None => view.size(),
        };
        self.check_atomic(pos, len, flags)?;
        let mut intent = handle.intent;
        intent.set(WriteIntent::NOWAIT, nowait);
        intent.set(WriteIntent::APPEND, at == WriteAt::End);
        let write = Write { pos, len: len as u64, size, zeroed, intent };
        let allocates = match view.map().begin(&write)? {
            Begun::Direct { allocates } => allocates,
            Begun::ByFileSystem => return Ok(Ready::ByFileSystem),
            Begun::ZeroTail => return Ok(Ready::Gap(size)),
        };
        let grows = end > size;
        let view = self.current(queue, nowait)?;
        let mut len = len;
        let written = match dio::blocks_of(view, pos, len, nowait)? {
            Some(true) => true,
            // Its blocks and their state would be told by a transaction of its own.
            Some(false) | None if flags.contains(DioFlags::ATOMIC) => {
                let what = "an atomic write to a range without data";
                return Err(Error::io(Errno::EOPNOTSUPP, what));
            }
            Some(false) => false,
            None if nowait => return Err(would_change()),
            None if !allocates => return Ok(Ready::ByFileSystem),
            None => {
                let whole = flags.contains(DioFlags::WHOLE);
                let reached = handle.file.allocate(pos.0..end, whole)?;
                // To the end, or to a block's.
                len = (reached.min(end) - pos.0) as usize;
                self.current(queue, false)?;
                false
            }
        };
        let mut left = CompletionWork::empty();
        left.set(CompletionWork::GROW, grows);
        let through = flags.intersection(SYNCED) == DioFlags::DSYNC
            && written
            && !grows
            && handle.file.is_durable();
        if !through && flags.contains(DioFlags::SYNC) {
            left |= CompletionWork::SYNC;
        } else if !through && flags.contains(DioFlags::DSYNC) {
            left |= CompletionWork::DATASYNC;
        }
        let request = Request { through, ..Request::write(pos, len, flags) };
        Ok(Ready::Blocks { request, left })
    }

    /// The rules of Linux for an atomic write, which the device must promise.
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
