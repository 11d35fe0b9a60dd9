//! Servers that violate the protocol. The client returns an error within the time-out. It does not panic or hang, and its memory is
//! bounded.

use std::io::{IoSlice, Read, Write};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use ironmap::device::nbd::{Address, Nbd};
use ironmap::device::{Device, QueueOptions};
use ironmap::units::DevOffset;

use crate::common::image::scratch_in;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::data::content;
use crate::proxy::Proxy;
use crate::require;
use crate::server::Server;

/// One byte of the server's replies is changed, during the negotiation or later. The client returns an error or an answer. NBD has no
/// checksum for data, so the data may be wrong.
#[test]
fn damaged_replies_end_in_an_error_or_in_an_answer() {
    require!([Need::Tool("nbdkit")]);
    for seed in 0..60 {
        let args = if seed % 2 == 0 { "file DISK" } else { "--no-sr file DISK" };
        let server = Server::nbdkit(args, &content(seed));
        let proxy = Proxy::damaging(&server, seed, if seed % 3 == 0 { 300 } else { 3000 });
        let began = Instant::now();
        let Ok(device) = Nbd::open(&proxy.address("&timeout=1"), true) else { continue };
        let mut queue = device.queue(&QueueOptions::new().depth(4));
        for at in 0..8 {
            let _ = device.read_exact_at(&mut [0; 700], DevOffset(at * 1000));
            let _ = device.write_all_at(&[IoSlice::new(&[0; 512])], DevOffset(at * 512), at == 3);
            let _ = device.flush();
        }
        if let Ok(queue) = &mut queue {
            let _ = ironmap::device::DeviceQueue::flush_now(queue, ironmap::bio::Dev::OWN);
        }
        drop((queue, device));
        assert!(began.elapsed() < Duration::from_secs(40), "seed {seed}: {:?}", began.elapsed());
    }
}

/// If a server sends random bytes, the client returns an error.
#[test]
fn random_bytes_are_no_server() {
    let dir = scratch_in(std::path::Path::new("/dev/shm"));
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let address: Address =
        format!("nbd+unix:///x?socket={}&timeout=1", socket.display()).parse().unwrap();
    for seed in 0..200 {
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| Nbd::open(&address, true));
            let (mut stream, _) = listener.accept().unwrap();
            let mut rng = Rng::new(seed);
            // The prefix is a valid beginning of the negotiation. After it, the client reads the random bytes as a later message of the
            // protocol.
            let prefix: &[&[u8]] = &[
                b"NBDMAGIC",
                b"IHAVEOPT",
                &[0, 3],
                &0x0003_E889_0455_65A9_u64.to_be_bytes(),
                &11_u32.to_be_bytes(),
                &1_u32.to_be_bytes(),
                &0_u32.to_be_bytes(),
                &0x0003_E889_0455_65A9_u64.to_be_bytes(),
                &7_u32.to_be_bytes(),
                &3_u32.to_be_bytes(),
                &[0, 0, 0, 12, 0, 0],
            ];
            let known = rng.below(prefix.len() as u64 + 1) as usize;
            let len = rng.below(200) as usize;
            let bytes = [prefix[..known].concat(), rng.bytes(len)].concat();
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
            assert!(opened.join().unwrap().is_err(), "seed {seed}");
        });
    }
}

/// A server sends single bytes with pauses and never completes a reply. The client still returns an error after the time-out.
#[test]
fn a_trickle_is_no_answer() {
    let dir = scratch_in(std::path::Path::new("/dev/shm"));
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let address: Address =
        format!("nbd+unix:///x?socket={}&timeout=1", socket.display()).parse().unwrap();
    let opened = std::thread::spawn(move || (Nbd::open(&address, true), Instant::now()));
    let (mut stream, _) = listener.accept().unwrap();
    let began = Instant::now();
    let hello = [&b"NBDMAGICIHAVEOPT"[..], &[0, 3]].concat();
    let endless = &0x0003_E889_0455_65A9_u64.to_be_bytes();
    stream
        .write_all(&[&hello, &endless[..], &[0, 0, 0, 11, 0, 0, 0, 1, 0, 0, 255, 255]].concat())
        .unwrap();
    while began.elapsed() < Duration::from_secs(6) && stream.write_all(&[0]).is_ok() {
        std::thread::park_timeout(Duration::from_millis(100));
    }
    drop(stream);
    let (result, ended) = opened.join().unwrap();
    assert_eq!(result.unwrap_err().errno(), ironmap::Errno(110));
    assert!(ended - began < Duration::from_secs(4), "{:?}", ended - began);
}
