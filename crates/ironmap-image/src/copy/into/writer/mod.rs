//! Writes a copy of a tree to a volume. A reader sends the tree as a sequence of steps, such as the beginning of a file or a piece of its
//! content.

mod names;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use ironmap::ErrorKind;
use ironmap::bio::Buffer;
use ironmap::fs::{Credentials, FileType, SetAttributes, SetXattr, Timestamp, Xattr};
use ironmap::units::{FilePos, InodeNo};

use self::names::There;
pub(super) use self::names::check_name;
use super::open::Open;
use super::places::Places;
use super::step::{Entry, How, Identity, PIECE, Step};
use super::stream::{Pieces, Stream, check_whole, finish};
use crate::copy::keep::Times;
use crate::failure::Failure;
use crate::new::caller;
use crate::owners::Owners;
use crate::progress::Progress;
use crate::quote::quoted;
use crate::report::Report;
use crate::source::Source;
use crate::spared::Spared;
use crate::volumes::{Destination, Name};

const SET_ID: u32 = 0o6000;
const SET_GROUP: u32 = 0o2000;

/// Writes copies. The failure of a file is reported, and the copy continues.
pub(super) struct Writer {
    how: How,
    caller: Credentials,
    /// The destination of the tree, and the destination of its next file.
    root: Option<Name>,
    to: Option<Name>,
    /// The destination of all sources that the current reader reads.
    sources: Option<Destination>,
    places: Places,
    owners: Owners,
    /// Whether the tree is in the destination volume.
    same: bool,
    /// The files and directories whose `Begin` step has arrived, but not yet their `End` step. `None` for a file that is not copied.
    open: Vec<Option<Open>>,
    pieces: Pieces,
    /// The queue of direct writes. `None` until the first large file.
    stream: Option<Stream>,
    /// The names of the copies of sources that the user named.
    made: HashSet<(InodeNo, Vec<u8>)>,
    /// The source files with several names that the reader has read.
    pub(super) seen: HashSet<Identity>,
    /// The copies of files with several names.
    links: HashMap<Identity, InodeNo>,
    /// The files of the host to skip.
    pub(super) spared: Spared,
    /// For each extended attribute that the volume refused: the number of files with this attribute, and a text with the first file and the
    /// reason.
    refused: BTreeMap<Vec<u8>, (u64, String)>,
}

impl Writer {
    pub(super) fn new(how: How) -> Self {
        Self {
            how,
            caller: caller(),
            root: None,
            to: None,
            sources: None,
            places: Places::default(),
            owners: Owners::default(),
            same: false,
            open: Vec::new(),
            pieces: Pieces::default(),
            stream: None,
            made: HashSet::new(),
            seen: HashSet::new(),
            links: HashMap::new(),
            spared: Spared::default(),
            refused: BTreeMap::new(),
        }
    }

    pub(super) fn how(&self) -> How {
        self.how
    }

    pub(super) fn set_how(&mut self, how: How) {
        self.how = how;
    }

    /// Forgets the files with several names before the next source of a new volume. A later source can replace a file of an earlier source,
    /// and a new file can then get the inode number of the replaced file. Therefore, all names of a hard link must come from one source.
    pub(super) fn forget_links(&mut self) {
        self.seen.clear();
        self.links.clear();
    }

    /// Sets the owners of later copies, and of missing directories that the copy must make.
    pub(super) fn set_owners(&mut self, owners: Owners) {
        self.places.owner = owners.of(0, 0);
        self.owners = owners;
    }

    /// The pool of memory for content.
    pub(super) fn pieces(&self) -> Pieces {
        self.pieces.clone()
    }

    /// Starts a tree that is copied to this name. `from` is the volume that contains the tree, or `None` if the tree is on the host.
    pub(super) fn start(&mut self, to: Name, from: Option<&Rc<Source>>) {
        self.same = from.is_some_and(|from| Rc::ptr_eq(from, &to.source));
        self.open.clear();
        self.root = Some(to.clone());
        self.to = Some(to);
    }

