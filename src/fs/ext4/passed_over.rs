//! Faults that were tolerated, and work that was skipped, without a failed operation: lines for the caller that opened the volume.

use std::collections::HashSet;

use super::Ext4;
use crate::error::Error;
use crate::sync::Mutex;
use crate::units::{FileBlock, InodeNo};

/// The maximum number of lines that are kept.
const MOST: usize = 1024;

/// The lines, and the tolerated faults.
#[derive(Default)]
pub(super) struct PassedOver {
    lines: Mutex<Vec<String>>,
    /// The tolerated faults; `None` if every fault is an error.
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
    /// For a volume that is open for reading: every readable part is returned.
    pub(super) fn lenient() -> Self {
        Self { faults: Some(Mutex::default()), ..Self::default() }
    }

    /// An empty record with the same tolerance.
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

    /// Tolerates a descriptor with a wrong checksum, and reports it once.
    ///
    /// # Errors
    /// The error, if descriptors must be valid.
    #[cold]
    pub(super) fn pass_over(&self, group: u32, error: Error) -> Result<(), Error> {
        self.pass_over_fault(Fault::Descriptor(group), error, |error| {
            format!("group {group} is read by a descriptor that is damaged: {error}")
        })
    }

    /// Skips the rest of a directory's block, and reports it once.
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
    /// Takes the reports since the last call of tolerated faults and skipped work, one per line. On a volume that is open for reading: damaged group
    /// descriptors, multiple mount protection and blocks of directories, a backup of the superblock, and a journal that was not loaded. On a volume
    /// that is open for writing: inodes without a name that could not be freed because of damaged metadata; the superblock records these as errors,
    /// so e2fsck checks them.
    #[must_use]
    pub fn take_left(&self) -> Vec<String> {
        std::mem::take(&mut *self.left.lines.lock())
    }
}
