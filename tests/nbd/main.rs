//! Volumes and devices on exports of NBD servers: nbdkit with its filters, qemu-nbd, nbd-server. The tests kill, stop and restart servers.
//! A proxy cuts connections and damages replies. Tests with TLS need the feature `tls` of the library.

#[cfg(feature = "tls")]
mod certificates;
#[path = "../common/mod.rs"]
mod common;
mod data;
mod event_loop;
mod fake;
mod hostile;
mod lost;
mod mmp;
mod oracles;
mod proxy;
#[cfg(feature = "psk")]
mod psk;
mod server;
mod silence;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tls")]
mod tls_lost;
mod volume;
