//! Devices, which store sectors, with their limits and queues.

mod ahead;
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
mod hold;
mod holders;
mod identity;
pub mod image;
mod immediate;
mod layered;
mod limits;
mod measured;
pub mod nbd;
mod null;
mod nvme;
#[cfg(feature = "md")]
mod only_reads;
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
mod segmented;
mod sim;
mod space;
mod through_file;
mod uring;
mod whole_pages;
mod within;
#[cfg(all(test, shuttle))]
mod yielding;

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Errno, Error, Result};
use crate::units::DevOffset;

pub(crate) use ahead::{Ahead, AheadQueue, BATCH};
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
pub use engine::{Engine, NoIoUring, OpenedEngine, open_engine};
pub use finer::Finer;
pub use identity::FileId;
pub use immediate::{Immediate, Transfer, Transfers};
pub use layered::{Layer, Layered, Request, Verdict};
pub use limits::{Limits, ThroughFlushes};
pub use null::Null;
#[cfg(feature = "md")]
pub(crate) use only_reads::OnlyReads;
pub use protected::Protected;
pub use protection::{DeviceProtection, WrongTuple};
pub use psync::Psync;
pub use queue::{DeviceQueue, Drained, LentPart};
pub(crate) use queue::{through_queue, with_below};
pub use ram::Ram;
pub use record::{Entry, Log, Record, Recorder};
#[cfg(feature = "md")]
pub(crate) use segmented::Ranges;
pub use segmented::{Segment, Segmented};
pub use sim::{Faults, Faulty, Sim};
pub use uring::{Uring, UringOptions};
pub(crate) use within::Within;
#[cfg(all(test, shuttle))]
pub(crate) use yielding::yielding;

/// A device that contains a file system: a block device, an image, or a device that is layered over another device.
///
/// The methods of this trait are called through `dyn`. These calls are fast enough for metadata and set-up. File data are transferred
/// through a [queue](Device::queue). If only a part of the device is in use, positions are relative to the start of this part. Several
/// threads can share a device. A queue may outlive its device, because the queue owns all resources that it uses.
///
/// A device type implements the methods whose names end in `_within`. Their argument [`InRange`] proves that the range is within the
/// device. Callers use the methods without this suffix, which check the range first. No type overrides the methods without the suffix.
pub trait Device: Send + Sync {
    /// The limits of the device.
    fn limits(&self) -> &Limits;

    /// The size in bytes.
    fn size(&self) -> u64;

    /// The number of bytes that exist. On a [truncated](CutShort) device, this is less than the [`size`](Self::size).
    fn stored(&self) -> u64 {
        self.size()
    }

    /// The device's own protection information, or `None`.
    fn protection(&self) -> Option<&DeviceProtection> {
        None
    }

    /// Returns the list of sectors that did not match their tuples in reads, oldest first, and clears the list. The list contains up to
    /// 1024 of the newest mismatched sectors since the last call. The number in the result counts the older sectors that the list no longer
    /// contains. A device over other devices also reports the sectors of those devices.
    fn take_wrong_tuples(&self) -> (Vec<WrongTuple>, u64) {
        (Vec::new(), 0)
    }

    /// The end of the device's addresses. This is the device's [`size`](Self::size) or, if other devices are joined to it, the end of the
    /// last of them.
    fn end(&self) -> DevOffset {
        DevOffset(self.size())
    }

    /// Fills `buf` from `at`, with any alignment. The call returns after all bytes were transferred; a successful read is never short.
    ///
    /// # Errors
    /// `InvalidInput` past the end of the device; `Io` with the device's errno.
    fn read_exact_at(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        let checked = check_range(self.end(), "read", at, buf.len() as u64)?;
        self.read_within(buf, at, checked)
    }

    /// The device's implementation of [`read_exact_at`](Self::read_exact_at).
    ///
    /// # Errors
    /// The errors of [`read_exact_at`](Self::read_exact_at).
    fn read_within(&self, buf: &mut [u8], at: DevOffset, checked: InRange) -> Result<()>;

    /// Whether the device was opened for writing. A writable device implements this method, [`write_within`](Self::write_within) and
    /// [`flush`](Self::flush).
    fn is_writable(&self) -> bool {
        false
    }

