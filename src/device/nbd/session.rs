//! The state that all links to an export share.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::handshake::{Export, negotiate};
use super::retained::Retained;
use super::stream::Socket;
use super::tls::Client;
use super::wire::ExportFlags;
use super::{Address, Server};
use crate::device::Fence;
use crate::error::{Context, Errno, Error, ErrorKind, Result};
use crate::sync::Mutex;

/// The time limit of one attempt to connect.
pub(super) const ATTEMPT: Duration = Duration::from_secs(10);

/// The state that all links to an export share.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) address: Address,
    pub(super) export: Export,
    /// A copy of the field `generation` of [`Shared`].
    pub(super) generation: AtomicU64,
    /// The number of unanswered requests, over all links, that change the export.
    pub(super) changes: AtomicUsize,
    pub(super) shared: Mutex<Shared>,
    pub(super) fence: Mutex<Option<Fenced>>,
}

/// A [fence](Fence), with the position and the length of its block on the export. The fence checks that no other computer uses the device.
#[derive(Clone, Debug)]
pub(super) struct Fenced {
    pub(super) at: u64,
    pub(super) len: usize,
    pub(super) fence: Arc<dyn Fence>,
}

#[derive(Debug)]
pub(super) struct Shared {
    /// The generation of the connections. Each loss of connections increments this number. Replies over connections of older generations
    /// are ignored.
    pub(super) generation: u64,
    pub(super) retained: Retained,
    /// The sockets of the current generation of connections, that is, since the last loss of connections.
    pub(super) sockets: Vec<Weak<Socket>>,
    /// Whether a flush of the session is in flight.
    pub(super) flushing: bool,
    /// The error that ended the session. After this error, no request is retried.
    pub(super) ended: Option<Errno>,
    /// The reason for the last lost connection or failed attempt to connect, for the user.
    pub(super) why: Option<String>,
}

impl Shared {
    /// Adds the socket of a new connection to the current generation of connections.
    pub(super) fn add(&mut self, socket: &Arc<Socket>) {
        self.sockets.retain(|socket| socket.strong_count() > 0);
        self.sockets.push(Arc::downgrade(socket));
    }

    /// Ends the session, if it has not already ended.
    pub(super) fn end(&mut self, errno: Errno, why: &str) {
        if self.ended.is_none() {
            (self.ended, self.why) = (Some(errno), Some(why.to_owned()));
        }
    }
}

impl Session {
    /// Connects to an export for the first time.
    pub(super) fn open(address: &Address) -> Result<(Arc<Self>, Arc<Socket>)> {
        let until = Instant::now() + address.timeout.min(ATTEMPT);
        let (socket, export) = connect(address, until).at(|| address)?;
        let socket = Arc::new(socket);
        let shared = Shared {
            generation: 0,
            retained: Retained::default(),
            sockets: vec![Arc::downgrade(&socket)],
            flushing: false,
            ended: None,
            why: None,
        };
        let session = Self {
            address: address.clone(),
            export,
            generation: AtomicU64::new(0),
            changes: AtomicUsize::new(0),
            shared: Mutex::new(shared),
            fence: Mutex::new(None),
        };
        Ok((Arc::new(session), socket))
    }

    /// Reconnects to the same export. If the export has changed, the session ends.
    pub(super) fn connect<T>(&self, until: Instant) -> Result<Connection<Arc<Socket>, T>> {
        let (socket, export) = connect(&self.address, until)?;
        let still = self.still(&export).inspect_err(|error| {
            self.shared.lock().end(Errno::EINVAL, &error.to_string());
        });
        let Export { headers, allocation, .. } = *still?;
        Ok(Connection::new(Arc::new(socket), headers).with_allocation(allocation))
    }

    /// # Errors
    /// `InvalidInput` if the server's export differs from the export that was opened.
    fn still<'a>(&self, export: &'a Export) -> Result<&'a Export> {
        let needed = self.export.flags & ExportFlags::ABILITIES;
        let refused = export.flags & ExportFlags::READ_ONLY & !self.export.flags;
        // If the export has grown, the session continues with the old size.
        if export.size < self.export.size {
            let sizes = format!("{} instead of {} bytes", export.size, self.export.size);
            return Err(Error::invalid(format!("the export has changed: it has {sizes}")));
        }
        if !export.flags.contains(needed)
            || !refused.is_empty()
            || export.blocks.minimum > self.export.blocks.minimum
            || export.blocks.maximum < self.export.blocks.maximum
        {
            return Err(Error::invalid(
                "the export has changed: the server no longer supports a command or a block size in use",
            ));
        }
        Ok(export)
    }

    /// Returns the reason why the session ended.
    pub(super) fn end(&self) -> Option<String> {
        let shared = self.shared.lock();
        shared.ended.and_then(|_| shared.why.clone())
    }

    /// Whether the session stores copies of data that no flush covers. A restarted server may have lost these data.
    pub(super) fn keeps(&self) -> bool {
        self.export.flags.contains(ExportFlags::SEND_FLUSH)
    }
}

fn connect(address: &Address, until: Instant) -> Result<(Socket, Export)> {
    // The certificates are read again for each connection, because they may be renewed during a session.
    let tls = address.tls.as_ref().map(|tls| Client::new(tls, &address.server)).transpose()?;
    let socket = Socket::connect(&address.server, until).map_err(|error| {
        let errno = error.raw_os_error().map_or(Errno::EIO, Errno);
        let place = match &address.server {
            Server::Tcp(host, port) => format!("connect to {host}, port {port}"),
            Server::Unix(path) => format!("connect to {}", path.display()),
        };
        match error.raw_os_error() {
            Some(_) => Error::io(errno, place),
            // If the name look-up has failed, the error already contains a text for the user.
            None => Error::new(ErrorKind::Io(errno), format!("{place}: {error}")),
        }
    })?;
    negotiate(socket, &address.export, tls, until)
}
