//! A device over another device, with a [`Layer`] between them. The layer sees each request before the device below, and each result before
//! the caller. Examples of layers are [`Sim`](super::Sim), which injects failures, and [`Record`](super::Record), which logs requests.

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    AnyQueue, BlockFile, BoundedQueue, Device, DeviceProtection, DeviceQueue, Drained, InRange,
    LentPart, Limits, QueueOptions, WrongTuple, through_queue, with_below,
};
use crate::bio::slices::{SlicesMut, cut, cut_mut};
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Done};
use crate::error::{Errno, Error, Result};
use crate::units::DevOffset;

/// A request to a layered device, as its [`Layer`] receives it.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// A read of `len` bytes.
    Read {
        /// The position of the first byte.
        at: DevOffset,
        /// The number of bytes.
        len: usize,
    },
    /// A write of several buffers, whose data are contiguous on the device.
    Write {
        /// The position of the first byte.
        at: DevOffset,
        /// The data.
        bufs: &'a [IoSlice<'a>],
        /// Whether the data are durable when the write ends.
        fua: bool,
    },
    /// A flush of all earlier writes.
    Flush,
    /// A discard of a range.
    Discard {
        /// The position of the first byte.
        at: DevOffset,
        /// The number of bytes.
        len: u64,
    },
}

impl Request<'_> {
    /// The number of bytes that the request transfers or discards; 0 for a flush.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Read { len, .. } => *len as u64,
            Self::Write { bufs, .. } => total(bufs) as u64,
            Self::Flush => 0,
            Self::Discard { len, .. } => *len,
        }
    }

    /// Whether the request transfers nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The position on the device; 0 for a flush.
    #[must_use]
    pub fn at(&self) -> DevOffset {
        match self {
            Self::Read { at, .. } | Self::Write { at, .. } | Self::Discard { at, .. } => *at,
            Self::Flush => DevOffset(0),
        }
    }
}

/// A [`Layer`]'s decision about a request.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// The number that identifies the request until it ends.
    pub ticket: u64,
    /// The number of bytes that the device below is to transfer.
    pub len: u64,
    /// The error that the issuer receives, even if bytes were transferred. A flush or discard with an error is not sent to the device
    /// below.
    pub error: Option<Errno>,
}

impl Verdict {
    /// Passes the request to the device below unchanged.
    #[must_use]
    pub fn pass(request: &Request<'_>) -> Self {
        Self { ticket: 0, len: request.len(), error: None }
    }
}

