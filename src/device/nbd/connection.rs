//! The requests and replies of one connection. Many requests are in flight, and the server may answer them in any order.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use smallvec::SmallVec;

use super::stream::Stream;
use super::wire::{Command, ESHUTDOWN, FUA, Headers, REQUEST_MAX, Reply, ReplyKind, STATUS, errno};
use crate::bio::Memory;
use crate::error::Errno;
use crate::sorting::Sorting;

/// The size of the buffer for received bytes that are not yet assigned to a request.
const INBOX: usize = 64 << 10;
/// The largest number of requests that one call sends.
const BATCH: usize = 32;
/// `IOV_MAX`: Linux refuses a message with more parts.
const MAX_SEGMENTS: usize = 1024;
/// The longest error text that is accepted.
const MAX_ERROR: u64 = 32 << 10;
/// The longest accepted reply to a request for block status. Servers send up to 16 MiB. Extents that do not fit into the request's memory
/// are skipped.
const MAX_STATUS: u64 = 32 << 20;
/// The largest number of separate ranges into which one reply may split its data.
const MAX_PARTS: usize = 4096;

/// A request to the server.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) command: Command,
    pub(super) flags: u16,
    pub(super) at: u64,
    /// The number of bytes of the device that the request reads, writes or changes.
    pub(super) len: u32,
    /// Whether a flush follows the write. The request is complete only after the flush has completed.
    pub(super) flush_after: bool,
    /// The data of a read or write: `len` bytes. For a request for block status, the received extents: [`STATUS`] bytes each.
    pub(super) memory: Memory,
}

impl Request {
    /// Creates a request without data.
    pub(super) fn without_data(command: Command) -> Self {
        let memory = Memory::Vectored(Vec::new());
        Self { command, flags: 0, at: 0, len: 0, flush_after: false, memory }
    }

    /// Whether the request may cause the server to flush.
    pub(super) fn flushes(&self) -> bool {
        self.command == Command::Flush || self.command.changes() && self.flags & FUA != 0
    }

    /// Returns the number of bytes of data in a successful answer.
    fn brings(&self) -> usize {
        match self.command {
            Command::Read => self.len as usize,
            _ => 0,
        }
    }
}

/// The reason why a connection ended.
#[derive(Debug)]
pub(super) enum Lost {
    Io(io::Error),
    /// The server is shutting down in an orderly way, and asks its clients to disconnect.
    Shutdown,
    Rule(&'static str),
}

impl From<&'static str> for Lost {
    fn from(rule: &'static str) -> Self {
        Self::Rule(rule)
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the server closed the connection")
            }
            Self::Io(error) => error.fmt(f),
            Self::Shutdown => f.write_str("the server is shutting down"),
            Self::Rule(rule) => write!(f, "the server violates the protocol: {rule}"),
        }
    }
}

/// An answered request.
pub(super) struct Answered<T> {
    pub(super) request: Request,
    pub(super) tag: T,
    pub(super) result: Result<(), Errno>,
}

struct InFlight<T> {
    request: Request,
    tag: T,
    /// The upper half of the cookie. The cookie identifies the request in the protocol.
    serial: u32,
    received: Received,
    error: Option<Errno>,
}

/// The part of a reply that the connection is currently receiving.
enum Part {
    /// Data of a read. `at` is their offset in the request's memory.
    Data { slot: u32, at: usize, left: usize, is_last: bool },
    /// Extents of a block status, `width` bytes each.
    Extents { slot: u32, width: usize, left: usize, is_last: bool },
    /// The text of an error.
    Text { left: usize },
}

/// A connection and its requests. Each request has a tag of type `T`.
pub(super) struct Connection<S, T> {
    stream: S,
    headers: Headers,
    /// The number of the metadata context in which block status is requested.
    allocation: Option<u32>,
    slots: Vec<Option<InFlight<T>>>,
    free: Vec<u32>,
    serial: u32,
    unsent: VecDeque<u32>,
    /// The number of bytes of the first request in the send queue that were already sent.
    sent: usize,
    inbox: Box<[u8]>,
    filled: Range<usize>,
    part: Option<Part>,
    answered: VecDeque<Answered<T>>,
}

