//! Files of a file system that the kernel has mounted. While a lease protects a file, its data are read raw, directly from the block
//! device.
//!
//! # Why it is safe
//!
//! The kernel grants a **read lease** (`F_SETLEASE`, `F_RDLCK`) only while no process has the file open or mapped for writing. A process
//! that opens the file for writing, or truncates the file, must wait until the lease is released. ironmap first acquires the lease. Then
//! the kernel writes the data back, and FIEMAP returns the map. Therefore the map stays valid while the lease is held.
//!
//! A read is **trusted only if the lease was held until the read completed**. Each tenure of a lease has a number ([`Tenure`]). A reader
//! loads the number before and after the read. When a lease is broken, the number changes before the lease is released. The reader then
//! discards the data and repeats the read through the kernel. Therefore the lease can be released without waiting for reads in flight. A
//! writer waits only until one thread wakes up. It does not wait for readers, because a reader might not return to its queue for a long
//! time.
//!
//! The kernel removes a broken lease by force after `/proc/sys/fs/lease-break-time`. If this process is stopped for that long, the number
//! is still unchanged when the process runs again. Therefore the keeper checks all leases at intervals much shorter than that time. A
//! reader trusts its data only if the last successful check, the [proof](Proof), is recent.
//!
//! Two changes do not break a read lease: an open for reading with `O_TRUNC`, and a truncation through an overlay above the file. An
//! inotify watch reports these changes, but only afterwards. Until the thread that handles the event has run, a reader can get the previous
//! content of the file.
//!
//! Sources: `fcntl(2)`, `inotify(7)`, `ioctl_fiemap`, Linux's Documentation/filesystems/{fiemap,locking}.rst.

mod attributes;
mod changes;
mod checks;
mod keeper;
mod map;
mod proof;
mod refusal;
mod tenure;
mod watches;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FileType as OsFileType, Mode, OFlags};
use rustix::io::Errno as OsErrno;

pub(crate) use self::attributes::metadata;
pub use self::checks::HostFs;
pub use self::keeper::{Keeper, Keeping};
pub use self::map::{Beneath, HostMap};
pub use self::proof::Proof;
pub use self::refusal::Refusal;
pub use self::tenure::Tenure;

use self::changes::{Changed, Changes};
use self::checks::Facts;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::lease;
use crate::units::{BlockSize, InodeNo};

/// If a lease was held for less than this time, the delay before the next attempt to acquire it doubles.
const SHORT: Duration = Duration::from_secs(1);
/// The delay between a break and the next attempt to acquire the lease: the minimum and the maximum.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(10));

/// A file of a mounted file system, with its descriptor and its lease. While the lease is held, the map of the file is stored too.
#[derive(Debug)]
pub struct HostFile {
    file: File,
    path: PathBuf,
    facts: Facts,
    block: BlockSize,
    assume_no_dedupe: bool,
    /// The underlying device, or the reason why the device is unknown.
    beneath: Result<Beneath, Refusal>,
    /// The index of the file among all open host files.
    index: u32,
    keeper: Arc<Keeper>,
    tenure: Arc<Tenure>,
    status: Mutex<Status>,
    /// Whether the file has a lease. While the program reads the file's map, the file already has the lease, but is not read raw yet.
    holds: AtomicBool,
    /// The inotify watch, which reports changes that break no lease.
    watch: AtomicI32,
    /// Whether a read of the file went through the kernel since the last attempt to acquire the lease.
    wanted: AtomicBool,
    /// Whether no attempt to acquire the lease is planned. If so, the next read through the kernel plans an attempt.
    dormant: AtomicBool,
}

/// How the file is read at present (from the block device, or through the kernel), and the reason.
#[derive(Clone, Debug)]
pub struct Status {
    /// The map, while the lease is held.
    pub map: Option<Arc<HostMap>>,
    /// The reason why the file is read through the kernel; `None` while it is read from the block device.
    pub refusal: Option<Refusal>,
    /// The number of broken leases.
    pub breaks: u64,
    since: Instant,
    backoff: Duration,
}

