//! One side of the comparison. Runs operations on a mounted volume, and returns their visible results.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    self, AtFlags, CWD, Mode, OFlags, RenameFlags, SeekFrom, Stat, Timespec, Timestamps,
};
use rustix::io::{Errno, Result};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

use super::op::{Op, SLOTS};
use crate::aligned::aligned;

/// The result of an operation.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Count(u64),
    Bytes(Vec<u8>),
    Names(Vec<Vec<u8>>),
    Refused(Errno),
    /// The operation was skipped: the file that it uses is not open, or the two sides are known to differ (docs/MOUNT.md).
    Left,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => write!(f, "done"),
            Self::Count(count) => write!(f, "{count}"),
            Self::Bytes(bytes) => {
                write!(f, "{} bytes, CRC {:x}", bytes.len(), crc32c::crc32c(bytes))
            }
            Self::Names(names) => {
                let short = |name: &Vec<u8>| {
                    String::from_utf8_lossy(&name[..name.len().min(20)]).into_owned()
                };
                write!(f, "{:?}", names.iter().map(short).collect::<Vec<_>>())
            }
            Self::Refused(errno) => write!(f, "{errno:?}"),
            Self::Left => write!(f, "left out"),
        }
    }
}

impl<T: Into<Answer>> From<Result<T>> for Answer {
    fn from(result: Result<T>) -> Self {
        result.map_or_else(Self::Refused, Into::into)
    }
}

impl From<()> for Answer {
    fn from((): ()) -> Self {
        Self::Done
    }
}

