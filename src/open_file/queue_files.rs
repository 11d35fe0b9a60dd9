//! Requests for files that can change: the content that each holds from its submission to its completion, and what a write leaves to be
//! done then.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::{InFlight, Lane, OpenInode, Ticket};
use crate::bio::{Completion, CompletionWork};
use crate::iomap::WriteFile;
use crate::units::{FilePos, InodeNo};

/// Keeps a file open.
pub(crate) type Keep = Arc<dyn OpenHandle>;

/// An open file, for the completion of its writes.
pub(crate) trait OpenHandle: Send + Sync {
    /// Nobody else has it, ever.
    fn id(&self) -> u64;
    fn number(&self) -> InodeNo;
    fn inode(&self) -> &OpenInode;
    fn file(&self) -> &dyn WriteFile;
}

/// The files that a queue has requests for, each in its slot.
#[derive(Default)]
pub(crate) struct QueueFiles {
    files: Vec<Option<Rc<QueueFile>>>,
    in_flight: InFlight,
    /// Requests that only need a sync of their files, or a conversion, to be complete.
    unsynced: Vec<Unsynced>,
    /// Among the requests in flight may be some that leave something to be done.
    expects: bool,
    /// Files of which so much is to be converted that it should not wait.
    full: Vec<Keep>,
}

/// A file that a queue knows, and the queue's requests that are at its content.
pub(crate) struct QueueFile {
    pub(crate) inode: Arc<OpenInode>,
    number: InodeNo,
    lane: Arc<Lane>,
    /// Requests that are in by the lane. All of them count once there, so that only the first and the last write what others read.
    by_lane: Cell<u32>,
    /// Requests that have a range.
    by_range: Cell<u32>,
    /// Keeps the file open while there are requests in flight.
    keep: RefCell<Option<Keep>>,
}

/// A request that waits for a sync of its file, or for a conversion.
pub(crate) struct Unsynced {
    pub(crate) keep: Keep,
    pub(crate) left: CompletionWork,
    pub(crate) completion: Completion,
}

/// The content of a file that a request is at, and how it holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) slot: u32,
    pub(crate) hold: Hold,
}

/// How a request holds the content that it is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// By the lane.
    Lane,
    Range(Ticket),
}

/// The work and the hold of a request at its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completing {
    pub(crate) slot: u32,
    pub(crate) hold: Hold,
    pub(crate) left: CompletionWork,
    pub(crate) pos: FilePos,
    pub(crate) len: usize,
}

impl Holding {
    /// Whether one bio can carry it.
    #[inline(always)]
    pub(crate) fn is_light(&self) -> bool {
        self.hold == Hold::Lane
    }

    pub(crate) fn completing(&self, left: CompletionWork, pos: FilePos, len: usize) -> Completing {
        Completing { slot: self.slot, hold: self.hold, left, pos, len }
    }
}

impl QueueFile {
    /// Enters the content by the lane, until [`leave`](Self::leave). False where that is closed, since someone wants a range.
    #[inline(always)]
    pub(crate) fn enter(&self) -> bool {
        self.inode.content.enter(&self.lane)
    }

    #[inline(always)]
    pub(crate) fn leave(&self) {
        self.inode.content.leave(&self.lane);
    }

    /// Notes a write. True for the first one since the lane's writes were last collected.
    #[inline(always)]
    pub(crate) fn wrote(&self) -> bool {
        self.lane.wrote()
    }

    fn hold_open(&self, in_flight: &InFlight, keep: impl FnOnce() -> Keep) {
        let mut kept = self.keep.borrow_mut();
        if kept.is_none() {
            *kept = Some(keep());
            in_flight.add();
        }
    }
}

impl Drop for QueueFile {
    fn drop(&mut self) {
        self.inode.content.remove_lane(&self.lane);
    }
}

impl QueueFiles {
    /// Takes a file into a slot, which none has that is in use.
    pub(crate) fn learn(
        &mut self,
        slot: u32,
        number: InodeNo,
        inode: &Arc<OpenInode>,
    ) -> Rc<QueueFile> {
        let index = slot as usize;
        if self.files.len() <= index {
            self.files.resize(index + 1, None);
        }
        let file = Rc::new(QueueFile {
            inode: Arc::clone(inode),
            number,
            lane: inode.content.add_lane(),
            by_lane: Cell::default(),
            by_range: Cell::default(),
            keep: RefCell::default(),
        });
        self.files[index] = Some(Rc::clone(&file));
        file
    }

    #[inline(always)]
    fn file(&self, slot: u32) -> Option<&QueueFile> {
        self.files.get(slot as usize)?.as_deref()
    }

