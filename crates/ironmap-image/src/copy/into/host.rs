//! Copies a tree of the host into a volume. A separate thread reads the tree during the writes.
//!
//! Below the path that the user named, every file is opened through the descriptor of its parent directory, and symbolic links are not
//! followed. The names of a directory are sorted by their bytes, so the same tree always makes the same volume.

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::fs::Metadata;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ironmap::fs::Follow;
use ironmap::fs::{FileType, Stat};
use ironmap::sorting::Sorting;
use ironmap::units::FilePos;
use rustix_libc::fs::{AtFlags, CWD, Dir, Mode, OFlags, Statx, makedev};
use rustix_libc::io::Errno;

use super::data::DataRanges;
use super::feed::{self, Feed};
use super::step::{Entry, How, Identity, IsWanted, PIECE, Step, Stopped, wanted};
use super::stream::Pieces;
use super::writer::Writer;
use crate::context::Context;
use crate::copy::CopyOptions;
use crate::copy::count::file_type;
use crate::failure::Failure;
use crate::host_stat::{self, XattrReader};
use crate::host_tree::walk_host;
use crate::needs::Needs;
use crate::report::Report;
use crate::spared::Spared;
use crate::stop::Stop;
use crate::target::Subject;
use crate::volumes::{Destination, Name, split};

/// Copies consecutive sources of the command line. One thread reads all of them.
pub(super) fn copy(
    options: &CopyOptions,
    sources: &[Subject],
    to: &Destination,
    writer: &mut Writer,
    report: &mut Report,
) -> Result<(), Failure> {
    writer.start_sources(to.clone());
    let paths = sources.iter().filter_map(|source| match source {
        Subject::Host(path) => Some(path.as_path()),
        Subject::Volume(_) => None,
    });
    read_with(writer, report, |reader| {
        let mut paths = paths;
        paths.try_for_each(|path| reader.source(options, path))
    })
}

/// Copies a file of the host, or a directory and everything below it. If the destination name is an existing directory, the entries are
/// copied into that directory.
pub(super) fn copy_host(
    path: &Path,
    follow: Follow,
    to: Name,
    writer: &mut Writer,
    report: &mut Report,
) -> Result<(), Failure> {
    writer.start(to, None);
    read_with(writer, report, |reader| reader.read_root(path, follow))
}

/// Runs `read` in a thread, and writes the steps (files and pieces of content) that `read` sends.
fn read_with(
    writer: &mut Writer,
    report: &mut Report,
    read: impl FnOnce(&mut Reader) -> Result<(), Stopped> + Send,
) -> Result<(), Failure> {
    let (how, seen) = (writer.how(), mem::take(&mut writer.seen));
    let (pieces, spared) = (writer.pieces(), writer.spared.clone());
    let context = Arc::clone(report.context());
    let (copied, seen) = feed::copy(writer, report, |feed| {
        let mut reader = Reader {
            context,
            how,
            feed,
            pieces,
            spared,
            xattrs: XattrReader::default(),
            seen,
            is_wanted: None,
        };
        // The code ignores an error here, because the writer has stopped the reader and reports the reason.
        let _ = read(&mut reader).and_then(|()| reader.feed.flush());
        reader.seen
    });
    writer.seen = seen;
    copied
}

struct Reader {
    context: Arc<Context>,
    how: How,
    feed: Feed,
    pieces: Pieces,
    /// The files to skip, because the volume being written is stored in them.
    spared: Spared,
    xattrs: XattrReader,
    /// The files with several names that were read.
    seen: HashSet<Identity>,
    /// The channel through which the writer answers whether it needs the content of the current file.
    is_wanted: Option<IsWanted>,
}

/// A name in an open directory. The path is for messages.
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
        rustix_libc::fs::statx(self.dir, self.name, at, host_stat::WANTED)
    }

    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix_libc::fs::openat(self.dir, self.name, flags, Mode::empty())
    }
}

impl Reader {
    fn send(&mut self, step: Step) -> Result<(), Stopped> {
        self.feed.send(step)
    }

