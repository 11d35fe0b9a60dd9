//! Kernel leases on files (`fcntl`), and the thread that the kernel notifies when a program breaks a lease.
//!
//! The kernel sends the signal of a lease to one thread. This thread blocks all signals, and receives the lease signal with `sigtimedwait`,
//! so no signal handler of the application runs. The thread also receives every signal with the same number that is sent to the process.
//! Therefore, no other code may use this signal number.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use crate::error::Errno;

// Constants of Linux's fcntl interface that the libc crate does not define. They are the same on every architecture.
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

#[repr(C)]
struct OwnerEx {
    kind: libc::c_int,
    pid: libc::pid_t,
}

/// Returns the real-time signal that this module uses. Its number is near the end of the range, because applications use numbers near the
/// start.
fn signal() -> libc::c_int {
    libc::SIGRTMAX() - 2
}

fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error();
        return Err(Errno(errno.unwrap_or(Errno::EIO.0)));
    }
    Ok(result)
}

/// A reference to the thread that receives notifications about broken leases. Any thread can use this reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watcher {
    tid: libc::pid_t,
}

impl Watcher {
    /// Acquires a read lease on an open file. The kernel notifies the lease thread when the lease is broken.
    ///
    /// Fails with EAGAIN if a program has the file open for writing, with EACCES if the file belongs to another user and `CAP_LEASE` is
    /// missing, and with EINVAL if the file system does not support leases.
    pub(crate) fn lease(self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        self.tell(file)?;
        // SAFETY: the descriptor is open, and the command takes an integer.
        check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) }).map(drop)
    }

    /// Makes the kernel notify the lease thread when a descriptor becomes readable. The descriptor must support `O_ASYNC`.
    pub(crate) fn input(self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        self.tell(file)?;
        let flags = rustix::fs::fcntl_getfl(file)?;
        Ok(rustix::fs::fcntl_setfl(file, flags | rustix::fs::OFlags::ASYNC)?)
    }

    /// Makes the kernel send the signals of a descriptor to the lease thread.
    fn tell(self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let fd = file.as_raw_fd();
        let owner = OwnerEx { kind: F_OWNER_TID, pid: self.tid };
        // SAFETY: the descriptor is open, and the command takes an integer.
        check(unsafe { libc::fcntl(fd, F_SETSIG, signal()) })?;
        // SAFETY: the descriptor is open; the command reads the structure, which lives until it returns.
        check(unsafe { libc::fcntl(fd, F_SETOWN_EX, &raw const owner) }).map(drop)
    }

    /// Wakes the thread from its wait. Returns false if the process has too many pending signals.
    pub(crate) fn wake(self) -> bool {
        // SAFETY: tgkill has only integers as arguments. The thread blocks the signal and receives it in `Watch::wait`. The owner of the
        // thread calls this function only before it joins the thread. After the end of the thread, the call could reach a later thread with
        // the same number. That thread would neither block nor ignore the signal, and the process would end.
        unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), self.tid, signal()) == 0 }
    }
}

/// The event that has ended a wait of the lease thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The lease on this descriptor is being broken or was broken, or the descriptor is readable.
    Told(RawFd),
    /// [`Watcher::wake`] was called.
    Woken,
    /// The time limit of the wait has passed.
    TimedOut,
}

/// The receiver of notifications about broken leases. The value belongs to the thread that created it.
pub(crate) struct Watch {
    tid: libc::pid_t,
    _thread: PhantomData<*const ()>,
}

impl Watch {
    /// Blocks every signal in the calling thread. From then on, the thread must be used only for leases.
    pub(crate) fn new() -> Self {
        // SAFETY: gettid has no preconditions.
        let tid = unsafe { libc::gettid() };
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: the call fills this set.
        unsafe { libc::sigfillset(set.as_mut_ptr()) };
        // SAFETY: the call reads the set, which was filled, and changes only this thread's mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
        Self { tid, _thread: PhantomData }
    }

    pub(crate) fn watcher(&self) -> Watcher {
        Watcher { tid: self.tid }
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Waited {
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: the call initialises the set, without signals.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: the set was initialised, and the number is that of a signal.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal()) };
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the set is initialised, and the other structures live until the call returns.
        let taken =
            unsafe { libc::sigtimedwait(set.as_ptr(), info.as_mut_ptr(), &raw const timeout) };
        if taken < 0 {
            return Waited::TimedOut;
        }
        // SAFETY: the call filled it, and every bit pattern is a siginfo_t.
        let info = unsafe { info.assume_init() };
        if info.si_code <= 0 {
            // A positive code means that the kernel itself sent the signal; any other code means that a process sent it.
            return Waited::Woken;
        }
        // The signal information of a SIGPOLL contains si_band (a long), followed by si_fd. libc does not define these fields.
        #[repr(C)]
        struct Poll {
            head: [libc::c_int; 4],
            band: libc::c_long,
            fd: libc::c_int,
        }
        // SAFETY: siginfo_t is larger than these fields, aligned like them and initialised; the kernel's layout on 64-bit machines begins
        // with three integers and padding before the union.
        let fd = unsafe { (*(&raw const info).cast::<Poll>()).fd };
        Waited::Told(fd)
    }
}

