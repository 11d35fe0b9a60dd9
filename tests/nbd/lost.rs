//! Servers that are killed, stopped, or restarted with fewer features than before.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ironmap::bio::{BioFlags, BioOp, Dev};
use ironmap::device::nbd::{Address, Nbd};
use ironmap::device::{Device, DeviceQueue as _, QueueOptions};
use ironmap::units::DevOffset;
use ironmap::{Errno, ErrorKind};
use rustix::process::Signal;

use crate::common::command::find;
use crate::common::image::scratch_in;
use crate::common::process::until;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::data::{Load, bio, content};
use crate::fake::{FLUSH, FLUSH_COMMAND, Fake, WRITE, within};
use crate::proxy::Proxy;
use crate::require;
use crate::server::Server;

const ETIMEDOUT: Errno = Errno(110);

/// The number of rounds. It is the value of `IRONMAP_NBD_ROUNDS`, or `few` if this is not set.
pub(crate) fn rounds(few: u64) -> u64 {
    std::env::var("IRONMAP_NBD_ROUNDS").map_or(few, |rounds| rounds.parse().unwrap())
}

/// Runs random steps (requests), and repeatedly kills and restarts the server. Between two kills, at least `least` steps run, and a random
/// number of further steps.
pub(crate) fn kill_while(
    server: &mut Server,
    done: &AtomicU64,
    least: u64,
    seed: u64,
    goes_on: impl Fn() -> bool,
) {
    let (mut rng, mut next) = (Rng::new(seed), 0);
    while goes_on() {
        if done.load(Ordering::Relaxed) < next {
            server.revive();
            std::thread::yield_now();
            continue;
        }
        server.kill();
        server.restart();
        next = done.load(Ordering::Relaxed) + least + rng.below(80);
    }
}

/// A server with a cache in memory is killed and restarted, both under load and between flushes. All requests succeed, and flushed data are
/// on the disk.
#[test]
fn a_killed_server_loses_nothing_that_was_answered() {
    require!([Need::Tool("nbdkit")]);
    for (seed, args) in (0..rounds(1)).flat_map(|seed| {
        [
            (seed, "--filter=cache file DISK"),
            (seed, "file DISK"),
            (seed, "--no-sr --filter=cache file DISK"),
        ]
    }) {
        let mut server = Server::nbdkit(args, &content(seed));
        let mut load = Load::new(server.open(true).unwrap(), content(seed), seed);
        load.steps(200);
        // No request is in flight when the server is killed. So the content can be restored only from the copies of unflushed data that the
        // client keeps.
        server.kill();
        server.restart();
        load.steps(50);
        // The server shuts down gracefully: it announces the shutdown to its clients, and waits until they disconnect.
        std::thread::scope(|scope| {
            let restart = scope.spawn(|| {
                server.stop();
                server.restart();
            });
            // The server ends only after its clients have received the announcement. A client receives it as a reply to a request, so the
            // test sends requests until the server ends.
            while !restart.is_finished() {
                load.steps(50);
            }
        });
        let mut server = killed_under_load(server, &mut load, seed);
        let model = load.end();
        // The kill also loses the writes that the server has in memory and has not flushed.
        server.kill();
        let disk = std::fs::read(server.disk()).unwrap();
        assert!(disk == model, "{args}, seed {seed}");
    }
}

/// Sends random requests to a server. Meanwhile the server is killed and restarted.
pub(crate) fn killed_under_load(mut server: Server, load: &mut Load, seed: u64) -> Server {
    let (has_ended, done) = (AtomicBool::new(false), Arc::clone(&load.done));
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            kill_while(&mut server, &done, 20, seed, || !has_ended.load(Ordering::Relaxed));
            server
        });
        load.steps(400);
        has_ended.store(true, Ordering::Relaxed);
        killer.join().unwrap()
    })
}

