//! What is asked of a mount that stays: to be read-only from now on, or no more (`mount -o remount`), and to be durable (`ironmap sync`).
//!
//! The kernel tells a server of neither: it sends FUSE_SYNCFS to few servers, fuser 0.18 does not know that request, and of a remount
//! there is none. So whoever wants either asks for an attribute of the root's.

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

/// An attribute of the root's that is on no volume: who has asked for it, and got it, has everything durable that was written before.
const SYNCED: &str = "system.ironmap.synced";

/// Whether who asks for an attribute asks for that.
pub(super) fn is_sync(mount: &Mount, inode: InodeNo, name: &[u8]) -> bool {
    inode == mount.fs().root() && name == SYNCED.as_bytes()
}

/// `mount -o remount`: whether the mount is read-only, and the flags that every mount has. What else it is like stays as it is.
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

/// Makes everything durable that was written to a mount before, and waits for it: what the kernel has collected too.
pub(crate) fn sync(dir: &Path) -> std::result::Result<(), Failure> {
    let failed = |errno| Failure::host(dir.display(), errno);
    match Daemon::of(dir) {
        Err(Errno::NOTCONN) => return ended(dir),
        served => served.map_err(|errno| not_served(dir, errno))?,
    };
    let root = rustix::fs::open(dir, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let root = root.map_err(failed)?;
    // The kernel sends what it has, times too. It does not wait until pages have arrived.
    rustix::fs::syncfs(&root).map_err(failed)?;
    rustix::fs::fgetxattr(&root, SYNCED, &mut [0; 1]).map_err(failed)?;
    Ok(())
}

/// Whether what is at a path is the root of a volume that ironmap has mounted, or of one whose server was killed.
pub(crate) fn is_mounted(dir: &Path) -> bool {
    match Daemon::of(dir) {
        Err(Errno::NOTCONN) => ended_at(dir).is_ok(),
        daemon => daemon.is_ok(),
    }
}

/// Who waits until everything is durable: one thread serves all of them, since none of those that serve requests may wait for some.
#[derive(Default)]
pub(super) struct Syncs(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    answers: Vec<Answer>,
    /// There is a thread that will look here again.
    served: bool,
}

/// Tells one who waits. Dropped, it says EIO.
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
        // Where there is no thread to be had, what was to run in it is dropped.
        let _ = thread::Builder::new().spawn(move || {
            while let Some(answers) = served.next() {
                let synced = mount.sync_all().map_err(|fail| mount.told(&fail));
                answers.into_iter().for_each(|answer| answer(synced));
            }
        });
    }

    /// Nobody leaves it half changed.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That a thread serves those who wait.
struct Served {
    syncs: Arc<Syncs>,
    /// All were told; whoever comes now has another thread.
    ended: bool,
}

impl Served {
    /// Those who wait now. `None` where there are none, and whoever comes starts another thread.
    fn next(&mut self) -> Option<Vec<Answer>> {
        let mut waiting = self.syncs.lock();
        waiting.served = !waiting.answers.is_empty();
        self.ended = !waiting.served;
        waiting.served.then(|| mem::take(&mut waiting.answers))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It panicked, or there was no thread to be had.
        if !self.ended {
            let mut waiting = self.syncs.lock();
            waiting.served = false;
            waiting.answers.clear();
        }
    }
}

impl Mount {
    /// Waits until what the kernel has is sent, and makes it durable. Behind a remount it is also seen what the kernel has changed.
    pub(super) fn sync_all(&self) -> Result<()> {
        self.wait_for_all_pages();
        let read_only = self.device.get().and_then(|device| is_read_only(*device));
        if let Some(read_only) = read_only {
            self.no_times.store(read_only, Ordering::Relaxed);
        }
        self.sync_directory()
    }
}

/// Whether the kernel takes no changes of a file system. `None` where it is mounted in another namespace.
fn is_read_only((major, minor): (u32, u32)) -> Option<bool> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let table = String::from_utf8_lossy(&table);
    let number = format!("{major}:{minor}");
    let line = table.lines().find(|line| line.split(' ').nth(2) == Some(&number))?;
    let (_, of_file_system) = line.split_once(" - ")?;
    let options = of_file_system.split(' ').nth(2)?;
    Some(options.split(',').any(|option| option == "ro"))
}
