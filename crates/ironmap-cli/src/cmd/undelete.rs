//! `ironmap undelete`: recovers deleted files whose maps still exist.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, Permissions};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ironmap::bio::Buffer;
use ironmap::fs::Timestamp;
use ironmap::units::FilePos;
use ironmap::{Deleted, Error, Location};
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;
use serde::Serialize;

use crate::ahead::CHUNK;
use crate::failure::{Failure, Report};
use crate::glob::Glob;
use crate::interrupt;
use crate::output::{Encoding, JsonArray};
use crate::show::{Clock, rfc3339};
use crate::source::Source;
use crate::target;
use crate::terminal::{self, stdout};

/// Lists deleted regular files whose blocks are still known, and copies them out
///
/// ext2 and debugfs leave the maps of deleted files in their inodes. Otherwise they remain in older copies of inodes in the journal, until it
/// overwrites them. A file is whole if its map is complete and none of its blocks is in use again. A block that was used and freed again
/// cannot be told from one that was not. The volume is never changed; do not mount it for writing before.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap undelete /dev/sdb1
  ironmap undelete disk.img '*.txt' -o rescued
  ironmap undelete disk.img '<1234>' -o rescued
  ironmap undelete --json disk.img | jq '.[] | select(.whole)'")]
pub(crate) struct Args {
    /// List the files, which is the default without -o
    #[arg(short, long, conflicts_with = "output")]
    list: bool,
    /// Copy the files into this directory, by their paths, or as inode-N if no name is known. No file is overwritten, and no symbolic link
    /// below it is followed: a name that exists gets .inode-N
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Copy also files that are not whole: reused blocks have other data, and unknown blocks are zeros
    #[arg(long, requires = "output")]
    partial: bool,
    /// Write a JSON array
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// The volume
    #[arg(value_name = "VOLUME", value_parser = target::volume())]
    volume: Location,
    /// Only files whose path or last name matches: *, ?, [a-z]; or inode N, written `<N>`
    #[arg(value_name = "PATTERN")]
    pattern: Option<OsString>,
}

