//! Copies a tree out of a volume, file by file.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::vec;

use ironmap::Queue;
use ironmap::fs::{DirEntry, FileType, Inode, Xattr};
use ironmap::units::InodeNo;
use rustix_libc::fs::{AtFlags, CWD, FileType as HostType, Mode};

use super::attributes::Attributes;
use super::content::Gaps;
use super::entry::{self, Directory, Entry};
use crate::ahead::Ahead;
use crate::copy::CopyOptions;
use crate::failure::{Failure, Reason};
use crate::quote::quoted;
use crate::report::Report;
use crate::salvage::Ledger;
use crate::source::{Source, join};
use crate::spared::Spared;

/// The length of a name in bytes at which the search for an unused name ends. The host refuses longer names.
const LONGEST_NAME: usize = 256;

/// A source file: its volume and its inode. The volumes stay open until the command ends, so a pointer identifies a volume.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Origin(*const Source, InodeNo);

impl Origin {
    pub(crate) fn new(source: &Rc<Source>, number: InodeNo) -> Self {
        Self(Rc::as_ptr(source), number)
    }
}

/// The files that a command has copied so far, from all its sources.
#[derive(Default)]
pub(crate) struct Done {
    /// The copies of files with several names. Each further name of such a file becomes a hard link to the copy. The copies are stored as
    /// paths, because the number of open descriptors is limited. A path stays valid, because a copy never replaces a directory.
    links: HashMap<Origin, Copied>,
    /// The copies of sources that the user named, except directories.
    pub(super) named: HashMap<PathBuf, Origin>,
}

/// A copy, with its device and inode. From these two numbers, a later link detects whether another source has replaced the copy.
struct Copied {
    path: PathBuf,
    identity: (u64, u64),
    /// The ranges that are missing in the copy. All names of the copy have these gaps.
    gaps: Gaps,
}

/// Copies from one volume. The failure of a file is reported, and the copy continues.
pub(crate) struct Copier<'a> {
    options: &'a CopyOptions,
    pub(super) source: &'a Rc<Source>,
    spared: Spared,
    pub(crate) report: &'a mut Report,
    pub(super) queue: Queue,
    pub(super) ahead: Ahead,
    attributes: Attributes,
    pub(super) done: &'a mut Done,
    /// The directories copied so far. A damaged volume may list a directory in several directories, or below itself.
    directories: HashSet<InodeNo>,
    /// The record of a salvage. If it is set, a file is copied in part if only a part of the file can be read.
    pub(crate) ledger: Option<Ledger<'a>>,
}

/// A copy that has begun.
enum Begun {
    /// A directory of the host was made for this directory of the volume, and receives its entries.
    Directory(Directory, Inode),
    /// The file is not a directory, or the directory could not be made. The field states whether the file was copied, perhaps in part.
    File(bool),
}

/// A directory whose entries are copied.
struct Level {
    into: Directory,
    dir: Inode,
    path: Vec<u8>,
    entries: vec::IntoIter<DirEntry>,
    /// The name of the last entry. The entries are sorted by name.
    last: Vec<u8>,
}

impl<'a> Copier<'a> {
    pub(crate) fn new(
        options: &'a CopyOptions,
        source: &'a Rc<Source>,
        spared: Spared,
        done: &'a mut Done,
        report: &'a mut Report,
    ) -> Result<Self, Failure> {
        let queue = source.queue()?;
        Ok(Self {
            options,
            source,
            spared,
            report,
            queue,
            ahead: Ahead::new(source.volume.engine()),
            attributes: Attributes::new(),
            done,
            directories: HashSet::new(),
            ledger: None,
        })
    }

