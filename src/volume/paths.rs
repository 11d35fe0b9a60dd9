//! Operations on the files of a volume by path, similar to `std::fs`. Each path begins at the root of the volume, with or without a leading
//! slash.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Volume, check_options};
use crate::device::{Engine, NoIoUring, QueueOptions};
use crate::error::{Context, Error, ErrorKind, Place, Result};
use crate::file::{File, FileOptions};
use crate::files::Files;
use crate::fs::{
    Credentials, DirCursor, DirEntry, FileType, Follow, Held, Inode, NewFile, RenameFlags, Stat,
    Writer, path,
};
use crate::queue::Queue;
use crate::units::InodeNo;

/// The maximum depth of a tree that can be removed. A deeper tree is an error, because most likely a directory contains itself.
const MAX_DEPTH: usize = 4096;

/// The maximum number of consecutive directory listings from which no name could be removed. A listed name can be missing because another
/// thread has removed it.
const MAX_FRUITLESS: u32 = 64;

/// The entries of a directory.
pub type DirEntries = Box<dyn Iterator<Item = Result<DirEntry>> + Send>;

/// A name and its directory. The name need not exist. The directory is kept open, so that its inode number is not reused if another thread
/// removes the directory.
struct Name<'a> {
    dir: Held,
    name: &'a [u8],
}

impl<'a> Name<'a> {
    /// Returns the directory's inode number and the name, for the operations of [`Writer`]. The number is valid while this value exists.
    fn place(&self) -> (InodeNo, &'a [u8]) {
        (self.dir.number(), self.name)
    }
}

