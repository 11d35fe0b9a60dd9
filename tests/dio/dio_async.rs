//! Tests of requests in flight: the tokens that identify them, their order, the queue depth, registered memory, and the drop of a queue
//! with requests in flight.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::fixture::{FRAGMENTED, Fixture, HOLES, SOLID, Stack, TAIL, UNWRITTEN, open};
use crate::common::ranges::{Room, bytes, part, shape};
use crate::common::rng::Rng;
use ironmap::bio::{Buffer, Memory};
use ironmap::device::Faults;
use ironmap::dio::DioFlags;
use ironmap::units::FilePos;
use ironmap::{ErrorKind, File, Queue, QueueOptions};

const SEED: u64 = 0xa5_11c;
const NONE: DioFlags = DioFlags::empty();

/// The expected result of a request in flight.
struct Sent {
    expected: Vec<u8>,
    shape: Vec<(usize, usize)>,
}

/// The requests in flight. The key is the token that identifies a request.
#[derive(Default)]
struct InFlight(BTreeMap<u64, Sent>);

impl InFlight {
    fn submit(&mut self, queue: &mut Queue, file: &File, content: &[u8], pos: u64, memory: Memory) {
        let token = 1000 + self.0.last_key_value().map_or(0, |(last, _)| last - 999);
        let sent =
            Sent { expected: part(content, pos, memory.len()).to_vec(), shape: shape(&memory) };
        file.submit_read(queue, memory, FilePos(pos), NONE, token).expect("a read");
        assert!(self.0.insert(token, sent).is_none());
    }

    /// Pops the completions. Returns the tokens of the completed requests, in the order of completion.
    fn take(&mut self, queue: &mut Queue) -> Vec<u64> {
        let mut tokens = Vec::new();
        while let Some(done) = queue.pop() {
            let sent = self.0.remove(&done.token).expect("a token in flight, once");
            assert_eq!(done.result.expect("a read"), sent.expected.len(), "{}", done.token);
            assert_eq!(shape(&done.memory), sent.shape, "{}", done.token);
            assert!(bytes(&done.memory).starts_with(&sent.expected), "{}: bytes", done.token);
            tokens.push(done.token);
            assert_eq!(queue.outstanding(), self.0.len());
        }
        tokens
    }

    fn finish(&mut self, queue: &mut Queue) {
        while !self.0.is_empty() {
            queue.wait(self.0.len()).expect("wait");
            self.take(queue);
        }
        assert_eq!(queue.outstanding(), 0);
        assert!(queue.pop().is_none());
    }
}

fn room(offset: usize, len: usize) -> Memory {
    Memory::Flat(Room::new(offset + len).into_buffer(offset, len))
}

/// Runs `work` with a time limit. If the limit expires, the test fails.
fn within_a_minute(work: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        done.send(()).expect("the test waits");
    });
    match wait.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

/// A queue accepts many more requests of all kinds than it has slots. The queue returns each token once, with the right bytes in the memory
/// of the request.
#[test]
fn every_token_comes_back_with_its_own_bytes() {
    within_a_minute(|| {
        let fixture = Fixture::new(4096, SEED);
        for stack in Stack::REAL {
            let volume = fixture.volume(stack);
            let mut queue = volume.queue(&QueueOptions::new().depth(5)).unwrap();
            let names = [SOLID, FRAGMENTED, HOLES, UNWRITTEN, TAIL];
            let files = names.map(|name| (open(&volume, name, false), fixture.content(name)));
            let (mut rng, mut flight) = (Rng::new(SEED), InFlight::default());
            for _ in 0..400 {
                let (file, content) = &files[rng.below(5) as usize];
                let simple = rng.below(2) == 0;
                let pos = rng.below(content.len() as u64 + 600);
                let (pos, len, offset) = if simple {
                    (pos / 4096 * 4096, 4096, 0)
                } else {
                    (pos, rng.below(90_000) as usize, rng.below(5000) as usize)
                };
                flight.submit(&mut queue, file, content, pos, room(offset, len));
                match rng.below(8) {
                    0 => queue.poll().unwrap(),
                    1 => queue.wait(rng.below(9) as usize).unwrap(),
                    2 => drop(flight.take(&mut queue)),
                    _ => {}
                }
            }
            assert!(queue.stats().simple_hits > 20, "{stack}: {:?}", queue.stats());
            flight.finish(&mut queue);
        }
    });
}

