//! A device that fails as told: seeded latency, errors at chosen places, short transfers. Over any other device.

use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::{AnyQueue, BlockFile, Device, DeviceQueue, LentPart, Limits, QueueOptions};
use crate::bio::{Bio, BioFlags, BioOp, Dev, Done};
use crate::error::{Errno, Error, Result};
use crate::units::DevOffset;

/// The unit in which places of errors are given, in bytes.
const SECTOR: u64 = 512;

/// What goes wrong, and when. The same seed and the same requests give the same faults.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Seed of everything random below.
    pub seed: u64,
    /// Requests that touch one of these 512-byte sectors fail.
    pub bad_sectors: BTreeSet<u64>,
    /// The requests after this many (counted from the last [`Sim::set_faults`]) fail.
    pub fail_after: Option<u64>,
    /// What failing requests give; EIO if not set.
    pub errno: Option<Errno>,
    /// One in this many requests transfers only a part: at least one logical block, and whole logical blocks.
    pub short_one_in: Option<u32>,
    /// A bio completes up to this many [`DeviceQueue::commit`] or [`DeviceQueue::wait`] calls later than it could, so that
    /// completions change their order.
    pub latency: u32,
}

/// A device over another that injects [`Faults`] into metadata reads and into its queues.
#[derive(Debug)]
pub struct Sim {
    below: Arc<dyn Device>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    faults: Mutex<Faults>,
    requests: AtomicU64,
    logical_block: u64,
}

impl Sim {
    /// Injects faults into a device.
    #[must_use]
    pub fn new(below: Arc<dyn Device>, faults: Faults) -> Self {
        let logical_block = u64::from(below.limits().logical_block);
        let state =
            State { faults: Mutex::new(faults), requests: AtomicU64::new(0), logical_block };
        Self { below, state: Arc::new(state) }
    }

    /// Other faults from now on; requests are counted from 0 again.
    pub fn set_faults(&self, faults: Faults) {
        *self.state.lock() = faults;
        self.state.requests.store(0, Ordering::Relaxed);
    }

