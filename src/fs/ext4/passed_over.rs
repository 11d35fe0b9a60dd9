//! Reports of tolerated faults and skipped work, which did not make an operation fail. [`take_left`](Ext4::take_left) returns the reports
//! as lines of text to the program that opened the volume.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use super::Ext4;
use super::group_copies::Compared;
use crate::error::Error;
use crate::sync::Mutex;
use crate::units::{FileBlock, InodeNo};

/// The maximum number of lines and of different faults that are stored.
const MOST: usize = 1024;

/// The lines of the reports, and the damaged structures that have already been reported.
#[derive(Default)]
pub(super) struct PassedOver {
    lines: Mutex<Vec<String>>,
    /// The damaged structures that were tolerated and reported. `None` if the volume tolerates no damaged structures.
    faults: Option<Mutex<HashSet<Fault>>>,
    compared: Compared,
    /// The directories that have a damaged block.
    incomplete: Mutex<HashSet<InodeNo>>,
    /// The wrong checksums of the inodes that were tolerated. Unset if such inodes are not tolerated.
    inodes: OnceLock<Mutex<HashMap<InodeNo, String>>>,
}

/// A damaged structure. Each damaged structure is reported only once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Fault {
    /// The descriptor of a group.
    Descriptor(u32),
    /// A block of a directory: the directory's inode number, and the block's number in the directory.
    DirectoryBlock(InodeNo, FileBlock),
}

impl PassedOver {
    /// Creates the record for a volume that is open read-only. Damaged structures are tolerated, so that all undamaged parts can be read.
    pub(super) fn lenient() -> Self {
        Self { faults: Some(Mutex::default()), ..Self::default() }
    }

    /// Creates an empty record. The new record tolerates faults if and only if `self` tolerates faults.
    pub(super) fn alike(&self) -> Self {
        Self { faults: self.faults.as_ref().map(|_| Mutex::default()), ..Self::default() }
    }

    pub(super) fn tell(&self, line: String) {
        let mut lines = self.lines.lock();
        if lines.len() < MOST {
            lines.push(line);
        }
    }

    /// Whether damaged structures are tolerated.
    pub(super) fn is_lenient(&self) -> bool {
        self.faults.is_some()
    }

    /// The group descriptors that were compared with their copies. `None` if damaged descriptors are not tolerated.
    pub(super) fn compared(&self) -> Option<&Compared> {
        self.is_lenient().then_some(&self.compared)
    }

    /// Reports a damaged group descriptor once.
    #[cold]
    pub(super) fn tell_descriptor(&self, group: u32, how: &str, error: &Error) {
        let fault = Fault::Descriptor(group);
        self.tell_once(fault, || {
            format!("the descriptor of group {group} is damaged ({error}): {how}")
        });
    }

    /// From now on, tolerates inodes with a wrong checksum.
    pub(super) fn tolerate_inodes(&self) {
        if self.is_lenient() {
            self.inodes.get_or_init(Mutex::default);
        }
    }

    /// Whether inodes with a wrong checksum are tolerated.
    pub(super) fn tolerates_inodes(&self) -> bool {
        self.inodes.get().is_some()
    }

    /// Records the wrong checksum of an inode that is used, and reports it.
    #[cold]
    pub(super) fn keep_inode_fault(&self, inode: InodeNo, why: &Error) {
        let Some(inodes) = self.inodes.get() else { return };
        if inodes.lock().insert(inode, why.to_string()).is_none() {
            self.tell(format!(
                "{why}, but ironmap uses the inode because its fields are plausible"
            ));
        }
    }

    /// The wrong checksum of an inode that is used.
    pub(super) fn inode_fault(&self, inode: InodeNo) -> Option<String> {
        self.inodes.get()?.lock().get(&inode).cloned()
    }

    /// Tolerates a damaged block of a directory, and reports the block once. The caller skips the remaining entries of the block.
    ///
    /// # Errors
    /// The given error, if damaged blocks are not tolerated.
    #[cold]
    pub(super) fn pass_over_names(
        &self,
        dir: InodeNo,
        block: FileBlock,
        error: Error,
    ) -> Result<(), Error> {
        if !self.is_lenient() {
            return Err(error);
        }
        self.incomplete.lock().insert(dir);
        self.tell_once(Fault::DirectoryBlock(dir, block), || {
            format!("some names of directory inode {dir} cannot be read: {error}")
        });
        Ok(())
    }

    /// Whether a listing has skipped a block of this directory.
    pub(super) fn has_lost_names(&self, dir: InodeNo) -> bool {
        self.incomplete.lock().contains(&dir)
    }

    fn tell_once(&self, fault: Fault, line: impl FnOnce() -> String) {
        let Some(faults) = &self.faults else { return };
        let mut faults = faults.lock();
        if faults.len() < MOST && faults.insert(fault) {
            self.tell(line());
        }
    }
}

impl Ext4 {
    /// Removes and returns the reports since the last call, one report per line.
    ///
    /// On a volume that is open read-only, a report names one of these tolerated faults:
    ///
    /// - a damaged group descriptor, or a damaged block of a directory;
    /// - damaged multiple mount protection;
    /// - a damaged superblock, if a backup is used instead;
    /// - a journal that was not loaded.
    ///
    /// On a volume that is open for writing, a report names an orphan with damaged metadata, which could not be freed. The superblock also
    /// records this fault as an error. e2fsck then checks the volume.
    #[must_use]
    pub fn take_left(&self) -> Vec<String> {
        std::mem::take(&mut *self.left.lines.lock())
    }
}
