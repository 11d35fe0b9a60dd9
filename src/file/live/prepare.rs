//! Prepares a write that is not only an overwrite of written blocks. The functions are in the order of the steps.

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

/// The next step of a write that is being prepared.
pub(super) enum Ready {
    /// The file has blocks for the request, so the device can write the data. The request may be shorter than the caller's write.
    Blocks { request: Request, left: CompletionWork },
    /// The write is an append. The file ends at this position, which is not at a sector boundary.
    Unaligned(FilePos),
    /// The file system must write the data, because the file has inline data or cannot have unwritten blocks.
    ByFileSystem,
    /// The write begins past the end of the file, whose size is this value. Before the write, the last block of the file must be zeroed
    /// from the end of the file on.
    Gap(u64),
}

/// A write that is more than an overwrite, and the state of its preparation.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) at: WriteAt,
    pub(super) len: usize,
    pub(super) flags: DioFlags,
    /// The size that the file had when the rest of its last block was zeroed. `None` if the rest of the block was not zeroed.
    pub(super) zeroed: Option<u64>,
}

impl LiveFile {
    /// Carries out the steps that precede the transfer of a write. The caller has checked that the length is aligned, and the position too
    /// if it is known.
    ///
    /// The content is locked from the first step until the returned guard is dropped. No block moves during this time. Each change of the
    /// inode also acquires the inode's lock. A write with NOWAIT fails if it would have to change the inode.
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
                // The gap before an append consists of ranges that other appends in flight have reserved. So the gap cannot be zeroed here.
                // `Gap` is returned to the caller, which locks the file exclusively and then writes. The exclusive lock waits until no
                // append is in flight.
                Ready::Gap(size) if at != WriteAt::End || flags.contains(DioFlags::ATOMIC) => {
                    drop(entered);
                    self.zero_gap(queue)?;
                    zeroed = Some(size);
                }
                ready => return Ok((ready, entered)),
            }
        }
    }

    /// Prepares a write. The caller has locked the content. If the write extends the file, this function reserves the range of the write.
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
                // If too few blocks were allocated, the reserved range is shortened. The next append begins after the allocated blocks.
                let end = request.pos.0 + request.len as u64;
                order.iter().for_each(|order| pending.shorten(order, end));
                // Completion work with GROW extends the file. An append without GROW may have a reserved range too, because a later write
                // may already have extended the file past this range.
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

    /// Prepares a write whose position is known. The caller has locked the content. If the inode has changed, the queue's copy of the size
    /// and the map (the view) is updated. The inode can change although the content is locked: an append may have waited for its position,
    /// and changes of attributes do not lock the content.
    pub(super) fn prepare_held(
        &self,
        queue: &mut Queue,
        pos: FilePos,
        wanted: Wanted,
    ) -> Result<Ready> {
        let Wanted { at, len, flags, zeroed } = wanted;
        let (handle, nowait) = (&*self.handle, flags.contains(DioFlags::NOWAIT));
        let end = pos.0.saturating_add(len as u64);
        let view = self.current(queue, nowait)?;
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
            // Missing or unwritten blocks need a separate transaction. The write would then not be atomic.
            Some(false) | None if flags.contains(DioFlags::ATOMIC) => {
                let what = "an atomic write can only overwrite existing data";
                return Err(Error::io(Errno::EOPNOTSUPP, what));
            }
            Some(false) => false,
            None if nowait => return Err(would_change()),
            None if !allocates => return Ok(Ready::ByFileSystem),
            None => {
                let whole = flags.contains(DioFlags::WHOLE);
                let reached = handle.file.allocate(pos.0..end, whole)?;
                // If too few blocks were free, the write is shortened to the allocated blocks.
                len = (reached.min(end) - pos.0) as usize;
                self.current(queue, false)?;
                false
            }
        };
        let mut left = CompletionWork::empty();
        left.set(CompletionWork::GROW, grows);
        // The exact work for each part of the range follows from its mapping.
        left.set(CompletionWork::CONVERT, !written);
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

    /// Checks that the device supports atomic writes, and that the write obeys the rules of Linux for them.
    fn check_atomic(&self, pos: FilePos, len: usize, flags: DioFlags) -> Result<()> {
        if !flags.contains(DioFlags::ATOMIC) {
            return Ok(());
        }
        let most = self.geometry.atomic();
        if most == 0 {
            let what = "the device does not support atomic writes";
            return Err(Error::io(Errno::EOPNOTSUPP, what));
        }
        let fits = len.is_power_of_two() && len <= most && pos.0.is_multiple_of(len as u64);
        if !fits {
            return Err(Error::invalid(format!(
                "an atomic write of {len} bytes at {pos}: the length must be a power of two up to {most}, and the position a multiple of the length"
            )));
        }
        Ok(())
    }
}