/// Whether the kernel grants a lease of this kind on an open file. The lease is released before the function returns.
fn is_given(file: BorrowedFd<'_>, kind: libc::c_int) -> Result<bool, Errno> {
    let fd = file.as_raw_fd();
    // If a program opens the file while the lease exists, the kernel sends a signal to this process. The default signal, SIGIO, would end a
    // process that does not handle it. SIGURG is ignored by default, so this code uses SIGURG instead.
    // SAFETY: the descriptor is open, and the command takes an integer.
    check(unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) })?;
    // SAFETY: the descriptor is open, and this command takes an integer too.
    match check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, kind) }) {
        Ok(_) => {
            release(file);
            Ok(true)
        }
        Err(Errno::EAGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether any process has a file open or mapped for writing. The caller has opened the file for reading.
///
/// Fails with EACCES if the file belongs to another user and `CAP_LEASE` is missing, and with EINVAL if the file system or the system's
/// settings permit no leases.
pub(crate) fn has_writers(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    is_given(file, libc::F_RDLCK).map(|given| !given)
}

/// Whether the given descriptor is the only descriptor of the file, and no process has the file mapped. The errors are those of
/// [`has_writers`].
pub(crate) fn is_alone(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    is_given(file, libc::F_WRLCK)
}

/// Whether the read lease on an open file is still valid. A lease stops being valid when the kernel begins to break it.
pub(crate) fn stands(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the descriptor is open, and the command takes no argument.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) == libc::F_RDLCK }
}

/// Releases the lease on an open file, if there is one.
pub(crate) fn release(file: BorrowedFd<'_>) {
    // SAFETY: the descriptor is open, and the command takes an integer. The call fails only if there is no lease.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// A file with a single descriptor has no writers and no other descriptor. The functions detect a second descriptor, for reading or for
    /// writing.
    #[test]
    fn openers_are_seen_and_no_lease_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"x").unwrap();
        let file = File::open(&path).unwrap();
        let seen = |file: &File| (has_writers(file.as_fd()), is_alone(file.as_fd()));
        if seen(&file) == (Err(Errno::EINVAL), Err(Errno::EINVAL)) {
            // If the directory for temporary files is on a file system without leases, the test is skipped.
            return;
        }
        assert_eq!(seen(&file), (Ok(false), Ok(true)));
        let reader = File::open(&path).unwrap();
        assert_eq!(seen(&file), (Ok(false), Ok(false)));
        drop(reader);
        // The functions have released their leases. If a lease still existed, this open would wait until it is broken.
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        assert_eq!(seen(&file), (Ok(true), Ok(false)));
        drop(file);
        assert_eq!(is_alone(writer.as_fd()), Ok(true));
    }

    /// An open for writing waits until the notified thread has released the lease, and no longer.
    #[test]
    fn a_break_is_signalled_only_to_the_watching_thread() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"x").unwrap();
        let file = File::open(&path).unwrap();
        let (send, receive) = mpsc::channel();
        let lent = file.try_clone().unwrap();
        let watching = thread::spawn(move || {
            let watch = Watch::new();
            send.send(watch.watcher()).unwrap();
            let mut seen = Vec::new();
            loop {
                match watch.wait(Duration::from_secs(20)) {
                    Waited::Told(fd) => {
                        assert!(!stands(lent.as_fd()), "the lease is being broken");
                        seen.push(fd);
                        release(lent.as_fd());
                    }
                    Waited::Woken => return seen,
                    Waited::TimedOut => panic!("no lease break was signalled"),
                }
            }
        });
        let watcher = receive.recv().unwrap();
        match watcher.lease(file.as_fd()) {
            Ok(()) => {}
            // If the directory for temporary files is on a file system without leases, the test is skipped.
            Err(Errno::EINVAL) => return assert!(watcher.wake()),
            Err(errno) => panic!("{errno}"),
        }
        assert!(stands(file.as_fd()));
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        assert_eq!(
            watcher.lease(file.as_fd()),
            Err(Errno::EAGAIN),
            "a lease is refused while a writer has the file open"
        );
        drop(writer);
        assert!(watcher.wake());
        assert_eq!(watching.join().unwrap(), [file.as_raw_fd()]);
    }
}
