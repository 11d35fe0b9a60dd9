//! What lies below: something that reads and writes sectors, its limits, and its queues.

mod block_file;
mod crash;
mod dax;
pub mod door;
mod durability;
mod engine;
mod files;
mod identity;
mod layered;
mod null;
mod nvme;
mod owner;
mod protected;
mod protection;
mod psync;
mod queue;
mod ram;
mod record;
mod runs;
mod sim;
mod space;
mod uring;
#[cfg(all(test, shuttle))]
mod yielding;

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

use crate::bio::{Bio, BioFlags, Buffer, Dev, Done, Whole};
use crate::error::{Errno, Error, Result};
use crate::sys::{Narrow, Wide};
use crate::units::DevOffset;

pub use block_file::{BlockFile, OpenMode};
pub use crash::{CrashState, Crashes};
pub use dax::Dax;
pub(crate) use durability::Durability;
pub(crate) use engine::open_queue;
pub use engine::{Engine, Opened, open_engine};
pub use layered::{Layer, Layered, Request, Verdict};
pub use null::Null;
pub use protected::Protected;
pub use protection::{DeviceProtection, WrongTuple};
pub use psync::Psync;
pub use queue::{DeviceQueue, Drained, Immediate, LentPart, Transfer, Transfers};
pub use ram::Ram;
pub use record::{Entry, Log, Record, Recorder};
pub use sim::{Faults, Faulty, Sim};
pub use uring::{Uring, UringOptions};
#[cfg(all(test, shuttle))]
pub(crate) use yielding::yielding;

/// What a device can take, and what it promises. All sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Offsets and lengths of direct requests are multiples of this.
    pub logical_block: u32,
    /// The unit that the device writes without a read-modify-write of its own.
    pub physical_block: u32,
    /// Memory of direct requests is aligned to this.
    pub dma_align: u32,
    /// The largest single request.
    pub max_transfer: u32,
    /// Force-unit-access writes reach the medium without a flush.
    pub fua: bool,
    /// A write-through request may flush the device beside its own work, as the kernel does for block devices and files: where one fails, a
    /// flush may have failed.
    pub through_flushes: bool,
    /// There is a volatile cache: a flush is needed for durability.
    pub volatile_cache: bool,
    /// The device computes over the data (checksums, parity): memory must not change during a write.
    pub stable_writes: bool,
    /// `RWF_NOWAIT` is understood; without it an io_uring request is punted to a worker thread.
    pub nowait: bool,
    /// The device has poll queues (`IOPOLL`, `RWF_HIPRI`).
    pub poll: bool,
    /// Requests go around the page cache (`O_DIRECT`).
    pub direct: bool,
    /// What does not fit its tuples was read once more already, into memory that nobody else can reach.
    pub rereads: bool,
    /// The longest write that is done wholly or not at all (`RWF_ATOMIC`); 0 where none is.
    pub atomic_write: u32,
}

/// A device that holds a file system: a block device, an image, or another device beneath this one.
///
/// The trait is for metadata and for set-up: it is called through `dyn`. File data goes through a [queue](Device::queue). All
/// positions are bytes from the start of the part in use. It is shared by threads; a queue holds
/// what it needs of it and may outlive it.
pub trait Device: Send + Sync + fmt::Debug {
    /// What the device can take.
    fn limits(&self) -> &Limits;

    /// Its size in bytes.
    fn size(&self) -> u64;

    /// The protection information that it has of its own. `None` where it has none.
    fn protection(&self) -> Option<&DeviceProtection> {
        None
    }

    /// The sectors that did not fit their tuples when they were read since the last call, oldest first; the newest 1024 at most, and how many
    /// there were before them. A device over others tells of theirs too.
    fn take_wrong_tuples(&self) -> (Vec<WrongTuple>, u64) {
        (Vec::new(), 0)
    }

