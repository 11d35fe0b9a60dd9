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
    /// Keeps the commit timer running, even after the volume itself is dropped. This field is dropped before `file`. Otherwise the timer's
    /// thread could drop the last reference to the file system.
    _timer: Option<CommitTimer>,
    pub(crate) file: Arc<dyn WriteFile>,
    pub(crate) inode: Arc<OpenInode>,
    /// The options of all writes through this handle.
    pub(crate) intent: WriteIntent,
    /// Whether each write is made at the position that the caller requests. An overwrite then need not check the handle.
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

    /// A small number, which no other open file of the volume has.
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
    /// This index and all larger indexes are free.
    next: u32,
    free: Vec<u32>,
}

/// An index. The drop of this value frees it.
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

/// Keeps a timer running. At each run of the timer, a file system commits its changes. The timer must not own a strong reference to the
/// file system.
#[derive(Clone)]
pub struct CommitTimer(
    #[expect(dead_code, reason = "the value is stored so that its drop stops the timer")]
    Arc<dyn Send + Sync>,
);

impl CommitTimer {
    /// Wraps `timer`. The drop of the last clone drops the timer, which ends it.
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
