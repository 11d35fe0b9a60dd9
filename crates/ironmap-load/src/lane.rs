//! The loops in which one thread sends requests to a target, such as a file or a device: one request at a time, or many in flight.

use std::io::IoSlice;
use std::marker::PhantomData;

use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Done, Memory};
use ironmap::device::{AnyQueue, DeviceQueue};
use ironmap::dio::{Completion, DioFlags, NotSimple};
use ironmap::units::{DevOffset, FilePos, InodeNo};
use ironmap::{Errno, Error, File, Queue, QueueOptions, ReadAt, Result};
use smallvec::SmallVec;

use crate::positions::{Course, Spot};
use crate::source::{Shared, Source};

/// A target, such as a file or a device, and the queue with which one thread sends requests to the target.
pub(crate) struct Target {
    route: Route,
    /// Whether queued reads of a file are made in batches, which read into memory that the caller lends to the queue.
    many: bool,
    writing: Writing,
}

/// The options of writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writing {
    /// Whether each write is durable when it completes.
    dsync: bool,
    /// The number of writes between two syncs.
    sync_every: u64,
    /// The number of writes until the next sync.
    until_sync: u64,
}

#[allow(
    clippy::large_enum_variant,
    reason = "a thread has only one value of this type for each target, so its size does not matter"
)]
enum Route {
    /// A queue of a device, and for each file its device number in this queue.
    Device(AnyQueue, Vec<Dev>),
    File(Vec<File>, Queue),
}

impl Target {
    /// Opens the calling thread's queue to a target.
    pub(crate) fn attach(source: &Source, depth: u32, writing: Writing) -> Result<Self> {
        let options = QueueOptions::new().depth(depth);
        let mut route = match &source.route {
            Shared::Device(device, more) => {
                let mut queue = device.queue(&options)?.unbounded();
                let mut devs = vec![Dev::OWN];
                for file in more {
                    let attached = queue.attach(file, true);
                    devs.push(attached.map_err(|errno| Error::io(errno, "another file"))?);
                }
                // If several ranges are on one device, the queue has one device number for all of them.
                devs.resize(source.bases.len(), Dev::OWN);
                Route::Device(queue, devs)
            }
            Shared::Volume(volume, files) => Route::File(files.clone(), volume.queue(&options)?),
            Shared::Host(host, file) => Route::File(vec![file.clone()], host.queue(&options)?),
        };
        if let (Route::File(_, queue), Some(variant)) = (&mut route, source.spec.variant()) {
            queue.set_simple(variant.simple);
        }
        let many = source.spec.variant().is_some_and(|variant| variant.many);
        Ok(Self { route, many, writing })
    }

    /// Buffers for requests of `size` bytes, registered with the kernel.
    pub(crate) fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>> {
        match &mut self.route {
            Route::Device(queue, _) => queue
                .register_buffers(count, size)
                .map_err(|errno| Error::io(errno, "register buffers")),
            Route::File(_, queue) => queue.register_buffers(count, size),
        }
    }

