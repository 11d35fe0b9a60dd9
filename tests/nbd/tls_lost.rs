//! TLS connections that are cut, damaged or closed.

use std::time::{Duration, Instant};

use ironmap::Errno;
use ironmap::device::nbd::{Address, Nbd};
use ironmap::device::{Device, QueueOptions};
use ironmap::units::DevOffset;

use crate::certificates::{Authority, NEEDS, address};
use crate::common::process::until;
use crate::data::{Load, content};
use crate::fake::within;
use crate::lost::{killed_under_load, rounds, under_load};
use crate::proxy::Proxy;
use crate::require;
use crate::server::Server;

/// A server with a cache in memory is killed and restarted, between requests and under load. All data that a flush covered are on the disk.
#[test]
fn a_killed_server_loses_nothing_over_tls() {
    require!(NEEDS);
    let authority = Authority::new();
    for seed in 0..rounds(1) {
        let args = format!("{} --filter=cache file DISK", authority.options());
        let mut server = Server::nbdkit(&args, &content(seed));
        let address = address(&server.socket(), &authority.client(), "");
        let mut load = Load::new(Nbd::open(&address, true).unwrap(), content(seed), seed);
        load.steps(200);
        server.kill();
        server.restart();
        load.steps(50);
        let mut server = killed_under_load(server, &mut load, seed);
        let model = load.end();
        server.kill();
        assert!(std::fs::read(server.disk()).unwrap() == model, "seed {seed}");
    }
}

/// Each connection ends after a random number of bytes, within a TLS record or between two. The TLS session is not closed. No acknowledged
/// data are lost.
#[test]
fn cut_connections_lose_nothing_over_tls() {
    require!(NEEDS);
    let authority = Authority::new();
    let several = "--filter=multi-conn file DISK";
    let single = "--filter=multi-conn file DISK multi-conn-mode=disable";
    for (seed, args) in (0..rounds(1)).flat_map(|seed| [(seed, several), (seed, single)]) {
        let args = format!("{} {args}", authority.options());
        let mut server = Server::nbdkit(&args, &content(seed));
        let proxy = Proxy::cutting(&server, seed, 2_000_000);
        let address = address(proxy.socket(), &authority.client(), "");
        let device = Nbd::open(&address, true).unwrap();
        let model = under_load(device, &mut server, seed, || proxy.cuts() > 5);
        assert!(proxy.cuts() > 3, "{} connections were cut", proxy.cuts());
        server.stop();
        assert!(std::fs::read(server.disk()).unwrap() == model, "{args}, seed {seed}");
    }
}

/// One byte of each connection is changed, in the handshake or later. The client returns an error or loses the connection. It never returns
/// wrong data.
#[test]
fn damaged_bytes_are_lost_connections() {
    require!(NEEDS);
    let authority = Authority::new();
    // The server supports only one connection. If it supported several, each further queue would make a connection, and the damage could
    // prevent this at the beginning of the connection.
    let single = "--filter=multi-conn file DISK multi-conn-mode=disable";
    let args = format!("{} {single}", authority.options());
    survive_damage(
        30,
        |seed| Server::nbdkit(&args, &content(seed)),
        |server, seed, in_handshake| {
            Proxy::damaging(server, seed, if in_handshake { 3000 } else { 400_000 })
        },
        |proxy, _, query| address(proxy.socket(), &authority.client(), query),
    );
}

/// Sends random requests through proxies that damage each connection. In every third round, the damage is in the handshake.
pub(crate) fn survive_damage(
    rounds: u64,
    start: impl Fn(u64) -> Server,
    proxy: impl Fn(&Server, u64, bool) -> Proxy,
    address: impl Fn(&Proxy, &Server, &str) -> Address,
) {
    let mut opened = 0;
    for seed in 0..rounds {
        let mut server = start(seed);
        let in_handshake = seed % 3 == 0;
        let proxy = proxy(&server, seed, in_handshake);
        let query = if in_handshake { "&timeout=2" } else { "&timeout=30" };
        let Ok(device) = Nbd::open(&address(&proxy, &server, query), true) else { continue };
        opened += 1;
        if in_handshake {
            // On some connections, the damage comes before the reply is complete. Then the read may fail.
            let mut found = vec![0; 512];
            if device.read_exact_at(&mut found, DevOffset(8192)).is_ok() {
                assert!(found == content(seed)[8192..8704], "seed {seed}");
            }
            continue;
        }
        let model = under_load(device, &mut server, seed, || true);
        drop(proxy);
        server.stop();
        assert!(std::fs::read(server.disk()).unwrap() == model, "seed {seed}");
    }
    assert!(opened > 5, "{opened} were opened");
}

/// The number of TLS threads in this process. Other tests that run at the same time have only a few.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let is_pump = |path: std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "ironmap-tls\n")
    };
    tasks.filter(|task| is_pump(task.path())).count()
}

/// When a connection ends or an open fails, its threads end and its sockets are closed.
#[test]
fn threads_end_with_their_connections() {
    require!(NEEDS);
    let authority = Authority::new();
    let args = format!("{} file DISK", authority.options());
    let server = Server::nbdkit(&args, &content(1));
    let right = address(&server.socket(), &authority.client(), "");
    let wrong = address(&server.socket(), &authority.client(), "&tls-hostname=else");
    for round in 0..200 {
        if round % 4 == 0 {
            Nbd::open(&wrong, false).unwrap_err();
            continue;
        }
        let device = Nbd::open(&right, false).unwrap();
        if round % 10 == 1 {
            drop(device.queue(&QueueOptions::new()).unwrap());
        }
        device.read_exact_at(&mut [0; 4096], DevOffset(0)).unwrap();
    }
    let threads = threads();
    assert!(threads < 60, "{threads} threads");
    until("the server has no connections", || server.sockets() < 4);
}

/// If a server stops receiving, the session ends after the time-out, and the drop of the device does not wait.
#[test]
fn a_stalled_server_is_left_in_time() {
    require!(NEEDS);
    let authority = Authority::new();
    let args = format!("{} file DISK", authority.options());
    let server = Server::nbdkit(&args, &content(1));
    let address = address(&server.socket(), &authority.client(), "&timeout=2");
    let device = Nbd::open(&address, true).unwrap();
    let idle = Nbd::open(&address, true).unwrap();
    device.flush().unwrap();
    server.suspend();
    let waited = within(Duration::from_secs(20), move || {
        let began = Instant::now();
        let error = device.read_exact_at(&mut [0; 4096], DevOffset(0)).unwrap_err();
        assert_eq!(error.errno(), Errno(110), "{error}");
        let data = vec![1; 1 << 20];
        let write = device.write_all_at(&[std::io::IoSlice::new(&data)], DevOffset(0), false);
        assert_eq!(write.unwrap_err().errno(), Errno(110));
        drop((device, idle));
        began.elapsed()
    });
    assert!(waited < Duration::from_secs(10), "{waited:?}");
}
