//! A device that stores protection information. Each request transfers the tuples of its sectors with the data. For a write, the tuples are
//! computed from the memory; for a read, they are compared with the data in memory. So any change of the data between memory and medium is
//! detected.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, PoisonError};

use super::immediate::run;
use super::psync::{OneFile, rw_flags};
use super::runs::{each_run, verify_run};
use super::through_file::through_file;
use super::uring::{Attached, UringOptions, result, through_ring};
use super::{
    AnyQueue, BlockFile, Device, DeviceProtection, DeviceQueue, Drained, InRange, LentPart, Limits,
    QueueOptions, Transfer as _, WrongTuple,
};
use crate::bio::slices::within;
use crate::bio::{Bio, BioFlags, BioOp, Buffer, Dev, Done};
use crate::error::{Errno, Error, Result};
use crate::protection::Protection;
use crate::sys::{
    Checks, Narrow, Passenger, Request, Ring, RingFile, RingOp, RingOptions, Transfer, Tuples,
    Wide, Width,
};
use crate::units::DevOffset;

/// The largest number of sectors with wrong tuples that are stored until a caller takes them. Beyond this number, the oldest are dropped.
const KEPT: usize = 1024;

/// A block device or the character device of an NVMe namespace. Requests transfer protection information through io_uring.
///
/// If the data of a read do not match their tuples, the read fails with EILSEQ, and [`Device::take_wrong_tuples`] reports the sector. The
/// device also checks the tuples of each write before it accepts the write. Two kinds of requests contain no tuples: requests for metadata,
/// and the requests of a transfer that does not fit into one request. For these requests, the kernel computes and verifies the tuples.
#[derive(Debug)]
pub struct Protected {
    file: Arc<BlockFile>,
    options: UringOptions,
    limits: Limits,
    shared: Arc<Shared>,
}

/// The state that all queues of a device share.
#[derive(Debug)]
struct Shared {
    info: DeviceProtection,
    tuples: Protection,
    found: Mutex<(VecDeque<WrongTuple>, u64)>,
}

impl Protected {
    /// Creates the device over an open file. Returns `None` if the device has no protection information that this crate can compute, or if
    /// the kernel accepts no tuples with a request. Linux accepts tuples for block devices since 6.14. Commands to an NVMe namespace can
    /// always contain tuples.
    ///
    /// # Errors
    /// `Io` if io_uring is not available.
    pub fn new(file: &Arc<BlockFile>, options: UringOptions) -> Result<Option<Self>> {
        let (Some(info), true) = (file.protection(), file.limits().direct) else { return Ok(None) };
        let Some(tuples) = info.tuples else { return Ok(None) };
        let room = (Tuples::ROOM / tuples.kind.bytes() * tuples.interval.bytes()) as u32;
        let limits = *file.limits();
        let limits = Limits { max_transfer: limits.max_transfer.min(room), ..limits };
        let info = DeviceProtection { carried: true, ..info.clone() };
        let shared = Arc::new(Shared { info, tuples, found: Mutex::default() });
        let device = Self { file: Arc::clone(file), options, limits, shared };
        let carried = match file.protected_namespace() {
            Some(_) => device.ring_queue::<Wide>(1)?.are_carried(),
            None => device.ring_queue::<Narrow>(1)?.are_carried(),
        };
        Ok(carried.then_some(device))
    }

    fn ring_queue<W: Width>(&self, slots: usize) -> Result<ProtectedQueue<W>> {
        let failed = |errno| Error::io(errno, "io_uring");
        let ring = RingOptions {
            entries: slots as u32,
            iopoll: self.options.poll && self.limits.poll,
            sqpoll_idle: self.options.sqpoll_idle,
        };
        let mut ring = Ring::new(ring).map_err(failed)?;
        let namespace = self.file.protected_namespace();
        let to = ring.register_file(namespace.map_or(self.file.fd(), |namespace| namespace.fd()));
        // Each bio in flight needs a set of tuples. A synchronous request needs one more set.
        let free = Tuples::slab(ring.room() + 1).map_err(failed)?;
        Ok(ProtectedQueue {
            to: namespace.map_or(to, |namespace| to.with_namespace(namespace.id())),
            ring,
            free,
            parted: Vec::new(),
            bounce: None,
            file: Arc::clone(&self.file),
            limits: self.limits,
            shared: Arc::clone(&self.shared),
        })
    }
}

impl Device for Protected {
    through_file!();

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn protection(&self) -> Option<&DeviceProtection> {
        Some(&self.shared.info)
    }

    fn take_wrong_tuples(&self) -> (Vec<WrongTuple>, u64) {
        let mut found = self.shared.found.lock().unwrap_or_else(PoisonError::into_inner);
        let (found, dropped) = std::mem::take(&mut *found);
        (found.into(), dropped)
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        let slots = options.slots();
        Ok(match self.file.protected_namespace() {
            Some(_) => AnyQueue::other(self.ring_queue::<Wide>(slots)?),
            None => AnyQueue::other(self.ring_queue::<Narrow>(slots)?),
        })
    }
}

