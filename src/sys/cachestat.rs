//! cachestat(2): counts the pages of a file in the page cache.

use std::os::fd::{AsRawFd, BorrowedFd};

/// The number of the system call. It is the same on all Linux architectures that Rust supports. Some libc libraries do not define it.
const CACHESTAT: libc::c_long = 451;

/// The numbers of pages that the page cache contains for a file or a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCache {
    /// The number of all pages.
    pub pages: u64,
    /// The number of pages that are dirty or under writeback.
    pub dirty: u64,
}

/// A range of the file in bytes. If the length is 0, the range extends to the end of the file.
#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

impl PageCache {
    /// Counts the cached pages of an open file. Returns `None` if the kernel does not report them, for one of three reasons: the kernel is
    /// older than 6.5, the kernel forbids the call, or the caller neither owns the file nor may write to it.
    pub(crate) fn of(file: BorrowedFd<'_>) -> Option<Self> {
        let range = Range { start: 0, len: 0 };
        let mut counts = Counts::default();
        // SAFETY: the kernel reads one `Range` and writes one `Counts`, which have the layout of its structures and outlive the call. A
        // kernel without this call accesses no memory.
        let result = unsafe {
            libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0)
        };
        let dirty = counts.dirty.saturating_add(counts.writeback);
        (result == 0).then_some(Self { pages: counts.cached, dirty })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn pages_are_counted_as_they_are_written() {
        let mut file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile()).unwrap();
        // A kernel without `cachestat` does not count the pages.
        let Some(empty) = PageCache::of(file.as_fd()) else { return };
        assert_eq!(empty, PageCache { pages: 0, dirty: 0 });
        let page = rustix::param::page_size();
        file.write_all(&vec![7; 3 * page]).unwrap();
        assert_eq!(PageCache::of(file.as_fd()).map(|cache| cache.pages), Some(3));
    }

    #[test]
    fn a_file_without_page_cache_is_not_counted() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let counted = PageCache::of(reader.as_fd());
        assert!(counted.is_none_or(|cache| cache.pages == 0), "{counted:?}");
    }
}
