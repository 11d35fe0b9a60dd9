//! The inodes that the kernel uses. For each inode, the number of lookups is counted. An inode that has lost its last name is held.
//!
//! The kernel may use the number of an inode until it has forgotten every lookup of this inode. The inode can lose its last name before
//! that. Examples are a removed working directory, and a removed file that is open with `O_PATH`. An inode without a name is therefore held
//! until the kernel forgets it. An inode with a name needs no hold.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ironmap::fs::Held;
use ironmap::units::InodeNo;

/// The node number of the root in the FUSE protocol.
pub(super) const PROTOCOL_ROOT: u64 = 1;
const SHARDS: usize = 16;

#[derive(Default)]
pub(super) struct Nodes([Mutex<HashMap<InodeNo, Entry>>; SHARDS]);

struct Entry {
    lookups: u64,
    node: Arc<Node>,
}

/// The properties of an inode that `chattr` or the mount options set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Manner {
    /// Whether each change of the inode is durable when the call returns.
    pub(super) sync: bool,
    /// Whether reads do not update the access time.
    pub(super) no_atime: bool,
    /// Whether names in the directory are compared without regard to case.
    pub(super) casefold: bool,
}

/// The state of an inode that the kernel uses.
pub(super) struct Node {
    manner: Mutex<Manner>,
    /// Before this time (in seconds since 1970), reads do not check the access time. A change of the inode resets this value.
    quiet_until: AtomicI64,
    /// The number of times that a name in this directory was removed or replaced.
    names_changed: AtomicU64,
    /// Whether the kernel may have cached the target of this symbolic link. The kernel follows a cached link without a request.
    link_read: AtomicBool,
    /// Keeps an inode that has lost its last name, until the kernel has forgotten the inode.
    held: Mutex<Option<Held>>,
}

impl Node {
    fn new(manner: Manner) -> Self {
        let (quiet_until, names_changed) = (AtomicI64::new(i64::MIN), AtomicU64::default());
        let (manner, link_read) = (Mutex::new(manner), AtomicBool::default());
        Self { manner, quiet_until, names_changed, link_read, held: Mutex::default() }
    }
}

/// Locks a value. A panic cannot leave the value inconsistent, so a poisoned lock is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    pub(super) fn manner(&self) -> Manner {
        *lock(&self.manner)
    }

    /// Replaces the properties after a change of the inode's flags.
    pub(super) fn set_manner(&self, manner: Manner) {
        *lock(&self.manner) = manner;
    }

    /// Whether a read at the time `now` need not check the access time.
    pub(super) fn is_quiet(&self, now: i64) -> bool {
        now < self.quiet_until.load(Ordering::Relaxed)
    }

    /// Makes reads skip the check of the access time until `then`. The caller must call this function before it reads the inode. A
    /// concurrent change of the inode then resets the value.
    pub(super) fn quiet_until(&self, then: i64) {
        self.quiet_until.store(then, Ordering::SeqCst);
    }

    /// Makes reads check the access time at `then` at the latest.
    pub(super) fn quiet_no_longer_than(&self, then: i64) {
        self.quiet_until.fetch_min(then, Ordering::Relaxed);
    }

    /// Makes the next read check the access time. The caller calls this function after a change of the content or of a time.
    pub(super) fn changed(&self) {
        self.quiet_until.store(i64::MIN, Ordering::Relaxed);
    }

    /// Records that the kernel has read the target of this symbolic link.
    pub(super) fn link_read(&self) {
        self.link_read.store(true, Ordering::Relaxed);
    }

    /// Whether the kernel has read the target since the last call.
    pub(super) fn take_link_read(&self) -> bool {
        self.link_read.load(Ordering::Relaxed) && self.link_read.swap(false, Ordering::Relaxed)
    }

    /// A number that changes whenever a name of the directory is removed or replaced.
    pub(super) fn names(&self) -> u64 {
        self.names_changed.load(Ordering::Relaxed)
    }

    /// Records that a name was removed or replaced.
    pub(super) fn names_changed(&self) {
        self.names_changed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Nodes {
    fn shard(&self, inode: InodeNo) -> MutexGuard<'_, HashMap<InodeNo, Entry>> {
        lock(&self.0[inode.0 as usize % SHARDS])
    }

    /// Counts a lookup of an inode by the kernel.
    pub(super) fn remember(&self, inode: InodeNo, manner: Manner) {
        let mut shard = self.shard(inode);
        let known = shard.entry(inode);
        let node = || Arc::new(Node::new(manner));
        known.or_insert_with(|| Entry { lookups: 0, node: node() }).lookups += 1;
    }

    /// The kernel has forgotten some lookups of an inode. Subtracts `times` from the number of lookups. At zero lookups, an inode without a
    /// name is no longer kept here, and can be freed.
    pub(super) fn forget(&self, inode: InodeNo, times: u64) {
        let forgotten = {
            let mut shard = self.shard(inode);
            let Some(known) = shard.get_mut(&inode) else { return };
            known.lookups = known.lookups.saturating_sub(times);
            if known.lookups == 0 { shard.remove(&inode) } else { None }
        };
        // The drop of this value may free an inode without a name. This needs a transaction of the journal. Therefore the table of nodes is
        // not locked during the drop.
        drop(forgotten);
    }

    /// Returns the state of an inode. If the kernel does not use the inode, returns a temporary state.
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

    /// Forgets all inodes after the connection has ended.
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

    /// If an inode changes while a read checks the access time, the next read updates the access time.
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
