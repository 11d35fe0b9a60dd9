//! The locks of inodes, and the lock of renames. In the [lock order](super::super::order) these locks come directly after the lock of a
//! file's content. The table of locks also contains the pending [time stamps](super::super::stamps) of open inodes, which are not in a
//! transaction yet.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::fence;

use foldhash::HashMap;

use crate::error::Result;
use crate::fs::ext4::jbd2::tid::Tid;
use crate::fs::ext4::order::{Held, Ordered, Rank, before};
use crate::fs::ext4::stamps::{Stamps, Waiting};
use crate::fs::{Access, Clock};
use crate::open_file::{Alone, OpenInode};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::gate::{self, Gate};
use crate::sync::{Mutex, MutexGuard};
use crate::units::InodeNo;

const SHARDS: usize = 64;

type Shard = Mutex<HashMap<InodeNo, Arc<ActiveInode>>>;

/// The locks of all inodes that are open or that a thread uses, and the lock of renames between directories.
pub(crate) struct Locks {
    inodes: [Shard; SHARDS],
    rename: Mutex<()>,
    /// The total number of open handles of inodes.
    opened: AtomicUsize,
    /// The number of time stamps that are set in memory but not yet in a transaction (pending time stamps).
    stamped: AtomicUsize,
    /// The clock for the time stamps.
    clock: Clock,
}

/// The state of an inode that is open or that a thread uses.
#[derive(Default)]
struct ActiveInode {
    lock: Arc<Gate>,
    writes: Arc<WriteState>,
    opens: AtomicUsize,
    stamps: Stamps,
}

/// The state of the writes to an inode. All handles of the inode share it.
#[derive(Default)]
pub(crate) struct WriteState {
    /// The part that the direct-I/O core uses too.
    pub(crate) inode: Arc<OpenInode>,
    /// The number of the newest transaction that changed the size or the map.
    mapped_in: AtomicU64,
    /// The end of the blocks that were allocated for writes since the inode was put on the orphan list, in bytes. `None` if the inode is not
    /// on the list because of a write. If a crash happens, the recovery frees the blocks past the end of the file. A thread changes this value
    /// only while it has the exclusive lock of the inode.
    beyond: Mutex<Option<u64>>,
}

impl WriteState {
    /// The transaction that last changed the size or the map.
    pub(crate) fn newest_map(&self) -> Tid {
        Tid(self.mapped_in.load(Ordering::Relaxed))
    }

    /// Records that this transaction changed the size or the map.
    pub(crate) fn mapped_in(&self, Tid(number): Tid) {
        self.mapped_in.fetch_max(number, Ordering::Relaxed);
    }

    /// Whether the inode is on the orphan list because a write allocates blocks past the end of the file.
    pub(crate) fn is_orphan(&self) -> bool {
        self.beyond.lock().is_some()
    }

    /// Whether the metadata contain all completed writes, and no write has allocated blocks past the end of the file.
    pub(crate) fn is_settled(&self) -> bool {
        self.inode.pending.is_converted() && !self.is_orphan()
    }

    /// The end of the blocks that were allocated for writes since the inode was put on the orphan list. `None` if it is not on the list.
    pub(crate) fn beyond(&self) -> Option<u64> {
        *self.beyond.lock()
    }

    /// Records whether the inode is on the orphan list because of a write. No blocks past the end of the file remain.
    pub(crate) fn set_orphan(&self, orphan: bool) {
        *self.beyond.lock() = orphan.then_some(0);
    }

    /// Records the end of the blocks that were allocated for a write, if the inode is on the orphan list.
    pub(crate) fn allocated(&self, end: u64) {
        let mut beyond = self.beyond.lock();
        *beyond = beyond.map(|known| known.max(end));
    }
}

/// A shared lock of an inode.
pub(crate) struct Shared<'a> {
    guard: Option<gate::Shared>,
    pin: Pin<'a>,
}

/// An exclusive lock of an inode.
pub(crate) struct Exclusive<'a> {
    guard: Option<gate::Exclusive>,
    pin: Pin<'a>,
}

