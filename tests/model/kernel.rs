//! Carries out the operations of the model with system calls on a mounted file system.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path as HostPath, PathBuf};

use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, RenameFlags, XattrFlags};

use crate::op::{Op, Path, Renaming, Space, target};
use crate::{Answer, Seen, Target, Tree};

pub(crate) struct Kernel<'a> {
    dir: &'a HostPath,
}

impl<'a> Kernel<'a> {
    pub(crate) fn new(dir: &'a HostPath) -> Self {
        rustix::process::umask(Mode::empty());
        Self { dir }
    }

    fn path(&self, path: &Path) -> PathBuf {
        path.iter().fold(self.dir.to_owned(), |dir, name| dir.join(name))
    }

    fn open(&self, path: &Path) -> std::io::Result<File> {
        // The open of a pipe without O_NONBLOCK would wait for a writer.
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.path(path))
    }

    /// Opens a regular file. For a file of another type, the system call returns another error than an operation of ironmap. This function
    /// returns the error of ironmap's operation.
    fn regular(&self, path: &Path) -> Result<File, i32> {
        let file = self.open(path).map_err(|error| error.raw_os_error().unwrap_or(0))?;
        let kind = FileType::from_raw_mode(file.metadata().map_or(0, |meta| meta.mode()));
        if kind == FileType::RegularFile { Ok(file) } else { Err(22) }
    }
}

fn io<T>(result: std::io::Result<T>) -> Answer {
    result.map(drop).map_err(|error| error.raw_os_error().unwrap_or(0))
}

fn os<T>(result: rustix::io::Result<T>) -> Answer {
    result.map(drop).map_err(rustix::io::Errno::raw_os_error)
}

impl Target for Kernel<'_> {
    fn apply(&mut self, op: &Op) -> Answer {
        let cwd = rustix::fs::CWD;
        match op {
            Op::Create(path, mode) => {
                let mut options = OpenOptions::new();
                io(options.write(true).create_new(true).mode(*mode).open(self.path(path)))
            }
            Op::Mkdir(path, mode) => {
                os(rustix::fs::mkdir(self.path(path), Mode::from_raw_mode(*mode)))
            }
            Op::Symlink(path, len) => {
                let target = CString::new(target(*len)).unwrap();
                os(rustix::fs::symlink(&target, self.path(path)))
            }
            Op::Fifo(path) => {
                let mode = Mode::from_raw_mode(0o600);
                os(rustix::fs::mknodat(cwd, self.path(path), FileType::Fifo, mode, 0))
            }
            Op::Unlink(path) => os(rustix::fs::unlink(self.path(path))),
            Op::Rmdir(path) => os(rustix::fs::rmdir(self.path(path))),
            Op::Link(from, to) => {
                os(rustix::fs::linkat(cwd, self.path(from), cwd, self.path(to), AtFlags::empty()))
            }
            Op::Rename(from, to, how) => {
                let flags = match how {
                    Renaming::Plain => RenameFlags::empty(),
                    Renaming::NoReplace => RenameFlags::NOREPLACE,
                    Renaming::Exchange => RenameFlags::EXCHANGE,
                };
                os(rustix::fs::renameat_with(cwd, self.path(from), cwd, self.path(to), flags))
            }
            Op::Write(path, pos, len, byte) => {
                io(self.regular(path)?.write_all_at(&vec![*byte; *len], *pos))
            }
            Op::Truncate(path, size) => io(self.regular(path)?.set_len(*size)),
            Op::Fallocate(path, how, pos, len) => {
                let file = self.open(path).map_err(|error| error.raw_os_error().unwrap_or(0))?;
                let keep = FallocateFlags::KEEP_SIZE;
                let flags = match how {
                    Space::Allocate => FallocateFlags::empty(),
                    Space::KeepSize => keep,
                    Space::Punch => keep | FallocateFlags::PUNCH_HOLE,
                    Space::Zero => keep | FallocateFlags::ZERO_RANGE,
                    Space::Collapse => FallocateFlags::COLLAPSE_RANGE,
                    Space::Insert => FallocateFlags::INSERT_RANGE,
                };
                os(rustix::fs::fallocate(file, flags, *pos, *len))
            }
            Op::Chmod(path, mode) => {
                let path = self.path(path);
                let link = std::fs::symlink_metadata(&path).map(|meta| meta.is_symlink());
                match link {
                    // No system call changes the mode of a link, because `open` would follow the link.
                    Ok(true) => Err(40),
                    _ => os(rustix::fs::chmod(path, Mode::from_raw_mode(*mode))),
                }
            }
            Op::Chown(path, uid, gid) => {
                io(std::os::unix::fs::lchown(self.path(path), Some(*uid), Some(*gid)))
            }
            Op::SetXattr(path, name, len, byte) => {
                let value = vec![*byte; *len];
                os(rustix::fs::lsetxattr(self.path(path), *name, &value, XattrFlags::empty()))
            }
            Op::RemoveXattr(path, name) => os(rustix::fs::lremovexattr(self.path(path), *name)),
        }
    }

    fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut todo = vec![(String::new(), self.dir.to_owned())];
        while let Some((path, dir)) = todo.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                if name == "lost+found" {
                    continue;
                }
                let path = format!("{path}/{name}");
                if entry.file_type().unwrap().is_dir() {
                    todo.push((path.clone(), entry.path()));
                }
                tree.insert(path, seen(&entry.path()));
            }
        }
        tree
    }
}

fn seen(path: &HostPath) -> Seen {
    let meta = std::fs::symlink_metadata(path).unwrap();
    let content = if meta.is_file() {
        std::fs::read(path).unwrap()
    } else if meta.is_symlink() {
        std::fs::read_link(path).unwrap().into_os_string().into_encoded_bytes()
    } else {
        Vec::new()
    };
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut xattrs = BTreeMap::new();
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 4096];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(len);
        xattrs.insert(name.to_vec(), value);
    }
    Seen {
        mode: meta.mode(),
        links: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        content,
        xattrs,
    }
}