/// The queue returns completions in the order in which the device finishes the requests. This order can differ from the order of
/// submission. Tokens identify the requests.
#[test]
fn completions_may_come_in_any_order() {
    let fixture = Fixture::new(4096, SEED);
    let mut shuffled = 0;
    for seed in 0..20 {
        let (sim, volume) = fixture.sim(Faults::default());
        let mut queue = volume.queue(&QueueOptions::new().depth(64)).unwrap();
        let (solid, holes) = (open(&volume, SOLID, true), open(&volume, HOLES, true));
        sim.set_faults(Faults { seed, latency: 9, ..Faults::default() });
        let mut flight = InFlight::default();
        for index in 0..32 {
            let (file, name) = if index % 3 == 0 { (&holes, HOLES) } else { (&solid, SOLID) };
            let len = if index % 5 == 0 { 40_960 } else { 4096 };
            flight.submit(&mut queue, file, fixture.content(name), index * 8192, room(0, len));
        }
        let mut order = Vec::new();
        while !flight.0.is_empty() {
            queue.wait(1).unwrap();
            order.extend(flight.take(&mut queue));
        }
        assert_eq!(order.len(), 32, "seed {seed}");
        shuffled += usize::from(!order.is_sorted());
    }
    assert!(shuffled > 10, "latency changes the order: {shuffled} of 20");
}

/// After `wait(min)`, at least `min` completions can be popped. If fewer than `min` requests are outstanding, `wait` waits for all of them.
/// Without outstanding requests, `wait` returns immediately.
#[test]
fn wait_brings_as_many_as_it_is_asked_for() {
    within_a_minute(|| {
        let fixture = Fixture::new(4096, SEED);
        for stack in Stack::REAL {
            let volume = fixture.volume(stack);
            let mut queue = volume.queue(&QueueOptions::new().depth(16)).unwrap();
            queue.wait(0).unwrap();
            queue.wait(3).unwrap();
            for (name, len) in
                [(SOLID, 4096), (SOLID, 64 << 10), (FRAGMENTED, 64 << 10), (TAIL, 512)]
            {
                let file = open(&volume, name, false);
                for min in [0, 1, 3, 7, 9] {
                    let mut flight = InFlight::default();
                    for index in 0..7 {
                        let pos = index * 4096;
                        flight.submit(&mut queue, &file, fixture.content(name), pos, room(0, len));
                    }
                    assert_eq!(queue.outstanding(), 7);
                    queue.wait(min).unwrap();
                    let came = flight.take(&mut queue).len();
                    assert!(came >= min.min(7), "{stack}, {name}: {came} of {min}");
                    flight.finish(&mut queue);
                }
            }
        }
    });
}

/// A synchronous read on a queue with requests in flight does not lose the completions of these requests.
#[test]
fn a_synchronous_read_between_loses_no_completion() {
    within_a_minute(|| {
        let fixture = Fixture::new(4096, SEED);
        for stack in Stack::REAL {
            let volume = fixture.volume(stack);
            let mut queue = volume.queue(&QueueOptions::new().depth(16)).unwrap();
            let file = open(&volume, SOLID, false);
            let content = fixture.content(SOLID);
            for len in [4096, 100_000] {
                let mut flight = InFlight::default();
                for index in 0..8 {
                    flight.submit(&mut queue, &file, content, index * 4096, room(0, 4096));
                    queue.poll().unwrap();
                    let mut between = Room::new(len);
                    let count = file.read_at(&mut queue, between.at(0, len), FilePos(8192));
                    assert_eq!(count.unwrap(), len, "{stack}");
                    assert_eq!(between.at(0, len), part(content, 8192, len), "{stack}");
                }
                queue.wait(8).unwrap();
                assert_eq!(flight.take(&mut queue).len(), 8, "{stack}, {len}");
            }
        }
    });
}

/// The drop of a queue waits for the requests in flight. After the drop, the kernel does not write to the memory of these requests, which
/// the allocator may have given to other code.
#[test]
fn a_queue_can_be_dropped_with_requests_in_flight() {
    within_a_minute(|| {
        let fixture = Fixture::new(4096, SEED);
        for stack in Stack::REAL {
            let volume = fixture.volume(stack);
            let files = [SOLID, FRAGMENTED].map(|name| open(&volume, name, false));
            for round in 0..60 {
                let mut queue = volume.queue(&QueueOptions::new().depth(32)).unwrap();
                let mut registered = queue.register_buffers(8, 4096).unwrap();
                for token in 0..40 {
                    let memory = match registered.pop() {
                        Some(buffer) if round % 2 == 0 => buffer.into(),
                        _ => room(0, [4096, 65536][token as usize % 2]),
                    };
                    let file = &files[token as usize % 2];
                    file.submit_read(&mut queue, memory, FilePos(4096 * token), NONE, token)
                        .expect("a read");
                }
                if round % 3 == 0 {
                    queue.poll().unwrap();
                }
                drop(queue);
                // The allocator probably returns the memory of the requests again. If a transfer were still in progress, it would change
                // these bytes.
                let after: Vec<_> = (0..40).map(|_| vec![round as u8; 65536]).collect();
                std::thread::yield_now();
                assert!(after.iter().flatten().all(|byte| *byte == round as u8), "{stack}");
            }
        }
    });
}

