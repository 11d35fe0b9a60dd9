//! A socket to a server.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, shutdown, socket_with,
};

use super::Server;

/// The longest wait of one call. After the wait, the caller checks the time-out.
const TICK: Duration = Duration::from_millis(500);
/// The size of a socket's send buffer. A larger buffer means fewer calls for a large request.
const SEND_BUFFER: usize = 1 << 20;
/// The time for which a dropped TLS connection may still send its last messages.
pub(super) const LINGER: Duration = Duration::from_millis(500);

/// A connected stream of bytes.
pub(super) trait Stream {
    /// Sends without waiting. Returns the number of bytes that the socket accepted.
    fn send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Receives bytes. The result 0 means the end of the stream. If `wait` is set, the call waits briefly for the first byte.
    ///
    /// # Errors
    /// `WouldBlock` if there are no bytes.
    fn receive(&self, bufs: &mut [IoSliceMut<'_>], wait: bool) -> io::Result<usize>;
}

/// A socket that is connected to a server. With TLS, it is one end of a socket pair whose other end belongs to a [pump](super::tls).
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    pump: Option<Arc<Ending>>,
}

/// The state that the pump and the user of a TLS connection share. It records whether and why the connection has ended.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Whether the user has abandoned the connection. If so, the pump sends no more bytes.
    pub(super) is_given_up: AtomicBool,
    /// The pump's error. It is not set if the server ended the connection with TLS's closing message.
    pub(super) cause: OnceLock<(io::ErrorKind, String)>,
}

impl Socket {
    /// Connects to a server.
    pub(super) fn connect(server: &Server, until: Instant) -> io::Result<Self> {
        let fd = match server {
            Server::Tcp(host, port) => tcp(host, *port, until)?,
            Server::Unix(path) => unix(path)?,
        };
        Self::of(fd, None)
    }

    /// Wraps a connected socket. If the socket has a pump, `pump` is the state that the pump and the socket share.
    pub(super) fn of(fd: OwnedFd, pump: Option<Arc<Ending>>) -> io::Result<Self> {
        set_socket_timeout(&fd, Timeout::Recv, Some(TICK))?;
        set_socket_timeout(&fd, Timeout::Send, Some(TICK))?;
        // The code ignores the error, because the buffer size is only a hint, and the system may limit it.
        let _ = set_socket_send_buffer_size(&fd, SEND_BUFFER);
        Ok(Self { fd, pump })
    }

    /// Sends all bytes. Waits at most until `until`.
    pub(super) fn send_all(&self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            in_time(until)?;
            let sent = sendmsg(
                &self.fd,
                &[IoSlice::new(bytes)],
                &mut SendAncillaryBuffer::default(),
                SendFlags::NOSIGNAL,
            );
            match self.explained(sent.map_err(io::Error::from), false) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) => go_on(error.kind()).ok_or(error)?,
            }
        }
        Ok(())
    }

    /// Ends the connection for all of its users.
    pub(super) fn shutdown(&self) {
        if let Some(pump) = &self.pump {
            pump.is_given_up.store(true, Ordering::Release);
        }
        let _ = shutdown(&self.fd, Shutdown::Both);
    }

    /// Returns the result of a call on the socket. If the call has failed, or if `receives` is set and the stream has ended, returns the
    /// pump's error instead.
    fn explained(&self, result: io::Result<usize>, receives: bool) -> io::Result<usize> {
        let has_ended = match &result {
            Ok(count) => receives && *count == 0,
            Err(error) => go_on(error.kind()).is_none(),
        };
        match self.pump.as_ref().and_then(|pump| pump.cause.get()) {
            Some((kind, cause)) if has_ended => Err(io::Error::new(*kind, cause.clone())),
            _ => result,
        }
    }

    /// Fills the buffer. Waits at most until `until`.
    pub(super) fn receive_all(&self, mut bytes: &mut [u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            // A server may send single bytes at long intervals, so each iteration checks the time.
            in_time(until)?;
            match self.receive(&mut [IoSliceMut::new(bytes)], true) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = bytes.get_mut(count..).unwrap_or_default(),
                Err(error) => go_on(error.kind()).ok_or(error)?,
            }
        }
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Some(pump) = &self.pump else { return };
        if pump.is_given_up.load(Ordering::Relaxed) {
            return;
        }
        // When the program ends, the pump ends too. Therefore, the drop waits briefly until the pump has sent the remaining bytes.
        let _ = shutdown(&self.fd, Shutdown::Write);
        let time = Timespec { tv_sec: 0, tv_nsec: LINGER.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&self.fd, PollFlags::empty())], Some(&time));
    }
}

impl Stream for Socket {
    fn send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = sendmsg(&self.fd, bufs, &mut SendAncillaryBuffer::default(), flags);
        self.explained(sent.map_err(io::Error::from), false)
    }

    fn receive(&self, bufs: &mut [IoSliceMut<'_>], wait: bool) -> io::Result<usize> {
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let received = recvmsg(&self.fd, bufs, &mut RecvAncillaryBuffer::default(), flags);
        self.explained(received.map(|received| received.bytes).map_err(io::Error::from), true)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<S: Stream> Stream for Arc<S> {
    fn send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (**self).send(bufs)
    }

    fn receive(&self, bufs: &mut [IoSliceMut<'_>], wait: bool) -> io::Result<usize> {
        (**self).receive(bufs, wait)
    }
}

fn in_time(until: Instant) -> io::Result<()> {
    if Instant::now() < until { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}

/// Returns `Some` if the caller must repeat the call that failed with this error.
fn go_on(error: io::ErrorKind) -> Option<()> {
    matches!(error, io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock).then_some(())
}

fn tcp(host: &str, port: u16, until: Instant) -> io::Result<OwnedFd> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now()).max(TICK);
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                // With TCP_NODELAY, the kernel sends a request immediately instead of waiting until further requests fill the packet.
                stream.set_nodelay(true)?;
                return Ok(stream.into());
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn unix(path: &Path) -> io::Result<OwnedFd> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The time-out applies to `connect` too. Without it, a server that accepts no connections could block this call.
    set_socket_timeout(&fd, Timeout::Send, Some(TICK))?;
    connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}
