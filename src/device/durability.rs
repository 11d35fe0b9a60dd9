//! The flushes of a device, or of two devices that may share a cache, such as two partitions of one disk, two files in one file system, or
//! two exports of one server.
//!
//! The kernel reports a failed flush only once. The next flush succeeds, although data have been lost. Therefore, this module remembers the
//! failure: no flush of a device that shares the cache succeeds after a failed flush or concurrently with it.
//!
//! On some devices, the kernel also flushes for a write-through request. If this flush fails, only the write-through request gets the
//! error. Therefore, ironmap sends no write-through requests to such a device. Instead, a durable write consists of a write and a flush by
//! this module.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Device, Limits, ThroughFlushes};
use crate::error::{Errno, Error, Result};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The longest duration of a cheap flush. While flushes take longer than this, waiting threads share a flush. While flushes are cheap, each
/// thread makes its own flush, and these flushes overlap.
const CHEAP: Duration = Duration::from_micros(100);
/// The number of condition variables that signal the end of a flush. With only one variable, each flush that ends would wake every waiting
/// thread.
const CONDITIONS: usize = 16;

/// Records the flushes of a device. All users of the device share one value of this type.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    cache: Arc<Cache>,
    /// The index of this device among the devices that share the cache.
    device: usize,
    through_flushes: ThroughFlushes,
}

/// Records the flushes of all devices that may share a cache. A failed flush may have lost writes to each of the devices.
#[derive(Debug, Default)]
struct Cache {
    state: Mutex<State>,
    ended: [Condvar; CONDITIONS],
}

#[derive(Debug, Default)]
struct State {
    /// The number of flushes that have begun.
    begun: u64,
    /// The flushes that are running, in the order of their numbers.
    running: Vec<Running>,
    devices: [Flushed; 2],
    /// The first failed flush.
    lost: Option<Lost>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    number: u64,
    device: usize,
}

#[derive(Debug, Default)]
struct Flushed {
    /// The number of the newest flush that has succeeded.
    done: u64,
    /// Whether the last flush was cheap. A thread then makes its own flush instead of waiting for another thread's flush.
    cheap: bool,
}

#[derive(Clone, Debug)]
struct Lost {
    errno: Errno,
    what: String,
}

impl Durability {
    /// Creates the record of the flushes of a device with these limits.
    pub(crate) fn of(limits: &Limits) -> Self {
        Self { through_flushes: limits.through_flushes, ..Self::default() }
    }

    /// Creates the records of the flushes of two devices with these limits, which may share a cache. After a failed flush of either device,
    /// the flushes of both devices fail.
    pub(crate) fn pair(limits: [&Limits; 2]) -> [Self; 2] {
        let [first, second] = limits.map(Self::of);
        let cache = Arc::clone(&first.cache);
        [first, Self { cache, device: 1, ..second }]
    }

    /// Makes all data durable that were written before the call. Threads that wait here at the same time share one flush. If flushes are
    /// cheap, each thread makes its own flush.
    ///
    /// # Errors
    /// `Io` with the device's errno if this flush or an earlier flush has failed. Writes since the last successful flush may then be lost.
    pub(crate) fn flush(&self, device: &dyn Device) -> Result<()> {
        let mut state = self.cache.state.lock();
        // A flush that is already running might not cover the caller's writes, so the caller needs the next flush.
        let needed = state.begun + 1;
        while state.devices[self.device].done < needed {
            state.check()?;
            let is_cheap = state.devices[self.device].cheap;
            let mine = state.running.iter().rfind(|running| running.device == self.device);
            match mine {
                Some(running) if !is_cheap => self.cache.ended_of(running.number).wait(&mut state),
                _ => self.flush_now(&mut state, device)?,
            }
        }
        Ok(())
    }

    /// Flushes the device, and waits for all other flushes that began before this flush ended. If one of them fails, it may have lost the
    /// writes that this flush is to make durable, so this flush succeeds only if all of them succeed.
    fn flush_now(&self, state: &mut MutexGuard<'_, State>, device: &dyn Device) -> Result<()> {
        state.begun += 1;
        let number = state.begun;
        state.running.push(Running { number, device: self.device });
        let flushed = MutexGuard::unlocked(state, || {
            let panics = Panics(&self.cache, number);
            let begun = Instant::now();
            let flushed = device.flush();
            // The model checker has no clock. Under the model checker, flushes with odd numbers count as cheap.
            let cheap = if cfg!(shuttle) { number % 2 == 1 } else { begun.elapsed() < CHEAP };
            std::mem::forget(panics);
            flushed.map(|()| cheap)
        });
        state.end(number);
        match &flushed {
            Ok(cheap) => state.devices[self.device].cheap = *cheap,
            Err(error) => state.lose(error.errno(), &error),
        }
        self.cache.ended_of(number).notify_all();
        flushed?;
        let before_its_end = state.begun;
        // The thread waits for the newest flush first, because the newest flush usually ends last.
        while let Some(other) = state.running.iter().rfind(|other| other.number <= before_its_end) {
            state.check()?;
            self.cache.ended_of(other.number).wait(state);
        }
        state.check()?;
        let flushed = &mut state.devices[self.device];
        flushed.done = flushed.done.max(number);
        Ok(())
    }

