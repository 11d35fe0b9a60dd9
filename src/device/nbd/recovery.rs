//! Reconnects a link after the loss of its connection, and handles a server that does not answer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::connection::{Answered, Connection, Request};
use super::link::{ETIMEDOUT, Joined, Link, State, Tag, complete};
use super::retained::Retained;
use super::session::{ATTEMPT, Fenced};
use super::stream::Socket;
use super::wire::{Command, ExportFlags, FUA};
use crate::bio::{Buffer, Memory};
use crate::error::{Errno, Error};

/// The length and the largest number in flight of the writes with which a reconnected link repeats written data that were not durable.
const AGAIN: usize = 256 << 10;
const AGAIN_AT_ONCE: usize = 16;
/// The shortest and the longest pause between two attempts to connect.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];
/// The server has passed over a request if it has answered this number of later requests, but not this request. If more than 64 requests
/// are in flight, the limit is 16 times the number of requests in flight instead.
const PASSED_OVER: u64 = 1024;
/// The largest age of an unanswered request, in multiples of the time-out. An older request ends the session, even if the server has
/// answered only a few later requests.
const SLOWEST: u32 = 10;
/// The interval between checks of the ages of all requests.
const LOOK: Duration = Duration::from_secs(1);

impl Link {
    /// Handles a server that does not answer. The link reconnects after half of the time-out, because another connection may get an answer.
    /// But a slow server could still carry out an unanswered write over the old connection, and this write could overwrite newer
    /// acknowledged data. Therefore, the link keeps a connection with unanswered writes, and ends the session after the full time-out. The
    /// link also keeps a connection with an unanswered flush, because a flush may take long and would start again from the beginning over
    /// another connection. Returns whether the caller must check again immediately.
    pub(super) fn bear_silence(&self, state: &mut State) -> bool {
        let timeout = self.session.address.timeout;
        let (silence, why) = (state.heard.elapsed(), "the server does not answer");
        let own = state.connection.as_ref().is_some_and(Connection::has_changes);
        // When the common link reconnects, it also closes the connections of all other links of the session. Therefore, the unanswered
        // changes of all links count here.
        let others = self.common.is_none() && self.session.changes.load(Ordering::Acquire) > 0;
        let changes = own || others;
        if silence < if changes { timeout } else { timeout / 2 } {
            return false;
        }
        if changes {
            self.session.shared.lock().end(ETIMEDOUT, why);
        }
        match &self.common {
            Some(_) => self.reconnect(state),
            None => self.recover(state, Some(&why)),
        }
        true
    }

    /// Ends the session if the server passes over a request. A request is passed over if it is older than the time-out and many later
    /// requests were answered. A request that is older than [`SLOWEST`] time-outs always counts as passed over. A slow connection alone
    /// does not end the session, because the server then answers only a few later requests.
    pub(super) fn look(&self, state: &mut State) {
        if state.heard.duration_since(state.looked) < LOOK {
            return;
        }
        state.looked = state.heard;
        let Some(connection) = &state.connection else { return };
        let timeout = self.session.address.timeout;
        let many = PASSED_OVER.max(16 * connection.in_flight() as u64);
        let is_passed_over = |tag: &Tag| {
            let age = tag.since.elapsed();
            age > timeout && (state.answered - tag.after > many || age > SLOWEST * timeout)
        };
        if connection.tags().any(is_passed_over) {
            self.session.shared.lock().end(ETIMEDOUT, "the server does not answer a request");
            self.recover(state, None);
        }
    }

    /// Closes all connections of the session, then reconnects.
    #[cold]
    pub(super) fn recover(&self, state: &mut State, why: Option<&dyn fmt::Display>) {
        self.lose(state.generation, why);
        self.reconnect(state);
    }

    /// Reconnects, and then repeats the written data that no flush has covered, and the unanswered requests. The session ends if this takes
    /// longer than the time-out.
    #[cold]
    fn reconnect(&self, state: &mut State) {
        let Some(connection) = state.connection.take() else { return };
        // The shutdown stops the pump of a TLS connection, which then sends no more bytes.
        connection.stream().shutdown();
        let mut unanswered = connection.into_unanswered();
        unanswered.extend(self.take_held(state));
        let oldest = unanswered.iter().map(|(_, tag)| tag.since).min();
        let since = oldest.unwrap_or_else(Instant::now);
        let deadline = since + self.session.address.timeout;
        let connected = loop {
            if let Some(errno) = self.session.shared.lock().ended {
                break Err(errno);
            }
            // A malformed request could make the server close every connection. This check of the time-out prevents endless attempts to
            // send such a request.
            if Instant::now() >= deadline {
                break Err(ETIMEDOUT);
            }
            std::thread::sleep(state.pause);
            state.pause = (state.pause * 2).clamp(PAUSES[0], PAUSES[1]);
            let until = deadline.min(Instant::now() + ATTEMPT);
            let again = match &self.common {
                Some(common) => common.join(since, until).map_err(|error| self.failed(&error)),
                None => self.restore(until, deadline).map(Some),
            };
            match again {
                Ok(Some(joined)) => break Ok(joined),
                Err((errno, true)) => break Err(errno),
                Ok(None) | Err((_, false)) => {}
            }
        };
        match connected {
            Ok((connection, generation)) => {
                (state.generation, state.is_full) = (generation, false);
                state.connection = Some(connection);
                state.watchers.retain(|mailbox| mailbox.strong_count() > 0);
                state.each_watch(|epoll, socket, data, flags| {
                    let _ = epoll::add(epoll, socket, data, flags);
                });
                for (request, tag) in unanswered {
                    self.push(state, request, tag);
                }
                state.heard = Instant::now();
            }
            Err(errno) => {
                self.session.shared.lock().ended.get_or_insert(errno);
                for (request, tag) in unanswered {
                    complete(request, tag, Err(errno), None);
                }
            }
        }
    }

