//! The end of a mount that nobody has unmounted: by a signal, or because it cannot be served any more.
//!
//! It is always the kernel's connection that ends first. Then no request can be answered any more, the loop that takes them ends as it
//! does behind an umount, and the volume is closed in one place, with nobody at it.

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

use super::fail::tell;
use super::unmount::unmount;

/// How long what the kernel has collected is waited for: whoever goes on writing can make more of it than the device takes.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct End {
    dir: PathBuf,
    /// The number of the file system that is mounted there.
    device: (u32, u32),
    connection: Arc<OnceLock<OwnedFd>>,
    /// This has ended the connection.
    is_cut: AtomicBool,
}

impl End {
    /// Of what has just been mounted.
    pub(super) fn of(dir: &Path, connection: Arc<OnceLock<OwnedFd>>) -> rustix::io::Result<Self> {
        Ok(Self {
            dir: dir.to_owned(),
            device: device(dir)?,
            connection,
            is_cut: AtomicBool::new(false),
        })
    }

    /// The kernel's number of the file system.
    pub(super) fn device(&self) -> (u32, u32) {
        self.device
    }

    /// Unmounts, by force what is in use: who goes on with a file that he has open gets ENOTCONN. What he has written before is sent:
    /// `wait_for_pages` returns behind that.
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

    /// Ends the connection, if it has not ended.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        if self.is_connected() && self.is_there() {
            // The superuser's ends with that; of what others have mounted only the directory is free then.
            let _ = unmount(&self.dir, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
        if self.is_connected() {
            let abort = format!("/sys/fs/fuse/connections/{}/abort", self.device.1);
            let _ = fs::write(abort, "1");
        }
        if self.is_connected() {
            // Requests still come, which a volume that is being closed must not see. So it is left as by a crash: its journal is
            // recovered.
            tell(format_args!(
                "{}: in use, and the connection cannot be ended: the volume is not closed",
                self.dir.display()
            ));
            process::exit(1);
        }
    }

    /// The end of the server, of which an abort of our own is no failure.
    pub(super) fn served(&self, served: io::Result<()>) -> io::Result<()> {
        let is_abort = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionAborted;
        match served {
            Err(error) if is_abort(&error) && self.is_cut.load(Ordering::Acquire) => Ok(()),
            served => served,
        }
    }

    /// Whether the kernel may still have requests. As long as it does, the file system's number is nobody else's.
    fn is_connected(&self) -> bool {
        let Some(connection) = self.connection.get() else { return false };
        let mut fds = [PollFd::new(connection, PollFlags::empty())];
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        !fds[0].revents().contains(PollFlags::ERR)
    }

    /// Whether it is what the directory leads to: others may have unmounted it, or mounted something above it.
    fn is_there(&self) -> bool {
        device(&self.dir) == Ok(self.device)
    }
}

/// The number of the file system that a directory leads to. Nobody is asked who would have to answer by a request.
fn device(dir: &Path) -> rustix::io::Result<(u32, u32)> {
    let stat = rustix::fs::statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// Works in another thread, and goes on without the end of it when time is over.
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

/// Has the kernel send what it collected. It does not wait for the answers.
fn flush(dir: &Path) {
    if let Ok(dir) = rustix::fs::open(dir, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::fs::syncfs(dir);
    }
}