/// Each connection ends after a random number of bytes in one direction, even within a header or within data. No acknowledged data are
/// lost.
#[test]
fn cut_connections_lose_nothing() {
    require!([Need::Tool("nbdkit")]);
    let nbdkit = "-f --exit-with-parent -U SOCKET --filter=multi-conn file DISK";
    let single = &format!("{nbdkit} multi-conn-mode=disable");
    let qemu = "-t -e 8 -k SOCKET -f raw DISK";
    let servers = [("nbdkit", nbdkit), ("nbdkit", single), ("qemu-nbd", qemu)];
    for (seed, (program, args)) in
        (0..rounds(2)).flat_map(|seed| servers.map(|server| (seed, server)))
    {
        let mut server = Server::start(program, args, &content(seed));
        let proxy = Proxy::cutting(&server, seed, 2_000_000);
        let device = Nbd::open(&proxy.address("&timeout=60"), true).unwrap();
        let model = under_load(device, &mut server, seed, || proxy.cuts() > 5);
        assert!(proxy.cuts() > 3, "{} connections were cut", proxy.cuts());
        drop(proxy);
        server.stop();
        assert!(std::fs::read(server.disk()).unwrap() == model, "{args}, seed {seed}");
    }
}

/// Sends random requests. If the server ends, restarts it. Returns the content that the disk must have.
pub(crate) fn under_load(
    device: Nbd,
    server: &mut Server,
    seed: u64,
    is_enough: impl Fn() -> bool,
) -> Vec<u8> {
    let mut load = Load::new(device, content(seed), seed);
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                server.revive();
                std::thread::yield_now();
            }
        });
        // A proxy cuts each connection after a random number of bytes.
        for _ in 0..20 {
            load.steps(500);
            if is_enough() {
                break;
            }
        }
        let model = load.end();
        has_ended.store(true, Ordering::Relaxed);
        model
    })
}

/// If a server stops answering or ends, the requests to it fail within the time-out. All later requests fail too.
#[test]
fn a_server_that_stalls_or_is_gone_gives_an_error_in_time() {
    require!([Need::Tool("nbdkit")]);
    for gone in [false, true] {
        let mut server = Server::nbdkit("file DISK", &content(1));
        let device = Nbd::open(&server.address("&timeout=2"), true).unwrap();
        device.flush().unwrap();
        if gone {
            server.kill();
        } else {
            server.suspend();
        }
        let began = Instant::now();
        let error = device.read_exact_at(&mut [0; 4096], DevOffset(0)).unwrap_err();
        let waited = began.elapsed();
        assert_eq!(error.errno(), ETIMEDOUT, "{error}");
        let expected = Duration::from_millis(1900)..Duration::from_secs(10);
        assert!(expected.contains(&waited), "{waited:?}");
        if gone {
            server.restart();
        } else {
            server.signal(Signal::CONT);
        }
        let error = device.flush().unwrap_err();
        assert_eq!(error.errno(), ETIMEDOUT, "the session has ended: {error}");
    }
}

/// An export with another size after a restart counts as another export. The client does not write to it.
#[test]
fn an_export_that_has_changed_is_not_written() {
    require!([Need::Tool("nbdkit")]);
    let mut server = Server::nbdkit("file DISK", &content(1));
    let device = server.open(true).unwrap();
    server.kill();
    let other = content(2)[..1 << 20].to_vec();
    std::fs::write(server.disk(), &other).unwrap();
    server.restart();
    let data = [1; 4096];
    let bufs = [std::io::IoSlice::new(&data)];
    let error = device.write_all_at(&bufs, DevOffset(0), false).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(error.to_string().contains("has changed"), "{error}");
    assert!(device.flush().is_err());
    assert!(std::fs::read(server.disk()).unwrap() == other);
}

/// A failed request returns the error that the server sent. If a server refuses every request, its connection does not count as lost.
#[test]
fn errors_of_the_server_are_given_on() {
    require!([Need::Tool("nbdkit")]);
    let args = "--filter=error file DISK error=ENOSPC error-rate=100% error-file=DIR/fails";
    let server = Server::nbdkit(args, &content(1));
    let device = server.open(true).unwrap();
    let mut block = [0; 4096];
    device.read_exact_at(&mut block, DevOffset(0)).unwrap();
    std::fs::write(server.path("fails"), "").unwrap();
    let failed = device.read_exact_at(&mut block, DevOffset(0)).unwrap_err();
    assert_eq!(failed.errno(), Errno::ENOSPC);
    let bufs = [std::io::IoSlice::new(&block)];
    assert_eq!(device.write_all_at(&bufs, DevOffset(0), true).unwrap_err().errno(), Errno::ENOSPC);
    std::fs::remove_file(server.path("fails")).unwrap();
    device.read_exact_at(&mut [0; 4096], DevOffset(0)).unwrap();
}

