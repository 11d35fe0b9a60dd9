//! The guard of a lock on a file's content. Requests outside the simple path use it until they are submitted.

use std::rc::Rc;

use super::{Hold, QueueFile};

/// A guard: the content of a file is locked, through the lane of the queue or by a range lock. The drop releases the lock. A request can
/// [take over](super::QueueFiles::begin) the lock, and releases it when it completes.
#[must_use = "a drop of the guard releases the content"]
pub(crate) struct Entered {
    file: Rc<QueueFile>,
    hold: Option<Hold>,
}

impl Entered {
    /// Creates the guard for a lock that the caller has acquired.
    pub(crate) fn new(file: Rc<QueueFile>, hold: Hold) -> Self {
        Self { file, hold: Some(hold) }
    }

    /// Returns the lock to the caller, which must release it.
    pub(super) fn hand_over(mut self) -> Option<Hold> {
        self.hold.take()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        match self.hold.take() {
            Some(Hold::Lane) => self.file.leave(),
            Some(Hold::Range(ticket)) => self.file.inode.content.give_back(ticket),
            None => {}
        }
    }
}
