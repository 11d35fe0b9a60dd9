//! The locks of inodes, and of renames. They come [before](super::order) all others. Beside its lock waits what an open inode has that
//! no transaction has yet: its [stamps](super::stamps).

use std::collections::HashMap;
use std::sync::Arc;

use super::order::{Held, Ordered, Rank, before};
use super::stamps::{Access, Pending, Stamps};
use crate::fs::Timestamp;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::gate::{self, Gate};
use crate::sync::{Mutex, MutexGuard};
use crate::units::InodeNo;

const SHARDS: usize = 64;

type Shard = Mutex<HashMap<InodeNo, Arc<Known>>>;

/// A lock for each inode that someone works on or has open, and the one for renames between directories.
pub(crate) struct Locks {
    inodes: [Shard; SHARDS],
    rename: Mutex<()>,
    /// How many stamps wait.
    stamped: AtomicUsize,
}

impl Default for Locks {
    fn default() -> Self {
        let inodes = std::array::from_fn(|_| Shard::default());
        Self { inodes, rename: Mutex::default(), stamped: AtomicUsize::default() }
    }
}

/// An inode that someone works on or has open.
#[derive(Default)]
struct Known {
    lock: Arc<Gate>,
    /// How often it was locked for a change.
    changes: AtomicU64,
    opens: AtomicUsize,
    stamps: Stamps,
}

/// An inode that others may read too.
pub(crate) struct Shared<'a> {
    guard: Option<gate::Shared>,
    place: Place<'a>,
}

/// An inode that nobody else reads or changes.
pub(crate) struct Exclusive<'a> {
    guard: Option<gate::Exclusive>,
    place: Place<'a>,
}

struct Place<'a> {
    shard: &'a Shard,
    number: InodeNo,
    known: Option<Arc<Known>>,
    _held: Held,
}

/// An inode that is open.
pub(crate) struct Open(Arc<Known>);

impl Open {
    /// As long as this number stays, so does what was read of the inode under its lock.
    pub(crate) fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }
}

impl Locks {
    fn shard(&self, number: InodeNo) -> &Shard {
        &self.inodes[(number.0 % SHARDS as u64) as usize]
    }

    fn place(&self, number: InodeNo) -> (Place<'_>, Arc<Gate>) {
        before(Rank::Inode(number));
        let shard = self.shard(number);
        let known = Arc::clone(shard.lock().entry(number).or_default());
        let lock = Arc::clone(&known.lock);
        let _held = Held::new(Rank::Inode(number));
        (Place { shard, number, known: Some(known), _held }, lock)
    }

    pub(crate) fn shared(&self, number: InodeNo) -> Shared<'_> {
        let (place, lock) = self.place(number);
        Shared { guard: Some(lock.read_arc()), place }
    }

    pub(crate) fn exclusive(&self, number: InodeNo) -> Exclusive<'_> {
        let (place, lock) = self.place(number);
        Exclusive { guard: Some(lock.write_arc()), place }
    }

    /// Several inodes, each once, in the order of their numbers.
    pub(crate) fn exclusive_all(&self, numbers: &[InodeNo]) -> Vec<Exclusive<'_>> {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| self.exclusive(number)).collect()
    }

    /// Directories keep their parents as long as it is held.
    pub(crate) fn rename(&self) -> Ordered<MutexGuard<'_, ()>> {
        Ordered::new(Rank::Rename, || self.rename.lock())
    }

    /// Whether someone has an inode open. It stays so as long as its lock is held.
    pub(crate) fn is_open(&self, number: InodeNo) -> bool {
        let shard = self.shard(number).lock();
        shard.get(&number).is_some_and(|known| known.opens.load(Ordering::Relaxed) > 0)
    }

    /// Sets a stamp of an inode that is open.
    #[inline]
    pub(crate) fn stamp(&self, open: &Open, access: Access, now: Timestamp) {
        if open.0.stamps.set(access, now) {
            self.stamped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether stamps of any inode wait. Right for those that were set before this thread asks; asked with each inode that is read.
    pub(crate) fn has_stamps(&self) -> bool {
        self.stamped.load(Ordering::Relaxed) != 0
    }

    /// The stamps of an inode that wait.
    pub(crate) fn stamps(&self, number: InodeNo) -> Pending {
        if !self.has_stamps() {
            return Pending::default();
        }
        let shard = self.shard(number).lock();
        shard.get(&number).map_or_else(Pending::default, |known| known.stamps.get())
    }

    /// The same, which wait no longer.
    pub(crate) fn take_stamps(&self, number: InodeNo) -> Pending {
        if !self.has_stamps() {
            return Pending::default();
        }
        let shard = self.shard(number).lock();
        let (pending, count) =
            shard.get(&number).map(|known| known.stamps.take()).unwrap_or_default();
        // One that was taken before it was counted leaves the count wrong for a moment, but not at zero.
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
                    shard.iter().filter(|(_, known)| known.stamps.get() != Pending::default());
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
        let known = self.place.known.clone().unwrap_or_default();
        known.opens.fetch_add(1, Ordering::Relaxed);
        Open(known)
    }
}

impl Exclusive<'_> {
    /// Closes the inode; says whether nobody has it open now.
    pub(crate) fn close(&self, open: &Open) -> bool {
        open.0.opens.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

impl Place<'_> {
    /// What is known of the inode goes with the last who works on it or has it open.
    fn leave(&mut self) {
        let mut shard = self.shard.lock();
        // The table has it, and this.
        let last = self.known.take().is_some_and(|known| Arc::strong_count(&known) == 2);
        if last {
            shard.remove(&self.number);
        }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.guard = None;
        self.place.leave();
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        if let Some(known) = &self.place.known {
            known.changes.fetch_add(1, Ordering::Release);
        }
        self.guard = None;
        self.place.leave();
    }
}
