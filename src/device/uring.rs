//! io_uring: batched requests, registered files and buffers, polling if the device supports it, and NVMe commands.

use std::io::IoSlice;
use std::sync::Arc;

use smallvec::SmallVec;

use super::files::{Entry, FileRanges, Files};
use super::immediate::run;
use super::nvme::Namespace;
use super::psync::rw_flags;
use super::through_file::through_file;
use super::{
    AnyQueue, BlockFile, Device, DeviceProtection, DeviceQueue, Drained, Engine, InRange, LentPart,
    Limits, QueueOptions, Transfer as _,
};
use crate::bio::slices::cut_mut;
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Done, Memory, Whole};
use crate::error::{Errno, Error, Result};
use crate::sys::{Passenger, Request, Ring, RingFile, RingOp, RingOptions, Transfer, Width};
use crate::units::DevOffset;

/// A call with at most this number of transfers allocates no memory.
const TOGETHER: usize = 64;

/// The options of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UringOptions {
    /// The ring polls for completions. If the device has no poll queues ([`Limits::poll`] is false), this option is ignored.
    pub poll: bool,
    /// If set, a kernel thread submits requests (SQPOLL), and sleeps after this many milliseconds without work.
    pub sqpoll_idle: Option<u32>,
}

/// A block device or image whose requests use io_uring.
///
/// The device should support NOWAIT. Without NOWAIT, the kernel passes every request to a worker thread, and [`Psync`](super::Psync) is
/// faster. Requests to an NVMe namespace that was opened through its character device are NVMe commands.
#[derive(Debug)]
pub struct Uring {
    file: Arc<BlockFile>,
    options: UringOptions,
}

impl Uring {
    /// Creates the device over an open file.
    #[must_use]
    pub fn new(file: Arc<BlockFile>, options: UringOptions) -> Self {
        Self { file, options }
    }
}

impl Device for Uring {
    through_file!();

    fn limits(&self) -> &Limits {
        self.file.limits()
    }

    fn protection(&self) -> Option<&DeviceProtection> {
        self.file.protection()
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Ok(match self.file.namespace() {
            Some(_) => AnyQueue::Nvme(self.ring_queue(options)?),
            None => AnyQueue::Uring(self.ring_queue(options)?),
        })
    }
}

impl Uring {
    fn ring_queue<W: Width>(&self, options: &QueueOptions) -> Result<UringQueue<W>> {
        let poll = self.options.poll && self.file.limits().poll;
        let mut queue = UringQueue::new(UringOptions { poll, ..self.options }, options)?;
        let own = queue.route(&self.file, true);
        queue.files = Files::new(Some((Arc::clone(&self.file), own)));
        Ok(queue)
    }
}

/// A bio without its memory. The ring stores the memory separately.
pub(super) struct Attached {
    op: BioOp,
    flags: BioFlags,
    dev: Dev,
    at: DevOffset,
    end: BioEnd,
}

impl Passenger for Attached {}

impl Attached {
    pub(super) fn op(&self) -> BioOp {
        self.op
    }

    #[inline]
    pub(super) fn split(bio: Bio) -> (Self, Memory) {
        let Bio { op, flags, dev, at, memory, end } = bio;
        (Self { op, flags, dev, at, end }, memory)
    }

    #[inline]
    pub(super) fn join(self, memory: Memory) -> Bio {
        let Self { op, flags, dev, at, end } = self;
        Bio { op, flags, dev, at, memory, end }
    }
}

/// The ring of one thread, and the files to which it sends requests. NVMe commands need the larger ring entries (128 bytes for a
/// submission, 32 bytes for a completion).
#[allow(private_bounds, reason = "the trait is implemented for two entry sizes only")]
pub struct UringQueue<W: Width> {
    ring: Ring<Attached, W>,
    files: Files<Route>,
    poll: bool,
}

