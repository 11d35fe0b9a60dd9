//! The proof: the time at which all leases were last found unbroken.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sys::{rate, ticks};

/// The time in seconds after which the kernel removes a broken lease; 0 means never.
const BREAK_TIME: &str = "/proc/sys/fs/lease-break-time";
/// The break time that is assumed if the file cannot be read.
const UNKNOWN: Duration = Duration::from_secs(1);
/// The maximum time between two checks of all leases. If the signal of a lease break is lost, the break is handled within this time.
const LONGEST: Duration = Duration::from_secs(5);

/// The time at which all leases of host files were last found unbroken. Every reader loads this cache line. A thread writes the line only
/// every few seconds.
#[derive(Debug)]
#[repr(align(64))]
pub struct Proof {
    /// The time at which all leases were last found unbroken, in ticks.
    at: AtomicU64,
    /// The time in ticks for which the last check of all leases counts as recent: half of the break time.
    valid: AtomicU64,
    rate: u64,
}

impl Proof {
    pub(super) fn new() -> Self {
        let proof = Self { at: AtomicU64::new(0), valid: AtomicU64::new(0), rate: rate() };
        proof.renew(ticks());
        proof
    }

    /// Whether the last check of all leases is recent: the kernel cannot have removed a lease by force since this check.
    #[must_use]
    #[inline(always)]
    pub fn is_young(&self) -> bool {
        // If the clock restarts, the difference wraps to a huge value. The last check then counts as too old, which is safe.
        ticks().wrapping_sub(self.at.load(Ordering::Relaxed)) <= self.valid.load(Ordering::Relaxed)
    }

    /// Returns the time to pass to [`renew`](Self::renew). The caller then checks all leases.
    pub(super) fn begin() -> u64 {
        ticks()
    }

    /// Records that all leases were found unbroken in a check that began at `begun`. Returns the time until the next check is due.
    pub(super) fn renew(&self, begun: u64) -> Duration {
        let text = std::fs::read_to_string(BREAK_TIME).unwrap_or_default();
        let limit = text.trim().parse().map_or(UNKNOWN, Duration::from_secs);
        let valid = if limit.is_zero() {
            u64::MAX
        } else {
            (u128::from(self.rate) * limit.as_nanos() / 2_000_000_000) as u64
        };
        self.valid.store(valid, Ordering::Relaxed);
        self.at.store(begun, Ordering::Relaxed);
        if limit.is_zero() { LONGEST } else { (limit / 8).min(LONGEST) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_young_for_half_the_break_time_and_not_after_the_clock_began_anew() {
        let proof = Proof::new();
        assert!(proof.is_young());
        let valid = proof.valid.load(Ordering::Relaxed);
        proof.at.store(ticks().wrapping_sub(valid).wrapping_sub(1), Ordering::Relaxed);
        assert!(!proof.is_young(), "a proof that is too old is rejected");
        proof.at.store(ticks() + proof.rate, Ordering::Relaxed);
        assert!(!proof.is_young(), "a proof with a time in the future is rejected");
    }
}