/// Whether the path ends with a slash. Such a path can only name a directory.
fn asks_for_directory(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

impl Files for Volume {
    fn open_with(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File> {
        let path = path.as_ref();
        check_options(&options).at(|| path.display())?;
        if options.create_new {
            return self.create_new(path, options);
        }
        let find = || self.find_or_create(path, &options);
        path::open_found(find, |inode| self.open_inode(inode, options).at(|| path.display()))
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        Self::queue(self, options)
    }

    fn engine(&self) -> Engine {
        Self::engine(self)
    }

    fn no_io_uring(&self) -> Option<NoIoUring> {
        self.no_io_uring
    }
}

impl Volume {
    /// Returns the attributes of a file, as `stat` does. Follows a symbolic link at the end of the path.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `Loop`, `Corrupt`.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Stat> {
        Ok(self.resolve(path.as_ref(), Follow::All)?.stat().clone())
    }

    /// Returns the attributes of a file, as `lstat` does. Does not follow a symbolic link at the end of the path.
    ///
    /// # Errors
    /// The errors of [`metadata`](Self::metadata).
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Stat> {
        Ok(self.resolve(path.as_ref(), Follow::NotLast)?.stat().clone())
    }

    /// Whether a file exists at this path.
    ///
    /// # Errors
    /// The errors of [`metadata`](Self::metadata), except `NotFound` and `NotADirectory`.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.resolve(path.as_ref(), Follow::All) {
            Ok(_) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the entries of a directory except `.` and `..`, in the order of the directory.
    ///
    /// # Errors
    /// The errors of [`metadata`](Self::metadata); `Encrypted`. Each entry can be an error. If a block of the directory is damaged, the iterator
    /// returns the entries of the other blocks, and then the error `Corrupt`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<DirEntries> {
        let path = path.as_ref();
        let (number, list) = path::open_found(
            || self.resolve(path, Follow::All),
            |dir| {
                let list = dir.list(DirCursor::START).at(|| path.display())?;
                Ok((dir.stat().inode, list))
            },
        )?;
        let is_named = |entry: &Result<DirEntry>| !matches!(entry, Ok(entry) if entry.name == b"." || entry.name == b"..");
        let (fs, shown) = (Arc::clone(&self.fs), path.display().to_string());
        let lost = std::iter::once_with(move || {
            let error =
                || Place::new("directory").inode(number).corrupt("some names cannot be read");
            fs.has_lost_names(number).then(|| Err(error().at(shown)))
        });
        Ok(Box::new(list.filter(is_named).chain(lost.flatten())))
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// The errors of [`metadata`](Self::metadata); `WrongFileType` if the file is not a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let (_held, link) = self.hold(path, Follow::NotLast)?;
        let target = link.read_link();
        target.map(|target| OsString::from_vec(target).into()).at(|| path.display())
    }

    /// Returns the content of a file.
    ///
    /// # Errors
    /// The errors of [`open`](Files::open) and [`File::read_at`]; `LimitExceeded` if there is not enough memory.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let file = self.open(path)?;
        let mut queue = self.queue(&QueueOptions::new())?;
        file.read_all(&mut queue).at(|| path.display())
    }

    /// Replaces the content of a file, or creates the file if it does not exist. The content is durable after the next
    /// [`sync`](Self::sync).
    ///
    /// # Errors
    /// The errors of [`open_with`](Files::open_with) and [`File::write_at`].
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let file =
            self.open_with(path, FileOptions::new().write(true).create(true).truncate(true))?;
        let mut queue = self.queue(&QueueOptions::new())?;
        file.write_all_at(&mut queue, content.as_ref(), 0).at(|| path.display())
    }

    /// Creates a directory with the permissions 0755. It belongs to user 0 and group 0.
    ///
    /// # Errors
    /// `Exists`, `NotFound` (for the parent), `NotADirectory`, `NameTooLong`, `NoSpace`, `Quota`, `ReadOnly`.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create(path.as_ref(), NewFile::Directory, 0o755, (0, 0)).map(drop)
    }

    /// Creates a directory and all missing parents. Directories that already exist stay unchanged.
    ///
    /// # Errors
    /// The errors of [`create_dir`](Self::create_dir); `NotADirectory` if a part of the path is a file of another type.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let whole = path.as_os_str().as_bytes();
        let ends = whole.iter().enumerate().filter(|(at, byte)| **byte == b'/' && *at > 0);
        let ends = ends.map(|(at, _)| at).chain([whole.len()]);
        for end in ends {
            let part = Path::new(std::ffi::OsStr::from_bytes(&whole[..end]));
            if self.is_directory(part)? {
                continue;
            }
            match self.create_dir(part) {
                // Another thread may have created the directory since the check, so the error `Exists` counts as success if a directory
                // exists now.
                Err(error) if error.kind() == ErrorKind::Exists && self.is_directory(part)? => {}
                made => made?,
            }
        }
        Ok(())
    }

    /// Creates a symbolic link to `target`. It belongs to user 0 and group 0.
    ///
    /// # Errors
    /// The errors of [`create_dir`](Self::create_dir).
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        self.create(link.as_ref(), NewFile::Symlink(target), 0o777, (0, 0)).map(drop)
    }

    /// Adds another name (a hard link) to a file.
    ///
    /// # Errors
    /// The errors of [`create_dir`](Self::create_dir); `NotPermitted` for directories, `TooManyLinks`.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (original, link) = (original.as_ref(), link.as_ref());
        let (_held, inode) = self.hold(original, Follow::NotLast)?;
        let Name { dir, name } = self.new_file_name(link)?;
        self.writable(link)?.link(inode.number(), dir.number(), name).at(|| link.display())
    }

    /// Renames a file atomically. If a file with the new name exists, it is replaced.
    ///
    /// # Errors
    /// `NotFound`; `Exists`, `NotEmpty`, `IsADirectory`, `NotADirectory` if the file with the new name cannot be replaced; the errors of
    /// [`create_dir`](Self::create_dir).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let (old, new) = (self.name(from)?, self.name(to)?);
        let (old, new) = (old.place(), new.place());
        if asks_for_directory(from) || asks_for_directory(to) {
            self.require_directory(old).at(|| from.display())?;
        }
        let writer = self.writable(from)?;
        let moved = writer.rename(old, new, RenameFlags::empty(), &Credentials::default());
        moved.context(|| format!("{} to {}", from.display(), to.display()))
    }

    /// Removes a name of a file that is not a directory. If it was the last name, the file itself is removed once no handle has it open.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `NotPermitted`, `ReadOnly`.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let Name { dir, name } = self.name(path)?;
        if asks_for_directory(path) {
            self.require_directory((dir.number(), name)).at(|| path.display())?;
        }
        self.writable(path)?.unlink(dir.number(), name).at(|| path.display())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NotEmpty`, `NotPermitted`, `ReadOnly`.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let Name { dir, name } = self.name(path)?;
        self.writable(path)?.rmdir(dir.number(), name).at(|| path.display())
    }

    /// Removes a directory with all of its contents, or a symbolic link. Symbolic links in the directory are removed but not followed. Each
    /// name is removed in a separate transaction, so some names may remain after a crash.
    ///
    /// # Errors
    /// The errors of [`remove_dir`](Self::remove_dir). Names that were removed before the error stay removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let Name { dir, name } = self.name(path)?;
        let is_link = self.fs.lookup(dir.number(), name).at(|| path.display())?.file_type();
        if is_link == FileType::Symlink && !asks_for_directory(path) {
            return self.writable(path)?.unlink(dir.number(), name).at(|| path.display());
        }
        self.remove_tree(dir, name).at(|| path.display())
    }

    /// Makes all changes durable whose calls have returned (`syncfs`).
    ///
    /// # Errors
    /// `Io`; `ReadOnly` after an earlier error, in which case changes may be lost.
    pub fn sync(&self) -> Result<()> {
        self.fs.sync()
    }

    fn resolve(&self, path: &Path, follow: Follow) -> Result<Inode> {
        self.fs.resolve(path.as_os_str().as_bytes(), follow)
    }

    fn hold(&self, path: &Path, follow: Follow) -> Result<(Held, Inode)> {
        self.fs.hold_path(path.as_os_str().as_bytes(), follow)
    }

    /// Whether a directory exists at this path. A file of another type is an error.
    fn is_directory(&self, path: &Path) -> Result<bool> {
        match self.resolve(path, Follow::All) {
            Ok(found) if found.file_type() == FileType::Directory => Ok(true),
            Ok(_) => {
                let error = Error::new(ErrorKind::NotADirectory, "is not a directory");
                Err(error.at(path.display()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Splits a path into its directory and its last name.
    fn name<'a>(&self, whole: &'a Path) -> Result<Name<'a>> {
        let bytes = whole.as_os_str().as_bytes();
        let refused = |what| Err(Error::invalid(what).at(whole.display()));
        match path::split(bytes) {
            (_, b"") => refused("the root has no name"),
            (_, b"." | b"..") => refused("the path ends with . or .., which is not a name"),
            (parent, name) => {
                let (held, dir) = self.fs.hold_path(parent, Follow::All)?;
                match dir.file_type() {
                    FileType::Directory => Ok(Name { dir: held, name }),
                    _ => {
                        let error = Error::new(
                            ErrorKind::NotADirectory,
                            "the parent of the path is not a directory",
                        );
                        Err(error.at(whole.display()))
                    }
                }
            }
        }
    }

    /// Returns the directory and the name of a new file that is not a directory. A path that ends with a slash is an error: `Exists` if the
    /// name exists, and `NotFound` if it does not exist.
    fn new_file_name<'a>(&self, path: &'a Path) -> Result<Name<'a>> {
        let name = self.name(path)?;
        if asks_for_directory(path) {
            self.fs.lookup(name.dir.number(), name.name).at(|| path.display())?;
            let error = Error::new(ErrorKind::Exists, "a file with this name exists");
            return Err(error.at(path.display()));
        }
        Ok(name)
    }

    /// Refuses a path that ends with a slash for a call that may create a regular file. Like the kernel, refuses the path even if the file
    /// exists.
    fn require_file_name(&self, path: &Path) -> Result<()> {
        if !asks_for_directory(path) {
            return Ok(());
        }
        let (parent, _) = path::split(path.as_os_str().as_bytes());
        self.fs.resolve(parent, Follow::All)?;
        let error = Error::new(ErrorKind::IsADirectory, "the path of a file ends with a slash");
        Err(error.at(path.display()))
    }

    fn require_directory(&self, (dir, name): (InodeNo, &[u8])) -> Result<()> {
        match self.fs.lookup(dir, name)?.file_type() {
            FileType::Directory => Ok(()),
            _ => Err(Error::new(ErrorKind::NotADirectory, "is not a directory")),
        }
    }

    /// Returns the operations that change the volume. If the volume is read-only, the error names the path.
    fn writable(&self, path: &Path) -> Result<&dyn Writer> {
        self.fs.writable().at(|| path.display())
    }

    fn create(
        &self,
        path: &Path,
        file: NewFile<'_>,
        permissions: u32,
        (uid, gid): (u32, u32),
    ) -> Result<InodeNo> {
        let Name { dir, name } = match file {
            NewFile::Directory => self.name(path)?,
            _ => self.new_file_name(path)?,
        };
        let who = Credentials { uid, gid, umask: 0 };
        self.writable(path)?
            .create(dir.number(), name, file, permissions, &who)
            .at(|| path.display())
    }

    /// Creates a file and opens it. The call opens the file that it has created, even if another thread renames or replaces the new file at
    /// the same time.
    fn create_new(&self, path: &Path, options: FileOptions) -> Result<File> {
        check_writes(&options).at(|| path.display())?;
        self.require_file_name(path)?;
        let Name { dir, name } = self.name(path)?;
        let ((uid, gid), permissions) = (options.owner, options.mode);
        let who = Credentials { uid, gid, umask: 0 };
        let held = self
            .writable(path)?
            .create_held(dir.number(), name, NewFile::Regular, permissions, &who)
            .at(|| path.display())?;
        held.inode().and_then(|inode| self.open_inode(inode, options)).at(|| path.display())
    }

    /// Returns the inode of a file that is opened by its path. If the file is missing and the options permit it, creates the file.
    fn find_or_create(&self, path: &Path, options: &FileOptions) -> Result<Inode> {
        let creates = options.create;
        if creates {
            check_writes(options).at(|| path.display())?;
        }
        let make = |path: &Path| self.create(path, NewFile::Regular, options.mode, options.owner);
        // If the path is a symbolic link to a missing file, the file is created at the target of the link. The last iteration of the loop
        // finds the created file.
        let mut path = path.to_owned();
        for _ in 0..=path::MAX_LINKS + 1 {
            if creates {
                self.require_file_name(&path)?;
            }
            match self.resolve(&path, Follow::All) {
                Err(error) if creates && error.kind() == ErrorKind::NotFound => {}
                found => return found,
            }
            match self.hold(&path, Follow::NotLast) {
                Ok((_held, link)) if link.file_type() == FileType::Symlink => {
                    let target = PathBuf::from(OsString::from_vec(link.read_link()?));
                    let (parent, _) = path::split(path.as_os_str().as_bytes());
                    path = Path::new(std::ffi::OsStr::from_bytes(parent)).join(target);
                }
                // Another thread has created the file since the path was resolved.
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => match make(&path) {
                    Err(error) if error.kind() != ErrorKind::Exists => return Err(error),
                    _ => {}
                },
                Err(error) => return Err(error),
            }
        }
        Err(path::too_many_links().at(path.display()))
    }

    /// Removes a directory and its contents. A vector contains the path to the current directory, because recursion in a deep tree could
    /// overflow the thread's stack. Other threads may remove, replace or add names at the same time.
    fn remove_tree(&self, dir: Held, name: &[u8]) -> Result<()> {
        let writer = self.fs.writable()?;
        let mut way = vec![(dir, name.to_vec())];
        let mut fruitless = 0;
        while let Some((parent, name)) = way.last().cloned() {
            match writer.rmdir(parent.number(), &name) {
                Err(error) if error.kind() == ErrorKind::NotEmpty => {}
                // Another thread has replaced the directory with a file of another type. The next listing of the parent contains this file.
                Err(error) if error.kind() == ErrorKind::NotADirectory && way.len() > 1 => {
                    way.pop();
                    continue;
                }
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {
                    fruitless = 0;
                    way.pop();
                    continue;
                }
            }
            let emptied = path::open_found(
                || self.fs.lookup(parent.number(), &name),
                |inode| {
                    let (dir, inode) = self.fs.hold_read(inode)?;
                    Ok((self.unlink_entries(dir.number(), &inode)?, dir))
                },
            );
            match emptied {
                Ok((Emptied::Below(name), dir)) => way.push((dir, name)),
                Ok((Emptied::Names, _)) => fruitless = 0,
                // In a damaged directory, a listing may contain names that a look-up does not find. The limit prevents an endless loop over
                // such names.
                Ok((Emptied::Nothing(why), _)) if fruitless == MAX_FRUITLESS => return Err(why),
                Err(error) if !is_missing(&error) || fruitless == MAX_FRUITLESS => {
                    return Err(error);
                }
                Ok((Emptied::Nothing(_), _)) | Err(_) => fruitless += 1,
            }
            if way.len() > MAX_DEPTH {
                let what = format!("the tree is more than {MAX_DEPTH} directories deep");
                return Err(Error::new(ErrorKind::Loop, what));
            }
        }
        Ok(())
    }

    /// Removes the entries of a directory, except subdirectories. Stops at the first subdirectory.
    fn unlink_entries(&self, dir: InodeNo, inode: &Inode) -> Result<Emptied> {
        let writer = self.fs.writable()?;
        let full = Error::new(ErrorKind::NotEmpty, "the directory has entries");
        let mut emptied = Emptied::Nothing(full);
        for entry in inode.list(DirCursor::START)? {
            let entry = entry?;
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            match writer.unlink(dir, &entry.name) {
                Ok(()) => emptied = Emptied::Names,
                Err(error) if error.kind() == ErrorKind::IsADirectory => {
                    return Ok(Emptied::Below(entry.name));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    if let Emptied::Nothing(why) = &mut emptied {
                        *why = error;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(emptied)
    }
}

/// The result of removing the entries of a directory.
enum Emptied {
    /// At least one name was removed.
    Names,
    /// No name was removed, for example because a listed name was not found. The error states the reason.
    Nothing(Error),
    /// The next entry is this subdirectory. All entries that were listed before it have been removed.
    Below(Vec<u8>),
}

fn check_writes(options: &FileOptions) -> Result<()> {
    if !options.writes() {
        return Err(Error::invalid("the option create needs write or append"));
    }
    Ok(())
}

fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