/// Exclusive access to a range of a file's content. The access ends when this value is dropped.
pub(crate) struct Content<'a> {
    alone: Option<Alone>,
    pin: Pin<'a>,
}

/// How an update of the metadata for written data (a conversion) handles a partly written block that another thread is using.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The conversion skips the blocks that other threads are using.
    None,
    /// The conversion waits until other threads no longer use the blocks, but returns `Busy` if its own thread has requests in flight.
    Some,
    /// The conversion always waits until other threads no longer use the blocks. The caller knows that no thread uses the blocks for long.
    All,
}

struct Pin<'a> {
    locks: &'a Locks,
    number: InodeNo,
    known: Option<Arc<ActiveInode>>,
    _held: Held,
}

/// An open inode.
pub(crate) struct Open(Arc<ActiveInode>);

impl Open {
    /// The state that all open handles of the inode share.
    pub(crate) fn state(&self) -> &Arc<WriteState> {
        &self.0.writes
    }

    /// Whether this is the only open handle of the inode.
    pub(crate) fn is_last(&self) -> bool {
        self.0.opens.load(Ordering::Relaxed) == 1
    }
}

impl Locks {
    pub(crate) fn new(clock: Clock) -> Self {
        let inodes = std::array::from_fn(|_| Shard::default());
        let (opened, stamped) = Default::default();
        Self { inodes, rename: Mutex::default(), opened, stamped, clock }
    }

    fn shard(&self, number: InodeNo) -> &Shard {
        &self.inodes[(number.0 % SHARDS as u64) as usize]
    }

    fn pin(&self, number: InodeNo, rank: Rank) -> (Pin<'_>, Arc<ActiveInode>) {
        let known = Arc::clone(self.shard(number).lock().entry(number).or_default());
        let _held = Held::new(rank);
        (Pin { locks: self, number, known: Some(Arc::clone(&known)), _held }, known)
    }

