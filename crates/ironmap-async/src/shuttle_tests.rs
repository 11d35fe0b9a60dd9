//! Tests how jobs pass from tasks to threads, and answers back to tasks. A model checker chooses the schedules: `./x shuttle`.
//!
//! The threads, the jobs, the promises and the wakes are those of the pool. Only the queue of a thread is a model, whose device completes
//! requests in any order, at any time.

use std::env;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::{Barrier, Condvar, Mutex, MutexGuard};
use shuttle::{Config, Runner, thread};

use crate::promise::{Answer, Lost, Promise, Wakes, promise};
use crate::sync::{Event, Source};
use crate::threads::{Threads, Work};

/// The seed of the schedules. If the variable `SHUTTLE_RANDOM_SEED` is set, the checker uses that seed instead.
const SEED: u64 = 0x5EED;
/// The default number of schedules of each kind. The variable `IRONMAP_SHUTTLE` sets another number.
const SCHEDULES: usize = 20_000;
/// The number of thread switches that the scheduler PCT inserts into a schedule.
const SWITCHES: usize = 3;
/// The largest number of threads.
const MOST: usize = 3;
/// The number of requests that a thread has in flight.
const DEPTH: usize = 2;

/// Runs a model under two kinds of schedules: random schedules, and schedules with few thread switches. The test fails on a deadlock, and
/// on a panic that the model does not catch.
fn explore(model: impl Fn() + Send + Sync + Copy + 'static) {
    let wanted = env::var("IRONMAP_SHUTTLE").ok().and_then(|text| text.parse::<usize>().ok());
    let schedules = wanted.unwrap_or(SCHEDULES).max(1);
    let mut config = Config::new();
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new_from_seed(SEED, schedules), config.clone()).run(model);
    Runner::new(PctScheduler::new_from_seed(SEED, SWITCHES, schedules), config).run(model);
}

/// The counts of one schedule.
#[derive(Default)]
struct Counts {
    /// The number of buffers that are currently allocated.
    live: AtomicUsize,
    /// The number of requests that a device has carried out.
    carried_out: AtomicUsize,
}

/// The memory of a request.
struct Memory(Arc<Counts>);

impl Memory {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.live.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counts))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        assert!(self.0.live.fetch_sub(1, Ordering::Relaxed) > 0, "memory was freed twice");
    }
}

/// The memory that a completed request returns. `None` if the answer is lost.
type Reply = Option<Memory>;

impl Lost for Reply {
    fn lost() -> Self {
        None
    }
}

enum Ask {
    /// A request that is in flight for some time.
    Transfer(Memory, Promise<Reply>),
    /// A call that the thread carries out before it begins the next job.
    Call(Memory, Promise<Reply>),
    /// A call that panics.
    Panic(Memory, Promise<Reply>),
    /// A request whose submission panics. The panic ends the thread.
    End(Memory, Promise<Reply>),
    /// A call that drops a handle.
    Drop(Threads<Ask>),
    /// A call that waits for another call.
    Meet(Arc<Barrier>),
}

/// The state of a device. It identifies requests by numbers.
#[derive(Default)]
struct State {
    submitted: Vec<usize>,
    completed: Vec<usize>,
    closed: bool,
}

struct Device {
    state: Mutex<State>,
    changed: Condvar,
    event: Event,
}

