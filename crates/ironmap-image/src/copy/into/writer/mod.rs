//! What a tree's steps say, made in a volume.

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
use crate::volumes::Name;

const SET_ID: u32 = 0o6000;
const SET_GROUP: u32 = 0o2000;

/// Writes copies. Failures go to the report, one by one, and the rest goes on.
pub(super) struct Writer {
    how: How,
    caller: Credentials,
    /// Where the next tree goes, and where in it its next file does if that comes with its path.
    root: Option<Name>,
    to: Option<Name>,
    places: Places,
    owners: Owners,
    /// The volume that it comes from, where that is the one that it goes to.
    same: bool,
    /// What has begun and not ended; `None` is not copied.
    open: Vec<Option<Open>>,
    pieces: Pieces,
    /// Made for the first large file.
    stream: Option<Stream>,
    /// Names that copies of files got which the user named.
    made: HashSet<(InodeNo, Vec<u8>)>,
    /// Files with several names that were read.
    pub(super) seen: HashSet<Identity>,
    /// Their copies.
    links: HashMap<Identity, InodeNo>,
    /// Files of the host that are left out.
    pub(super) spared: Spared,
    /// Names of extended attributes that the volume refuses, with how often, and the first file and reason.
    refused: BTreeMap<Vec<u8>, (u64, String)>,
}

impl Writer {
    pub(super) fn new(how: How) -> Self {
        Self {
            how,
            caller: caller(),
            root: None,
            to: None,
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

    /// Copies get these owners from now on, and so do directories that no tree names.
    pub(super) fn set_owners(&mut self, owners: Owners) {
        self.places.owner = owners.of(0, 0);
        self.owners = owners;
    }

    /// Where memory for content comes from, and goes back to.
    pub(super) fn pieces(&self) -> Pieces {
        self.pieces.clone()
    }

    /// The next tree gets this name. `from` is the volume that it is in, if it is in one.
    pub(super) fn start(&mut self, to: Name, from: Option<&Rc<Source>>) {
        self.same = from.is_some_and(|from| Rc::ptr_eq(from, &to.source));
        self.open.clear();
        self.root = Some(to.clone());
        self.to = Some(to);
    }

    /// Whether the tree is in the volume that the copy goes to.
    pub(super) fn copies_within(&self) -> bool {
        self.same
    }

    /// A tree begins that hides what those before it made.
    pub(super) fn start_layer(&mut self) {
        self.places.start_layer();
    }

    /// It has ended, and what is of no use behind it goes.
    pub(super) fn end_layer(&mut self, report: &mut Report) -> Result<(), Failure> {
        self.places.end_layer(report)
    }

    /// Gives directories the times that they are to have in the end.
    pub(super) fn set_times(&mut self, root: &Name) -> Result<(), Failure> {
        self.places.finish(root)
    }

    /// Ends a copy in the midst: what is not complete goes.
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

    /// Warns of what could not be kept.
    pub(super) fn finish(&self, report: &Report) {
        for (name, (count, first)) in &self.refused {
            let name = String::from_utf8_lossy(name);
            report.warning(format_args!(
                "the attribute {name} of {count} files was not kept; the first: {first}"
            ));
        }
    }

    pub(super) fn take(&mut self, step: Step, report: &mut Report) -> Result<(), Failure> {
        match step {
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

    /// Where something of this name goes now; `None` where the directory above was not copied.
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
        // Nothing is looked up where nothing is there: in what was just made.
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
            // That nobody hears of it is no reason to copy nothing.
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

    /// Opens a large file for direct writes, and allocates a range of it in as few pieces as there are.
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
        // All errors that follow the first one come from it.
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

    /// Gives a copy its size and its attributes, when all of its content is there.
    fn complete(&mut self, open: &mut Open, size: u64) -> Result<(), Failure> {
        let regular = open.entry.stat.file_type == FileType::Regular;
        if regular && (size > open.size || open.file.is_some()) {
            open.set_size(size)?;
            // Its time stamps come before those that it is given.
            open.file = None;
        }
        let Open { entry, name, number, .. } = &*open;
        let (fs, keep, stat) = (name.fs(), self.how.keep, &entry.stat);
        // A new owner takes capabilities away.
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

    /// Not all of a file is there.
    fn give_up(&mut self, open: &Open) -> Result<(), Failure> {
        if !open.new {
            return open.give_back_room();
        }
        // Half a file looks like a whole one.
        self.links.remove(&open.entry.identity);
        let name = &open.name;
        name.fs()
            .writable()
            .and_then(|writer| writer.unlink(name.dir, &name.name))
            .map_err(|error| name.failed(&error))
    }
}