    pub(super) fn shared(&self, number: InodeNo) -> Shared<'_> {
        before(Rank::Inode(number));
        let (pin, known) = self.pin(number, Rank::Inode(number));
        Shared { guard: Some(known.lock.read_arc()), pin }
    }

    /// Returns a shared lock if the lock is available without waiting. The caller may hold any other locks.
    pub(super) fn try_shared(&self, number: InodeNo) -> Option<Shared<'_>> {
        let (mut pin, known) = self.pin(number, Rank::Inode(number));
        let guard = known.lock.try_read_arc();
        drop(known);
        if guard.is_none() {
            pin.leave();
            return None;
        }
        Some(Shared { guard, pin })
    }

    pub(super) fn exclusive(&self, number: InodeNo) -> Exclusive<'_> {
        before(Rank::Inode(number));
        let (pin, known) = self.pin(number, Rank::Inode(number));
        Exclusive { guard: Some(known.lock.write_arc()), pin }
    }

    /// Returns an exclusive lock if the lock is available without waiting. The caller may hold any other locks.
    pub(crate) fn try_exclusive(&self, number: InodeNo) -> Option<Exclusive<'_>> {
        let (mut pin, known) = self.pin(number, Rank::Inode(number));
        let guard = known.lock.try_write_arc();
        drop(known);
        if guard.is_none() {
            pin.leave();
            return None;
        }
        Some(Exclusive { guard, pin })
    }

    /// Waits for exclusive access to a range of a file's content.
    ///
    /// # Errors
    /// `Busy` if the calling thread would have to wait while it has requests in flight.
    pub(super) fn content(&self, number: InodeNo, range: Range<u64>) -> Result<Content<'_>> {
        before(Rank::Content);
        let (mut pin, known) = self.pin(number, Rank::Content);
        let alone = Alone::wait(&known.writes.inode, range);
        drop(known);
        match alone {
            Ok(alone) => Ok(Content { alone: Some(alone), pin }),
            Err(error) => {
                pin.leave();
                Err(error)
            }
        }
    }

    /// The state that all handles of an inode share. `None` if the inode is not open.
    pub(crate) fn open(&self, number: InodeNo) -> Option<Arc<OpenInode>> {
        if self.opened.load(Ordering::Acquire) == 0 {
            return None;
        }
        let shard = self.shard(number).lock();
        let known = shard.get(&number)?;
        (known.opens.load(Ordering::Relaxed) > 0).then(|| Arc::clone(&known.writes.inode))
    }

    /// Whether the table of locks contains `state` as the state of the inode with this number.
    pub(crate) fn is_known_as(&self, number: InodeNo, state: &Arc<WriteState>) -> bool {
        let shard = self.shard(number).lock();
        shard.get(&number).is_some_and(|known| Arc::ptr_eq(&known.writes, state))
    }

    /// Marks the decoded copies of all inodes in the table as outdated. Threads then read these inodes again.
    pub(crate) fn all_changed(&self) {
        for shard in &self.inodes {
            shard.lock().values().for_each(|known| known.writes.inode.changed());
        }
    }

    /// The states of all open inodes.
    pub(crate) fn opened(&self) -> Vec<Arc<OpenInode>> {
        let mut opened = Vec::new();
        for shard in &self.inodes {
            opened.extend(shard.lock().values().map(|known| Arc::clone(&known.writes.inode)));
        }
        opened
    }

    /// The inodes whose metadata do not record all written data yet.
    pub(crate) fn unsettled(&self) -> Vec<(InodeNo, Arc<WriteState>)> {
        let mut found = Vec::new();
        for shard in &self.inodes {
            let shard = shard.lock();
            let unsettled = shard.iter().filter(|(_, known)| !known.writes.is_settled());
            found.extend(unsettled.map(|(number, known)| (*number, Arc::clone(&known.writes))));
        }
        found
    }

    /// Locks renames. While this lock is held, no directory gets another parent.
    pub(super) fn rename(&self) -> Ordered<MutexGuard<'_, ()>> {
        Ordered::new(Rank::Rename, || self.rename.lock())
    }

    /// Whether an inode is open. The result does not change while the caller holds the inode's lock.
    pub(crate) fn is_open(&self, number: InodeNo) -> bool {
        let shard = self.shard(number).lock();
        shard.get(&number).is_some_and(|known| known.opens.load(Ordering::Relaxed) > 0)
    }

    /// Sets a time stamp of an open inode.
    #[inline]
    pub(crate) fn stamp(&self, open: &Open, access: Access) {
        self.set_stamp(&open.0, access);
    }

    #[inline]
    fn set_stamp(&self, known: &ActiveInode, access: Access) {
        let now = self.clock.now();
        if known.stamps.has(access, now) {
            return;
        }
        // The count of pending time stamps (set in memory, but not yet in a transaction) is incremented before the stamp is set. The count
        // is therefore never zero while a stamp is pending.
        self.stamped.fetch_add(1, Ordering::Relaxed);
        if !known.stamps.set(access, now) {
            self.stamped.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Sets a time stamp for the writes that were recorded since the last call. The first of these writes has already set a stamp itself.
    /// The later writes were only recorded in memory, without a time.
    fn stamp_noted(&self, known: &ActiveInode) {
        if known.writes.inode.content.take_written() {
            self.set_stamp(known, Access::Write);
        }
    }

    /// Sets the time stamps of all inodes with recorded writes. The delay between a write and its time stamp is at most the time between
    /// two calls of this function.
    pub(crate) fn stamp_all_noted(&self) {
        if self.has_stamps() {
            for shard in &self.inodes {
                let shard = shard.lock();
                let written = shard.values().filter(|known| known.stamps.get().written.is_some());
                written.for_each(|known| self.stamp_noted(known));
            }
        }
    }

    /// Whether any inode has a time stamp that is set in memory but not yet in a transaction (a pending stamp). The result includes all
    /// stamps that were set before the call. Each read of an inode calls this function.
    pub(crate) fn has_stamps(&self) -> bool {
        self.stamped.load(Ordering::Relaxed) != 0
    }

    /// The time stamps of an inode that are set in memory but not yet in a transaction.
    pub(crate) fn stamps(&self, number: InodeNo) -> Waiting {
        if !self.has_stamps() {
            return Waiting::default();
        }
        let shard = self.shard(number).lock();
        let Some(known) = shard.get(&number) else { return Waiting::default() };
        self.stamp_noted(known);
        known.stamps.get()
    }

    /// Removes and returns the time stamps of an inode that are set in memory but not yet in a transaction. The caller stores them in the
    /// inode.
    pub(crate) fn take_stamps(&self, number: InodeNo) -> Waiting {
        if !self.has_stamps() {
            return Waiting::default();
        }
        let shard = self.shard(number).lock();
        let Some(known) = shard.get(&number) else { return Waiting::default() };
        let (mut pending, count) = known.stamps.take();
        // A write is first recorded, and then sets a time stamp if none is pending. The fence is between the removal of the stamps above
        // and the test for recorded writes below. A write that is recorded after the fence therefore sees that no stamp is pending, and
        // sets a new stamp, which a later call removes.
        fence(Ordering::SeqCst);
        if known.writes.inode.content.take_written() {
            pending.written = Some(self.clock.now());
        }
        self.stamped.fetch_sub(count, Ordering::Relaxed);
        pending
    }

    /// The numbers of the inodes with time stamps that are set in memory but not yet in a transaction.
    pub(crate) fn stamped(&self) -> Vec<InodeNo> {
        let mut numbers = Vec::new();
        if self.has_stamps() {
            for shard in &self.inodes {
                let shard = shard.lock();
                let stamped =
                    shard.iter().filter(|(_, known)| known.stamps.get() != Waiting::default());
                numbers.extend(stamped.map(|(number, _)| *number));
            }
        }
        numbers
    }
}

#[cfg(all(test, shuttle))]
impl Locks {
    /// The number of inodes in the table of locks.
    pub(super) fn known(&self) -> usize {
        self.inodes.iter().map(|shard| shard.lock().len()).sum()
    }
}

impl Shared<'_> {
    /// Opens the inode.
    pub(crate) fn open(&self) -> Open {
        self.pin.open()
    }
}

