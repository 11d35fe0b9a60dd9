//! Flushes of one device. The kernel reports a failed flush once, and the next flush succeeds although data are lost: so the failure is
//! remembered here, and no flush of this device succeeds after it.
//!
//! A write-through request may flush the device too, and the request alone gets the error. So a flush that succeeds waits for those that are
//! under way, and hears how they end.

use std::fmt::Display;

use super::{Device, Limits, ThroughFlushes};
use crate::error::{Errno, Error, Result};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The state of a device's flushes. All users of the device share it.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    state: Mutex<State>,
    ended: Condvar,
    /// A write-through request that is a call may be a flush.
    through_flushes: bool,
}

#[derive(Debug, Default)]
struct State {
    /// Flushes that were begun, and the newest one that succeeded.
    begun: u64,
    done: u64,
    /// One is under way. There is one at a time: beside one that fails, another could succeed before its failure is known.
    running: bool,
    /// Write-through requests under way, by the parity of the flushes that had ended when they began. While no flush runs,
    /// all are of the present parity.
    through: [u64; 2],
    parity: usize,
    /// The first failure.
    lost: Option<Lost>,
}

#[derive(Clone, Debug)]
struct Lost {
    errno: Errno,
    what: String,
}

impl Durability {
    /// Of a device with these limits.
    pub(crate) fn of(limits: &Limits) -> Self {
        let through_flushes = limits.through_flushes != ThroughFlushes::Never;
        Self { through_flushes, ..Self::default() }
    }

    /// Makes durable what the device was given before the call. Threads that wait here at the same time share one flush.
    ///
    /// # Errors
    /// `Io` with the device's errno, now and from then on: writes since the last flush that succeeded may be lost.
    pub(crate) fn flush(&self, device: &dyn Device) -> Result<()> {
        let mut state = self.state.lock();
        // A flush that has begun already may not cover what the caller has written.
        let needed = state.begun + 1;
        while state.done < needed {
            state.check()?;
            if state.running {
                self.ended.wait(&mut state);
                continue;
            }
            state.running = true;
            state.begun += 1;
            let flushed = MutexGuard::unlocked(&mut state, || {
                let panics = Panics(self);
                let flushed = device.flush();
                std::mem::forget(panics);
                flushed
            });
            match &flushed {
                Ok(()) => self.await_through(&mut state),
                Err(error) => state.lose(error.errno(), &error),
            }
            state.running = false;
            if state.lost.is_none() {
                state.done = state.begun;
            }
            self.ended.notify_all();
            flushed?;
        }
        // A write-through request may have failed meanwhile.
        state.check()
    }

    /// Waits for write-through requests that began before the flush ended: each may have been a flush that failed before it.
    fn await_through(&self, state: &mut MutexGuard<'_, State>) {
        let before = state.parity;
        state.parity ^= 1;
        while state.through[before] > 0 && state.lost.is_none() {
            self.ended.wait(state);
        }
    }

    /// Makes a write-through request that is a call. It takes no lock that a thread may hold while it waits for a flush.
    pub(crate) fn through<T, E>(
        &self,
        errno: impl FnOnce(&E) -> Errno,
        write: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if !self.through_flushes {
            return write();
        }
        let under_way = UnderWay::begin(self);
        let written = write();
        if let Err(error) = &written {
            self.doubt(errno(error));
        }
        under_way.end();
        written
    }

    fn end_through(&self, parity: usize) {
        let mut state = self.state.lock();
        state.through[parity] -= 1;
        if state.through[parity] == 0 || state.lost.is_some() {
            self.ended.notify_all();
        }
    }

