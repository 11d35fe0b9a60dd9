//! Devices: they read and write sectors, and have limits and queues.

mod any_queue;
mod block_file;
mod bounds;
mod crash;
mod cut_short;
mod dax;
mod dry;
mod durability;
mod engine;
mod files;
mod finer;
mod holders;
mod identity;
pub mod image;
mod joined;
mod layered;
mod limits;
mod measured;
pub mod nbd;
mod null;
mod nvme;
mod owner;
pub mod path;
mod protected;
mod protection;
mod psync;
mod qemu_locks;
mod queue;
mod ram;
mod record;
mod runs;
mod sim;
mod space;
mod through_file;
mod uring;
mod whole_pages;
#[cfg(all(test, shuttle))]
mod yielding;

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Errno, Error, Result};
use crate::units::DevOffset;

pub use any_queue::{AnyQueue, OtherQueue};
pub(crate) use any_queue::{Through, with_queue};
pub use block_file::{BlockFile, OpenMode};
use bounds::check_range;
pub use bounds::{BoundedQueue, InRange};
pub use crash::{CrashState, Crashes};
pub use cut_short::CutShort;
pub use dax::Dax;
pub(crate) use dry::Dry;
pub(crate) use durability::Durability;
pub(crate) use engine::open_queue;
pub use engine::{Engine, OpenedEngine, open_engine};
pub use finer::Finer;
pub use joined::Joined;
pub use layered::{Layer, Layered, Request, Verdict};
pub use limits::{Limits, ThroughFlushes};
pub use null::Null;
pub use protected::Protected;
pub use protection::{DeviceProtection, WrongTuple};
pub use psync::Psync;
pub use queue::{DeviceQueue, Drained, Immediate, LentPart, Transfer, Transfers};
pub(crate) use queue::{through_queue, with_below};
pub use ram::Ram;
pub use record::{Entry, Log, Record, Recorder};
pub use sim::{Faults, Faulty, Sim};
pub use uring::{Uring, UringOptions};
#[cfg(all(test, shuttle))]
pub(crate) use yielding::yielding;

/// A device that holds a file system: a block device, an image, or another device beneath this one.
///
/// The trait is for metadata and for set-up: it is called through `dyn`. File data goes through a [queue](Device::queue). All
/// positions are bytes from the start of the part in use. It is shared by threads; a queue holds
/// what it needs of it and may outlive it.
///
/// A device implements the methods whose names end in `_within`: their ranges are within it, as their argument [`InRange`] proves. Callers call
/// the methods without that suffix, which check each range first and which no device replaces.
pub trait Device: Send + Sync {
    /// The limits of the device.
    fn limits(&self) -> &Limits;

    /// Its size in bytes.
    fn size(&self) -> u64;

    /// The protection information that it has of its own. `None` where it has none.
    fn protection(&self) -> Option<&DeviceProtection> {
        None
    }

    /// The sectors that did not fit their tuples when they were read since the last call, oldest first; the newest 1024 at most, and how many
    /// there were before them. A device over others reports theirs too.
    fn take_wrong_tuples(&self) -> (Vec<WrongTuple>, u64) {
        (Vec::new(), 0)
    }

    /// Where the addresses of the device end: at its [`size`](Self::size), unless further devices are seen past it.
    fn end(&self) -> DevOffset {
        DevOffset(self.size())
    }

    /// Fills `buf` from `at`, at any alignment, waiting as long as it takes. Never short.
    ///
    /// # Errors
    /// `InvalidInput` past the end of the device; `Io` with the device's errno.
    fn read_exact_at(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        let checked = check_range(self.end(), "read", at, buf.len() as u64)?;
        self.read_within(buf, at, checked)
    }

    /// The device's own part of [`read_exact_at`](Self::read_exact_at).
    ///
    /// # Errors
    /// As there.
    fn read_within(&self, buf: &mut [u8], at: DevOffset, checked: InRange) -> Result<()>;

    /// Whether it was opened for writing.
    fn is_writable(&self) -> bool;

    /// Writes all of `bufs`, one after the other, from `at` on, waiting as long as it takes. Position, lengths and memory are as
    /// [`limits`](Self::limits) ask for. Durable when the call returns with `fua`, otherwise after the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// `InvalidInput` past the end of the device; `Io` with the device's errno: any part may have been written.
    fn write_all_at(&self, bufs: &[IoSlice<'_>], at: DevOffset, fua: bool) -> Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        let checked = check_range(self.end(), "write", at, len)?;
        self.write_within(bufs, at, fua, checked)
    }

    /// The device's own part of [`write_all_at`](Self::write_all_at).
    ///
    /// # Errors
    /// As there.
    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        checked: InRange,
    ) -> Result<()>;

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// `Io` with the device's errno: anything written since the last flush may be lost.
    fn flush(&self) -> Result<()>;