impl From<usize> for Answer {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<u64> for Answer {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<Vec<u8>> for Answer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The visible attributes of a file. A time that was set explicitly is included. A time from the clock is omitted, because it differs
/// between the sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    mode: u32,
    links: u64,
    owner: (u32, u32),
    size: u64,
    device: u64,
    accessed: Option<(i64, u64)>,
    modified: Option<(i64, u64)>,
    /// Whether the access time, the modification time and the change time have changed.
    moved: [bool; 3],
}

/// A file that is inspected before and after an operation. The open descriptor finds the file even if the file has lost its name.
pub(super) struct Watched {
    file: OwnedFd,
    before: Stat,
}

fn times(stat: &Stat) -> [(i64, u64); 3] {
    [
        (stat.st_atime, stat.st_atime_nsec),
        (stat.st_mtime, stat.st_mtime_nsec),
        (stat.st_ctime, stat.st_ctime_nsec),
    ]
}

impl Seen {
    fn new(stat: &Stat, before: &Stat) -> Self {
        // A time from the clock is recognised by its value: it is later than any time that an operation sets explicitly.
        let set = |time: (i64, u64)| {
            (time.0 < 1_700_000_000 || time.0 == i64::from(i32::MAX)).then_some(time)
        };
        let ([accessed, modified, changed], [a, m, c]) = (times(stat), times(before));
        let directory = fs::FileType::from_raw_mode(stat.st_mode).is_dir();
        Self {
            mode: stat.st_mode,
            links: stat.st_nlink,
            owner: (stat.st_uid, stat.st_gid),
            // The size of a directory is not compared, because it depends on the splits of its blocks.
            size: if directory { 0 } else { stat.st_size as u64 },
            device: stat.st_rdev,
            accessed: set(accessed),
            modified: set(modified),
            moved: [accessed != a, modified != m, changed != c],
        }
    }
}

/// The paths of a tree. Each path has attributes, extended attributes, content, and ranges of data. The content of a symbolic link is its
/// target. Whole trees are compared in this form.
pub(super) type Tree = BTreeMap<PathBuf, (Seen, Xattrs, Vec<u8>, Vec<(u64, u64)>)>;

pub(super) struct Side {
    dir: PathBuf,
    slots: [Option<OwnedFd>; SLOTS as usize],
}

/// Pseudo-random bytes from a seed. No byte is 0, so the bytes differ from a hole.
fn content(seed: u64, len: usize) -> impl Iterator<Item = u8> {
    let mut rng = crate::rng::Rng::new(seed);
    std::iter::repeat_with(move || rng.next().to_le_bytes())
        .flatten()
        .take(len)
        .map(|byte| byte | 1)
}

impl Side {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), slots: Default::default() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.join(path)
    }

    pub(super) fn close_all(&mut self) {
        self.slots = Default::default();
    }

    /// Runs an operation as a user. The user is a member of only one group.
    pub(super) fn apply(&mut self, user: u32, op: &Op) -> Answer {
        become_user(user);
        let answer = self.work(op);
        become_user(0);
        answer
    }

    fn work(&mut self, op: &Op) -> Answer {
        match op {
            Op::Mkdir(path, mode) => fs::mkdir(self.path(path), Mode::from_raw_mode(*mode)).into(),
            Op::Mknod(path, kind, mode) => {
                let (path, mode) = (self.path(path), Mode::from_raw_mode(*mode));
                fs::mknodat(CWD, path, *kind, mode, fs::makedev(1, 3)).into()
            }
            Op::Symlink(target, path) => fs::symlink(target, self.path(path)).into(),
            Op::Unlink(path) => fs::unlink(self.path(path)).into(),
            Op::Rmdir(path) => fs::rmdir(self.path(path)).into(),
            Op::Link(from, to) => {
                fs::linkat(CWD, self.path(from), CWD, self.path(to), AtFlags::empty()).into()
            }
            // The kernel's ext4 changes times before it refuses a rename with `WHITEOUT` to an existing name. Therefore such a rename is
            // skipped.
            Op::Rename(_, to, how)
                if how.contains(RenameFlags::WHITEOUT) && fs::lstat(self.path(to)).is_ok() =>
            {
                Answer::Left
            }
            Op::Rename(from, to, how) => {
                fs::renameat_with(CWD, self.path(from), CWD, self.path(to), *how).into()
            }
            Op::ReadLink(path) => {
                fs::readlink(self.path(path), Vec::new()).map(std::ffi::CString::into_bytes).into()
            }
            Op::List(path) => self.list(path),
            Op::Access(path, how) => {
                let how = fs::Access::from_bits_truncate(*how);
                fs::accessat(CWD, self.path(path), how, AtFlags::EACCESS).into()
            }
            Op::Chmod(path, mode) => fs::chmod(self.path(path), Mode::from_raw_mode(*mode)).into(),
            Op::Chown(path, uid, gid, itself) => {
                let flags = if *itself { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                fs::chownat(CWD, self.path(path), uid, gid, flags).into()
            }
            Op::Times(path, accessed, modified) => {
                let time = |time: &Option<i64>| match time {
                    Some(tv_sec) => Timespec { tv_sec: *tv_sec, tv_nsec: 123_456_789 },
                    None => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW },
                };
                let times =
                    Timestamps { last_access: time(accessed), last_modification: time(modified) };
                fs::utimensat(CWD, self.path(path), &times, AtFlags::SYMLINK_NOFOLLOW).into()
            }
            Op::SetXattr(path, name, value, how) => {
                fs::lsetxattr(self.path(path), *name, value, *how).into()
            }
            Op::GetXattr(path, name) => xattr(&self.path(path), name).into(),
            Op::RemoveXattr(path, name) => fs::lremovexattr(self.path(path), *name).into(),
            Op::Truncate(path, len) => {
                match fs::open(
                    self.path(path),
                    OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
                    Mode::empty(),
                ) {
                    Ok(file) => fs::ftruncate(file, *len).into(),
                    Err(errno) => Answer::Refused(errno),
                }
            }
            Op::Open(slot, path, flags, mode) => self.open(*slot, path, *flags, *mode),
            Op::Close(slot) => {
                self.slots[*slot] = None;
                Answer::Done
            }
            _ => self.data(op),
        }
    }

    fn open(&mut self, slot: usize, path: &str, flags: OFlags, mode: u32) -> Answer {
        // An open of a pipe without readers would block.
        let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = fs::open(self.path(path), flags, Mode::from_raw_mode(mode));
        // Only a regular file is kept open, because other files have no content to compare.
        let opened = opened.map(|file| {
            let stat = fs::fstat(&file).unwrap();
            fs::FileType::from_raw_mode(stat.st_mode).is_file().then_some(file)
        });
        match opened {
            Ok(file) => {
                self.slots[slot] = file;
                Answer::Done
            }
            Err(errno) => Answer::Refused(errno),
        }
    }

    fn data(&self, op: &Op) -> Answer {
        let open = |slot: &usize| self.slots[*slot].as_ref();
        let Some(file) = op.slots().first().and_then(open) else { return Answer::Left };
        if is_direct(file) && !op.is_aligned(fs::fcntl_getfl(file).unwrap()) {
            return Answer::Left;
        }
        match op {
            Op::Write(_, pos, len, seed) => aligned(*len, |bytes| {
                bytes.iter_mut().zip(content(*seed, *len)).for_each(|(to, from)| *to = from);
                rustix::io::pwrite(file, bytes, *pos).into()
            }),
            Op::Read(_, pos, len) => aligned(*len, |bytes| {
                rustix::io::pread(file, &mut *bytes, *pos)
                    .map(|count| bytes[..count].to_vec())
                    .into()
            }),
            Op::Resize(_, len) => fs::ftruncate(file, *len).into(),
            Op::Fallocate(_, how, pos, len) => fs::fallocate(file, *how, *pos, *len).into(),
            Op::Data(_, pos) => seek(file, SeekFrom::Data(*pos)).into(),
            Op::Hole(_, pos) => seek(file, SeekFrom::Hole(*pos)).into(),
            Op::Copy(_, from, to, at, len) => match open(to) {
                // The kernel's ext4 accepts copies between direct files only if the copies are aligned. All copies between direct files are
                // skipped.
                Some(target) if is_direct(file) || is_direct(target) => Answer::Left,
                Some(target) => {
                    let (mut from, mut at) = (*from, *at);
                    fs::copy_file_range(file, Some(&mut from), target, Some(&mut at), *len).into()
                }
                None => Answer::Left,
            },
            Op::Sync(_, true) => fs::fdatasync(file).into(),
            Op::Sync(_, false) => fs::fsync(file).into(),
            _ => unreachable!("of names: {op:?}"),
        }
    }

    fn list(&self, path: &str) -> Answer {
        let opened = fs::open(
            self.path(path),
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let entries = opened.and_then(|file| fs::Dir::read_from(&file));
        let names = entries.and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name().to_bytes().to_vec()))
                .collect::<Result<Vec<_>>>()
        });
        match names {
            Ok(mut names) => {
                names.sort();
                Answer::Names(names)
            }
            Err(errno) => Answer::Refused(errno),
        }
    }

    /// Inspects the files of an operation, and their directories.
    pub(super) fn watch(&self, op: &Op) -> Vec<Option<Watched>> {
        let paths = op.paths().into_iter().map(|path| path.trim_end_matches('/'));
        let both =
            paths.flat_map(|path| [self.path(path), self.path(path).parent().unwrap().to_owned()]);
        let named = both.map(|path| {
            fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        });
        let open = op.slots().into_iter().map(|slot| {
            self.slots[slot].as_ref().ok_or(Errno::BADF)?.try_clone().map_err(|_| Errno::MFILE)
        });
        let watch = |file: Result<OwnedFd>| {
            let file = file.ok()?;
            let before = fs::fstat(&file).unwrap();
            Some(Watched { file, before })
        };
        named.chain(open).map(watch).collect()
    }

    pub(super) fn look(watched: Option<Watched>) -> Option<Seen> {
        let Watched { file, before } = watched?;
        Some(Seen::new(&fs::fstat(file).unwrap(), &before))
    }

    /// The extended attributes of the files that an operation named.
    pub(super) fn xattrs_of(&self, op: &Op) -> Vec<Result<Xattrs>> {
        op.paths().into_iter().map(|path| xattrs(&self.path(path))).collect()
    }

    pub(super) fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut left = vec![PathBuf::new()];
        while let Some(path) = left.pop() {
            let full = self.dir.join(&path);
            let stat = fs::lstat(&full).unwrap();
            let (mut content, mut data) = (Vec::new(), Vec::new());
            match fs::FileType::from_raw_mode(stat.st_mode) {
                fs::FileType::Directory => {
                    let names = std::fs::read_dir(&full).unwrap();
                    left.extend(names.map(|entry| path.join(entry.unwrap().file_name())));
                }
                fs::FileType::Symlink => {
                    content = fs::readlink(&full, Vec::new()).unwrap().into_bytes();
                }
                fs::FileType::RegularFile => data = extents(&full, &mut content),
                _ => {}
            }
            tree.insert(path, (Seen::new(&stat, &stat), xattrs(&full).unwrap(), content, data));
        }
        tree.remove(Path::new("lost+found"));
        tree
    }
}

