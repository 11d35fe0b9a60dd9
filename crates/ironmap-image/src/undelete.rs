//! Deleted files, copied out of a volume.

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

/// How deleted files are copied out.
#[derive(Clone, Copy, Debug)]
pub struct Recovery<'a> {
    /// The volume, for messages.
    pub volume: &'a Location,
    /// The directory that they are copied into.
    pub dir: &'a Path,
    /// Files that are not whole are copied too.
    pub partial: bool,
}

/// Copies deleted files into a directory. Failures go to the report, one by one, and the rest goes on.
///
/// # Errors
/// The directory cannot be made.
pub fn recover(files: &[&Deleted], to: &Recovery<'_>, report: &mut Report) -> Result<(), Failure> {
    let root = Root::make(to.dir)?;
    let mut buffer = Buffer::aligned(CHUNK).map_err(|error| Failure::at("memory", &error))?;
    report.each(files, |file, report| {
        report.stop().check()?;
        let name = format!("{}:{}", to.volume, shown(file));
        if !file.is_whole() && !to.partial {
            return Err(Failure::new(format!(
                "{name}: not copied without --partial: {}",
                state(file)
            )));
        }
        let (out, path) = root.place(file).map_err(|(path, errno)| {
            Failure::host(format_args!("{name}: {}", path.display()), errno)
        })?;
        copy(file, &out, &mut buffer, report.stop()).map_err(|error| {
            let is_wanted = to.partial && matches!(error, Wrong::Reading(_));
            if !is_wanted {
                // A part of a file would be taken for the whole. An error of the removal would hide this one.
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
        if !file.is_whole() {
            report.warning(format!("{}: {}", path.display(), state(file)));
        }
        report.say(format!("{} <- {}", path.display(), shown(file)))
    })
}

/// Its path, or its number where no name is known.
pub fn shown(file: &Deleted) -> String {
    match &file.path {
        Some(path) => quote::name(path),
        None => format!("<{}>", file.number()),
    }
}

/// Whether it is whole, or its problem.
pub fn state(file: &Deleted) -> String {
    let reused = file.blocks - file.free;
    match &file.problem {
        Some(problem) => problem.clone(),
        None if reused > 0 => format!("partly reused: {reused} of {} blocks", file.blocks),
        None => "whole".to_owned(),
    }
}

/// The directory that files are copied into. A symbolic link below it could lead to any file of the host: each name is opened by itself,
/// and none is followed.
struct Root<'a> {
    dir: &'a Path,
    fd: OwnedFd,
}

impl<'a> Root<'a> {
    /// Opens it; makes it if it is missing.
    fn make(dir: &'a Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::host(dir.display(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(dir, how, Mode::empty());
        Ok(Self { dir, fd: opened.map_err(|errno| failed(errno.into()))? })
    }

    /// Makes the file that one is copied to, and the directories above it; gives its path, also with an error.
    fn place(&self, file: &Deleted) -> Result<(File, PathBuf), (PathBuf, Errno)> {
        let suffix = format!(".inode-{}", file.number());
        // A path of the library begins with a slash, and has neither `.` nor `..`.
        let path = match &file.path {
            Some(path) => path[1..].to_vec(),
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

/// Makes something of this name in a directory, and adds the name to the path. If the name is taken, which another deleted file may have
/// had too, the suffix makes it another one.
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

/// Opens a directory, which is made if it is missing. It is for its owner alone: modes of directories are not known.
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

/// Copies content, permissions and time of the last change. Ranges without blocks become holes.
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
    /// By a signal.
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