/// A file in the output of `--json`.
#[derive(Serialize)]
struct Record {
    inode: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Encoding::is_utf8")]
    encoding: Encoding,
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted: Option<String>,
    modified: String,
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    blocks: u64,
    free_blocks: u64,
    whole: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    interrupt::catch();
    let source = Source::open(&args.volume)?;
    let deleted = source.ext4()?.deleted();
    let deleted = deleted.map_err(|error| Failure::at(&args.volume, &error))?;
    let wanted = Wanted::new(args.pattern.as_ref().map(|pattern| pattern.as_bytes()));
    let files: Vec<_> = deleted.iter().filter(|file| wanted.has(file)).collect();
    if files.is_empty() && args.pattern.is_some() {
        return Err(Failure::new(format!("{}: no deleted file matches", args.volume)));
    }
    if args.json {
        let mut array = JsonArray::new();
        files.iter().try_for_each(|file| array.push(&record(file)))?;
        return array.end();
    }
    let Some(dir) = &args.output else { return Ok(print(&files)?) };
    let root = Root::make(dir)?;
    let mut buffer = Buffer::aligned(CHUNK).map_err(|error| Failure::at("memory", &error))?;
    report.each(&files, |file, report| {
        interrupt::check()?;
        let name = format!("{}:{}", args.volume, shown(file));
        if !file.is_whole() && !args.partial {
            return Err(Failure::new(format!(
                "{name}: not copied without --partial: {}",
                state(file)
            )));
        }
        let (out, path) = root.place(file).map_err(|(path, errno)| {
            Failure::host(format_args!("{name}: {}", path.display()), errno)
        })?;
        copy(file, &out, &mut buffer).map_err(|error| {
            let is_wanted = args.partial && matches!(error, Wrong::Reading(_));
            if !is_wanted {
                // A partial file could be mistaken for the whole. An error of the removal would hide the first error.
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

/// The requested files.
enum Wanted {
    All,
    Inode(u64),
    Names(Glob),
}

impl Wanted {
    fn new(pattern: Option<&[u8]>) -> Self {
        match pattern {
            None => Self::All,
            Some(text) => match target::inode_of(text) {
                Some((number, [])) => Self::Inode(number.0),
                _ => Self::Names(Glob::new(text, false)),
            },
        }
    }

    fn has(&self, file: &Deleted) -> bool {
        match self {
            Self::All => true,
            Self::Inode(number) => file.number().0 == *number,
            Self::Names(glob) => file.path.as_ref().is_some_and(|path| {
                let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                glob.matches(path) || glob.matches(name)
            }),
        }
    }
}

/// The path, or the inode number if no name is known.
fn shown(file: &Deleted) -> String {
    match &file.path {
        Some(path) => terminal::name(path),
        None => format!("<{}>", file.number()),
    }
}

fn state(file: &Deleted) -> String {
    let reused = file.blocks - file.free;
    match &file.problem {
        Some(problem) => problem.clone(),
        None if reused > 0 => format!("partly reused: {reused} of {} blocks", file.blocks),
        None => "whole".to_owned(),
    }
}

fn deletion(file: &Deleted) -> Option<Timestamp> {
    file.deleted.map(|seconds| Timestamp { seconds: seconds.into(), nanoseconds: 0 })
}

/// Prints a line for each file: inode, time of the deletion, size, share of the blocks that are free, path, and the problem.
fn print(files: &[&Deleted]) -> std::io::Result<()> {
    let (mut out, clock) = (stdout(), Clock::local());
    for file in files {
        let deleted = deletion(file).map_or_else(|| "-".to_owned(), |at| clock.minutes(at));
        let share = (file.free * 100).checked_div(file.blocks).unwrap_or(100);
        let (inode, size, state) = (file.number().0, file.stat.size, state(file));
        writeln!(out, "{inode:>8} {deleted:<16} {size:>12} {share:>3}% {} ({state})", shown(file))?;
    }
    out.flush()
}

fn record(file: &Deleted) -> Record {
    let encoding = Encoding::of(file.path.as_deref());
    let stat = &file.stat;
    Record {
        inode: stat.inode.0,
        path: file.path.as_ref().map(|path| encoding.text(path)),
        encoding,
        deleted: deletion(file).map(rfc3339),
        modified: rfc3339(stat.modified),
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        blocks: file.blocks,
        free_blocks: file.free,
        whole: file.is_whole(),
        problem: file.problem.clone(),
    }
}

/// The directory that receives the files. A symbolic link below it could lead to any file of the host: each component is opened separately, and no
/// link is followed.
struct Root<'a> {
    dir: &'a Path,
    fd: OwnedFd,
}

impl<'a> Root<'a> {
    /// Opens the directory, or creates it.
    fn make(dir: &'a Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::host(dir.display(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(dir, how, Mode::empty());
        Ok(Self { dir, fd: opened.map_err(|errno| failed(errno.into()))? })
    }

    /// Creates the file to copy to, and the directories above it. Returns its path, also with an error.
    fn place(&self, file: &Deleted) -> Result<(File, PathBuf), (PathBuf, Errno)> {
        let suffix = format!(".inode-{}", file.number());
        // A path from the library begins with a slash, and contains neither `.` nor `..`.
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

/// Creates something with this name in a directory, and adds the name to the path. If the name exists, perhaps because another deleted file
/// had it too, the suffix makes it unique.
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

/// Opens a directory, or creates it. Only its owner has access: the modes of deleted directories are unknown.
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

/// Copies content, permissions and the modification time. Ranges without blocks become holes.
fn copy(file: &Deleted, out: &File, buffer: &mut Buffer) -> Result<(), Wrong> {
    copy_content(file, out, buffer)?;
    let modified = &file.stat.modified;
    let since = Duration::new(u64::try_from(modified.seconds).unwrap_or(0), modified.nanoseconds);
    out.set_modified(SystemTime::UNIX_EPOCH + since).map_err(Wrong::Writing)?;
    out.set_permissions(Permissions::from_mode(file.stat.mode & 0o777)).map_err(Wrong::Writing)
}

enum Wrong {
    Reading(Error),
    Writing(std::io::Error),
    /// A signal stopped the copy.
    Stopped(Failure),
}

fn copy_content(file: &Deleted, out: &File, buffer: &mut Buffer) -> Result<(), Wrong> {
    let mut pos = FilePos(0);
    while let Some(data) = file.next_data(pos) {
        interrupt::check().map_err(Wrong::Stopped)?;
        let count = file.read_at(&mut *buffer, data).map_err(Wrong::Reading)?;
        let bytes = &buffer[..count];
        if bytes.iter().any(|byte| *byte != 0) {
            out.write_all_at(bytes, data.0).map_err(Wrong::Writing)?;
        }
        pos.0 = data.0 + count as u64;
    }
    out.set_len(file.stat.size).map_err(Wrong::Writing)
}
