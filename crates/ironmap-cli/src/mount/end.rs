//! The end of a mount without an unmount by the user: after a signal, or because the volume cannot be served any longer.
//!
//! The kernel's connection always ends first. From then on no request can be answered, the loop that takes requests ends as it does
//! after an umount, and the volume is closed in one place, where no request uses it.

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

/// The longest wait for pages that the kernel has cached: a busy writer can dirty pages faster than the device stores them.
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
    /// The end of a new mount at `dir`.
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

    /// Unmounts, by force if the mount is in use. A program that goes on with an open file gets ENOTCONN. Data that it has written before
    /// is sent first: `wait_for_pages` returns after that.
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

    /// Ends the connection if it is still alive.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        if self.is_connected() && self.is_there() {
            // This ends the superuser's mount. A mount by another user only gives up its directory.
            let _ = unmount(&self.dir, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
        if self.is_connected() {
            let abort = format!("/sys/fs/fuse/connections/{}/abort", self.device.1);
            let _ = fs::write(abort, "1");
        }
        if self.is_connected() {
            // Requests still arrive, and a volume that is being closed must not get them. The volume stays as after a crash, and the
            // next mount recovers its journal.
            print(format_args!(
                "{}: in use, and the connection cannot be ended: the volume is not closed",
                self.dir.display()
            ));
            process::exit(1);
        }
    }

    /// The result of the server, where an abort by this program counts as success.
    pub(super) fn served(&self, served: io::Result<()>) -> io::Result<()> {
        let is_abort = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionAborted;
        match served {
            Err(error) if is_abort(&error) && self.is_cut.load(Ordering::Acquire) => Ok(()),
            served => served,
        }
    }

    /// Whether the kernel may still send requests. Until the connection ends, no other file system gets the device number.
    fn is_connected(&self) -> bool {
        let Some(connection) = self.connection.get() else { return false };
        let mut fds = [PollFd::new(connection, PollFlags::empty())];
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        !fds[0].revents().contains(PollFlags::ERR)
    }

    /// Whether the directory still leads to this file system: another program may have unmounted it, or mounted something above it.
    fn is_there(&self) -> bool {
        device(&self.dir) == Ok(self.device)
    }
}

/// The number of the file system that a directory leads to. The call sends no request to a server.
fn device(dir: &Path) -> rustix::io::Result<(u32, u32)> {
    let stat = rustix::fs::statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// Runs `work` in another thread, and returns when it ends or when the time is over.
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

/// Makes the kernel send its cached data, and does not wait for the replies.
fn flush(dir: &Path) {
    if let Ok(dir) = rustix::fs::open(dir, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::fs::syncfs(dir);
    }
}
