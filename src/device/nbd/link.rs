//! A link to an export: a connection and the requests over this connection. A lost connection is replaced.
//!
//! **A lost connection.** When a connection is lost, the server may have failed too. A failed server may have lost data that were
//! acknowledged but not durable. Therefore, the client stores a copy of all writes that no flush covers
//! ([`Retained`](super::retained::Retained)). After a reconnection, the common link, which all queues share, sends these copies; then each
//! link sends its unanswered requests again. A late reply over an older connection is ignored, because the copies may overwrite the data of
//! the answered request.
//!
//! **Several connections.** The server may have restarted, unnoticed by the client, before a link makes an additional connection. A flush
//! over the new connection would then not cover data that were written over earlier connections. Therefore, the link first sends a request
//! over the common link, whose connection is older. If the server answers this request, it has not restarted.
//!
//! **All flushes** are sent over the common link; [`flushes`](super::flushes) gives the reason.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use smallvec::SmallVec;

use super::connection::{Answered, Connection, Request};
use super::flushes::{FLUSH_AT, Held};
use super::handshake::Export;
use super::mailbox::Mailbox;
use super::session::{ATTEMPT, Session, Shared};
use super::stream::Socket;
use super::wire::Command;
use crate::bio::{Buffer, Done, Memory};
use crate::device::uring::Attached;
use crate::error::{Context, Errno, Error, Result};
use crate::sync::Mutex;

/// The interval at which a waiting thread checks the time-outs.
pub(super) const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
pub(super) const ETIMEDOUT: Errno = Errno(110);

/// A connection and the number of its generation. A lost connection begins a new generation.
pub(super) type Joined = (Connection<Arc<Socket>, Tag>, u64);

/// The queue that made a request, and the time at which the request was added to the send queue.
pub(super) struct Tag {
    /// The queue that receives the completion; `None` for a request of the link itself.
    pub(super) owner: Option<(Attached, Arc<Mailbox>)>,
    /// The number of a flush; 0 for other requests.
    pub(super) flush: u64,
    /// Whether the common link, which all queues share, sends this request for another link. In this case, the mailbox belongs to a queue
    /// of the other link.
    pub(super) away: bool,
    /// The time at which the request was added to the send queue of the link.
    pub(super) since: Instant,
    /// The number of requests that the link had answered when this request was added to the send queue.
    pub(super) after: u64,
}

impl Tag {
    pub(super) fn of(owner: Option<(Attached, Arc<Mailbox>)>) -> Self {
        Self { owner, flush: 0, away: false, since: Instant::now(), after: 0 }
    }
}

/// A connection to an export, and the requests over this connection.
pub(super) struct Link {
    pub(super) session: Arc<Session>,
    /// The link that all queues of the export share, and that sends all flushes. `None` if this link itself is the common link.
    pub(super) common: Option<Arc<Self>>,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    /// The connection. `None` after the end of the session, when all requests fail.
    pub(super) connection: Option<Connection<Arc<Socket>, Tag>>,
    pub(super) generation: u64,
    /// Flushes that were answered with success but do not yet count as successful.
    pub(super) held: Vec<Held>,
    /// The time of the last reply or, if no reply has arrived, the time at which the link began to wait for a reply.
    pub(super) heard: Instant,
    /// The number of answered requests.
    pub(super) answered: u64,
    /// The time at which the ages of all requests were last checked.
    pub(super) looked: Instant,
    /// The pause before the next attempt to connect. Each reply resets the pause to its minimum.
    pub(super) pause: Duration,
    /// The mailboxes of the queues that wait in event loops. A mailbox receives the completions of a queue.
    pub(super) watchers: Vec<Weak<Mailbox>>,
    /// Whether the event loops are waiting for the socket to accept more bytes.
    pub(super) is_full: bool,
    /// The number of threads that wait until the session's flush frees copies of written data.
    pub(super) waiting: usize,
}

impl State {
    /// Restarts the time-out when the link becomes busy, unless a queue or a thread is already waiting for a reply. Otherwise, each new
    /// request would postpone the time-out of earlier requests.
    pub(super) fn wake(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let is_idle = self.waiting == 0 && self.held.is_empty();
        if is_idle && connection.tags().all(|tag| tag.owner.is_none()) {
            self.heard = Instant::now();
            connection.tags_mut().for_each(|tag| tag.since = self.heard);
        }
    }

    fn has_watchers(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// Changes the registration of the socket in all event loops.
    pub(super) fn each_watch(
        &self,
        change: impl Fn(&OwnedFd, &Socket, epoll::EventData, epoll::EventFlags),
    ) {
        let Some(connection) = &self.connection else { return };
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, self.is_full);
        for mailbox in self.watchers.iter().filter_map(Weak::upgrade) {
            if let Some(watch) = mailbox.watch.get() {
                change(&watch.epoll, connection.stream(), epoll::EventData::new_u64(0), flags);
            }
        }
    }

