//! The requests of one thread to an export.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use super::connection::Request;
use super::handshake::Export;
use super::link::Link;
use super::mailbox::Mailbox;
use super::wire::{Command, ExportFlags, FAST_ZERO, FUA, READS_AS_ZEROS, REQ_ONE, STATUS};
use crate::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Done, Memory};
use crate::device::uring::Attached;
use crate::device::{DeviceQueue, Drained, LentPart};
use crate::error::Errno;
use crate::units::DevOffset;

/// The largest number of bytes in one request to write zeros. `FAST_ZEROS` applies if the server can write zeros faster than data.
/// `SLOW_ZEROS` applies to all other servers, and is small enough for the server to write the zeros within the time-out.
const FAST_ZEROS: u64 = 1 << 30;
const SLOW_ZEROS: u64 = 8 << 20;

/// The largest number of extents that are stored from the server's answer to one request for block status.
pub(super) const MAX_EXTENTS: usize = 1024;

/// A range of the export, with the status that the server has reported.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    pub(super) range: Range<u64>,
    pub(super) is_zeros: bool,
}

/// The part of the export that this device uses, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) base: u64,
    pub(super) size: u64,
    /// The size of the export, rounded down to a multiple of the server's unit of requests.
    pub(super) whole: u64,
}

/// A client of a link (a connection to the server). The client sends requests over the link, and receives their completions. A link may
/// have several clients.
pub(super) struct Client {
    link: Arc<Link>,
    /// The mailbox for the completions of queued requests.
    mailbox: Arc<Mailbox>,
    /// The mailbox for the completions of synchronous calls. Each of these calls waits for its completion.
    at_once: Arc<Mailbox>,
    window: Window,
    unit: u64,
    max: usize,
    flags: ExportFlags,
    is_writable: bool,
    depth: usize,
    in_flight: usize,
    /// The buffer for the data of synchronous calls. The caller only lends its memory to a call, but the link must own the memory of a
    /// request.
    scratch: Option<Buffer>,
}

impl Client {
    pub(super) fn new(
        link: &Arc<Link>,
        window: Window,
        export: &Export,
        is_writable: bool,
        depth: usize,
    ) -> Result<Self, Errno> {
        Ok(Self {
            link: Arc::clone(link),
            mailbox: Mailbox::new()?,
            at_once: Mailbox::new()?,
            window,
            unit: u64::from(export.unit()),
            max: export.max_request(),
            flags: export.flags,
            is_writable,
            depth,
            in_flight: 0,
            scratch: None,
        })
    }

    /// Builds the request of an operation. Returns `Err` if the operation is already complete.
    fn request(
        &self,
        op: BioOp,
        flags: BioFlags,
        at: DevOffset,
        memory: Memory,
    ) -> Result<Request, (Memory, Result<usize, Errno>)> {
        let len = memory.len();
        let end = at.0.checked_add(len as u64);
        let command = match op {
            BioOp::Flush if self.flags.contains(ExportFlags::SEND_FLUSH) => {
                return Ok(Request { memory, ..Request::without_data(Command::Flush) });
            }
            BioOp::Flush => return Err((memory, Ok(0))),
            BioOp::Write if !self.is_writable => return Err((memory, Err(Errno::EBADF))),
            _ if flags.contains(BioFlags::ATOMIC) => return Err((memory, Err(Errno::EOPNOTSUPP))),
            BioOp::Read => Command::Read,
            BioOp::Write => Command::Write,
        };
        // A request must consist of whole units of the server, and must be within the part of the export that this device uses. There are
        // two exceptions for reads: if this part ends within a unit, a read may include the whole unit, and if the export ends within a
        // unit, a read may end at the end of the export.
        let end = match command {
            Command::Write => end.filter(|end| *end <= self.window.size),
            _ => end,
        };
        let end = end.and_then(|end| end.checked_add(self.window.base));
        let is_last = command == Command::Read && end == Some(self.window.whole);
        let is_whole =
            at.0.is_multiple_of(self.unit) && (is_last || (len as u64).is_multiple_of(self.unit));
        if len == 0 || len > self.max || !is_whole || end.is_none_or(|end| end > self.window.whole)
        {
            return Err((memory, Err(Errno::EINVAL)));
        }
        let is_durable = command == Command::Write && flags.contains(BioFlags::DSYNC);
        let has = |flag| is_durable && self.flags.contains(flag);
        Ok(Request {
            command,
            flags: if has(ExportFlags::SEND_FUA) { FUA } else { 0 },
            at: self.window.base + at.0,
            len: len as u32,
            flush_after: !has(ExportFlags::SEND_FUA) && has(ExportFlags::SEND_FLUSH),
            memory,
        })
    }

