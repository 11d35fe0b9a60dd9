//! Ends a mount without an unmount by the user: after a signal, or because the volume cannot be served.
//!
//! The connection to the kernel always ends first. After that, no request arrives, and the loop that reads requests ends as after an
//! unmount. The volume is closed after this loop, so no request uses a closed volume.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::mount::UnmountFlags;

use super::unmount::unmount;
use crate::failure::print;

/// The maximum time to wait for the dirty pages of the kernel. A program can dirty pages faster than the device stores them. A wait without
/// a limit might never end.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct End {
    dir: PathBuf,
    /// The device number of the mounted file system.
    device: (u32, u32),
    connection: Arc<OnceLock<OwnedFd>>,
    /// Whether this program has ended the connection.
    is_cut: AtomicBool,
}

impl End {
    /// Prepares the end of a new mount at `dir`. Stores the device number and the connection, which the end needs.
    pub(super) fn of(dir: &Path, connection: Arc<OnceLock<OwnedFd>>) -> rustix::io::Result<Self> {
        Ok(Self {
            dir: dir.to_owned(),
            device: device(dir)?,
            connection,
            is_cut: AtomicBool::new(false),
        })
    }

    /// The kernel's device number of the file system.
    pub(super) fn device(&self) -> (u32, u32) {
        self.device
    }

    /// Unmounts, by force if the mount is in use. First, `wait_for_pages` waits until the kernel has sent the data that programs have
    /// written. After the unmount, programs that still use open files get ENOTCONN.
    pub(super) fn by_signal(&self, wait_for_pages: impl FnOnce() + Send + 'static) {
        let is_free = self.is_connected() && self.is_there() && {
            flush(&self.dir);
            unmount(&self.dir, UnmountFlags::empty()).is_ok()
        };
        if !is_free && self.is_connected() {
            within(PATIENCE, wait_for_pages);
        }
        self.cut();
    }

    /// Ends the connection if it still exists.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        if self.is_connected() && self.is_there() {
            // If the superuser has made the mount, this call aborts the connection. Otherwise, it only detaches the mount from its
            // directory.
            let _ = unmount(&self.dir, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
        if self.is_connected() {
            let abort = format!("/sys/fs/fuse/connections/{}/abort", self.device.1);
            let _ = fs::write(abort, "1");
        }
        if self.is_connected() {
            // Requests may still arrive, so the volume must not be closed. The volume stays as after a crash. The next mount recovers the
            // journal.
            print(format_args!(
                "{}: the mount is in use and the FUSE connection cannot be aborted, so the volume is not closed",
                self.dir.display()
            ));
            process::exit(1);
        }
    }

    /// Returns the result of the server. If this program has ended the connection, an aborted connection is a success.
    pub(super) fn served(&self, served: io::Result<()>) -> io::Result<()> {
        let is_abort = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionAborted;
        match served {
            Err(error) if is_abort(&error) && self.is_cut.load(Ordering::Acquire) => Ok(()),
            served => served,
        }
    }

    /// Whether the kernel may still send requests. During this time, the kernel does not reuse the device number for another file system.
    fn is_connected(&self) -> bool {
        let Some(connection) = self.connection.get() else { return false };
        let mut fds = [PollFd::new(connection, PollFlags::empty())];
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        !fds[0].revents().contains(PollFlags::ERR)
    }

    /// Whether this file system is still mounted at the directory. Another program may have unmounted it, or mounted another file system
    /// over it.
    fn is_there(&self) -> bool {
        device(&self.dir) == Ok(self.device)
    }
}

/// The device number of the file system that is mounted at a directory. The call sends no request to the server of the mount.
fn device(dir: &Path) -> rustix::io::Result<(u32, u32)> {
    let stat = rustix::fs::statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// Runs `work` in another thread. Returns when `work` has ended, but not later than after `time`.
fn within(time: Duration, work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = channel();
    let work = move || {
        work();
        let _ = done.send(());
    };
    if thread::Builder::new().spawn(work).is_ok() {
        let _ = is_done.recv_timeout(time);
    }
}

/// Makes the kernel send its dirty pages, and does not wait for the replies.
fn flush(dir: &Path) {
    if let Ok(dir) = rustix::fs::open(dir, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::fs::syncfs(dir);
    }
}
