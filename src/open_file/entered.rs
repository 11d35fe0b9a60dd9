//! A request that is within the content of a file, on the slow path: its hold is a guard until the request is submitted.

use std::rc::Rc;

use super::{Hold, QueueFile};

/// The content of a file, held by the queue's lane or by a range. The hold ends when this is dropped, or with the completion of the request that
/// [takes it over](super::QueueFiles::begin).
#[must_use = "the content is released when this is dropped"]
pub(crate) struct Entered {
    file: Rc<QueueFile>,
    hold: Option<Hold>,
}

impl Entered {
    /// The guard of a hold that the caller has.
    pub(crate) fn new(file: Rc<QueueFile>, hold: Hold) -> Self {
        Self { file, hold: Some(hold) }
    }

    /// Gives the hold to the caller, who releases it.
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