fn become_user(user: u32) {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    // The thread must become the superuser again to set the group. The saved user ID allows this.
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).unwrap();
    set_thread_res_gid(Gid::ROOT, gid, Gid::ROOT).unwrap();
    set_thread_res_uid(Uid::ROOT, uid, Uid::ROOT).unwrap();
}

fn xattr(path: &Path, name: &str) -> Result<Vec<u8>> {
    let mut value = vec![0; 1 << 16];
    let len = fs::lgetxattr(path, name, &mut value)?;
    value.truncate(len);
    Ok(value)
}

fn xattrs(path: &Path) -> Result<Xattrs> {
    let mut names = vec![0; 1 << 16];
    let len = fs::llistxattr(path, &mut names)?;
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let value = xattr(path, std::str::from_utf8(name).unwrap())?;
            Ok((name.to_vec(), value))
        })
        .collect()
}

fn is_direct(file: &OwnedFd) -> bool {
    fs::fcntl_getfl(file).unwrap().contains(OFlags::DIRECT)
}

/// The kernel reports an unwritten extent as data while the page cache contains pages of the extent. Therefore the file is synced, and its
/// pages are then dropped from the cache.
fn seek(file: &OwnedFd, to: SeekFrom) -> Result<u64> {
    fs::fdatasync(file)?;
    fs::fadvise(file, 0, None, fs::Advice::DontNeed)?;
    fs::seek(file, to)
}

/// The ranges of a file with data. Only these ranges are read into `content`. A sparse file can be larger than the memory.
fn extents(path: &Path, content: &mut Vec<u8>) -> Vec<(u64, u64)> {
    let file = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let (mut found, mut at) = (Vec::new(), 0);
    while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(data)).unwrap();
        found.push((data, at));
        let start = content.len();
        content.resize(start + (at - data) as usize, 0);
        rustix::io::pread(&file, &mut content[start..], data).unwrap();
    }
    found
}