/// A bio with its tuples. The data memory of the bio is stored separately.
struct Carried {
    bio: Attached,
    tuples: Tuples,
}

impl Passenger for Carried {
    #[inline]
    fn tuples(&mut self) -> Option<&mut Tuples> {
        // A flush has no data, so it has no tuples.
        (!self.tuples.is_empty()).then_some(&mut self.tuples)
    }
}

/// A thread's ring, and the tuples of its requests.
struct ProtectedQueue<W: Width> {
    ring: Ring<Carried, W>,
    to: RingFile,
    free: Vec<Tuples>,
    /// The memory in which a protection interval (the data that one tuple protects) is assembled if its bytes are in several buffers.
    parted: Vec<u8>,
    /// The bounce buffer for writes from memory that a caller lends. Another thread could change the lent memory, and the tuples would then
    /// not match the data.
    bounce: Option<Buffer>,
    file: Arc<BlockFile>,
    limits: Limits,
    shared: Arc<Shared>,
}

impl<W: Width> ProtectedQueue<W> {
    /// Determines by trial reads whether the kernel transfers tuples with requests. A kernel that does not transfer tuples leaves the
    /// memory for the tuples unchanged.
    fn are_carried(&mut self) -> bool {
        let len = self.limits.logical_block as usize;
        let (Ok(mut block), Some(mut tuples)) = (Buffer::aligned(len), self.free.pop()) else {
            return false;
        };
        let tuples_len = self.tuples_len(len);
        let changed = [0x5A, 0xA5].into_iter().any(|unchanged| {
            tuples.begin(0, tuples_len, Checks::empty()).fill(unchanged);
            let mut bufs = [IoSliceMut::new(&mut block)];
            let mut transfer = [Transfer::new(&mut bufs, self.to, 0).with_tuples(&mut tuples)];
            self.ring.transfer_now(RingOp::Read, 0, &mut transfer);
            let [Transfer { result, .. }] = transfer;
            result == len as i32 && tuples.iter().any(|byte| *byte != unchanged)
        });
        self.free.push(tuples);
        changed
    }

    fn tuples_len(&self, len: usize) -> usize {
        let Protection { kind, interval, .. } = self.shared.tuples;
        len / interval.bytes() * kind.bytes()
    }

    fn first(&self, at: DevOffset) -> u64 {
        self.file.absolute(at) / self.shared.tuples.interval.bytes() as u64
    }

    /// Whether one request can transfer these bytes with their tuples. If not, the kernel computes and verifies the tuples.
    fn carries(&self, at: DevOffset, len: usize, buffers: usize) -> bool {
        let unit = self.limits.logical_block as u64;
        let at = self.file.absolute(at);
        let namespace = self.file.protected_namespace();
        len > 0
            && len <= self.limits.max_transfer as usize
            && at.is_multiple_of(unit)
            && (len as u64).is_multiple_of(unit)
            && namespace.is_none_or(|namespace| namespace.carries(at, len, buffers))
    }

    fn flags(&self, flags: BioFlags) -> i32 {
        // A request in a ring needs no flag HIPRI, because a ring that was created with IOPOLL polls for all completions.
        rw_flags(flags, false).bits() as i32
    }

