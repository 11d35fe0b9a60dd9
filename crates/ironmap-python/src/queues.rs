//! The queues of a store: one for each thread that uses the store. A queue is dropped when its thread ends or its store is closed.
#![allow(unsafe_code, reason = "the thread that closes a store drops the queues of other threads")]

use std::cell::{Cell, RefCell};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ironmap::{Queue, QueueOptions};

use crate::errors::Failure;
use crate::process::generation;

/// A queue. Only its own thread uses the queue, but any thread may end it.
struct ThreadQueue(Mutex<Option<Queue>>);

// SAFETY: only the thread that made the queue calls it: `Queues::with` finds this value in a thread-local variable. Another thread only
// drops the queue (`end`), and only while no call uses it, because a call holds the mutex. Each call takes the completions of all its
// requests, so the queue is idle while no call uses it. `Queue` documents that unsafe code may drop an idle queue in another thread.
unsafe impl Send for ThreadQueue {}
// SAFETY: the proof is the same as for `Send`.
unsafe impl Sync for ThreadQueue {}

impl ThreadQueue {
    fn lock(&self) -> MutexGuard<'_, Option<Queue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        let queue = self.lock().take();
        drop(queue);
    }
}

/// The queues of one store.
#[derive(Default)]
pub(crate) struct Queues {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    closed: bool,
    /// The queues of all threads. Some of these queues may already have ended.
    all: Vec<Arc<ThreadQueue>>,
}

/// The queues of one thread, by the address of their store.
struct OfThread {
    generation: Cell<u32>,
    queues: RefCell<Vec<(usize, Arc<ThreadQueue>)>>,
}

thread_local! {
    static QUEUES: OfThread =
        OfThread { generation: Cell::new(generation()), queues: RefCell::default() };
}

impl OfThread {
    /// Leaks the queues if they belong to the parent process, because the parent still uses their rings.
    #[inline]
    fn forget_after_fork(&self) {
        if self.generation.get() != generation() {
            self.generation.set(generation());
            mem::forget(self.queues.take());
        }
    }
}

impl Drop for OfThread {
    fn drop(&mut self) {
        self.forget_after_fork();
        for (_, queue) in self.queues.get_mut().drain(..) {
            queue.end();
        }
    }
}

impl Queues {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with the queue of this thread. `make` creates the queue on the first call. The caller must not hold the GIL.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        make: impl FnOnce(&QueueOptions) -> ironmap::Result<Queue>,
        work: impl FnOnce(&mut Queue) -> R,
    ) -> Result<R, Failure> {
        QUEUES.with(|own| {
            own.forget_after_fork();
            let store = std::ptr::from_ref(self).addr();
            if let Some((_, queue)) = own.queues.borrow().iter().find(|(of, _)| *of == store)
                && let Some(queue) = &mut *queue.lock()
            {
                // If another thread closes the store, that thread waits until this call has ended.
                return Ok(work(queue));
            }
            // This code removes the queues that other threads have ended. One of them may belong to a freed store that had the same
            // address.
            own.queues.borrow_mut().retain(|(_, queue)| queue.lock().is_some());
            let queue = self.create(make)?;
            own.queues.borrow_mut().push((store, Arc::clone(&queue)));
            match &mut *queue.lock() {
                Some(queue) => Ok(work(queue)),
                None => Err(Failure::Closed),
            }
        })
    }

    #[cold]
    fn create(
        &self,
        make: impl FnOnce(&QueueOptions) -> ironmap::Result<Queue>,
    ) -> Result<Arc<ThreadQueue>, Failure> {
        let queue = make(&QueueOptions::new().depth(64))?;
        let mut state = self.state();
        if state.closed {
            return Err(Failure::Closed);
        }
        state.all.retain(|queue| Arc::strong_count(queue) > 1);
        let queue = Arc::new(ThreadQueue(Mutex::new(Some(queue))));
        state.all.push(Arc::clone(&queue));
        Ok(queue)
    }

    /// Ends the queues of all threads. Waits for the calls in flight, and refuses new queues.
    pub(crate) fn close(&self) {
        let all = {
            let mut state = self.state();
            state.closed = true;
            mem::take(&mut state.all)
        };
        all.iter().for_each(|queue| queue.end());
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.close();
    }
}
