//! The messages between a reader of a tree and the writer: steps, and the answer whether the writer needs a file's content.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use ironmap::bio::Buffer;
use ironmap::fs::{FileType, Stat, Timestamp, Xattr};
use ironmap::sorting::Sorting;
use ironmap::units::{FilePos, InodeNo};

use crate::acl;
use crate::copy::Keep;
use crate::copy::keep::is_access_list;
use crate::failure::Failure;

/// The length of a read and a write, small enough for the data to stay in the processor's cache between the two. A file of at most this
/// length is written in one transaction, which is faster than a direct write with a later conversion of unwritten extents.
pub(super) const PIECE: u64 = 1 << 20;

/// A step of the copy of a tree. Each `Begin` has an `End`. The steps between `Begin` and `End` describe the file's content or the
/// directory's entries.
pub(super) enum Step {
    /// The following steps belong to the next source. The fields are the last component of the source's path, and the type of the source.
    Source(Vec<u8>, FileType),
    /// The beginning of a file or a directory.
    Begin(Box<Entry>),
    /// Another name of a file whose `Begin` was sent earlier.
    Again(Vec<u8>, Identity),
    /// `Data` steps follow for this range, which has no hole. If the file shrinks, the content of these steps ends before the end of the
    /// range.
    Range(FilePos, u64),
    /// A piece of a file's content. Ranges without such a step are holes.
    Data(FilePos, Buffer),
    /// The end of a file or a directory. For a file, the field is the size. `None` if the file or directory could not be read completely.
    End(Option<u64>),
    /// The path, below the root, for the next `Begin` or `Link`. Missing directories of this path are made.
    At(Vec<u8>),
    /// The file at this path gets an additional name, which the preceding `At` step contains.
    Link(Vec<u8>),
    /// Removes files of earlier trees at this path below the root. `Hide` removes the file or the directory at the path; `Empty` removes
    /// only the entries of the directory.
    Hide(Vec<u8>),
    Empty(Vec<u8>),
    /// A part of the tree could not be read.
    Failed(Failure),
}

/// A file to copy.
pub(super) struct Entry {
    /// The last component of the file's path.
    pub(super) name: Vec<u8>,
    /// The path of the file, for messages. Empty if there are no messages.
    pub(super) path: String,
    pub(super) identity: Identity,
    pub(super) stat: Stat,
    /// The target of a symbolic link.
    pub(super) target: Option<Vec<u8>>,
    /// For a symbolic link in the destination volume, the file to which the link points.
    pub(super) leads_to: Option<InodeNo>,
    pub(super) xattrs: Vec<Xattr>,
    /// The writer's answer whether it needs the content.
    pub(super) wanted: Option<Wanted>,
}

impl Entry {
    /// Sorts the extended attributes and access control lists, because a host lists them in the order in which they were set. The readers
    /// also sort the entries of directories, so the bytes of a copy depend only on the tree.
    pub(super) fn sort(&mut self) {
        self.xattrs.order_by(|a, b| a.name.cmp(&b.name));
        let lists = self.xattrs.iter_mut().filter(|xattr| is_access_list(&xattr.name));
        lists.for_each(|list| acl::sort(&mut list.value));
    }
}

/// The writer's end of the answer whether it needs a file's content. If the writer drops this value, it refuses all content that has not
/// been sent yet.
pub(super) struct Wanted(Arc<Answer>);

/// The reader's end of the answer whether the writer needs a file's content.
pub(super) struct IsWanted(Arc<Answer>);

/// The answer, which the writer and the reader share. It needs one allocation for each file; a channel would need more.
struct Answer {
    /// `None` until the writer has decided.
    is_wanted: Mutex<Option<bool>>,
    decided: Condvar,
}

/// Makes both ends of the answer whether the writer needs the content.
pub(super) fn wanted() -> (Wanted, IsWanted) {
    let answer = Arc::new(Answer { is_wanted: Mutex::new(None), decided: Condvar::new() });
    (Wanted(Arc::clone(&answer)), IsWanted(answer))
}

impl Answer {
    fn set(&self, is_wanted: bool) {
        *self.is_wanted.lock().unwrap_or_else(PoisonError::into_inner) = Some(is_wanted);
        self.decided.notify_one();
    }
}

impl Wanted {
    /// Answers that the copy has begun and needs the content.
    pub(super) fn yes(&self) {
        self.0.set(true);
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl IsWanted {
    /// Waits for the answer. Returns whether the writer needs the content.
    pub(super) fn wait(&self) -> bool {
        let answer = self.0.is_wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let decided = self.0.decided.wait_while(answer, |answer| answer.is_none());
        *decided.unwrap_or_else(PoisonError::into_inner) == Some(true)
    }

    /// Whether the writer has not refused so far.
    pub(super) fn is_not_refused(&self) -> bool {
        *self.0.is_wanted.lock().unwrap_or_else(PoisonError::into_inner) != Some(false)
    }
}

/// The identity of a file: device and inode.
pub(super) type Identity = (u64, u64);

/// The error of a reader that must stop because the writer has ended the copy.
pub(super) struct Stopped;

/// The options of the writer.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) keep: Keep,
    pub(super) no_clobber: bool,
    pub(super) verbose: bool,
    /// Whether the content of the host's pipes and devices is copied, as if they were regular files.
    pub(super) as_files: bool,
    pub(super) ends: Ends,
    /// Whether an existing file with the name of a copy is removed first, with everything below it. A directory is kept if the copy is a
    /// directory.
    pub(super) replace: bool,
    /// The latest timestamp of a copy. It replaces any later timestamp.
    pub(super) latest: Option<Timestamp>,
}

/// The failures that end a copy. After any other failure, the copy continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Never,
    /// A failure for lack of space. No further files are copied.
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
