//! The inodes that the kernel knows: how often it was told of each, and those that must stay though they have lost their last name.
//!
//! The kernel refers to an inode by its number until it has forgotten it as often as it was told. That is longer than it has a name: a
//! working directory can be removed, and a descriptor opened with `O_PATH` outlives its file. So what loses its last name while the
//! kernel knows it is held until it is forgotten; what has a name needs no holding.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ironmap::fs::Held;
use ironmap::units::InodeNo;

/// The number by which the protocol knows the root.
pub(super) const PROTOCOL_ROOT: u64 = 1;
const SHARDS: usize = 16;

#[derive(Default)]
pub(super) struct Nodes([Mutex<HashMap<InodeNo, Entry>>; SHARDS]);

struct Entry {
    lookups: u64,
    node: Arc<Node>,
}

/// How an inode is to be treated, as `chattr` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Manner {
    /// Each change of it is durable when it returns.
    pub(super) sync: bool,
    /// Reads leave no time.
    pub(super) no_atime: bool,
    /// Its names are the same in other case.
    pub(super) casefold: bool,
}

/// What is remembered of an inode.
pub(super) struct Node {
    manner: Mutex<Manner>,
    /// Seconds since 1970 until which a read leaves no time stamp; reset by a change.
    quiet_until: AtomicI64,
    /// How often a name in it has begun to stand for another inode, or for none.
    names_changed: AtomicU64,
    /// The kernel may know the target of this symbolic link, and then follows it without a request.
    link_read: AtomicBool,
    /// Set when it has lost its last name.
    held: Mutex<Option<Held>>,
}

impl Node {
    fn new(manner: Manner) -> Self {
        let (quiet_until, names_changed) = (AtomicI64::new(i64::MIN), AtomicU64::default());
        let (manner, link_read) = (Mutex::new(manner), AtomicBool::default());
        Self { manner, quiet_until, names_changed, link_read, held: Mutex::default() }
    }
}

/// Nothing here can be left half done by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    pub(super) fn manner(&self) -> Manner {
        *lock(&self.manner)
    }

    /// Its flags have changed.
    pub(super) fn set_manner(&self, manner: Manner) {
        *lock(&self.manner) = manner;
    }

    /// Whether a read at this time has to ask what the time of the last one is.
    pub(super) fn is_quiet(&self, now: i64) -> bool {
        now < self.quiet_until.load(Ordering::Relaxed)
    }

    /// Says until when no read has to ask. It is said before the inode is looked at: a change meanwhile takes it back.
    pub(super) fn quiet_until(&self, then: i64) {
        self.quiet_until.store(then, Ordering::SeqCst);
    }

    /// And how much earlier that ends, as it was found then.
    pub(super) fn quiet_no_longer_than(&self, then: i64) {
        self.quiet_until.fetch_min(then, Ordering::Relaxed);
    }

    /// The content or a time has changed.
    pub(super) fn changed(&self) {
        self.quiet_until.store(i64::MIN, Ordering::Relaxed);
    }

    /// The kernel has asked for the target of a symbolic link.
    pub(super) fn link_read(&self) {
        self.link_read.store(true, Ordering::Relaxed);
    }

    /// Whether it has asked since this was called the last time.
    pub(super) fn take_link_read(&self) -> bool {
        self.link_read.load(Ordering::Relaxed) && self.link_read.swap(false, Ordering::Relaxed)
    }

    /// A number that stays while the names of a directory stand for what they stood for.
    pub(super) fn names(&self) -> u64 {
        self.names_changed.load(Ordering::Relaxed)
    }

    /// A name is removed, or stands for another inode.
    pub(super) fn names_changed(&self) {
        self.names_changed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Nodes {
    fn shard(&self, inode: InodeNo) -> MutexGuard<'_, HashMap<InodeNo, Entry>> {
        lock(&self.0[inode.0 as usize % SHARDS])
    }

    /// The kernel is told of an inode.
    pub(super) fn remember(&self, inode: InodeNo, manner: Manner) {
        let mut shard = self.shard(inode);
        let known = shard.entry(inode);
        let node = || Arc::new(Node::new(manner));
        known.or_insert_with(|| Entry { lookups: 0, node: node() }).lookups += 1;
    }

    /// The kernel forgets it so many times. What was held only for the kernel ends here.
    pub(super) fn forget(&self, inode: InodeNo, times: u64) {
        let forgotten = {
            let mut shard = self.shard(inode);
            let Some(known) = shard.get_mut(&inode) else { return };
            known.lookups = known.lookups.saturating_sub(times);
            if known.lookups == 0 { shard.remove(&inode) } else { None }
        };
        // Its inode may end with it, which takes a transaction: the shard is not locked any more.
        drop(forgotten);
    }

    /// What is remembered of an inode; of one that the kernel was not told of that is nothing that stays.
    pub(super) fn get(&self, inode: InodeNo) -> Arc<Node> {
        let known = self.shard(inode).get(&inode).map(|known| Arc::clone(&known.node));
        known.unwrap_or_else(|| Arc::new(Node::new(Manner::default())))
    }

    /// Holds an inode without a name until the kernel has forgotten it.
    pub(super) fn keep(&self, held: Held) {
        let node =
            self.shard(held.number()).get(&held.number()).map(|known| Arc::clone(&known.node));
        if let Some(node) = node {
            *lock(&node.held) = Some(held);
        }
    }

    /// All are forgotten: the connection has ended.
    pub(super) fn clear(&self) {
        for shard in &self.0 {
            let all = std::mem::take(&mut *lock(shard));
            drop(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a read has found before a change keeps no later read from leaving a time.
    #[test]
    fn a_change_while_the_last_read_is_asked_for_counts() {
        let node = Node::new(Manner::default());
        node.quiet_until(100);
        node.changed();
        node.quiet_no_longer_than(50);
        assert!(!node.is_quiet(10));
        node.quiet_until(100);
        node.quiet_no_longer_than(50);
        assert!(node.is_quiet(49) && !node.is_quiet(50));
    }
}