/// How a ring sends requests to a file.
#[derive(Clone, Copy)]
struct Route {
    file: RingFile,
    /// Whether a synchronous request is faster than a queued request. This is true for a file without NOWAIT, because the kernel passes
    /// queued requests for this file to a worker thread.
    at_once: bool,
}

#[allow(private_bounds, reason = "the trait is implemented for two entry sizes only")]
impl<W: Width> UringQueue<W> {
    /// Creates a queue that serves no file yet.
    pub(super) fn new(options: UringOptions, queue: &QueueOptions) -> Result<Self> {
        let ring = RingOptions {
            entries: queue.slots() as u32,
            iopoll: options.poll,
            sqpoll_idle: options.sqpoll_idle,
        };
        let ring = Ring::new(ring).map_err(|errno| Error::io(errno, "io_uring"))?;
        Ok(Self { ring, files: Files::new(None), poll: options.poll })
    }

    pub(super) fn engine(&self) -> Engine {
        if self.poll { Engine::IoUringPoll } else { Engine::IoUring }
    }

    fn route(&mut self, file: &BlockFile, lasting: bool) -> Route {
        let at_once = !file.limits().nowait || self.poll && !file.limits().poll;
        let namespace = file.namespace().filter(|_| W::COMMANDS);
        let fd = namespace.map_or(file.fd(), Namespace::fd);
        let to = if lasting { self.ring.register_file(fd) } else { RingFile::descriptor(fd) };
        let file = match namespace {
            Some(namespace) => to.with_namespace(namespace.id()),
            None => to,
        };
        Route { file, at_once }
    }

    /// The file that is the queue's own device.
    pub(super) fn own(&self) -> Option<&Arc<BlockFile>> {
        self.files.own()
    }

    /// Replaces the queue's own device by ranges of files, of which that device is the first.
    pub(super) fn divide(&mut self, ranges: FileRanges) {
        let others = ranges.files().iter().skip(1);
        let routes: Vec<_> = others.map(|file| self.route(file, true)).collect();
        self.files.divide(ranges, routes);
    }

    /// Whether a request to a namespace is sent to the block device instead of as a command. There are two cases. First, a command cannot
    /// describe the request. Second, the request is a write although the device was opened read-only. This write must fail, but as a
    /// command it would succeed, because root may send any command through a read-only character device.
    #[inline]
    fn is_no_command(file: &BlockFile, bio: &Bio, at: DevOffset) -> bool {
        file.namespace().is_some_and(|namespace| {
            let (at, memory) = (file.absolute(at), &bio.memory);
            bio.op != BioOp::Flush && !namespace.carries(at, memory.len(), memory.buffers().len())
                || bio.op == BioOp::Write && !file.is_writable()
        })
    }

    /// Whether a request is carried out before its submission returns.
    #[inline(always)]
    fn is_at_once((file, route): &Entry<Route>, bio: &Bio, at: DevOffset) -> bool {
        route.at_once || W::COMMANDS && Self::is_no_command(file, bio, at)
    }

    /// Submits a request to the ranges of files that form the queue's own device. The function is not inlined, so that a device that is one file needs no more instructions.
    #[inline(never)]
    fn submit_in_range(&mut self, bio: Bio) -> Result<(), Bio> {
        match self.files.place_in_range(bio.dev, bio.op, bio.at, bio.memory.len()) {
            Some((entry, at)) if !Self::is_at_once(entry, &bio, at) => {
                push(&mut self.ring, entry, bio, at)
            }
            _ => self.submit_at_once(bio),
        }
    }

    /// Carries out a bio before the call returns.
    #[cold]
    fn submit_at_once(&mut self, mut bio: Bio) -> Result<(), Bio> {
        if self.ring.room() == 0 {
            return Err(bio);
        }
        let result = run(&mut self.files.on(bio.dev), &mut bio);
        let raw = result.map_or_else(|errno| -errno.0, |count| count as i32);
        let (attached, memory) = Attached::split(bio);
        let refused = self.ring.push_complete(memory, attached, raw);
        refused.map_err(|(memory, attached)| attached.join(memory))
    }
}

