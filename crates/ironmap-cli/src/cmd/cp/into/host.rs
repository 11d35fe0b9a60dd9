//! A tree of the host, read by a thread of its own while the volume is written.
//!
//! Below what the user named every step goes through the descriptor of the directory above and follows no symbolic link. The names of
//! a directory are taken in the order of their bytes: the same tree makes the same volume.

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use ironmap::fs::ext4::Follow;
use ironmap::fs::{FileType, Stat};
use ironmap::units::FilePos;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, SeekFrom, Statx};
use rustix::io::Errno;

use super::super::{Args, progress};
use super::stream::Pieces;
use super::{Entry, How, Identity, PIECE, Step, Stopped, Writer, check_name};
use crate::failure::{Failure, Report};
use crate::host_stat::{self, XattrReader};
use crate::interrupt;
use crate::volumes::{Destination, Name, split};

/// How many steps, and about how many bytes, go to the writer at once.
const BATCH_STEPS: usize = 256;
const BATCH_BYTES: usize = PIECE as usize;
/// How many batches may wait. These, and the two that are in work, have at most two pieces each: that bounds the memory.
const BATCHES: usize = 2;

/// Copies what a path of the command line names.
pub(super) fn copy(
    args: &Args,
    path: &Path,
    to: &Destination,
    writer: &mut Writer,
    report: &mut Report,
) -> Result<(), Failure> {
    let stat = host_stat::stat(path, args.follow() == Follow::All);
    let stat = stat.map_err(|errno| Failure::host(path.display(), errno))?;
    args.check_kind(path.display(), stat.file_type)?;
    let to = to.name_for(split(path.as_os_str().as_bytes()).1);
    check_name(&to, stat.file_type, writer)?;
    report.progress = progress(stat.file_type, stat.size);
    copy_host(path, args.follow(), to, writer, report)
}

/// Copies a file of the host, or a directory and all below it. A directory that has the name already is filled.
pub(super) fn copy_host(
    path: &Path,
    follow: Follow,
    to: Name,
    writer: &mut Writer,
    report: &mut Report,
) -> Result<(), Failure> {
    let (how, seen) = (writer.how(), mem::take(&mut writer.seen));
    let pieces = writer.pieces();
    writer.start(to, None);
    let (copied, seen) = thread::scope(|scope| {
        let (sender, batches) = sync_channel(BATCHES);
        let reader = scope.spawn(move || {
            let mut reader = Reader::new(how, sender, seen, pieces);
            // Who stopped it knows why.
            let _ = reader.read_root(path, follow).and_then(|()| reader.flush());
            reader.seen
        });
        let copied = write(batches, writer, report);
        (copied, reader.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    writer.seen = seen;
    copied
}

fn write(
    batches: Receiver<Vec<Step>>,
    writer: &mut Writer,
    report: &mut Report,
) -> Result<(), Failure> {
    for step in batches.into_iter().flatten() {
        // The reader ends when nobody takes its batches.
        interrupt::check().inspect_err(|_| writer.abandon(report))?;
        if let Err(failure) = writer.take(step, report) {
            report.error(&failure);
        }
    }
    Ok(())
}

struct Reader {
    how: How,
    sender: SyncSender<Vec<Step>>,
    batch: Vec<Step>,
    /// How much content is in the batch.
    bytes: usize,
    pieces: Pieces,
    xattrs: XattrReader,
    /// Files with several names that were read.
    seen: HashSet<Identity>,
}

/// A name in an open directory; the path is for messages.
struct Place<'a> {
    dir: BorrowedFd<'a>,
    name: &'a OsStr,
    path: PathBuf,
}

impl Place<'_> {
    fn failed(&self, errno: Errno) -> Failure {
        Failure::host(self.path.display(), errno)
    }

    fn stat(&self, at: AtFlags) -> Result<Statx, Errno> {
        rustix::fs::statx(self.dir, self.name, at, host_stat::WANTED)
    }

    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix::fs::openat(self.dir, self.name, flags, Mode::empty())
    }
}

