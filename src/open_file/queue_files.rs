//! Requests to files that can change. Each request holds a lock on its file's content from its submission to its completion. After the
//! transfer of a write, this module also records the new size and the written range.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::{Entered, FileHandle, InFlight, Lane, OpenInode, Ticket};
use crate::bio::{Completion, CompletionWork};
use crate::iomap::Written;
use crate::units::{FilePos, InodeNo};

/// The files to which a queue has sent requests. Each file has an entry (slot) in a vector.
#[derive(Default)]
pub(crate) struct QueueFiles {
    files: Vec<Option<Rc<QueueFile>>>,
    in_flight: InFlight,
    /// Requests whose transfers are complete, but which complete only after their file is synced, or after its written ranges are converted
    /// to written extents.
    unsynced: Vec<Unsynced>,
    /// Whether some requests in flight may complete only after a sync of their file, or after a conversion of its unwritten extents.
    expects: bool,
    /// Files with so many written ranges in unwritten extents that the ranges must be converted to written extents.
    full: Vec<Arc<FileHandle>>,
}

/// A file that a queue uses. It counts the queue's requests that have locked the file's content.
pub(crate) struct QueueFile {
    /// The ID of the file handle.
    id: u64,
    pub(crate) inode: Arc<OpenInode>,
    number: InodeNo,
    lane: Arc<Lane>,
    /// The number of this queue's requests that have locked the content through the lane. The lane is a counter that other threads read. It
    /// is incremented only for the first of these requests and decremented after the last, so that the other requests do not write to
    /// shared memory.
    by_lane: Cell<u32>,
    /// The number of this queue's requests that have locked a range.
    by_range: Cell<u32>,
    /// A reference that keeps the file open while requests are in flight.
    keep: RefCell<Option<Arc<FileHandle>>>,
}

/// A request whose transfer is complete, but which completes only after its file is synced, or after unwritten extents of the file are
/// converted.
pub(crate) struct Unsynced {
    pub(crate) keep: Arc<FileHandle>,
    pub(crate) left: CompletionWork,
    pub(crate) completion: Completion,
}

/// The file whose content a request has locked, and the kind of the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) slot: u32,
    pub(crate) hold: Hold,
}

/// The kind of lock that a request has on the content of its file: either the request is counted in the lane (counter) of its queue, or it
/// has locked a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The request is counted in the lane (counter) of its queue.
    Lane,
    Range(Ticket),
}

/// The lock and the completion work of a request to a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completing {
    pub(crate) slot: u32,
    pub(crate) hold: Hold,
    pub(crate) left: CompletionWork,
    pub(crate) pos: FilePos,
    pub(crate) len: usize,
}

impl Holding {
    /// Whether the bio of the request can describe the lock. If it cannot, the lock is a range lock, which needs more data.
    #[inline(always)]
    pub(crate) fn is_light(&self) -> bool {
        self.hold == Hold::Lane
    }

    pub(crate) fn completing(&self, left: CompletionWork, pos: FilePos, len: usize) -> Completing {
        Completing { slot: self.slot, hold: self.hold, left, pos, len }
    }
}

impl QueueFile {
    /// Locks the content until [`leave`](Self::leave), by an increment of the queue's counter (lane). Returns false if a thread has or
    /// wants an exclusive lock on a range, because requests must then lock ranges.
    #[inline(always)]
    pub(crate) fn enter(&self) -> bool {
        self.inode.content.enter(&self.lane)
    }

    #[inline(always)]
    pub(crate) fn leave(&self) {
        self.inode.content.leave(&self.lane);
    }

    /// Records a write. Returns true for the first write since the last call of `ContentLock::take_written`.
    #[inline(always)]
    pub(crate) fn wrote(&self) -> bool {
        self.lane.wrote()
    }

    /// Records a write that has failed. Returns whether the file should be converted soon.
    fn cancelled(&self, &Completing { pos, len, left, .. }: &Completing) -> bool {
        self.inode.cancelled(pos, len, left)
    }