    /// The counters of the queue, by name. Examples are the requests that took the simple path (the fast code for a request that fits in
    /// one bio), the requests that could not take this path, and the reads of a host file that the kernel served.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let Route::File(_, queue) = &self.route else { return Vec::new() };
        let stats = queue.stats();
        let misses = NotSimple::ALL.iter().map(|reason| (reason.name(), stats.misses(*reason)));
        let other = [
            ("simple_hits", stats.simple_hits),
            ("overwrites", stats.overwrites),
            ("writes", stats.writes),
            ("bounced", stats.bounced),
            ("reread", stats.reread),
            ("short", stats.short),
            ("kernel_served", stats.kernel_served),
            ("cut", stats.cut),
        ];
        other
            .into_iter()
            .chain(misses)
            .filter(|(name, count)| *count > 0 || *name == "simple_hits")
            .collect()
    }

    /// Makes the writes to all files durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        match &mut self.route {
            Route::Device(queue, devs) => {
                let mut distinct = devs.clone();
                distinct.dedup();
                distinct.into_iter().try_for_each(|dev| flush(queue, dev))
            }
            Route::File(files, queue) => files.iter().try_for_each(|file| file.sync_data(queue)),
        }
    }

    /// Runs one request at a time, and calls `after` with the memory of each completed request.
    #[inline(always)]
    pub(crate) fn run_sync<C: Course>(
        &mut self,
        count: u64,
        buffers: &mut Vec<Buffer>,
        course: C,
        after: &mut impl FnMut(&[u8]),
    ) -> Result<()> {
        let writing = &mut self.writing;
        let (bio_flags, dio_flags) = writing.flags();
        // A local variable keeps the address and the length in registers.
        let Some(mut buf) = buffers.pop() else { return Err(Error::invalid("no buffer is free")) };
        let result = match &mut self.route {
            Route::Device(queue, devs) => {
                let mut lane = DeviceLane { queue, devs: Pick::of(devs), writes: bio_flags };
                sync_loop(&mut lane, count, &mut buf, writing, course, after)
            }
            Route::File(files, queue) => {
                let mut lane = FileLane { queue, files: Pick::of(files), writes: dio_flags };
                sync_loop(&mut lane, count, &mut buf, writing, course, after)
            }
        };
        buffers.push(buf);
        result
    }

    /// Keeps a request in flight for each buffer, and calls `after` with the memory of each completed request.
    pub(crate) fn run_async<C: Course>(
        &mut self,
        count: u64,
        buffers: &mut Vec<Buffer>,
        batch: Batch,
        course: C,
        after: &mut impl FnMut(&[u8]),
    ) -> Result<()> {
        let writing = &mut self.writing;
        let (bio_flags, dio_flags) = writing.flags();
        match &mut self.route {
            Route::Device(queue, devs) => {
                let mut lane = DeviceLane { queue, devs: Pick::of(devs), writes: bio_flags };
                async_loop(&mut lane, (count, batch), buffers, writing, course, after)
            }
            Route::File(files, queue) if self.many => {
                let mut lane = FileLane { queue, files: Pick::of(files), writes: dio_flags };
                lane.read_batches(count, buffers, course, after)
            }
            Route::File(files, queue) => {
                let mut lane = FileLane { queue, files: Pick::of(files), writes: dio_flags };
                async_loop(&mut lane, (count, batch), buffers, writing, course, after)
            }
        }
    }
}

impl Writing {
    /// Creates the options. A sync follows every `sync_every` writes. If `sync_every` is 0, there are no syncs.
    pub(crate) fn new(dsync: bool, sync_every: u64) -> Self {
        // No load makes this number of writes, so there is no sync.
        let sync_every = if sync_every == 0 { u64::MAX } else { sync_every };
        Self { dsync, sync_every, until_sync: sync_every }
    }

    /// The flags of writes to a device, and the flags of writes to a file.
    fn flags(&self) -> (BioFlags, DioFlags) {
        if self.dsync {
            (BioFlags::DSYNC, DioFlags::DSYNC)
        } else {
            (BioFlags::empty(), DioFlags::empty())
        }
    }

    /// Counts a write, and returns whether a sync must follow.
    #[inline(always)]
    fn is_sync_due(&mut self) -> bool {
        self.until_sync -= 1;
        if self.until_sync == 0 {
            self.until_sync = self.sync_every;
            return true;
        }
        false
    }
}

/// The number of requests that are submitted together, and the number that are reaped together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) submit: usize,
    pub(crate) complete: usize,
}

/// The files of a target, by number. With a single file, there is no lookup.
#[derive(Clone, Copy)]
struct Pick<'a, T, C> {
    first: &'a T,
    all: &'a [T],
    course: PhantomData<C>,
}

impl<'a, T, C: Course> Pick<'a, T, C> {
    /// The files of a target. `all` must not be empty.
    fn of(all: &'a [T]) -> Self {
        Self { first: &all[0], all, course: PhantomData }
    }

