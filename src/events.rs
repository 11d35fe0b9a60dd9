//! I/O errors as events. The caller of a failed operation gets the error. A program that monitors the volume gets the same error as an
//! event.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{Device, Durability, WrongTuple};
use crate::error::Errno;
use crate::units::{FilePos, InodeNo};

/// The largest number of events that are stored until the next call. Beyond this number, the oldest are dropped.
const KEPT: usize = 1024;

/// The kind of access that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Direction {
    /// A direct read of file data.
    DirectRead,
    /// A direct write of file data.
    DirectWrite,
    /// A read or write of metadata. Its position is a position on the device, and its inode is 0.
    Metadata,
}

/// An I/O error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorEvent {
    /// The kind of access.
    pub direction: Direction,
    /// The file that the request accessed.
    pub inode: InodeNo,
    /// The position of the request in the file. For a direct read, this is the start of a logical block.
    pub pos: FilePos,
    /// The length of the whole request in bytes, even if only a part failed. For a direct read, the range is extended to whole logical
    /// blocks, but not past the end of the file's last block.
    pub len: u64,
    /// The device's errno.
    pub errno: Errno,
}

/// The events of a volume. EAGAIN does not become an event, because it is not an I/O error.
#[derive(Debug, Default)]
pub struct Events {
    kept: Mutex<Kept>,
    /// The device. If a read fails with EILSEQ, the device reports the wrong sectors.
    device: Option<Arc<dyn Device>>,
    durability: Durability,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<ErrorEvent>,
    dropped: u64,
    wrong: VecDeque<WrongTuple>,
    wrong_dropped: u64,
    /// The number of wrong sectors since the volume was opened.
    wrong_count: u64,
}

impl Events {
    /// Creates the events of the volume on this device.
    pub(crate) fn of(device: &Arc<dyn Device>) -> Self {
        let durability = Durability::of(device.limits());
        Self { device: Some(Arc::clone(device)), durability, ..Self::default() }
    }

    /// Flushes the volume's device.
    ///
    /// # Errors
    /// The errors of [`Durability::flush`].
    pub(crate) fn flush(&self) -> crate::error::Result<()> {
        self.device.as_ref().map_or(Ok(()), |device| self.durability.flush(&**device))
    }

    /// The state of the flushes of the volume's device. All users of the device share this state.
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

    /// Returns the events since the last call, oldest first, and the number of older events that were dropped.
    #[must_use]
    pub fn take(&self) -> (Vec<ErrorEvent>, u64) {
        let mut kept = self.lock();
        let dropped = std::mem::take(&mut kept.dropped);
        (kept.events.drain(..).collect(), dropped)
    }

    /// Returns the sectors that were read since the last call and did not match their protection tuples, oldest first, and the number of
    /// older sectors that were dropped. The device is an [integrity device](crate::integrity), or has its own protection information.
    #[must_use]
    pub fn take_wrong_tuples(&self) -> (Vec<WrongTuple>, u64) {
        let mut kept = self.lock();
        self.gather(&mut kept);
        let dropped = std::mem::take(&mut kept.wrong_dropped);
        (kept.wrong.drain(..).collect(), dropped)
    }

    /// The number of sectors that did not match their protection tuples since the volume was opened.
    #[must_use]
    pub fn wrong_tuples(&self) -> u64 {
        let mut kept = self.lock();
        self.gather(&mut kept);
        kept.wrong_count
    }

    /// Takes the list of wrong sectors from the device.
    fn gather(&self, kept: &mut Kept) {
        let found = self.device.as_ref().map(|device| device.take_wrong_tuples());
        let (found, dropped) = found.unwrap_or_default();
        if dropped > 0 {
            // The device has dropped sectors that are newer than all sectors in this list. This code empties the list too, so that it has
            // no gap: only the oldest sectors are missing.
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
