//! The files of a directory of the host. ironmap reads them, and the kernel writes them.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ironmap::fs::{FileType, Stat};
use ironmap::{Errno, Error, ErrorKind, File, FileOptions, Host, Queue};
use rustix::fs::{CWD, RenameFlags};

use crate::open_files::OpenFiles;
use crate::tree::{Draft, Entries, Entry, Locked, Tree, absent, no_object, parent};

/// The name of the lock file in the directory of the drafts, which are new objects without their final names. All stores of the directory
/// lock this file. `LocalFileSystem` does not list names that end with `#` and digits.
const LOCK: &str = "lock#0";
/// The maximum number of attempts to open a file. An attempt fails if the name is given to another file at the same time.
const ATTEMPTS: usize = 100;

pub(crate) struct Directory {
    host: Host,
    root: PathBuf,
    options: FileOptions,
    open_files: OpenFiles,
    /// The directory of the drafts, which are new objects without their final names. It also contains the lock file.
    stage: &'static str,
}

impl Directory {
    pub(crate) fn new(
        host: Host,
        root: &Path,
        options: FileOptions,
        stage: &'static str,
    ) -> ironmap::Result<Self> {
        let failed = |error: io::Error| {
            let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
            Error::io(errno, format!("{}", root.display()))
        };
        let root = std::path::absolute(root).map_err(failed)?;
        if host.metadata(&root)?.file_type != FileType::Directory {
            let error = Error::new(ErrorKind::NotADirectory, "is not a directory");
            return Err(error.at(root.display()));
        }
        Ok(Self { host, root, options, open_files: OpenFiles::default(), stage })
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

/// Adds the path to an error. The kind of the error does not change.
fn named(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(named(dir))
}

fn file_type(entry: &fs::DirEntry) -> Option<FileType> {
    let found = entry.file_type().ok()?;
    if found.is_dir() {
        Some(FileType::Directory)
    } else if found.is_file() {
        Some(FileType::Regular)
    } else if found.is_symlink() {
        Some(FileType::Symlink)
    } else {
        Some(FileType::Fifo) // stands for all types that are not objects
    }
}

impl Tree for Directory {
    fn name(&self) -> String {
        self.root.display().to_string()
    }

    fn open(&self, path: &str) -> io::Result<(File, Stat)> {
        let whole = self.path(path);
        for _ in 0..ATTEMPTS {
            let found = fs::metadata(&whole).map_err(named(&whole)).map_err(absent)?;
            if !found.is_file() {
                return Err(no_object(path));
            }
            if let Some(open) = self.open_files.get(path, &found) {
                return Ok(open);
            }
            let file = self.host.open_with(&whole, self.options);
            let file = file.map_err(|error| absent(error.into()))?;
            // The inode number of an open file is not reused. Therefore, if the name leads to the inode number of the open file, it leads
            // to the open file itself.
            let stat = self.stat(path)?;
            if stat.inode == file.inode() && found.ino() == stat.inode.0 {
                self.open_files.add(path, &found, file.clone(), stat.clone());
                return Ok((file, stat));
            }
        }
        let times =
            format!("another program replaced it during each of {ATTEMPTS} attempts to open it");
        let what = format!("{}: the object was {times}", whole.display());
        Err(io::Error::new(io::ErrorKind::ResourceBusy, what))
    }

    fn stat(&self, path: &str) -> io::Result<Stat> {
        self.host.metadata(self.path(path)).map_err(|error| absent(error.into()))
    }

    fn list(&self, dir: &str) -> io::Result<Entries> {
        let dir = self.path(dir);
        let entries = fs::read_dir(&dir).map_err(named(&dir))?;
        Ok(Box::new(entries.map(move |entry| {
            let entry = entry.map_err(named(&dir))?;
            Ok(Entry { file_type: file_type(&entry), name: entry.file_name().into_vec() })
        })))
    }

    fn draft(&self, path: &str) -> io::Result<Box<dyn Draft>> {
        let path = self.path(path);
        // A new draft (the file of a new object) is not locked at first. While the directory is locked, no other process can mistake the
        // new draft for a draft that a crash has left.
        let _lock = self.lock()?;
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(named(&path))?;
        file.lock().map_err(named(&path))?;
        Ok(Box::new(HostDraft(file, path)))
    }

    fn remove_drafts(&self, dir: &str) {
        if !self.path(dir).is_dir() {
            return;
        }
        let Ok(_lock) = self.lock() else { return };
        for entry in fs::read_dir(self.path(dir)).into_iter().flatten().flatten() {
            let Ok(file) = fs::File::open(entry.path()) else { continue };
            // `try_lock` fails for the lock file, because this function has locked it. `try_lock` also fails for each draft (the file of a
            // new object) that a store is writing, because this store has locked the draft.
            if file.try_lock().is_ok() {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn create_dirs(&self, dir: &str) -> io::Result<()> {
        let whole = self.path(dir);
        fs::create_dir_all(&whole).map_err(named(&whole))?;
        // Each directory of the path may be new. Therefore the names of all directories are made durable, from the last directory to the
        // root.
        let mut dir = dir;
        while !dir.is_empty() {
            dir = parent(dir);
            sync_dir(&self.path(dir))?;
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str, replace: bool) -> io::Result<()> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        [from, to].into_iter().for_each(|path| self.open_files.close(path));
        let (from, to) = (self.path(from), self.path(to));
        let renamed = rustix::fs::renameat_with(CWD, &from, CWD, &to, flags);
        renamed.map_err(|errno| {
            let error = io::Error::from(errno);
            let what = format!("{} to {}: {error}", from.display(), to.display());
            io::Error::new(error.kind(), what)
        })
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.open_files.close(path);
        let path = self.path(path);
        fs::remove_file(&path).map_err(named(&path))
    }

    fn sync_dirs(&self, dirs: &[&str]) -> io::Result<()> {
        dirs.iter().try_for_each(|dir| sync_dir(&self.path(dir)))
    }

    fn lock(&self) -> io::Result<Box<dyn Locked + '_>> {
        let path = self.path(self.stage).join(LOCK);
        let open = || OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = open().or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => fs::create_dir(self.path(self.stage)).and_then(|()| open()),
            _ => Err(error),
        });
        let file = file.map_err(named(&path))?;
        file.lock().map_err(named(&path))?;
        Ok(Box::new(HostLock(file)))
    }
}

/// The lock of a directory. It excludes other stores in this process and in other processes.
struct HostLock(fs::File);

impl Drop for HostLock {
    fn drop(&mut self) {
        // The explicit unlock is necessary. If a child process has a copy of the descriptor, the close alone does not release the lock.
        let _ = self.0.unlock();
    }
}

struct HostDraft(fs::File, PathBuf);

impl Draft for HostDraft {
    fn write_at(&self, _queue: &mut Queue, pos: u64, bytes: &[Bytes]) -> io::Result<()> {
        let mut at = pos;
        for bytes in bytes {
            self.0.write_all_at(bytes, at).map_err(named(&self.1))?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    fn sync(&self, _queue: &mut Queue) -> io::Result<()> {
        self.0.sync_all().map_err(named(&self.1))
    }
}
