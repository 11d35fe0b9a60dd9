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

/// The next step of a prepared write.
pub(super) enum Ready {
    /// The device writes to blocks that the file has. The request may have fewer bytes than the caller asked for.
    Blocks { request: Request, left: CompletionWork },
    /// An append must begin at this position, the end of the file, which is not at a sector boundary.
    Unaligned(FilePos),
    /// The file system writes the data, because the file has no blocks or cannot have unwritten ones.
    ByFileSystem,
    /// The write extends a file of this size past its last block. The bytes of that block after the end must be zeroed first.
    Gap(u64),
}

/// A write that is more than an overwrite, and its state.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) at: WriteAt,
    pub(super) len: usize,
    pub(super) flags: DioFlags,
    /// The file size at which the bytes of the last block after the end were last zeroed.
    pub(super) zeroed: Option<u64>,
}

impl LiveFile {
    /// Takes the steps of a write that is not just an overwrite. The device accepts its length, and its position if that is known.
    ///
    /// The returned guard holds the content from the first step on, so that no block moves until the guard is dropped. In between, each change of the
    /// inode takes the inode's own lock. A write with NOWAIT changes nothing.
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

    /// Prepares a write whose caller holds the content. A write that makes the file longer reserves its range from here on.
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
                // If fewer blocks were allocated than requested, the next append follows the allocated ones.
                let end = request.pos.0 + request.len as u64;
                order.iter().for_each(|order| pending.shorten(order, end));
                // A later write may already have extended the file past an append, so GROW alone does not show the reservation.
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

    /// Prepares a write at a known position, whose caller holds the content. The queue's view is read again if the inode has changed: an append may
    /// have waited for its position, and other threads change attributes without the content.
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
            // A separate transaction would record these blocks and their state, so the write would not be atomic.
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
                // The allocation reached the end of the write, or of an earlier block.
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

    /// Checks the rules of Linux for an atomic write, which the device must guarantee.
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