/// If a server does not support flushes, its export is opened read-only. If the address of the export states that completed writes are
/// durable, the export is writable.
#[test]
fn a_server_without_a_flush_is_only_read() {
    require!([Need::Tool("nbdkit")]);
    let plugin = r#"#!/bin/sh
case $1 in
    get_size) echo 1M ;;
    pread) dd if=DISK iflag=count_bytes,skip_bytes count=$3 skip=$4 status=none ;;
    pwrite) dd of=DISK oflag=seek_bytes conv=notrunc seek=$4 status=none ;;
    can_write) ;;
    *) exit 2 ;;
esac
"#;
    let args = "-f --exit-with-parent -U SOCKET sh DIR/file";
    let server = Server::with_file("nbdkit", args, &content(1), plugin);
    let device = server.open(false).unwrap();
    let mut block = [0; 512];
    device.read_exact_at(&mut block, DevOffset(1024)).unwrap();
    assert!(block[..] == content(1)[1024..1536]);
    let error = server.open(true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("?flush=none"), "{error}");
    let device = Nbd::open(&server.address("&flush=none"), true).unwrap();
    assert!(device.notices().iter().any(|notice| notice.contains("no flush")));
    let data = [3; 512];
    device.write_all_at(&[std::io::IoSlice::new(&data)], DevOffset(0), true).unwrap();
    device.flush().unwrap();
    assert!(std::fs::read(server.disk()).unwrap()[..512] == data);
}

fn write(device: &Nbd, at: u64, data: &[u8]) -> ironmap::Result<()> {
    device.write_all_at(&[std::io::IoSlice::new(data)], DevOffset(at), false)
}

/// After a restart of the server, a new queue can be the first to connect, and so to detect the restart. A flush of this queue also covers
/// the writes before the restart.
#[test]
fn a_new_queue_notices_a_restart() {
    require!([Need::Tool("nbdkit")]);
    let mut server = Server::nbdkit("--filter=cache file DISK", &content(1));
    let device = server.open(true).unwrap();
    write(&device, 0, &[7; 4096]).unwrap();
    server.kill();
    server.restart();
    let mut queue = device.queue(&QueueOptions::new()).unwrap();
    queue.flush_now(Dev::OWN).unwrap();
    server.kill();
    assert!(std::fs::read(server.disk()).unwrap()[..4096] == [7; 4096]);
}

/// While a queue is idle, the server restarts, other queues restore the content, and the server restarts again. The idle queue detects the
/// second restart.
#[test]
fn an_idle_queue_notices_a_second_restart() {
    require!([Need::Tool("nbdkit")]);
    let mut server = Server::nbdkit("--filter=cache file DISK", &content(1));
    let device = server.open(true).unwrap();
    assert!(device.limits().volatile_cache);
    let mut queues = [(); 2].map(|()| device.queue(&QueueOptions::new()).unwrap());
    let data = [7; 4096];
    let bufs = [std::io::IoSlice::new(&data)];
    let flags = BioFlags::empty();
    queues[0].write_now(Dev::OWN, &bufs, DevOffset(0), flags).unwrap();
    for queue in &mut queues {
        server.kill();
        server.restart();
        queue.read_now(Dev::OWN, &mut [0; 4096], DevOffset(0), flags).unwrap();
    }
    let mut block = [0; 4096];
    queues[1].read_now(Dev::OWN, &mut block, DevOffset(0), flags).unwrap();
    assert!(block == data, "a stale read");
    queues[1].flush_now(Dev::OWN).unwrap();
    server.kill();
    assert!(std::fs::read(server.disk()).unwrap()[..4096] == data);
}

/// After a failed write, the content of its range is undefined. Older unflushed data must not be lost.
#[test]
fn a_failed_write_does_not_lose_an_older_one() {
    require!([Need::Tool("nbdkit")]);
    let args =
        "--filter=error --filter=cache file DISK error-pwrite-rate=100% error-file=DIR/fails";
    let mut server = Server::nbdkit(args, &content(1));
    let device = server.open(true).unwrap();
    write(&device, 0, &[7; 4096]).unwrap();
    std::fs::write(server.path("fails"), "").unwrap();
    write(&device, 0, &[8; 4096]).unwrap_err();
    std::fs::remove_file(server.path("fails")).unwrap();
    server.kill();
    server.restart();
    device.flush().unwrap();
    server.kill();
    assert!(std::fs::read(server.disk()).unwrap()[..4096] == [7; 4096]);
}