    /// If there are unsent requests, makes event loops wait until the socket accepts more bytes.
    pub(super) fn follow(&mut self) {
        let is_full = self.connection.as_ref().is_some_and(Connection::has_unsent);
        if self.is_full != is_full {
            self.is_full = is_full;
            self.each_watch(|epoll, socket, data, flags| {
                let _ = epoll::modify(epoll, socket, data, flags);
            });
        }
    }

    /// Checks whether a connection without requests is still open. Removes the socket of a closed connection from the event loops, because
    /// a closed socket would wake them again and again.
    fn check_idle(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        if connection.receive(false).is_err() {
            connection.stream().shutdown();
            self.each_watch(|epoll, socket, _, _| {
                let _ = epoll::delete(epoll, socket);
            });
        }
    }
}

impl Link {
    /// Creates the common link, which all queues share, over the first connection to the export.
    pub(super) fn over(session: &Arc<Session>, socket: Arc<Socket>) -> Self {
        let Export { headers, allocation, .. } = session.export;
        let connection = Connection::new(socket, headers).with_allocation(allocation);
        Self::of(session, connection, 0, None)
    }

    /// Creates a link with its own connection for one queue.
    pub(super) fn new(common: &Arc<Self>) -> Result<Self> {
        let session = &common.session;
        let since = Instant::now();
        let until = since + session.address.timeout.min(ATTEMPT);
        let (connection, generation) = loop {
            if let Some(joined) = common.join(since, until).at(|| &session.address)? {
                break joined;
            }
            if Instant::now() >= until {
                let error =
                    Error::io(ETIMEDOUT, "the connections to the server are lost repeatedly");
                return Err(error.at(&session.address));
            }
        };
        Ok(Self::of(session, connection, generation, Some(Arc::clone(common))))
    }

    fn of(
        session: &Arc<Session>,
        connection: Connection<Arc<Socket>, Tag>,
        generation: u64,
        common: Option<Arc<Self>>,
    ) -> Self {
        let state = State {
            connection: Some(connection),
            generation,
            held: Vec::new(),
            heard: Instant::now(),
            answered: 0,
            looked: Instant::now(),
            pause: Duration::ZERO,
            watchers: Vec::new(),
            is_full: false,
            waiting: 0,
        };
        Self { session: Arc::clone(session), common, state: Mutex::new(state) }
    }

    /// Makes an additional connection. Returns the connection and the number of its generation. Returns `None` if another connection was
    /// lost during the call, because the generation has then changed.
    pub(super) fn join(&self, since: Instant, until: Instant) -> Result<Option<Joined>> {
        let generation = self.session.generation.load(Ordering::Acquire);
        let connection = self.session.connect(until)?;
        self.ask(since).map_err(|errno| Error::io(errno, "open another connection"))?;
        let mut shared = self.session.shared.lock();
        if let Some(errno) = shared.ended {
            return Err(Error::io(errno, shared.why.clone().unwrap_or_default()));
        }
        if shared.generation != generation {
            return Ok(None);
        }
        shared.add(connection.stream());
        Ok(Some((connection, generation)))
    }

    /// Reads one block over this link, and waits until the read has been answered or has failed.
    fn ask(&self, since: Instant) -> Result<(), Errno> {
        let len = self.session.export.unit();
        if self.session.export.size < u64::from(len) {
            return Ok(());
        }
        let mailbox = Mailbox::new()?;
        let memory = Memory::Flat(Buffer::from(vec![0; len as usize]));
        let request = Request { len, memory, ..Request::without_data(Command::Read) };
        let owner = Some((Attached::of_call(), Arc::clone(&mailbox)));
        self.push(&mut self.state.lock(), request, Tag { since, ..Tag::of(owner) });
        while mailbox.pop().is_none() {
            self.wait(&mailbox);
        }
        Ok(())
    }

    /// Adds a request to the send queue. The completion of the request is put into the mailbox.
    pub(super) fn submit(&self, request: Request, attached: Attached, mailbox: &Arc<Mailbox>) {
        if request.command == Command::Write && self.session.keeps() {
            self.of_flushes().make_room(mailbox);
        }
        let mut state = self.state.lock();
        if request.command.changes() {
            self.session.changes.fetch_add(1, Ordering::AcqRel);
        }
        self.push(&mut state, request, Tag::of(Some((attached, Arc::clone(mailbox)))));
    }

