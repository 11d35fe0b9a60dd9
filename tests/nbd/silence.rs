//! Servers that stop answering on some of their connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ironmap::Errno;
use ironmap::bio::{Bio, BioEnd, BioFlags, BioOp, Buffer, Dev, Memory};
use ironmap::device::nbd::Nbd;
use ironmap::device::{Device, DeviceQueue, QueueOptions};
use ironmap::units::DevOffset;

use crate::fake::{FLUSH, FLUSH_COMMAND, Fake, READ, WRITE, within};

const ETIMEDOUT: Errno = Errno(110);
/// The flag of a server on which a flush over one connection also covers the writes over all other connections.
const MULTI_CONN: u16 = 1 << 8;

/// A server with several connections, and the number of writes that it received. On the connections with the numbers in `silent`, the
/// server answers only the first `first` requests.
fn server(silent: &'static [usize], first: usize) -> (Fake, Arc<AtomicU64>) {
    let writes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&writes);
    let server = Fake::start(1 << 20, FLUSH | MULTI_CONN, move |number, mut connection| {
        let mut answered = 0;
        while let Some(request) = connection.next() {
            counted.fetch_add(u64::from(request.command == WRITE), Ordering::Relaxed);
            if answered >= first && silent.contains(&number) {
                continue;
            }
            answered += 1;
            connection.succeed(&request);
        }
    });
    (server, writes)
}

fn write() -> Bio {
    Bio {
        op: BioOp::Write,
        flags: BioFlags::empty(),
        dev: Dev::OWN,
        at: DevOffset(0),
        memory: Memory::Flat(Buffer::from(vec![1; 4096])),
        end: BioEnd::Part { request: 0, part: 0 },
    }
}

/// If the server does not answer a read, the client sends the read again over a new connection. A write in flight over another connection
/// is not affected and is not sent again.
#[test]
fn a_silent_connection_does_not_end_the_others() {
    let (server, writes) = server(&[1, 2], 0);
    let device = Nbd::open(&server.address("&timeout=4"), true).unwrap();
    within(Duration::from_secs(20), move || {
        let mut writer = device.queue(&QueueOptions::new()).unwrap();
        let mut reader = device.queue(&QueueOptions::new()).unwrap();
        writer.submit(write()).unwrap();
        writer.commit().unwrap();
        reader.read_now(Dev::OWN, &mut [0; 4096], DevOffset(0), BioFlags::empty()).unwrap();
        assert_eq!(writes.load(Ordering::Relaxed), 1, "it was sent again");
        writer.wait(1).unwrap();
        assert_eq!(writer.pop().unwrap().result, Err(ETIMEDOUT));
        assert_eq!(writes.load(Ordering::Relaxed), 1, "it was sent again");
        assert!(device.flush().is_err());
    });
}

/// All calls of the device share one connection, on which the server does not answer. A queue has a write in flight over its own
/// connection. The session ends with a time-out, and the write is not sent again.
#[test]
fn the_silence_of_the_common_connection_sends_no_write_again() {
    // On the shared connection, the server answers only the first request. The client sends this request when the new queue is created.
    let (server, writes) = server(&[0, 1], 1);
    let device = Nbd::open(&server.address("&timeout=2"), true).unwrap();
    within(Duration::from_secs(20), move || {
        let mut writer = device.queue(&QueueOptions::new()).unwrap();
        // On each connection, the server answers the first request, such as this read.
        writer.read_now(Dev::OWN, &mut [0; 4096], DevOffset(0), BioFlags::empty()).unwrap();
        writer.submit(write()).unwrap();
        writer.commit().unwrap();
        let error = device.read_exact_at(&mut [0; 4096], DevOffset(0)).unwrap_err();
        assert_eq!(error.errno(), ETIMEDOUT);
        writer.wait(1).unwrap();
        assert_eq!(writer.pop().unwrap().result, Err(ETIMEDOUT));
        assert_eq!(writes.load(Ordering::Relaxed), 1, "it was sent again");
    });
}

/// If a server does not answer a write, it may still carry out this write later, over newer data. So the client sends only reads again, and
/// no writes.
#[test]
fn a_write_to_a_silent_server_is_not_sent_again() {
    for command in [WRITE, READ] {
        let asked = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&asked);
        let server = Fake::start(1 << 20, FLUSH, move |number, mut connection| {
            while let Some(request) = connection.next() {
                counted.fetch_add(u64::from(request.command == command), Ordering::Relaxed);
                // The server never answers a request of the first connection.
                if number > 0 {
                    connection.succeed(&request);
                }
            }
        });
        let device = Nbd::open(&server.address("&timeout=2"), true).unwrap();
        let result = within(Duration::from_secs(10), move || {
            if command == READ {
                return device.read_exact_at(&mut [0; 4096], DevOffset(0));
            }
            let block = [1; 4096];
            let written =
                device.write_all_at(&[std::io::IoSlice::new(&block)], DevOffset(0), false);
            assert_eq!(device.flush().unwrap_err().errno(), ETIMEDOUT, "the session has ended");
            written
        });
        let expected = if command == READ { Ok(()) } else { Err(ETIMEDOUT) };
        assert_eq!(result.map_err(|error| error.errno()), expected);
        let times = if command == READ { 2 } else { 1 };
        assert_eq!(asked.load(Ordering::Relaxed), times, "{command}");
    }
}

fn read(at: u64) -> Bio {
    let memory = Memory::Flat(Buffer::from(vec![0; 4096]));
    Bio { op: BioOp::Read, at: DevOffset(at), memory, ..write() }
}