impl<S: Stream, T> Connection<S, T> {
    pub(super) fn new(stream: S, headers: Headers) -> Self {
        Self {
            stream,
            headers,
            allocation: None,
            slots: Vec::new(),
            free: Vec::new(),
            serial: 0,
            unsent: VecDeque::new(),
            sent: 0,
            inbox: vec![0; INBOX].into(),
            filled: 0..0,
            part: None,
            answered: VecDeque::new(),
        }
    }

    /// Sets the metadata context that the client and the server have agreed on.
    pub(super) fn with_allocation(self, allocation: Option<u32>) -> Self {
        Self { allocation, ..self }
    }

    pub(super) fn stream(&self) -> &S {
        &self.stream
    }

    /// Returns the number of requests without an answer.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether requests are waiting to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Adds a request to the send queue. [`send`](Self::send) sends it later.
    pub(super) fn push(&mut self, request: Request, tag: T) {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let entry =
            Some(InFlight { request, tag, serial, received: Received::default(), error: None });
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = entry;
            slot
        } else {
            self.slots.push(entry);
            (self.slots.len() - 1) as u32
        };
        self.unsent.push_back(slot);
    }

    pub(super) fn pop(&mut self) -> Option<Answered<T>> {
        self.answered.pop_front()
    }

    /// Returns all requests without an answer, in the order in which they were added to the send queue.
    pub(super) fn into_unanswered(self) -> Vec<(Request, T)> {
        let newest = self.serial;
        let mut left: Vec<_> = self.slots.into_iter().flatten().collect();
        left.order_by_key(|entry| std::cmp::Reverse(newest.wrapping_sub(entry.serial)));
        left.into_iter().map(|entry| (entry.request, entry.tag)).collect()
    }

    /// Returns the tags of all requests without an answer.
    pub(super) fn tags(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten().map(|entry| &entry.tag)
    }

    /// Whether a write, a trim or a flush is unanswered.
    pub(super) fn has_changes(&self) -> bool {
        let changes = |request: &Request| request.command.changes() || request.flushes();
        self.slots.iter().flatten().any(|entry| changes(&entry.request))
    }

    pub(super) fn tags_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten().map(|entry| &mut entry.tag)
    }

    /// Sends as many bytes as the socket accepts without waiting.
    pub(super) fn send(&mut self) -> Result<(), Lost> {
        while !self.unsent.is_empty() {
            let mut headers = SmallVec::<[([u8; REQUEST_MAX], usize); 4]>::new();
            let batch = self.unsent.iter().take(BATCH).filter_map(|slot| {
                let entry = self.slots.get(*slot as usize)?.as_ref()?;
                Some((*slot, entry))
            });
            let batch: SmallVec<[_; 4]> = batch.collect();
            for (slot, entry) in &batch {
                let Request { command, flags, at, len, .. } = entry.request;
                let cookie = u64::from(entry.serial) << 32 | u64::from(*slot);
                headers.push(self.headers.request(command, flags, cookie, at, len));
            }
            let mut slices = SmallVec::<[IoSlice<'_>; 8]>::new();
            for ((header, end), (_, entry)) in headers.iter().zip(&batch) {
                slices.push(IoSlice::new(&header[..*end]));
                if entry.request.command == Command::Write {
                    let buffers = entry.request.memory.buffers();
                    slices.extend(buffers.iter().map(|buffer| IoSlice::new(buffer)));
                }
            }
            let mut rest = &mut slices[..];
            IoSlice::advance_slices(&mut rest, self.sent);
            let count = rest.len().min(MAX_SEGMENTS);
            let mut sent = match self.stream.send(&rest[..count]) {
                Ok(count) => self.sent + count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Lost::Io(error)),
            };
            for ((_, end), (_, entry)) in headers.iter().zip(&batch) {
                let is_write = entry.request.command == Command::Write;
                let len = end + if is_write { entry.request.len as usize } else { 0 };
                if sent < len {
                    break;
                }
                sent -= len;
                self.unsent.pop_front();
            }
            self.sent = sent;
        }
        Ok(())
    }

    /// Receives once, and processes all complete replies. Returns whether any bytes were received. If `wait` is set, waits briefly for the
    /// first byte.
    pub(super) fn receive(&mut self, wait: bool) -> Result<bool, Lost> {
        // The rest of the inbox is an incomplete header, which this code moves to the front of the inbox.
        self.inbox.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        let mut bufs = SmallVec::<[IoSliceMut<'_>; 4]>::new();
        let mut whole = true;
        if let Some(Part::Data { slot, at, left, .. }) = self.part
            && let Some(Some(entry)) = self.slots.get_mut(slot as usize)
        {
            each_part(&mut entry.request.memory, at, left, |part| {
                if bufs.len() < MAX_SEGMENTS - 1 {
                    bufs.push(IoSliceMut::new(part));
                } else {
                    whole = false;
                }
            });
        }
        let direct: usize = bufs.iter().map(|buf| buf.len()).sum();
        if whole {
            bufs.push(IoSliceMut::new(&mut self.inbox[self.filled.end..]));
        }
        let count = match self.stream.receive(&mut bufs, wait) {
            Ok(0) => return Err(Lost::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => count,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(false);
            }
            Err(error) => return Err(Lost::Io(error)),
        };
        drop(bufs);
        let direct = direct.min(count);
        self.filled.end += count - direct;
        self.advance(direct)?;
        self.take_in()?;
        Ok(true)
    }

    /// Records that bytes of a request's data were received directly into the request's memory.
    fn advance(&mut self, count: usize) -> Result<(), Lost> {
        let Some(Part::Data { slot, at, left, is_last }) = &mut self.part else { return Ok(()) };
        (*at, *left) = (*at + count, *left - count);
        if *left > 0 {
            return Ok(());
        }
        let last = is_last.then_some(*slot);
        self.part = None;
        last.map_or(Ok(()), |slot| self.finish(slot))
    }

    /// Processes the complete replies in the inbox.
    fn take_in(&mut self) -> Result<(), Lost> {
        loop {
            match self.part {
                Some(Part::Data { slot, at, left, .. }) => {
                    let count = left.min(self.filled.len());
                    if count == 0 {
                        return Ok(());
                    }
                    let from = self.filled.start;
                    if let Some(Some(entry)) = self.slots.get_mut(slot as usize) {
                        let mut bytes = &self.inbox[from..from + count];
                        each_part(&mut entry.request.memory, at, count, |part| {
                            let (now, later) = bytes.split_at(part.len());
                            part.copy_from_slice(now);
                            bytes = later;
                        });
                    }
                    self.filled.start += count;
                    self.advance(count)?;
                }
                Some(Part::Extents { slot, width, left, is_last }) => {
                    let count = left.min(self.filled.len()) / width * width;
                    if count == 0 {
                        return Ok(());
                    }
                    let from = self.filled.start;
                    if let Some(Some(entry)) = self.slots.get_mut(slot as usize) {
                        entry.take_extents(&self.inbox[from..from + count], width)?;
                    }
                    self.filled.start += count;
                    let left = left - count;
                    self.part = (left > 0).then_some(Part::Extents { slot, width, left, is_last });
                    if left == 0 && is_last {
                        self.finish(slot)?;
                    }
                }
                Some(Part::Text { left }) => {
                    let count = left.min(self.filled.len());
                    self.filled.start += count;
                    self.part = (left > count).then_some(Part::Text { left: left - count });
                    if count < left {
                        return Ok(());
                    }
                }
                None => {
                    let bytes = &self.inbox[self.filled.clone()];
                    let Some((reply, len)) = Reply::parse(self.headers, bytes)? else {
                        return Ok(());
                    };
                    // In some replies, the content begins with numbers. This code processes these numbers together with the header.
                    let extra = match reply.kind {
                        ReplyKind::Data | ReplyKind::WideStatus => 8,
                        ReplyKind::Hole => 12,
                        ReplyKind::Error | ReplyKind::Status => 4,
                        ReplyKind::Simple(_) | ReplyKind::None => 0,
                    };
                    let Some(content) = bytes.get(len..len + extra) else { return Ok(()) };
                    let content: SmallVec<[u8; 12]> = content.into();
                    self.filled.start += len + extra;
                    self.begin(&reply, &content)?;
                }
            }
        }
    }

    /// Begins processing a part of a reply.
    fn begin(&mut self, reply: &Reply, content: &[u8]) -> Result<(), Lost> {
        let slot = reply.cookie as u32;
        let entry = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        let entry = entry.filter(|entry| u64::from(entry.serial) == reply.cookie >> 32);
        let entry = entry.ok_or("no request waits for this reply")?;
        let is_read = entry.request.command == Command::Read;
        let len = entry.request.len as usize;
        let after = reply.len.checked_sub(content.len() as u64);
        match reply.kind {
            ReplyKind::Simple(Ok(())) if is_read => {
                if self.headers != Headers::Simple {
                    return Err("a read needs a structured reply, not a simple one".into());
                }
                entry.received.add(0..len)?;
                self.part = Some(Part::Data { slot, at: 0, left: len, is_last: true });
                return Ok(());
            }
            ReplyKind::Simple(Ok(())) => {}
            ReplyKind::Simple(Err(ESHUTDOWN)) => return Err(Lost::Shutdown),
            ReplyKind::Simple(Err(errno)) => entry.error = Some(errno),
            ReplyKind::None if after == Some(0) && reply.is_last => {}
            ReplyKind::None => {
                return Err("a chunk of type NONE has content or is not last".into());
            }
            ReplyKind::Error => {
                let left = after
                    .filter(|len| *len <= MAX_ERROR)
                    .ok_or("an error chunk has a wrong length")?;
                let number = u32::from_be_bytes(content.try_into().unwrap_or_default());
                if number == 0 {
                    return Err("an error chunk has the error number 0".into());
                }
                if errno(number) == ESHUTDOWN {
                    return Err(Lost::Shutdown);
                }
                entry.error.get_or_insert(errno(number));
                self.part = (left > 0).then_some(Part::Text { left: left as usize });
            }
            ReplyKind::Data | ReplyKind::Hole if !is_read => {
                return Err("a request that is not a read gets data".into());
            }
            ReplyKind::Status | ReplyKind::WideStatus => {
                let width = if reply.kind == ReplyKind::Status { 8 } else { 16 };
                let left = after.filter(|left| (1..=MAX_STATUS).contains(left));
                let left = left.filter(|left| left.is_multiple_of(width));
                let left = left.ok_or("a block status chunk has a wrong length")? as usize;
                entry.begin_status(content, self.allocation)?;
                let (width, is_last) = (width as usize, reply.is_last);
                self.part = Some(Part::Extents { slot, width, left, is_last });
                return Ok(());
            }
            ReplyKind::Data => {
                let left = after.filter(|left| *left > 0 && *left <= len as u64);
                let left = left.ok_or("a data chunk has a wrong length")? as usize;
                let at = entry.place(content, left)?;
                self.part = Some(Part::Data { slot, at, left, is_last: reply.is_last });
                return Ok(());
            }
            ReplyKind::Hole => {
                let (at, count) = content.split_at(content.len().min(8));
                let count = u32::from_be_bytes(count.try_into().unwrap_or_default()) as usize;
                if after != Some(0) || count == 0 || count > len {
                    return Err("a hole chunk has a wrong length".into());
                }
                let at = entry.place(at, count)?;
                each_part(&mut entry.request.memory, at, count, |part| part.fill(0));
            }
        }
        if reply.is_last { self.finish(slot) } else { Ok(()) }
    }

    /// Ends a request after the last part of its reply was received.
    fn finish(&mut self, slot: u32) -> Result<(), Lost> {
        let place = self.slots.get_mut(slot as usize).ok_or("no request waits for this reply")?;
        if let Some(entry) = place
            && entry.request.command == Command::BlockStatus
        {
            if entry.received.is_all(0) {
                entry.error.get_or_insert(Errno::EINVAL);
            }
            entry.forget_old_extents();
        }
        // If the reply is refused, the request stays in its slot, so that another connection can send it again.
        let has_all = place.as_ref().is_some_and(|entry| {
            let is_status = entry.request.command == Command::BlockStatus;
            entry.error.is_some() || is_status || entry.received.is_all(entry.request.brings())
        });
        if !has_all {
            return Err("a reply to a read ends before all data were sent".into());
        }
        if self.unsent.contains(&slot) {
            return Err("a reply arrives before its request was sent".into());
        }
        let InFlight { request, tag, error, .. } =
            place.take().ok_or("no request waits for this reply")?;
        self.free.push(slot);
        let result = error.map_or(Ok(()), Err);
        self.answered.push_back(Answered { request, tag, result });
        Ok(())
    }
}