    /// Fills `buf` from `at`, at any alignment, waiting as long as it takes. Never short.
    ///
    /// # Errors
    /// `InvalidInput` past the end of the device; `Io` with the device's errno.
    fn read_exact_at(&self, buf: &mut [u8], at: DevOffset) -> Result<()>;

    /// Whether it was opened for writing.
    fn is_writable(&self) -> bool;

    /// Writes all of `bufs`, one after the other, from `at` on, waiting as long as it takes. Position, lengths and memory are as
    /// [`limits`](Self::limits) ask for. Durable when the call returns with `fua`, otherwise after the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// `InvalidInput` past the end of the device; `Io` with the device's errno: any part may have been written.
    fn write_all_at(&self, bufs: &[IoSlice<'_>], at: DevOffset, fua: bool) -> Result<()>;

    /// Makes what was written before durable.
    ///
    /// # Errors
    /// `Io` with the device's errno: anything written since the last flush may be lost.
    fn flush(&self) -> Result<()>;

    /// Tells the device that a range holds nothing any more; what is read there afterwards is undefined.
    ///
    /// # Errors
    /// `Io`: EOPNOTSUPP where the device has no use for it.
    fn discard(&self, at: DevOffset, len: u64) -> Result<()> {
        Err(Error::io(Errno::EOPNOTSUPP, format!("discard of {len} bytes at {at}")))
    }

    /// A queue for the calling thread, with slots of its own.
    ///
    /// # Errors
    /// `Io` where the kernel refuses: ENOSYS or EPERM without io_uring, ENOMEM past the limit of locked memory.
    fn queue(&self, options: &QueueOptions) -> Result<AnyQueue>;
}

/// How a queue is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// How many bios may be in flight: 1 to 4096. What lies outside is brought to the nearest, and io_uring goes up to the next
    /// power of two. A read of one extent is one bio; the other reads have one for each extent and each
    /// [`Limits::max_transfer`].
    pub depth: u32,
}

impl QueueOptions {
    /// The depth that a queue gets. Without a slot every request would wait forever.
    pub(crate) fn slots(&self) -> usize {
        self.depth.clamp(1, 4096) as usize
    }
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { depth: 256 }
    }
}

/// A queue of any device: matched once at the top of a request, monomorphized below.
#[allow(
    clippy::large_enum_variant,
    reason = "a thread has one, and a box would cost every request a load"
)]
pub enum AnyQueue {
    /// See [`Psync`].
    Psync(Immediate<psync::PsyncFiles>),
    /// See [`Uring`].
    Uring(uring::UringQueue<Narrow>),
    /// The same on an NVMe namespace that was opened by its character device.
    Nvme(uring::UringQueue<Wide>),
    /// See [`Dax`].
    Dax(Immediate<dax::DaxTransfer>),
    /// See [`Null`].
    Null(Immediate<null::NullTransfer>),
    /// [`Protected`], [`Integrity`](crate::integrity::Integrity), [`Ram`] and [`Layered`]: called through a table, since each kind more costs every
    /// request of all others.
    Other(OtherQueue),
}

/// A queue that is called through a table.
pub struct OtherQueue(Box<dyn DeviceQueue>);

impl OtherQueue {
    pub(crate) fn new(queue: impl DeviceQueue + 'static) -> Self {
        Self(Box::new(queue))
    }
}

/// Runs an expression with the queue that a variable of type [`AnyQueue`] holds.
macro_rules! with_queue {
    ($any:expr, $queue:ident => $body:expr) => {
        match $any {
            $crate::device::AnyQueue::Psync($queue) => $body,
            $crate::device::AnyQueue::Uring($queue) => $body,
            $crate::device::AnyQueue::Nvme($queue) => $body,
            $crate::device::AnyQueue::Dax($queue) => $body,
            $crate::device::AnyQueue::Null($queue) => $body,
            $crate::device::AnyQueue::Other($queue) => $body,
        }
    };
}
pub(crate) use with_queue;