    /// Carries out a request, and waits for its completion.
    fn call(&mut self, request: Request) -> (Memory, Result<(), Errno>) {
        let attached = Attached::of_call();
        self.link.submit(request, attached, &self.at_once);
        loop {
            if let Some(Done { bio, result }) = self.at_once.pop() {
                return (bio.memory, result.map(drop));
            }
            self.link.wait(&self.at_once);
        }
    }

    fn scratch(&mut self, len: usize) -> Result<Buffer, Errno> {
        match self.scratch.take().filter(|buffer| buffer.len() == len) {
            Some(buffer) => Ok(buffer),
            None => Buffer::aligned(len).map_err(|_| Errno::ENOMEM),
        }
    }

    /// Carries out an operation on borrowed memory. The data are copied through the client's own buffer.
    fn transfer(
        &mut self,
        op: BioOp,
        len: usize,
        at: DevOffset,
        flags: BioFlags,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Buffer, Errno> {
        let mut buffer = self.scratch(len)?;
        fill(&mut buffer);
        let done = match self.request(op, flags, at, Memory::Flat(buffer)) {
            Ok(request) => self.call(request),
            Err((memory, result)) => (memory, result.map(drop)),
        };
        let (Memory::Flat(buffer), result) = done else { return Err(Errno::EIO) };
        result.map(|()| buffer)
    }

    /// Fills `buf` from `at`, at any alignment.
    pub(super) fn read_all(&mut self, buf: &mut [u8], at: DevOffset) -> Result<(), Errno> {
        let mut done = 0;
        while done < buf.len() {
            let from = at.0 + done as u64;
            let skip = (from % self.unit) as usize;
            let start = from - skip as u64;
            let wanted = (skip + buf.len() - done).next_multiple_of(self.unit as usize);
            let left = self.window.whole.saturating_sub(self.window.base).saturating_sub(start);
            let len = wanted.min(self.max).min(usize::try_from(left).unwrap_or(self.max));
            let flags = BioFlags::empty();
            let read = self.transfer(BioOp::Read, len, DevOffset(start), flags, |_| ())?;
            let count = (len - skip).min(buf.len() - done);
            buf[done..done + count].copy_from_slice(&read[skip..skip + count]);
            self.scratch = Some(read);
            done += count;
        }
        Ok(())
    }

    /// Writes all of `bufs`.
    pub(super) fn write_all(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
    ) -> Result<(), Errno> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut bytes = bufs.iter().map(|buf| &**buf);
        let mut done = 0;
        // The parts of a long write are written without FUA, because one flush at the end covers all of them.
        let many = len > self.max;
        let flags = if fua && !many { BioFlags::DSYNC } else { BioFlags::empty() };
        let mut part: &[u8] = &[];
        while done < len {
            let count = (len - done).min(self.max);
            let at = DevOffset(at.0 + done as u64);
            let written = self.transfer(BioOp::Write, count, at, flags, |buffer| {
                let mut filled = 0;
                while filled < count {
                    if part.is_empty() {
                        part = bytes.next().unwrap_or_default();
                    }
                    let (now, later) = part.split_at(part.len().min(count - filled));
                    buffer[filled..filled + now.len()].copy_from_slice(now);
                    (part, filled) = (later, filled + now.len());
                }
            })?;
            self.scratch = Some(written);
            done += count;
        }
        if fua && many { self.flush_now(Dev::OWN) } else { Ok(()) }
    }

