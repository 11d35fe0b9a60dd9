//! The open files and directories. The kernel uses handle numbers to refer to them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use ironmap::fs::{DirEntry, Held, Listing};
use ironmap::{Errno, File};

use super::fail::{Fail, Result};

/// An open file.
pub(super) struct OpenFile {
    pub(super) held: Held,
    pub(super) writes: bool,
    /// Whether reads do not update the access time.
    pub(super) no_atime: bool,
    /// Whether each write is durable when it returns. Metadata that are needed to read the data are then durable too.
    pub(super) sync: bool,
    /// The `O_SYNC` and `O_DSYNC` flags of `open`. They are stored here, because writes are the only later requests that contain these
    /// flags.
    pub(super) sync_flags: i32,
    /// The file for cached I/O. Cached requests may have any position and length.
    pub(super) file: File,
    /// The file with the alignment rules of `O_DIRECT`. The first direct request opens it.
    pub(super) strict: OnceLock<File>,
}

/// An open directory. In replies, the position of an entry is the [cursor](ironmap::fs::DirCursor) after this entry.
pub(super) struct OpenDirectory {
    pub(super) held: Held,
    /// Whether reads do not update the access time.
    pub(super) no_atime: bool,
    pub(super) reading: Mutex<Option<Reading>>,
}

impl OpenDirectory {
    pub(super) fn reading(&self) -> MutexGuard<'_, Option<Reading>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listing in progress. Entries that were read ahead are dropped when a name in the directory is removed. If the listing reported a
/// removed entry, the kernel would cache this entry forever.
pub(super) struct Reading {
    pub(super) listing: Listing,
    /// The [change number of the names](super::nodes::Node::names) at the start of the listing.
    pub(super) names: u64,
    /// The entry that did not fit into the last reply, and the position before this entry.
    pub(super) left: Option<(u64, DirEntry)>,
}

impl Reading {
    /// The position of the next entry.
    pub(super) fn position(&self) -> u64 {
        self.left.as_ref().map_or(self.listing.cursor().to_raw(), |(position, _)| *position)
    }

    /// The next entry, with the positions before and after it.
    pub(super) fn next(&mut self) -> Result<Option<(u64, DirEntry, u64)>> {
        let (before, entry) = match self.left.take() {
            Some(left) => left,
            None => {
                let before = self.listing.cursor().to_raw();
                match self.listing.next().transpose()? {
                    Some(entry) => (before, entry),
                    None => return Ok(None),
                }
            }
        };
        Ok(Some((before, entry, self.listing.cursor().to_raw())))
    }
}

/// The open files or directories, by number.
pub(super) struct Handles<T> {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Arc<T>>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), open: RwLock::default() }
    }
}

impl<T> Handles<T> {
    pub(super) fn insert(&self, file: T) -> fuser::FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.insert(number, Arc::new(file));
        fuser::FileHandle(number)
    }

    /// # Errors
    /// EBADF for an unknown number.
    pub(super) fn get(&self, handle: fuser::FileHandle) -> Result<Arc<T>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&handle.0).map(Arc::clone).ok_or_else(|| Fail::new(Errno::EBADF))
    }

    /// Closes a handle. This may free a file without a name.
    pub(super) fn remove(&self, handle: fuser::FileHandle) {
        let removed = {
            let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
            open.remove(&handle.0)
        };
        drop(removed);
    }

    /// All open files or directories.
    pub(super) fn all(&self) -> Vec<Arc<T>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().map(Arc::clone).collect()
    }

    pub(super) fn any(&self, is_it: impl Fn(&T) -> bool) -> bool {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().any(|open| is_it(open))
    }

    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.open.write().unwrap_or_else(PoisonError::into_inner));
        drop(all);
    }
}
