//! Copies deleted files out of a volume.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ironmap::bio::Buffer;
use ironmap::units::FilePos;
use ironmap::{Deleted, Error, Location};
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use crate::ahead::CHUNK;
use crate::failure::Failure;
use crate::quote;
use crate::report::Report;
use crate::stop::Stop;
use crate::target::inode_of;

/// The options for copying deleted files.
#[derive(Clone, Copy, Debug)]
pub struct Recovery<'a> {
    /// The volume, for messages.
    pub volume: &'a Location,
    /// The directory that receives the copies.
    pub dir: &'a Path,
    /// Whether incomplete files are copied too.
    pub partial: bool,
}

/// Copies deleted files into a directory, and prints a line for each. The failure of a file is reported, and the copy continues.
///
/// # Errors
/// Fails if the directory cannot be made.
pub fn recover(files: &[&Deleted], to: &Recovery<'_>, report: &mut Report) -> Result<(), Failure> {
    recover_each(files, to, report, &mut |file, copied, report| {
        let path = copied.map_err(Clone::clone)?;
        if !file.is_whole() {
            report.warning(format!("{}: {}", path.display(), state(file)));
        }
        report.say(format!("{} <- {}", path.display(), shown(file)))
    })
}

/// A function that receives the result of each file.
pub(crate) type Recovered<'a> =
    dyn FnMut(&Deleted, Result<&Path, &Failure>, &mut Report) -> Result<(), Failure> + 'a;

/// Copies deleted files into a directory. `each` receives the path of each copy, or the failure. An error of `each` is reported, and the
/// copy continues.
///
/// # Errors
/// Fails if `dir` cannot be made.
pub(crate) fn recover_each(
    files: &[&Deleted],
    to: &Recovery<'_>,
    report: &mut Report,
    each: &mut Recovered<'_>,
) -> Result<(), Failure> {
    let root = Root::make(to.dir)?;
    let mut buffer = Buffer::aligned(CHUNK).map_err(|error| Failure::at("memory", &error))?;
    report.each(files, |file, report| {
        report.stop().check()?;
        let copied = recover_one(file, to, &root, &mut buffer, report.stop());
        each(file, copied.as_deref(), report)
    })
}

fn recover_one(
    file: &Deleted,
    to: &Recovery<'_>,
    root: &Root<'_>,
    buffer: &mut Buffer,
    stop: &Stop,
) -> Result<PathBuf, Failure> {
    let name = format!("{}:{}", to.volume, shown(file));
    if !file.is_whole() && !to.partial {
        return Err(Failure::new(format!(
            "{name}: this file is copied only with --partial: {}",
            state(file)
        )));
    }
    let (out, path) = root.place(file).map_err(|(path, errno)| {
        Failure::host(format_args!("{name}: {}", path.display()), errno)
    })?;
    copy(file, &out, buffer, stop).map_err(|error| {
        let is_wanted = to.partial && matches!(error, Wrong::Reading(_));
        if !is_wanted {
            // The incomplete copy is removed, because it could be mistaken for a complete file. The code ignores an error of the removal,
            // because it would hide the error of the copy.
            let _ = std::fs::remove_file(&path);
        }
        match error {
            Wrong::Reading(error) => Failure::at(&name, &error),
            Wrong::Writing(error) => {
                Failure::host(format_args!("{name}: {}", path.display()), error)
            }
            Wrong::Stopped(stopped) => stopped,
        }
    })?;
    Ok(path)
}

/// Returns the path of a deleted file, or its inode number if no name is known.
pub fn shown(file: &Deleted) -> String {
    match &file.path {
        Some(path) => quote::name(path),
        None => format!("<{}>", file.number()),
    }
}

/// Describes the state of a deleted file: complete, or the reason why it is not.
pub fn state(file: &Deleted) -> String {
    let reused = file.blocks - file.free;
    match &file.problem {
        Some(problem) => problem.clone(),
        None if reused > 0 => {
            format!("{reused} of {} blocks are reused by other files", file.blocks)
        }
        None => "whole".to_owned(),
    }
}

/// The directory that receives the copies. A symbolic link below this directory could lead to any file of the host, so each component of a
/// path is opened separately, and symbolic links are not followed.
struct Root<'a> {
    dir: &'a Path,
    fd: OwnedFd,
}

