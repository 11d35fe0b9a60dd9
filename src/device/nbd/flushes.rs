//! Decides when a flush counts as successful. A server may carry out requests concurrently. It may answer a flush with success, and report
//! later that an earlier flush has failed. The data of both flushes may then be lost.
//!
//! A flush that the server answered with success does not count as successful immediately. It counts once all flushes that were sent before
//! its answer arrived have also been answered with success. Then the queue that requested the flush receives the answer, and the copies of
//! written data that the flush covers are freed. A request with FUA is treated like a flush, because it may cause the server to flush. A
//! failed flush ends the session, so that all later requests of all queues fail.
//!
//! All flushes, including those that the session itself requests, are sent over the connection that all queues share (the common link). So
//! a thread that waits for its flush receives the answers to all flushes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::connection::{Connection, Request};
use super::link::{Link, State, Tag, complete, wait_for};
use super::mailbox::Mailbox;
use super::wire::Command;

/// The session sends a flush when the client's copies of written data that no flush covers reach this number of bytes.
pub(super) const FLUSH_AT: usize = 16 << 20;
/// Writes wait for the session's flush when the client's copies of written data that no flush covers reach this number of bytes.
const WAIT_AT: usize = 64 << 20;

/// A flush that was answered with success.
pub(super) struct Held {
    pub(super) request: Request,
    pub(super) tag: Tag,
    /// The number of the newest flush that had been sent when the answer to this flush arrived.
    until: u64,
}

impl Link {
    /// Returns the link (a connection with its requests) that sends all flushes: the common link.
    pub(super) fn of_flushes(&self) -> &Self {
        self.common.as_deref().unwrap_or(self)
    }

    /// Sends a request of another link over this link, which is the common link. The completion goes to the mailbox of the queue that made
    /// the request.
    pub(super) fn take_over(&self, request: Request, mut tag: Tag) {
        if let Some((_, mailbox)) = &tag.owner {
            mailbox.away.fetch_add(1, Ordering::AcqRel);
            tag.away = true;
        }
        let mut state = self.state.lock();
        self.push(&mut state, request, tag);
        self.send_now(&mut state);
    }

    /// Sends the requests in the send queue immediately, because the queue that made them may not call again soon. If the socket fails, the
    /// next call of `step` returns the error.
    fn send_now(&self, state: &mut State) {
        if let Some(connection) = &mut state.connection {
            let _ = connection.send();
        }
        state.follow();
    }

    /// Stores a flush that was answered with success until it counts as successful, that is, until all earlier flushes have been answered.
    pub(super) fn hold(&self, state: &mut State, request: Request, tag: Tag) {
        let until = self.session.shared.lock().retained.begun();
        state.held.push(Held { request, tag, until });
    }

    /// Completes each stored flush for which all earlier flushes were answered. After a failed flush, completes all stored flushes with the
    /// error.
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

    /// Removes the stored flushes, because their connection is lost. The caller sends them again with the other requests.
    pub(super) fn take_held(&self, state: &mut State) -> Vec<(Request, Tag)> {
        let held = state.held.drain(..).map(|held| (held.request, held.tag)).collect::<Vec<_>>();
        let changes = held.iter().filter(|(request, _)| request.command.changes()).count();
        self.session.changes.fetch_add(changes, Ordering::AcqRel);
        held
    }

    /// Sends a flush for the copies of written data, unless such a flush is already unanswered. The caller must call this function on the
    /// common link, which sends all flushes.
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

    /// Sends the flush for the copies of written data if this flush is due, and receives answers that have arrived over the common link. A
    /// thread of another link calls this function; otherwise too many copies could accumulate before any thread receives the answer to the
    /// flush. Only the threads that wait for the flush detect a server that does not answer.
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

    /// Waits while the client stores too many copies of written data that no flush covers. The caller must call this function on the common
    /// link, which sends all flushes.
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
            // `waiting` counts this thread as waiting for the flush. While `waiting` is not 0, no other thread restarts the time-out, so
            // this thread detects a server that does not answer.
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
