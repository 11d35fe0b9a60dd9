//! Code that is compiled once for each kind of device.

use super::Queue;
use crate::device::AnyQueue;

/// Code that [`Queue::for_kind`] runs.
#[doc(hidden)]
pub trait ForKind {
    /// The result.
    type Output;

    /// Runs the code for a queue of this kind.
    fn run<const KIND: u8>(self) -> Self::Output;
}

impl Queue {
    /// Runs code with the kind of the queue's device as a constant. The kind never changes, so a program can choose functions when it makes
    /// the queue. If such a function first calls [`has_kind`](Self::has_kind), it contains no code for other kinds.
    #[doc(hidden)] // For bindings of other languages.
    pub fn for_kind<C: ForKind>(&self, code: C) -> C::Output {
        match &self.device {
            AnyQueue::Psync(_) => code.run::<0>(),
            AnyQueue::Uring(_) => code.run::<1>(),
            AnyQueue::Nvme(_) => code.run::<2>(),
            AnyQueue::Dax(_) => code.run::<3>(),
            AnyQueue::Null(_) => code.run::<4>(),
            AnyQueue::Other(_) => code.run::<5>(),
        }
    }

    /// Whether the device has this kind.
    #[doc(hidden)] // For bindings of other languages.
    #[inline(always)]
    #[must_use]
    pub fn has_kind<const KIND: u8>(&self) -> bool {
        match &self.device {
            AnyQueue::Psync(_) => KIND == 0,
            AnyQueue::Uring(_) => KIND == 1,
            AnyQueue::Nvme(_) => KIND == 2,
            AnyQueue::Dax(_) => KIND == 3,
            AnyQueue::Null(_) => KIND == 4,
            AnyQueue::Other(_) => KIND == 5,
        }
    }
}