    /// Requests the block status (data or zeros) of the extents from a position on. The result contains at least one extent, has no gaps,
    /// and covers at most `len` bytes. If `one` is set, the server reports only the first extent.
    pub(super) fn status(
        &mut self,
        at: DevOffset,
        len: u64,
        one: bool,
    ) -> Result<Vec<Extent>, Errno> {
        // A request must consist of whole units. The length field of a request has 32 bits.
        let from = at.0 / self.unit * self.unit;
        let end = (at.0 + len).next_multiple_of(self.unit);
        let count = end.min(self.window.whole - self.window.base) - from;
        let room = if one { 1 } else { MAX_EXTENTS };
        let memory = Memory::Flat(Buffer::from(vec![0; room * STATUS]));
        let (memory, result) = self.call(Request {
            at: self.window.base + from,
            flags: if one { REQ_ONE } else { 0 },
            len: count.min(1 << 30) as u32,
            memory,
            ..Request::without_data(Command::BlockStatus)
        });
        result?;
        let Memory::Flat(answer) = memory else { return Err(Errno::EIO) };
        let word = |bytes: &[u8; 8]| u64::from_be_bytes(*bytes);
        let mut extents = Vec::new();
        let mut start = from;
        for [count, bits] in answer.as_chunks::<8>().0.as_chunks::<2>().0 {
            // The first extent may begin before the position, and the last extent may end past the requested range.
            let next = start.saturating_add(word(count));
            let range = start.max(at.0)..next.min(at.0 + len);
            if !range.is_empty() {
                extents.push(Extent { range, is_zeros: word(bits) & READS_AS_ZEROS != 0 });
            }
            start = next;
        }
        if extents.is_empty() { Err(Errno::EIO) } else { Ok(extents) }
    }

    /// Discards a range.
    pub(super) fn trim(&mut self, at: DevOffset, len: u64) -> Result<(), Errno> {
        if !self.is_writable {
            return Err(Errno::EBADF);
        }
        if !self.flags.contains(ExportFlags::SEND_TRIM) {
            return Err(Errno::EOPNOTSUPP);
        }
        let (start, end) = (at.0.next_multiple_of(self.unit), (at.0 + len) / self.unit * self.unit);
        let mut from = start;
        while from < end {
            // A request must consist of whole units. The length field of a request has 32 bits.
            let count = (end - from).min(1 << 30);
            let (at, len) = (self.window.base + from, count as u32);
            self.call(Request { at, len, ..Request::without_data(Command::Trim) }).1?;
            from += count;
        }
        Ok(())
    }

