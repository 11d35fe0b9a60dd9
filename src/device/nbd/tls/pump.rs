//! The pump of a TLS connection: a thread that owns the socket to the server and one end of a socket pair. The rest of the program is the
//! user of the connection, and uses the other end of the pair like a socket to a server.
//!
//! The pump costs a copy of the data and a thread for each connection. Its advantage is that all decrypted data are in a socket, where an
//! event loop's `poll` detects them. `poll` cannot detect data in the memory of the TLS library. The buffers of both directions are
//! bounded: in each direction, the pump receives more bytes only after it has passed on all earlier bytes.
//!
//! If one side closes its connection, the pump also closes the connection to the other side. It still delivers replies that it has already
//! received from the server, and for a short time still sends requests that it has already received from the user. After
//! [`Socket::shutdown`], the pump transfers no bytes.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{BUFFER, Client, Session, State, Unwaiting, is_cut, is_nothing};
use crate::device::nbd::stream::{Ending, LINGER, Socket, Stream as _};

/// The reason why a connection failed. `None` if the user has ended the connection, or if the server has ended it with TLS's closing
/// message.
type End = Option<io::Error>;
type Flow = ControlFlow<End>;

pub(super) struct Pump {
    session: Box<dyn Session>,
    server: Socket,
    /// The pump's end of the pair of sockets.
    user: Socket,
    ending: Arc<Ending>,
    /// The server's address, for errors.
    place: String,
    /// Whether the server has sent anything over TLS.
    has_heard: bool,
    buffer: Box<[u8]>,
    /// Decrypted bytes. The bytes before `taken` were already sent to the user.
    plain: Vec<u8>,
    taken: usize,
    /// Whether the server's side has ended. The pump delivers the remaining decrypted bytes before it ends.
    end: Option<End>,
}

