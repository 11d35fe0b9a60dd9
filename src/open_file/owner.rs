//! The owners of queues and files: a queue serves only the files of its own volume or host.

use std::sync::atomic::{AtomicU32, Ordering};

/// The volume or host to which a queue and a file belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// Creates an owner that differs from all others.
    pub(crate) fn unique() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