    /// Warns about the attributes that could not be kept. Returns the record of the salvage.
    pub(crate) fn finish(self) -> Option<Ledger<'a>> {
        for warning in self.attributes.warnings() {
            self.report.warning(warning);
        }
        self.ledger
    }

    /// Copies a file, and everything below it if it is a directory, to a name. Returns whether the file itself was copied.
    pub(crate) fn copy(&mut self, place: &Entry, inode: Inode, path: &[u8]) -> bool {
        match self.begin(place, inode, path) {
            Begun::Directory(into, dir) => {
                self.fill(into, dir, path.to_vec());
                true
            }
            Begun::File(is_copied) => is_copied,
        }
    }

    /// Copies a file to a name, or makes a directory with this name.
    fn begin(&mut self, place: &Entry, inode: Inode, path: &[u8]) -> Begun {
        let directory = inode.file_type() == FileType::Directory;
        let shown = self.source.name(path);
        self.report.progress.begin(&shown, inode.file_type(), inode.size());
        if self.options.no_clobber && !directory && place.is_taken() {
            self.report.progress.end();
            return Begun::File(false);
        }
        if self.options.verbose
            && let Err(failure) = self.report.say(format_args!(
                "{} -> {}",
                quoted(shown.as_bytes()),
                quoted(place.path().as_os_str().as_bytes())
            ))
        {
            self.report.error(&failure);
        }
        if directory {
            return match place.make_directory() {
                Ok(into) => Begun::Directory(into, inode),
                Err(failure) => {
                    self.lost(inode.number(), path, &failure);
                    Begun::File(false)
                }
            };
        }
        let stat = inode.stat().clone();
        let result = self.copy_file(place, inode, path);
        self.report.progress.end();
        match result {
            Ok(None) => {
                if let Some(ledger) = &mut self.ledger {
                    ledger.lost(stat.inode, path, &Failure::new("only root can make device nodes"));
                }
                Begun::File(true)
            }
            Ok(Some(gaps)) => {
                let failure = gaps.failure(&shown);
                failure.iter().for_each(|failure| self.report.error(failure));
                if let Some(ledger) = &mut self.ledger {
                    ledger.copied(&stat, path, &place.path(), gaps);
                }
                Begun::File(true)
            }
            Err(failure) => {
                self.lost(stat.inode, path, &failure);
                Begun::File(false)
            }
        }
    }

    /// Reports a file that could not be copied.
    pub(crate) fn lost(&mut self, number: InodeNo, path: &[u8], failure: &Failure) {
        let Some(ledger) = &mut self.ledger else { return self.report.error(failure) };
        ledger.lost(number, path, failure);
        // If a directory entry names an inode that does not exist, the volume is damaged.
        let failure = failure.clone();
        let is_damage = failure.is_missing();
        self.report.error(&if is_damage { failure.worsened(Reason::Corrupt) } else { failure });
    }

    /// Copies the entries of a directory into an existing directory, and then gives that directory the attributes of the source. The
    /// function does not recurse, because the depth of a volume's tree has no limit.
    pub(crate) fn fill(&mut self, into: Directory, dir: Inode, path: Vec<u8>) {
        let mut levels = Vec::new();
        self.enter(into, dir, path, &mut levels);
        while let Some(level) = levels.last_mut() {
            if let Err(stopped) = self.report.stop().check() {
                self.report.error(&stopped);
                return;
            }
            let Some(entry) = level.entries.next() else {
                let left = levels.pop();
                left.into_iter().for_each(|level| self.leave(&level));
                continue;
            };
            if matches!(&*entry.name, b"." | b"..") {
                continue;
            }
            let path = join(&level.path, &entry.name);
            let what = match &*entry.name {
                name if name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0)) => {
                    Some("invalid name")
                }
                name if *name == *level.last => Some("the directory lists this name twice"),
                _ => None,
            };
            let mut name = OsStr::from_bytes(&entry.name).to_owned();
            if let Some(what) = what {
                let failure = Failure::corrupt(self.source.name(&path), what);
                if self.ledger.is_none() {
                    self.report.error(&failure);
                    continue;
                }
                self.report.warning(failure);
                name = format!("inode-{}", entry.inode).into();
            }
            level.last = entry.name.to_vec();
            let mut place = level.into.place(&name);
            // A salvage replaces no existing file, because each existing file is a copy that the salvage has made.
            while self.ledger.is_some() && place.is_taken() && name.len() < LONGEST_NAME {
                name.push(format!(".inode-{}", entry.inode));
                place = level.into.place(&name);
            }
            match self.source.inode(entry.inode, &path) {
                Ok(inode) => {
                    if let Begun::Directory(into, dir) = self.begin(&place, inode, &path) {
                        self.enter(into, dir, path, &mut levels);
                    }
                }
                Err(failure) => self.lost(entry.inode, &path, &failure),
            }
        }
    }

    /// Reads the entries of a directory that was made.
    fn enter(&mut self, into: Directory, dir: Inode, path: Vec<u8>, levels: &mut Vec<Level>) {
        if !self.directories.insert(dir.number()) {
            let what = format!("directory inode {} has more than one name", dir.number());
            let failure = Failure::corrupt(self.source.name(&path), &what);
            self.lost(dir.number(), &path, &failure);
            return;
        }
        let (entries, all) = self.source.entries_found(&dir, &path, self.report);
        if let Some(ledger) = &mut self.ledger {
            ledger.directory(dir.stat(), &path, into.path(), all);
        }
        self.ahead.expect(&entries);
        let (entries, last) = (entries.into_iter(), Vec::new());
        levels.push(Level { into, dir, path, entries, last });
    }

    /// Sets the attributes of a directory whose entries were copied.
    fn leave(&mut self, level: &Level) {
        let xattrs = self.xattrs(&level.dir, &level.path);
        let set = self.attributes.set_directory(&level.into, &level.dir, &xattrs);
        if let Err(errno) = set {
            self.report.error(&Failure::host(level.into.path().display(), errno));
        }
    }

    /// Copies a file that is not a directory. Returns the ranges of its content that could not be read, or `None` for a file that is not
    /// copied.
    fn copy_file(
        &mut self,
        place: &Entry,
        inode: Inode,
        path: &[u8],
    ) -> Result<Option<Gaps>, Failure> {
        let origin = Origin::new(self.source, inode.number());
        if let Some(Copied { path: first, identity, gaps }) = self.done.links.get(&origin)
            && entry::identity(CWD, first) == Some(*identity)
        {
            self.report.progress.begin_link();
            if place.identity() == Some(*identity) {
                return Ok(Some(gaps.clone()));
            }
            place.clear(host_type(&inode), &self.spared)?;
            let (dir, none) = (&*place.dir.fd, AtFlags::empty());
            let linked = rustix_libc::fs::linkat(CWD, first, dir, &place.name, none);
            return linked.map(|()| Some(gaps.clone())).map_err(|errno| place.failed(errno));
        }
        let several = inode.stat().links > 1;
        let mut gaps = Gaps::default();
        let made = match inode.file_type() {
            FileType::Regular => {
                gaps = self.copy_regular(place, inode, path)?;
                true
            }
            FileType::Symlink => self.copy_symlink(place, &inode, path)?,
            _ => self.copy_node(place, &inode, path)?,
        };
        if made
            && several
            && let Some(identity) = place.identity()
        {
            let copied = Copied { path: place.path(), identity, gaps: gaps.clone() };
            self.done.links.insert(origin, copied);
        }
        Ok(made.then_some(gaps))
    }

    fn copy_regular(&mut self, place: &Entry, inode: Inode, path: &[u8]) -> Result<Gaps, Failure> {
        let xattrs = self.xattrs(&inode, path);
        let stat = inode.stat().clone();
        self.ahead.load(&mut self.queue, self.source, inode.number());
        let file = self.source.file(inode, path)?;
        // In a new directory, no name is taken: it contains only copies of this command, and no two of them have the same name.
        let replaces = !place.dir.is_new && place.check(HostType::RegularFile, &self.spared)?;
        // The copy is written under a temporary name, because an incomplete copy must neither replace an existing file nor be mistaken for
        // a complete file.
        let part = place.beside();
        let copy = part.create()?;
        let copied = self.copy_data(place, &copy, &file, path).and_then(|gaps| {
            let result = self.attributes.set_file(place, &copy, &stat, &xattrs);
            result.map_err(|errno| place.failed(errno))?;
            if replaces {
                // The sync before the rename ensures that, after a power cut, either the old file or the complete new file exists.
                copy.sync_all().map_err(|error| place.failed(error))?;
            }
            place.take(&part).map(|()| gaps)
        });
        if copied.is_err() {
            part.remove()?;
        }
        copied
    }

    fn copy_symlink(&mut self, place: &Entry, inode: &Inode, path: &[u8]) -> Result<bool, Failure> {
        let Some(target) = self.source.link_target(inode, path)? else { return Ok(false) };
        place.clear(HostType::Symlink, &self.spared)?;
        rustix_libc::fs::symlinkat(OsStr::from_bytes(&target), &*place.dir.fd, &place.name)
            .map_err(|errno| place.failed(errno))?;
        self.set_node(place, inode, path)
    }

    fn copy_node(&mut self, place: &Entry, inode: &Inode, path: &[u8]) -> Result<bool, Failure> {
        if inode.stat().device.is_some() && !self.attributes.is_root() {
            let name = self.source.name(path);
            self.report.warning(format_args!(
                "{name}: the device node was not copied, because only root can make device nodes"
            ));
            return Ok(false);
        }
        let host = host_type(inode);
        place.clear(host, &self.spared)?;
        let (major, minor) = inode.stat().device.unwrap_or_default();
        let device = rustix_libc::fs::makedev(major, minor);
        rustix_libc::fs::mknodat(
            &*place.dir.fd,
            &place.name,
            host,
            Mode::RUSR | Mode::WUSR,
            device,
        )
        .map_err(|errno| place.failed(errno))?;
        self.set_node(place, inode, path)
    }

    fn set_node(&mut self, place: &Entry, inode: &Inode, path: &[u8]) -> Result<bool, Failure> {
        let xattrs = self.xattrs(inode, path);
        let result = self.attributes.set_node(place, inode, &xattrs);
        result.map(|()| true).map_err(|errno| place.failed(errno))
    }

    /// Returns the extended attributes. If they cannot be read, the failure is reported, and the file is copied without them.
    fn xattrs(&mut self, inode: &Inode, path: &[u8]) -> Vec<Xattr> {
        inode.xattrs().unwrap_or_else(|error| {
            self.report.error(&Failure::at(self.source.name(path), &error));
            Vec::new()
        })
    }
}

fn host_type(inode: &Inode) -> HostType {
    HostType::from_raw_mode(inode.stat().mode)
}