    /// Whether a write-through request that is made as a system call may flush the device.
    pub(crate) fn calls_flush(&self) -> bool {
        self.through_flushes != ThroughFlushes::Never
    }

    /// Makes a durable write as a system call. Calls `write` with true if the write must be write-through.
    ///
    /// # Errors
    /// The errors of the write and of [`flush`](Self::flush).
    pub(crate) fn write_durable<T>(
        &self,
        device: &dyn Device,
        write: impl FnOnce(bool) -> Result<T>,
    ) -> Result<T> {
        if !self.calls_flush() {
            return write(true);
        }
        let written = write(false)?;
        self.flush(device)?;
        Ok(written)
    }

    /// # Errors
    /// `Io` after a failed flush.
    pub(crate) fn check(&self) -> Result<()> {
        self.cache.state.lock().check()
    }
}

impl Cache {
    /// Returns the condition variable that the end of a flush signals.
    fn ended_of(&self, number: u64) -> &Condvar {
        &self.ended[number as usize % CONDITIONS]
    }
}

/// Records a panic during a flush as a failed flush, so that the threads that wait for this flush continue.
struct Panics<'a>(&'a Cache, u64);

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.end(self.1);
        state.lose(Errno::EIO, &"the thread that flushed the device panicked");
        self.0.ended_of(self.1).notify_all();
    }
}

impl State {
    fn end(&mut self, number: u64) {
        self.running.retain(|running| running.number != number);
    }

    fn lose(&mut self, errno: Errno, what: &dyn Display) {
        self.lost.get_or_insert_with(|| Lost { errno, what: what.to_string() });
    }

    fn check(&self) -> Result<()> {
        match &self.lost {
            None => Ok(()),
            Some(Lost { errno, what }) => Err(Error::io(
                *errno,
                format!("written data may be lost, because an earlier flush failed: {what}"),
            )),
        }
    }
}

/// A device whose `flush` calls a function of the test.
#[cfg(test)]
mod flushes {
    use std::fmt;
    use std::io::IoSlice;

    use super::{Device, Limits, Result};
    use crate::device::{AnyQueue, InRange, QueueOptions, Ram};
    use crate::units::DevOffset;

    pub(super) struct Flushes<F>(Ram, F);

    impl<F> Flushes<F> {
        pub(super) fn by(flush: F) -> Self {
            Self(Ram::new(1 << 20), flush)
        }
    }