pub(super) fn result(raw: i32) -> Result<usize, Errno> {
    usize::try_from(raw).map_err(|_| Errno(-raw))
}

/// The flags of a request in the ring. The flag HIPRI is not needed, because a ring that was created with IOPOLL polls for all
/// completions.
fn ring_flags(flags: BioFlags) -> i32 {
    rw_flags(flags, false).bits() as i32
}

/// Queues a request to a file. The bio keeps its own position, which may be a position in ranges of files.
#[inline(always)]
fn push<W: Width>(
    ring: &mut Ring<Attached, W>,
    (file, route): &Entry<Route>,
    bio: Bio,
    at: DevOffset,
) -> Result<(), Bio> {
    let op = match bio.op {
        BioOp::Read => RingOp::Read,
        BioOp::Write => RingOp::Write,
        BioOp::Flush => RingOp::Flush,
    };
    let rw_flags = if bio.flags.concern_device() { ring_flags(bio.flags) } else { 0 };
    let request = Request { file: route.file, op, at: file.absolute(at), rw_flags };
    let (attached, memory) = Attached::split(bio);
    ring.push(request, memory, attached).map_err(|(memory, attached)| attached.join(memory))
}

/// A failed request in its slot of the ring. If it is a read whose range can be read in an alternative way, repeats the read. Returns the
/// result of the request, as of a system call.
#[cold]
#[inline(never)]
fn failed<T>(files: &Files<T>, request: &mut Option<(Memory, Attached)>, raw: i32) -> i32 {
    let Some((memory, Attached { op: BioOp::Read, flags, dev, at, .. })) = request else {
        return raw;
    };
    let len = memory.len();
    let mut bufs = cut_mut(memory.buffers_mut(), 0..len);
    let again = files.failed_read(*dev, &mut bufs, *at, *flags, Errno(-raw));
    again.map_or_else(|errno| -errno.0, |count| count as i32)
}

/// Forwards methods of [`DeviceQueue`] to a field `ring`.
macro_rules! through_ring {
    () => {
        #[inline]
        fn room(&self) -> usize {
            self.ring.room()
        }

        #[inline]
        fn in_flight(&self) -> usize {
            self.ring.in_flight()
        }

        #[inline]
        fn commit(&mut self) -> Result<(), Errno> {
            self.ring.wait(0)
        }

        fn readiness(&mut self) -> Result<std::os::fd::OwnedFd, Errno> {
            self.ring.readiness()
        }

        #[inline]
        fn wait(&mut self, min: usize) -> Result<(), Errno> {
            self.ring.wait(min.min(self.ring.in_flight()))
        }

        #[inline]
        fn take_fresh(&mut self) -> bool {
            self.ring.take_fresh()
        }

        fn register_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, Errno> {
            self.ring.register(count, size)
        }

        fn register_memory(&mut self, buffer: &mut Buffer) -> Result<(), Errno> {
            self.ring.register_whole(buffer)
        }

        fn register_one(&mut self, buffer: &mut Buffer) {
            self.ring.register_one(buffer);
        }

        fn unregister_one(&mut self, buffer: &mut Buffer) {
            self.ring.unregister_one(buffer);
        }
    };
}
pub(super) use through_ring;

#[allow(private_bounds, reason = "the trait is implemented for two entry sizes only")]
impl<W: Width> DeviceQueue for UringQueue<W> {
    through_ring!();

