//! The locks of inodes, and of renames. They come [before](super::order) all others.

use std::sync::Arc;

use foldhash::HashMap;

use super::order::{Held, Ordered, Rank, before};
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
}

impl Default for Locks {
    fn default() -> Self {
        Self { inodes: std::array::from_fn(|_| Shard::default()), rename: Mutex::default() }
    }
}

/// An inode that someone works on or has open.
#[derive(Default)]
struct Known {
    lock: Arc<Gate>,
    /// How often it was locked for a change.
    changes: AtomicU64,
    opens: AtomicUsize,
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
    fn place(&self, number: InodeNo) -> (Place<'_>, Arc<Gate>) {
        let shard = &self.inodes[(number.0 % SHARDS as u64) as usize];
        let known = Arc::clone(shard.lock().entry(number).or_default());
        let lock = Arc::clone(&known.lock);
        let _held = Held::new(Rank::Inode(number));
        (Place { shard, number, known: Some(known), _held }, lock)
    }

    pub(crate) fn shared(&self, number: InodeNo) -> Shared<'_> {
        before(Rank::Inode(number));
        let (place, lock) = self.place(number);
        Shared { guard: Some(lock.read_arc()), place }
    }

    /// The same if that can be had at once, and so in any order.
    pub(crate) fn try_shared(&self, number: InodeNo) -> Option<Shared<'_>> {
        let (mut place, lock) = self.place(number);
        let guard = lock.try_read_arc();
        drop(lock);
        if guard.is_none() {
            place.leave();
            return None;
        }
        Some(Shared { guard, place })
    }

    pub(crate) fn exclusive(&self, number: InodeNo) -> Exclusive<'_> {
        before(Rank::Inode(number));
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
        let shard = self.inodes[(number.0 % SHARDS as u64) as usize].lock();
        shard.get(&number).is_some_and(|known| known.opens.load(Ordering::Relaxed) > 0)
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
