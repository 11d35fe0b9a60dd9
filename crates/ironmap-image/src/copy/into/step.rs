//! What lies between who reads a tree and the writer: steps, and the answer whether a file's content is wanted.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use ironmap::bio::Buffer;
use ironmap::fs::{Stat, Timestamp, Xattr};
use ironmap::units::{FilePos, InodeNo};

use crate::acl;
use crate::copy::Keep;
use crate::copy::keep::is_access_list;
use crate::failure::Failure;

/// How much of a file is read and written at once: little enough to stay in a processor's cache in between. What is no longer is written in
/// one transaction, which costs less for a small file than a direct write and what that leaves to be converted.
pub(super) const PIECE: u64 = 1 << 20;

/// A tree as a sequence: each `Begin` has its `End`, and what lies between them is in it.
pub(super) enum Step {
    /// A file or a directory begins.
    Begin(Box<Entry>),
    /// A further name of a file that had its `Begin` before.
    Again(Vec<u8>, Identity),
    /// Content of this length follows, piece by piece, with no hole in it; it may turn out to be shorter.
    Range(FilePos, u64),
    /// A piece of a file's content; what no step has is a hole.
    Data(FilePos, Buffer),
    /// It ends, with this size where it is a file; `None` where not all of it could be read.
    End(Option<u64>),
    /// What begins next, or gets a name, is at this path below the root; directories that are missing above it are made.
    At(Vec<u8>),
    /// There the file of this path gets one more name.
    Link(Vec<u8>),
    /// What trees before this one had at this path below the root goes: a file or a directory, or what a directory holds.
    Hide(Vec<u8>),
    Empty(Vec<u8>),
    /// Something could not be read.
    Failed(Failure),
}

/// A file that is copied.
pub(super) struct Entry {
    /// Its last name.
    pub(super) name: Vec<u8>,
    /// Its path, for messages; empty where none are wanted.
    pub(super) path: String,
    pub(super) identity: Identity,
    pub(super) stat: Stat,
    /// Of a symbolic link.
    pub(super) target: Option<Vec<u8>>,
    /// Of a symbolic link of the volume that the copy goes to: the file that it leads to.
    pub(super) leads_to: Option<InodeNo>,
    pub(super) xattrs: Vec<Xattr>,
    /// For who reads its content.
    pub(super) wanted: Option<Wanted>,
}

impl Entry {
    /// Gives what has no order of its own the order of its bytes: a host lists it as it was set. With the names of directories, which their
    /// readers sort, this is all that decides the bytes of a copy and is not in the tree.
    pub(super) fn sort(&mut self) {
        self.xattrs.sort_by(|a, b| a.name.cmp(&b.name));
        let lists = self.xattrs.iter_mut().filter(|xattr| is_access_list(&xattr.name));
        lists.for_each(|list| acl::sort(&mut list.value));
    }
}

/// The writer's side of a question: is the content of a file wanted? Once it is dropped, it is not.
pub(super) struct Wanted(Sender<()>);

/// The reader's side.
pub(super) struct IsWanted(Receiver<()>);

/// Who reads a file asks, and who writes the copy answers.
pub(super) fn wanted() -> (Wanted, IsWanted) {
    let (answer, answers) = channel();
    (Wanted(answer), IsWanted(answers))
}

impl Wanted {
    /// The copy has begun.
    pub(super) fn yes(&self) {
        // The reader may be gone.
        let _ = self.0.send(());
    }
}

impl IsWanted {
    /// Waits for the answer.
    pub(super) fn wait(&self) -> bool {
        self.0.recv().is_ok()
    }

    /// Whether the answer was not no, so far.
    pub(super) fn is_not_refused(&self) -> bool {
        self.0.try_recv() != Err(TryRecvError::Disconnected)
    }
}

/// Which file it is: device, inode.
pub(super) type Identity = (u64, u64);

/// The copy was interrupted.
pub(super) struct Stopped;

/// How to copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) keep: Keep,
    pub(super) no_clobber: bool,
    pub(super) verbose: bool,
    /// Pipes and devices of the host are read as files are.
    pub(super) as_files: bool,
    pub(super) ends: Ends,
    /// What has the name of a copy is removed first, with all below it; only a directory becomes a directory's copy.
    pub(super) replace: bool,
    /// No copy is younger; and that a source was read does not show.
    pub(super) latest: Option<Timestamp>,
}

/// Which failure ends a copy; after others the rest goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Never,
    /// One that says that there is no room: no other file is copied.
    WithoutRoom,
    Always,
}

impl Ends {
    pub(super) fn with(self, failure: &Failure) -> bool {
        match self {
            Self::Never => false,
            Self::WithoutRoom => failure.is_for_space(),
            Self::Always => true,
        }
    }
}
