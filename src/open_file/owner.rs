//! The owners of queues and files. A queue and its files must have the same owner.

use std::sync::atomic::{AtomicU32, Ordering};

/// The owner of a queue or file: its volume or host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// Creates an owner that differs from all others.
    pub(crate) fn unique() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
