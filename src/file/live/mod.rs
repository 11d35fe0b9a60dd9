//! A file of a volume that is open for writing: its inode changes, and so does its content.
//!
//! Each queue has a view of it: the inode as it was last read, which is right as long as the number of changes stays. Reads and overwrites
//! enter the content by the queue's lane, look that number up, and go to the device; they take no lock that others write to.

mod append;
mod copied;
mod finish;
mod read;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(test)]
mod tests;
mod unaligned;
mod view;
mod write;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

pub(crate) use self::finish::{finish_writes, lose};
pub(crate) use self::view::Views;

use crate::device::{Limits, with_queue};
use crate::dio::{self, Geometry, Hold};
use crate::error::{Error, Result};
use crate::file::FileOptions;
use crate::fs::ext4::{CommitTimer, Ext4, Held, Inode, KeepSetId};
use crate::inode::{InFlight, OpenInode, Ticket};
use crate::iomap::{Iomap, MapFile};
use crate::queue::{Owner, Queue};
use crate::units::{FilePos, InodeNo};

/// An open file that can change.
#[derive(Clone)]
pub(crate) struct LiveFile(Arc<Live>);

pub(crate) struct Live {
    /// Nobody else has it, ever.
    id: u64,
    slot: Slot,
    /// What was written is committed in time, also where the file outlives its volume's last handle. Before the inode that is held, since the
    /// timer's thread must not be the last to have the file system.
    _timer: Option<Arc<CommitTimer>>,
    held: Held,
    open: Arc<OpenInode>,
    strict: bool,
    keep_set_id: KeepSetId,
    write_back: bool,
    volume: Owner,
    geometry: Geometry,
}

/// The numbers of a volume's open files: small ones, so that queues find their views by them.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<(u32, Vec<u32>)>);

struct Slot {
    slots: Arc<Slots>,
    number: u32,
}

impl Slot {
    fn take(slots: &Arc<Slots>) -> Self {
        let mut inner = slots.0.lock();
        let number = inner.1.pop().unwrap_or_else(|| {
            inner.0 += 1;
            inner.0 - 1
        });
        Self { slots: Arc::clone(slots), number }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.0.lock().1.push(self.number);
    }
}

impl Live {
    fn fs(&self) -> &Arc<Ext4> {
        self.held.fs()
    }

    fn number(&self) -> InodeNo {
        self.held.number()
    }
}

impl LiveFile {
    /// `None` on a volume that is read-only.
    pub(crate) fn new(
        held: Held,
        timer: Option<Arc<CommitTimer>>,
        options: FileOptions,
        volume: Owner,
        limits: &Limits,
        slots: &Arc<Slots>,
    ) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let open = Arc::clone(held.open_inode()?);
        let block = held.fs().superblock().block_size.bytes() as u64;
        Some(Self(Arc::new(Live {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            slot: Slot::take(slots),
            _timer: timer,
            held,
            open,
            strict: options.strict,
            keep_set_id: options.keep_set_id,
            write_back: options.write_back,
            volume,
            geometry: Geometry::new(limits, block).with(options.stable_pages),
        })))
    }

    pub(super) fn number(&self) -> InodeNo {
        self.0.number()
    }

    /// The inode as its metadata tell.
    fn inode(&self) -> Result<Inode> {
        let fs = self.0.fs();
        let _shared = fs.writing()?.locks.shared(self.number());
        fs.watch(|| self.0.held.inode())
    }

    pub(super) fn size(&self) -> u64 {
        // A conversion moves the one to the other under the inode's lock.
        let _shared = self.0.fs().writing().map(|writing| writing.locks.shared(self.number()));
        self.0.held.inode().map_or(0, |inode| inode.size().max(self.0.open.pending.size()))
    }

    /// The mapping of a position, with what was written and is not converted.
    pub(super) fn map(&self, pos: FilePos) -> Result<Iomap> {
        loop {
            let shared = self.0.fs().writing()?.locks.shared(self.number());
            let changes = self.0.open.changes();
            let iomap = self.0.fs().watch(|| self.0.held.inode()?.map(pos, 1))?;
            drop(shared);
            let is_old = || self.0.open.changes() != changes;
            match iomap.kind {
                crate::iomap::IomapType::Unwritten => {
                    if let Some(refined) = self.0.open.pending.refine(iomap, pos, is_old) {
                        return Ok(refined);
                    }
                }
                _ => return Ok(iomap),
            }
        }
    }

    pub(super) fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.inode()?.read_inline(buf, pos)
    }

    /// Enters a range of the content, by the lane if that is open; the view is current then.
    fn enter(&self, queue: &mut Queue, range: Range<u64>, nowait: bool) -> Result<Hold> {
        let live = &*self.0;
        let view = queue.views.current(&mut queue.state.lives, live, nowait)?;
        let hold = if view.known.enter() {
            Hold::Lane
        } else {
            let ticket = live.open.content.ask(range, false);
            self.wait_for(queue, ticket, nowait)?;
            Hold::Range(ticket)
        };
        // What held it before may have changed it.
        match queue.views.current(&mut queue.state.lives, live, nowait) {
            Ok(_) => Ok(hold),
            Err(error) => {
                self.leave(queue, hold);
                Err(error)
            }
        }
    }

    fn leave(&self, queue: &Queue, hold: Hold) {
        match hold {
            Hold::Lane => queue.views.get(&self.0).into_iter().for_each(|view| view.known.leave()),
            Hold::Range(ticket) => self.0.open.content.give_back(ticket),
        }
    }

    /// Waits for a range. What this queue has in flight is waited for first, since others may wait for that.
    fn wait_for(&self, queue: &mut Queue, ticket: Ticket, nowait: bool) -> Result<()> {
        let content = &self.0.open.content;
        if !nowait
            && !content.has(&ticket)
            && let Ok(writing) = self.0.fs().writing()
        {
            writing.counters.waited();
        }
        while !content.has(&ticket) {
            let waited = if nowait {
                Err(Error::would_block("someone else has this range of the file"))
            } else if queue.state.lives.is_idle() {
                InFlight::none_here().and_then(|()| content.wait(&ticket))
            } else {
                with_queue!(&mut queue.device, device => dio::pump(device, &mut queue.state))
            };
            if let Err(error) = waited {
                content.give_back(ticket);
                return Err(error);
            }
        }
        Ok(())
    }
}
