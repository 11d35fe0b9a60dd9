//! The error type of the crate. An error consists of a kind, the place, and the cause.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;

use crate::units::{FsBlock, InodeNo};

/// The result of every fallible operation of the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A positive errno value, from a system call or from the rules of direct I/O.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errno {
    ($($name:ident = $value:literal),* $(,)?) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`")] pub const $name: Self = Self($value);)*

            /// The symbolic name. `None` if this crate does not define the errno.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($value => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

errno! {
    EPERM = 1, ENOENT = 2, EINTR = 4, EIO = 5, ENXIO = 6, E2BIG = 7, EBADF = 9, EAGAIN = 11, ENOMEM = 12, EACCES = 13, EFAULT = 14,
    EBUSY = 16, EEXIST = 17, EXDEV = 18, ENODEV = 19, ENOTDIR = 20, EISDIR = 21, EINVAL = 22, ENOTTY = 25, EFBIG = 27, ENOSPC = 28,
    EROFS = 30, EMLINK = 31, EDOM = 33, ERANGE = 34, ENAMETOOLONG = 36, ENOLCK = 37, ENOSYS = 38, ENOTEMPTY = 39, ELOOP = 40, ENODATA = 61, ETIME = 62, EILSEQ = 84,
    EOVERFLOW = 75, EOPNOTSUPP = 95, EUCLEAN = 117, EREMOTEIO = 121, EDQUOT = 122, ENOKEY = 126,
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // std appends " (os error N)" to the text. This code removes the suffix, because the symbolic name is clearer and can be searched
        // for.
        let text = std::io::Error::from_raw_os_error(self.0).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        match self.name() {
            Some(name) => write!(f, "{text} ({name})"),
            None => write!(f, "{text} (errno {})", self.0),
        }
    }
}

impl std::error::Error for Errno {}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

/// The kind of a failure. A program can distinguish two failures only if they have different kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device or a system call failed with this errno.
    Io(Errno),
    /// The bytes on disk contradict the format, or a checksum does not match. The image is damaged or hostile.
    Corrupt,
    /// The format is valid but uses a feature that ironmap does not support. The error names the feature.
    Unsupported,
    /// The device does not contain a file system that ironmap recognises.
    UnknownFormat,
    /// The content or the name is encrypted, and ironmap has no key for it.
    Encrypted,
    /// Another program or node uses the volume: it is mounted, attached to a loop device, locked, or in use according to its MMP block.
    /// This kind also means that an operation would have to wait while the calling thread has requests in flight.
    Busy,
    /// The file or directory does not exist.
    NotFound,
    /// A component of the path is not a directory.
    NotADirectory,
    /// The operation needs a file, but the target is a directory.
    IsADirectory,
    /// The operation needs a file of another type (a link, a regular file).
    WrongFileType,
    /// An argument violates a rule of direct I/O: alignment, length, a handle of another volume.
    InvalidInput,
    /// A request with NOWAIT would have to wait. It has had no effect.
    WouldBlock,
    /// A path contains too many symbolic links.
    Loop,
    /// A name or a path is longer than the format allows.
    NameTooLong,
    /// The extended attribute does not exist.
    NoData,
    /// A documented limit of memory or length was reached, or memory could not be allocated.
    LimitExceeded,
    /// The value of an extended attribute is longer than the system calls accept.
    AttributeTooBig,
    /// The name of an extended attribute is longer than the system calls accept.
    AttributeNameLength,
    /// No free blocks or inodes remain.
    NoSpace,
    /// The name already exists, or the device already contains data.
    Exists,
    /// The directory has entries.
    NotEmpty,
    /// The volume was opened read-only, or has become read-only after an error.
    ReadOnly,
    /// The file's flags forbid the operation: immutable, append-only, or owned by the file system itself.
    NotPermitted,
    /// The file already has the largest number of names that the format allows.
    TooManyLinks,
    /// The position exceeds the largest position that the format can map.
    FileTooLarge,
    /// A quota is exhausted.
    Quota,
    /// The file cannot get a name in this directory, because the directory belongs to another quota project.
    CrossDevice,
}

impl ErrorKind {
    /// The errno that Linux returns for the same failure.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::Io(errno) => errno,
            Self::Corrupt => Errno::EUCLEAN,
            Self::Unsupported => Errno::EOPNOTSUPP,
            Self::UnknownFormat | Self::InvalidInput | Self::WrongFileType => Errno::EINVAL,
            Self::Encrypted => Errno::ENOKEY,
            Self::Busy => Errno::EBUSY,
            Self::NotFound => Errno::ENOENT,
            Self::NotADirectory => Errno::ENOTDIR,
            Self::IsADirectory => Errno::EISDIR,
            Self::WouldBlock => Errno::EAGAIN,
            Self::Loop => Errno::ELOOP,
            Self::NameTooLong => Errno::ENAMETOOLONG,
            Self::NoData => Errno::ENODATA,
            Self::LimitExceeded => Errno::ENOMEM,
            Self::AttributeTooBig => Errno::E2BIG,
            Self::AttributeNameLength => Errno::ERANGE,
            Self::NoSpace => Errno::ENOSPC,
            Self::Exists => Errno::EEXIST,
            Self::NotEmpty => Errno::ENOTEMPTY,
            Self::ReadOnly => Errno::EROFS,
            Self::NotPermitted => Errno::EPERM,
            Self::TooManyLinks => Errno::EMLINK,
            Self::FileTooLarge => Errno::EFBIG,
            Self::Quota => Errno::EDQUOT,
            Self::CrossDevice => Errno::EXDEV,
        }
    }
}

/// A place on disk: the structure, and, if known, the inode, the block and the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The usual name of the structure: `superblock`, `extent header`, `directory entry`.
    pub structure: &'static str,
    /// The name of the field in the format's documentation. It is empty if the place is the whole structure.
    pub field: &'static str,
    /// The block that contains the structure.
    pub block: Option<FsBlock>,
    /// The inode that the structure belongs to.
    pub inode: Option<InodeNo>,
}

impl Place {
    /// Creates a place that consists only of a structure. The other methods add the block, the inode and the field.
    #[must_use]
    pub const fn new(structure: &'static str) -> Self {
        Self { structure, field: "", block: None, inode: None }
    }

    /// Returns the place with this block added.
    #[must_use]
    pub const fn block(mut self, block: FsBlock) -> Self {
        self.block = Some(block);
        self
    }

    /// Returns the place with this inode added.
    #[must_use]
    pub const fn inode(mut self, inode: InodeNo) -> Self {
        self.inode = Some(inode);
        self
    }

    /// Returns the place with this field added.
    #[must_use]
    pub const fn field(mut self, field: &'static str) -> Self {
        self.field = field;
        self
    }

    /// Creates the error for a wrong value at this place. `what` describes the fault.
    pub fn corrupt(self, what: impl Into<Cow<'static, str>>) -> Error {
        Error::with_place(ErrorKind::Corrupt, self, what)
    }

    /// Creates the error for a wrong checksum at this place.
    pub fn bad_checksum(self, stored: impl fmt::LowerHex, computed: impl fmt::LowerHex) -> Error {
        self.corrupt(format!("checksum is {stored:#x} on disk, and {computed:#x} for this content"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(inode) = self.inode {
            write!(f, "inode {inode}: ")?;
        }
        f.write_str(self.structure)?;
        if let Some(block) = self.block {
            write!(f, " in block {block}")?;
        }
        if !self.field.is_empty() {
            write!(f, ", {}", self.field)?;
        }
        Ok(())
    }
}

/// An error: its kind, the operation or the place, the reason, and the cause.
///
/// `Display` shows one line, with the outermost operation first: `read /etc/passwd: inode 12: extent header in block 77, eh_magic: …`. An
/// error has the size of a pointer, so the `Result` of a read fits into registers.
pub struct Error(Box<Repr>);

struct Repr {
    kind: ErrorKind,
    place: Option<Place>,
    what: Cow<'static, str>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// The operations and names that were added. The innermost is the first.
    steps: Vec<Step>,
}

/// An operation or a name that was added to the error on its way to the caller.
#[derive(PartialEq)]
enum Step {
    Operation(String),
    /// The name of a file, a device or an image, as the caller wrote it.
    Name(String),
}

impl Step {
    /// Whether this step is a name that equals `path` or the last component of `path`.
    fn is_end_of(&self, path: &str) -> bool {
        let last = path.trim_end_matches('/').rsplit_once('/').map(|(_, name)| name);
        matches!(self, Self::Name(name) if name == path || Some(name.as_str()) == last)
    }
}

impl Error {
    /// Creates an error of this kind. `what` is a clause that states the reason, without the words of the kind.
    #[cold]
    pub fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Repr {
            kind,
            place: None,
            what: what.into(),
            source: None,
            steps: Vec::new(),
        }))
    }

    #[cold]
    fn with_place(kind: ErrorKind, place: Place, what: impl Into<Cow<'static, str>>) -> Self {
        let mut error = Self::new(kind, what);
        error.0.place = Some(place);
        error
    }

    /// Creates the error for a failure of the device or a system call. `what` names the operation.
    #[cold]
    pub fn io(errno: impl Into<Errno>, what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Io(errno.into()), what)
    }

    /// Creates the error for a valid value that ironmap does not support. `what` names the value.
    #[cold]
    pub fn unsupported(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unsupported, what)
    }

    /// Creates the error for an operation that would have to wait but must not.
    #[cold]
    pub(crate) fn would_block(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::WouldBlock, what)
    }

    /// Creates the error for an argument that breaks a rule.
    #[cold]
    pub fn invalid(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidInput, what)
    }

    /// Adds the operation that failed. The error shows the outermost operation first.
    #[must_use]
    pub fn context(mut self, operation: impl fmt::Display) -> Self {
        self.0.steps.push(Step::Operation(operation.to_string()));
        self
    }

    /// Adds the name of the file, device or image that has failed. If the previous step is a name and `name` is a path that ends with it,
    /// the path replaces the previous step, so that no name is shown twice.
    #[must_use]
    pub fn at(mut self, name: impl fmt::Display) -> Self {
        let name = name.to_string();
        let steps = &mut self.0.steps;
        steps.pop_if(|step| step.is_end_of(&name));
        let name = Step::Name(name);
        steps.retain(|step| *step != name);
        steps.push(name);
        self
    }

    /// Whether the error names an object with this name.
    #[doc(hidden)]
    #[must_use]
    pub fn names(&self, name: &str) -> bool {
        self.0.steps.iter().any(|step| matches!(step, Step::Name(own) if own == name))
    }

    /// Returns the error as one line that begins with this name. The name occurs only once in the line.
    #[doc(hidden)] // This function is public for the program, which knows names that the library does not know.
    pub fn shown_at<'a>(&'a self, name: &'a str) -> impl fmt::Display + 'a {
        ShownAt { error: self, name }
    }

    /// Adds the underlying cause.
    #[must_use]
    pub fn source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The reason, without the place, the operation and the cause.
    pub(crate) fn what(&self) -> &str {
        &self.0.what
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the reason is lack of space. If such an error ends a write that has already written a part, the caller gets a short count
    /// instead.
    pub(crate) fn is_for_space(&self) -> bool {
        matches!(self.kind(), ErrorKind::NoSpace | ErrorKind::Quota)
    }

    /// The errno that Linux returns for the same failure.
    #[must_use]
    pub fn errno(&self) -> Errno {
        self.0.kind.errno()
    }

    /// The place on disk, if the error has one.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        self.0.place.as_ref()
    }
}

impl Error {
    /// Writes the error as one line that contains the given operations and names.
    fn show(&self, f: &mut fmt::Formatter<'_>, steps: &[Step]) -> fmt::Result {
        for Step::Operation(step) | Step::Name(step) in steps.iter().rev() {
            write!(f, "{step}: ")?;
        }
        if let Some(place) = &self.0.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.0.what)?;
        match self.0.kind {
            ErrorKind::Io(errno) if self.0.what.is_empty() => write!(f, "{errno}"),
            ErrorKind::Io(errno) => write!(f, ": {errno}"),
            _ => Ok(()),
        }
    }
}

/// An error that is shown as one line. The line begins with a name, which occurs only once in the line.
struct ShownAt<'a> {
    error: &'a Error,
    name: &'a str,
}

impl fmt::Display for ShownAt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, name } = self;
        write!(f, "{name}: ")?;
        let steps = &error.0.steps;
        let named = steps.last().is_some_and(|step| step.is_end_of(name));
        error.show(f, &steps[..steps.len() - usize::from(named)])
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(f, &self.0.steps)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Converts the error to a `std` error with the kind that belongs to the errno. [`std::io::Error::downcast`] returns the original error
/// with its errno.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = Self::from_raw_os_error(error.errno().0).kind();
        Self::new(kind, error)
    }
}

/// Methods that add the operation or the name of an object to the error in a result.
pub trait Context<T> {
    /// Adds the operation to an error. The text is formatted only if the result is an error.
    fn context<C: fmt::Display>(self, operation: impl FnOnce() -> C) -> Result<T>;

    /// Adds the name of the object that has failed, as [`Error::at`] does.
    fn at<N: fmt::Display>(self, name: impl FnOnce() -> N) -> Result<T>;
}

impl<T> Context<T> for Result<T> {
    fn context<C: fmt::Display>(self, operation: impl FnOnce() -> C) -> Result<T> {
        self.map_err(|error| error.context(operation()))
    }

    fn at<N: fmt::Display>(self, name: impl FnOnce() -> N) -> Result<T> {
        self.map_err(|error| error.at(name()))
    }
}