    /// Notes a write-through request that failed. The device may have been flushed for it, and that may be what failed.
    #[cold]
    pub(crate) fn doubt(&self, errno: Errno) {
        // Refused before it reached the device, or never submitted by a queue that the kernel refuses.
        let refused = [
            Errno::EAGAIN,
            Errno::EINVAL,
            Errno::EOPNOTSUPP,
            Errno::ENOMEM,
            Errno::EEXIST,
            Errno::EBADF,
            Errno::EPERM,
            Errno::EACCES,
        ];
        if self.through_flushes && !refused.contains(&errno) {
            self.state.lock().lose(errno, &"a write-through request failed");
        }
    }

    /// # Errors
    /// `Io` after a flush that failed.
    pub(crate) fn check(&self) -> Result<()> {
        self.state.lock().check()
    }
}

/// A write-through request. One that panics has failed.
struct UnderWay<'a> {
    durability: &'a Durability,
    parity: usize,
}

impl<'a> UnderWay<'a> {
    fn begin(durability: &'a Durability) -> Self {
        let mut state = durability.state.lock();
        let parity = state.parity;
        state.through[parity] += 1;
        Self { durability, parity }
    }

    fn end(self) {
        let Self { durability, parity } = self;
        std::mem::forget(self);
        durability.end_through(parity);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.durability.state.lock().lose(Errno::EIO, &"a write-through request panicked");
        self.durability.end_through(self.parity);
    }
}

/// A flush that panics has failed, and those who wait for it do not wait for ever.
struct Panics<'a>(&'a Durability);

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.running = false;
        state.lose(Errno::EIO, &"the flush panicked");
        self.0.ended.notify_all();
    }
}

impl State {
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

/// A device whose flushes are a test's.
#[cfg(test)]
mod flushes {
    use std::fmt;
    use std::io::IoSlice;

    use super::{Device, Limits, Result};
    use crate::device::{AnyQueue, QueueOptions, Ram};
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

        fn read_exact_at(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
            self.0.read_exact_at(buf, at)
        }

        fn is_writable(&self) -> bool {
            true
        }

        fn write_all_at(&self, bufs: &[IoSlice<'_>], at: DevOffset, fua: bool) -> Result<()> {
            self.0.write_all_at(bufs, at, fua)
        }

        fn flush(&self) -> Result<()> {
            self.1()
        }

        fn queue(&self, options: &QueueOptions) -> Result<AnyQueue> {
            self.0.queue(options)
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::flushes::Flushes;
    use super::*;
    use crate::device::Ram;

    /// A device that says when a flush begins, and ends it with what it is told.
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

    /// A flush that panics is one that failed: nobody waits for it, and no other one succeeds.
    #[test]
    fn a_flush_that_panics_has_failed() {
        let (device, has_begun, end) = told();
        let durability = Durability::default();
        thread::scope(|scope| {
            let first = scope.spawn(|| durability.flush(&device));
            has_begun.recv().unwrap();
            let later = scope.spawn(|| durability.flush(&device));
            // It has nobody to hear from how it ends.
            drop(end);
            assert!(first.join().is_err());
            assert_eq!(later.join().unwrap().unwrap_err().errno(), Errno::EIO);
        });
    }

    /// A flush that has begun may not cover later writes: a thread that asks then waits for the next one, and all threads that ask meanwhile share it.
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
            // One that asked when the second had begun needs a third.
            let mut more = 0;
            while later.iter().any(|thread| !thread.is_finished()) {
                if has_begun.try_recv().is_ok() {
                    more += 1;
                    end.send(Ok(())).unwrap();
                }
                thread::yield_now();
            }
            assert!(more <= 2, "each asks for one at most");
            later.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        });
    }

    /// Beside a flush that fails no other succeeds, and none after it.
    #[test]
    fn nobody_is_told_that_all_is_well_beside_or_after_a_failure() {
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
        assert!(has_begun.try_recv().is_err(), "the device is not asked any more");
    }

    /// A device on which write-through requests flush.
    fn flushing(through_flushes: ThroughFlushes) -> Durability {
        Durability::of(&Limits { through_flushes, ..Ram::LIMITS })
    }