    pub(super) fn push(&self, state: &mut State, request: Request, mut tag: Tag) {
        if request.flushes()
            && let Some(common) = &self.common
        {
            return common.take_over(request, tag);
        }
        state.wake();
        let Some(connection) = &mut state.connection else {
            let ended = self.session.shared.lock().ended;
            return complete(request, tag, Err(ended.unwrap_or(Errno::EIO)), None);
        };
        if request.flushes() && self.session.keeps() {
            tag.flush = self.session.shared.lock().retained.begin_flush();
        }
        tag.after = state.answered;
        connection.push(request, tag);
    }

    /// Sends and receives without waiting.
    pub(super) fn drive(&self, mailbox: &Arc<Mailbox>) {
        if let Some(common) = self.common.as_ref().filter(|_| mailbox.is_away()) {
            common.advance(mailbox);
        }
        let in_flight = self.advance(mailbox);
        mailbox.clear();
        if let Some(watch) = mailbox.watch.get() {
            watch.tick(in_flight > 0 || mailbox.is_away());
        }
    }

    /// Sends and receives without waiting. Returns the number of requests without an answer.
    fn advance(&self, mailbox: &Arc<Mailbox>) -> usize {
        let mut state = self.state.lock();
        state.wake();
        // An edge-triggered event loop is woken only once for received bytes, so this loop receives all available bytes.
        while self.step(&mut state, mailbox, false) && state.has_watchers() {}
        state.connection.as_ref().map_or(0, Connection::in_flight)
    }

    /// Sends and receives. If no bytes are available, waits briefly.
    pub(super) fn wait(&self, mailbox: &Arc<Mailbox>) {
        if self.common.is_some() && !mailbox.is_away() {
            self.step(&mut self.state.lock(), mailbox, true);
            return;
        }
        // Other queues use the common link at the same time, and one of them may receive the completion of this queue's request. It then
        // puts the completion into this mailbox and signals the mailbox.
        let common = self.common.as_ref().and_then(|common| common.awaited());
        wait_for(&[self.awaited(), common], Some(&mailbox.event));
        self.drive(mailbox);
    }

    /// Sends unsent bytes. If an answer is outstanding, returns the socket, and whether bytes are still unsent.
    pub(super) fn awaited(&self) -> Option<(Arc<Socket>, bool)> {
        let mut state = self.state.lock();
        let connection = state.connection.as_mut().filter(|all| all.in_flight() > 0)?;
        // If the socket fails here, the next call of `step` handles the error.
        let _ = connection.send();
        Some((Arc::clone(connection.stream()), connection.has_unsent()))
    }

    /// Sends and receives once. Returns whether the caller should call `step` again.
    pub(super) fn step(&self, state: &mut State, own: &Arc<Mailbox>, wait: bool) -> bool {
        let again = self.exchange(state, own, wait);
        state.follow();
        again
    }

    fn exchange(&self, state: &mut State, own: &Arc<Mailbox>, wait: bool) -> bool {
        let Some(connection) = &mut state.connection else { return false };
        if connection.in_flight() == 0 {
            if state.has_watchers() {
                state.check_idle();
            }
            return false;
        }
        if state.generation != self.session.generation.load(Ordering::Acquire) {
            self.recover(state, None);
            return true;
        }
        let received = connection.send().and_then(|()| {
            let unsent = connection.has_unsent();
            if wait && unsent {
                wait_for(&[Some((Arc::clone(connection.stream()), true))], None);
            }
            connection.receive(wait && !unsent)
        });
        match received {
            Ok(true) => {
                (state.heard, state.pause) = (Instant::now(), Duration::ZERO);
                self.deliver(state, own);
                self.look(state);
            }
            Ok(false) => return self.bear_silence(state),
            Err(lost) => {
                // Answers that arrived before the error are valid, so this code delivers them first.
                self.deliver(state, own);
                self.recover(state, Some(&lost));
            }
        }
        true
    }

    /// Puts the answers into the mailboxes of the queues that made the requests.
    pub(super) fn deliver(&self, state: &mut State, own: &Arc<Mailbox>) {
        let mut is_due = false;
        loop {
            let Some(connection) = &mut state.connection else { return };
            let Some(Answered { request, tag, mut result }) = connection.pop() else { break };
            state.answered += 1;
            let is_void = if request.command.only_reads() {
                state.generation != self.session.generation.load(Ordering::Acquire)
            } else {
                let mut shared = self.session.shared.lock();
                let is_void = shared.generation != state.generation;
                if !is_void {
                    if request.command.changes() {
                        self.session.changes.fetch_sub(1, Ordering::AcqRel);
                    }
                    is_due |= self.account(&mut shared, &request, result);
                    // After the end of the session every request fails. Even a flush that was answered with success fails.
                    result = shared.ended.map_or(result, Err);
                }
                is_void
            };
            if is_void {
                // The connection was lost in the meantime, so this answer is not valid. The next call of `step` detects the loss and sends
                // the request again over a new connection.
                connection.push(request, tag);
            } else if request.flush_after && result.is_ok() {
                let flush = Request::without_data(Command::Flush);
                self.push(state, Request { memory: request.memory, ..flush }, tag);
            } else if tag.flush > 0 && result.is_ok() {
                self.hold(state, request, tag);
            } else {
                complete(request, tag, result, Some(own));
            }
        }
        self.release(state, own);
        if is_due {
            match &self.common {
                None => self.flush_kept(state),
                Some(common) => common.look_after_flush(own),
            }
        }
    }