    impl<F> fmt::Debug for Flushes<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }

    impl<F: Fn() -> Result<()> + Send + Sync> Device for Flushes<F> {
        fn limits(&self) -> &Limits {
            self.0.limits()
        }

        fn size(&self) -> u64 {
            self.0.size()
        }

        fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
            self.0.read_exact_at(buf, at)
        }

        fn is_writable(&self) -> bool {
            true
        }

        fn write_within(
            &self,
            bufs: &[IoSlice<'_>],
            at: DevOffset,
            fua: bool,
            _: InRange,
        ) -> Result<()> {
            self.0.write_all_at(bufs, at, fua)
        }

        fn flush(&self) -> Result<()> {
            self.1()
        }

        fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
            Ok(AnyQueue::other(self.0.queue(options)?))
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::flushes::Flushes;
    use super::*;
    use crate::device::Ram;

    /// A device that notifies the test when a flush begins. The test then sends the result of the flush.
    fn told() -> (impl Device, Receiver<()>, Sender<Result<(), Errno>>) {
        let (begun, has_begun) = channel();
        let (end, ends) = channel::<Result<(), Errno>>();
        let ends = Mutex::new(ends);
        let device = Flushes::by(move || {
            begun.send(()).unwrap();
            let end = ends.lock().recv().unwrap();
            end.map_err(|errno| Error::io(errno, "flush"))
        });
        (device, has_begun, end)
    }

    /// A flush that panics counts as failed. The threads that wait for this flush continue, and no other flush succeeds.
    #[test]
    fn a_flush_that_panics_has_failed() {
        let (device, has_begun, end) = told();
        let durability = Durability::default();
        thread::scope(|scope| {
            let first = scope.spawn(|| durability.flush(&device));
            has_begun.recv().unwrap();
            let later = scope.spawn(|| durability.flush(&device));
            // After this drop, the test can no longer send a result, so the running flush panics.
            drop(end);
            assert!(first.join().is_err());
            assert_eq!(later.join().unwrap().unwrap_err().errno(), Errno::EIO);
        });
    }

    /// A running flush might not cover writes that were made after it began. Therefore, a thread that requests a flush during a running
    /// flush waits for the next flush. All waiting threads share this next flush.
    #[test]
    fn a_flush_covers_what_was_written_before_it_began() {
        let (device, has_begun, end) = told();
        let durability = Durability::default();
        thread::scope(|scope| {
            let flush = || scope.spawn(|| durability.flush(&device));
            let first = flush();
            has_begun.recv().unwrap();
            let later: Vec<_> = (0..3).map(|_| flush()).collect();
            end.send(Ok(())).unwrap();
            first.join().unwrap().unwrap();
            has_begun.recv().unwrap();
            end.send(Ok(())).unwrap();
            // The second flush has begun. A thread that requests a flush from now on needs a third flush.
            let mut more = 0;
            while later.iter().any(|thread| !thread.is_finished()) {
                if has_begun.try_recv().is_ok() {
                    more += 1;
                    end.send(Ok(())).unwrap();
                }
                thread::yield_now();
            }
            assert!(more <= 2, "each thread requests at most one flush");
            later.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        });
    }

    /// No flush succeeds concurrently with a failed flush or after it.
    #[test]
    fn no_flush_succeeds_beside_or_after_a_failure() {
        let (device, has_begun, end) = told();
        let durability = Durability::default();
        thread::scope(|scope| {
            let flush = || scope.spawn(|| durability.flush(&device));
            let first = flush();
            has_begun.recv().unwrap();
            let beside = [flush(), flush()];
            end.send(Err(Errno::ENOSPC)).unwrap();
            assert_eq!(first.join().unwrap().unwrap_err().errno(), Errno::ENOSPC);
            for thread in beside {
                assert_eq!(thread.join().unwrap().unwrap_err().errno(), Errno::ENOSPC);
            }
        });
        assert_eq!(durability.flush(&device).unwrap_err().errno(), Errno::ENOSPC);
        assert!(has_begun.try_recv().is_err(), "the device gets no further flush");
    }

    /// If a write-through request would make the kernel flush the device, a durable write consists of a write and an explicit flush. After
    /// a failed flush, this durable write fails.
    #[test]
    fn a_durable_write_is_made_durable_by_a_flush_that_is_known() {
        for (through_flushes, flushes) in
            [(ThroughFlushes::Never, 0), (ThroughFlushes::OfCalls, 1), (ThroughFlushes::Always, 1)]
        {
            let flushed = Arc::<Mutex<u32>>::default();
            let counted = Arc::clone(&flushed);
            let device = Flushes::by(move || {
                *counted.lock() += 1;
                if *counted.lock() == 2 { Err(Error::io(Errno::EIO, "flush")) } else { Ok(()) }
            });
            let durability = Durability::of(&Limits { through_flushes, ..Ram::LIMITS });
            let write = || {
                durability.write_durable(&device, |through| {
                    assert_eq!(through, flushes == 0);
                    Ok(())
                })
            };
            write().unwrap();
            assert_eq!(*flushed.lock(), flushes);
            assert_eq!(write().is_err(), flushes > 0);
            assert_eq!(write().is_err(), flushes > 0, "a third flush would have succeeded");
        }
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use shuttle::thread;

    use super::flushes::Flushes;
    use super::*;
    use crate::device::Ram;
    use crate::sync::explore;

    /// A device whose second flush fails. The data that this flush was to make durable are lost.
    #[derive(Default)]
    struct Forgetful {
        flushes: Mutex<u32>,
        cached: Mutex<BTreeSet<u32>>,
        durable: Mutex<BTreeSet<u32>>,
    }

    impl Forgetful {
        fn flush(&self) -> Result<()> {
            let number = {
                let mut flushes = self.flushes.lock();
                *flushes += 1;
                *flushes
            };
            let written = std::mem::take(&mut *self.cached.lock());
            thread::yield_now();
            if number == 2 {
                return Err(Error::io(Errno::EIO, "flush"));
            }
            self.durable.lock().extend(written);
            Ok(())
        }
    }

    /// If a flush or a durable write succeeds, the caller's writes are durable, even if other threads flush concurrently.
    #[test]
    fn a_flush_that_succeeds_has_lost_nothing() {
        for durable_writers in 0..=3 {
            explore_flushes(durable_writers);
        }
    }

    /// Runs three threads under the model checker. `durable_writers` of them make durable writes.
    fn explore_flushes(durable_writers: u32) {
        explore(1, move || {
            let medium = Arc::<Forgetful>::default();
            let flushed = Arc::clone(&medium);
            let device = Arc::new(Flushes::by(move || flushed.flush()));
            let limits = Limits { through_flushes: ThroughFlushes::Always, ..Ram::LIMITS };
            let durability = Arc::new(Durability::of(&limits));
            let writer = |number: u32| {
                let (medium, device) = (Arc::clone(&medium), Arc::clone(&device));
                let durability = Arc::clone(&durability);
                thread::spawn(move || {
                    for number in [number, number + 10] {
                        // Like the kernel, this closure writes the data, and then flushes if the write is write-through.
                        let write = |through: bool| {
                            medium.cached.lock().insert(number);
                            thread::yield_now();
                            if through { medium.flush() } else { Ok(()) }
                        };
                        let written = if number % 10 < durable_writers {
                            durability.write_durable(&*device, write)
                        } else {
                            write(false).and_then(|()| durability.flush(&*device))
                        };
                        if written.is_ok() {
                            assert!(medium.durable.lock().contains(&number), "{number} is lost");
                        }
                    }
                })
            };
            let threads: Vec<_> = (0..3).map(writer).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(durability.check().is_err(), "the second flush was requested");
        });
    }
}
