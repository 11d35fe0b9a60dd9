//! The locks of inodes, and of renames. They come [before](super::super::order) all others but that of a file's content. Beside its lock waits what an open inode has that
//! no transaction has yet: its [stamps](super::super::stamps).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::fence;

use foldhash::HashMap;

use crate::error::Result;
use crate::fs::ext4::order::{Held, Ordered, Rank, before};
use crate::fs::ext4::stamps::{Stamps, Waiting};
use crate::fs::{Access, Clock};
use crate::open_file::{Alone, OpenInode};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::gate::{self, Gate};
use crate::sync::{Mutex, MutexGuard};
use crate::units::InodeNo;

const SHARDS: usize = 64;

type Shard = Mutex<HashMap<InodeNo, Arc<ActiveInode>>>;

/// A lock for each inode that someone works on or has open, and the one for renames between directories.
pub(crate) struct Locks {
    inodes: [Shard; SHARDS],
    rename: Mutex<()>,
    /// How many times inodes are open.
    opened: AtomicUsize,
    /// How many stamps wait.
    stamped: AtomicUsize,
    /// Which the stamps are taken from.
    clock: Clock,
}

/// An inode that someone works on or has open.
#[derive(Default)]
struct ActiveInode {
    lock: Arc<Gate>,
    inode: Arc<OpenInode>,
    opens: AtomicUsize,
    stamps: Stamps,
}

/// An inode that others may read too.
pub(crate) struct Shared<'a> {
    guard: Option<gate::Shared>,
    pin: Pin<'a>,
}

/// An inode that nobody else reads or changes.
pub(super) struct Exclusive<'a> {
    guard: Option<gate::Exclusive>,
    pin: Pin<'a>,
}

/// A range of a file's content that nobody else is at.
pub(crate) struct Content<'a> {
    alone: Option<Alone>,
    pin: Pin<'a>,
}

/// How a conversion comes by the blocks that were written in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It leaves those that someone is at.
    None,
    /// It waits, unless the thread has requests in flight.
    Some,
    /// It waits: nobody is at them for long.
    All,
}

struct Pin<'a> {
    locks: &'a Locks,
    number: InodeNo,
    known: Option<Arc<ActiveInode>>,
    _held: Held,
}

/// An inode that is open.
pub(crate) struct Open(Arc<ActiveInode>);

impl Open {
    pub(crate) fn inode(&self) -> &Arc<OpenInode> {
        &self.0.inode
    }

    /// Whether nobody else has it open.
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

    /// The same if the lock is free, without waiting, and so in any order.
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

