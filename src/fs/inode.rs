//! An inode in the state in which it was read.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::{DirCursor, DirEntry, FileType, InodeFlags, Stat, Xattr};
use crate::error::Result;
use crate::iomap::{ExtentMap, Iomap, MapFile};
use crate::units::{FilePos, InodeNo};

/// An inode in the state in which it was read: its attributes, and access to its content and names. The file may change afterwards. Reads
/// through this value return the present content. If the inode number was reused for another file, the reads return an error.
pub struct Inode(Box<dyn InodeOps>);

/// The inode to open: a number, or an inode that was read earlier. If an inode that was read is given, its number must still belong to the
/// same file.
#[derive(Debug)]
pub struct InodeRef {
    pub(crate) number: InodeNo,
    pub(crate) read: Option<Inode>,
}

impl From<InodeNo> for InodeRef {
    fn from(number: InodeNo) -> Self {
        Self { number, read: None }
    }
}

impl From<Inode> for InodeRef {
    fn from(inode: Inode) -> Self {
        Self { number: inode.number(), read: Some(inode) }
    }
}

/// The entries of a directory, in any order.
pub type ReadDir<'a> = Box<dyn Iterator<Item = Result<DirEntry>> + 'a>;

/// The entries of a directory from a cursor on. The directory may change during the listing. An entry that exists throughout the listing
/// appears exactly once, in a stable order. The listing ends after an error.
pub type Listing = Box<dyn ListDir>;

/// The operations of a format on an inode that was read. The trait is named after Linux's `inode_operations`.
pub trait InodeOps: MapFile + Send + Sync {
    /// The attributes of the inode, as `stat` returns them.
    fn stat(&self) -> &Stat;

    /// Whether the inode is internal to the file system, such as a journal or a quota file. No name may refer to an internal inode.
    fn is_internal(&self) -> bool {
        false
    }

    /// The map of the inode's data, if the complete map is in memory.
    fn resident_map(&self) -> Option<&Arc<ExtentMap>>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `WrongFileType` if the inode is not a symbolic link; `Encrypted`, `Corrupt`.
    fn read_link(&self) -> Result<Vec<u8>>;

    /// The extended attributes, with the names and values that the system calls return.
    ///
    /// # Errors
    /// `Corrupt`; `LimitExceeded` if the values exceed 16 MiB in total.
    fn xattrs(&self) -> Result<Vec<Xattr>>;

    /// The value of one extended attribute; `None` if this name does not exist.
    ///
    /// # Errors
    /// The errors of [`xattrs`](Self::xattrs), for this value only; `NameTooLong`.
    fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let all = self.xattrs()?;
        Ok(all.into_iter().find(|xattr| xattr.name == name).map(|xattr| xattr.value))
    }

    /// Looks up a name in this directory and returns its inode.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`, `Encrypted`; `Corrupt` if the directory or the inode is damaged.
    fn lookup(&self, name: &[u8]) -> Result<Inode>;

    /// The entries of this directory, including `.` and `..`.
    ///
    /// # Errors
    /// `NotADirectory`, `Encrypted`, `Corrupt`.
    fn read_dir(&self) -> Result<ReadDir<'_>>;

    /// The entries from a cursor on, for a directory that may change during the listing.
    ///
    /// # Errors
    /// The errors of [`read_dir`](Self::read_dir); `NotFound` if the directory has been removed.
    fn list(&self, from: DirCursor) -> Result<Listing>;
}

/// A listing of a directory that can continue from a cursor.
pub trait ListDir: Iterator<Item = Result<DirEntry>> + Send {
    /// The cursor after the last entry that the listing returned.
    fn cursor(&self) -> DirCursor;
}

impl dyn InodeOps + '_ {
    /// The inode number.
    #[must_use]
    pub fn number(&self) -> InodeNo {
        self.stat().inode
    }

    /// The file type.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.stat().file_type
    }

    /// The size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.stat().size
    }

    /// The flags, as `lsattr` shows them.
    #[must_use]
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.stat().flags)
    }
}

impl Inode {
    /// Wraps an inode that the code of one format, such as ext4, has decoded.
    pub fn new(inode: impl InodeOps + 'static) -> Self {
        Self(Box::new(inode))
    }
}

impl Deref for Inode {
    type Target = dyn InodeOps;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inode").field(self.stat()).finish()
    }
}

impl MapFile for Inode {
    fn map(&self, pos: FilePos, len: u64) -> Result<Iomap> {
        self.0.map(pos, len)
    }

    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        self.0.map_resident(pos)
    }

    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.0.read_inline(buf, pos)
    }
}