impl<T> InFlight<T> {
    /// Converts a position on the export to an offset in the request's memory. Records that the `len` bytes at this offset were received.
    fn place(&mut self, at: &[u8], len: usize) -> Result<usize, &'static str> {
        let at = u64::from_be_bytes(at.try_into().unwrap_or_default());
        let start = at.checked_sub(self.request.at);
        let start = start.filter(|at| *at <= u64::from(self.request.len) - len as u64);
        let start = start.ok_or("a chunk of data is outside the range of the read")? as usize;
        self.received.add(start..start + len)?;
        Ok(start)
    }

    /// Begins processing a chunk of block status in a metadata context. If the chunk contains no extents, only this request fails. The
    /// connection stays valid, because data can still be read.
    fn begin_status(&mut self, content: &[u8], context: Option<u32>) -> Result<(), &'static str> {
        if self.request.command != Command::BlockStatus {
            return Err("a block status chunk answers a request of another type");
        }
        let is_asked = content.first_chunk().map(|number| u32::from_be_bytes(*number)) == context;
        if !is_asked || !self.received.is_all(0) {
            self.error.get_or_insert(Errno::EINVAL);
        }
        Ok(())
    }

    /// Zeroes the parts of the memory that the answer has not filled. If an earlier connection was lost, these parts may contain bytes of
    /// an earlier answer.
    fn forget_old_extents(&mut self) {
        let end = self.received.0.first().map_or(0, |range| range.end);
        let left = self.request.memory.len().saturating_sub(end);
        each_part(&mut self.request.memory, end, left, |part| part.fill(0));
    }

    /// Stores extents. Each extent consists of a length and the bits of the context. Extents that do not fit into the memory are skipped.
    fn take_extents(&mut self, extents: &[u8], width: usize) -> Result<(), &'static str> {
        for extent in extents.chunks_exact(width) {
            let (len, bits) = extent.split_at(width / 2);
            let word =
                |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            let (len, bits) = (word(len), word(bits));
            if len == 0 {
                self.error.get_or_insert(Errno::EINVAL);
            }
            let at = self.received.0.first().map_or(0, |range| range.end);
            if self.error.is_some() || at + STATUS > self.request.memory.len() {
                return Ok(());
            }
            self.received.add(at..at + STATUS)?;
            let mut bytes = &[len.to_be_bytes(), bits.to_be_bytes()].concat()[..];
            each_part(&mut self.request.memory, at, STATUS, |part| {
                let (now, later) = bytes.split_at(part.len());
                part.copy_from_slice(now);
                bytes = later;
            });
        }
        Ok(())
    }
}