/// A layer between a device and the device below it. All threads and queues of the device share the layer.
pub trait Layer: Send + Sync + 'static {
    /// Returns the limits of this device. `below` contains the limits of the device below.
    fn limits(&self, below: &Limits) -> Limits {
        *below
    }

    /// Returns the size in bytes of this device. `below` is the size of the device below.
    fn size(&self, below: u64) -> u64 {
        below
    }

    /// Returns the number of bytes of this device that exist. `below` is this number for the device below.
    fn stored(&self, below: u64) -> u64 {
        self.size(below)
    }

    /// Decides what happens to a request before the device below receives it.
    fn begin(&self, request: &Request<'_>) -> Verdict;

    /// Checks the data of a read after a complete transfer. If this function returns an error, the issuer receives the error.
    fn verify(&self, at: DevOffset, bufs: &[IoSlice<'_>]) -> Result<(), Errno> {
        let _ = (at, bufs);
        Ok(())
    }

    /// Ends a request. This function is called before the issuer can receive the result. `whole` means that the request had no error and
    /// was not short.
    fn end(&self, ticket: u64, whole: bool) {
        let _ = (ticket, whole);
    }

    /// Returns how long the completion of a bio at the position `at` is delayed before it can be popped. The delay is a number of calls of
    /// [`DeviceQueue::commit`] and [`DeviceQueue::wait`]. `tick` is the number of these calls so far.
    fn delay(&self, at: DevOffset, tick: u64) -> u64 {
        let _ = (at, tick);
        0
    }
}

/// A device over another device, with a layer between them.
#[derive(Debug)]
pub struct Layered<L> {
    below: Arc<dyn Device>,
    limits: Limits,
    pub(super) layer: Arc<L>,
}

impl<L: Layer> Layered<L> {
    /// Puts a layer over a device.
    #[must_use]
    pub fn with_layer(below: Arc<dyn Device>, layer: L) -> Self {
        let limits = layer.limits(below.limits());
        Self { below, limits, layer: Arc::new(layer) }
    }

    /// The device below.
    #[must_use]
    pub fn below(&self) -> &Arc<dyn Device> {
        &self.below
    }

    /// Carries out a synchronous request. `run` receives the number of bytes that the layer permits, and transfers them.
    fn carry(
        &self,
        request: &Request<'_>,
        run: impl FnOnce(&dyn Device, u64) -> Result<()>,
    ) -> Result<()> {
        let verdict = self.layer.begin(request);
        let result = match verdict.error {
            // A call of the device below is never short: it transfers all bytes, or it returns an error.
            None => run(&*self.below, request.len()),
            Some(errno) => {
                if verdict.len > 0 {
                    let _ = run(&*self.below, verdict.len);
                }
                Err(Error::io(errno, format!("{request}")))
            }
        };
        self.layer.end(verdict.ticket, result.is_ok());
        result
    }
}

impl fmt::Display for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { at, .. } => write!(f, "read at {at}"),
            Self::Write { at, .. } => write!(f, "write at {at}"),
            Self::Flush => f.write_str("flush"),
            Self::Discard { at, len } => write!(f, "discard of {len} bytes at {at}"),
        }
    }
}

impl<L: Layer> Device for Layered<L> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.layer.size(self.below.size())
    }

    fn stored(&self) -> u64 {
        self.layer.stored(self.below.stored())
    }

    fn protection(&self) -> Option<&DeviceProtection> {
        self.below.protection()
    }

    fn take_wrong_tuples(&self) -> (Vec<WrongTuple>, u64) {
        self.below.take_wrong_tuples()
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        let request = Request::Read { at, len: buf.len() };
        self.carry(&request, |below, len| {
            below.read_exact_at(&mut buf[..len as usize], at)?;
            let failed = |errno| Error::io(errno, format!("{request}"));
            self.layer.verify(at, &[IoSlice::new(&buf[..len as usize])]).map_err(failed)
        })
    }

    fn is_writable(&self) -> bool {
        self.below.is_writable()
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        _: InRange,
    ) -> Result<()> {
        let request = Request::Write { at, bufs, fua };
        self.carry(&request, |below, len| below.write_all_at(&cut(bufs, 0..len as usize), at, fua))
    }

    fn flush(&self) -> Result<()> {
        self.carry(&Request::Flush, |below, _| below.flush())
    }

    fn discard_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        self.carry(&Request::Discard { at, len }, |below, _| below.discard(at, len))
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Ok(AnyQueue::other(LayeredQueue {
            below: Box::new(self.below.queue(options)?),
            layer: Arc::clone(&self.layer) as Arc<dyn Layer>,
            flying: Vec::new(),
            held: Vec::new(),
            depth: options.slots(),
            tick: 0,
        }))
    }
}

fn is_whole(result: &Result<usize, Errno>, len: u64) -> bool {
    result.is_ok_and(|count| count as u64 == len)
}

