//! Records the result of a salvage for each file.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ironmap::fs::Stat;
use ironmap::units::InodeNo;

use crate::copy::out::Gaps;
use crate::failure::Failure;
use crate::source::Source;

/// The part of a volume in which a file was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The tree of the root directory.
    Tree,
    /// Files in use that no directory of the tree contains.
    Unreachable,
    /// Files that were removed while a program had them open, during the volume's last use.
    Orphan,
    /// Deleted files.
    Deleted,
}

impl Found {
    /// All parts, in the order in which they are copied.
    pub const ALL: [Self; 4] = [Self::Tree, Self::Unreachable, Self::Orphan, Self::Deleted];

    /// Returns the name of the directory that receives the copies.
    #[must_use]
    pub fn directory(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Unreachable => "unreachable",
            Self::Orphan => "orphans",
            Self::Deleted => "deleted",
        }
    }
}

/// The part of a file that was copied.
#[derive(Debug)]
pub enum State {
    /// The whole content was copied.
    Whole,
    /// Only a part of the content was copied. The copy has zeros in the missing ranges. If no ranges are given, the missing part is
    /// unknown, or the file is a directory with missing names.
    Part {
        /// The missing ranges in bytes.
        missing: Vec<Range<u64>>,
        /// The cause.
        why: String,
    },
    /// No content was copied.
    Lost {
        /// The cause.
        why: String,
    },
}

/// The result of one file.
#[derive(Debug)]
pub struct Outcome<'a> {
    /// The part of the volume.
    pub found: Found,
    /// The inode.
    pub inode: InodeNo,
    /// The path on the volume. The path of a file without a name begins with its inode number, as in `<12>`.
    pub path: &'a [u8],
    /// The copy, relative to the directory of the salvage. `None` if there is no copy.
    pub copy: Option<&'a Path>,
    /// The size in bytes. `None` if the inode could not be read.
    pub size: Option<u64>,
    /// The result of the copy.
    pub state: State,
    /// The inode's wrong checksum, if the file was copied nevertheless because the inode's fields are plausible.
    pub note: Option<String>,
}

/// The numbers of names in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files with all of their content. Directories are not counted.
    pub whole: u64,
    /// Files with a part of their content, and directories with a part of their names.
    pub part: u64,
    /// Files of which no content could be read.
    pub lost: u64,
}

/// The results of a salvage: see [`Counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary([Counts; 4]);

impl Summary {
    /// The counts of a part of the volume.
    #[must_use]
    pub fn of(&self, found: Found) -> Counts {
        self.0[found as usize]
    }
}

/// Records the result of each file, and passes the result to a callback.
pub(crate) struct Ledger<'a> {
    pub(super) found: Found,
    pub(super) summary: Summary,
    /// All inodes with a result.
    pub(super) seen: HashSet<InodeNo>,
    /// The inode numbers of the orphans. They are recorded because the log of XFS also describes orphans as deleted files.
    pub(super) orphans: HashSet<InodeNo>,
    /// The number of results with a note.
    pub(super) notes: u64,
    dir: PathBuf,
    source: Rc<Source>,
    each: &'a mut dyn FnMut(&Outcome<'_>),
}

impl<'a> Ledger<'a> {
    /// Creates a ledger for copies below `dir` from a source. It passes each result to `each`.
    pub(super) fn new(
        dir: &Path,
        source: &Rc<Source>,
        each: &'a mut dyn FnMut(&Outcome<'_>),
    ) -> Self {
        let (found, summary) = (Found::Tree, Summary::default());
        let (seen, orphans) = (HashSet::new(), HashSet::new());
        let source = Rc::clone(source);
        Self { found, summary, seen, orphans, notes: 0, dir: dir.to_owned(), source, each }
    }

    /// Records that a file other than a directory was copied, except for the gaps.
    pub(crate) fn copied(&mut self, stat: &Stat, path: &[u8], copy: &Path, gaps: Gaps) {
        let state = match gaps.why {
            Some(why) => State::Part { missing: gaps.ranges, why: why.to_string() },
            None => State::Whole,
        };
        self.record(stat.inode, path, Some(copy), Some(stat.size), state);
    }

    /// Records that a directory was made, with all of its names or a part of them.
    pub(crate) fn directory(&mut self, stat: &Stat, path: &[u8], copy: &Path, all: bool) {
        self.seen.insert(stat.inode);
        if all {
            // Directories are not counted, but a wrong checksum is recorded.
            if let Some(note) = self.note(stat.inode) {
                let copy = Some(copy.strip_prefix(&self.dir).unwrap_or(copy));
                let (found, inode, size) = (self.found, stat.inode, Some(stat.size));
                let (state, note) = (State::Whole, Some(note));
                (self.each)(&Outcome { found, inode, path, copy, size, state, note });
            }
        } else {
            let why = "a part of the directory cannot be read".to_owned();
            let state = State::Part { missing: Vec::new(), why };
            self.record(stat.inode, path, Some(copy), Some(stat.size), state);
        }
    }

    /// Records that a file could not be copied.
    pub(crate) fn lost(&mut self, number: InodeNo, path: &[u8], failure: &Failure) {
        let was_seen = self.seen.contains(&number);
        self.record(number, path, None, None, State::Lost { why: failure.to_string() });
        // The host has refused this name. The file may still be copied under another name, with the files that no directory contains.
        if failure.host_errno().is_some() && !was_seen {
            self.seen.remove(&number);
        }
    }

    pub(super) fn record(
        &mut self,
        inode: InodeNo,
        path: &[u8],
        copy: Option<&Path>,
        size: Option<u64>,
        state: State,
    ) {
        self.seen.insert(inode);
        let note = if copy.is_some() { self.note(inode) } else { None };
        // No read can show that the content of such an inode is complete.
        let state = match (state, &note) {
            (State::Whole, Some(note)) => State::Part { missing: Vec::new(), why: note.clone() },
            (state, _) => state,
        };
        let counts = &mut self.summary.0[self.found as usize];
        let count = match state {
            State::Whole => &mut counts.whole,
            State::Part { .. } => &mut counts.part,
            State::Lost { .. } => &mut counts.lost,
        };
        *count += 1;
        let copy = copy.map(|copy| copy.strip_prefix(&self.dir).unwrap_or(copy));
        (self.each)(&Outcome { found: self.found, inode, path, copy, size, state, note });
    }

    /// Returns the wrong checksum of an inode that was used nevertheless.
    fn note(&mut self, inode: InodeNo) -> Option<String> {
        // The inode of a deleted file was read from an older state of the volume.
        let live = self.found != Found::Deleted;
        let note = live.then(|| self.source.fs().tolerated(inode)).flatten();
        self.notes += u64::from(note.is_some());
        note
    }
}
