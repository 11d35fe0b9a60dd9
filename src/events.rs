//! Every I/O error is also an event, so that a program that watches a volume is notified too, not only the caller that met it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{Device, Durability, WrongTuple};
use crate::error::Errno;
use crate::units::{FilePos, InodeNo};

/// How many events are kept until someone takes them; the oldest go first.
const KEPT: usize = 1024;

/// The kind of access that met an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
#[non_exhaustive]
pub struct ErrorEvent {
    /// The kind of access.
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
pub struct Events {
    kept: Mutex<Kept>,
    /// Which says of a read that failed with EILSEQ what sectors were wrong.
    device: Option<Arc<dyn Device>>,
    durability: Durability,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<ErrorEvent>,
    dropped: u64,
    wrong: VecDeque<WrongTuple>,
    wrong_dropped: u64,
    /// All that there ever were.
    wrong_count: u64,
}

impl Events {
    /// Of a volume on this device.
    pub(crate) fn of(device: &Arc<dyn Device>) -> Self {
        let durability = Durability::of(device.limits());
        Self { device: Some(Arc::clone(device)), durability, ..Self::default() }
    }

    /// Flushes the volume's device.
    ///
    /// # Errors
    /// Those of [`Durability::flush`].
    pub(crate) fn flush(&self) -> crate::error::Result<()> {
        self.device.as_ref().map_or(Ok(()), |device| self.durability.flush(&**device))
    }

    /// The flushes of the volume's device.
    pub(crate) fn durability(&self) -> &Durability {
        &self.durability
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    pub(crate) fn report(&self, event: ErrorEvent) {
        if event.errno == Errno::EAGAIN {
            return;
        }
        let mut kept = self.lock();
        if event.errno == Errno::EILSEQ {
            self.gather(&mut kept);
        }
        if kept.events.len() == KEPT {
            kept.events.pop_front();
            kept.dropped += 1;
        }
        kept.events.push_back(event);
    }

    /// Takes the events since the last call, oldest first, and the number of those that were dropped before them.
    #[must_use]
    pub fn take(&self) -> (Vec<ErrorEvent>, u64) {
        let mut kept = self.lock();
        let dropped = std::mem::take(&mut kept.dropped);
        (kept.events.drain(..).collect(), dropped)
    }

    /// Takes the sectors that did not fit their tuples when they were read since the last call, oldest first, and the number of those that
    /// were dropped before them: of an [integrity device](crate::integrity), and of a device with protection information of its own.
    #[must_use]
    pub fn take_wrong_tuples(&self) -> (Vec<WrongTuple>, u64) {
        let mut kept = self.lock();
        self.gather(&mut kept);
        let dropped = std::mem::take(&mut kept.wrong_dropped);
        (kept.wrong.drain(..).collect(), dropped)
    }

    /// How many sectors did not fit their tuples since the volume was opened.
    #[must_use]
    pub fn wrong_tuples(&self) -> u64 {
        let mut kept = self.lock();
        self.gather(&mut kept);
        kept.wrong_count
    }

    /// Takes over what the device has found.
    fn gather(&self, kept: &mut Kept) {
        let found = self.device.as_ref().map(|device| device.take_wrong_tuples());
        let (found, dropped) = found.unwrap_or_default();
        if dropped > 0 {
            // They came before these, and so after all that are here.
            kept.wrong_dropped += dropped + kept.wrong.drain(..).count() as u64;
            kept.wrong_count += dropped;
        }
        for wrong in found {
            if kept.wrong.len() == KEPT {
                kept.wrong.pop_front();
                kept.wrong_dropped += 1;
            }
            kept.wrong.push_back(wrong);
            kept.wrong_count += 1;
        }
    }
}