    /// Starts several trees of the host, which one reader reads. The steps of each tree begin with [`Step::Source`].
    pub(super) fn start_sources(&mut self, to: Destination) {
        self.to = None;
        self.sources = Some(to);
    }

    /// Starts the next tree of [`start_sources`](Self::start_sources). If this fails, the steps of the tree are skipped.
    fn start_source(&mut self, last: &[u8], kind: FileType) -> Result<(), Failure> {
        self.to = None;
        let Some(to) = self.sources.as_ref().map(|sources| sources.name_for(last)) else {
            return Ok(());
        };
        check_name(&to, kind, self)?;
        self.start(to, None);
        Ok(())
    }

    /// Whether the tree is in the destination volume.
    pub(super) fn copies_within(&self) -> bool {
        self.same
    }

    /// Starts a layer of an image: a tree that may hide files of earlier trees.
    pub(super) fn start_layer(&mut self) {
        self.places.start_layer();
    }

    /// Ends the layer, and removes the files with names that AUFS uses internally.
    pub(super) fn end_layer(&mut self, report: &mut Report) -> Result<(), Failure> {
        self.places.end_layer(report)
    }

    /// Sets the final times of directories.
    pub(super) fn set_times(&mut self, root: &Name) -> Result<(), Failure> {
        self.places.finish(root)
    }

    /// Ends a copy early, and removes incomplete files.
    pub(super) fn abandon(&mut self, report: &mut Report) {
        while let Some(open) = self.open.pop() {
            let regular = |open: &Open| open.entry.stat.file_type == FileType::Regular;
            if let Some(open) = open.filter(regular)
                && let Err(failure) = self.end(open, None, report)
            {
                report.error(&failure);
            }
        }
    }

    /// Warns about the attributes that could not be kept.
    pub(super) fn finish(&self, report: &Report) {
        for (name, (count, first)) in &self.refused {
            let name = String::from_utf8_lossy(name);
            report.warning(format_args!(
                "the attribute {name} could not be set on {count} files, the first is {first}"
            ));
        }
    }

    pub(super) fn take(&mut self, step: Step, report: &mut Report) -> Result<(), Failure> {
        match step {
            Step::Source(last, kind) => self.start_source(&last, kind),
            Step::Begin(entry) => {
                report.progress.begin(&entry.path, entry.stat.file_type, entry.stat.size);
                let Some(name) = self.name(&entry.name) else {
                    self.open.push(None);
                    return Ok(());
                };
                let begun = self.begin(name, entry, report);
                let (open, result) = match begun {
                    Ok(open) => (open, Ok(())),
                    Err(failure) => (None, Err(failure)),
                };
                self.open.push(open);
                result
            }
            Step::Again(name, identity) => {
                report.progress.begin_link();
                let name = self.name(&name);
                let linked = name.map_or(Ok(()), |name| self.link(&name, identity));
                report.progress.end();
                linked
            }
            Step::Range(pos, len) => self.make_room(pos, len, &report.progress),
            Step::Data(pos, bytes) => self.write(pos, bytes, &report.progress),
            Step::End(size) => {
                let open = self.open.pop().flatten();
                let ended = open.map_or(Ok(()), |open| self.end(open, size, report));
                report.progress.end();
                ended
            }
            Step::At(path) => {
                self.to = None;
                let root = self.root.as_ref();
                self.to = root.map(|root| self.places.name(root, &path)).transpose()?;
                Ok(())
            }
            Step::Link(target) => {
                report.progress.begin_link();
                let linked = match (&self.root, &self.to) {
                    (Some(root), Some(to)) => self.places.link(root, to, &target, report),
                    _ => Ok(()),
                };
                report.progress.end();
                linked
            }
            Step::Hide(path) => match &self.root {
                Some(root) => self.places.hide(root, &path, report),
                None => Ok(()),
            },
            Step::Empty(path) => match &self.root {
                Some(root) => self.places.empty(root, &path, report),
                None => Ok(()),
            },
            Step::Failed(failure) => Err(failure),
        }
    }