    /// Zeroes a range. The zeros are durable when this function returns. After a restart of the server, the session repeats writes that
    /// were not durable, but it stores no copy of zeros and so could not repeat them.
    pub(super) fn write_zeroes(&mut self, at: DevOffset, len: u64) -> Result<(), Errno> {
        if !self.is_writable {
            return Err(Errno::EBADF);
        }
        let has = |flag| self.flags.contains(flag);
        let durable = match (has(ExportFlags::SEND_FUA), has(ExportFlags::SEND_FLUSH)) {
            (true, _) => FUA,
            (false, false) => 0,
            (false, true) => return Err(Errno::EOPNOTSUPP),
        };
        if !has(ExportFlags::SEND_WRITE_ZEROES) {
            return Err(Errno::EOPNOTSUPP);
        }
        if !at.0.is_multiple_of(self.unit) || !len.is_multiple_of(self.unit) {
            return Err(Errno::EINVAL);
        }
        let (mut from, end) = (at.0, at.0 + len);
        let mut fast = if has(ExportFlags::SEND_FAST_ZERO) { FAST_ZERO } else { 0 };
        while from < end {
            let count = (end - from).min(if fast == 0 { SLOW_ZEROS } else { FAST_ZEROS });
            let (at, flags) = (self.window.base + from, durable | fast);
            let nothing = Request::without_data(Command::WriteZeroes);
            match self.call(Request { at, flags, len: count as u32, ..nothing }).1 {
                Ok(()) => from += count,
                Err(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::EOVERFLOW) if fast != 0 => fast = 0,
                // The server refuses to write zeros. The caller receives EOPNOTSUPP, and then writes the zeros itself.
                Err(Errno::EINVAL | Errno::EOVERFLOW) => return Err(Errno::EOPNOTSUPP),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl DeviceQueue for Client {
    fn read_now(
        &mut self,
        _dev: Dev,
        buf: &mut [u8],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let len = buf
            .len()
            .min(usize::try_from(self.window.size.saturating_sub(at.0)).unwrap_or(usize::MAX));
        if len == 0 {
            return Ok(0);
        }
        // If a read ends within a block of the server, the code reads the whole block.
        let is_cut = len < buf.len();
        let whole = if is_cut { len.next_multiple_of(self.unit as usize) } else { len };
        let read = self.transfer(BioOp::Read, whole, at, flags, |_| ())?;
        buf[..len].copy_from_slice(&read[..len]);
        self.scratch = Some(read);
        Ok(len)
    }

    fn read_parts_now(&mut self, _dev: Dev, parts: &mut [LentPart<'_>], flags: BioFlags) {
        for part in parts {
            let len = part.len();
            part.result = self.transfer(BioOp::Read, len, part.at, flags, |_| ()).map(|read| {
                let mut rest = &read[..];
                for buf in &mut part.bufs {
                    let (now, later) = rest.split_at(buf.len());
                    buf.copy_from_slice(now);
                    rest = later;
                }
                self.scratch = Some(read);
                len
            });
        }
    }

    fn write_now(
        &mut self,
        _dev: Dev,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        let written = self.transfer(BioOp::Write, len, at, flags, |buffer| {
            let mut rest = buffer;
            for buf in bufs {
                let (now, later) = rest.split_at_mut(buf.len());
                now.copy_from_slice(buf);
                rest = later;
            }
        })?;
        self.scratch = Some(written);
        Ok(len)
    }

    fn flush_now(&mut self, _dev: Dev) -> Result<(), Errno> {
        let memory = Memory::Vectored(Vec::new());
        match self.request(BioOp::Flush, BioFlags::empty(), DevOffset(0), memory) {
            Ok(request) => self.call(request).1,
            Err((_, result)) => result.map(drop),
        }
    }

    fn room(&self) -> usize {
        self.depth - self.in_flight
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn submit(&mut self, bio: Bio) -> Result<(), Bio> {
        if self.room() == 0 {
            return Err(bio);
        }
        self.in_flight += 1;
        let (op, flags, at) = (bio.op, bio.flags, bio.at);
        let (attached, memory) = Attached::split(bio);
        match self.request(op, flags, at, memory) {
            Ok(request) => self.link.submit(request, attached, &self.mailbox),
            Err((memory, result)) => self.mailbox.put(Done { bio: attached.join(memory), result }),
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Errno> {
        self.link.drive(&self.mailbox);
        Ok(())
    }

    fn wait(&mut self, min: usize) -> Result<(), Errno> {
        let min = min.min(self.in_flight);
        while self.mailbox.len() < min {
            self.link.wait(&self.mailbox);
        }
        Ok(())
    }

    fn drain(&mut self) -> Drained {
        let _ = self.wait(self.in_flight);
        while self.pop().is_some() {}
        Drained::Ended
    }

    fn pop(&mut self) -> Option<Done> {
        let done = self.mailbox.pop()?;
        self.in_flight -= 1;
        Some(done)
    }

    fn readiness(&mut self) -> Result<std::os::fd::OwnedFd, Errno> {
        self.link.readiness(&self.mailbox)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.drain();
    }
}

impl Attached {
    /// Returns the empty bio that the link returns as the completion of a synchronous call. The call uses only the memory and the result of
    /// the completion.
    pub(super) fn of_call() -> Self {
        let end = BioEnd::Part { request: 0, part: 0 };
        let (memory, at) = (Memory::Vectored(Vec::new()), DevOffset(0));
        let bio =
            Bio { op: BioOp::Flush, flags: BioFlags::empty(), dev: Dev::OWN, at, memory, end };
        Self::split(bio).0
    }
}