    /// Waits until nobody else is at a range of a file's content.
    ///
    /// # Errors
    /// `Busy` where it would have to be waited for by a thread that has requests in flight.
    pub(super) fn content(&self, number: InodeNo, range: Range<u64>) -> Result<Content<'_>> {
        before(Rank::Content);
        let (mut pin, known) = self.pin(number, Rank::Content);
        let alone = Alone::wait(&known.inode, range);
        drop(known);
        match alone {
            Ok(alone) => Ok(Content { alone: Some(alone), pin }),
            Err(error) => {
                pin.leave();
                Err(error)
            }
        }
    }

    /// An inode, if someone has it open.
    pub(crate) fn open(&self, number: InodeNo) -> Option<Arc<OpenInode>> {
        if self.opened.load(Ordering::Acquire) == 0 {
            return None;
        }
        let shard = self.shard(number).lock();
        let known = shard.get(&number)?;
        (known.opens.load(Ordering::Relaxed) > 0).then(|| Arc::clone(&known.inode))
    }

    /// Whether an inode is known as this one.
    pub(crate) fn is_known_as(&self, number: InodeNo, inode: &Arc<OpenInode>) -> bool {
        let shard = self.shard(number).lock();
        shard.get(&number).is_some_and(|known| Arc::ptr_eq(&known.inode, inode))
    }

    /// All readers of an inode read it again.
    pub(crate) fn all_changed(&self) {
        for shard in &self.inodes {
            shard.lock().values().for_each(|known| known.inode.changed());
        }
    }

    /// Those that are open.
    pub(crate) fn opened(&self) -> Vec<Arc<OpenInode>> {
        let mut opened = Vec::new();
        for shard in &self.inodes {
            opened.extend(shard.lock().values().map(|known| Arc::clone(&known.inode)));
        }
        opened
    }

    /// Those that have been written to and whose metadata do not tell it yet.
    pub(crate) fn unconverted(&self) -> Vec<(InodeNo, Arc<OpenInode>)> {
        let mut found = Vec::new();
        for shard in &self.inodes {
            let shard = shard.lock();
            let unconverted = shard.iter().filter(|(_, known)| !known.inode.pending.is_empty());
            found.extend(unconverted.map(|(number, known)| (*number, Arc::clone(&known.inode))));
        }
        found
    }

    /// Directories keep their parents as long as it is held.
    pub(super) fn rename(&self) -> Ordered<MutexGuard<'_, ()>> {
        Ordered::new(Rank::Rename, || self.rename.lock())
    }

    /// Whether someone has an inode open. It stays so as long as its lock is held.
    pub(crate) fn is_open(&self, number: InodeNo) -> bool {
        let shard = self.shard(number).lock();
        shard.get(&number).is_some_and(|known| known.opens.load(Ordering::Relaxed) > 0)
    }

    /// Sets a stamp of an inode that is open.
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
        // Counted before it waits: while one waits, the count is not zero.
        self.stamped.fetch_add(1, Ordering::Relaxed);
        if !known.stamps.set(access, now) {
            self.stamped.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Writes after the one that left a stamp are only noted, each in its queue's lane. This function sets their stamp.
    fn stamp_noted(&self, known: &ActiveInode) {
        if known.inode.content.take_written() {
            self.set_stamp(known, Access::Write);
        }
    }

    /// The same for all inodes: so that a write gets a stamp no older than the last call.
    pub(crate) fn stamp_all_noted(&self) {
        if self.has_stamps() {
            for shard in &self.inodes {
                let shard = shard.lock();
                let written = shard.values().filter(|known| known.stamps.get().written.is_some());
                written.for_each(|known| self.stamp_noted(known));
            }
        }
    }

    /// Whether stamps of any inode wait. Right for those that were set before this thread asks; asked with each inode that is read.
    pub(crate) fn has_stamps(&self) -> bool {
        self.stamped.load(Ordering::Relaxed) != 0
    }

    /// The stamps of an inode that wait.
    pub(crate) fn stamps(&self, number: InodeNo) -> Waiting {
        if !self.has_stamps() {
            return Waiting::default();
        }
        let shard = self.shard(number).lock();
        let Some(known) = shard.get(&number) else { return Waiting::default() };
        self.stamp_noted(known);
        known.stamps.get()
    }

    /// The same, which wait no longer.
    pub(crate) fn take_stamps(&self, number: InodeNo) -> Waiting {
        if !self.has_stamps() {
            return Waiting::default();
        }
        let shard = self.shard(number).lock();
        let Some(known) = shard.get(&number) else { return Waiting::default() };
        let (mut pending, count) = known.stamps.take();
        // Asked after that: a write is noted before it leaves a stamp. So a write that is noted later has a stamp that waits, and
        // is asked for again.
        fence(Ordering::SeqCst);
        if known.inode.content.take_written() {
            pending.written = Some(self.clock.now());
        }
        self.stamped.fetch_sub(count, Ordering::Relaxed);
        pending
    }

    /// The inodes whose stamps wait.
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
    /// How many inodes are known.
    pub(super) fn known(&self) -> usize {
        self.inodes.iter().map(|shard| shard.lock().len()).sum()
    }
}

impl Shared<'_> {
    /// Opens the inode.
    pub(crate) fn open(&self) -> Open {
        let known = self.pin.known.clone().unwrap_or_default();
        known.opens.fetch_add(1, Ordering::Relaxed);
        self.pin.locks.opened.fetch_add(1, Ordering::Release);
        Open(known)
    }
}

impl Exclusive<'_> {
    /// Closes the inode; says whether nobody has it open now.
    pub(super) fn close(&self, open: &Open) -> bool {
        self.pin.locks.opened.fetch_sub(1, Ordering::Release);
        open.0.opens.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

impl Pin<'_> {
    /// The state of the inode is dropped with its last user.
    fn leave(&mut self) {
        let mut shard = self.locks.shard(self.number).lock();
        // The table has it, and this.
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

    /// Whose content it is.
    pub(crate) fn inode(&self) -> Arc<OpenInode> {
        self.pin.known.as_ref().map(|known| Arc::clone(&known.inode)).unwrap_or_default()
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
            known.inode.changed();
        }
        self.guard = None;
        self.pin.leave();
    }
}