    /// Discards the content of a range; later reads of it are undefined.
    ///
    /// # Errors
    /// `InvalidInput` past the end of the device; `Io`: EOPNOTSUPP where the device has no use for it.
    fn discard(&self, at: DevOffset, len: u64) -> Result<()> {
        let checked = check_range(self.end(), "discard", at, len)?;
        self.discard_within(at, len, checked)
    }

    /// The device's own part of [`discard`](Self::discard).
    ///
    /// # Errors
    /// As there.
    fn discard_within(&self, at: DevOffset, len: u64, _checked: InRange) -> Result<()> {
        Err(Error::io(Errno::EOPNOTSUPP, format!("discard of {len} bytes at {at}")))
    }

    /// Makes a range read as zeros without sending them. Position and length are as [`limits`](Self::limits) ask for; durable as a write is. It
    /// may take longer than one write, but not than writing zeros.
    ///
    /// # Errors
    /// `InvalidInput` past the end of the device; `Io`: EOPNOTSUPP where the device cannot, and nothing has changed: zeros are to be written. After
    /// another error any part may be zeros.
    fn write_zeroes(&self, at: DevOffset, len: u64) -> Result<()> {
        let checked = check_range(self.end(), "zeros", at, len)?;
        self.zero_within(at, len, checked)
    }

    /// The device's own part of [`write_zeroes`](Self::write_zeroes).
    ///
    /// # Errors
    /// As there.
    fn zero_within(&self, at: DevOffset, len: u64, _checked: InRange) -> Result<()> {
        Err(Error::io(Errno::EOPNOTSUPP, format!("zeros of {len} bytes at {at}")))
    }

    /// A range at or after `at` that may hold anything but zeros. All before it reads as zeros; nothing is said of the rest after it. An empty
    /// range only says that all before it reads as zeros. A device that cannot tell gives all from `at` on.
    ///
    /// # Errors
    /// `InvalidInput` past the end of the device; `Io` with the device's errno.
    fn data_from(&self, at: DevOffset) -> Result<Range<DevOffset>> {
        let checked = check_range(self.end(), "look for data", at, 0)?;
        self.data_within(at, checked)
    }

    /// The device's own part of [`data_from`](Self::data_from).
    ///
    /// # Errors
    /// As there.
    fn data_within(&self, at: DevOffset, _checked: InRange) -> Result<Range<DevOffset>> {
        Ok(at..self.end())
    }

    /// From now on a device that connects again asks the fence before it writes anything; without one, no longer. For other devices it means
    /// nothing.
    fn set_fence(&self, fence: Option<Arc<dyn Fence>>) {
        let _ = fence;
    }

    /// A queue for the calling thread, with slots of its own. Its requests are held within the device, as it is now.
    ///
    /// # Errors
    /// `Io` where the kernel refuses: ENOSYS or EPERM without io_uring, ENOMEM past the limit of locked memory.
    fn queue(&self, options: &QueueOptions) -> Result<BoundedQueue> {
        let queue = self.queue_within(options, InRange::BY_THE_QUEUE)?;
        Ok(BoundedQueue::new(queue, self.end()))
    }

    /// The device's own part of [`queue`](Self::queue): the requests of this queue are within the device. A device of another program gives
    /// [`AnyQueue::other`].
    ///
    /// # Errors
    /// As there.
    fn queue_within(&self, options: &QueueOptions, checked: InRange) -> Result<AnyQueue>;
}

/// A device of any kind: its size. The trait does not ask for `Debug`, since a program would then contain that code of every kind.
impl fmt::Debug for dyn Device + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("size", &self.size()).finish_non_exhaustive()
    }
}

/// The block by which nodes see whose a device is. While a connection is lost, another node may take the device: writes that were kept or had no
/// answer would then go over its data.
pub trait Fence: Send + Sync {
    /// Where the block is on the device, and its length.
    fn place(&self) -> (DevOffset, usize);

    /// Takes the content of the block, and puts the content that is to be written, durably, before anything else.
    ///
    /// # Errors
    /// `Busy` for a device that another node has taken: nothing is written.
    fn confirm(&self, block: &mut [u8]) -> Result<()>;
}

impl fmt::Debug for dyn Fence + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("place", &self.place()).finish_non_exhaustive()
    }
}

/// How a queue is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    depth: u32,
}

impl QueueOptions {
    /// A queue for 256 bios in flight.
    #[must_use]
    pub const fn new() -> Self {
        Self { depth: 256 }
    }

    /// How many bios may be in flight: 1 to 4096. A number outside becomes the nearest limit, and io_uring goes up to the next power of two.
    /// A read of one extent is one bio; the other reads have one for each extent and each [`Limits::max_transfer`].
    #[must_use]
    pub const fn depth(mut self, depth: u32) -> Self {
        self.depth = depth;
        self
    }

    /// The depth that a queue gets. Without a slot every request would wait forever.
    pub(crate) fn slots(&self) -> usize {
        self.depth.clamp(1, 4096) as usize
    }
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
    }
}