/// Each call matches once: for those who drive a device without a file system, as benches of the raw device do.
impl DeviceQueue for AnyQueue {
    #[inline(always)]
    fn read_now(
        &mut self,
        dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        with_queue!(self, queue => queue.read_now(dev, buf, at, flags))
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        with_queue!(self, queue => queue.read_parts_now(dev, parts, flags));
    }

    #[inline(always)]
    fn write_now(
        &mut self,
        dev: Dev,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        with_queue!(self, queue => queue.write_now(dev, bufs, at, flags))
    }

    fn flush_now(&mut self, dev: Dev) -> Result<(), Errno> {
        with_queue!(self, queue => queue.flush_now(dev))
    }

    fn attach(&mut self, file: &Arc<BlockFile>, lasting: bool) -> Result<Dev, Errno> {
        with_queue!(self, queue => queue.attach(file, lasting))
    }

    fn detach(&mut self, dev: Dev) {
        with_queue!(self, queue => queue.detach(dev));
    }

    fn room(&self) -> usize {
        with_queue!(self, queue => queue.room())
    }

    fn in_flight(&self) -> usize {
        with_queue!(self, queue => queue.in_flight())
    }

    #[inline(always)]
    fn submit(&mut self, bio: Bio) -> Result<(), Bio> {
        with_queue!(self, queue => queue.submit(bio))
    }

    #[inline]
    fn commit(&mut self) -> Result<(), Errno> {
        with_queue!(self, queue => queue.commit())
    }

    #[inline]
    fn wait(&mut self, min: usize) -> Result<(), Errno> {
        with_queue!(self, queue => queue.wait(min))
    }

    fn drain(&mut self) -> Drained {
        with_queue!(self, queue => queue.drain())
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<Done> {
        with_queue!(self, queue => queue.pop())
    }

    #[inline(always)]
    fn pop_whole(&mut self) -> Option<Result<Whole, Done>> {
        with_queue!(self, queue => queue.pop_whole())
    }

    #[inline]
    fn take_fresh(&mut self) -> bool {
        with_queue!(self, queue => queue.take_fresh())
    }

    fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, Errno> {
        with_queue!(self, queue => queue.register_buffers(count, size))
    }

    fn register_one(&mut self, buffer: &mut Buffer) {
        with_queue!(self, queue => queue.register_one(buffer));
    }

    fn unregister_one(&mut self, buffer: &mut Buffer) {
        with_queue!(self, queue => queue.unregister_one(buffer));
    }
}

impl DeviceQueue for OtherQueue {
    fn read_now(
        &mut self,
        dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        self.0.read_now(dev, buf, at, flags)
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        self.0.read_parts_now(dev, parts, flags);
    }

    fn write_now(
        &mut self,
        dev: Dev,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        self.0.write_now(dev, bufs, at, flags)
    }

    fn flush_now(&mut self, dev: Dev) -> Result<(), Errno> {
        self.0.flush_now(dev)
    }

    fn attach(&mut self, file: &Arc<BlockFile>, lasting: bool) -> Result<Dev, Errno> {
        self.0.attach(file, lasting)
    }

    fn detach(&mut self, dev: Dev) {
        self.0.detach(dev);
    }

    fn room(&self) -> usize {
        self.0.room()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn submit(&mut self, bio: Bio) -> Result<(), Bio> {
        self.0.submit(bio)
    }

    fn commit(&mut self) -> Result<(), Errno> {
        self.0.commit()
    }

    fn wait(&mut self, min: usize) -> Result<(), Errno> {
        self.0.wait(min)
    }

    fn drain(&mut self) -> Drained {
        self.0.drain()
    }

    fn pop(&mut self) -> Option<Done> {
        self.0.pop()
    }

    fn take_fresh(&mut self) -> bool {
        self.0.take_fresh()
    }

    fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, Errno> {
        self.0.register_buffers(count, size)
    }

    fn register_one(&mut self, buffer: &mut Buffer) {
        self.0.register_one(buffer);
    }

    fn unregister_one(&mut self, buffer: &mut Buffer) {
        self.0.unregister_one(buffer);
    }
}
