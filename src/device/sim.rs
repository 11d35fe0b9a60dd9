//! A device over another device that injects faults: random latency, errors at chosen positions and times, and short and torn transfers. A
//! seed determines the random choices.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::layered::{Layer, Layered, Request, Verdict};
use super::{Device, Limits};
use crate::error::Errno;
use crate::units::DevOffset;

/// The unit of error positions, in bytes.
const SECTOR: u64 = 512;

/// The faults to inject. The same seed and the same requests produce the same faults.
///
/// Requests are reads, writes, flushes and discards. They are numbered from 0. [`Sim::set_faults`] restarts the numbering.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The seed of all random choices.
    pub seed: u64,
    /// Requests that touch one of these 512-byte sectors fail.
    pub bad_sectors: BTreeSet<u64>,
    /// The request with this number and all later requests fail.
    pub fail_after: Option<u64>,
    /// Only the request with this number fails.
    pub fail_at: Option<u64>,
    /// The errno of failing requests. The default is EIO.
    pub errno: Option<Errno>,
    /// A failing write still writes a random number of logical blocks from its start, but never all of them.
    pub torn: bool,
    /// A failing write still writes all of its data, and then returns the error.
    pub unheard: bool,
    /// On average, one in this many requests of a queue is short. A short request transfers at least one logical block, and only whole
    /// blocks.
    pub short_one_in: Option<u32>,
    /// The largest delay of a completion. The unit is a call of [`DeviceQueue::commit`](super::DeviceQueue::commit) or
    /// [`DeviceQueue::wait`](super::DeviceQueue::wait). The delays are random, so they change the order of completions.
    pub latency: u32,
}

/// A device over another device. It injects [`Faults`] into calls of the device and into requests of its queues.
pub type Sim = Layered<Faulty>;

impl Sim {
    /// Injects faults into a device.
    #[must_use]
    pub fn new(below: Arc<dyn Device>, faults: Faults) -> Self {
        let Limits { logical_block, .. } = *below.limits();
        let requests = AtomicU64::new(0);
        let layer = Faulty {
            faults: Mutex::new(faults),
            requests,
            logical_block: u64::from(logical_block),
        };
        Self::with_layer(below, layer)
    }

    /// Replaces the faults, and counts requests from 0 again.
    pub fn set_faults(&self, faults: Faults) {
        *self.layer.lock() = faults;
        self.layer.requests.store(0, Ordering::Relaxed);
    }

    /// The number of requests since the faults were last set.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.layer.requests.load(Ordering::Relaxed)
    }
}

/// The layer of a [`Sim`] device. It decides which requests fail.
#[derive(Debug)]
pub struct Faulty {
    faults: Mutex<Faults>,
    requests: AtomicU64,
    logical_block: u64,
}