/// A durable write can fail because the server's own flush failed. That flush may have covered writes of other threads too. So all later
/// requests fail.
#[test]
fn nothing_succeeds_after_a_failed_durable_write() {
    require!([Need::Tool("nbdkit")]);
    let args = "--filter=error file DISK error-pwrite-rate=100% error-file=DIR/fails";
    let server = Server::nbdkit(args, &content(1));
    let device = server.open(true).unwrap();
    write(&device, 0, &[7; 4096]).unwrap();
    std::fs::write(server.path("fails"), "").unwrap();
    let data = [8; 4096];
    let bufs = [std::io::IoSlice::new(&data)];
    device.write_all_at(&bufs, DevOffset(4096), true).unwrap_err();
    std::fs::remove_file(server.path("fails")).unwrap();
    assert_eq!(device.flush().unwrap_err().errno(), Errno::EIO);
}

/// If a flush fails, data of all threads may be lost. So every later flush fails.
#[test]
fn nothing_succeeds_after_a_failed_flush() {
    for durable in [false, true] {
        let failed = AtomicBool::new(false);
        let server = Fake::start(1 << 20, FLUSH, move |_, mut connection| {
            while let Some(asked) = connection.next() {
                let first = asked.command == FLUSH_COMMAND && !failed.swap(true, Ordering::Relaxed);
                assert!(asked.command != FLUSH_COMMAND || (asked.at, asked.len) == (0, 0));
                if first { connection.answer(&asked, 5, &[]) } else { connection.succeed(&asked) }
            }
        });
        let device = Nbd::open(&server.address("&timeout=5"), true).unwrap();
        write(&device, 0, &[1; 4096]).unwrap();
        let failed = if durable {
            let data = [1; 4096];
            device.write_all_at(&[std::io::IoSlice::new(&data)], DevOffset(0), true)
        } else {
            device.flush()
        };
        assert_eq!(failed.unwrap_err().errno(), Errno::EIO);
        assert_eq!(device.flush().unwrap_err().errno(), Errno::EIO);
        assert_eq!(write(&device, 0, &[1; 4096]).unwrap_err().errno(), Errno::EIO);
        let mut queue = device.queue(&QueueOptions::new()).unwrap();
        assert_eq!(queue.flush_now(Dev::OWN), Err(Errno::EIO));
    }
}

/// A server ends the connection whenever it receives a certain request. The client sends the request again until the time-out, and then the
/// request fails.
#[test]
fn a_request_that_ends_each_connection_fails_in_time() {
    let server = Fake::start(1 << 20, FLUSH, |_, mut connection| {
        connection.next();
    });
    let device = Nbd::open(&server.address("&timeout=1"), true).unwrap();
    let error = within(Duration::from_secs(10), move || {
        device.read_exact_at(&mut [0; 4096], DevOffset(0)).unwrap_err()
    });
    assert_eq!(error.errno(), ETIMEDOUT, "{error}");
}

/// A flush that the client has sent by itself is in flight. No thread collects completions for longer than the time-out. The next request
/// still does not time out.
#[test]
fn a_pause_is_no_time_out() {
    let server = Fake::start(32 << 20, FLUSH, |_, mut connection| {
        let mut late = None;
        while let Some(asked) = connection.next() {
            match asked.command {
                FLUSH_COMMAND => late = Some(asked),
                WRITE => connection.succeed(&asked),
                _ => {
                    connection.succeed(&asked);
                    std::thread::park_timeout(Duration::from_millis(100));
                    if let Some(flush) = late.take() {
                        connection.succeed(&flush);
                    }
                }
            }
        }
    });
    let device = Nbd::open(&server.address("&timeout=1"), true).unwrap();
    let mut queue = device.queue(&QueueOptions::new().depth(20)).unwrap();
    for number in 0..17 {
        let data = vec![1; 1 << 20];
        queue.submit(bio(BioOp::Write, BioFlags::empty(), number << 20, data)).unwrap();
    }
    queue.wait(17).unwrap();
    while let Some(done) = queue.pop() {
        done.result.unwrap();
    }
    std::thread::park_timeout(Duration::from_millis(1500));
    for _ in 0..2 {
        queue.submit(bio(BioOp::Read, BioFlags::empty(), 0, vec![0; 4096])).unwrap();
        queue.commit().unwrap();
        queue.wait(1).unwrap();
        assert_eq!(queue.pop().unwrap().result, Ok(4096));
    }
}