    /// Records that a connection of this generation (the connections since the previous loss) is lost. Closes all other connections of this
    /// generation too.
    fn lose(&self, generation: u64, why: Option<&dyn fmt::Display>) {
        let mut shared = self.session.shared.lock();
        if generation == shared.generation {
            shared.generation += 1;
            self.session.generation.store(shared.generation, Ordering::Release);
            // During an orderly shutdown, the server waits until all clients have disconnected, including the clients of idle threads.
            for socket in shared.sockets.drain(..).filter_map(|socket| socket.upgrade()) {
                socket.shutdown();
            }
        }
        if let Some(why) = why.filter(|_| shared.ended.is_none()) {
            shared.why = Some(why.to_string());
        }
    }

    /// Returns the errno of a failed attempt to connect, and whether more attempts are useless. If the server itself reports an error, more
    /// attempts are worthwhile, because a server that is still starting may report any error.
    fn failed(&self, error: &Error) -> (Errno, bool) {
        let mut shared = self.session.shared.lock();
        if shared.ended.is_none() {
            shared.why = Some(error.to_string());
        }
        (shared.ended.unwrap_or_else(|| error.errno()), shared.ended.is_some())
    }

    /// Makes one attempt to connect the common link, and to repeat the written data that no flush has covered. The error states whether
    /// more attempts are useless.
    fn restore(&self, until: Instant, deadline: Instant) -> Result<Joined, (Errno, bool)> {
        let connected = self.session.connect(until);
        let mut connection = connected.map_err(|error| self.failed(&error))?;
        let fence = self.session.fence.lock().clone();
        if let Some(fence) = fence {
            self.confirm(&mut connection, &fence, deadline)?;
        }
        let mut shared = self.session.shared.lock();
        let max = self.session.export.max_request();
        restore(&mut connection, &shared.retained, max, deadline)?;
        shared.add(connection.stream());
        Ok((connection, shared.generation))
    }
}

impl Link {
    /// Checks that this node (computer) still owns the device before anything is written. Another node may have started to use the device
    /// while the connection was lost.
    fn confirm(
        &self,
        connection: &mut Connection<Arc<Socket>, Tag>,
        fence: &Fenced,
        deadline: Instant,
    ) -> Result<(), (Errno, bool)> {
        let Fenced { at, len, fence } = fence;
        let block = Memory::Flat(Buffer::from(vec![0; *len]));
        let nothing = Request::without_data(Command::Read);
        let read = Request { at: *at, len: *len as u32, memory: block, ..nothing };
        let Memory::Flat(mut block) = answer(connection, read, deadline)? else {
            return Err((Errno::EIO, false));
        };
        fence.confirm(&mut block).map_err(|error| {
            self.session.shared.lock().end(error.errno(), &error.to_string());
            (error.errno(), true)
        })?;
        let has = |flag| self.session.export.flags.contains(flag);
        let flags = if has(ExportFlags::SEND_FUA) { FUA } else { 0 };
        let nothing = Request::without_data(Command::Write);
        let memory = Memory::Flat(block);
        let write = Request { at: *at, len: *len as u32, flags, memory, ..nothing };
        answer(connection, write, deadline)?;
        if flags == 0 && has(ExportFlags::SEND_FLUSH) {
            answer(connection, Request::without_data(Command::Flush), deadline)?;
        }
        Ok(())
    }
}

/// Carries out one request on a connection that has no other requests. Returns the memory of the request.
fn answer(
    connection: &mut Connection<Arc<Socket>, Tag>,
    request: Request,
    deadline: Instant,
) -> Result<Memory, (Errno, bool)> {
    let flushes = request.flushes();
    connection.push(request, Tag::of(None));
    loop {
        let sent = connection.send().and_then(|()| connection.receive(true));
        sent.map_err(|_| (Errno::EIO, false))?;
        if let Some(Answered { request, result, .. }) = connection.pop() {
            // A failed flush may have lost data, so another attempt is useless and the session ends. This also applies to a durable write,
            // which includes a flush.
            return result.map(|()| request.memory).map_err(|errno| (errno, flushes));
        }
        if Instant::now() >= deadline {
            return Err((ETIMEDOUT, false));
        }
    }
}

/// Sends the written data that no flush has covered to a server that may have lost them.
fn restore(
    connection: &mut Connection<Arc<Socket>, Tag>,
    retained: &Retained,
    max: usize,
    deadline: Instant,
) -> Result<(), (Errno, bool)> {
    let mut parts = retained.parts(AGAIN.min(max)).peekable();
    while parts.peek().is_some() || connection.in_flight() > 0 {
        while connection.in_flight() < AGAIN_AT_ONCE
            && let Some((at, data)) = parts.next()
        {
            let memory = Memory::Flat(Buffer::from(data.to_vec()));
            let len = data.len() as u32;
            let nothing = Request::without_data(Command::Write);
            connection.push(Request { at, len, memory, ..nothing }, Tag::of(None));
        }
        let sent = connection.send().and_then(|()| connection.receive(true));
        sent.map_err(|_| (Errno::EIO, false))?;
        while let Some(Answered { result, .. }) = connection.pop() {
            // If the server refuses to write these data again, acknowledged data are lost, and another attempt is useless.
            result.map_err(|errno| (errno, true))?;
        }
        if Instant::now() >= deadline {
            return Err((ETIMEDOUT, false));
        }
    }
    Ok(())
}
