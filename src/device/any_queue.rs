//! The queues of all devices as one type.

use std::io::IoSlice;
use std::mem::discriminant;
use std::sync::Arc;

use super::dax::DaxTransfer;
use super::files::FileRanges;
use super::null::NullTransfer;
use super::psync::PsyncFiles;
use super::queue::{through_queue, with_below};
use super::segmented::Map;
use super::uring::UringQueue;
use super::{BlockFile, DeviceQueue, Drained, Engine, Immediate, LentPart};
use crate::bio::{Bio, BioFlags, Buffer, Dev, Done, Whole};
use crate::error::Errno;
use crate::sys::{Narrow, Wide};
use crate::units::DevOffset;

/// A queue of any device. Each request branches on the variant once; the code after the branch is compiled for each variant.
#[allow(
    clippy::large_enum_variant,
    reason = "a thread has only one queue, and a box would add an indirection to every request"
)]
pub enum AnyQueue {
    /// See [`Psync`](super::Psync).
    Psync(Immediate<PsyncFiles>),
    /// See [`Uring`](super::Uring).
    Uring(UringQueue<Narrow>),
    /// An io_uring queue for an NVMe namespace that was opened through its character device.
    Nvme(UringQueue<Wide>),
    /// See [`Dax`](super::Dax).
    Dax(Immediate<DaxTransfer>),
    /// See [`Null`](super::Null).
    Null(Immediate<NullTransfer>),
    /// A queue of any other device, called through a trait object. Each additional variant would make every request slower.
    Other(OtherQueue),
}

impl AnyQueue {
    /// Wraps a queue of a type that has no variant of its own, such as the queue of a device that another program implements.
    #[must_use]
    pub fn other(queue: impl DeviceQueue + 'static) -> Self {
        Self::Other(OtherQueue::over(queue))
    }

    /// Returns the engine of the queue. `Auto` means that another crate implements the device, or that the device is layered over another
    /// device.
    pub(crate) fn engine(&self) -> Engine {
        match self {
            Self::Psync(_) => Engine::Psync,
            Self::Uring(queue) => queue.engine(),
            Self::Nvme(queue) => queue.engine(),
            Self::Dax(_) => Engine::Dax,
            Self::Null(_) => Engine::Null,
            Self::Other(_) => Engine::Auto,
        }
    }

    /// Makes one queue whose device consists of ranges of files. Each of `queues` is the queue of one of these files. They are returned if
    /// they are not all of one kind, or if one of them is not the queue of a file.
    pub(super) fn of_ranges(
        mut queues: Vec<Self>,
        map: &Arc<Map>,
        writable: bool,
    ) -> Result<Self, Vec<Self>> {
        let one_kind = queues.windows(2).all(|two| discriminant(&two[0]) == discriminant(&two[1]));
        let files = queues.iter().map(|queue| queue.file().cloned()).collect::<Option<Vec<_>>>();
        let Some(files) = files.filter(|files| one_kind && !files.is_empty()) else {
            return Err(queues);
        };
        let (mut queue, ranges) = (queues.swap_remove(0), FileRanges::new(map, files, writable));
        match &mut queue {
            Self::Psync(queue) => queue.transfers_mut().divide(ranges),
            Self::Uring(queue) => queue.divide(ranges),
            Self::Nvme(queue) => queue.divide(ranges),
            Self::Dax(_) | Self::Null(_) | Self::Other(_) => {}
        }
        Ok(queue)
    }

    /// The file that is the queue's own device.
    fn file(&self) -> Option<&Arc<BlockFile>> {
        match self {
            Self::Psync(queue) => queue.transfers().own(),
            Self::Uring(queue) => queue.own(),
            Self::Nvme(queue) => queue.own(),
            Self::Dax(_) | Self::Null(_) | Self::Other(_) => None,
        }
    }

    /// Returns the queue as a trait object.
    pub(crate) fn as_dyn(&mut self) -> &mut dyn DeviceQueue {
        with_queue!(self, queue => queue)
    }

    /// Returns a wrapper that calls the queue through a trait object. Code that uses the wrapper is compiled once instead of once for each
    /// kind of queue. Only rare requests use the wrapper.
    pub(crate) fn through_table(&mut self) -> Through<'_> {
        Through::new(self.as_dyn())
    }
}

/// A borrowed queue that is called through a trait object.
pub(crate) struct Through<'a> {
    below: &'a mut dyn DeviceQueue,
}

impl<'a> Through<'a> {
    pub(crate) fn new(below: &'a mut dyn DeviceQueue) -> Self {
        Self { below }
    }
}

/// A queue that is called through a trait object.
pub struct OtherQueue {
    below: Box<dyn DeviceQueue>,
}

impl OtherQueue {
    pub(crate) fn over(queue: impl DeviceQueue + 'static) -> Self {
        Self { below: Box::new(queue) }
    }
}

/// Runs an expression with the concrete queue inside an [`AnyQueue`].
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

/// Each method branches on the variant once. Two kinds of callers use these methods: queues of devices that are layered over this queue's
/// device, and programs that use a device without a file system.
impl DeviceQueue for AnyQueue {
    through_queue!(requests, with_queue);
    through_queue!(resources, with_queue);
}

impl DeviceQueue for Through<'_> {
    through_queue!(requests, with_below);
    through_queue!(resources, with_below);
}

impl DeviceQueue for OtherQueue {
    through_queue!(requests, with_below);
    through_queue!(resources, with_below);
}
