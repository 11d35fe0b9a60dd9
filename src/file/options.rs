//! The options of opening a file.

use crate::dio::StablePages;
use crate::fs::KeepSetId;

/// The options of opening a file: for reading only, unless other options are set. The names are those of [`std::fs::OpenOptions`]. The options
/// are copied when they are used, so one value serves many files.
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

    /// Whether the file can be read. The default is true.
    #[must_use]
    pub const fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// Whether the file can be written. Its volume must be open for writing; host files are only read.
    #[must_use]
    pub const fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Every write goes to the current end of the file, regardless of its position (`O_APPEND`). This includes [`write`](Self::write).
    #[must_use]
    pub const fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// The file is truncated to zero bytes when it is opened. It must be opened for writing.
    #[must_use]
    pub const fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// A file that does not exist is created. It must be opened by its path, for writing.
    #[must_use]
    pub const fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// A file is created; an existing file is an error.
    #[must_use]
    pub const fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// The permissions of a created file: the lower twelve bits of its mode, 0644 by default. There is no umask.
    #[must_use]
    pub const fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// The owner and group of a created file, 0 and 0 by default.
    #[must_use]
    pub const fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// Whether the file accepts only requests that `O_DIRECT` accepts: position and length in logical blocks, aligned memory. Otherwise a
    /// request that the device does not accept goes through bounce buffers, or through the kernel's page cache if the kernel serves the file.
    #[must_use]
    pub const fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// For host files on XFS with reflink: the promise that no program dedupes this file while it is open. Dedupe can move data without opening
    /// the file for writing, so no lease detects it. Without this promise, or the immutable flag, the kernel serves such files.
    #[must_use]
    pub const fn assume_no_dedupe(mut self, promise: bool) -> Self {
        self.assume_no_dedupe = promise;
        self
    }

    /// How memory is kept unchanged while the device computes over it. `None` follows the needs of the device: no copies for a device that does
    /// not compute over data, and [`StablePages::Owned`] for one that does.
    #[must_use]
    pub fn stable_pages(mut self, stable_pages: impl Into<Option<StablePages>>) -> Self {
        self.stable_pages = stable_pages.into();
        self
    }

    /// For a volume's files: whether writes by this handle keep set-id bits.
    #[must_use]
    pub const fn keep_set_id(mut self, keep: KeepSetId) -> Self {
        self.keep_set_id = keep;
        self
    }

    /// For a volume's files: writes come from a cache that has already permitted them, in an order of its own. An append-only file accepts them
    /// at any position.
    #[must_use]
    pub const fn write_back(mut self, write_back: bool) -> Self {
        self.write_back = write_back;
        self
    }

    /// Whether the handle writes.
    pub(crate) const fn writes(&self) -> bool {
        self.write || self.append
    }
}

impl Default for FileOptions {
    fn default() -> Self {
        Self::new()
    }
}
