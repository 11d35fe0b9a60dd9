//! Serves two requests to a running mount. `mount -o remount` makes the mount read-only or writable. `ironmap sync` makes the data durable.
//!
//! The kernel does not pass these two requests to this server. The protocol has no request for a remount. The kernel sends FUSE_SYNCFS only
//! to some kinds of servers, and fuser 0.18 does not support it. Therefore both commands read an extended attribute of the root. The read
//! makes the server act.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, mem, thread};

use ironmap::units::InodeNo;
use ironmap_image::Failure;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::fail::Result;
use super::unmount::{Daemon, ended, ended_at, not_served};
use super::{Mount, Options};

/// An extended attribute of the root. The volume does not contain it. When a program has read the attribute, all earlier writes of the
/// program are on the device.
const SYNCED: &str = "system.ironmap.synced";

/// Whether a request for an attribute is the request to sync.
pub(super) fn is_sync(mount: &Mount, inode: InodeNo, name: &[u8]) -> bool {
    inode == mount.fs().root() && name == SYNCED.as_bytes()
}

/// `mount -o remount`: makes the mount read-only or writable, and changes the flags that every mount has. Other properties stay the same.
pub(super) fn run(dir: &Path, options: &Options) -> std::result::Result<(), Failure> {
    let failed = |errno| Failure::host(dir.display(), errno);
    if !Daemon::serving(dir)?.writes && options.read_only == Some(false) {
        let place = dir.display();
        return Err(Failure::new(format!(
            "{place}: the volume is open for reading only: unmount it, and mount it for writing"
        )));
    }
    let now = rustix::fs::statvfs(dir).map_err(failed)?.f_flag;
    rustix::mount::mount_remount(dir, options.for_remount(now), "").map_err(failed)?;
    sync(dir)
}

/// Makes all earlier writes to a mount durable, including data in the kernel's page cache. Returns when they are durable.
pub(crate) fn sync(dir: &Path) -> std::result::Result<(), Failure> {
    let failed = |errno| Failure::host(dir.display(), errno);
    match Daemon::of(dir) {
        Err(Errno::NOTCONN) => return ended(dir),
        served => served.map_err(|errno| not_served(dir, errno))?,
    };
    let root = rustix::fs::open(dir, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let root = root.map_err(failed)?;
    // The kernel sends its cached data and times. It does not wait until pages are written.
    rustix::fs::syncfs(&root).map_err(failed)?;
    rustix::fs::fgetxattr(&root, SYNCED, &mut [0; 1]).map_err(failed)?;
    Ok(())
}

/// Whether a path is the root of a mount of ironmap. The server of the mount may have been killed.
pub(crate) fn is_mounted(dir: &Path) -> bool {
    match Daemon::of(dir) {
        Err(Errno::NOTCONN) => ended_at(dir).is_ok(),
        daemon => daemon.is_ok(),
    }
}

/// The requests that wait for a sync. One separate thread serves all of them. A thread of the pool must not wait for other requests.
#[derive(Default)]
pub(super) struct Syncs(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    answers: Vec<Answer>,
    /// Whether a thread is running. The thread also serves requests that arrive later.
    served: bool,
}

/// Replies to a request for a sync. If the function is dropped without a call, the reply is EIO.
type Answer = Box<dyn FnOnce(std::result::Result<(), fuser::Errno>) + Send>;

impl Syncs {
    pub(super) fn ask(self: &Arc<Self>, mount: &Arc<Mount>, answer: Answer) {
        let mut waiting = self.lock();
        waiting.answers.push(answer);
        if waiting.served {
            return;
        }
        waiting.served = true;
        drop(waiting);
        let mut served = Served { syncs: Arc::clone(self), ended: false };
        let mount = Arc::clone(mount);
        // If no thread can be started, the closure is dropped. The requests that wait then fail.
        let _ = thread::Builder::new().spawn(move || {
            while let Some(answers) = served.next() {
                let synced = mount.sync_all().map_err(|fail| mount.report(&fail));
                answers.into_iter().for_each(|answer| answer(synced));
            }
        });
    }

    /// Locks the waiting requests. A panic cannot leave them inconsistent, so a poisoned lock is ignored.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that serves waiting requests.
struct Served {
    syncs: Arc<Syncs>,
    /// Whether the thread has served all requests. If so, a later request starts another thread.
    ended: bool,
}

impl Served {
    /// Returns the requests that wait. If no request waits, returns `None`, and the thread ends. A later request then starts another
    /// thread.
    fn next(&mut self) -> Option<Vec<Answer>> {
        let mut waiting = self.syncs.lock();
        waiting.served = !waiting.answers.is_empty();
        self.ended = !waiting.served;
        waiting.served.then(|| mem::take(&mut waiting.answers))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // If `ended` is false, the thread has panicked or could not be started.
        if !self.ended {
            let mut waiting = self.syncs.lock();
            waiting.served = false;
            waiting.answers.clear();
        }
    }
}

impl Mount {
    /// Waits until the kernel has sent its dirty pages, and makes all data durable. Also checks whether a remount has made the mount
    /// read-only or writable.
    pub(super) fn sync_all(&self) -> Result<()> {
        self.wait_for_all_pages();
        let read_only = self.device.get().and_then(|device| is_read_only(*device));
        if let Some(read_only) = read_only {
            self.no_times.store(read_only, Ordering::Relaxed);
        }
        self.sync_directory()
    }
}

/// Whether the kernel refuses changes of a file system. `None` if the file system is mounted only in another mount namespace.
fn is_read_only((major, minor): (u32, u32)) -> Option<bool> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let table = String::from_utf8_lossy(&table);
    let number = format!("{major}:{minor}");
    let line = table.lines().find(|line| line.split(' ').nth(2) == Some(&number))?;
    let (_, of_file_system) = line.split_once(" - ")?;
    let options = of_file_system.split(' ').nth(2)?;
    Some(options.split(',').any(|option| option == "ro"))
}