    /// Computes the tuples of a write. The device checks them.
    fn encode<'a>(
        &mut self,
        tuples: &mut Tuples,
        at: DevOffset,
        len: usize,
        bufs: impl Iterator<Item = &'a [u8]>,
    ) {
        let (protection, first) = (self.shared.tuples, self.first(at));
        let bytes = protection.kind.bytes();
        let checks = Checks::GUARD | Checks::REFERENCE;
        let memory = tuples.begin(first, self.tuples_len(len), checks);
        let Ok(()) = each_run(protection, &mut self.parted, bufs, |index, data| {
            let count = data.len() / protection.interval.bytes();
            let tuples = &mut memory[index * bytes..(index + count) * bytes];
            protection.encode(data, first + index as u64, 0, tuples);
            Ok::<_, Infallible>(())
        });
    }

    /// Compares the data of a read with their tuples. The device is not asked to make this check, because it would not report which field
    /// of a tuple is wrong.
    fn verify<'a>(
        &mut self,
        tuples: &Tuples,
        bufs: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Errno> {
        let protection = self.shared.tuples;
        let bytes = protection.kind.bytes();
        let verified = each_run(protection, &mut self.parted, bufs, |index, data| {
            let count = data.len() / protection.interval.bytes();
            let run = &tuples[index * bytes..(index + count) * bytes];
            verify_run(protection, data, run, tuples.first() + index as u64)
        });
        verified.map_err(|mismatch| {
            let sector = mismatch.sector;
            self.report(WrongTuple { sector, mismatch: Some(mismatch) })
        })
    }

    /// Finds and records the first sector that a SCSI disk refuses to read, by bisection. A SCSI disk checks the tuples of every read, even
    /// if the request does not ask for a check. If the disk refuses no sector during this search, no sector is recorded.
    #[cold]
    fn locate(&mut self, at: DevOffset, len: usize) {
        let unit = self.limits.logical_block as usize;
        let (Ok(mut scratch), Some(mut tuples)) = (Buffer::aligned(len), self.free.pop()) else {
            return;
        };
        let mut refused = |at: DevOffset, len: usize| {
            tuples.begin(self.first(at), self.tuples_len(len), Checks::empty());
            let mut bufs = [IoSliceMut::new(&mut scratch[..len])];
            let absolute = self.file.absolute(at);
            let mut transfer =
                [Transfer::new(&mut bufs, self.to, absolute).with_tuples(&mut tuples)];
            self.ring.transfer_now(RingOp::Read, 0, &mut transfer);
            transfer[0].result == -Errno::EILSEQ.0
        };
        let (mut at, mut len) = (at, len);
        while len > unit {
            let half = (len / unit).div_ceil(2) * unit;
            if refused(at, half) {
                len = half;
            } else {
                (at, len) = (DevOffset(at.0 + half as u64), len - half);
            }
        }
        let is_it = refused(at, len);
        self.free.push(tuples);
        if is_it {
            self.report(WrongTuple { sector: self.first(at), mismatch: None });
        }
    }

    #[cold]
    fn report(&self, wrong: WrongTuple) -> Errno {
        let mut found = self.shared.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.0.len() == KEPT {
            found.0.pop_front();
            found.1 += 1;
        }
        found.0.push_back(wrong);
        Errno::EILSEQ
    }

    /// Reads parts that each fit into one request. The number of free sets of tuples limits the number of parts in flight.
    fn read_carried(&mut self, parts: &mut [&mut LentPart<'_>], flags: BioFlags) {
        let (mut tuples, mut refused) = (std::mem::take(&mut self.free), Vec::new());
        let rw_flags = self.flags(flags);
        let to = self.to;
        for parts in parts.chunks_mut(tuples.len().max(1)) {
            for (part, tuples) in parts.iter().zip(&mut tuples) {
                let (first, len) = (self.first(part.at), self.tuples_len(part.len()));
                tuples.begin(first, len, Checks::empty());
            }
            let lend = |(part, tuples)| {
                let part: &mut &mut LentPart<'_> = part;
                let at = self.file.absolute(part.at);
                Transfer::new(&mut part.bufs, to, at).with_tuples(tuples)
            };
            let mut lent: Vec<_> = parts.iter_mut().zip(&mut tuples).map(lend).collect();
            self.ring.transfer_now(RingOp::Read, rw_flags, &mut lent);
            let results: Vec<i32> = lent.iter().map(|transfer| transfer.result).collect();
            drop(lent);
            for ((part, tuples), raw) in parts.iter_mut().zip(&tuples).zip(results) {
                part.result = result(raw).and_then(|count| {
                    self.verify(tuples, within(&part.bufs, 0..count))?;
                    Ok(count)
                });
                if raw == -Errno::EILSEQ.0 {
                    refused.push((part.at, part.len()));
                }
            }
        }
        self.free = tuples;
        for (at, len) in refused {
            self.locate(at, len);
        }
    }

    /// Carries out a bio before the call returns. The request contains no tuples.
    #[cold]
    fn submit_at_once(&mut self, mut bio: Bio) -> Result<(), Bio> {
        let Some(tuples) = self.free.pop().filter(|_| self.ring.room() > 0) else {
            return Err(bio);
        };
        let result = match bio.dev {
            Dev::OWN => run(&mut OneFile(&self.file), &mut bio),
            _ => Err(Errno::EBADF),
        };
        let raw = result.map_or_else(|errno| -errno.0, |count| count as i32);
        self.push_complete(bio, tuples, raw)
    }

    fn push_complete(&mut self, bio: Bio, mut tuples: Tuples, raw: i32) -> Result<(), Bio> {
        tuples.begin(0, 0, Checks::empty());
        let (bio, memory) = Attached::split(bio);
        let refused = self.ring.push_complete(memory, Carried { bio, tuples }, raw);
        refused.map_err(|(memory, carried)| self.give_back(carried, memory))
    }

    fn give_back(&mut self, Carried { bio, tuples }: Carried, memory: crate::bio::Memory) -> Bio {
        self.free.push(tuples);
        bio.join(memory)
    }
}

impl<W: Width> DeviceQueue for ProtectedQueue<W> {
    through_ring!();

