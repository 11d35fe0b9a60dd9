//! The guard of a lock on a file's content. A request first tries the short code path for simple requests. If it cannot use this path, it
//! holds the guard until it is submitted.

use std::rc::Rc;

use super::{Hold, QueueFile};

/// A guard of a lock on a file's content. The lock is an increment of the queue's counter (lane), or a range lock. Dropping the guard
/// releases the lock. A request can [take over](super::QueueFiles::begin) the lock; the completion of the request then releases it.
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

    /// Ends the guard without releasing the lock. The caller must release the returned lock.
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
