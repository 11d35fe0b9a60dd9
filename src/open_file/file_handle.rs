//! The handle of an open file that can change. Queues refer to the handle. Requests in flight keep the handle alive.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::OpenInode;
use crate::iomap::{WriteFile, WriteIntent};
use crate::units::InodeNo;

/// A handle of an open file. Requests in flight keep the handle alive, so that the file stays open.
pub(crate) struct FileHandle {
    /// The ID of the handle. No other handle of this process has the same ID.
    pub(crate) id: u64,
    index: FileIndex,
    pub(crate) number: InodeNo,
    /// Keeps the commit timer running even after the volume itself is dropped. This field must be dropped before `file`, so that the
    /// timer's thread cannot drop the last reference to the file system.
    _timer: Option<CommitTimer>,
    pub(crate) file: Arc<dyn WriteFile>,
    pub(crate) inode: Arc<OpenInode>,
    /// The options of all writes through this handle.
    pub(crate) intent: WriteIntent,
    /// Whether each write is made at the position that the caller requests. If so, an overwrite need not check the options of the handle.
    pub(crate) overwrites: bool,
}

impl FileHandle {
    pub(crate) fn new(
        number: InodeNo,
        (inode, file): (Arc<OpenInode>, Arc<dyn WriteFile>),
        indexes: &Arc<FileIndexes>,
        timer: Option<CommitTimer>,
        intent: WriteIntent,
        overwrites: bool,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let index = FileIndex::take(indexes);
        Self { id, index, number, _timer: timer, file, inode, intent, overwrites }
    }

    /// The index of the file: a small number that no other open file of the volume has.
    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.index.number
    }
}

/// The indexes of a volume's open files. The indexes are small, because a queue stores its views in a vector with these indexes.
#[derive(Debug, Default)]
pub(crate) struct FileIndexes(Mutex<Indexes>);

#[derive(Debug, Default)]
struct Indexes {
    /// The lowest index that was never used. All larger indexes are free too.
    next: u32,
    free: Vec<u32>,
}

/// The index of an open file. Dropping this value frees the index.
struct FileIndex {
    indexes: Arc<FileIndexes>,
    number: u32,
}

impl FileIndex {
    fn take(indexes: &Arc<FileIndexes>) -> Self {
        let mut inner = indexes.0.lock();
        let number = inner.free.pop().unwrap_or_else(|| {
            inner.next += 1;
            inner.next - 1
        });
        Self { indexes: Arc::clone(indexes), number }
    }
}

impl Drop for FileIndex {
    fn drop(&mut self) {
        self.indexes.0.lock().free.push(self.number);
    }
}

/// Keeps a timer running. Each time the timer fires, it commits the changes of a file system. The timer must not own a strong reference to
/// the file system.
#[derive(Clone)]
pub struct CommitTimer(
    #[expect(dead_code, reason = "the value is stored so that its drop stops the timer")]
    Arc<dyn Send + Sync>,
);

impl CommitTimer {
    /// Wraps `timer`. Dropping the last clone drops `timer`, which stops it.
    #[must_use]
    pub fn new(timer: impl Send + Sync + 'static) -> Self {
        Self(Arc::new(timer))
    }
}

impl fmt::Debug for CommitTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CommitTimer").finish_non_exhaustive()
    }
}
