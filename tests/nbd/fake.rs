//! An NBD server in this process. The test determines the answers of this server.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ironmap::device::nbd::Address;
use tempfile::TempDir;

use crate::common::image::scratch_in;

/// The flag of a server that supports flushes.
pub(crate) const FLUSH: u16 = 1 << 2;

/// The commands of the protocol.
pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const FLUSH_COMMAND: u16 = 3;

/// A server. Each of its threads ends when its connection ends.
pub(crate) struct Fake {
    dir: TempDir,
}

/// A connection after the negotiation. The client has chosen the export.
pub(crate) struct Connection(UnixStream);

/// A request from the client.
pub(crate) struct Asked {
    pub(crate) command: u16,
    pub(crate) at: u64,
    pub(crate) len: u32,
    #[expect(dead_code, reason = "for a test")]
    pub(crate) data: Vec<u8>,
    cookie: [u8; 8],
}

impl Fake {
    /// Serves an export with this size and these features. For each connection, calls `serve` with the number of the connection and the
    /// connection.
    pub(crate) fn start(
        size: u64,
        flags: u16,
        serve: impl Fn(usize, Connection) + Send + Sync + 'static,
    ) -> Self {
        let dir = scratch_in(std::path::Path::new("/dev/shm"));
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (serve, stream) = (Arc::clone(&serve), stream.unwrap());
                std::thread::spawn(move || {
                    if let Some(connection) = negotiate(stream, size, flags) {
                        serve(number, connection);
                    }
                });
            }
        });
        Self { dir }
    }

    /// A server that follows a script. The script includes the negotiation.
    #[cfg(feature = "tls")]
    pub(crate) fn scripted(script: impl Fn(UnixStream) + Send + 'static) -> Self {
        let dir = scratch_in(std::path::Path::new("/dev/shm"));
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                script(stream.unwrap());
            }
        });
        Self { dir }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("socket")
    }

    pub(crate) fn address(&self, query: &str) -> Address {
        let socket = self.dir.path().join("socket");
        format!("nbd+unix:///?socket={}{query}", socket.display()).parse().unwrap()
    }
}

fn negotiate(mut stream: UnixStream, size: u64, flags: u16) -> Option<Connection> {
    let greeting = [&b"NBDMAGICIHAVEOPT"[..], &3_u16.to_be_bytes()].concat();
    stream.write_all(&greeting).ok()?;
    stream.read_exact(&mut [0; 4]).ok()?;
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head).ok()?;
        let len = u32::from_be_bytes(*head.last_chunk()?);
        stream.read_exact(&mut vec![0; len as usize]).ok()?;
        let mut reply = |kind: u32, content: &[u8]| {
            let magic = 0x0003_E889_0455_65A9_u64.to_be_bytes();
            let len = (content.len() as u32).to_be_bytes();
            let head = [&magic[..], &head[8..12], &kind.to_be_bytes(), &len, content];
            stream.write_all(&head.concat()).ok()
        };
        if u32::from_be_bytes(head[8..12].try_into().unwrap()) == 7 {
            let flags = (flags | 1).to_be_bytes();
            reply(3, &[&[0, 0][..], &size.to_be_bytes(), &flags].concat())?;
            reply(1, &[])?;
            return Some(Connection(stream));
        }
        reply((1 << 31) + 1, &[])?;
    }
}

impl Connection {
    /// The next request, or `None` after the client has disconnected.
    pub(crate) fn next(&mut self) -> Option<Asked> {
        let mut head = [0; 28];
        self.0.read_exact(&mut head).ok()?;
        let len = u32::from_be_bytes(*head.last_chunk()?);
        let at = u64::from_be_bytes(head[16..24].try_into().unwrap());
        let command = u16::from_be_bytes([head[6], head[7]]);
        let mut data = vec![0; if command == WRITE { len as usize } else { 0 }];
        self.0.read_exact(&mut data).ok()?;
        let cookie = head[8..16].try_into().unwrap();
        (command != 2).then_some(Asked { command, at, len, data, cookie })
    }

    /// Answers a request with an error number; 0 means success. `data` follow the reply.
    pub(crate) fn answer(&mut self, asked: &Asked, error: u32, data: &[u8]) {
        let head = [&0x6744_6698_u32.to_be_bytes()[..], &error.to_be_bytes(), &asked.cookie];
        let _ = self.0.write_all(&[&head.concat(), data].concat());
    }

    /// Answers a request with success. A read returns zeros.
    pub(crate) fn succeed(&mut self, asked: &Asked) {
        let data = vec![0; if asked.command == READ { asked.len as usize } else { 0 }];
        self.answer(asked, 0, &data);
    }
}

/// Runs `work`. If it does not end within this time, fails the test.
pub(crate) fn within<T: Send + 'static>(
    time: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, ended) = std::sync::mpsc::channel();
    let began = Instant::now();
    std::thread::spawn(move || done.send(call()));
    ended.recv_timeout(time).unwrap_or_else(|error| panic!("{error} after {:?}", began.elapsed()))
}