    /// Writes all of `bufs`, one after the other, starting at `at`. The call returns after all bytes were written. Position, lengths and
    /// memory must be aligned as [`limits`](Self::limits) require. With `fua`, the data are durable when the call returns. Without `fua`,
    /// they are durable after the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// `InvalidInput` past the end of the device; `Io` with the device's errno: any part of the data may have been written.
    fn write_all_at(&self, bufs: &[IoSlice<'_>], at: DevOffset, fua: bool) -> Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        let checked = check_range(self.end(), "write", at, len)?;
        self.write_within(bufs, at, fua, checked)
    }

    /// The device's implementation of [`write_all_at`](Self::write_all_at). `ReadOnly` by default.
    ///
    /// # Errors
    /// The errors of [`write_all_at`](Self::write_all_at).
    fn write_within(
        &self,
        _bufs: &[IoSlice<'_>],
        _at: DevOffset,
        _fua: bool,
        _checked: InRange,
    ) -> Result<()> {
        Err(only_read())
    }

    /// Makes all earlier writes durable. `ReadOnly` by default.
    ///
    /// # Errors
    /// `Io` with the device's errno: all data written since the last flush may be lost.
    fn flush(&self) -> Result<()> {
        Err(only_read())
    }

    /// Discards a range. Later reads of the range return undefined data.
    ///
    /// # Errors
    /// `InvalidInput` past the end of the device; `Io`, with EOPNOTSUPP if the device does not support discards.
    fn discard(&self, at: DevOffset, len: u64) -> Result<()> {
        let checked = check_range(self.end(), "discard", at, len)?;
        self.discard_within(at, len, checked)
    }

    /// The device's implementation of [`discard`](Self::discard).
    ///
    /// # Errors
    /// The errors of [`discard`](Self::discard).
    fn discard_within(&self, at: DevOffset, len: u64, _checked: InRange) -> Result<()> {
        Err(Error::io(Errno::EOPNOTSUPP, format!("discard of {len} bytes at {at}")))
    }

    /// Zeroes a range by a command to the device, without transferring zeros. Position and length must be aligned as
    /// [`limits`](Self::limits) require. Like written data, the zeros become durable with the next flush. The call may take longer than one
    /// write, but no longer than a write of zeros to the whole range.
    ///
    /// # Errors
    /// `InvalidInput` past the end of the device; `Io`. EOPNOTSUPP means that the device does not support this request and has changed
    /// nothing; the caller must then write zeros. After any other error, a part of the range may be zeros.
    fn write_zeroes(&self, at: DevOffset, len: u64) -> Result<()> {
        let checked = check_range(self.end(), "zeros", at, len)?;
        self.zero_within(at, len, checked)
    }

    /// The device's implementation of [`write_zeroes`](Self::write_zeroes).
    ///
    /// # Errors
    /// The errors of [`write_zeroes`](Self::write_zeroes).
    fn zero_within(&self, at: DevOffset, len: u64, _checked: InRange) -> Result<()> {
        Err(Error::io(Errno::EOPNOTSUPP, format!("write of {len} zero bytes at {at}")))
    }

    /// Returns the first range at or after `at` that may contain nonzero bytes. All bytes between `at` and the range are zeros. The content
    /// after the range is unknown. If the range is empty, the content from its position on is unknown. A device that cannot determine such
    /// a range returns the range from `at` to its end.
    ///
    /// # Errors
    /// `InvalidInput` past the end of the device; `Io` with the device's errno.
    fn data_from(&self, at: DevOffset) -> Result<Range<DevOffset>> {
        let checked = check_range(self.end(), "search for data", at, 0)?;
        self.data_within(at, checked)
    }

    /// The device's implementation of [`data_from`](Self::data_from).
    ///
    /// # Errors
    /// The errors of [`data_from`](Self::data_from).
    fn data_within(&self, at: DevOffset, _checked: InRange) -> Result<Range<DevOffset>> {
        Ok(at..self.end())
    }

    /// Sets or removes the fence of a device that can lose its connection and reconnect. After each reconnection, the device calls the
    /// fence before it writes any data. A device that cannot lose a connection ignores the fence.
    fn set_fence(&self, fence: Option<Arc<dyn Fence>>) {
        let _ = fence;
    }

    /// Opens a queue for the calling thread. Requests past the current end of the device are refused.
    ///
    /// # Errors
    /// `Io` if the kernel refuses: ENOSYS or EPERM if io_uring is missing or forbidden, ENOMEM if the limit on locked memory is exceeded.
    fn queue(&self, options: &QueueOptions) -> Result<BoundedQueue> {
        let queue = self.queue_within(options, InRange::BY_THE_QUEUE)?;
        Ok(BoundedQueue::new(queue, self.end()))
    }

    /// The device's implementation of [`queue`](Self::queue). The queue receives only requests within the device. A device type from
    /// another crate returns [`AnyQueue::other`].
    ///
    /// # Errors
    /// The errors of [`queue`](Self::queue).
    fn queue_within(&self, options: &QueueOptions, checked: InRange) -> Result<AnyQueue>;
}

/// Returns the error for a write to a device that can be read but not written.
fn only_read() -> Error {
    Error::read_only("the device can be read but not written")
}

/// Prints only the size. If the trait required `Debug`, every program would contain the `Debug` code of all devices.
impl fmt::Debug for dyn Device + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("size", &self.size()).finish_non_exhaustive()
    }
}

/// The fence of a device: a block on the device that records which node (computer) uses the device. While a connection is lost, another
/// node may start to use the device. After a reconnection, the first node sends its stored and its unanswered writes again. Without a
/// fence, these writes would overwrite the other node's data.
pub trait Fence: Send + Sync {
    /// The position of the block on the device, and its length.
    fn place(&self) -> (DevOffset, usize);

    /// Checks the content of the fence's block, which the caller has read into `block`. Then puts the new content into `block`. The caller
    /// writes the new content durably before any other write.
    ///
    /// # Errors
    /// `Busy` if another node uses the device; the caller then writes nothing.
    fn confirm(&self, block: &mut [u8]) -> Result<()>;
}

impl fmt::Debug for dyn Fence + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("place", &self.place()).finish_non_exhaustive()
    }
}

/// The options of a new queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    depth: u32,
}

impl QueueOptions {
    /// Creates options for a queue with up to 256 bios in flight.
    #[must_use]
    pub const fn new() -> Self {
        Self { depth: 256 }
    }

    /// The number of bios that may be in flight: 1 to 4096. A number outside this range is replaced by the nearest limit, and io_uring
    /// rounds the number up to a power of two. A read of one extent is one bio. A longer read needs one bio for each extent, or several if
    /// an extent is longer than [`Limits::max_transfer`].
    #[must_use]
    pub const fn depth(mut self, depth: u32) -> Self {
        self.depth = depth;
        self
    }

    /// Returns the depth of the queue. It is at least 1, because a request to a queue without a slot would wait forever.
    pub(crate) fn slots(&self) -> usize {
        self.depth.clamp(1, 4096) as usize
    }
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
    }
}
