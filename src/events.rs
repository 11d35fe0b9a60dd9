//! Every I/O error is also an event, so that whoever watches a volume hears of it, not only the caller that met it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::error::Errno;
use crate::units::{FilePos, InodeNo};

/// How many events are kept until someone takes them; the oldest go first.
const KEPT: usize = 1024;

/// What kind of access met an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A direct read of file data.
    DirectRead,
    /// A direct write of file data.
    DirectWrite,
    /// A read or write of metadata. The position is that on the device, the inode 0.
    Metadata,
}

/// An I/O error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEvent {
    /// What kind of access.
    pub direction: Direction,
    /// The file.
    pub inode: InodeNo,
    /// The position of the request in it; of a direct read, from the start of its first logical block.
    pub pos: FilePos,
    /// The length of the request in bytes, not of the part that failed; of a direct read, in whole logical blocks and up to
    /// the file's end.
    pub len: u64,
    /// The device's errno.
    pub errno: Errno,
}

/// The events of a volume. EAGAIN is not an error and never gets here.
#[derive(Debug, Default)]
pub struct Events(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<ErrorEvent>,
    dropped: u64,
}

impl Events {
    #[cold]
    pub(crate) fn report(&self, event: ErrorEvent) {
        if event.errno == Errno::EAGAIN {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.events.len() == KEPT {
            kept.events.pop_front();
            kept.dropped += 1;
        }
        kept.events.push_back(event);
    }

    /// Takes the events since the last call, oldest first, and the number of those that were dropped before them.
    #[must_use]
    pub fn take(&self) -> (Vec<ErrorEvent>, u64) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = std::mem::take(&mut kept.dropped);
        (kept.events.drain(..).collect(), dropped)
    }
}
