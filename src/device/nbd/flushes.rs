//! The conditions under which a flush counts. A server that carries out requests concurrently may answer a flush with success, and report
//! only later that an earlier flush has failed and has lost the data of both.
//!
//! So a flush counts only when each flush that began before its end was also answered with success. The owner of the flush then gets the
//! answer, and the copies of the data that the flush covers are freed. A request with FUA is treated as a flush, because the server may
//! flush for it. A failed flush ends the session for all owners.
//!
//! All flushes go over the common link, including the session's own flushes. A thread that waits on that link for its flush receives the
//! answers to all flushes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::connection::{Connection, Request};
use super::link::{Link, State, Tag, complete, wait_for};
use super::mailbox::Mailbox;
use super::wire::Command;

/// The number of kept bytes at which a flush is sent.
pub(super) const FLUSH_AT: usize = 16 << 20;
/// The number of kept bytes at which writes wait for that flush.
const WAIT_AT: usize = 64 << 20;

/// A flush that was answered with success.
pub(super) struct Held {
    pub(super) request: Request,
    pub(super) tag: Tag,
    /// The newest flush that had begun when the answer arrived.
    until: u64,
}

impl Link {
    /// The link that carries the session's flushes.
    pub(super) fn of_flushes(&self) -> &Self {
        self.common.as_deref().unwrap_or(self)
    }

    /// Accepts a request of another link.
    pub(super) fn take_over(&self, request: Request, mut tag: Tag) {
        if let Some((_, mailbox)) = &tag.owner {
            mailbox.away.fetch_add(1, Ordering::AcqRel);
            tag.away = true;
        }
        let mut state = self.state.lock();
        self.push(&mut state, request, tag);
        self.send_now(&mut state);
    }

    /// Sends a request immediately, because its owner may not call again soon. The next step reports an error.
    fn send_now(&self, state: &mut State) {
        if let Some(connection) = &mut state.connection {
            let _ = connection.send();
        }
        state.follow();
    }

    /// Holds back a flush that was answered with success.
    pub(super) fn hold(&self, state: &mut State, request: Request, tag: Tag) {
        let until = self.session.shared.lock().retained.begun();
        state.held.push(Held { request, tag, until });
    }

    /// Returns held flushes to their owners if no earlier flush is unanswered. Returns all held flushes if an earlier flush has failed.
    pub(super) fn release(&self, state: &mut State, own: &Arc<Mailbox>) {
        if state.held.is_empty() {
            return;
        }
        let unanswered = state.connection.iter().flat_map(Connection::tags);
        let oldest = unanswered.filter(|tag| tag.flush > 0).map(|tag| tag.flush).min();
        let mut shared = self.session.shared.lock();
        let ended = shared.ended;
        let ends =
            |held: &mut Held| ended.is_some() || oldest.is_none_or(|oldest| oldest > held.until);
        for Held { request, tag, .. } in state.held.extract_if(.., ends) {
            if ended.is_none() && request.command == Command::Flush {
                shared.retained.end_flush(tag.flush);
                shared.flushing &= tag.owner.is_some();
            }
            complete(request, tag, ended.map_or(Ok(()), Err), Some(own));
        }
    }

    /// Removes the held flushes when their connection is lost. They are sent again with the other requests.
    pub(super) fn take_held(&self, state: &mut State) -> Vec<(Request, Tag)> {
        let held = state.held.drain(..).map(|held| (held.request, held.tag)).collect::<Vec<_>>();
        let changes = held.iter().filter(|(request, _)| request.command.changes()).count();
        self.session.changes.fetch_add(changes, Ordering::AcqRel);
        held
    }

    /// Sends a flush for the session itself, unless an earlier one is unanswered. Only the link of flushes may call this.
    pub(super) fn flush_kept(&self, state: &mut State) {
        {
            let mut shared = self.session.shared.lock();
            if shared.flushing || shared.ended.is_some() {
                return;
            }
            shared.flushing = true;
        }
        self.push(state, Request::without_data(Command::Flush), Tag::of(None));
        self.send_now(state);
    }

    /// Receives the answer to the session's own flush in a thread of another link. Otherwise the answer may remain unread until too many
    /// bytes are kept. Threads that wait for the flush detect a server that does not answer.
    pub(super) fn look_after_flush(&self, own: &Arc<Mailbox>) {
        let mut state = self.state.lock();
        self.flush_kept(&mut state);
        let Some(connection) = &mut state.connection else { return };
        if connection.receive(false).is_ok_and(|came| came) {
            state.heard = Instant::now();
            self.deliver(&mut state, own);
        }
        state.follow();
    }

    /// Waits while too many bytes are kept. Only the link of flushes may call this.
    pub(super) fn make_room(&self, mailbox: &Arc<Mailbox>) {
        let is_full = || {
            let shared = self.session.shared.lock();
            shared.ended.is_none() && shared.retained.bytes() > WAIT_AT
        };
        if !is_full() {
            return;
        }
        {
            let mut state = self.state.lock();
            state.wake();
            // A thread waits for the flush from here on, so a server that does not answer is detected. No other thread postpones the
            // time-out.
            state.waiting += 1;
        }
        while is_full() {
            self.flush_kept(&mut self.state.lock());
            wait_for(&[self.awaited()], None);
            self.step(&mut self.state.lock(), mailbox, false);
        }
        self.state.lock().waiting -= 1;
    }
}