/// Several threads with several queues write and flush while the server is killed. After a flush of a thread, the writes of this thread are
/// durable.
#[test]
fn threads_lose_nothing_when_the_server_is_killed() {
    require!([Need::Tool("nbdkit")]);
    const PART: u64 = 1 << 20;
    for (seed, args) in (0..rounds(1)).flat_map(|seed| {
        // The filter multi-conn needs exactly these options. With other options, it would answer a flush while another flush is still in
        // progress.
        let single = "--filter=multi-conn --filter=cache file DISK multi-conn-mode=disable \
                      multi-conn-track-dirty=off";
        [(seed, "--filter=cache file DISK"), (seed, single)]
    }) {
        let mut server = Server::nbdkit(args, &content(seed));
        let device = server.open(true).unwrap();
        let done = AtomicU64::new(0);
        let models = std::thread::scope(|scope| {
            let (device, done) = (&device, &done);
            let threads: Vec<_> = (0..4)
                .map(|part| {
                    scope.spawn(move || {
                        let mut rng = Rng::new(seed * 4 + part);
                        let mut model =
                            content(seed)[(part * PART) as usize..][..PART as usize].to_vec();
                        for _ in 0..6 {
                            // A queue can be made only while the server runs. So the attempt is repeated.
                            let mut queue = loop {
                                if let Ok(queue) = device.queue(&QueueOptions::new()) {
                                    break queue;
                                }
                            };
                            for _ in 0..60 {
                                let at = rng.below(PART / 4096) * 4096;
                                let place = at as usize..at as usize + 4096;
                                let at = DevOffset(part * PART + at);
                                let flags = BioFlags::empty();
                                match rng.below(8) {
                                    0 => queue.flush_now(Dev::OWN).unwrap(),
                                    1..4 => {
                                        let mut found = [0; 4096];
                                        queue.read_now(Dev::OWN, &mut found, at, flags).unwrap();
                                        assert!(found == model[place], "a read at {at:?}");
                                    }
                                    _ => {
                                        let data = rng.bytes(4096);
                                        let bufs = [std::io::IoSlice::new(&data)];
                                        queue.write_now(Dev::OWN, &bufs, at, flags).unwrap();
                                        model[place].copy_from_slice(&data);
                                    }
                                }
                                done.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        device.flush().unwrap();
                        model
                    })
                })
                .collect();
            let goes_on = || threads.iter().any(|thread| !thread.is_finished());
            kill_while(&mut server, done, 0, seed, goes_on);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        server.kill();
        assert!(std::fs::read(server.disk()).unwrap() == models.concat(), "{args}, seed {seed}");
    }
}

/// The filter exitlast of nbdkit ends the server after its last connection. After a graceful close of the connection, all completed writes
/// are on the disk.
#[test]
fn a_server_that_ends_with_its_last_connection_has_all() {
    require!([Need::Tool("nbdkit")]);
    let dir = scratch_in(Path::new("/dev/shm"));
    let (disk, socket) = (dir.path().join("disk"), dir.path().join("socket"));
    for seed in 0..rounds(3) {
        std::fs::write(&disk, content(seed)).unwrap();
        let mut nbdkit = Command::new(find("nbdkit").unwrap());
        nbdkit.args(["-f", "-U"]).arg(&socket).args(["--filter=exitlast", "file"]).arg(&disk);
        let mut server = nbdkit.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The socket exists before the server listens. The test must not make a trial connection: the server ends when its last connection
        // ends.
        let address: Address = format!("nbd+unix:///?socket={}", socket.display()).parse().unwrap();
        let mut device = None;
        until("nbdkit listens", || {
            device = Nbd::open(&address, true).ok();
            device.is_some()
        });
        let mut load = Load::new(device.unwrap(), content(seed), seed);
        load.steps(200);
        let model = load.end();
        until("nbdkit ends", || server.try_wait().unwrap().is_some());
        assert!(server.wait().unwrap().success(), "seed {seed}");
        assert!(std::fs::read(&disk).unwrap() == model, "seed {seed}");
        let _ = std::fs::remove_file(&socket);
    }
}
