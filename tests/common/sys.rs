//! System calls that have no safe wrapper. The functions map a file as atomic words, answer permission events of fanotify, change the size
//! of a file at a path, fork the process, forbid io_uring to a thread, or replace the file of a descriptor. All unsafe code of the tests is
//! in this file.
#![allow(unsafe_code)]
// Each test program uses only a part of this module.
#![allow(dead_code)]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared mapping of the first bytes of a file, for reading and writing. An access past the end of the file is a fault that ends the
/// process.
pub(crate) struct Shared {
    words: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the shared data are atomics, and the mapping is not bound to a thread.
unsafe impl Send for Shared {}
// SAFETY: the shared data are atomics.
unsafe impl Sync for Shared {}

impl Shared {
    /// Creates a file of zeros, and maps it.
    pub(crate) fn create(path: &Path, words: usize) -> Self {
        let file = File::create_new(path).expect("a new file");
        file.set_len(words as u64 * 8).expect("a sparse file");
        Self::open(path)
    }

    /// Maps an existing file completely.
    pub(crate) fn open(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("the file");
        let len = file.metadata().expect("its size").len() as usize / 8;
        Self::map(&file, len)
    }

    /// Maps the first words of an open file.
    pub(crate) fn map(file: &File, len: usize) -> Self {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no memory in use is replaced.
        let mapped = unsafe {
            mmap(std::ptr::null_mut(), (len * 8).max(1), prot, MapFlags::SHARED, file, 0)
        };
        let words = NonNull::new(mapped.expect("a mapping")).expect("an address").cast();
        Self { words, len }
    }
}

impl Deref for Shared {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, at least `len` words long, and valid until the drop; any bits are a valid AtomicU64.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and all borrows end before the drop.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), (self.len * 8).max(1)) };
    }
}

/// A fanotify mark. The kernel asks this program for permission before certain accesses, and the program always grants the permission. When
/// this value is dropped, the mark is removed.
pub(crate) struct Watch {
    group: OwnedFd,
    ended: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    answering: Option<JoinHandle<()>>,
}

impl Watch {
    /// Marks a path, or the mount or file system that contains the path. `what` (`FAN_MARK_*`) selects one of the three. `events` are
    /// `FAN_*`, and `class` is a `FAN_CLASS_*`.
    pub(crate) fn new(class: u32, what: u32, events: u64, path: &Path) -> io::Result<Self> {
        // SAFETY: the arguments are integers.
        let group = unsafe {
            libc::fanotify_init(
                class | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK,
                (libc::O_RDONLY | libc::O_CLOEXEC) as u32,
            )
        };
        if group < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let group = unsafe { OwnedFd::from_raw_fd(group) };
        let path = CString::new(path.as_os_str().as_bytes())?;
        let (how, at) = (libc::FAN_MARK_ADD | what, libc::AT_FDCWD);
        // SAFETY: the path ends with a NUL byte.
        let marked =
            unsafe { libc::fanotify_mark(group.as_raw_fd(), how, events, at, path.as_ptr()) };
        if marked < 0 {
            return Err(io::Error::last_os_error());
        }
        let (ended, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (lent, done, count) = (group.try_clone()?, Arc::clone(&ended), Arc::clone(&asked));
        let answering = std::thread::spawn(move || {
            while !done.load(Ordering::SeqCst) {
                let mut ready =
                    libc::pollfd { fd: lent.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: the pointer is to one structure, which is valid until the call returns.
                unsafe { libc::poll(&raw mut ready, 1, 1) };
                count.fetch_add(allow(&lent), Ordering::SeqCst);
            }
        });
        Ok(Self { group, ended, asked, answering: Some(answering) })
    }

    /// The number of accesses for which the kernel has requested permission.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(answering) = self.answering.take() {
            let _ = answering.join();
        }
        allow(&self.group);
    }
}

/// Grants all accesses that wait for permission, and returns their number.
fn allow(group: &OwnedFd) -> u64 {
    let mut events = [0_u64; 512];
    // SAFETY: the buffer has the given length, and is writable.
    let len =
        unsafe { libc::read(group.as_raw_fd(), events.as_mut_ptr().cast(), size_of_val(&events)) };
    let (mut at, mut count) = (0, 0);
    // The fields of `struct fanotify_event_metadata`: length (32 bits); version, reserved byte and metadata length; mask (64 bits);
    // descriptor; process ID.
    while len > 0 && at + 24 <= len as usize {
        let (head, last) = (events[at / 8], events[at / 8 + 2]);
        let fd = last as u32 as i32;
        let response = libc::fanotify_response { fd, response: libc::FAN_ALLOW };
        // SAFETY: the structure is valid until the call returns.
        unsafe {
            libc::write(group.as_raw_fd(), (&raw const response).cast(), size_of_val(&response));
        }
        // SAFETY: the descriptor of the event has no other owner.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        at += head as u32 as usize;
        count += 1;
    }
    count
}

/// Changes the size of the file at a path.
pub(crate) fn truncate(path: &Path, size: u64) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a NUL byte.
    match unsafe { libc::truncate(path.as_ptr(), size as libc::off_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs `work` in a forked process. Returns whether `work` has succeeded within twenty seconds.
pub(crate) fn ends_well_forked(work: impl FnOnce()) -> bool {
    // SAFETY: the child has only this thread. It may allocate, because the C library keeps its own locks consistent across a fork. Other
    // locks may have been held by threads of the parent, and are then locked forever in the child. The test checks this case. A panic or
    // the alarm ends the child.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the argument is an integer, and the signal has its default action.
        unsafe { libc::alarm(20) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: the call does not return.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = -1;
    // SAFETY: the status is valid until the call returns.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    child > 0 && waited == child && status == 0
}

/// Makes every later io_uring system call of this thread fail with EPERM, as containers do.
pub(crate) fn forbid_io_uring() {
    const FIRST: u32 = libc::SYS_io_uring_setup as u32;
    const LAST: u32 = libc::SYS_io_uring_register as u32;
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let jump = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    // The number of the system call is the first field of the structure that a filter examines (`struct seccomp_data`).
    let mut filter = [
        statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0),
        jump((libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16, FIRST, 0, 2),
        jump((libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16, LAST, 1, 0),
        statement(
            (libc::BPF_RET | libc::BPF_K) as u16,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        statement((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the arguments are integers.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0, "no new privileges");
    // SAFETY: the program and its statements are valid until the call has copied them.
    let set =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

/// Makes a descriptor number refer to this file. If the number refers to another open file, that file is closed first.
pub(crate) fn put_in_place(file: &File, number: i32) {
    // SAFETY: the arguments are integers. If the number refers to an open file of other code, that code then uses this file: the caller
    // tests this case.
    let put = unsafe { libc::dup2(file.as_raw_fd(), number) };
    assert_eq!(put, number, "{}", io::Error::last_os_error());
}