/// If a server answers slowly but steadily, a request may wait longer than the time-out, because it waits for earlier requests.
#[test]
fn a_slow_server_is_waited_for() {
    let server = Fake::start(1 << 20, FLUSH, |_, mut connection| {
        while let Some(request) = connection.next() {
            std::thread::park_timeout(Duration::from_millis(300));
            connection.succeed(&request);
        }
    });
    let device = Nbd::open(&server.address("&timeout=1"), true).unwrap();
    let mut queue = device.queue(&QueueOptions::new().depth(10)).unwrap();
    for number in 0..10 {
        queue.submit(read(number * 4096)).unwrap();
    }
    queue.wait(10).unwrap();
    for _ in 0..10 {
        assert_eq!(queue.pop().unwrap().result, Ok(4096));
    }
}

/// A server answers all requests except one. The session ends after the time-out, although the server answers later requests.
#[test]
fn a_request_that_is_passed_over_fails() {
    let server = Fake::start(1 << 20, FLUSH, |_, mut connection| {
        connection.next();
        while let Some(request) = connection.next() {
            connection.succeed(&request);
        }
    });
    let device = Nbd::open(&server.address("&timeout=1"), true).unwrap();
    within(Duration::from_secs(20), move || {
        let mut queue = device.queue(&QueueOptions::new().depth(4)).unwrap();
        queue.submit(read(0)).unwrap();
        let errno = loop {
            queue.submit(read(4096)).unwrap();
            queue.wait(1).unwrap();
            if let Err(errno) = queue.pop().unwrap().result {
                break errno;
            }
        };
        assert_eq!(errno, ETIMEDOUT);
    });
}

/// A flush may need almost as much time as the time-out, on any connection. The connection is kept, and the flush is sent only once.
#[test]
fn a_slow_flush_is_waited_for() {
    for flags in [FLUSH, FLUSH | MULTI_CONN] {
        let (flushes, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (counted, newest) = (Arc::clone(&flushes), Arc::clone(&last));
        let server = Fake::start(1 << 20, flags, move |number, mut connection| {
            newest.fetch_max(number as u64, Ordering::Relaxed);
            while let Some(request) = connection.next() {
                if request.command == FLUSH_COMMAND {
                    counted.fetch_add(1, Ordering::Relaxed);
                    std::thread::park_timeout(Duration::from_millis(3200));
                }
                connection.succeed(&request);
            }
        });
        let device = Nbd::open(&server.address("&timeout=4"), true).unwrap();
        let connections = within(Duration::from_secs(20), move || {
            let mut queue = device.queue(&QueueOptions::new()).unwrap();
            queue.submit(write()).unwrap();
            queue.wait(1).unwrap();
            queue.pop().unwrap().result.unwrap();
            let connections = last.load(Ordering::Relaxed);
            queue.submit(Bio { op: BioOp::Flush, ..write_of(0, 0) }).unwrap();
            queue.wait(1).unwrap();
            queue.pop().unwrap().result.unwrap();
            device.flush().unwrap();
            (connections, last.load(Ordering::Relaxed))
        });
        assert_eq!(connections.0, connections.1, "a connection was given up");
        assert_eq!(flushes.load(Ordering::Relaxed), 2, "a flush was sent again");
    }
}

/// The client sends a flush by itself, to free the memory of stored writes, and the server never answers it. The server answers all other
/// requests, and other threads send requests and collect completions. The session still ends after the time-out. So writes that wait for
/// memory do not wait for ever.
#[test]
fn a_flush_of_the_clients_own_is_not_waited_for_for_ever() {
    const LEN: usize = 1 << 20;
    for (flags, is_silent) in [(FLUSH, false), (FLUSH, true), (FLUSH | MULTI_CONN, true)] {
        let server = Fake::start(256 << 20, flags, move |_, mut connection| {
            let mut flushes = false;
            while let Some(request) = connection.next() {
                flushes |= request.command == FLUSH_COMMAND;
                let answers = request.command != FLUSH_COMMAND
                    && (!is_silent || !flushes || request.command == WRITE);
                if answers {
                    connection.succeed(&request);
                }
            }
        });
        let device = Arc::new(Nbd::open(&server.address("&timeout=1"), true).unwrap());
        let other = Arc::clone(&device);
        let ended = Arc::new(AtomicU64::new(0));
        let over = Arc::clone(&ended);
        // The other thread either sends one request after another, or only collects completions.
        let reader = std::thread::spawn(move || {
            let mut queue = other.queue(&QueueOptions::new()).unwrap();
            while over.load(Ordering::Relaxed) == 0 {
                if is_silent {
                    let _ = queue.pop();
                    std::thread::park_timeout(Duration::from_millis(1));
                } else if queue.submit(read(0)).is_ok() && queue.wait(1).is_ok() {
                    let _ = queue.pop();
                }
            }
        });
        let errno = within(Duration::from_secs(30), move || {
            let mut queue = device.queue(&QueueOptions::new()).unwrap();
            // These writes contain more data than the client keeps until a flush. So some of the writes must wait.
            for number in 0..160 {
                queue.submit(write_of(number * LEN as u64, LEN)).unwrap();
                queue.wait(1).unwrap();
                if let Err(errno) = queue.pop().unwrap().result {
                    return errno;
                }
            }
            panic!("160 MiB were written without a flush");
        });
        assert_eq!(errno, ETIMEDOUT, "silent: {is_silent}");
        ended.store(1, Ordering::Relaxed);
        reader.join().unwrap();
    }
}

fn write_of(at: u64, len: usize) -> Bio {
    let memory = Memory::Flat(Buffer::from(vec![1; len]));
    Bio { at: DevOffset(at), memory, ..write() }
}