    #[inline(always)]
    fn get(&self, number: usize) -> &'a T {
        if C::MANY { &self.all[number] } else { self.first }
    }
}

/// A thread's access to a target.
trait Lane<C> {
    fn transfer_now(&mut self, buf: &mut Buffer, spot: Spot) -> Result<usize>;
    fn submit(&mut self, buffer: Buffer, spot: Spot) -> Result<()>;
    fn sync(&mut self, file: usize) -> Result<()>;
    fn poll(&mut self) -> Result<()>;
    fn wait(&mut self, min: usize) -> Result<()>;
    fn pop(&mut self) -> Option<(Memory, Result<usize>)>;
}

struct DeviceLane<'a, C> {
    queue: &'a mut AnyQueue,
    devs: Pick<'a, Dev, C>,
    /// The flags of writes.
    writes: BioFlags,
}

fn flush(queue: &mut AnyQueue, dev: Dev) -> Result<()> {
    queue.flush_now(dev).map_err(|errno| Error::io(errno, "sync"))
}

#[cold]
#[inline(never)]
fn failed(errno: Errno, write: bool, at: u64) -> Error {
    Error::io(errno, format!("{} at {at}", if write { "write" } else { "read" }))
}

impl<C> DeviceLane<'_, C> {
    #[inline(always)]
    fn flags(&self, write: bool) -> BioFlags {
        if write { self.writes } else { BioFlags::empty() }
    }
}

impl<C: Course> Lane<C> for DeviceLane<'_, C> {
    #[inline(always)]
    fn transfer_now(&mut self, buf: &mut Buffer, spot: Spot) -> Result<usize> {
        let (dev, at, flags) =
            (*self.devs.get(spot.file), DevOffset(spot.at), self.flags(spot.write));
        let result = if spot.write {
            self.queue.write_now(dev, &[IoSlice::new(buf)], at, flags)
        } else {
            self.queue.read_now(dev, buf, at, flags)
        };
        result.map_err(|errno| failed(errno, spot.write, spot.at))
    }

    #[inline(always)]
    fn submit(&mut self, buffer: Buffer, spot: Spot) -> Result<()> {
        let (dev, at, flags) =
            (*self.devs.get(spot.file), DevOffset(spot.at), self.flags(spot.write));
        let op = if spot.write { BioOp::Write } else { BioOp::Read };
        let end = BioEnd::Whole { token: 0, inode: InodeNo(0), pos: FilePos(spot.at) };
        let bio = Bio { op, flags, dev, at, memory: Memory::Flat(buffer), end };
        self.queue.submit(bio).map_err(|_| Error::invalid("no slot is free"))
    }

    fn sync(&mut self, file: usize) -> Result<()> {
        flush(self.queue, *self.devs.get(file))
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        self.queue.commit().map_err(|errno| Error::io(errno, "submit"))
    }

    #[inline]
    fn wait(&mut self, min: usize) -> Result<()> {
        self.queue.wait(min).map_err(|errno| Error::io(errno, "wait"))
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<(Memory, Result<usize>)> {
        let Done { bio: Bio { memory, .. }, result } = self.queue.pop()?;
        Some((memory, result.map_err(|errno| Error::io(errno, "a request"))))
    }
}

struct FileLane<'a, C> {
    queue: &'a mut Queue,
    files: Pick<'a, File, C>,
    writes: DioFlags,
}

impl<C: Course> FileLane<'_, C> {
    /// Reads in batches. A batch has at most one read for each buffer. The code is in its own function, so that it uses no registers in the
    /// loop for queued requests.
    #[inline(never)]
    fn read_batches(
        &mut self,
        count: u64,
        buffers: &mut [Buffer],
        mut course: C,
        after: &mut impl FnMut(&[u8]),
    ) -> Result<()> {
        let mut done = 0;
        while done < count {
            let most = buffers.len().min((count - done) as usize);
            let mut reads: SmallVec<[ReadAt<'_>; 64]> = SmallVec::new();
            for buffer in &mut buffers[..most] {
                let spot = course.next();
                if spot.write {
                    return Err(Error::invalid("a batch only reads"));
                }
                reads.push(ReadAt::new(self.files.get(spot.file), buffer, spot.at));
            }
            self.queue.read_many(&mut reads);
            for read in reads {
                if read.result? != read.buf.len() {
                    return Err(short());
                }
                after(read.buf);
            }
            done += most as u64;
        }
        Ok(())
    }
}

