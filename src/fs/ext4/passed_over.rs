//! Faults that were passed over, and work that was left undone, without a failed operation: lines for the caller that opened the volume.

use std::collections::HashSet;

use super::Ext4;
use crate::error::Error;
use crate::sync::Mutex;
use crate::units::{FileBlock, InodeNo};

/// How many lines are kept until someone takes them.
const MOST: usize = 1024;

/// The lines, and the faults that are passed over.
#[derive(Default)]
pub(super) struct PassedOver {
    lines: Mutex<Vec<String>>,
    /// The faults that are passed over; `None` where a fault is an error.
    faults: Option<Mutex<HashSet<Fault>>>,
}

/// A damaged structure, which is reported once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Fault {
    /// The descriptor of a group.
    Descriptor(u32),
    /// A block of a directory, counted from its start.
    DirectoryBlock(InodeNo, FileBlock),
}

impl PassedOver {
    /// For a volume that is only read: all readable parts are given.
    pub(super) fn lenient() -> Self {
        Self { faults: Some(Mutex::default()), ..Self::default() }
    }

    /// Another one that passes over the same.
    pub(super) fn alike(&self) -> Self {
        Self { faults: self.faults.as_ref().map(|_| Mutex::default()), ..Self::default() }
    }

    pub(super) fn tell(&self, line: String) {
        let mut lines = self.lines.lock();
        if lines.len() < MOST {
            lines.push(line);
        }
    }

    /// Whether damaged structures are passed over.
    pub(super) fn is_lenient(&self) -> bool {
        self.faults.is_some()
    }

    /// Passes over a descriptor with a wrong checksum, and reports it once.
    ///
    /// # Errors
    /// The error, where the descriptor must be right.
    #[cold]
    pub(super) fn pass_over(&self, group: u32, error: Error) -> Result<(), Error> {
        self.pass_over_fault(Fault::Descriptor(group), error, |error| {
            format!("group {group} is read by a descriptor that is damaged: {error}")
        })
    }

    /// Passes over the rest of a directory's block, and reports it once.
    ///
    /// # Errors
    /// As [`pass_over`](Self::pass_over).
    #[cold]
    pub(super) fn pass_over_names(
        &self,
        dir: InodeNo,
        block: FileBlock,
        error: Error,
    ) -> Result<(), Error> {
        self.pass_over_fault(Fault::DirectoryBlock(dir, block), error, |error| {
            format!("names of directory inode {dir} are missing: {error}")
        })
    }

    fn pass_over_fault(
        &self,
        fault: Fault,
        error: Error,
        line: impl FnOnce(Error) -> String,
    ) -> Result<(), Error> {
        let Some(faults) = &self.faults else { return Err(error) };
        let mut faults = faults.lock();
        if faults.len() < MOST && faults.insert(fault) {
            self.tell(line(error));
        }
        Ok(())
    }
}

impl Ext4 {
    /// Takes the reports of faults that were passed over and of work that was left undone since the last call, a line each. Of a volume that is only read: group descriptors,
    /// multiple mount protection and blocks of directories that are damaged, a backup of the superblock, and a journal that was not loaded. Of one that is written: inodes without a name that
    /// broken metadata kept from being freed, and which the superblock's record of errors leads e2fsck to.
    #[must_use]
    pub fn take_left(&self) -> Vec<String> {
        std::mem::take(&mut *self.left.lines.lock())
    }
}