    /// Reads a source of the command line.
    fn source(&mut self, options: &CopyOptions, path: &Path) -> Result<(), Stopped> {
        let stat = host_stat::stat(path, options.follow == Follow::All);
        let stat = stat.map_err(|errno| Failure::host(path.display(), errno));
        let kind = stat.and_then(|stat| {
            options.check_kind(path.display(), stat.file_type).map(|()| stat.file_type)
        });
        match kind {
            Ok(kind) => {
                let name = split(path.as_os_str().as_bytes()).1.to_vec();
                self.send(Step::Source(name, kind))?;
                self.read_root(path, options.follow)
            }
            Err(failure) => self.send(Step::Failed(failure)),
        }
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

    /// Reads a file or a whole tree. The outer error ends the copy. The inner error means that this file could not be read, and that no
    /// `Begin` step was sent for it.
    fn try_read(&mut self, place: &Place<'_>, at: AtFlags) -> Result<Result<(), Errno>, Stopped> {
        let found = match place.stat(at) {
            Ok(found) => found,
            Err(errno) => return Ok(Err(errno)),
        };
        let mut stat = host_stat::decode(&found);
        let special =
            !matches!(stat.file_type, FileType::Regular | FileType::Directory | FileType::Symlink);
        if special && self.how.as_files {
            stat.file_type = FileType::Regular;
            stat = stat.device(None).size(0).blocks(0);
        }
        let on = makedev(found.stx_dev_major, found.stx_dev_minor);
        if stat.file_type == FileType::Regular && self.spared.contains(on, found.stx_ino) {
            let what = "the file is the volume that is being written, so it is not copied";
            self.context.note(format_args!("{}: {what}", place.path.display()));
            return Ok(Ok(()));
        }
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
        let (asks, is_wanted) = (kind == FileType::Regular).then(wanted).unzip();
        let (fd, mut entry) = match opened.and_then(|fd| {
            let entry = self.entry(place, stat, identity, fd.as_ref())?;
            Ok((fd, entry))
        }) {
            Ok(both) => both,
            Err(errno) => return Ok(Err(errno)),
        };
        let (size, sectors) = (entry.stat.size, entry.stat.blocks);
        entry.wanted = asks;
        self.send(Step::Begin(Box::new(entry)))?;
        self.is_wanted = is_wanted;
        let end = match fd {
            Some(fd) if special => {
                // A pipe may have no data for a long time, and a device may never end. Therefore, the reader waits until the writer needs
                // the content.
                self.feed.flush()?;
                if self.is_wanted.as_ref().is_some_and(IsWanted::wait) {
                    self.rest(place, &fd, 0, Reads::InOrder)?
                } else {
                    None
                }
            }
            Some(fd) if kind == FileType::Regular => self.content(place, &fd, (size, sectors))?,
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
                Some(rustix_libc::fs::readlinkat(place.dir, place.name, Vec::new())?.into_bytes())
            }
            _ => None,
        };
        let mut xattrs = Vec::new();
        if self.how.keep.any_xattr() {
            xattrs = match fd {
                Some(fd) => self.xattrs.of_open(fd.as_fd())?,
                // The xattr system calls for symbolic links accept only a path. A path through /proc/self/fd avoids another look-up from
                // the root.
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
        let leads_to = None;
        Ok(Entry { name, path, identity, stat, target, leads_to, xattrs, wanted: None })
    }

    /// Sends the entries of a directory.
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
        names.order();
        for name in names.iter().map(|name| CStr::to_bytes(name)) {
            if !matches!(name, b"." | b"..") {
                let name = OsStr::from_bytes(name);
                let place = Place { dir: fd.as_fd(), name, path: place.path.join(name) };
                self.read(&place, AtFlags::SYMLINK_NOFOLLOW)?;
            }
        }
        Ok(Some(0))
    }

    /// Sends a file's content, and returns its final size. If the file has grown, also sends the content beyond `size`.
    fn content(
        &mut self,
        place: &Place<'_>,
        fd: &OwnedFd,
        (size, sectors): (u64, u64),
    ) -> Result<Option<u64>, Stopped> {
        let (mut pos, mut ranges) = (0, DataRanges::new(fd, size, sectors));
        loop {
            let range = ranges.as_mut().map_err(|errno| *errno).and_then(|data| data.next(pos));
            let read = match range {
                Ok(None) => return Ok(Some(size)),
                Ok(Some((start, end))) => self.range(fd, start, end)?.map(|behind| (behind, end)),
                Err(errno) => Err(errno),
            };
            match read {
                // The file has shrunk during the copy, so it ends before the end of the range.
                Ok((behind, end)) if behind < end => return Ok(Some(behind)),
                // Some files of /proc report a size of 0, so the reader looks for more content.
                Ok((_, end)) if end >= size => return self.rest(place, fd, end, Reads::At),
                Ok((_, end)) => pos = end,
                Err(_) if !self.is_wanted() => return Ok(None),
                Err(errno) => {
                    self.send(Step::Failed(place.failed(errno)))?;
                    return Ok(None);
                }
            }
        }
    }

    /// Whether the writer still accepts the content of the current file.
    fn is_wanted(&self) -> bool {
        self.is_wanted.as_ref().is_none_or(IsWanted::is_not_refused)
    }

    /// Sends the content from a position up to the file's end, and returns the size.
    fn rest(
        &mut self,
        place: &Place<'_>,
        fd: &OwnedFd,
        mut pos: u64,
        reads: Reads,
    ) -> Result<Option<u64>, Stopped> {
        loop {
            let piece = self.pieces.take(PIECE as usize).map_err(|_| Errno::NOMEM);
            let is_wanted = || self.is_wanted();
            let read = piece.and_then(|mut bytes| {
                let have = reads.fill(fd, &mut bytes, pos, self.context.stop(), is_wanted)?;
                Ok((bytes, have))
            });
            let (mut bytes, have) = match read {
                Ok(read) => read,
                // If the writer refuses the content, it has already reported the reason.
                Err(_) if !self.is_wanted() => return Ok(None),
                Err(errno) => {
                    self.send(Step::Failed(place.failed(errno)))?;
                    return Ok(None);
                }
            };
            let whole = have == bytes.len();
            if have == 0 {
                self.pieces.put([bytes]);
            } else {
                self.send(Step::Data(FilePos(pos), bytes.split_to(have)))?;
            }
            pos += have as u64;
            if !whole {
                return Ok(Some(pos));
            }
        }
    }

    /// Sends a range of a file. Returns the end of the range, or the end of the file if the file ends within the range.
    fn range(&mut self, fd: &OwnedFd, start: u64, end: u64) -> Result<Result<u64, Errno>, Stopped> {
        let mut pos = start;
        if start < end {
            self.send(Step::Range(FilePos(start), end - start))?;
        }
        while pos < end {
            let Ok(mut bytes) = self.pieces.take((end - pos).min(PIECE) as usize) else {
                return Ok(Err(Errno::NOMEM));
            };
            let have = match Reads::At
                .fill(fd, &mut bytes, pos, self.context.stop(), || self.is_wanted())
            {
                Ok(have) => have,
                Err(errno) => return Ok(Err(errno)),
            };
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

/// How a file is read.
#[derive(Clone, Copy)]
enum Reads {
    /// At any position, in any order.
    At,
    /// Only from the beginning to the end, as the data arrive. Pipes and devices are read in this way.
    InOrder,
}

impl Reads {
    /// Reads until `bytes` is full or the file ends. Returns the number of bytes read.
    ///
    /// # Errors
    /// `CANCELED` if the writer refuses the content, or an error of the kernel.
    fn fill(
        self,
        fd: &OwnedFd,
        bytes: &mut [u8],
        pos: u64,
        stop: &Stop,
        is_wanted: impl Fn() -> bool,
    ) -> Result<usize, Errno> {
        let mut have = 0;
        while have < bytes.len() {
            if !is_wanted() {
                return Err(Errno::CANCELED);
            }
            let (rest, at) = (&mut bytes[have..], pos + have as u64);
            let read = match self {
                Self::At => rustix_libc::io::pread(fd, rest, at),
                Self::InOrder => {
                    // A read of a FIFO that no process has opened for writing returns 0, as at the end of a file.
                    stop.wait(fd, &is_wanted)?;
                    rustix_libc::io::read(fd, rest)
                }
            };
            match read {
                Ok(0) => break,
                Ok(count) => have += count,
                Err(Errno::INTR) => {}
                // Another process has read the available data, so this read waits again.
                Err(Errno::AGAIN) => stop.wait(fd, &is_wanted)?,
                Err(errno) => return Err(errno),
            }
        }
        Ok(have)
    }
}

/// Adds the inodes and the space that a directory and everything below it need to `needs`, except for the files in `spared`.
pub(crate) fn needs_of_tree(
    dir: &Path,
    spared: &Spared,
    needs: &mut Needs,
    stop: &Stop,
) -> io::Result<()> {
    let (mut seen, mut xattrs) = (HashSet::new(), XattrReader::default());
    walk_host(dir, Follow::All, spared, &mut |path, stat| {
        if stop.is_set() {
            return Err(io::Error::other("interrupted"));
        }
        if path != dir {
            needs.name(path.file_name().unwrap_or_default().as_bytes());
        }
        let kind = file_type(stat.file_type());
        let several = !stat.is_dir() && stat.nlink() > 1;
        if several && !seen.insert((stat.dev(), stat.ino())) {
            needs.total.add(kind, 0);
            return Ok(());
        }
        needs.total.add(kind, stat.len());
        let attributes = xattrs.of_link(path).unwrap_or_default();
        let attributes = attributes.iter().map(|xattr| xattr.name.len() + xattr.value.len());
        needs.file(kind, stat.len(), attributes);
        if stat.is_file() {
            ranges(path, stat, needs);
        }
        Ok(())
    })
}

/// Adds to `needs` the ranges that a copy of the file would write. If the ranges cannot be determined, adds the rest of the file.
fn ranges(path: &Path, stat: &Metadata, needs: &mut Needs) {
    let size = stat.len();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let Ok(fd) = rustix_libc::fs::open(path, flags, Mode::empty()) else {
        return needs.range(0, size);
    };
    let Ok(mut data) = DataRanges::new(&fd, size, stat.blocks()) else {
        return needs.range(0, size);
    };
    let mut pos = 0;
    while pos < size {
        match data.next(pos) {
            Ok(Some((start, end))) if end > start => {
                needs.range(start, end - start);
                pos = end;
            }
            Ok(_) => return,
            Err(_) => return needs.range(pos, size - pos),
        }
    }
}
