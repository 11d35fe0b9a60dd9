//! The keeper handles the leases of all host files. It has two threads. The watching thread only handles breaks of leases. The other thread
//! acquires leases again.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::changes::Changes;
use super::watches::Watches;
use super::{HostFile, Proof, Refusal};
use crate::error::{Errno, Error, Result};
use crate::sys::lease::{self, Waited, Watch, Watcher};

/// The time from the break of one lease to the check of all leases.
const AFTER_BREAK: Duration = Duration::from_millis(20);
/// The maximum time for which the watching thread sleeps if there are no files. A full signal queue can lose a wake-up, so the time is
/// limited.
const IDLE: Duration = Duration::from_secs(60);

/// The state that the keeper's two threads share with the host files. All host files of a [`Host`](crate::Host) have one keeper.
#[derive(Debug)]
pub struct Keeper {
    proof: Proof,
    changes: Changes,
    watches: Watches,
    /// A reference to the watching thread, for wake-ups and for the signals of the leases. This thread sets the value once, before a file
    /// can use it.
    watcher: OnceLock<Watcher>,
    files: Mutex<Files>,
    plans: Mutex<Plans>,
    planned: Condvar,
    /// The watching thread locks this mutex while it uses a file. A thread that drops a file can thus wait for the watching thread.
    watching: Mutex<()>,
    /// The thread that acquires leases again locks this mutex while it uses a file, for the same reason as `watching`.
    taking: Mutex<()>,
    ended: AtomicBool,
    next: AtomicU64,
    /// The process that runs the threads for the leases. After a fork, the child process does not run these threads.
    process: u32,
}

#[derive(Debug, Default)]
struct Files {
    /// The files that may have a lease, by descriptor.
    open: HashMap<RawFd, Weak<HostFile>>,
    /// Indexes below `indexes` that no file uses.
    free: Vec<u32>,
    indexes: u32,
}

#[derive(Debug, Default)]
struct Plans {
    due: BinaryHeap<Reverse<Plan>>,
    /// The thread that makes the planned attempts to acquire leases; `None` before the first attempt is planned.
    thread: Option<JoinHandle<()>>,
}

/// A planned attempt to acquire a lease again.
#[derive(Debug)]
struct Plan {
    due: Instant,
    file: Weak<HostFile>,
}

impl PartialEq for Plan {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Plan {}

impl PartialOrd for Plan {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Plan {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

/// Ends the threads that handle leases when this value is dropped.
#[derive(Debug)]
pub struct Keeping {
    keeper: Arc<Keeper>,
    watching: Option<JoinHandle<()>>,
}

impl Keeping {
    /// The keeper: the state that its threads share with the host files.
    #[must_use]
    pub fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        if self.keeper.is_foreign() {
            // A forked process does not run the threads that handle leases, so it must not wait for these threads.
            return;
        }
        self.keeper.ended.store(true, Ordering::SeqCst);
        if let (Some(watcher), Some(thread)) = (self.keeper.watcher.get(), self.watching.take()) {
            // A thread that cannot be woken is not joined. The thread has no work, and ends by itself when its wait times out.
            if watcher.wake() {
                let _ = thread.join();
            }
        }
        let thread = {
            let mut plans = self.keeper.plans();
            plans.due.clear();
            plans.thread.take()
        };
        self.keeper.planned.notify_all();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Keeper {
    /// Starts the watching thread.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn start() -> Result<Keeping> {
        let keeper = Arc::new(Self {
            proof: Proof::new(),
            changes: Changes::new(),
            watches: Watches::default(),
            watcher: OnceLock::new(),
            files: Mutex::default(),
            plans: Mutex::default(),
            planned: Condvar::new(),
            watching: Mutex::default(),
            taking: Mutex::default(),
            ended: AtomicBool::new(false),
            next: AtomicU64::new(2),
            process: std::process::id(),
        });
        let (ready, watches) = mpsc::channel();
        let own = Arc::clone(&keeper);
        let watching = spawn("ironmap-lease", move || {
            let watch = Watch::new();
            let _ = own.watcher.set(watch.watcher());
            let told = own.changes.fd().map_or(Ok(()), |changes| watch.watcher().input(changes));
            let _ = ready.send(told);
            own.watch(&watch);
        })?;
        let told = watches.recv();
        let keeping = Keeping { keeper, watching: Some(watching) };
        told.unwrap_or(Err(Errno::EAGAIN)).map_err(|errno| Error::io(errno, "inotify"))?;
        Ok(keeping)
    }

    /// Whether this process was forked from the process that owns the leases. A forked process shares the leases and the watches, but does
    /// not run the keeper's threads. If another thread held a lock during the fork, this lock is never released in the forked process.
    pub(super) fn is_foreign(&self) -> bool {
        self.process != std::process::id()
    }

    /// The time at which all leases were last found unbroken.
    #[must_use]
    #[inline(always)]
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// Returns an even number that this keeper has not returned before. A tenure (a period in which a lease is held) gets its number from
    /// this function.
    pub(super) fn unique(&self) -> u64 {
        self.next.fetch_add(2, Ordering::Relaxed)
    }

    pub(super) fn reserve_index(&self) -> u32 {
        let mut files = self.files();
        files.free.pop().unwrap_or_else(|| {
            files.indexes += 1;
            files.indexes - 1
        })
    }