impl Pump {
    /// Starts the thread after a handshake. `plain` contains decrypted data that arrived with the last message of the handshake. Returns
    /// the user's end of the socket pair.
    pub(super) fn start(client: Client, server: Socket, plain: Vec<u8>) -> io::Result<Socket> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let ending = Arc::new(Ending::default());
        let ours = Socket::of(ours, Some(Arc::clone(&ending)))?;
        let pump = Self {
            session: client.session,
            server,
            user: Socket::of(theirs, None)?,
            ending,
            place: client.place,
            has_heard: !plain.is_empty(),
            buffer: vec![0; BUFFER].into(),
            plain,
            taken: 0,
            end: None,
        };
        std::thread::Builder::new().name("ironmap-tls".to_owned()).spawn(move || pump.run())?;
        Ok(ours)
    }

    fn run(mut self) {
        let ControlFlow::Break(end) = self.pump() else { return };
        if let Some(error) = end {
            let _ = self.ending.cause.set((error.kind(), error.to_string()));
        }
        // The reason is stored before the user of the connection can detect its end.
        self.user.shutdown();
        self.server.shutdown();
    }

    fn pump(&mut self) -> Flow {
        loop {
            let is_empty = self.taken == self.plain.len();
            if is_empty && let Some(end) = self.end.take() {
                return ControlFlow::Break(end);
            }
            let receives = is_empty && self.end.is_none();
            let (sends, ended) = (self.session.wants_write(), self.end.is_some());
            let takes = !sends && !ended;
            let flags = |reads, writes| {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, reads);
                flags.set(PollFlags::OUT, writes);
                flags
            };
            let mut fds = [
                PollFd::new(&self.user, flags(takes, !is_empty)),
                PollFd::new(&self.server, flags(receives, sends && !ended)),
            ];
            // `poll` reports the end of the server's socket in every call, so the pump polls this socket only if it expects bytes from the
            // server or has bytes to send.
            let count = if receives || (sends && !ended) { 2 } else { 1 };
            match poll(&mut fds[..count], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return ControlFlow::Break(Some(error.into())),
            }
            let [user, server] = fds.map(|fd| fd.revents());
            if self.ending.is_given_up.load(Ordering::Acquire) {
                return ControlFlow::Break(None);
            }
            if receives && !(server - PollFlags::OUT).is_empty() {
                self.receive();
            }
            self.deliver()?;
            if user.contains(PollFlags::IN) && takes {
                self.take()?;
            } else if user.intersects(PollFlags::HUP | PollFlags::ERR) {
                return self.linger();
            }
            if self.end.is_none() {
                self.send();
            }
        }
    }

    /// Receives from the server once, and decrypts the bytes.
    fn receive(&mut self) {
        match self.server.receive(&mut [IoSliceMut::new(&mut self.buffer)], false) {
            // The stream has ended without TLS's closing message, so the connection was lost.
            Ok(0) => self.end_with_io(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.decrypt(count),
            Err(error) if is_nothing(&error) => {}
            Err(error) => self.end_with_io(error),
        }
    }

    /// Decrypts the first `count` bytes of the buffer.
    fn decrypt(&mut self, count: usize) {
        if self.taken == self.plain.len() {
            self.plain.clear();
            self.taken = 0;
        }
        let state = self.session.decrypt(&self.buffer[..count], &mut self.plain);
        self.has_heard |= !self.plain.is_empty();
        match state {
            Ok(State::Closed) => {
                let refusal = Some(self.session.refusal());
                let refusal = refusal.filter(|refusal| !self.has_heard && refusal.is_certain);
                self.end = Some(refusal.map(|refusal| refusal.error(&self.place)));
            }
            Ok(State::Handshake | State::Open) => {}
            Err(error) => {
                // This write sends the TLS alert, which reports the error to the server.
                let _ = self.session.write(&mut Unwaiting(&self.server));
                self.end = Some(Some(error));
            }
        }
    }

    /// Records that the connection to the server is lost, unless its end is already recorded.
    fn end_with_io(&mut self, error: io::Error) {
        let error = match is_cut(&error) {
            true if self.has_heard => {
                let what = format!("{}: the connection was closed", self.place);
                io::Error::new(io::ErrorKind::ConnectionAborted, what)
            }
            true => self.session.refusal().error(&self.place),
            false => error,
        };
        self.end.get_or_insert(Some(error));
    }

    /// Sends as many bytes as the user's socket accepts.
    fn deliver(&mut self) -> Flow {
        while let rest @ [_, ..] = &self.plain[self.taken..] {
            match self.user.send(&[IoSlice::new(rest)]) {
                Ok(count) => self.taken += count,
                Err(error) if is_nothing(&error) => break,
                // The user has closed its end of the pair. Earlier requests must still be sent to the server.
                Err(_) => return self.linger(),
            }
        }
        Flow::Continue(())
    }

    /// Receives requests from the user once, and encrypts them.
    fn take(&mut self) -> Flow {
        match self.user.receive(&mut [IoSliceMut::new(&mut self.buffer)], false) {
            Ok(0) => self.linger(),
            Ok(count) => match self.session.encrypt(&self.buffer[..count]) {
                Ok(()) => Flow::Continue(()),
                Err(error) => Flow::Break(Some(error)),
            },
            Err(error) if is_nothing(&error) => Flow::Continue(()),
            Err(_) => self.linger(),
        }
    }

    /// Sends as many bytes as the server accepts.
    fn send(&mut self) {
        while self.session.wants_write() {
            match self.session.write(&mut Unwaiting(&self.server)) {
                Ok(_) => {}
                Err(error) if is_nothing(&error) => return,
                Err(error) => {
                    // The server's last message states why it ended the connection. Therefore, the remaining bytes are received before the
                    // connection ends with the error of the write.
                    while self.end.is_none() && self.plain.len() < BUFFER {
                        let before = self.plain.len();
                        self.receive();
                        if self.plain.len() == before {
                            break;
                        }
                    }
                    self.end_with_io(error);
                    return;
                }
            }
        }
    }

    /// Ends the connection after the user has closed its end. For a short time, the pump still sends the remaining requests and TLS's
    /// closing message.
    fn linger(&mut self) -> Flow {
        let until = Instant::now() + LINGER;
        let mut has_ended = false;
        while self.end.is_none() && !self.ending.is_given_up.load(Ordering::Acquire) {
            self.send();
            if !self.session.wants_write() {
                if has_ended {
                    break;
                }
                let taken = self.user.receive(&mut [IoSliceMut::new(&mut self.buffer)], false);
                match taken {
                    Ok(count @ 1..) => {
                        let _ = self.session.encrypt(&self.buffer[..count]);
                    }
                    _ => {
                        has_ended = true;
                        self.session.close();
                    }
                }
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&self.server, PollFlags::OUT)], Some(&left));
        }
        Flow::Break(None)
    }
}
