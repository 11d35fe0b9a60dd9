//! The number of a lease's tenure: it shows a reader that the lease was held during the whole read.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The number: odd while the lease is held and the map is valid; even otherwise. All numbers of a keeper's files are unique.
#[derive(Debug)]
#[repr(align(64))]
pub struct Tenure(AtomicU64);

impl Tenure {
    /// `unique` is an even number.
    pub(super) fn new(unique: u64) -> Self {
        Self(AtomicU64::new(unique))
    }

    /// The number before a read; [`stands`](Self::stands) compares it afterwards. A map that was found for a number is valid while the
    /// number does not change.
    #[must_use]
    #[inline(always)]
    pub fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether this number means that the lease is held.
    #[must_use]
    #[inline(always)]
    pub fn is_raw(number: u64) -> bool {
        number & 1 != 0
    }

    /// Whether the tenure that was current before a read is current after it. A program that changes the file's data waits until the lease
    /// is released, and the number changes before the release, so a reader of changed data sees the new number.
    #[must_use]
    #[inline(always)]
    pub fn stands(&self, number: u64) -> bool {
        // The read's own loads (a copy by the kernel, or a completion's) come before this one.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == number
    }

    /// Begins a tenure, unless something has happened since `before` was current. `unique` is an even number.
    pub(super) fn begin(&self, before: u64, unique: u64) -> bool {
        let begin = || {
            self.0.compare_exchange(before, unique | 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        !Self::is_raw(before) && begin()
    }

    /// Ends the tenure, or an attempt to begin one. The lease may be released only after this.
    pub(super) fn end(&self, unique: u64) {
        self.0.swap(unique, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A break during the read of the map must not be lost: the tenure of that map never begins.
    #[test]
    fn a_tenure_begins_only_if_nothing_came_between() {
        let tenure = Tenure::new(2);
        let before = tenure.current();
        assert!(!Tenure::is_raw(before));
        tenure.end(4);
        assert!(!tenure.begin(before, 6), "it was ended in between");
        assert!(tenure.begin(4, 6));
        let raw = tenure.current();
        assert!(Tenure::is_raw(raw) && tenure.stands(raw));
        assert!(!tenure.begin(raw, 8), "it has begun");
        assert!(tenure.stands(raw), "and goes on");
        tenure.end(10);
        assert!(!tenure.stands(raw) && !Tenure::is_raw(tenure.current()));
    }
}