    /// How many requests were seen since the last change of faults.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::Relaxed)
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens to a request: how many of its bytes go through, or its error.
    fn judge(&self, dev: Dev, at: DevOffset, len: usize) -> Result<usize, Errno> {
        // What was attached is no device of ours.
        if dev != Dev::OWN {
            return Ok(len);
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let faults = self.lock();
        let sectors = at.0 / SECTOR..(at.0 + len as u64).div_ceil(SECTOR);
        let fails = faults.fail_after.is_some_and(|limit| number >= limit);
        if fails || faults.bad_sectors.range(sectors).next().is_some() {
            return Err(faults.errno.unwrap_or(Errno::EIO));
        }
        let blocks = len as u64 / self.logical_block;
        match faults.short_one_in {
            Some(one_in)
                if blocks > 1
                    && mix(faults.seed, number).is_multiple_of(u64::from(one_in.max(1))) =>
            {
                Ok(((1 + mix(faults.seed, !number) % (blocks - 1)) * self.logical_block) as usize)
            }
            _ => Ok(len),
        }
    }
}

/// A hash of two numbers (splitmix64's finalizer): the randomness of a request depends on its number alone.
fn mix(seed: u64, number: u64) -> u64 {
    let mut x = seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

impl Device for Sim {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        // A short transfer of metadata is finished by the device itself, so only errors show.
        self.state
            .judge(Dev::OWN, at, buf.len())
            .map_err(|errno| Error::io(errno, format!("read at {at}")))?;
        self.below.read_exact_at(buf, at)
    }

    fn is_writable(&self) -> bool {
        self.below.is_writable()
    }

    fn write_all_at(&self, bufs: &[IoSlice<'_>], at: DevOffset, fua: bool) -> Result<()> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        self.state
            .judge(Dev::OWN, at, len)
            .map_err(|errno| Error::io(errno, format!("write at {at}")))?;
        self.below.write_all_at(bufs, at, fua)
    }

    fn flush(&self) -> Result<()> {
        self.state.judge(Dev::OWN, DevOffset(0), 0).map_err(|errno| Error::io(errno, "flush"))?;
        self.below.flush()
    }

    fn discard(&self, at: DevOffset, len: u64) -> Result<()> {
        self.below.discard(at, len)
    }

    fn queue(&self, options: &QueueOptions) -> Result<AnyQueue> {
        let below = self.below.queue(options)?;
        Ok(AnyQueue::Sim(SimQueue {
            below: Box::new(below),
            state: Arc::clone(&self.state),
            held: Vec::new(),
            depth: options.slots(),
            tick: 0,
        }))
    }
}

/// A queue that judges each request before the device below sees it, and holds completions back.
pub struct SimQueue {
    below: Box<AnyQueue>,
    state: Arc<State>,
    /// Completed bios and the tick from which they can be popped.
    held: Vec<(u64, Done)>,
    depth: usize,
    tick: u64,
}

impl SimQueue {
    /// Takes what has completed below, and gives each completion its delay.
    fn collect(&mut self) {
        self.tick += 1;
        while let Some(done) = self.below.pop() {
            self.hold(done);
        }
    }

    fn hold(&mut self, done: Done) {
        let (seed, latency) = {
            let faults = self.state.lock();
            (faults.seed, faults.latency)
        };
        let delay = if latency == 0 {
            0
        } else {
            mix(seed, done.bio.at.0 ^ self.tick) % u64::from(latency + 1)
        };
        self.held.push((self.tick + delay, done));
    }

    fn read_below(
        &mut self,
        dev: Dev,
        bufs: SmallVec<[IoSliceMut<'_>; 2]>,
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let mut part = [LentPart::new(bufs, at)];
        self.below.read_parts_now(dev, &mut part, flags);
        part[0].result
    }

    /// Writes the first `len` bytes.
    fn write_below(
        &mut self,
        dev: Dev,
        bufs: &[IoSlice<'_>],
        len: usize,
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let mut left = len;
        let mut first = Vec::with_capacity(bufs.len());
        for buf in bufs {
            let count = left.min(buf.len());
            left -= count;
            first.push(IoSlice::new(&buf[..count]));
        }
        self.below.write_now(dev, &first, at, flags)
    }

    fn ready(&self) -> usize {
        self.held.iter().filter(|(from, _)| *from <= self.tick).count()
    }
}

/// The first `len` bytes of lent buffers.
fn cut<'b>(bufs: impl Iterator<Item = &'b mut [u8]>, len: usize) -> SmallVec<[IoSliceMut<'b>; 2]> {
    let mut left = len;
    let mut cut = SmallVec::new();
    for buf in bufs {
        let count = left.min(buf.len());
        left -= count;
        cut.push(IoSliceMut::new(&mut buf[..count]));
    }
    cut
}

impl DeviceQueue for SimQueue {
    fn read_now(
        &mut self,
        dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let len = self.state.judge(dev, at, buf.len())?;
        self.below.read_now(dev, &mut buf[..len], at, flags)
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        for part in parts {
            part.result = self.state.judge(dev, part.at, part.len()).and_then(|len| {
                let bufs = cut(part.bufs.iter_mut().map(|buf| &mut **buf), len);
                self.read_below(dev, bufs, part.at, flags)
            });
        }
    }

    fn write_now(
        &mut self,
        dev: Dev,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let len = self.state.judge(dev, at, bufs.iter().map(|buf| buf.len()).sum())?;
        self.write_below(dev, bufs, len, at, flags)
    }

    fn flush_now(&mut self, dev: Dev) -> Result<(), Errno> {
        self.state.judge(dev, DevOffset(0), 0)?;
        self.below.flush_now(dev)
    }

    fn attach(&mut self, file: &Arc<BlockFile>, lasting: bool) -> Result<Dev, Errno> {
        self.below.attach(file, lasting)
    }

    fn detach(&mut self, dev: Dev) {
        self.below.detach(dev);
    }

    fn room(&self) -> usize {
        self.depth - self.in_flight()
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.below.in_flight()
    }

    fn submit(&mut self, mut bio: Bio) -> Result<(), Bio> {
        if self.room() == 0 {
            return Err(bio);
        }
        match self.state.judge(bio.dev, bio.at, bio.memory.len()) {
            Err(errno) => self.hold(Done { bio, result: Err(errno) }),
            Ok(len) if len < bio.memory.len() && bio.op == BioOp::Read => {
                let bufs = cut(bio.memory.buffers_mut().iter_mut().map(|buf| &mut **buf), len);
                let result = self.read_below(bio.dev, bufs, bio.at, bio.flags);
                self.hold(Done { bio, result });
            }
            Ok(len) if len < bio.memory.len() && bio.op == BioOp::Write => {
                let bufs: Vec<_> =
                    bio.memory.buffers().iter().map(|buf| IoSlice::new(buf)).collect();
                let result = self.write_below(bio.dev, &bufs, len, bio.at, bio.flags);
                self.hold(Done { bio, result });
            }
            Ok(_) => self.below.submit(bio)?,
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Errno> {
        self.below.commit()?;
        self.collect();
        Ok(())
    }

    fn wait(&mut self, min: usize) -> Result<(), Errno> {
        let min = min.min(self.in_flight());
        while self.ready() < min {
            let flying = self.below.in_flight();
            self.below.wait(flying.min(1))?;
            self.collect();
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<Done> {
        let at = self.held.iter().position(|(from, _)| *from <= self.tick)?;
        Some(self.held.remove(at).1)
    }
}