    fn read_now(
        &mut self,
        dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let mut part = [LentPart::new(smallvec::smallvec![IoSliceMut::new(buf)], at)];
        self.read_parts_now(dev, &mut part, flags);
        let [part] = part;
        part.result
    }

    fn read_parts_now(&mut self, dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        let mut carried: smallvec::SmallVec<[&mut LentPart<'_>; 2]> = smallvec::SmallVec::new();
        for part in parts {
            if dev != Dev::OWN {
                part.result = Err(Errno::EBADF);
            } else if self.carries(part.at, part.len(), part.bufs.len()) {
                carried.push(part);
            } else {
                part.result = OneFile(&self.file).read_vectored(&mut part.bufs, part.at, flags);
            }
        }
        self.read_carried(&mut carried, flags);
    }

    /// Copies as many bytes as fit into one request to a bounce buffer, and writes the buffer.
    fn write_now(
        &mut self,
        dev: Dev,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        if dev != Dev::OWN {
            return Err(Errno::EBADF);
        }
        let most = self.limits.max_transfer as usize;
        let all: usize = bufs.iter().map(|buf| buf.len()).sum();
        let len = all.min(most);
        if !self.carries(at, len, 1) || all > most && flags.contains(BioFlags::ATOMIC) {
            return OneFile(&self.file).write(bufs, at, flags);
        }
        let mut copy = match self.bounce.take() {
            Some(bounce) => bounce,
            None => Buffer::aligned(most).map_err(|_| Errno::ENOMEM)?,
        };
        let mut done = 0;
        for piece in within(bufs, 0..len) {
            copy[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
        }
        let mut tuples = self.free.pop().ok_or(Errno::EAGAIN)?;
        self.encode(&mut tuples, at, len, [&copy[..len]].into_iter());
        let rw_flags = self.flags(flags);
        let mut slices = [IoSliceMut::new(&mut copy[..len])];
        let at = self.file.absolute(at);
        let mut transfer = [Transfer::new(&mut slices, self.to, at).with_tuples(&mut tuples)];
        self.ring.transfer_now(RingOp::Write, rw_flags, &mut transfer);
        let [Transfer { result: raw, .. }] = transfer;
        self.free.push(tuples);
        self.bounce = Some(copy);
        result(raw)
    }

    fn flush_now(&mut self, _: Dev) -> Result<(), Errno> {
        OneFile(&self.file).flush()
    }

    fn submit(&mut self, bio: Bio) -> Result<(), Bio> {
        let buffers = bio.memory.buffers();
        let (len, count) = (bio.memory.len(), buffers.len());
        let ours = bio.dev == Dev::OWN && (bio.op != BioOp::Write || self.file.is_writable());
        if !ours || bio.op != BioOp::Flush && !self.carries(bio.at, len, count) {
            return self.submit_at_once(bio);
        }
        let Some(mut tuples) = self.free.pop() else { return Err(bio) };
        let op = match bio.op {
            BioOp::Read => {
                tuples.begin(self.first(bio.at), self.tuples_len(len), Checks::empty());
                RingOp::Read
            }
            BioOp::Write => {
                self.encode(&mut tuples, bio.at, len, buffers.iter().map(|buffer| &**buffer));
                RingOp::Write
            }
            BioOp::Flush => {
                tuples.begin(0, 0, Checks::empty());
                RingOp::Flush
            }
        };
        let (at, rw_flags) = (self.file.absolute(bio.at), self.flags(bio.flags));
        let request = Request { file: self.to, op, at, rw_flags };
        let (bio, memory) = Attached::split(bio);
        let refused = self.ring.push(request, memory, Carried { bio, tuples });
        refused.map_err(|(memory, carried)| self.give_back(carried, memory))
    }

    fn drain(&mut self) -> Drained {
        self.ring.drain();
        let drained = Drained::with(self.ring.attached().map(|carried| carried.bio.op()));
        if drained != Drained::Ended {
            // Some bios are still in flight, so the device must stay open until the process ends.
            std::mem::forget(Arc::clone(&self.file));
        }
        drained
    }

    fn pop(&mut self) -> Option<Done> {
        let (Carried { bio, tuples }, memory, raw) = self.ring.pop()?;
        let bio = bio.join(memory);
        let mut result = result(raw);
        if bio.op == BioOp::Read && !tuples.is_empty() {
            let bufs = bio.memory.buffers();
            match result {
                Ok(count) => result = self.verify(&tuples, within(bufs, 0..count)).map(|()| count),
                Err(Errno::EILSEQ) => self.locate(bio.at, bio.memory.len()),
                Err(_) => {}
            }
        }
        self.free.push(tuples);
        Some(Done { bio, result })
    }
}

impl<W: Width> Drop for ProtectedQueue<W> {
    fn drop(&mut self) {
        self.drain();
    }
}