    /// A synchronous request is one system call. It does not use the ring.
    #[inline(always)]
    fn read_now(
        &mut self,
        dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        self.files.on(dev).read(buf, at, flags)
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        let ready = |part: &LentPart<'_>| {
            let placed = self.files.place(dev, BioOp::Read, part.at, part.len());
            let ((file, route), at) = placed.filter(|((_, route), _)| !route.at_once)?;
            let at = file.absolute(at);
            let namespace = file.namespace().filter(|_| W::COMMANDS);
            let is_ready = namespace.is_none_or(|it| it.carries(at, part.len(), part.bufs.len()));
            is_ready.then_some((route.file, at))
        };
        let places: Option<SmallVec<[_; TOGETHER]>> = parts.iter().map(ready).collect();
        let Some(places) = places.filter(|_| parts.len() > 1) else {
            for part in parts {
                part.result = self.files.on(dev).read_vectored(&mut part.bufs, part.at, flags);
            }
            return;
        };
        let mut lent: SmallVec<[Transfer<'_, '_>; TOGETHER]> = (parts.iter_mut().zip(places))
            .map(|(part, (file, at))| Transfer::new(&mut part.bufs, file, at))
            .collect();
        self.ring.transfer_now(RingOp::Read, ring_flags(flags), &mut lent);
        let results: SmallVec<[i32; TOGETHER]> =
            lent.iter().map(|transfer| transfer.result).collect();
        drop(lent);
        for (part, raw) in parts.iter_mut().zip(results) {
            part.result = match result(raw) {
                Err(errno) => self.files.failed_read(dev, &mut part.bufs, part.at, flags, errno),
                result => result,
            };
        }
    }

    #[inline(always)]
    fn write_now(
        &mut self,
        dev: Dev,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        self.files.on(dev).write(bufs, at, flags)
    }

    fn flush_now(&mut self, dev: Dev) -> Result<(), Errno> {
        self.files.on(dev).flush()
    }

    fn attach(&mut self, file: &Arc<BlockFile>, lasting: bool) -> Result<Dev, Errno> {
        let route = self.route(file, lasting);
        Ok(self.files.attach(file, route))
    }

    fn detach(&mut self, dev: Dev) {
        if let Some((_, route)) = self.files.detach(dev) {
            self.ring.unregister_file(route.file);
        }
    }

    #[inline(always)]
    fn submit(&mut self, bio: Bio) -> Result<(), Bio> {
        let Ok(entry) = self.files.get(bio.dev) else { return self.submit_in_range(bio) };
        if Self::is_at_once(entry, &bio, bio.at) {
            return self.submit_at_once(bio);
        }
        let at = bio.at;
        push(&mut self.ring, entry, bio, at)
    }

    fn drain(&mut self) -> Drained {
        self.ring.drain();
        let drained = Drained::with(self.ring.attached().map(Attached::op));
        if drained != Drained::Ended {
            self.files.leak();
        }
        drained
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<Done> {
        let files = &self.files;
        self.ring.pop_by(|request, raw| {
            let raw = if raw < 0 { failed(files, request, raw) } else { raw };
            let (memory, attached) = request.take()?;
            Some(Done { bio: attached.join(memory), result: result(raw) })
        })?
    }

    #[inline(always)]
    fn pop_whole(&mut self) -> Option<Result<Whole, Done>> {
        let files = &self.files;
        self.ring.pop_by(|request, raw| {
            let (memory, Attached { end, .. }) = request.as_ref()?;
            let whole = end.whole().filter(|_| result(raw) == Ok(memory.len()));
            // This code moves only the memory of the bio out of the bio's slot in the ring. The other fields stay in the slot, because
            // moving them costs instructions.
            let Some((token, slot)) = whole else {
                let raw = if raw < 0 { failed(files, request, raw) } else { raw };
                let (memory, attached) = request.take()?;
                return Some(Err(Done { bio: attached.join(memory), result: result(raw) }));
            };
            let (memory, _) = request.take()?;
            Some(Ok(Whole { token, slot, memory }))
        })?
    }
}

impl<W: Width> Drop for UringQueue<W> {
    fn drop(&mut self) {
        self.drain();
    }
}
