//! The change that no lease holds up: an open for *reading* with `O_TRUNC`, and a truncate through an overlay above the file. Linux
//! breaks a read lease only for an open for writing and for `truncate(2)` of the file itself.
//!
//! Each file that is read raw is watched by inotify. The watching thread is notified as for a lease, but only afterwards: a truncation
//! does not wait. Until the thread runs, a reader can get the previous content. It takes a commit of the file system's journal before
//! the blocks can be another file's.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use crate::error::Errno;

/// The events that inotify watches. A watch is one for all handles of an inode, and ends with its first event.
#[derive(Debug)]
pub(super) struct Changes {
    /// Users may have few of these. Without one no file is read raw, and each says so.
    inotify: Result<OwnedFd, Errno>,
    /// How many files there are to each watch.
    watches: Mutex<HashMap<i32, u32>>,
}

/// The files that were changed.
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
    /// No file's watch.
    pub(super) const NONE: i32 = -1;

    pub(super) fn new() -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        Self { inotify: inotify.map_err(Errno::from), watches: Mutex::default() }
    }

    pub(super) fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.inotify.as_ref().map(AsFd::as_fd).map_err(|errno| *errno)
    }

    /// Watches a file from now on. `own` is its watch.
    pub(super) fn watch(&self, file: BorrowedFd<'_>, own: &AtomicI32) -> Result<(), Errno> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut watches = self.lock();
        let flags = WatchFlags::MODIFY | WatchFlags::ONESHOT;
        let watch = inotify::add_watch(self.fd()?, path, flags)?;
        // Before the lock is free: the thread that takes an event of this watch must find its file.
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
            // It fails where there was an event.
            let _ = self.fd().map(|inotify| inotify::remove_watch(inotify, watch));
        }
    }

    /// Takes the events.
    pub(super) fn take(&self) -> Changed {
        let _watches = self.lock();
        let mut memory = [MaybeUninit::uninit(); 4096];
        let mut watches = HashSet::new();
        let Ok(inotify) = self.fd() else { return Changed::Watched(watches) };
        let mut reader = Reader::new(inotify, &mut memory);
        // Without an event it fails.
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
