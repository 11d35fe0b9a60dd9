//! How one thread drives a target: one request at a time, or many in flight.

use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Memory};
use ironmap::device::{AnyQueue, DeviceQueue};
use ironmap::dio::{DioFlags, NotSimple};
use ironmap::units::{DevOffset, FilePos, InodeNo};
use ironmap::{Error, File, Queue, QueueOptions, Result};

use super::source::{Shared, Source};

/// A target as one thread drives it.
pub(super) struct Target {
    way: Way,
    base: u64,
}

#[allow(clippy::large_enum_variant, reason = "a thread has one of each target")]
enum Way {
    Device(AnyQueue),
    File(File, Queue),
}

impl Target {
    /// The calling thread's queue to a target.
    pub(super) fn attach(source: &Source, depth: u32) -> Result<Self> {
        let options = QueueOptions { depth };
        let way = match &source.way {
            Shared::Device(device) => Way::Device(device.queue(&options)?),
            Shared::Volume(volume, file) => Way::File(file.clone(), volume.queue(&options)?),
            Shared::Host(host, file) => Way::File(file.clone(), host.queue(&options)?),
        };
        let mut target = Self { way, base: source.base };
        if let (Way::File(_, queue), Some(simple)) = (&mut target.way, source.spec.simple()) {
            queue.set_simple(simple);
        }
        Ok(target)
    }

    /// Buffers for requests of `size` bytes, registered with the kernel.
    pub(super) fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>> {
        match &mut self.way {
            Way::Device(queue) => queue
                .register_buffers(count, size)
                .map_err(|errno| Error::io(errno, "register buffers")),
            Way::File(_, queue) => queue.register_buffers(count, size),
        }
    }

    /// What the target has counted: simple hits and misses by reason, and what the kernel had to serve of a host file.
    pub(super) fn counters(&self) -> Vec<(&'static str, u64)> {
        let Way::File(_, queue) = &self.way else { return Vec::new() };
        let stats = queue.stats();
        let misses = NotSimple::ALL.iter().map(|reason| (reason.name(), stats.misses(*reason)));
        let other = [
            ("simple_hits", stats.simple_hits),
            ("bounced", stats.bounced),
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

    /// Runs one request at a time. `next` gives positions within the range.
    #[inline(always)]
    pub(super) fn run_sync(
        &mut self,
        count: u64,
        buf: &mut [u8],
        next: &mut impl FnMut() -> u64,
        seen: &mut impl FnMut(&[u8]),
    ) -> Result<()> {
        let base = self.base;
        match &mut self.way {
            Way::Device(queue) => sync_loop(&mut DeviceLane(queue), count, buf, base, next, seen),
            Way::File(file, queue) => {
                sync_loop(&mut FileLane(file, queue), count, buf, base, next, seen)
            }
        }
    }

    /// Keeps up to as many requests in flight as there are buffers.
    pub(super) fn run_async(
        &mut self,
        count: u64,
        buffers: &mut Vec<Buffer>,
        batch: Batch,
        next: &mut impl FnMut() -> u64,
        seen: &mut impl FnMut(&[u8]),
    ) -> Result<()> {
        let base = self.base;
        match &mut self.way {
            Way::Device(queue) => {
                async_loop(&mut DeviceLane(queue), count, buffers, batch, base, next, seen)
            }
            Way::File(file, queue) => {
                async_loop(&mut FileLane(file, queue), count, buffers, batch, base, next, seen)
            }
        }
    }
}

/// How many requests are handed over and waited for together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub submit: usize,
    pub complete: usize,
}

/// One thread's way through a target.
trait Lane {
    fn read_now(&mut self, buf: &mut [u8], at: u64) -> Result<usize>;
    fn submit(&mut self, buffer: Buffer, at: u64) -> Result<()>;
    fn poll(&mut self) -> Result<()>;
    fn wait(&mut self, min: usize) -> Result<()>;
    fn pop(&mut self) -> Option<Result<(Memory, usize)>>;
}

struct DeviceLane<'a>(&'a mut AnyQueue);

