//! A tenure is a period in which a lease is held without interruption. The number of the tenure shows a reader that the lease was held
//! during the complete read.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The number of the current tenure (a period in which the lease is held). It is odd while the lease is held and the map is valid, and even
/// otherwise. No number is used twice, not even for different files.
#[derive(Debug)]
#[repr(align(64))]
pub struct Tenure(AtomicU64);

impl Tenure {
    /// Creates the tenure number of a file that has no lease yet. `unique` must be even: an even number means that the lease is not held.
    pub(super) fn new(unique: u64) -> Self {
        Self(AtomicU64::new(unique))
    }

    /// The current number. A reader gets the number before a read, and passes it to [`stands`](Self::stands) after the read. A map for a
    /// number is valid while this number is current.
    #[must_use]
    #[inline(always)]
    pub fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether this number means that the lease is held, so that the file can be read raw (directly from the block device).
    #[must_use]
    #[inline(always)]
    pub fn is_raw(number: u64) -> bool {
        number & 1 != 0
    }

    /// Whether `number` is still the current number. The caller got `number` before a read. A program that changes the file's data waits
    /// until the lease is released. The number changes before the release, so a reader that got changed data sees a new number.
    #[must_use]
    #[inline(always)]
    pub fn stands(&self, number: u64) -> bool {
        // The data must be loaded before the number is loaded here. The data are loaded by the kernel's copy or by the completion of the
        // request.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == number
    }

    /// Begins a tenure (a period in which the lease is held), if `before` is still the current number. Returns whether the tenure began.
    /// `unique` must be even.
    pub(super) fn begin(&self, before: u64, unique: u64) -> bool {
        let begin = || {
            self.0.compare_exchange(before, unique | 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        !Self::is_raw(before) && begin()
    }

    /// Ends the tenure (the period in which the lease is held), or an attempt to begin a tenure. The lease may be released only after this
    /// call.
    pub(super) fn end(&self, unique: u64) {
        self.0.swap(unique, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the lease is broken while the file's map is read, this map must not be used. The attempt to begin a tenure therefore fails.
    #[test]
    fn a_tenure_begins_only_if_nothing_came_between() {
        let tenure = Tenure::new(2);
        let before = tenure.current();
        assert!(!Tenure::is_raw(before));
        tenure.end(4);
        assert!(!tenure.begin(before, 6), "the tenure ended in between");
        assert!(tenure.begin(4, 6));
        let raw = tenure.current();
        assert!(Tenure::is_raw(raw) && tenure.stands(raw));
        assert!(!tenure.begin(raw, 8), "the tenure has begun");
        assert!(tenure.stands(raw), "the tenure continues");
        tenure.end(10);
        assert!(!tenure.stands(raw) && !Tenure::is_raw(tenure.current()));
    }
}