impl Exclusive<'_> {
    /// The inode number.
    pub(crate) fn number(&self) -> InodeNo {
        self.pin.number
    }

    /// Opens the inode.
    pub(crate) fn open(&self) -> Open {
        self.pin.open()
    }

    /// Closes the inode. Returns true if no open handle remains.
    pub(super) fn close(&self, open: &Open) -> bool {
        self.pin.locks.opened.fetch_sub(1, Ordering::Release);
        open.0.opens.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

impl Pin<'_> {
    fn open(&self) -> Open {
        let known = self.known.clone().unwrap_or_default();
        known.opens.fetch_add(1, Ordering::Relaxed);
        self.locks.opened.fetch_add(1, Ordering::Release);
        Open(known)
    }

    /// Removes the state of the inode from the table if no other thread uses the state.
    fn leave(&mut self) {
        let mut shard = self.locks.shard(self.number).lock();
        // If no other thread uses the state, only two references to it exist: one in the table and one in `self`.
        let last = self.known.take().is_some_and(|known| Arc::strong_count(&known) == 2);
        if last {
            shard.remove(&self.number);
        }
    }
}

impl Content<'_> {
    pub(crate) fn alone(&self) -> Option<&Alone> {
        self.alone.as_ref()
    }

    /// The state, shared by all handles, of the inode whose content this value locks.
    pub(crate) fn state(&self) -> Arc<WriteState> {
        let known = self.pin.known.as_ref();
        known.map(|known| Arc::clone(&known.writes)).unwrap_or_default()
    }
}

impl Drop for Content<'_> {
    fn drop(&mut self) {
        self.alone = None;
        self.pin.leave();
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.guard = None;
        self.pin.leave();
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        if let Some(known) = &self.pin.known {
            known.writes.inode.changed();
        }
        self.guard = None;
        self.pin.leave();
    }
}
