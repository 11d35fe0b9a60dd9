//! Changes that do not break a read lease: an open for *reading* with `O_TRUNC`, and a truncation through an overlay above the file. Linux
//! breaks a read lease in two cases: the file is opened for writing, or `truncate(2)` is called on the file itself.
//!
//! Therefore each file that is read raw (directly from the block device) also has an inotify watch. The thread that handles broken leases
//! also gets the events of the watch. An event arrives only after the change, because a truncation does not wait for inotify. Until the
//! thread runs, a reader can get the previous content. The freed blocks cannot belong to another file before the journal of the file system
//! commits. So a reader never gets data of another file.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use crate::error::Errno;

/// The inotify watches and their events. All handles of an inode share one watch. A watch ends with its first event.
#[derive(Debug)]
pub(super) struct Changes {
    /// The inotify instance, or the error of its creation. The kernel limits the number of instances of a user. Without an instance, no
    /// file is read raw, and each file reports this error.
    inotify: Result<OwnedFd, Errno>,
    /// The number of files for each watch.
    watches: Mutex<HashMap<i32, u32>>,
}

/// The changed files.
pub(super) enum Changed {
    All,
    Watched(HashSet<i32>),
}

impl Changed {
    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::Watched(watches) if watches.is_empty())
    }

    pub(super) fn has(&self, watch: i32) -> bool {
        match self {
            Self::All => true,
            Self::Watched(watches) => watches.contains(&watch),
        }
    }
}

impl Changes {
    /// The watch number of a file that has no watch.
    pub(super) const NONE: i32 = -1;

    pub(super) fn new() -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        Self { inotify: inotify.map_err(Errno::from), watches: Mutex::default() }
    }

    pub(super) fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.inotify.as_ref().map(AsFd::as_fd).map_err(|errno| *errno)
    }

    /// Starts to watch a file. `own` receives the watch number.
    pub(super) fn watch(&self, file: BorrowedFd<'_>, own: &AtomicI32) -> Result<(), Errno> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut watches = self.lock();
        let flags = WatchFlags::MODIFY | WatchFlags::ONESHOT;
        let watch = inotify::add_watch(self.fd()?, path, flags)?;
        // The number is set before the lock is released, because the thread that handles an event finds the file by this number.
        let before = own.swap(watch, Ordering::SeqCst);
        if watch != before {
            *watches.entry(watch).or_default() += 1;
            self.leave(&mut watches, before);
        }
        Ok(())
    }

    pub(super) fn forget(&self, watch: i32) {
        self.leave(&mut self.lock(), watch);
    }

    fn leave(&self, watches: &mut HashMap<i32, u32>, watch: i32) {
        let Some(files) = watches.get_mut(&watch) else { return };
        *files -= 1;
        if *files == 0 {
            watches.remove(&watch);
            // The removal fails if an event has already ended the watch.
            let _ = self.fd().map(|inotify| inotify::remove_watch(inotify, watch));
        }
    }

    /// Reads the pending events and returns the changed files.
    pub(super) fn take(&self) -> Changed {
        let _watches = self.lock();
        let mut memory = [MaybeUninit::uninit(); 4096];
        let mut watches = HashSet::new();
        let Ok(inotify) = self.fd() else { return Changed::Watched(watches) };
        let mut reader = Reader::new(inotify, &mut memory);
        // The read fails if there is no further event.
        while let Ok(event) = reader.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                return Changed::All;
            }
            if event.events().contains(ReadFlags::MODIFY) {
                watches.insert(event.wd());
            }
        }
        Changed::Watched(watches)
    }

    pub(super) fn is(&self, fd: RawFd) -> bool {
        self.fd().is_ok_and(|inotify| inotify.as_raw_fd() == fd)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, u32>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