impl Lane for DeviceLane<'_> {
    #[inline(always)]
    fn read_now(&mut self, buf: &mut [u8], at: u64) -> Result<usize> {
        let result = self.0.read_now(Dev::OWN, buf, DevOffset(at), BioFlags::empty());
        result.map_err(|errno| Error::io(errno, format!("read at {at}")))
    }

    #[inline(always)]
    fn submit(&mut self, buffer: Buffer, at: u64) -> Result<()> {
        let end = BioEnd::Whole { token: 0, inode: InodeNo(0), pos: FilePos(at) };
        let (op, flags, memory) = (BioOp::Read, BioFlags::empty(), Memory::Flat(buffer));
        let bio = Bio { op, flags, dev: Dev::OWN, at: DevOffset(at), memory, end };
        self.0.submit(bio).map_err(|_| Error::invalid("no slot is free"))
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        self.0.commit().map_err(|errno| Error::io(errno, "submit"))
    }

    #[inline]
    fn wait(&mut self, min: usize) -> Result<()> {
        self.0.wait(min).map_err(|errno| Error::io(errno, "wait"))
    }

    #[inline]
    fn pop(&mut self) -> Option<Result<(Memory, usize)>> {
        let done = self.0.pop()?;
        Some(match done.result {
            Ok(count) => Ok((done.bio.memory, count)),
            Err(errno) => Err(Error::io(errno, "read")),
        })
    }
}

struct FileLane<'a>(&'a File, &'a mut Queue);

impl Lane for FileLane<'_> {
    #[inline(always)]
    fn read_now(&mut self, buf: &mut [u8], at: u64) -> Result<usize> {
        self.0.read_at(self.1, buf, FilePos(at))
    }

    #[inline(always)]
    fn submit(&mut self, buffer: Buffer, at: u64) -> Result<()> {
        self.0
            .submit_read(self.1, buffer, FilePos(at), DioFlags::empty(), 0)
            .map_err(|rejected| rejected.error)
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        self.1.poll()
    }

    #[inline]
    fn wait(&mut self, min: usize) -> Result<()> {
        self.1.wait(min)
    }

    #[inline]
    fn pop(&mut self) -> Option<Result<(Memory, usize)>> {
        let completion = self.1.pop()?;
        Some(completion.result.map(|count| (completion.memory, count)))
    }
}

/// Nothing in it may return across a system call, which can cost more than what is measured.
#[inline(always)]
fn sync_loop<L: Lane>(
    lane: &mut L,
    count: u64,
    buf: &mut [u8],
    base: u64,
    next: &mut impl FnMut() -> u64,
    seen: &mut impl FnMut(&[u8]),
) -> Result<()> {
    for _ in 0..count {
        let at = base + next();
        if lane.read_now(buf, at)? != buf.len() {
            return Err(Error::invalid(format!("short read at {at}")));
        }
        seen(buf);
    }
    Ok(())
}

#[inline(always)]
fn async_loop<L: Lane>(
    lane: &mut L,
    count: u64,
    buffers: &mut Vec<Buffer>,
    batch: Batch,
    base: u64,
    next: &mut impl FnMut() -> u64,
    seen: &mut impl FnMut(&[u8]),
) -> Result<()> {
    let (mut issued, mut done) = (0, 0);
    while done < count {
        let ready = (count - issued).min(batch.submit as u64).min(buffers.len() as u64);
        for _ in 0..ready {
            let Some(buffer) = buffers.pop() else { break };
            lane.submit(buffer, base + next())?;
        }
        issued += ready;
        if buffers.is_empty() || issued == count {
            lane.wait(batch.complete.min((issued - done) as usize))?;
        } else {
            lane.poll()?;
        }
        while let Some(completion) = lane.pop() {
            let (memory, bytes) = completion?;
            let Memory::Flat(buffer) = memory else {
                return Err(Error::invalid("the memory changed its shape"));
            };
            if bytes != buffer.len() {
                return Err(Error::invalid("short read"));
            }
            seen(&buffer);
            buffers.push(buffer);
            done += 1;
        }
    }
    Ok(())
}