impl HostFile {
    /// Opens a regular file for reading, and acquires the lease if possible. `beneath` finds the device for a device number (major and
    /// minor).
    ///
    /// # Errors
    /// The errors of opening a file; `WrongFileType` and `IsADirectory`. A file that only the kernel can read is not an error.
    pub fn open(
        path: &Path,
        assume_no_dedupe: bool,
        keeper: &Arc<Keeper>,
        beneath: impl FnOnce(u32, u32) -> Result<Beneath, Refusal>,
    ) -> Result<Arc<Self>> {
        let named = |errno| Error::io(errno, path.display().to_string());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        let open = |flags| rustix::fs::open(path, flags, Mode::empty());
        // The first open has NONBLOCK, because an open of a FIFO without a writer would block. If the open fails because another process
        // has a write lease, the file is opened again without NONBLOCK. That open waits until the write lease is released.
        let file = match open(flags | OFlags::NONBLOCK) {
            Err(OsErrno::AGAIN) => open(flags),
            opened => opened,
        };
        let file = file.map_err(named)?;
        let file = File::from(file);
        let facts = Facts::of(file.as_fd()).map_err(named)?;
        match OsFileType::from_raw_mode(facts.statx.stx_mode.into()) {
            OsFileType::RegularFile => {}
            OsFileType::Directory => {
                return Err(Error::new(ErrorKind::IsADirectory, "is a directory"));
            }
            _ => return Err(Error::new(ErrorKind::WrongFileType, "is not a regular file")),
        }
        let checked = checks::refuse(file.as_fd(), &facts, assume_no_dedupe);
        let (major, minor) = (facts.statx.stx_dev_major, facts.statx.stx_dev_minor);
        let beneath = checked.and_then(|()| beneath(major, minor));
        let block = rustix::fs::fstatfs(&file).map_err(named)?.f_bsize as u64;
        let shift = block.checked_ilog2().filter(|shift| block == 1 << shift);
        let block = shift.and_then(|shift| BlockSize::from_shift(shift as u8));
        let host_file = Arc::new(Self {
            path: path.to_owned(),
            facts,
            block: block.unwrap_or(PAGE),
            assume_no_dedupe,
            beneath: beneath.and_then(|beneath| block.map(|_| beneath).ok_or(Refusal::Unaligned)),
            index: keeper.reserve_index(),
            keeper: Arc::clone(keeper),
            tenure: Arc::new(Tenure::new(keeper.unique())),
            status: Mutex::new(Status {
                map: None,
                refusal: None,
                breaks: 0,
                since: Instant::now(),
                backoff: BACKOFF.0,
            }),
            holds: AtomicBool::new(false),
            watch: AtomicI32::new(Changes::NONE),
            wanted: AtomicBool::new(false),
            dormant: AtomicBool::new(false),
            file,
        });
        if host_file.beneath.is_ok() {
            keeper.register(&host_file);
        }
        host_file.take();
        Ok(host_file)
    }

    /// The path that was passed to [`open`](Self::open).
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor, opened for reading through the page cache.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The inode number.
    #[must_use]
    pub fn inode(&self) -> InodeNo {
        InodeNo(self.facts.statx.stx_ino)
    }

    /// The file system, if its files can be read raw.
    #[must_use]
    pub fn fs(&self) -> Option<HostFs> {
        self.facts.fs().ok()
    }

    /// The number of the device that contains the file system: major and minor.
    #[must_use]
    pub fn device(&self) -> (u32, u32) {
        (self.facts.statx.stx_dev_major, self.facts.statx.stx_dev_minor)
    }