impl Reader {
    fn new(
        how: How,
        sender: SyncSender<Vec<Step>>,
        seen: HashSet<Identity>,
        pieces: Pieces,
    ) -> Self {
        let xattrs = XattrReader::default();
        Self { how, sender, batch: Vec::new(), bytes: 0, pieces, xattrs, seen }
    }

    fn send(&mut self, step: Step) -> Result<(), Stopped> {
        if let Step::Data(_, bytes) = &step {
            self.bytes += bytes.len();
        }
        self.batch.push(step);
        let full = self.batch.len() >= BATCH_STEPS || self.bytes >= BATCH_BYTES;
        if full { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Stopped> {
        self.bytes = 0;
        self.sender.send(mem::take(&mut self.batch)).map_err(|_| Stopped)
    }

    fn read_root(&mut self, path: &Path, follow: Follow) -> Result<(), Stopped> {
        let place = Place { dir: CWD, name: path.as_os_str(), path: path.to_owned() };
        let followed = follow == Follow::All;
        self.read(&place, if followed { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW })
    }

    /// Reads a file or a whole tree.
    fn read(&mut self, place: &Place<'_>, at: AtFlags) -> Result<(), Stopped> {
        match self.try_read(place, at)? {
            Ok(()) => Ok(()),
            Err(errno) => self.send(Step::Failed(place.failed(errno))),
        }
    }

    /// The outer error ends the copy; the inner one is this file's alone, before its beginning was sent.
    fn try_read(&mut self, place: &Place<'_>, at: AtFlags) -> Result<Result<(), Errno>, Stopped> {
        let found = match place.stat(at) {
            Ok(found) => found,
            Err(errno) => return Ok(Err(errno)),
        };
        let stat = host_stat::decode(&found);
        let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
        let identity = (device, found.stx_ino);
        let kind = stat.file_type;
        let several = self.how.keep.links && stat.links > 1 && kind != FileType::Directory;
        if several && !self.seen.insert(identity) {
            let name = place.name.as_bytes().to_vec();
            return self.send(Step::Again(name, identity)).map(Ok);
        }
        let no_follow =
            if at == AtFlags::SYMLINK_NOFOLLOW { OFlags::NOFOLLOW } else { OFlags::empty() };
        let opened = match kind {
            FileType::Regular => place.open(no_follow).map(Some),
            FileType::Directory => place.open(no_follow | OFlags::DIRECTORY).map(Some),
            _ => Ok(None),
        };
        let (fd, entry) = match opened.and_then(|fd| {
            let entry = self.entry(place, stat, identity, fd.as_ref())?;
            Ok((fd, entry))
        }) {
            Ok(both) => both,
            Err(errno) => return Ok(Err(errno)),
        };
        let (size, sparse) = (entry.stat.size, entry.stat.blocks * 512 < entry.stat.size);
        self.send(Step::Begin(Box::new(entry)))?;
        let end = match fd {
            Some(fd) if kind == FileType::Regular => self.content(place, &fd, size, sparse)?,
            Some(fd) => self.directory(place, &fd)?,
            None => Some(size),
        };
        self.send(Step::End(end))?;
        Ok(Ok(()))
    }

    fn entry(
        &mut self,
        place: &Place<'_>,
        stat: Stat,
        identity: Identity,
        fd: Option<&OwnedFd>,
    ) -> Result<Entry, Errno> {
        let target = match stat.file_type {
            FileType::Symlink => {
                Some(rustix::fs::readlinkat(place.dir, place.name, Vec::new())?.into_bytes())
            }
            _ => None,
        };
        let mut xattrs = Vec::new();
        if self.how.keep.any_xattr() {
            xattrs = match fd {
                Some(fd) => self.xattrs.of_open(fd.as_fd())?,
                // A path, for system calls that take no descriptor, without another walk from the root.
                None if place.dir.as_raw_fd() == CWD.as_raw_fd() => {
                    self.xattrs.of_link(&place.path)?
                }
                None => {
                    let dir = format!("/proc/self/fd/{}", place.dir.as_raw_fd());
                    self.xattrs.of_link(&Path::new(&dir).join(place.name))?
                }
            };
            xattrs.retain(|xattr| self.how.keep.xattr(&xattr.name));
        }
        let name = place.name.as_bytes().to_vec();
        let path = place.path.display().to_string();
        Ok(Entry { name, path, identity, stat, target, xattrs })
    }

    /// What a directory holds.
    fn directory(&mut self, place: &Place<'_>, fd: &OwnedFd) -> Result<Option<u64>, Stopped> {
        let names = Dir::read_from(fd).and_then(|dir| {
            let names = dir.map(|entry| Ok(entry?.file_name().to_owned()));
            names.collect::<Result<Vec<_>, Errno>>()
        });
        let mut names = match names {
            Ok(names) => names,
            Err(errno) => {
                self.send(Step::Failed(place.failed(errno)))?;
                return Ok(None);
            }
        };
        names.sort_unstable();
        for name in names.iter().map(|name| CStr::to_bytes(name)) {
            if !matches!(name, b"." | b"..") {
                let name = OsStr::from_bytes(name);
                let place = Place { dir: fd.as_fd(), name, path: place.path.join(name) };
                self.read(&place, AtFlags::SYMLINK_NOFOLLOW)?;
            }
        }
        Ok(Some(0))
    }

    /// A file's content, and its size as it is then.
    fn content(
        &mut self,
        place: &Place<'_>,
        fd: &OwnedFd,
        size: u64,
        sparse: bool,
    ) -> Result<Option<u64>, Stopped> {
        let mut pos = 0;
        loop {
            let range = if sparse { next_data(fd, pos, size) } else { Ok(Some((pos, size))) };
            let read = match range {
                Ok(None) => return Ok(Some(size)),
                Ok(Some((start, end))) => self.range(fd, start, end)?.map(|behind| (behind, end)),
                Err(errno) => Err(errno),
            };
            match read {
                // All of it is there, or it got shorter meanwhile.
                Ok((behind, end)) if end >= size || behind < end => return Ok(Some(behind)),
                Ok((_, end)) => pos = end,
                Err(errno) => {
                    self.send(Step::Failed(place.failed(errno)))?;
                    return Ok(None);
                }
            }
        }
    }

    /// Reads a part of a file; gives the position behind it, or behind the file's end.
    fn range(&mut self, fd: &OwnedFd, start: u64, end: u64) -> Result<Result<u64, Errno>, Stopped> {
        let mut pos = start;
        if start < end {
            self.send(Step::Range(FilePos(start), end - start))?;
        }
        while pos < end {
            let Ok(mut bytes) = self.pieces.take((end - pos).min(PIECE) as usize) else {
                return Ok(Err(Errno::NOMEM));
            };
            let mut have = 0;
            while have < bytes.len() {
                match rustix::io::pread(fd, &mut bytes[have..], pos + have as u64) {
                    Ok(0) => break,
                    Ok(count) => have += count,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Ok(Err(errno)),
                }
            }
            let whole = have == bytes.len();
            if have > 0 {
                self.send(Step::Data(FilePos(pos), bytes.split_to(have)))?;
            }
            pos += have as u64;
            if !whole {
                break;
            }
        }
        Ok(Ok(pos))
    }
}

/// The next range that is no hole, from a position on; `None` where only a hole is left.
fn next_data(fd: &OwnedFd, pos: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    let start = match rustix::fs::seek(fd, SeekFrom::Data(pos)) {
        Err(Errno::NXIO) => return Ok(None),
        // The file system does not tell.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((pos, size))),
        start => start?,
    };
    if start >= size {
        return Ok(None);
    }
    let end = rustix::fs::seek(fd, SeekFrom::Hole(start))?;
    Ok(Some((start, end.min(size))))
}
