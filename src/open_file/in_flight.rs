//! Counts the requests in flight of each thread. Only the thread of a queue can take the completions of the queue. So a thread that has
//! requests in flight must not wait for the content of a file: it could wait for its own requests.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use crate::error::{Error, ErrorKind, Result};

/// The number of files for which a queue has requests in flight. This value stays in the thread that created it.
#[derive(Debug)]
pub(crate) struct InFlight(Rc<Cell<u32>>);

crate::sync::thread_local! {
    static QUEUES: RefCell<Vec<Weak<Cell<u32>>>> = const { RefCell::new(Vec::new()) };
}

impl Default for InFlight {
    fn default() -> Self {
        let count = Rc::default();
        QUEUES.with(|queues| {
            let mut queues = queues.borrow_mut();
            queues.retain(|queue| queue.strong_count() > 0);
            queues.push(Rc::downgrade(&count));
        });
        Self(count)
    }
}

impl InFlight {
    #[inline(always)]
    pub(crate) fn add(&self) {
        self.0.set(self.0.get() + 1);
    }

    #[inline(always)]
    pub(crate) fn remove(&self) {
        self.0.set(self.0.get() - 1);
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.get() == 0
    }

    /// Checks that the calling thread has no requests in flight.
    ///
    /// # Errors
    /// `Busy` if the calling thread has requests in flight.
    pub(crate) fn none_here() -> Result<()> {
        let busy = |queues: &Vec<Weak<Cell<u32>>>| {
            queues.iter().filter_map(Weak::upgrade).any(|count| count.get() > 0)
        };
        if QUEUES.with(|queues| busy(&queues.borrow())) {
            let what = "this thread has requests in flight: take their completions first";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        Ok(())
    }
}
