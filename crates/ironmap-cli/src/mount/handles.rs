//! Open files and directories, by the numbers that the kernel has for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ironmap::Errno;

use super::fail::{Fail, Result};

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
    /// EBADF for a number that was not given out.
    pub(super) fn get(&self, handle: fuser::FileHandle) -> Result<Arc<T>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&handle.0).map(Arc::clone).ok_or(Fail(Errno::EBADF))
    }

    /// Closes it; a file without a name can end with that.
    pub(super) fn remove(&self, handle: fuser::FileHandle) {
        let removed = {
            let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
            open.remove(&handle.0)
        };
        drop(removed);
    }

    /// All that are open now.
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
