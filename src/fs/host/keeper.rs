//! The keeper of all leases: a thread that answers their breaks and does nothing else, and one that takes them again.

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

/// How long after a break all leases are looked at.
const AFTER_BREAK: Duration = Duration::from_millis(20);
/// How long the thread sleeps without files: a wake-up may get lost if there is no space for its signal.
const IDLE: Duration = Duration::from_secs(60);

/// The state that the threads that keep leases share with the files. There is one for all host files of a [`Host`](crate::Host).
#[derive(Debug)]
pub struct Keeper {
    proof: Proof,
    changes: Changes,
    watches: Watches,
    /// Set once by the thread that watches, before anyone else has the keeper.
    watcher: OnceLock<Watcher>,
    files: Mutex<Files>,
    plans: Mutex<Plans>,
    planned: Condvar,
    /// Had by the thread that watches while it has a file.
    watching: Mutex<()>,
    /// Had by the thread that takes leases again while it has a file.
    taking: Mutex<()>,
    ended: AtomicBool,
    next: AtomicU64,
    /// Whose threads keep the leases.
    process: u32,
}

#[derive(Debug, Default)]
struct Files {
    /// The files that may have a lease, by descriptor.
    open: HashMap<RawFd, Weak<HostFile>>,
    /// Which indexes are free below `indexes`.
    free: Vec<u32>,
    indexes: u32,
}

#[derive(Debug, Default)]
struct Plans {
    due: BinaryHeap<Reverse<Plan>>,
    /// The thread that carries them out, once there was one.
    thread: Option<JoinHandle<()>>,
}

/// A lease that is to be taken again.
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

/// Ends the threads of a keeper when it is dropped.
#[derive(Debug)]
pub struct Keeping {
    keeper: Arc<Keeper>,
    watching: Option<JoinHandle<()>>,
}

impl Keeping {
    /// The keeper.
    #[must_use]
    pub fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        if self.keeper.is_foreign() {
            // There are no such threads to wait for.
            return;
        }
        self.keeper.ended.store(true, Ordering::SeqCst);
        if let (Some(watcher), Some(thread)) = (self.keeper.watcher.get(), self.watching.take()) {
            // Else it ends by itself, and there is nothing left for it to do.
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
    /// Starts the thread that watches.
    ///
    /// # Errors
    /// `Io` where there can be no more threads.
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

    /// Whether this process was forked from the one that has the leases. It shares them, and what watches the files, but has none of
    /// the threads, and whatever lock one of them had then is never free again.
    pub(super) fn is_foreign(&self) -> bool {
        self.process != std::process::id()
    }

    /// When the leases were last known to stand.
    #[must_use]
    #[inline(always)]
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// An even number that was never given before.
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

    /// From now on the file is notified of breaks.
    pub(super) fn register(&self, file: &Arc<HostFile>) {
        let mut files = self.files();
        let first = files.open.is_empty();
        // Before the next one, whose lease this would prove else, can be registered.
        let begun = Proof::begin();
        files.open.insert(file.file.as_raw_fd(), Arc::downgrade(file));
        drop(files);
        if first {
            // The thread has slept without proving anything, since there was nothing to prove.
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

    /// Answers breaks until the end. Nothing in it waits for anything but the next break: as long as it does, writers wait.
    fn watch(&self, watch: &Watch) {
        let mut due = Instant::now() + IDLE;
        while !self.ended.load(Ordering::SeqCst) {
            match watch.wait(due.saturating_duration_since(Instant::now())) {
                Waited::Told(fd) if self.changes.is(fd) => self.answer_changes(),
                Waited::Told(fd) => {
                    let file = self.files().open.get(&fd).cloned();
                    self.look_at(file, answer);
                    // Where many are broken at once, the kernel may have had no room for all signals.
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

    /// Waits until no thread has a file that its user has let go: it is closed then, and its file system can be unmounted.
    pub fn let_go(&self) {
        if !self.is_foreign() {
            drop(lock(&self.watching));
            drop(lock(&self.taking));
        }
    }

    /// Ends the tenures of files that were changed though their leases stand.
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

    /// Looks at all leases; those that are being broken, but whose signal got lost, are answered. Gives the time at which the next
    /// proof is due.
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

    /// Reports changes that break no lease.
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The marks of programs that the kernel asks before a read.
    pub(super) fn watches(&self) -> &Watches {
        &self.watches
    }

    /// Plans to take a lease again.
    pub(super) fn plan(self: &Arc<Self>, file: &Arc<HostFile>, due: Instant) {
        if self.ended.load(Ordering::SeqCst) {
            return;
        }
        let mut plans = self.plans();
        plans.due.push(Reverse(Plan { due, file: Arc::downgrade(file) }));
        if plans.thread.is_none() {
            let own = Arc::clone(self);
            // Without it the kernel goes on serving the file.
            plans.thread = spawn("ironmap-retake", move || own.carry_out()).ok();
        }
        drop(plans);
        self.planned.notify_one();
    }

    /// Takes leases again until the end. It may wait for the device, which is why it is not the thread that watches.
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

/// Lets the lease of a file go whose tenure is over for the kernel.
fn answer(file: &Arc<HostFile>) {
    // A signal may be old: the descriptor's number was another file's, or the lease was taken again since.
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