impl<C: Course> Lane<C> for FileLane<'_, C> {
    #[inline(always)]
    fn transfer_now(&mut self, buf: &mut Buffer, spot: Spot) -> Result<usize> {
        let (file, pos) = (self.files.get(spot.file), FilePos(spot.at));
        if spot.write {
            file.write_buffer_at(self.queue, buf, pos, self.writes)
        } else {
            file.read_at(self.queue, buf, pos)
        }
    }

    #[inline(always)]
    fn submit(&mut self, buffer: Buffer, spot: Spot) -> Result<()> {
        let (file, pos) = (self.files.get(spot.file), FilePos(spot.at));
        let submitted = if spot.write {
            file.submit_write(self.queue, buffer, pos, self.writes, 0)
        } else {
            file.submit_read(self.queue, buffer, pos, DioFlags::empty(), 0)
        };
        submitted.map_err(|rejected| rejected.error)
    }

    fn sync(&mut self, file: usize) -> Result<()> {
        self.files.get(file).sync_data(self.queue)
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        self.queue.poll()
    }

    #[inline]
    fn wait(&mut self, min: usize) -> Result<()> {
        self.queue.wait(min)
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<(Memory, Result<usize>)> {
        let Completion { memory, result, .. } = self.queue.pop()?;
        Some((memory, result))
    }
}

#[cold]
fn short() -> Error {
    Error::invalid("a transfer was shorter than the request")
}

/// This function is inlined into the caller, because a return after a system call can cost more than the measured request.
#[inline(always)]
fn sync_loop<C: Course>(
    lane: &mut impl Lane<C>,
    count: u64,
    buf: &mut Buffer,
    writing: &mut Writing,
    mut course: C,
    after: &mut impl FnMut(&[u8]),
) -> Result<()> {
    // The local copy of `writing` stays in registers. The original is in memory.
    let mut own = *writing;
    for _ in 0..count {
        let spot = course.next();
        if lane.transfer_now(buf, spot)? != buf.len() {
            return Err(short());
        }
        if spot.write && own.is_sync_due() {
            lane.sync(spot.file)?;
        }
        after(buf);
    }
    *writing = own;
    Ok(())
}

#[inline(always)]
fn async_loop<C: Course>(
    lane: &mut impl Lane<C>,
    (count, batch): (u64, Batch),
    buffers: &mut Vec<Buffer>,
    writing: &mut Writing,
    mut course: C,
    after: &mut impl FnMut(&[u8]),
) -> Result<()> {
    let (mut issued, mut done, mut own) = (0, 0, *writing);
    while done < count {
        let ready = (count - issued).min(batch.submit as u64).min(buffers.len() as u64);
        for _ in 0..ready {
            let Some(buffer) = buffers.pop() else { break };
            let spot = course.next();
            lane.submit(buffer, spot)?;
            // As in fio, the sync covers the requests completed so far.
            if spot.write && own.is_sync_due() {
                lane.sync(spot.file)?;
            }
        }
        issued += ready;
        if buffers.is_empty() || issued == count {
            lane.wait(batch.complete.min((issued - done) as usize))?;
        } else {
            lane.poll()?;
        }
        while let Some((memory, result)) = lane.pop() {
            let Memory::Flat(buffer) = memory else {
                return Err(Error::invalid(
                    "the completion returned several buffers instead of one",
                ));
            };
            if result? != buffer.len() {
                return Err(short());
            }
            after(&buffer);
            buffers.push(buffer);
            done += 1;
        }
    }
    *writing = own;
    Ok(())
}