    /// If the device flushes for write-through requests, a failed request may be a failed flush; a refused one was not.
    #[test]
    fn a_write_through_request_that_failed_counts_where_it_flushes() {
        for (through_flushes, errno, lost) in [
            (ThroughFlushes::Always, Errno::EIO, true),
            (ThroughFlushes::OfCalls, Errno::EIO, true),
            (ThroughFlushes::Always, Errno::EAGAIN, false),
            (ThroughFlushes::Always, Errno::EINVAL, false),
            (ThroughFlushes::Never, Errno::EIO, false),
        ] {
            let durability = flushing(through_flushes);
            let written: Result<(), _> = durability.through(|errno| *errno, || Err(errno));
            assert_eq!(written, Err(errno));
            assert_eq!(durability.check().is_err(), lost, "{through_flushes:?}, {errno}");
        }
    }

    /// A write-through request that flushed and failed may end after a later flush has succeeded: that flush waits for it.
    #[test]
    fn a_flush_succeeds_only_after_write_through_requests_under_way() {
        for (outcome, expected) in [(Err(Errno::EIO), Err(Errno::EIO)), (Ok(()), Ok(()))] {
            let (device, has_begun, end_flush) = told();
            let durability = flushing(ThroughFlushes::Always);
            let (begun, is_under_way) = channel();
            let (end_write, ends) = channel::<Result<(), Errno>>();
            thread::scope(|scope| {
                let durability = &durability;
                let write = scope.spawn(move || {
                    durability.through(
                        |errno| *errno,
                        || {
                            begun.send(()).unwrap();
                            ends.recv().unwrap()
                        },
                    )
                });
                is_under_way.recv().unwrap();
                let flush = scope.spawn(|| durability.flush(&device));
                has_begun.recv().unwrap();
                end_flush.send(Ok(())).unwrap();
                // The device's flush has ended.
                while durability.state.lock().parity == 0 {
                    thread::yield_now();
                }
                assert!(!flush.is_finished());
                // One that begins now is not waited for.
                let later = durability.through(
                    |errno| *errno,
                    || {
                        end_write.send(outcome).unwrap();
                        flush.join().unwrap().map_err(|error| error.errno())
                    },
                );
                assert_eq!(later, expected);
                assert_eq!(write.join().unwrap(), outcome);
            });
        }
    }

    /// A write-through request that panics has failed, and no flush waits for it for ever.
    #[test]
    fn a_write_through_request_that_panics_has_failed() {
        let (device, _has_begun, end) = told();
        let durability = flushing(ThroughFlushes::Always);
        thread::scope(|scope| {
            let write = || durability.through(|errno| *errno, || -> Result<(), Errno> { panic!() });
            assert!(scope.spawn(write).join().is_err());
            end.send(Ok(())).unwrap();
            assert_eq!(durability.flush(&device).unwrap_err().errno(), Errno::EIO);
        });
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

    /// The writes that the second flush should make durable are lost with it.
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

    /// A flush that succeeds has made its caller's writes durable, also if other threads flush meanwhile, or write through.
    #[test]
    fn a_flush_that_succeeds_has_lost_nothing() {
        for through in [0, 1] {
            explore_flushes(through);
        }
    }

    /// So many of the threads write through, and that flushes.
    fn explore_flushes(through: u32) {
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
                    let is_through = number < through;
                    for number in [number, number + 10] {
                        medium.cached.lock().insert(number);
                        // A write-through request is durable, but says nothing of earlier writes.
                        let through = || durability.through(Error::errno, || medium.flush());
                        let written = if is_through { through() } else { Ok(()) };
                        if written.and_then(|()| durability.flush(&*device)).is_ok() {
                            assert!(medium.durable.lock().contains(&number), "{number} is lost");
                        }
                    }
                })
            };
            let threads: Vec<_> = (0..3).map(writer).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(durability.check().is_err(), "the second flush was asked for");
        });
    }
}
