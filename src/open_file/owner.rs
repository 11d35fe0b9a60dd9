//! Whose a queue and a file are: a queue serves the files of its own volume or host alone.

use std::sync::atomic::{AtomicU32, Ordering};

/// The volume or host that a queue and a file belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// One that nobody else is.
    pub(crate) fn unique() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
