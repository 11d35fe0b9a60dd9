//! Receives replies whose bytes a fuzzer chooses, without a socket.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};

use super::connection::{Connection, Request};
use super::stream::Stream;
use super::wire::{Command, Headers, STATUS};
use crate::bio::{Buffer, Memory};

/// A server that accepts every request, and sends bytes that the fuzzer chooses.
struct Script<'a> {
    rest: RefCell<&'a [u8]>,
    /// The largest number of bytes that one call of `receive` returns.
    most: usize,
}

impl Stream for Script<'_> {
    fn send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }

    fn receive(&self, bufs: &mut [IoSliceMut<'_>], _wait: bool) -> io::Result<usize> {
        let mut rest = self.rest.borrow_mut();
        let mut count = 0;
        for buf in bufs {
            let now = buf.len().min(rest.len()).min(self.most - count);
            let (here, later) = rest.split_at(now);
            buf[..now].copy_from_slice(here);
            (*rest, count) = (later, count + now);
        }
        Ok(count)
    }
}

/// Sends reads with these positions and lengths. For a length of 0, sends a request for block status instead. The first request has the
/// cookie `1 << 32`, the second has the cookie `2 << 32 | 1`. Then processes `replies` in the form (simple, structured or extended) that
/// `form` selects.
///
/// # Panics
/// Panics if a request is lost or answered twice.
pub fn take_replies(form: u8, most: usize, reads: &[(u64, u16)], replies: &[u8]) {
    let headers = [Headers::Simple, Headers::Structured, Headers::Extended][usize::from(form % 3)];
    let script = Script { rest: RefCell::new(replies), most: most.max(1) };
    let mut connection = Connection::new(script, headers).with_allocation(Some(7));
    for (number, (at, len)) in reads.iter().enumerate() {
        let (command, bytes) = match *len {
            0 => (Command::BlockStatus, 3 * STATUS),
            len => (Command::Read, usize::from(len)),
        };
        let len = u32::from(*len).max(1);
        let memory = Memory::Flat(Buffer::from(vec![0; bytes]));
        let nothing = Request::without_data(command);
        connection.push(Request { at: *at, len, memory, ..nothing }, number);
    }
    let sent = connection.send();
    assert!(sent.is_ok() && !connection.has_unsent(), "some bytes remain unsent");
    while connection.receive(false).is_ok_and(|came| came) {}
    let answered = std::iter::from_fn(|| connection.pop()).map(|answered| answered.tag);
    let mut numbers: Vec<usize> = answered.collect();
    numbers.extend(connection.into_unanswered().into_iter().map(|(_, number)| number));
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..reads.len()), "a request is lost or answered twice");
}