    /// Registers a file, so that breaks of its lease are handled.
    pub(super) fn register(&self, file: &Arc<HostFile>) {
        let mut files = self.files();
        let first = files.open.is_empty();
        // The time is read while `files` is locked. If `first` is true, no other file is registered at this time, so no lease needs a
        // check. Without the lock, another file could be registered before the time is read. Its lease would then count as checked,
        // although no thread has checked it.
        let begun = Proof::begin();
        files.open.insert(file.file.as_raw_fd(), Arc::downgrade(file));
        drop(files);
        if first {
            // While no file was registered, the watching thread slept and did not check the leases. The last recorded check may therefore
            // be too old. This thread records a new one.
            self.proof.renew(begun);
            self.watcher.get().map(|watcher| watcher.wake());
        }
    }

    pub(super) fn forget(&self, fd: RawFd, index: u32) {
        let mut files = self.files();
        files.open.remove(&fd);
        files.free.push(index);
    }

    pub(super) fn take_lease(&self, file: BorrowedFd<'_>) -> Result<(), Refusal> {
        let watcher = self.watcher.get().ok_or(Refusal::NoLeases(Errno::EINVAL))?;
        watcher.lease(file).map_err(|errno| match errno {
            Errno::EAGAIN => Refusal::Writers,
            Errno::EACCES | Errno::EPERM => Refusal::LeasePermission,
            errno => Refusal::NoLeases(errno),
        })
    }

    /// Handles lease breaks until the program ends this thread. A writer that broke a lease waits until this loop handles the break. So the
    /// loop waits only for the next break, and for nothing else.
    fn watch(&self, watch: &Watch) {
        let mut due = Instant::now() + IDLE;
        while !self.ended.load(Ordering::SeqCst) {
            match watch.wait(due.saturating_duration_since(Instant::now())) {
                Waited::Told(fd) if self.changes.is(fd) => self.answer_changes(),
                Waited::Told(fd) => {
                    let file = self.files().open.get(&fd).cloned();
                    self.look_at(file, answer);
                    // After many simultaneous breaks, the kernel may have dropped signals. So all leases are checked soon after a break.
                    due = due.min(Instant::now() + AFTER_BREAK);
                }
                Waited::Woken | Waited::TimedOut => due = self.prove(),
            }
        }
    }

    fn all(&self) -> Vec<Weak<HostFile>> {
        self.files().open.values().cloned().collect()
    }

    fn look_at(
        &self,
        files: impl IntoIterator<Item = Weak<HostFile>>,
        look: impl Fn(&Arc<HostFile>),
    ) {
        for file in files {
            let _watching = lock(&self.watching);
            file.upgrade().iter().for_each(&look);
        }
    }

    /// Waits until the threads that handle leases have stopped using the files that the program has dropped. These files are then closed,
    /// and their file systems can be unmounted.
    pub fn let_go(&self) {
        if !self.is_foreign() {
            drop(lock(&self.watching));
            drop(lock(&self.taking));
        }
    }

    /// Handles files that were changed without a break of their leases: readers may no longer use the data that they read directly from the
    /// device.
    fn answer_changes(&self) {
        let changed = self.changes.take();
        if changed.is_none() {
            return;
        }
        self.look_at(self.all(), |file| {
            if file.is_changed(&changed) {
                file.break_lease();
            }
        });
    }

    /// Checks all leases, and handles breaks whose signals were lost. Returns the time at which the next check of all leases is due.
    fn prove(&self) -> Instant {
        let begun = Proof::begin();
        self.answer_changes();
        let files = self.all();
        let idle = files.is_empty();
        self.look_at(files, |file| {
            answer(file);
            file.check_flag();
        });
        let interval = self.proof.renew(begun);
        Instant::now() + if idle { IDLE } else { interval }
    }

    /// The inotify watches, which report changes that break no lease.
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The fanotify marks of programs that the kernel asks for permission before a read.
    pub(super) fn watches(&self) -> &Watches {
        &self.watches
    }

    /// Plans an attempt to acquire a lease.
    pub(super) fn plan(self: &Arc<Self>, file: &Arc<HostFile>, due: Instant) {
        if self.ended.load(Ordering::SeqCst) {
            return;
        }
        let mut plans = self.plans();
        plans.due.push(Reverse(Plan { due, file: Arc::downgrade(file) }));
        if plans.thread.is_none() {
            let own = Arc::clone(self);
            // If the thread cannot be started, the lease is not acquired again, and all reads of the file go through the kernel.
            plans.thread = spawn("ironmap-retake", move || own.carry_out()).ok();
        }
        drop(plans);
        self.planned.notify_one();
    }

    /// Makes the planned attempts to acquire leases, until the program ends this thread. An attempt may wait for the device, so the
    /// watching thread must not make attempts.
    fn carry_out(&self) {
        let mut plans = self.plans();
        while !self.ended.load(Ordering::SeqCst) {
            let now = Instant::now();
            plans = match plans.due.peek() {
                Some(Reverse(plan)) if plan.due <= now => {
                    let plan = plans.due.pop();
                    drop(plans);
                    if let Some(Reverse(plan)) = plan {
                        let _taking = lock(&self.taking);
                        plan.file.upgrade().iter().for_each(HostFile::retake);
                    }
                    self.plans()
                }
                Some(Reverse(plan)) => {
                    let left = plan.due - now;
                    let waited = self.planned.wait_timeout(plans, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.planned.wait(plans).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        lock(&self.files)
    }

    fn plans(&self) -> MutexGuard<'_, Plans> {
        lock(&self.plans)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handles a break of a file's lease, if the kernel is breaking this lease.
fn answer(file: &Arc<HostFile>) {
    // A signal may be outdated. The descriptor's number may have belonged to another file, or the lease was acquired again.
    if file.holds.load(Ordering::SeqCst) && !lease::stands(file.file.as_fd()) {
        file.break_lease();
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let failed = |error: std::io::Error| {
        Error::io(Errno(error.raw_os_error().unwrap_or(Errno::EAGAIN.0)), format!("thread {name}"))
    };
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(failed)
}
