//! What has no safe wrapper: a file mapped as atomic words, and `truncate(2)`.
// The one place of the tests with unsafe code.
#![allow(unsafe_code)]
// Each test program uses its own part.
#![allow(dead_code)]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared mapping of a file's first bytes, for reading and writing. To touch it behind the file's end is a fault that ends the
/// process.
pub(crate) struct Shared {
    words: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: what is shared are atomics, and the mapping belongs to no thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// A new file of zeros.
    pub(crate) fn create(path: &Path, words: usize) -> Self {
        let file = File::create_new(path).expect("a new file");
        file.set_len(words as u64 * 8).expect("a sparse file");
        Self::open(path)
    }

    /// The whole of a file that is there.
    pub(crate) fn open(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("the file");
        let len = file.metadata().expect("its size").len() as usize / 8;
        Self::map(&file, len)
    }

    /// The first words of an open file.
    pub(crate) fn map(file: &File, len: usize) -> Self {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the address is the kernel's choice, so that no memory in use is replaced.
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
        // SAFETY: the mapping is page-aligned, as long as this, and stands until the drop; any bits make an AtomicU64.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and borrowed from it.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), (self.len * 8).max(1)) };
    }
}

/// Changes the size of a file by its path.
pub(crate) fn truncate(path: &Path, size: u64) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero.
    match unsafe { libc::truncate(path.as_ptr(), size as libc::off_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs something in a forked process, and says whether that came to a good end within twenty seconds.
pub(crate) fn ends_well_forked(work: impl FnOnce()) -> bool {
    // SAFETY: the child has this thread only. It may allocate, since the C library keeps its own locks in order, and what else
    // the others had locked is the business of what is tested. A panic ends it, and so does the alarm.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes an integer; the signal's action is the default.
        unsafe { libc::alarm(20) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = -1;
    // SAFETY: the status lives until the call returns.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    child > 0 && waited == child && status == 0
}