/// One queue accepts memory of every origin: registered with this queue, registered with another queue, not registered, misaligned, and
/// split from other buffers.
#[test]
fn registered_and_plain_buffers_mix() {
    within_a_minute(|| {
        let fixture = Fixture::new(4096, SEED);
        for stack in Stack::REAL {
            let volume = fixture.volume(stack);
            let mut queue = volume.queue(&QueueOptions::new().depth(8)).unwrap();
            let mut other = volume.queue(&QueueOptions::new().depth(8)).unwrap();
            let mut own = queue.register_buffers(6, 32 << 10).unwrap();
            let mut foreign = other.register_buffers(6, 32 << 10).unwrap();
            let mut flight = InFlight::default();
            for name in [SOLID, FRAGMENTED, HOLES] {
                let (file, content) = (open(&volume, name, false), fixture.content(name));
                let mut halves = own.pop().unwrap();
                let half = halves.split_to(12288);
                let memories = [
                    half.into(),
                    halves.into(),
                    foreign.pop().unwrap().into(),
                    room(0, 32 << 10),
                    room(77, 3000),
                    vec![own.pop().unwrap()].into(),
                    vec![foreign.pop().unwrap()].into(),
                ];
                for (index, memory) in memories.into_iter().enumerate() {
                    flight.submit(&mut queue, &file, content, 512 * index as u64, memory);
                }
                flight.finish(&mut queue);
            }
        }
    });
}

/// A registered buffer stays valid after its queue is dropped. From then on it counts as unregistered memory.
#[test]
fn a_registered_buffer_outlives_its_queue() {
    let fixture = Fixture::new(4096, SEED);
    let volume = fixture.volume(Stack::Uring);
    let file = open(&volume, SOLID, true);
    let mut first = volume.queue(&QueueOptions::default()).unwrap();
    let buffers = first.register_buffers(4, 8192).unwrap();
    assert!(first.register_buffers(1, 8192).is_err(), "once per queue");
    drop(first);
    let mut second = volume.queue(&QueueOptions::default()).unwrap();
    let mut flight = InFlight::default();
    for buffer in buffers {
        flight.submit(&mut second, &file, fixture.content(SOLID), 4096, buffer.into());
    }
    flight.finish(&mut second);
}

/// If a file is read through the queue of another volume, the request is refused. The memory is returned, and the device gets no request.
#[test]
fn a_queue_of_another_volume_is_refused() {
    let fixture = Fixture::new(4096, SEED);
    let (one, two) = (fixture.volume(Stack::Psync), fixture.volume(Stack::Psync));
    let file = open(&one, SOLID, true);
    let mut queue = two.queue(&QueueOptions::default()).unwrap();
    let mut memory = Room::new(4096);
    let result = file.read_at(&mut queue, memory.at(0, 4096), FilePos(0));
    assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
    let buffer = Buffer::aligned(4096).unwrap();
    let address = buffer.address();
    let rejected = file.submit_read(&mut queue, buffer, FilePos(0), NONE, 1).unwrap_err();
    assert_eq!(rejected.error.kind(), ErrorKind::InvalidInput);
    assert_eq!(shape(&rejected.memory), [(address, 4096)]);
    assert_eq!(queue.outstanding(), 0);
}

/// A queue works with every depth. A depth of 0 counts as 1.
#[test]
fn any_depth_works() {
    within_a_minute(|| {
        let fixture = Fixture::new(4096, SEED);
        for (stack, depth) in Stack::REAL
            .into_iter()
            .flat_map(|stack| [0, 1, 3, u32::MAX].map(|depth| (stack, depth)))
        {
            let volume = fixture.volume(stack);
            let mut queue = volume.queue(&QueueOptions::new().depth(depth)).unwrap();
            let file = open(&volume, SOLID, true);
            let mut flight = InFlight::default();
            for index in 0..5 {
                let memory = room(0, 4096 << index);
                flight.submit(&mut queue, &file, fixture.content(SOLID), index * 4096, memory);
            }
            flight.finish(&mut queue);
        }
    });
}
