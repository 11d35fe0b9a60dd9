//! Queues in an event loop. The loop waits only for the descriptor that signals completions.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ironmap::bio::{BioFlags, BioOp, Dev};
use ironmap::device::nbd::Nbd;
use ironmap::device::{BoundedQueue, Device, DeviceQueue as _, QueueOptions};
use ironmap::units::DevOffset;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use crate::common::skip::Need;
use crate::data::{bio, content};
use crate::require;
use crate::server::Server;

/// The kind of event loop: level-triggered, or edge-triggered as in tokio.
enum Loop {
    Level(OwnedFd),
    /// The epoll descriptor. The queue's descriptor is registered with it and must stay open too.
    Edge(OwnedFd, #[expect(dead_code, reason = "it is closed at the end")] OwnedFd),
}

impl Loop {
    fn new(queue: &mut BoundedQueue, edge: bool) -> Self {
        let ready = queue.readiness().unwrap();
        if !edge {
            return Self::Level(ready);
        }
        let outer = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&outer, &ready, epoll::EventData::new_u64(0), flags).unwrap();
        Self::Edge(outer, ready)
    }

    /// Whether the queue becomes ready within this time.
    fn wakes(&self, time: Duration) -> bool {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        match self {
            Self::Level(ready) => {
                poll(&mut [PollFd::new(&ready.as_fd(), PollFlags::IN)], Some(&time)).unwrap() > 0
            }
            Self::Edge(outer, _) => {
                let mut events = [epoll::Event {
                    flags: epoll::EventFlags::empty(),
                    data: epoll::EventData::new_u64(0),
                }; 1];
                epoll::wait(outer, &mut events[..], Some(&time)).unwrap() > 0
            }
        }
    }

    /// Alternately pops completions and waits, until no request of the queue is in flight.
    fn run(&self, queue: &mut BoundedQueue, mut done: impl FnMut(ironmap::bio::Done)) {
        let began = Instant::now();
        while queue.in_flight() > 0 {
            queue.commit().unwrap();
            let mut waits = true;
            while let Some(completion) = queue.pop() {
                done(completion);
                waits = false;
            }
            if waits && queue.in_flight() > 0 {
                let wakes = self.wakes(Duration::from_secs(5));
                assert!(wakes, "{} requests are forgotten", queue.in_flight());
            }
            assert!(began.elapsed() < Duration::from_secs(20));
        }
    }
}

const MIB: usize = 1 << 20;

fn submit(queue: &mut BoundedQueue, op: BioOp) {
    for number in 0..4 {
        let memory = vec![9; MIB];
        queue.submit(bio(op, BioFlags::empty(), number << 20, memory)).unwrap();
    }
}

const SINGLE: &str = "--filter=multi-conn file DISK multi-conn-mode=disable";

fn each(mut call: impl FnMut(&str, bool)) {
    for args in ["file DISK", SINGLE] {
        for edge in [false, true] {
            call(args, edge);
        }
    }
}

/// An event loop sends requests to a server. During the transfer, the server is restarted.
pub(crate) fn transfer(device: &Nbd, server: &mut Server, edge: bool) {
    let mut queue = device.queue(&QueueOptions::new().depth(8)).unwrap();
    let ready = Loop::new(&mut queue, edge);
    for round in 0..4 {
        for op in [BioOp::Write, BioOp::Read] {
            submit(&mut queue, op);
            if round == 2 {
                server.kill();
                server.restart();
            }
            ready.run(&mut queue, |done| assert_eq!(done.result, Ok(MIB)));
        }
    }
}

/// The requests have more data than the buffer of a socket. They complete in each direction, even if the server is restarted.
#[test]
fn large_requests_complete() {
    require!([Need::Tool("nbdkit")]);
    each(|args, edge| {
        let mut server = Server::nbdkit(args, &content(1));
        let device = server.open(true).unwrap();
        transfer(&device, &mut server, edge);
    });
}

/// If a server stops answering, the event loop gets an event when the session ends.
#[test]
fn a_stalled_server_is_seen() {
    require!([Need::Tool("nbdkit")]);
    each(|args, edge| {
        let server = Server::nbdkit(args, &content(1));
        let device = Nbd::open(&server.address("&timeout=1"), true).unwrap();
        let mut queue = device.queue(&QueueOptions::new().depth(8)).unwrap();
        let ready = Loop::new(&mut queue, edge);
        server.suspend();
        submit(&mut queue, BioOp::Read);
        let mut failed = 0;
        ready.run(&mut queue, |done| failed += u32::from(done.result.is_err()));
        assert_eq!(failed, 4);
    });
}

/// Asserts that a queue without new completions wakes no event loop: after calls, after the loss of the server, and after the end of the
/// session.
pub(crate) fn is_quiet_when_idle(device: &Nbd, server: &mut Server, name: &str) {
    let mut queue = device.queue(&QueueOptions::new().depth(8)).unwrap();
    let ready = Loop::new(&mut queue, false);
    let is_quiet = |queue: &mut BoundedQueue, when: &str| {
        let woken = (0..10).filter(|_| {
            let wakes = ready.wakes(Duration::from_millis(30));
            queue.commit().unwrap();
            wakes
        });
        assert!(woken.count() < 4, "{name}: {when}");
    };
    submit(&mut queue, BioOp::Read);
    for _ in 0..20 {
        queue.read_now(Dev::OWN, &mut [0; 512], DevOffset(0), BioFlags::empty()).unwrap();
    }
    ready.run(&mut queue, |done| assert_eq!(done.result, Ok(MIB)));
    is_quiet(&mut queue, "after calls");
    server.kill();
    is_quiet(&mut queue, "without a server");
    submit(&mut queue, BioOp::Read);
    ready.run(&mut queue, |done| assert!(done.result.is_err()));
    is_quiet(&mut queue, "after the end");
}

/// A queue without new completions wakes no event loop. The test covers calls with requests in flight, the loss of the server, and the end
/// of the session.
#[test]
fn an_idle_queue_is_quiet() {
    require!([Need::Tool("nbdkit")]);
    for args in ["file DISK", SINGLE] {
        let mut server = Server::nbdkit(args, &content(1));
        let device = Nbd::open(&server.address("&timeout=1"), true).unwrap();
        is_quiet_when_idle(&device, &mut server, args);
    }
}

/// The drop of a queue closes all of its descriptors.
#[test]
fn descriptors_are_closed_with_their_queues() {
    require!([Need::Tool("nbdkit")]);
    let server = Server::nbdkit(SINGLE, &content(1));
    let device = server.open(false).unwrap();
    let ours = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let is_epoll = |path: std::path::PathBuf| path.to_string_lossy().contains("eventpoll");
        fds.filter(|fd| fd.path().read_link().is_ok_and(is_epoll)).count()
    };
    for _ in 0..200 {
        let mut queue = device.queue(&QueueOptions::new()).unwrap();
        for _ in 0..3 {
            queue.readiness().unwrap();
        }
    }
    assert!(ours() < 100, "{} descriptors", ours());
}