impl Device {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while a condition is true.
    fn wait_while(&self, condition: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.state();
        while condition(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Completes requests in any order, until the queue is closed.
    fn serve(&self) {
        loop {
            let mut state = self.wait_while(|state| state.submitted.is_empty() && !state.closed);
            let count = state.submitted.len();
            if count == 0 {
                return;
            }
            let request = state.submitted.swap_remove(thread_rng().gen_range(0..count));
            state.completed.push(request);
            drop(state);
            self.changed.notify_all();
            self.event.set();
        }
    }
}

/// The queue of a thread.
struct Queue {
    device: Arc<Device>,
    server: Option<thread::JoinHandle<()>>,
    requests: Vec<Option<(Memory, Promise<Reply>)>>,
    /// Requests that were begun but not yet submitted.
    begun: Vec<usize>,
    wakes: Wakes,
}

impl Queue {
    fn new() -> ironmap::Result<Self> {
        let (state, changed) = (Mutex::new(State::default()), Condvar::new());
        let device = Arc::new(Device { state, changed, event: Event::new()? });
        let served = Arc::clone(&device);
        let server = Some(thread::spawn(move || served.serve()));
        let requests = (0..DEPTH).map(|_| None).collect();
        Ok(Self { device, server, requests, begun: Vec::new(), wakes: Wakes::default() })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.device.state().closed = true;
        self.device.changed.notify_all();
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
    }
}

/// Panics. The request is dropped during the panic. No message is printed.
fn panic_with(request: (Memory, Promise<Reply>)) {
    let _request = request;
    resume_unwind(Box::new("as the model wants"));
}

impl Work for Queue {
    type Job = Ask;

    fn blocks(job: &Ask) -> bool {
        !matches!(job, Ask::Transfer(..) | Ask::End(..))
    }

    fn room(&self) -> usize {
        self.requests.iter().filter(|request| request.is_none()).count()
    }

    fn in_flight(&self) -> usize {
        DEPTH - self.room()
    }

    fn begin(&mut self, job: Ask) {
        match job {
            Ask::Transfer(memory, promise) => {
                let free = self.requests.iter().position(Option::is_none);
                let free = free.expect("the queue has no space for so many jobs");
                self.requests[free] = Some((memory, promise));
                self.begun.push(free);
            }
            Ask::Call(memory, promise) => {
                memory.0.carried_out.fetch_add(1, Ordering::Relaxed);
                promise.keep(Some(memory), &mut self.wakes);
            }
            Ask::Panic(memory, promise) => {
                drop(catch_unwind(AssertUnwindSafe(|| panic_with((memory, promise)))));
            }
            Ask::End(memory, promise) => panic_with((memory, promise)),
            Ask::Drop(handle) => drop(handle),
            Ask::Meet(barrier) => drop(barrier.wait()),
        }
    }

    fn collect(&mut self) -> usize {
        let completed = {
            let mut state = self.device.state();
            state.submitted.append(&mut self.begun);
            std::mem::take(&mut state.completed)
        };
        self.device.changed.notify_all();
        let count = completed.len();
        for request in completed {
            let (memory, promise) = self.requests[request].take().expect("completed twice");
            memory.0.carried_out.fetch_add(1, Ordering::Relaxed);
            promise.keep(Some(memory), &mut self.wakes);
        }
        self.wakes.wake();
        count
    }

    fn source(&self) -> Option<Source<'_>> {
        Some(&self.device.event)
    }

    fn reset(&self) {
        self.device.event.reset();
    }

    fn wait(&mut self) {
        self.device.state().submitted.append(&mut self.begun);
        self.device.changed.notify_all();
        drop(self.device.wait_while(|state| state.completed.is_empty()));
    }
}

fn start(threads: usize) -> (Threads<Ask>, Arc<Counts>) {
    // In half of the schedules, the threads divide the jobs among themselves.
    let divides = thread_rng().gen_bool(0.5);
    (Threads::start(threads, MOST, divides, Queue::new).unwrap(), Arc::default())
}

type Kind = fn(Memory, Promise<Reply>) -> Ask;

fn ask(threads: &Threads<Ask>, counts: &Arc<Counts>, kind: Kind) -> Answer<Reply> {
    let (promise, answer) = promise();
    threads.push(kind(Memory::new(counts), promise));
    answer
}

/// One task waits for several answers.
fn all(mut answers: Vec<Answer<Reply>>) -> Vec<Reply> {
    let mut replies: Vec<Option<Reply>> = answers.iter().map(|_| None).collect();
    block_on(poll_fn(|context| {
        for (answer, reply) in answers.iter_mut().zip(&mut replies) {
            if reply.is_none()
                && let Poll::Ready(value) = Pin::new(answer).poll(context)
            {
                *reply = Some(value);
            }
        }
        if replies.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    }));
    replies.into_iter().flatten().collect()
}

/// Asserts that all buffers are freed, and that the device has carried out the given number of requests.
fn check(counts: &Counts, carried_out: usize) {
    assert_eq!(counts.live.load(Ordering::Relaxed), 0, "memory was lost");
    assert_eq!(counts.carried_out.load(Ordering::Relaxed), carried_out);
}

/// Several tasks send requests, and each request is answered with its own memory. Tasks that wait for one answer or for several answers are
/// woken.
#[test]
fn each_request_is_answered() {
    explore(|| {
        let (threads, counts) = start(2);
        let other = {
            let (threads, counts) = (threads.clone(), Arc::clone(&counts));
            thread::spawn(move || {
                for kind in [Ask::Transfer as Kind, Ask::Call] {
                    assert!(block_on(ask(&threads, &counts, kind)).is_some());
                }
            })
        };
        let answers = (0..3).map(|_| ask(&threads, &counts, Ask::Transfer)).collect();
        assert!(all(answers).iter().all(Option::is_some));
        other.join().unwrap();
        drop(threads);
        check(&counts, 5);
    });
}

/// One thread serves more requests than it can have in flight at a time.
#[test]
fn one_thread_answers_all() {
    explore(|| {
        let (threads, counts) = start(1);
        let (made, answers): (Vec<_>, Vec<_>) = (0..4)
            .map(|_| {
                let (promise, answer) = promise();
                (Ask::Transfer(Memory::new(&counts), promise), answer)
            })
            .unzip();
        threads.push_all(made.into_iter());
        let call = ask(&threads, &counts, Ask::Call);
        assert!(all(answers).iter().all(Option::is_some));
        assert!(block_on(call).is_some());
        drop(threads);
        check(&counts, 5);
    });
}

/// A future is dropped before or after its first poll. Its request is still carried out, and its memory is freed once. A task that panics
/// drops its futures in the same way.
#[test]
fn a_dropped_future_loses_nothing() {
    explore(|| {
        let (threads, counts) = start(2);
        let other = {
            let (threads, counts) = (threads.clone(), Arc::clone(&counts));
            thread::spawn(move || {
                drop(ask(&threads, &counts, Ask::Transfer));
                let mut polled = ask(&threads, &counts, Ask::Transfer);
                let _ = Pin::new(&mut polled).poll(&mut Context::from_waker(Waker::noop()));
            })
        };
        assert!(block_on(ask(&threads, &counts, Ask::Transfer)).is_some());
        drop(threads);
        other.join().unwrap();
        check(&counts, 3);
    });
}

/// The last handle is dropped while requests are queued and in flight. The threads carry out all of them, and a waiting task gets its
/// answer.
#[test]
fn the_last_handle_is_dropped_with_requests_in_flight() {
    explore(|| {
        let (threads, counts) = start(2);
        let answers = (0..3).map(|_| ask(&threads, &counts, Ask::Transfer)).collect();
        drop(ask(&threads, &counts, Ask::Call));
        let waits = thread::spawn(move || all(answers).iter().all(Option::is_some));
        drop(threads);
        assert!(waits.join().unwrap());
        check(&counts, 4);
    });
}

/// A thread of the pool drops the last handle. This thread must not wait for its own end.
#[test]
fn a_thread_drops_the_last_handle() {
    explore(|| {
        let (threads, counts) = start(2);
        let answer = ask(&threads, &counts, Ask::Transfer);
        threads.push(Ask::Drop(threads.clone()));
        drop(threads);
        assert!(block_on(answer).is_some());
    });
}

/// If a call panics, only its own answer is lost.
#[test]
fn a_panic_of_a_call_disturbs_no_other() {
    explore(|| {
        let (threads, counts) = start(1);
        let answers = [Ask::Transfer as Kind, Ask::Panic, Ask::Transfer];
        let answers = answers.map(|kind| ask(&threads, &counts, kind));
        let replies = all(answers.into());
        assert!(matches!(&replies[..], [Some(_), None, Some(_)]));
        drop((threads, replies));
        check(&counts, 2);
    });
}

/// All threads have ended by panics. The answers of queued requests and of later requests are lost, so no task waits forever.
#[test]
fn no_task_waits_for_threads_that_ended() {
    explore(|| {
        let (threads, counts) = start(1);
        let kinds = [Ask::Transfer as Kind, Ask::End, Ask::Transfer];
        let replies = all(kinds.map(|kind| ask(&threads, &counts, kind)).into());
        assert!(replies[1].is_none() && replies[2].is_none());
        assert!(block_on(ask(&threads, &counts, Ask::Call)).is_none());
        drop((threads, replies));
        assert_eq!(counts.live.load(Ordering::Relaxed), 0, "memory was lost");
    });
}

/// One of two threads has ended by a panic. The other thread carries out later requests.
#[test]
fn a_thread_that_ends_leaves_its_jobs_to_the_other() {
    explore(|| {
        let (threads, counts) = start(2);
        assert!(block_on(ask(&threads, &counts, Ask::End)).is_none());
        let answers = [Ask::Transfer as Kind, Ask::Call].map(|kind| ask(&threads, &counts, kind));
        assert!(all(answers.into()).iter().all(Option::is_some));
        drop(threads);
        check(&counts, 2);
    });
}

/// A call that blocks its thread does not delay the jobs after it. In the test, two calls wait for each other, so they must run at the same
/// time.
#[test]
fn a_job_that_blocks_delays_no_other() {
    explore(|| {
        let (threads, counts) = start(2);
        let barrier = Arc::new(Barrier::new(2));
        let meet = |_| Ask::Meet(Arc::clone(&barrier));
        if thread_rng().gen_bool(0.5) {
            threads.push_all((0..2).map(meet));
        } else {
            (0..2).map(meet).for_each(|job| threads.push(job));
        }
        assert!(block_on(ask(&threads, &counts, Ask::Transfer)).is_some());
        drop(threads);
        check(&counts, 1);
    });
}

/// Threads are added while requests are queued, and carry out their share of the requests. Dropping the last handle waits for the added
/// threads.
#[test]
fn added_threads_carry_out_jobs() {
    explore(|| {
        let (threads, counts) = start(1);
        let barrier = Arc::new(Barrier::new(2));
        let meet = |_| Ask::Meet(Arc::clone(&barrier));
        threads.push_all((0..2).map(meet));
        let answer = ask(&threads, &counts, Ask::Transfer);
        threads.grow();
        assert!(block_on(answer).is_some());
        drop(ask(&threads, &counts, Ask::Call));
        drop(threads);
        check(&counts, 2);
    });
}
