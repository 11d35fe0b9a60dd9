//! Options for opening a file.

use crate::dio::StablePages;
use crate::fs::KeepSetId;
use crate::setters::options;

/// Options for opening a file. By default a file is opened only for reading. The names are those of [`std::fs::OpenOptions`]. The same
/// options can be used to open many files.
///
/// ```
/// use ironmap::FileOptions;
///
/// let log = FileOptions::new().append(true).create(true).mode(0o600);
/// # let _ = log;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) direct: bool,
    pub(crate) assume_no_dedupe: bool,
    pub(crate) stable_pages: Option<StablePages>,
    pub(crate) keep_set_id: KeepSetId,
    pub(crate) write_back: bool,
}

impl FileOptions {
    /// Creates options for reading.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            read: true,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
            owner: (0, 0),
            direct: false,
            assume_no_dedupe: false,
            stable_pages: None,
            keep_set_id: KeepSetId::No,
            write_back: false,
        }
    }

    /// The user and the group that own a created file. Both are 0 by default.
    #[must_use]
    pub const fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// The method that keeps memory unchanged while the device computes checksums over it. `None` selects the device's default:
    /// [`StablePages::Owned`] if the device computes checksums, otherwise [`StablePages::ZeroCopy`].
    #[must_use]
    pub fn stable_pages(mut self, stable_pages: impl Into<Option<StablePages>>) -> Self {
        self.stable_pages = stable_pages.into();
        self
    }

    /// Whether the options open the file for writing.
    pub(crate) const fn writes(&self) -> bool {
        self.write || self.append
    }
}

options!(FileOptions {
    /// Whether the file can be read. The default is true.
    read: bool,
    /// Whether the file can be written. The file's volume must then be open for writing. Host files cannot be written.
    write: bool,
    /// Whether each write is made at the present end of the file (`O_APPEND`). The position that the caller requests is ignored. This
    /// option implies [`write`](Self::write).
    append: bool,
    /// Whether the open truncates the file to zero bytes. This option needs [`write`](Self::write), and cannot be combined with
    /// [`append`](Self::append).
    truncate: bool,
    /// Whether the file is created if it does not exist. The file must be opened by path and for writing.
    create: bool,
    /// Whether a new file is created. If the file already exists, the open fails.
    create_new: bool,
    /// The permissions of a created file, which are the lower twelve bits of its mode. The default is 0644. The process's umask is not
    /// applied.
    mode: u32,
    /// Whether the file refuses the requests that `O_DIRECT` refuses. Position and length of a request must then be multiples of the
    /// logical block, and its memory must be aligned. Without this option, the data of a misaligned request are copied through bounce
    /// buffers. If the kernel serves the file, they are copied through the page cache.
    direct: bool,
    /// For host files on XFS with reflink: the caller promises that no program dedupes this file while it is open. Dedupe can move data
    /// without an open for writing. The lease does not detect this. Without the promise, the kernel serves the file. An immutable file
    /// needs no promise.
    assume_no_dedupe: bool,
    /// For files of a volume: whether writes through this handle keep the set-user-ID and set-group-ID bits.
    keep_set_id: KeepSetId,
    /// For files of a volume: whether the writes come from a writeback cache. The cache has already checked the permissions, and sends the
    /// writes in any order. An append-only file then accepts them at any position.
    write_back: bool,
});

impl Default for FileOptions {
    fn default() -> Self {
        Self::new()
    }
}