/// The total length of the buffers.
fn total(bufs: &[IoSlice<'_>]) -> usize {
    bufs.iter().map(|buf| buf.len()).sum()
}

/// A queue whose layer decides about each request before the device below receives it. The layer may also delay completions.
pub(super) struct LayeredQueue {
    below: Box<BoundedQueue>,
    layer: Arc<dyn Layer>,
    /// The bios in flight in the queue below. There, each bio contains its index in this table instead of the caller's `BioEnd`.
    flying: Vec<Option<Flying>>,
    /// Completions. Each is stored with the value that `tick` must reach before the completion can be popped.
    held: Vec<(u64, Option<u64>, Done)>,
    depth: usize,
    tick: u64,
}

struct Flying {
    end: BioEnd,
    /// The number by which the layer identifies the request. `None` for a request to an attached file, because such requests bypass the
    /// layer.
    ticket: Option<u64>,
}

impl LayeredQueue {
    /// Pops the completions of the device below, and assigns a delay to each of them.
    fn collect(&mut self) {
        self.tick += 1;
        while let Some(mut done) = self.below.pop() {
            let BioEnd::Part { request: place, .. } = done.bio.end else { continue };
            let Some(flying) = self.flying.get_mut(place as usize).and_then(Option::take) else {
                continue;
            };
            done.bio.end = flying.end;
            self.hold(flying.ticket, done);
        }
    }

    fn hold(&mut self, ticket: Option<u64>, mut done: Done) {
        if done.bio.op == BioOp::Read {
            let bufs: SmallVec<[_; 2]> =
                done.bio.memory.buffers().iter().map(|buf| IoSlice::new(buf)).collect();
            done.result = self.verified(done.bio.dev, done.result, done.bio.at, &bufs);
        }
        let from = self.tick + self.layer.delay(done.bio.at, self.tick);
        self.held.push((from, ticket, done));
    }

    /// Submits a bio unchanged to the device below.
    fn send(&mut self, mut bio: Bio, ticket: Option<u64>) -> Result<(), Bio> {
        let place = self.flying.iter().position(Option::is_none).unwrap_or(self.flying.len());
        if place == self.flying.len() {
            self.flying.push(None);
        }
        let end = std::mem::replace(&mut bio.end, BioEnd::Part { request: place as u32, part: 0 });
        self.flying[place] = Some(Flying { end, ticket });
        self.below.submit(bio).map_err(|mut bio| {
            bio.end = end;
            self.flying[place] = None;
            bio
        })
    }

    /// Returns the result of a read. After a complete transfer, the layer checks the data first.
    fn verified(
        &self,
        dev: Dev,
        result: Result<usize, Errno>,
        at: DevOffset,
        bufs: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        if dev == Dev::OWN && is_whole(&result, total(bufs) as u64) {
            self.layer.verify(at, bufs)?;
        }
        result
    }

    /// Carries out a request with borrowed memory. `run` receives the number of bytes that the layer permits, and transfers them.
    fn carry(
        &mut self,
        dev: Dev,
        request: &Request<'_>,
        run: impl FnOnce(&mut BoundedQueue, usize) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        if dev != Dev::OWN {
            return run(&mut self.below, request.len() as usize);
        }
        let verdict = self.layer.begin(request);
        let result = self.carry_judged(verdict, request, run);
        self.layer.end(verdict.ticket, is_whole(&result, request.len()));
        result
    }

    fn carry_judged(
        &mut self,
        verdict: Verdict,
        request: &Request<'_>,
        run: impl FnOnce(&mut BoundedQueue, usize) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let result = match verdict.error {
            Some(_) if verdict.len == 0 => Ok(0),
            _ => run(&mut self.below, verdict.len.min(request.len()) as usize),
        };
        verdict.error.map_or(result, Err)
    }

    fn ready(&self) -> usize {
        self.held.iter().filter(|(from, ..)| *from <= self.tick).count()
    }
}

/// Calls the device below once for a read into borrowed buffers.
fn read_below(
    below: &mut BoundedQueue,
    dev: Dev,
    bufs: SlicesMut<'_>,
    at: DevOffset,
    flags: BioFlags,
) -> Result<usize, Errno> {
    let mut part = [LentPart::new(bufs, at)];
    below.read_parts_now(dev, &mut part, flags);
    part[0].result
}

impl DeviceQueue for LayeredQueue {
    through_queue!(resources, with_below);

    fn read_now(
        &mut self,
        dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let request = Request::Read { at, len: buf.len() };
        let result =
            self.carry(dev, &request, |below, len| below.read_now(dev, &mut buf[..len], at, flags));
        self.verified(dev, result, at, &[IoSlice::new(buf)])
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        for part in parts {
            let (at, len) = (part.at, part.len());
            let bufs = &mut part.bufs;
            part.result = self.carry(dev, &Request::Read { at, len }, |below, len| {
                read_below(below, dev, cut_mut(bufs, 0..len), at, flags)
            });
            let bufs: SmallVec<[_; 2]> = part.bufs.iter().map(|buf| IoSlice::new(buf)).collect();
            part.result = self.verified(dev, part.result, at, &bufs);
        }
    }

    fn write_now(
        &mut self,
        dev: Dev,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let request = Request::Write { at, bufs, fua: flags.contains(BioFlags::DSYNC) };
        self.carry(dev, &request, |below, len| below.write_now(dev, &cut(bufs, 0..len), at, flags))
    }

    fn flush_now(&mut self, dev: Dev) -> Result<(), Errno> {
        self.carry(dev, &Request::Flush, |below, _| below.flush_now(dev).map(|()| 0)).map(drop)
    }

    fn room(&self) -> usize {
        (self.depth - self.in_flight()).min(self.below.room())
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.below.in_flight()
    }

    fn submit(&mut self, mut bio: Bio) -> Result<(), Bio> {
        // This code first checks that a slot is free. Each request that the layer sees must also end, but a request that is refused here
        // never ends.
        if self.room() == 0 {
            return Err(bio);
        }
        if bio.dev != Dev::OWN {
            return self.send(bio, None);
        }
        let (at, flags) = (bio.at, bio.flags);
        if bio.op == BioOp::Read {
            let len = bio.memory.len();
            let request = Request::Read { at, len };
            let verdict = self.layer.begin(&request);
            if verdict.error.is_none() && verdict.len == len as u64 {
                return self.send(bio, Some(verdict.ticket));
            }
            let result = self.carry_judged(verdict, &request, |below, len| {
                let bufs = cut_mut(bio.memory.buffers_mut(), 0..len);
                read_below(below, Dev::OWN, bufs, at, flags)
            });
            self.hold(Some(verdict.ticket), Done { bio, result });
            return Ok(());
        }
        let bufs: SmallVec<[_; 2]> =
            bio.memory.buffers().iter().map(|buf| IoSlice::new(buf)).collect();
        let request = match bio.op {
            BioOp::Flush => Request::Flush,
            _ => Request::Write { at, bufs: &bufs, fua: flags.contains(BioFlags::DSYNC) },
        };
        let verdict = self.layer.begin(&request);
        if verdict.error.is_none() && verdict.len == request.len() {
            drop(bufs);
            return self.send(bio, Some(verdict.ticket));
        }
        let result = self.carry_judged(verdict, &request, |below, len| {
            below.write_now(Dev::OWN, &cut(&bufs, 0..len), at, flags)
        });
        drop(bufs);
        self.hold(Some(verdict.ticket), Done { bio, result });
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Errno> {
        let committed = self.below.commit();
        // If the device below does not accept a bio, its queue returns the bio as a completion with the error.
        self.collect();
        committed
    }

    fn wait(&mut self, min: usize) -> Result<(), Errno> {
        let min = min.min(self.in_flight());
        if self.ready() >= min {
            return self.commit();
        }
        while self.ready() < min {
            let flying = self.below.in_flight();
            let waited = self.below.wait(flying.min(1));
            self.collect();
            waited?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Drained {
        self.held.clear();
        self.below.drain()
    }

    fn pop(&mut self) -> Option<Done> {
        let at = self.held.iter().position(|(from, ..)| *from <= self.tick)?;
        let (_, ticket, done) = self.held.remove(at);
        if let Some(ticket) = ticket {
            self.layer.end(ticket, is_whole(&done.result, done.bio.memory.len() as u64));
        }
        Some(done)
    }
}
