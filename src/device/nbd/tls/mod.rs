//! TLS for connections to servers: whom it trusts, and its handshake. Afterwards a [pump] has the connection.
//!
//! STARTTLS is the first option, so that nothing that came in plain text counts. The negotiation reads no byte more than it needs, so that plain text
//! after the server's consent is read as TLS, and is an error.
//!
//! A server always proves who it is: by its certificate, or by a key that both sides have.

mod certificates;
#[cfg(feature = "psk")]
mod psk;
#[cfg(not(feature = "psk"))]
#[path = "without_psk.rs"]
mod psk;
mod pump;

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::time::Instant;

use self::pump::Pump;
use super::stream::{Socket, Stream as _};
use super::{Server, Tls};
use crate::error::Result;

/// Bytes that are received at once, in each direction.
const BUFFER: usize = 128 << 10;

/// A session of TLS. It has no socket: its user carries the bytes between it and the server.
trait Session: Send {
    /// Takes bytes of the server, at most [`BUFFER`], and appends what they say to `plain`.
    ///
    /// # Errors
    /// One clear line. The session is over, but what it has for the server (the reason) is still to be sent.
    fn decrypt(&mut self, bytes: &[u8], plain: &mut Vec<u8>) -> io::Result<State>;

    /// Encrypts bytes for the server.
    fn encrypt(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Tells the server the end.
    fn close(&mut self);

    /// Whether it has bytes for the server.
    fn wants_write(&self) -> bool;

    /// Writes bytes for the server, as many as it takes.
    fn write(&mut self, server: &mut dyn Write) -> io::Result<usize>;

    /// The reason of a server that ends the connection without one, before it has said anything over it.
    fn refusal(&self) -> Refusal;
}

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The handshake needs more bytes.
    Handshake,
    Open,
    /// The server has ended it in its order.
    Closed,
}

/// Why a server may have refused us without a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    what: &'static str,
    /// It is known to be so, even if the server's end was in its order.
    is_certain: bool,
}

impl Refusal {
    const UNKNOWN: Self = Self { what: "the server ends the connection", is_certain: false };

    fn error(self, place: &str) -> io::Error {
        let kind = match self.is_certain {
            true => io::ErrorKind::PermissionDenied,
            false => io::ErrorKind::ConnectionAborted,
        };
        io::Error::new(kind, format!("{place}: {}", self.what))
    }
}

/// One end of a connection that is to be encrypted.
pub(super) struct Client {
    session: Box<dyn Session>,
    /// For errors.
    place: String,
}

impl Client {
    /// Reads the certificates or the key.
    pub(super) fn new(tls: &Tls, server: &Server) -> Result<Self> {
        match tls {
            Tls::Certificates { directory, hostname } => {
                certificates::client(directory.as_deref(), hostname.as_deref(), server)
            }
            Tls::Psk { keys, user } => psk::client(keys, user),
        }
    }

    /// The handshake. Gives back our end of the pump that has the connection from then on.
    pub(super) fn start(mut self, socket: Socket, until: Instant) -> io::Result<Socket> {
        let mut plain = Vec::new();
        let mut buffer = vec![0; BUFFER];
        let mut received = 0;
        loop {
            let state = self.session.decrypt(&buffer[..received], &mut plain);
            let sent = self.send(&socket, until);
            match state? {
                State::Closed => return Err(self.session.refusal().error(&self.place)),
                State::Open => break sent?,
                State::Handshake => sent?,
            }
            received = match receive(&socket, &mut buffer, until) {
                Ok(0) => return Err(self.session.refusal().error(&self.place)),
                Err(error) if is_cut(&error) => {
                    return Err(self.session.refusal().error(&self.place));
                }
                received => received?,
            };
        }
        Pump::start(self, socket, plain)
    }

    /// Sends all that the session has.
    fn send(&mut self, socket: &Socket, until: Instant) -> io::Result<()> {
        let mut bytes = Vec::new();
        while self.session.wants_write() {
            self.session.write(&mut bytes)?;
        }
        match socket.send_all(&bytes, until) {
            // The server's last words, which are still to be received, have its reason.
            Err(error) if is_cut(&error) => Ok(()),
            sent => sent,
        }
    }
}

/// Waits for bytes.
fn receive(socket: &Socket, buffer: &mut [u8], until: Instant) -> io::Result<usize> {
    loop {
        // A server may send a byte now and then.
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match socket.receive(&mut [IoSliceMut::new(buffer)], true) {
            Err(error) if is_nothing(&error) => {}
            result => return result,
        }
    }
}

/// Whether a call would have had to wait.
fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Whether the other side has gone.
fn is_cut(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// Sends as much as a socket takes without waiting.
struct Unwaiting<'a>(&'a Socket);

impl Write for Unwaiting<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.send(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
