//! The hold of a file's content on the slow path of a request: a guard until the request is submitted.

use std::rc::Rc;

use super::{Hold, QueueFile};

/// The content of a file, held by the queue's lane or by a range. The hold ends when this guard is dropped, or with the completion of the
/// request that [takes the hold over](super::QueueFiles::begin).
#[must_use = "the content is released when this is dropped"]
pub(crate) struct Entered {
    file: Rc<QueueFile>,
    hold: Option<Hold>,
}

impl Entered {
    /// Creates the guard of a hold that the caller has.
    pub(crate) fn new(file: Rc<QueueFile>, hold: Hold) -> Self {
        Self { file, hold: Some(hold) }
    }

    /// Gives the hold to the caller, which must release it.
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