    /// Returns the destination of a file with this name, or `None` if its directory was not copied.
    fn name(&self, name: &[u8]) -> Option<Name> {
        let Some(above) = self.open.last() else { return self.to.clone() };
        above.as_ref().map(|above| above.name.below(above.number, name))
    }

    fn begin(
        &mut self,
        name: Name,
        mut entry: Box<Entry>,
        report: &mut Report,
    ) -> Result<Option<Open>, Failure> {
        entry.sort();
        let stat = &mut entry.stat;
        (stat.uid, stat.gid) = self.owners.of(stat.uid, stat.gid);
        let inherits = match self.open.last() {
            Some(above) => above.as_ref().is_some_and(|above| above.gives_group),
            None => self.is_set_group(&name)?,
        };
        let kind = entry.stat.file_type;
        let mut gives_group = inherits && kind == FileType::Directory;
        // The code looks up an existing file only if the creation fails. In a new directory, the creation rarely fails.
        let mut new = true;
        let number = match self.create(&name, &entry) {
            Err(error) if error.kind() == ErrorKind::Exists => {
                match self.there(&name, &entry, report)? {
                    There::Skip => return Ok(None),
                    There::Use(number, mode) => {
                        new = false;
                        gives_group = kind == FileType::Directory && mode & SET_GROUP != 0;
                        number
                    }
                    There::Removed => {
                        self.create(&name, &entry).map_err(|error| name.failed(&error))?
                    }
                }
            }
            created => created.map_err(|error| name.failed(&error))?,
        };
        if self.how.replace {
            self.places.made(&name);
        }
        if self.how.keep.links && entry.stat.links > 1 && kind != FileType::Directory {
            self.links.insert(entry.identity, number);
        }
        if self.how.verbose
            && let Err(failure) =
                report.say(format_args!("{} -> {}", quoted(entry.path.as_bytes()), name.quoted()))
        {
            // If a message cannot be printed, the copy continues without messages.
            self.how.verbose = false;
            report.error(&failure);
        }
        if let Some(wanted) = &entry.wanted {
            wanted.yes();
        }
        let (file, size, allocated, broken) = (None, 0, 0, false);
        let open = Open { entry, name, number, new, gives_group, size, file, allocated, broken };
        if new && inherits && self.how.keep.ownership {
            let gid = Some(open.entry.stat.gid);
            let set = SetAttributes::new().gid(gid);
            let given =
                open.name.fs().writable().and_then(|writer| writer.set_attributes(number, &set));
            if let Err(error) = given {
                self.give_up(&open)?;
                return Err(open.name.failed(&error));
            }
        }
        Ok(Some(open))
    }

    /// Opens a large file for direct writes, and allocates a range of it in as few extents as possible.
    fn make_room(&mut self, pos: FilePos, len: u64, progress: &Progress) -> Result<(), Failure> {
        let Some(Some(open)) = self.open.last_mut() else { return Ok(()) };
        if open.broken || len <= PIECE {
            return Ok(());
        }
        let made = open.make_room(&mut self.stream, &self.pieces, pos, len, progress);
        if made.is_err() {
            open.is_broken();
        }
        made
    }

    fn write(&mut self, pos: FilePos, bytes: Buffer, progress: &Progress) -> Result<(), Failure> {
        let Some(Some(open)) = self.open.last_mut() else { return Ok(()) };
        if open.broken {
            return Ok(());
        }
        open.size = pos.0 + bytes.len() as u64;
        let written = match (&open.file, &mut self.stream) {
            (Some(file), Some(stream)) if pos.0 < open.allocated => {
                stream.write(file, pos, bytes, progress)
            }
            (_, stream) => finish(stream, progress).and_then(|()| {
                let count = open
                    .name
                    .fs()
                    .writable()
                    .and_then(|writer| writer.write(open.number, pos, &bytes))?;
                progress.advance(count as u64);
                check_whole(count, bytes.len())?;
                self.pieces.put([bytes]);
                Ok(())
            }),
        };
        if written.is_err() {
            open.is_broken();
        }
        written.map_err(|error| open.name.failed(&error))
    }

