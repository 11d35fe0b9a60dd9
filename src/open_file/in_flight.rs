//! Counts the requests in flight of each thread. Only the thread of a queue can process the queue's completions. Therefore, a thread with
//! requests in flight must not wait for the content of a file: its own requests could have locked the content, and the wait would never
//! end.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use crate::error::{Error, ErrorKind, Result};

/// The number of files to which a queue has requests in flight, counted for the thread that created the queue. The number is atomic,
/// because another thread may drop the value, and the drop changes the number too.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<AtomicU32>);

crate::sync::thread_local! {
    static QUEUES: RefCell<Vec<Weak<AtomicU32>>> = const { RefCell::new(Vec::new()) };
}

impl Default for InFlight {
    fn default() -> Self {
        let count = Arc::default();
        // If a queue is created in a destructor at the end of a thread, the list may no longer exist. The requests of this queue are then
        // not counted.
        let _ = QUEUES.try_with(|queues| {
            let mut queues = queues.borrow_mut();
            queues.retain(|queue| queue.strong_count() > 0);
            queues.push(Arc::downgrade(&count));
        });
        Self(count)
    }
}

impl InFlight {
    #[inline(always)]
    pub(crate) fn add(&self) {
        self.0.store(self.0.load(Relaxed) + 1, Relaxed);
    }

    #[inline(always)]
    pub(crate) fn remove(&self) {
        self.0.store(self.0.load(Relaxed) - 1, Relaxed);
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    /// Checks that the calling thread has no requests in flight.
    ///
    /// # Errors
    /// `Busy` if the calling thread has requests in flight.
    pub(crate) fn none_here() -> Result<()> {
        let busy = |queues: &Vec<Weak<AtomicU32>>| {
            queues.iter().filter_map(Weak::upgrade).any(|count| count.load(Relaxed) > 0)
        };
        if QUEUES.try_with(|queues| busy(&queues.borrow())).unwrap_or(false) {
            let what = "this thread has requests in flight: take their completions first";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        Ok(())
    }
}