impl Faulty {
    fn lock(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Faults {
    fn fails(&self, number: u64, request: &Request<'_>) -> bool {
        let at = request.at().0;
        let sectors = at / SECTOR..at.saturating_add(request.len()).div_ceil(SECTOR);
        self.fail_at == Some(number)
            || self.fail_after.is_some_and(|limit| number >= limit)
            || self.bad_sectors.range(sectors).next().is_some()
    }
}

/// A hash of two numbers (splitmix64's finalizer). The random choices for a request depend only on the seed and on the number of the
/// request.
pub(super) fn mix(seed: u64, number: u64) -> u64 {
    let mut x = seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

impl Layer for Faulty {
    fn begin(&self, request: &Request<'_>) -> Verdict {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let faults = self.lock();
        let blocks = request.len() / self.logical_block;
        let part = |blocks: u64| mix(faults.seed, !number) % blocks;
        if faults.fails(number, request) {
            let len = match request {
                Request::Write { .. } if faults.unheard => request.len(),
                Request::Write { .. } if faults.torn && blocks > 0 => {
                    part(blocks) * self.logical_block
                }
                _ => 0,
            };
            return Verdict { ticket: 0, len, error: Some(faults.errno.unwrap_or(Errno::EIO)) };
        }
        let whole = Verdict::pass(request);
        match faults.short_one_in {
            Some(one_in)
                if blocks > 1
                    && mix(faults.seed, number).is_multiple_of(u64::from(one_in.max(1))) =>
            {
                Verdict { len: (1 + part(blocks - 1)) * self.logical_block, ..whole }
            }
            _ => whole,
        }
    }

    fn delay(&self, at: DevOffset, tick: u64) -> u64 {
        let faults = self.lock();
        match faults.latency {
            0 => 0,
            latency => mix(faults.seed, at.0 ^ tick) % u64::from(latency + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;
    use crate::bio::{BioFlags, Dev};
    use crate::device::{DeviceQueue, QueueOptions, Ram};

    const FLAGS: BioFlags = BioFlags::empty();

    fn sim(faults: Faults) -> (Arc<Ram>, Sim) {
        let ram = Arc::new(Ram::new(1 << 20));
        (Arc::clone(&ram), Sim::new(ram, faults))
    }

    /// Counts the 512-byte sectors at the start of the device that contain only the byte `fill`.
    fn count(ram: &Ram, fill: u8) -> usize {
        let mut bytes = [0; 8 * SECTOR as usize];
        ram.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
        bytes.chunks(SECTOR as usize).take_while(|sector| **sector == [fill; 512]).count()
    }

    /// Faults are counted over calls of the device and requests of its queues together, and over all kinds of requests. Only the request
    /// with the selected number fails.
    #[test]
    fn the_request_of_a_number_fails_once() {
        let data = [1; 512];
        let bufs = [IoSlice::new(&data)];
        for fail_at in 0..9 {
            let faults =
                Faults { fail_at: Some(fail_at), errno: Some(Errno::ENOSPC), ..Faults::default() };
            let (_, sim) = sim(faults);
            let mut queue = sim.queue(&QueueOptions::default()).unwrap();
            let at = DevOffset(0);
            let kind = |result: crate::Result<()>| result.map_err(|error| error.errno());
            let results = [
                kind(sim.write_all_at(&bufs, at, false)),
                kind(sim.flush()),
                kind(sim.discard(at, 512)),
                kind(sim.read_exact_at(&mut [0; 8], at)),
                kind(sim.write_all_at(&bufs, at, true)),
                queue.write_now(Dev::OWN, &bufs, at, FLAGS).map(drop),
                queue.flush_now(Dev::OWN),
                queue.read_now(Dev::OWN, &mut [0; 512], at, FLAGS).map(drop),
                kind(sim.flush()),
            ];
            for (number, result) in (0..).zip(results) {
                let expected = if number == fail_at { Err(Errno::ENOSPC) } else { Ok(()) };
                assert_eq!(result, expected, "request {number} of {fail_at}");
            }
            assert_eq!(sim.requests(), 9);
        }
    }

    /// A torn write has written whole logical blocks from its start, but never all of them. A failing read returns no data.
    #[test]
    fn failing_writes_are_torn_where_that_is_asked_for() {
        let data = [1; 4 * SECTOR as usize];
        let bufs = [IoSlice::new(&data[..512]), IoSlice::new(&data[512..])];
        let mut seen = BTreeSet::new();
        for seed in 0..40 {
            let faults =
                Faults { seed, fail_after: Some(0), torn: seed % 4 != 0, ..Faults::default() };
            let (ram, sim) = sim(faults);
            let result = if seed % 2 == 0 {
                sim.write_all_at(&bufs, DevOffset(0), false).map_err(|error| error.errno())
            } else {
                let mut queue = sim.queue(&QueueOptions::default()).unwrap();
                queue.write_now(Dev::OWN, &bufs, DevOffset(0), FLAGS).map(drop)
            };
            assert_eq!(result, Err(Errno::EIO));
            assert!(seed % 4 != 0 || count(&ram, 1) == 0, "not torn");
            seen.insert(count(&ram, 1));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        let unheard = Faults { fail_after: Some(0), unheard: true, ..Faults::default() };
        let (ram, sim) = sim(unheard);
        assert!(sim.write_all_at(&bufs, DevOffset(0), false).is_err());
        assert_eq!(count(&ram, 1), 4);
    }
}
