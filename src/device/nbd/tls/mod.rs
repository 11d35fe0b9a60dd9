//! TLS for connections to servers: the authentication, and the handshake. After the handshake, the connection belongs to a [pump].
//!
//! STARTTLS is the first option of the negotiation, so that the client accepts no unencrypted answer to another option. The negotiation
//! receives no bytes beyond the server's reply to STARTTLS. So plain text after that reply is processed as TLS, and the handshake fails.
//!
//! A server is always authenticated: by its certificate, or by a shared key.

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

/// The number of bytes that one call receives, in each direction.
const BUFFER: usize = 128 << 10;

/// A TLS session. It has no socket of its own: the caller transfers bytes between the session and the server.
trait Session: Send {
    /// Decrypts at most [`BUFFER`] bytes from the server, and appends the plain text to `plain`.
    ///
    /// # Errors
    /// An error with one line for the user. The session has then ended. Its remaining bytes contain the reason, and must still be sent to the
    /// server.
    fn decrypt(&mut self, bytes: &[u8], plain: &mut Vec<u8>) -> io::Result<State>;

    /// Encrypts bytes for the server.
    fn encrypt(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Prepares the message that ends the session.
    fn close(&mut self);

    /// Whether the session has bytes for the server.
    fn wants_write(&self) -> bool;

    /// Sends as many bytes of the session to the server as the socket accepts.
    fn write(&mut self, server: &mut dyn Write) -> io::Result<usize>;

    /// Returns the probable reason why a server closed a connection. This reason is reported if the server has sent no data over TLS and
    /// has not stated a reason itself.
    fn refusal(&self) -> Refusal;
}

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The handshake is not complete.
    Handshake,
    Open,
    /// The server has ended the session with TLS's closing message.
    Closed,
}

/// The reason why a server may have closed the connection without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    what: &'static str,
    /// Whether the reason also applies to a session that the server ended with TLS's closing message.
    is_certain: bool,
}

impl Refusal {
    const UNKNOWN: Self = Self { what: "the server ended the connection", is_certain: false };

    fn error(self, place: &str) -> io::Error {
        let kind = match self.is_certain {
            true => io::ErrorKind::PermissionDenied,
            false => io::ErrorKind::ConnectionAborted,
        };
        io::Error::new(kind, format!("{place}: {}", self.what))
    }
}

/// The TLS client for a connection that is not yet encrypted.
pub(super) struct Client {
    session: Box<dyn Session>,
    /// The server's address, for errors.
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

    /// Runs the handshake, starts the pump for the connection, and returns the user's end of the pump's socket pair.
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

    /// Sends all bytes that the session has for the server.
    fn send(&mut self, socket: &Socket, until: Instant) -> io::Result<()> {
        let mut bytes = Vec::new();
        while self.session.wants_write() {
            self.session.write(&mut bytes)?;
        }
        match socket.send_all(&bytes, until) {
            // The server has closed the connection. Its last message, which contains the reason, is received later.
            Err(error) if is_cut(&error) => Ok(()),
            sent => sent,
        }
    }
}

/// Waits for bytes.
fn receive(socket: &Socket, buffer: &mut [u8], until: Instant) -> io::Result<usize> {
    loop {
        // A server may send single bytes at long intervals, so each iteration checks the time.
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match socket.receive(&mut [IoSliceMut::new(buffer)], true) {
            Err(error) if is_nothing(&error) => {}
            result => return result,
        }
    }
}

/// Whether the error means that the operation would have to wait.
fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Whether an error means that the other side has closed the connection.
fn is_cut(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// Writes as many bytes as a socket accepts without waiting.
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