    fn end(
        &mut self,
        mut open: Open,
        size: Option<u64>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        // Only the first error of a file is reported, because it causes the others.
        let finished = finish(&mut self.stream, &report.progress);
        let lost = finished.err().filter(|_| !open.broken);
        open.broken |= lost.is_some();
        let regular = open.entry.stat.file_type == FileType::Regular;
        let whole = size.filter(|_| !open.broken);
        let Some(size) = whole.or((!regular).then_some(0)) else {
            if let Err(failure) = self.give_up(&open) {
                report.error(&failure);
            }
            return lost.map_or(Ok(()), |error| Err(open.name.failed(&error)));
        };
        let completed = self.complete(&mut open, size);
        if completed.is_err()
            && open.new
            && regular
            && let Err(failure) = self.give_up(&open)
        {
            report.error(&failure);
        }
        completed
    }

    /// Sets the size and the attributes of a copy whose content is complete.
    fn complete(&mut self, open: &mut Open, size: u64) -> Result<(), Failure> {
        let regular = open.entry.stat.file_type == FileType::Regular;
        if regular && (size > open.size || open.file.is_some()) {
            open.set_size(size)?;
            // Dropping the file updates the timestamps, so the timestamps must be set after the drop.
            open.file = None;
        }
        let Open { entry, name, number, .. } = &*open;
        let (fs, keep, stat) = (name.fs(), self.how.keep, &entry.stat);
        // A change of owner removes capabilities, so the owner is set before the extended attributes.
        if keep.ownership && !open.new {
            let (uid, gid) = (Some(stat.uid), Some(stat.gid));
            let set = SetAttributes::new().uid(uid).gid(gid);
            fs.writable()
                .and_then(|writer| writer.set_attributes(*number, &set))
                .map_err(|error| name.failed(&error))?;
        }
        if keep.mode {
            open.drop_access_lists().map_err(|error| name.failed(&error))?;
        }
        for Xattr { name: attribute, value } in &entry.xattrs {
            if let Err(error) = fs
                .writable()
                .and_then(|writer| writer.setxattr(*number, attribute, value, SetXattr::Any))
            {
                if self.how.ends.with(&name.failed(&error)) {
                    return Err(name.failed(&error));
                }
                let first = || (0, format!("{name}: {error}"));
                self.refused.entry(attribute.clone()).or_insert_with(first).0 += 1;
            }
        }
        let link = stat.file_type == FileType::Symlink;
        let permissions = (keep.mode && !link).then_some(stat.mode & 0o7777);
        let (accessed, modified) = match keep.times {
            Times::Now => (None, None),
            Times::Kept => (Some(stat.accessed), Some(stat.modified)),
            Times::Changed => (Some(stat.modified), Some(stat.modified)),
        };
        let clamp = |time: Timestamp| self.how.latest.map_or(time, |latest| time.min(latest));
        let (accessed, modified) = (accessed.map(clamp), modified.map(clamp));
        if permissions.is_none() && accessed.is_none() {
            return Ok(());
        }
        let times = SetAttributes::new().accessed(accessed).modified(modified);
        if self.how.replace && stat.file_type == FileType::Directory {
            self.places.directory(*number, times);
        }
        let set = times.permissions(permissions);
        fs.writable()
            .and_then(|writer| writer.set_attributes(*number, &set))
            .map_err(|error| name.failed(&error))
    }

    /// Ends an incomplete copy. If the copy made the file, removes the file. A file that existed before keeps the content written so far.
    fn give_up(&mut self, open: &Open) -> Result<(), Failure> {
        if !open.new {
            return open.give_back_room();
        }
        // The file is removed, because it could be mistaken for a complete file.
        self.links.remove(&open.entry.identity);
        let name = &open.name;
        name.fs()
            .writable()
            .and_then(|writer| writer.unlink(name.dir, &name.name))
            .map_err(|error| name.failed(&error))
    }
}
