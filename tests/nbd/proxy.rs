//! A proxy between the client and a server. It cuts connections or damages replies.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ironmap::device::nbd::Address;

use crate::common::rng::Rng;
use crate::server::Server;

/// The changes that the proxy makes to the bytes of a connection in one direction.
#[derive(Clone, Copy)]
struct Fate {
    /// After this number of bytes, the proxy cuts the connection.
    cut: u64,
    /// The position of the byte that is changed.
    damaged: u64,
}

/// A running proxy. Each of its threads ends when its connection ends.
pub(crate) struct Proxy {
    socket: PathBuf,
    cuts: Arc<AtomicU64>,
    gate: Arc<Mutex<Gate>>,
}

/// A switch: if it is closed, the proxy has no connections and refuses new ones.
#[derive(Default)]
struct Gate {
    is_closed: bool,
    /// The open connections. `None` if the test never closes the gate (the switch that cuts all connections).
    open: Option<Vec<UnixStream>>,
}

impl Proxy {
    /// Makes a proxy that cuts each connection after a random number of bytes.
    pub(crate) fn cutting(server: &Server, seed: u64, below: u64) -> Self {
        let fate =
            move |rng: &mut Rng| Fate { cut: below / 20 + rng.below(below), damaged: u64::MAX };
        Self::start(server, seed, fate)
    }

    /// Makes a proxy that changes one byte of the replies on each connection. The byte is among the first `below` bytes.
    pub(crate) fn damaging(server: &Server, seed: u64, below: u64) -> Self {
        Self::start(server, seed, move |rng| Fate { cut: u64::MAX, damaged: rng.below(below) })
    }

    /// Makes a proxy that changes nothing. The test can close its gate: the proxy then cuts all connections and refuses new ones.
    pub(crate) fn gated(server: &Server) -> Self {
        let proxy = Self::start(server, 0, |_| Fate { cut: u64::MAX, damaged: u64::MAX });
        proxy.gate.lock().unwrap().open = Some(Vec::new());
        proxy
    }

    /// Cuts all connections, and refuses new ones.
    pub(crate) fn close(&self) {
        let mut gate = self.gate.lock().unwrap();
        gate.is_closed = true;
        for stream in gate.open.iter_mut().flat_map(|open| open.drain(..)) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Permits connections again.
    pub(crate) fn open(&self) {
        self.gate.lock().unwrap().is_closed = false;
    }

    fn start(server: &Server, seed: u64, fate: impl Fn(&mut Rng) -> Fate + Send + 'static) -> Self {
        let (socket, to) = (server.path("proxy"), server.socket());
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let cuts = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&cuts);
        let gate = Arc::<Mutex<Gate>>::default();
        let shared = Arc::clone(&gate);
        std::thread::spawn(move || {
            let mut rng = Rng::new(seed);
            while let Ok((client, _)) = listener.accept() {
                let mut gate = shared.lock().unwrap();
                if gate.is_closed {
                    continue;
                }
                let Ok(server) = UnixStream::connect(&to) else { continue };
                if let Some(open) = &mut gate.open {
                    open.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                }
                let both = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (there, back) = (fate(&mut rng), fate(&mut rng));
                let there = Fate { damaged: u64::MAX, ..there };
                let (one, other) = (Arc::clone(&counted), Arc::clone(&counted));
                std::thread::spawn(move || copy(both.0, both.1, there, &one));
                std::thread::spawn(move || copy(server, client, back, &other));
            }
        });
        Self { socket, cuts, gate }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn address(&self, query: &str) -> Address {
        let socket: &Path = &self.socket;
        format!("nbd+unix:///?socket={}{query}", socket.display()).parse().unwrap()
    }

    /// The number of connections that were cut.
    pub(crate) fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }
}

fn copy(mut from: UnixStream, mut to: UnixStream, fate: Fate, cuts: &AtomicU64) {
    let (mut at, mut bytes) = (0, [0; 16 << 10]);
    while let Ok(count) = from.read(&mut bytes) {
        if count == 0 {
            break;
        }
        let end = at + count as u64;
        if (at..end).contains(&fate.damaged) {
            bytes[(fate.damaged - at) as usize] ^= 0x41;
        }
        let kept = (fate.cut.saturating_sub(at) as usize).min(count);
        if to.write_all(&bytes[..kept]).is_err() {
            break;
        }
        if kept < count {
            cuts.fetch_add(1, Ordering::Relaxed);
            break;
        }
        at = end;
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