impl<'a> Root<'a> {
    /// Opens the directory, and makes it if it is missing.
    fn make(dir: &'a Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::host(dir.display(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(dir, how, Mode::empty());
        Ok(Self { dir, fd: opened.map_err(|errno| failed(errno.into()))? })
    }

    /// Makes the file for a copy, and the directories above it. An error contains the path of the file.
    fn place(&self, file: &Deleted) -> Result<(File, PathBuf), (PathBuf, Errno)> {
        let suffix = format!(".inode-{}", file.number());
        // A path from the library has no `.` or `..`. It begins with a slash, or with the inode number of a directory, as in `<12>/name`.
        let path = match &file.path {
            Some(path) => match inode_of(path) {
                Some((dir, below)) => [format!("inode-{dir}").as_bytes(), below].concat(),
                None => path[1..].to_vec(),
            },
            None => suffix.as_bytes()[1..].to_vec(),
        };
        let names: Vec<_> = path.split(|byte| *byte == b'/').collect();
        let (mut above, mut path) = (None::<OwnedFd>, self.dir.to_owned());
        for name in &names[..names.len() - 1] {
            let parent = above.as_ref().unwrap_or(&self.fd).as_fd();
            above = Some(free_name(parent, name, &suffix, &mut path, subdirectory)?);
        }
        let parent = above.as_ref().unwrap_or(&self.fd).as_fd();
        let made = free_name(parent, names[names.len() - 1], &suffix, &mut path, new_file)?;
        Ok((made.into(), path))
    }
}

/// Makes a file or directory in a directory, and adds its name to the path. If the name exists, appends a suffix to it, because another
/// deleted file may have had the same name.
fn free_name(
    parent: BorrowedFd<'_>,
    name: &[u8],
    suffix: &str,
    path: &mut PathBuf,
    make: impl Fn(BorrowedFd<'_>, &OsStr) -> rustix::io::Result<OwnedFd>,
) -> Result<OwnedFd, (PathBuf, Errno)> {
    let name = OsStr::from_bytes(name);
    path.push(name);
    match make(parent, name) {
        Err(Errno::EXIST | Errno::NOTDIR | Errno::LOOP) => {
            let mut other = name.to_owned();
            other.push(suffix);
            path.set_file_name(&other);
            make(parent, &other)
        }
        made => made,
    }
    .map_err(|errno| (path.clone(), errno))
}

/// Opens a directory, and makes it if it is missing. A new directory is accessible only to its owner, because its original mode is not
/// known.
fn subdirectory(parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, how, Mode::empty())
}

fn new_file(parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    openat(parent, name, how, Mode::RUSR | Mode::WUSR)
}

/// Copies the content, the permissions and the modification time. Ranges without blocks become holes.
fn copy(file: &Deleted, out: &File, buffer: &mut Buffer, stop: &Stop) -> Result<(), Wrong> {
    copy_content(file, out, buffer, stop)?;
    let modified = &file.stat.modified;
    let since = Duration::new(u64::try_from(modified.seconds).unwrap_or(0), modified.nanoseconds);
    out.set_modified(SystemTime::UNIX_EPOCH + since).map_err(Wrong::Writing)?;
    out.set_permissions(Permissions::from_mode(file.stat.mode & 0o777)).map_err(Wrong::Writing)
}

enum Wrong {
    Reading(Error),
    Writing(std::io::Error),
    /// A signal has stopped the copy.
    Stopped(Failure),
}

fn copy_content(file: &Deleted, out: &File, buffer: &mut Buffer, stop: &Stop) -> Result<(), Wrong> {
    let mut pos = FilePos(0);
    while let Some(data) = file.next_data(pos) {
        stop.check().map_err(Wrong::Stopped)?;
        let count = file.read_at(&mut *buffer, data).map_err(Wrong::Reading)?;
        let bytes = &buffer[..count];
        if bytes.iter().any(|byte| *byte != 0) {
            out.write_all_at(bytes, data.0).map_err(Wrong::Writing)?;
        }
        pos.0 = data.0 + count as u64;
    }
    out.set_len(file.stat.size).map_err(Wrong::Writing)
}
