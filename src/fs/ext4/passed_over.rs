//! Tolerated faults and skipped work, which did not make an operation fail. The caller that opened the volume can take reports of them, as lines of
//! text.

use std::collections::HashSet;

use super::Ext4;
use crate::error::Error;
use crate::sync::Mutex;
use crate::units::{FileBlock, InodeNo};

/// The maximum number of lines that are kept.
const MOST: usize = 1024;

/// The lines of the reports, and the faults that were already reported.
#[derive(Default)]
pub(super) struct PassedOver {
    lines: Mutex<Vec<String>>,
    /// The tolerated faults; `None` if no fault is tolerated.
    faults: Option<Mutex<HashSet<Fault>>>,
}

/// A damaged structure, which is reported only once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Fault {
    /// The descriptor of a group.
    Descriptor(u32),
    /// A block of a directory, with its number in the directory.
    DirectoryBlock(InodeNo, FileBlock),
}

impl PassedOver {
    /// For a volume that is open read-only: damaged structures are tolerated, so that every readable part can be read.
    pub(super) fn lenient() -> Self {
        Self { faults: Some(Mutex::default()), ..Self::default() }
    }

    /// An empty record that tolerates the same faults.
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
    /// The error itself, if damaged descriptors are not tolerated.
    #[cold]
    pub(super) fn pass_over(&self, group: u32, error: Error) -> Result<(), Error> {
        self.pass_over_fault(Fault::Descriptor(group), error, |error| {
            format!("the descriptor of group {group} is damaged, but is used: {error}")
        })
    }

    /// Skips the remaining entries of a directory's block, and reports this once.
    ///
    /// # Errors
    /// The error itself, if damaged blocks are not tolerated.
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
    /// Takes the reports of tolerated faults and skipped work since the last call, one per line. On a volume that is open read-only,
    /// they are about damaged group descriptors, multiple mount protection and blocks of directories, a backup of the superblock that
    /// was used, and a journal that was not loaded. On a volume that is open for writing, they are about inodes without a name that
    /// could not be freed because of damaged metadata. The superblock records these as errors, so that e2fsck checks them.
    #[must_use]
    pub fn take_left(&self) -> Vec<String> {
        std::mem::take(&mut *self.left.lines.lock())
    }
}