    /// Whether none of this queue's requests is at the content of a file.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_none()
    }

    /// A request enters the content of a file by the lane, to leave when it is complete. Gives the inode; `None` where it is to ask for a
    /// range.
    #[inline(always)]
    pub(crate) fn enter<'a>(
        &self,
        file: &'a QueueFile,
        keep: impl FnOnce() -> Keep,
    ) -> Option<&'a OpenInode> {
        let (inode, within) = (&*file.inode, file.by_lane.get());
        // Counted before it is known, for the many whom nobody stops.
        file.by_lane.set(within + 1);
        let open = if within == 0 { file.enter() } else { !inode.content.is_wanted() };
        if !open {
            file.by_lane.set(within);
            return None;
        }
        if within == 0 {
            file.hold_open(&self.in_flight, keep);
        }
        Some(inode)
    }

    /// A request that has entered goes another way.
    #[cold]
    pub(crate) fn turn_back(&self, file: &QueueFile) {
        self.leave_lane(file);
    }

    /// A request that holds its content is being submitted.
    pub(crate) fn begin(&self, holding: Holding, keep: impl FnOnce() -> Keep) {
        let Some(file) = self.file(holding.slot) else { return };
        file.hold_open(&self.in_flight, keep);
        match holding.hold {
            Hold::Lane => {
                let within = file.by_lane.get();
                if within > 0 {
                    file.leave();
                }
                file.by_lane.set(within + 1);
            }
            Hold::Range(_) => file.by_range.set(file.by_range.get() + 1),
        }
    }

    /// A request that was begun was not submitted.
    #[cold]
    pub(crate) fn cancel(&self, holding: Holding) {
        self.leave(holding.slot, holding.hold);
    }

    /// A request ends with its queue.
    pub(crate) fn abandon(&self, completing: Completing) {
        self.end_place(&completing);
        self.leave(completing.slot, completing.hold);
    }

    /// The queue is lost with requests in flight: its files stay held and open until the process ends. Returns the values that keep them
    /// open. Threads that wait for their content must be [notified](super::ContentLock::lose).
    #[cold]
    pub(crate) fn leak(&mut self) -> Vec<Keep> {
        // The thread is no longer one that could take their completions.
        self.in_flight = InFlight::default();
        let files = std::mem::take(&mut self.files).into_iter().flatten();
        let leak = |file: Rc<QueueFile>| {
            let keep = file.keep.borrow().clone()?;
            std::mem::forget(file);
            Some(keep)
        };
        files.filter_map(leak).collect()
    }

    /// The inode of a slot, for an error's event.
    pub(crate) fn number(&self, slot: u32) -> InodeNo {
        self.file(slot).map_or(InodeNo(0), |file| file.number)
    }

    /// An extending write has ended or failed.
    fn end_place(&self, completing: &Completing) {
        if completing.left.contains(CompletionWork::RESERVED)
            && let Some(file) = self.file(completing.slot)
        {
            file.inode.pending.place_ended();
        }
    }

    /// A request is complete.
    pub(crate) fn end(
        &mut self,
        completing: Completing,
        completion: Completion,
    ) -> Option<Completion> {
        if completing.left.is_empty() || completion.result.is_err() {
            self.end_place(&completing);
            self.leave(completing.slot, completing.hold);
            return Some(completion);
        }
        self.end_write(completing, completion)
    }

    #[inline]
    fn end_write(&mut self, completing: Completing, completion: Completion) -> Option<Completion> {
        let Completing { slot, hold, left, pos, len } = completing;
        let Some(file) = self.file(slot) else { return Some(completion) };
        let full = file.inode.wrote(pos, len, left) && self.full.is_empty();
        self.end_place(&completing);
        let waits = left.intersects(CompletionWork::BEFORE_COMPLETION);
        let kept = if full || waits { file.keep.borrow().clone() } else { None };
        if full {
            self.full.extend(kept.clone());
            self.expects = true;
        }
        self.leave(slot, hold);
        match kept.filter(|_| waits) {
            None => Some(completion),
            Some(keep) => {
                self.unsynced.push(Unsynced { keep, left, completion });
                None
            }
        }
    }

    /// A request that leaves nothing to be done is complete.
    #[inline(always)]
    pub(crate) fn leave(&self, slot: u32, hold: Hold) {
        let Some(file) = self.file(slot) else { return };
        match hold {
            Hold::Lane => self.leave_lane(file),
            Hold::Range(ticket) => {
                file.by_range.set(file.by_range.get() - 1);
                file.inode.content.give_back(ticket);
                self.left(file);
            }
        }
    }

    #[inline(always)]
    fn leave_lane(&self, file: &QueueFile) {
        let within = file.by_lane.get() - 1;
        file.by_lane.set(within);
        if within == 0 {
            file.leave();
            self.left(file);
        }
    }

    /// A request has left, perhaps the last one.
    fn left(&self, file: &QueueFile) {
        if file.by_lane.get() + file.by_range.get() == 0 {
            self.in_flight.remove();
            let kept = file.keep.take();
            // The file may end here.
            drop(kept);
        }
    }

    /// A request was submitted that leaves this to be done when it is complete.
    pub(crate) fn expect(&mut self, left: CompletionWork) {
        self.expects |= left.intersects(CompletionWork::BEFORE_COMPLETION);
    }

    /// Whether completions are to be looked at before they are popped, since something may be left to be done.
    #[inline(always)]
    pub(crate) fn expects(&self) -> bool {
        self.expects
    }

    /// How many requests wait for a sync, or for a conversion.
    pub(crate) fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    pub(crate) fn take_unsynced(&mut self) -> Vec<Unsynced> {
        self.expects = !self.in_flight.is_none();
        std::mem::take(&mut self.unsynced)
    }

    /// Files that are to be converted.
    pub(crate) fn take_full(&mut self) -> Vec<Keep> {
        std::mem::take(&mut self.full)
    }
}