    /// Stores or frees copies of written data, depending on the server's answer. [`release`](Self::release) frees the copies that a
    /// successful flush covers. Returns whether the session must send a flush.
    fn account(&self, shared: &mut Shared, request: &Request, result: Result<(), Errno>) -> bool {
        match (request.command, result) {
            // A failed flush may have lost data of any queue, although the next flush might succeed. Therefore, the session ends for all
            // queues.
            (Command::Flush, Err(errno)) => shared.end(errno, "a flush failed"),
            // A server that refuses to write zeros has not tried to flush, so the session continues. After any other error of a durable
            // write, a flush may have failed.
            (Command::WriteZeroes, Err(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::EOVERFLOW)) => {}
            (Command::Write | Command::WriteZeroes, Err(errno))
                if request.flushes() && self.session.keeps() =>
            {
                shared.end(errno, "a durable write failed");
            }
            (Command::Write | Command::WriteZeroes, Ok(())) if request.flushes() => {
                shared.retained.forget(request.at, u64::from(request.len));
            }
            (Command::Write, Ok(())) if self.session.keeps() => {
                shared.retained.keep(request.at, &request.memory);
                return shared.retained.bytes() > FLUSH_AT;
            }
            (Command::Trim, Ok(())) => {
                shared.retained.forget(request.at, u64::from(request.len));
            }
            // A failed write may have written any part of its data. The copies of earlier writes stay stored.
            _ => {}
        }
        false
    }

    /// Returns a descriptor for an event loop. The descriptor is readable if replies or completions are available, or if the time-outs must
    /// be checked.
    pub(super) fn readiness(&self, mailbox: &Arc<Mailbox>) -> Result<OwnedFd, Errno> {
        let mut state = self.state.lock();
        let is_known = mailbox.watch.get().is_some();
        let own = rustix::io::fcntl_dupfd_cloexec(&mailbox.watch()?.epoll, 0)?;
        if !is_known {
            state.watchers.retain(|mailbox| mailbox.strong_count() > 0);
            state.watchers.push(Arc::downgrade(mailbox));
            // If a socket is already registered, the call fails and changes nothing.
            state.each_watch(|epoll, socket, data, flags| {
                let _ = epoll::add(epoll, socket, data, flags);
            });
            if state.connection.is_none() {
                mailbox.signal();
            }
        }
        Ok(own)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        let Some(connection) = &mut state.connection else { return };
        // Only a flush for the copies of written data can still be unanswered here, and no queue waits for it. The disconnect command tells
        // the server that no further request follows.
        connection.push(Request::without_data(Command::Disconnect), Tag::of(None));
        let _ = connection.send();
    }
}

/// Puts the completion of a request into the mailbox of the queue that made the request. Signals this mailbox, unless it belongs to the
/// caller.
pub(super) fn complete(
    request: Request,
    tag: Tag,
    result: Result<(), Errno>,
    own: Option<&Arc<Mailbox>>,
) {
    let Some((attached, mailbox)) = tag.owner else { return };
    let result = result.map(|()| request.memory.len());
    mailbox.put(Done { bio: attached.join(request.memory), result });
    if tag.away {
        mailbox.away.fetch_sub(1, Ordering::AcqRel);
    }
    if own.is_none_or(|own| !Arc::ptr_eq(own, &mailbox)) {
        mailbox.signal();
    }
}

/// Waits until one of the sockets or the event is ready. Returns immediately if there is no socket.
pub(super) fn wait_for(sockets: &[Option<(Arc<Socket>, bool)>], event: Option<&OwnedFd>) {
    let mut all = SmallVec::<[PollFd<'_>; 3]>::new();
    for (socket, unsent) in sockets.iter().flatten() {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, *unsent);
        all.push(PollFd::new(socket, flags));
    }
    if !all.is_empty() {
        all.extend(event.map(|event| PollFd::new(event, PollFlags::IN)));
        // The code ignores an error of `poll`, because the caller checks the state of the connections after every return.
        let _ = poll(&mut all, Some(&TICK));
    }
}