/// The ranges of a read's data that were received, sorted, with adjacent ranges joined.
#[derive(Default)]
struct Received(SmallVec<[Range<usize>; 1]>);

impl Received {
    fn add(&mut self, range: Range<usize>) -> Result<(), &'static str> {
        let at = self.0.partition_point(|known| known.end <= range.start);
        if self.0.get(at).is_some_and(|next| next.start < range.end) {
            return Err("a reply to a read contains the same range twice");
        }
        if self.0.len() == MAX_PARTS {
            return Err("a reply to a read has too many chunks");
        }
        let joins_next = self.0.get(at).is_some_and(|next| next.start == range.end);
        let before = at.checked_sub(1).filter(|before| self.0[*before].end == range.start);
        match (before, joins_next) {
            (Some(before), true) => self.0[before].end = self.0.remove(at).end,
            (Some(before), false) => self.0[before].end = range.end,
            (None, true) => self.0[at].start = range.start,
            (None, false) => self.0.insert(at, range),
        }
        Ok(())
    }

    fn is_all(&self, len: usize) -> bool {
        match &self.0[..] {
            [] => len == 0,
            [all] => *all == (0..len),
            _ => false,
        }
    }
}

/// Calls a function for each piece of a request's memory within the range of `len` bytes at `at`.
fn each_part<'a>(
    memory: &'a mut Memory,
    at: usize,
    len: usize,
    mut call: impl FnMut(&'a mut [u8]),
) {
    let (mut skip, mut left) = (at, len);
    for buffer in memory.buffers_mut() {
        let here = skip.min(buffer.len());
        skip -= here;
        let rest = &mut buffer[here..];
        let count = rest.len().min(left);
        left -= count;
        if count > 0 {
            call(&mut rest[..count]);
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
