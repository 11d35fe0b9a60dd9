//! The answer to one request. A worker thread sets the value once, and a future waits for it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, MutexGuard};

/// The state that a promise and its answer share.
struct Shared<T> {
    state: Mutex<State<T>>,
}

enum State<T> {
    /// The value is not set yet. The field contains the waker of the task that waits for the value, if there is one.
    Waiting(Option<Waker>),
    Ready(T),
    /// There is no value: the future has already returned it, or the promise was dropped without a value.
    Gone,
}

/// A future that is ready when the request is complete. If the future is dropped, the request is still carried out.
#[must_use = "the request runs in any case, but only an awaited future returns its result"]
pub struct Answer<T>(Arc<Shared<T>>);

/// The worker thread's side of an answer. The thread must set the value. If the promise is dropped without a value, the answer is
/// [lost](Answer).
pub(crate) struct Promise<T>(Option<Arc<Shared<T>>>);

/// A type that has a value for a lost answer. An answer is lost if the worker thread panicked.
pub trait Lost {
    /// Returns the value for a lost answer.
    fn lost() -> Self;
}

pub(crate) fn promise<T>() -> (Promise<T>, Answer<T>) {
    let shared = Arc::new(Shared { state: Mutex::new(State::Waiting(None)) });
    (Promise(Some(Arc::clone(&shared))), Answer(shared))
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // While the lock is held, no other code runs that could panic, so the state is valid even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the final state, and returns the waker of the task that waits for the value. The waker runs code of the executor, so the caller
    /// releases the lock before it calls the waker.
    #[inline(always)] // each request runs this function, and without inlining the value would be copied one more time
    fn end(&self, end: State<T>) -> Option<Waker> {
        match std::mem::replace(&mut *self.state(), end) {
            State::Waiting(waker) => waker,
            _ => None,
        }
    }
}

impl<T> Promise<T> {
    /// Sets the value. A task that waits for the value is added to `wakes`. All tasks in `wakes` are woken together.
    #[inline(always)] // inlined for the same reason as `end`
    pub(crate) fn keep(mut self, value: T, wakes: &mut Wakes) {
        if let Some(shared) = self.0.take() {
            wakes.add(shared.end(State::Ready(value)));
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take().and_then(|shared| shared.end(State::Gone)) {
            wake(waker);
        }
    }
}

/// The tasks to wake after several answers were set. A task that waits for several of these answers is woken once.
#[derive(Default)]
pub(crate) struct Wakes(Vec<Waker>);

impl Wakes {
    fn add(&mut self, waker: Option<Waker>) {
        let Some(waker) = waker else { return };
        if !self.0.last().is_some_and(|last| last.will_wake(&waker)) {
            self.0.push(waker);
        }
    }

    pub(crate) fn wake(&mut self) {
        self.0.drain(..).for_each(wake);
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.wake();
    }
}

/// A waker runs code of the executor. If this code panics, the worker thread continues, and the other tasks are still woken.
fn wake(waker: Waker) {
    drop(catch_unwind(AssertUnwindSafe(|| waker.wake())));
}

impl<T: Lost> Future for Answer<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.state();
        match &mut *state {
            State::Waiting(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            _ => match std::mem::replace(&mut *state, State::Gone) {
                State::Ready(value) => Poll::Ready(value),
                _ => Poll::Ready(T::lost()),
            },
        }
    }
}
