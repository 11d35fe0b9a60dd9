//! The mailbox that receives the completions of a queue, and the descriptors for an event loop that waits for the completions.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::link::TICK;
use crate::bio::Done;
use crate::error::Errno;
use crate::sync::Mutex;

/// The mailbox for the completions of one queue.
#[derive(Debug)]
pub(super) struct Mailbox {
    done: Mutex<VecDeque<Done>>,
    /// The eventfd that other threads signal.
    pub(super) event: OwnedFd,
    is_signalled: AtomicBool,
    /// The number of this queue's requests that are in flight over the shared connection instead of the queue's own connection.
    pub(super) away: AtomicUsize,
    /// The descriptors of a queue in an event loop.
    pub(super) watch: OnceLock<Watch>,
}

/// The descriptors for an event loop.
#[derive(Debug)]
pub(super) struct Watch {
    /// The epoll instance that contains the socket, the eventfd and the timer.
    pub(super) epoll: OwnedFd,
    /// A timer that wakes the event loop to check the time-outs, because a server that does not answer causes no event.
    timer: OwnedFd,
    ticks: AtomicBool,
}

impl Mailbox {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (done, is_signalled) = (Mutex::default(), AtomicBool::new(false));
        let away = AtomicUsize::new(0);
        Ok(Arc::new(Self { done, event, is_signalled, away, watch: OnceLock::new() }))
    }

    pub(super) fn is_away(&self) -> bool {
        self.away.load(Ordering::Acquire) > 0
    }

    pub(super) fn pop(&self) -> Option<Done> {
        self.done.lock().pop_front()
    }

    pub(super) fn len(&self) -> usize {
        self.done.lock().len()
    }

    pub(super) fn put(&self, done: Done) {
        self.done.lock().push_back(done);
    }

    pub(super) fn signal(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        // The flag is set after the write to the eventfd. If a reader calls `clear` between these two steps, the eventfd stays readable, so
        // no signal is lost.
        self.is_signalled.store(true, Ordering::Release);
    }

    pub(super) fn clear(&self) {
        if self.is_signalled.swap(false, Ordering::Acquire) {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }

    pub(super) fn watch(&self) -> Result<&Watch, Errno> {
        if let Some(watch) = self.watch.get() {
            return Ok(watch);
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        for fd in [&self.event, &timer] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(self.watch.get_or_init(|| Watch { epoll, timer, ticks: AtomicBool::new(false) }))
    }
}

impl Watch {
    /// Turns the periodic wake-up of the event loop on or off. It is on while requests are in flight, so that the loop checks the
    /// time-outs.
    pub(super) fn tick(&self, ticks: bool) {
        let ticked = self.ticks.swap(ticks, Ordering::Relaxed);
        if ticked {
            let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        }
        if ticked != ticks {
            let never = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let time = if ticks { TICK } else { never };
            let every = Itimerspec { it_interval: time, it_value: time };
            let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &every);
        }
    }
}
