//! Lazy time stamps. Reads and overwrites of an open file set its time stamps in memory, without a transaction. These time stamps are
//! called pending.
//!
//! The pending stamps of an inode are two words in memory, next to the inode's lock. A thread does not need the lock to set them. Every
//! reader of the inode sees the pending stamps. The next change of the inode writes the stamps to the inode table. Without such a change,
//! one of these events writes the stamps: [`sync_all`](super::Ext4::sync_all), `close`, a tick of the [timer](super::CommitTimer), or the
//! drop of the last [`Held`](super::Ext4Held). A crash loses pending stamps. The file then has the times of its last transaction.

use crate::fs::{Access, Timestamp};
use crate::sync::atomic::{AtomicU64, Ordering};

/// The range of seconds that an inode can represent: the first second, and the number of seconds after it.
const FIRST: i64 = i32::MIN as i64;
const SECONDS: i64 = 1 << 34;
const SECOND: u64 = 1_000_000_000;
/// The value of a [`Stamp`] without a pending time.
const NONE: u64 = 0;

/// The pending time stamps of an inode, which are not in a transaction yet.
#[derive(Default)]
pub(crate) struct Stamps {
    read: Stamp,
    written: Stamp,
}

/// The values of the pending time stamps at one point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// The time of the last read of the content.
    pub(crate) read: Option<Timestamp>,
    /// The time of the last change of the content, which is also a change of the inode.
    pub(crate) written: Option<Timestamp>,
}

/// 1 plus the number of nanoseconds since [`FIRST`], or [`NONE`]. 64 bits are enough for all times that an inode can represent.
#[derive(Default)]
struct Stamp(AtomicU64);

impl Stamps {
    /// Whether this stamp is already pending with the time `now`. If so, the caller need not set the stamp. Until the clock advances,
    /// threads only read the stamp, and the processors can share its cache line.
    #[inline]
    pub(crate) fn has(&self, access: Access, now: Timestamp) -> bool {
        let slot = match access {
            Access::Read => &self.read,
            Access::Write => &self.written,
        };
        slot.0.load(Ordering::Relaxed) == encode(now)
    }

    /// Sets a stamp. Returns true if no stamp was pending before.
    #[inline]
    pub(crate) fn set(&self, access: Access, now: Timestamp) -> bool {
        match access {
            Access::Read => self.read.set(now),
            Access::Write => self.written.set(now),
        }
    }

    pub(crate) fn get(&self) -> Waiting {
        Waiting { read: self.read.get(), written: self.written.get() }
    }

    /// Removes the pending stamps. Returns the stamps and their number.
    pub(crate) fn take(&self) -> (Waiting, usize) {
        let pending = Waiting { read: self.read.take(), written: self.written.take() };
        (pending, usize::from(pending.read.is_some()) + usize::from(pending.written.is_some()))
    }
}

impl Stamp {
    #[inline]
    fn set(&self, now: Timestamp) -> bool {
        self.0.swap(encode(now), Ordering::Relaxed) == NONE
    }

    fn get(&self) -> Option<Timestamp> {
        decode(self.0.load(Ordering::Relaxed))
    }

    fn take(&self) -> Option<Timestamp> {
        decode(self.0.swap(NONE, Ordering::Relaxed))
    }
}

#[inline]
fn encode(time: Timestamp) -> u64 {
    let seconds = (time.seconds.clamp(FIRST, FIRST + SECONDS - 1) - FIRST) as u64;
    seconds * SECOND + u64::from(time.nanoseconds) + 1
}

fn decode(slot: u64) -> Option<Timestamp> {
    let since = slot.checked_sub(1)?;
    let seconds = FIRST + (since / SECOND) as i64;
    Some(Timestamp { seconds, nanoseconds: (since % SECOND) as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stamp can have any time that an inode can represent, including the first second of 1970.
    #[test]
    fn all_times_of_an_inode_can_wait() {
        let stamps = Stamps::default();
        for seconds in [FIRST, -1, 0, 1, i64::from(u32::MAX), FIRST + SECONDS - 1] {
            for nanoseconds in [0, 999_999_999] {
                let now = Timestamp { seconds, nanoseconds };
                assert!(stamps.set(Access::Write, now), "{now:?}");
                assert!(!stamps.set(Access::Write, now), "{now:?}");
                let written = Waiting { read: None, written: Some(now) };
                assert_eq!((stamps.get(), stamps.take()), (written, (written, 1)));
                assert_eq!(stamps.get(), Waiting::default());
            }
        }
        let never = Timestamp { seconds: i64::MAX, nanoseconds: 0 };
        stamps.set(Access::Read, never);
        assert_eq!(stamps.get().read.unwrap().seconds, FIRST + SECONDS - 1);
    }
}