    /// The block size of the file system.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block
    }

    /// The index of the file among all open host files. It is a small number. After the file is dropped, the index is reused.
    #[must_use]
    #[inline(always)]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The number of the lease's tenure, which is a period in which the lease is held without interruption.
    #[must_use]
    #[inline(always)]
    pub fn tenure(&self) -> &Arc<Tenure> {
        &self.tenure
    }

    /// How the file is read at present: from the block device, or through the kernel.
    #[must_use]
    pub fn status(&self) -> Status {
        self.lock().clone()
    }

    /// The map that was read in this tenure of the lease. `None` if the tenure has ended.
    #[must_use]
    pub fn map_of(&self, tenure: u64) -> Option<Arc<HostMap>> {
        let status = self.lock();
        status.map.clone().filter(|_| self.tenure.current() == tenure)
    }

    /// Makes all further reads of the file go through the kernel, for a reason that the device layer detected.
    pub fn refuse(&self, refusal: Refusal) {
        self.end_tenure(|status| status.refusal = Some(refusal));
    }

    /// Records that a read went through the kernel because the file has no lease, so that the lease is acquired again.
    pub fn want(self: &Arc<Self>) {
        if !self.wanted.load(Ordering::Relaxed) {
            self.wanted.store(true, Ordering::SeqCst);
            if self.dormant.swap(false, Ordering::SeqCst) {
                self.keeper.plan(self, Instant::now());
            }
        }
    }

    /// Tries to acquire the lease, and plans the next attempt if a writer prevents the acquisition. Two attempts never run concurrently.
    /// The thread that opens the file makes the first attempt, and one other thread makes all later attempts.
    fn take(self: &Arc<Self>) {
        let before = {
            // A thread that handles a lease break locks the status until it has released the lease. Without the lock here, that thread
            // could release the new lease instead of the old lease.
            let _status = self.lock();
            self.tenure.current()
        };
        if Tenure::is_raw(before) {
            return;
        }
        let refusal = match self.try_take() {
            Ok(map) => {
                let mut status = self.lock();
                // Raw reads may begin only if the lease was not broken while the map was read. The map is stored first, because readers use
                // it as soon as `begin` succeeds.
                status.map = Some(Arc::new(map));
                if self.tenure.begin(before, self.keeper.unique()) {
                    (status.refusal, status.since) = (None, Instant::now());
                    return;
                }
                status.map = None;
                Refusal::Broken
            }
            Err(refusal) => refusal,
        };
        self.let_go();
        let due = {
            let mut status = self.lock();
            status.backoff = (status.backoff * 2).min(BACKOFF.1);
            let due = refusal.is_temporary().then(|| Instant::now() + status.backoff);
            status.refusal = Some(refusal);
            due
        };
        if let Some(due) = due {
            self.keeper.plan(self, due);
        }
    }

    fn try_take(&self) -> Result<HostMap, Refusal> {
        let beneath = self.beneath.as_ref().map_err(Clone::clone)?;
        self.keeper.watches().refuse(&self.facts.statx)?;
        self.keeper.take_lease(self.file.as_fd())?;
        self.holds.store(true, Ordering::SeqCst);
        let changes = self.keeper.changes();
        let failed = |errno| Refusal::Failed("inotify", errno);
        changes.watch(self.file.as_fd(), &self.watch).map_err(failed)?;
        // The thread that handles lease breaks ignores a file whose `holds` is not set. If the lease was broken before `holds` was set, the
        // break was not handled. So the lease is checked here.
        if !lease::stands(self.file.as_fd()) {
            return Err(Refusal::Broken);
        }
        // From here on no process writes, so the following checks stay valid.
        let facts =
            Facts::of(self.file.as_fd()).map_err(|errno| Refusal::Failed("statx", errno.into()))?;
        checks::refuse(self.file.as_fd(), &facts, self.assume_no_dedupe)?;
        checks::sync(&self.file)?;
        // The file system may have grown since the file was opened, so the device's size is read again.
        let (major, minor) = self.device();
        let size = checks::device_size(major, minor).unwrap_or(0).max(beneath.size);
        let beneath = Beneath { size, ..*beneath };
        HostMap::read(self.file.as_fd(), facts.statx.stx_size, self.block, &beneath)
    }

    /// Raw reads of some files rely on the immutable flag. If the flag was removed, this function makes all reads of the file go through
    /// the kernel. No event reports the removal of the flag.
    fn check_flag(&self) {
        let xfs = self.facts.fs() == Ok(HostFs::Xfs);
        let relies = xfs && !self.assume_no_dedupe && self.facts.is_immutable();
        // While the flag is set, other checks are omitted, because they can wait for locks of XFS.
        if relies
            && self.holds.load(Ordering::SeqCst)
            && let Ok(now) = self.facts.now(self.file.as_fd())
            && !now.is_immutable()
            && let Err(refusal) = checks::refuse(self.file.as_fd(), &now, false)
        {
            self.refuse(refusal);
        }
    }

    /// Whether the file was truncated while its lease is held or being acquired.
    fn is_changed(&self, changed: &Changed) -> bool {
        self.holds.load(Ordering::SeqCst) && changed.has(self.watch.load(Ordering::SeqCst))
    }

    fn let_go(&self) {
        self.holds.store(false, Ordering::SeqCst);
        lease::release(self.file.as_fd());
    }

    /// Handles a break of the lease: readers discard the data of raw reads in flight, the lease is released, and the waiting writer
    /// continues.
    fn break_lease(self: &Arc<Self>) {
        let mut due = None;
        self.end_tenure(|status| {
            status.breaks += 1;
            status.refusal = Some(Refusal::Broken);
            let short = status.since.elapsed() < SHORT;
            status.backoff = if short { (status.backoff * 2).min(BACKOFF.1) } else { BACKOFF.0 };
            due = Some(Instant::now() + status.backoff);
        });
        if let Some(due) = due {
            self.keeper.plan(self, due);
        }
    }

    fn end_tenure(&self, update: impl FnOnce(&mut Status)) {
        let mut status = self.lock();
        self.tenure.end(self.keeper.unique());
        // The status must be up to date before the waiting writer continues. The map is freed afterwards. So the writer does not wait for
        // the deallocation.
        update(&mut status);
        let map = status.map.take();
        self.let_go();
        drop(status);
        drop(map);
    }

    /// Makes a planned attempt to acquire the lease. If no read went through the kernel since the last attempt, the file is not in use, and
    /// the lease is not acquired.
    fn retake(self: &Arc<Self>) {
        if self.wanted.swap(false, Ordering::SeqCst) {
            return self.take();
        }
        self.dormant.store(true, Ordering::SeqCst);
        // A reader may have set `wanted` before this store. It then found `dormant` false and planned no attempt, so this function plans
        // the attempt.
        if self.wanted.load(Ordering::SeqCst) && self.dormant.swap(false, Ordering::SeqCst) {
            self.keeper.plan(self, Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The block size to assume for a file system that reports none.
const PAGE: BlockSize = match BlockSize::from_shift(12) {
    Some(size) => size,
    None => panic!("4 KiB is a valid block size"),
};

impl Drop for HostFile {
    fn drop(&mut self) {
        if self.keeper.is_foreign() {
            return;
        }
        self.keeper.forget(self.file.as_raw_fd(), self.index);
        // The lease is released explicitly. A close of the file does not release it if a forked process still has the file open.
        self.let_go();
        self.keeper.changes().forget(*self.watch.get_mut());
    }
}
