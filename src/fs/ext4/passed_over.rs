//! What was passed over or left undone for an error that no operation fails with: lines for who opened the volume.

use std::collections::HashSet;

use super::Ext4;
use crate::error::Error;
use crate::sync::Mutex;

/// How many lines are kept until someone takes them.
const MOST: usize = 1024;

/// The lines, and what is passed over.
#[derive(Default)]
pub(super) struct PassedOver {
    lines: Mutex<Vec<String>>,
    /// Groups whose descriptor is wrong and used all the same; `None` where that is an error.
    faulty_groups: Option<Mutex<HashSet<u32>>>,
}

impl PassedOver {
    /// For who only reads, and takes what can be had.
    pub(super) fn lenient() -> Self {
        Self { faulty_groups: Some(Mutex::default()), ..Self::default() }
    }

    /// Another one that passes over the same.
    pub(super) fn alike(&self) -> Self {
        Self {
            faulty_groups: self.faulty_groups.as_ref().map(|_| Mutex::default()),
            ..Self::default()
        }
    }

    pub(super) fn tell(&self, line: String) {
        let mut lines = self.lines.lock();
        if lines.len() < MOST {
            lines.push(line);
        }
    }

    /// Passes over a descriptor with a wrong checksum, and tells of it once.
    ///
    /// # Errors
    /// The error, for who has to rely on it.
    #[cold]
    pub(super) fn pass_over(&self, group: u32, error: Error) -> Result<(), Error> {
        let Some(groups) = &self.faulty_groups else { return Err(error) };
        if groups.lock().insert(group) {
            self.tell(format!("group {group} is read by a descriptor that is damaged: {error}"));
        }
        Ok(())
    }
}

impl Ext4 {
    /// Takes what was passed over or left undone since the last call, a line each. Of a volume that is only read: group descriptors and
    /// multiple mount protection that are damaged, and a journal that was not loaded. Of one that is written: inodes without a name that
    /// broken metadata kept from being freed, and which the superblock's record of errors leads e2fsck to.
    #[must_use]
    pub fn take_left(&self) -> Vec<String> {
        std::mem::take(&mut *self.left.lines.lock())
    }
}