    fn hold_open(&self, in_flight: &InFlight, keep: impl FnOnce() -> Arc<FileHandle>) {
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
    /// Returns the queue's entry for the file of a handle. The queue creates the entry when it first uses the handle.
    pub(crate) fn learn(&mut self, handle: &FileHandle) -> Rc<QueueFile> {
        let index = handle.index() as usize;
        if self.files.len() <= index {
            self.files.resize(index + 1, None);
        }
        if let Some(known) = self.files[index].as_ref().filter(|file| file.id == handle.id) {
            return Rc::clone(known);
        }
        let file = Rc::new(QueueFile {
            id: handle.id,
            inode: Arc::clone(&handle.inode),
            number: handle.number,
            lane: handle.inode.content.add_lane(),
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

    /// Whether no request of this queue has locked the content of a file.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_none()
    }

    /// Locks the content of a file until the request is complete, by an increment of the queue's counter (lane). Returns the inode, or
    /// `None` if the request must lock a range.
    #[inline(always)]
    pub(crate) fn enter<'a>(
        &self,
        file: &'a QueueFile,
        keep: impl FnOnce() -> Arc<FileHandle>,
    ) -> Option<&'a OpenInode> {
        let (inode, within) = (&*file.inode, file.by_lane.get());
        // The request is counted before the function checks whether the queue's lane can be used, because the check nearly always succeeds.
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

    /// Releases the content lock of a request that began on the short code path for simple requests but cannot continue there.
    #[cold]
    pub(crate) fn turn_back(&self, file: &QueueFile) {
        self.leave_lane(file);
    }

    /// Moves the content lock from its guard to a request that is about to be submitted.
    pub(crate) fn begin(&self, handle: &Arc<FileHandle>, entered: Entered) -> Option<Holding> {
        let slot = handle.index();
        let (file, hold) = (self.file(slot)?, entered.hand_over()?);
        file.hold_open(&self.in_flight, || Arc::clone(handle));
        match hold {
            Hold::Lane => {
                let within = file.by_lane.get();
                if within > 0 {
                    file.leave();
                }
                file.by_lane.set(within + 1);
            }
            Hold::Range(_) => file.by_range.set(file.by_range.get() + 1),
        }
        Some(Holding { slot, hold })
    }

    /// Undoes [`begin`](Self::begin): releases the content lock of a request that was not submitted.
    #[cold]
    pub(crate) fn cancel(&self, holding: Holding) {
        self.leave(holding.slot, holding.hold);
    }

    /// Releases the lock and the reserved range of a request when its queue is dropped.
    pub(crate) fn abandon(&self, completing: Completing) {
        if let Some(file) = self.file(completing.slot) {
            file.cancelled(&completing);
        }
        self.end_place(&completing);
        self.leave(completing.slot, completing.hold);
    }

    /// Handles a queue that is lost with requests in flight. Until the process ends, the files of these requests stay open, and their
    /// contents stay locked. Returns the handles that keep the files open. The caller must [notify](super::ContentLock::lose) the threads
    /// that wait for these contents.
    #[cold]
    pub(crate) fn leak(&mut self) -> Vec<Arc<FileHandle>> {
        // The queue is lost, so the completions of its requests can never be processed. Therefore, its requests no longer count as this
        // thread's requests in flight.
        self.in_flight = InFlight::default();
        let files = std::mem::take(&mut self.files).into_iter().flatten();
        let leak = |file: Rc<QueueFile>| {
            let keep = file.keep.borrow().clone()?;
            std::mem::forget(file);
            Some(keep)
        };
        files.filter_map(leak).collect()
    }

    /// Returns the inode number of the file at this index (slot), for error events.
    pub(crate) fn number(&self, slot: u32) -> InodeNo {
        self.file(slot).map_or(InodeNo(0), |file| file.number)
    }

    /// Records that an extending write has ended, with or without an error.
    fn end_place(&self, completing: &Completing) {
        if completing.left.contains(CompletionWork::RESERVED)
            && let Some(file) = self.file(completing.slot)
        {
            file.inode.pending.place_ended();
        }
    }

    /// Ends a request whose transfer is complete. Returns its completion, or `None` if the request completes later, after its file is
    /// synced or unwritten extents of the file are converted.
    pub(crate) fn end(
        &mut self,
        completing: Completing,
        written: &[Written],
        completion: Completion,
    ) -> Option<Completion> {
        if completing.left.is_empty() || completion.result.is_err() {
            if completion.result.is_err() {
                self.end_failed(&completing);
            }
            self.end_place(&completing);
            self.leave(completing.slot, completing.hold);
            return Some(completion);
        }
        self.end_write(completing, written, completion)
    }

    /// Records a failed write. If blocks may have been allocated for it, the file is converted soon, so that the file system can free them.
    #[cold]
    fn end_failed(&mut self, completing: &Completing) {
        let file = self.files.get(completing.slot as usize).and_then(Option::as_ref);
        if let Some(file) = file
            && file.cancelled(completing)
        {
            self.full.extend(file.keep.borrow().clone());
            self.expects = true;
        }
    }

    #[inline]
    fn end_write(
        &mut self,
        completing: Completing,
        written: &[Written],
        completion: Completion,
    ) -> Option<Completion> {
        let Completing { slot, hold, left, pos, len } = completing;
        let Some(file) = self.file(slot) else { return Some(completion) };
        let end = left.contains(CompletionWork::GROW).then(|| pos.0 + len as u64);
        let full = file.inode.wrote(written, end) && self.full.is_empty();
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

    /// Releases the lock that a request has on the content of the file in a slot.
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

    /// If no request of this queue has locked the content, drops the reference that keeps the file open.
    fn left(&self, file: &QueueFile) {
        if file.by_lane.get() + file.by_range.get() == 0 {
            self.in_flight.remove();
            let kept = file.keep.take();
            // If this is the last reference to the file, the drop closes the file.
            drop(kept);
        }
    }

    /// Records whether a submitted request may complete only after a sync of its file, or after a conversion of unwritten extents.
    pub(crate) fn expect(&mut self, left: CompletionWork) {
        self.expects |= left.intersects(CompletionWork::BEFORE_COMPLETION);
    }

    /// Whether completions must be checked before they are popped, because some requests may complete only after a sync of their file or a
    /// conversion of its unwritten extents.
    #[inline(always)]
    pub(crate) fn expects(&self) -> bool {
        self.expects
    }

    /// Returns the number of requests that wait until their file is synced, or until its unwritten extents are converted.
    pub(crate) fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    pub(crate) fn take_unsynced(&mut self) -> Vec<Unsynced> {
        self.expects = !self.in_flight.is_none();
        std::mem::take(&mut self.unsynced)
    }

    /// Returns the files with many written ranges in unwritten extents, which must be converted, and removes these files from the list.
    pub(crate) fn take_full(&mut self) -> Vec<Arc<FileHandle>> {
        std::mem::take(&mut self.full)
    }
}
