//! The answer to one request: a value that a worker thread sets once, and a future that waits for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The state that a promise and its answer share.
struct Shared<T> {
    state: Mutex<State<T>>,
}

enum State<T> {
    /// There is no value yet. The waker belongs to the task that waits, if there is one.
    Waiting(Option<Waker>),
    Ready(T),
    /// The value was taken, or will never come because the promise was dropped.
    Gone,
}

/// A future that is ready when the request is complete. Dropping it does not cancel the request.
#[must_use = "a future does nothing unless it is awaited; the request is carried out in any case"]
pub struct Answer<T>(Arc<Shared<T>>);

/// The duty of a worker thread to set the value. If it is dropped without a value, the answer is [lost](Answer).
pub(crate) struct Promise<T>(Option<Arc<Shared<T>>>);

/// A value that can stand for a lost answer: the worker thread panicked.
pub trait Lost {
    /// The value of a lost answer.
    fn lost() -> Self;
}

pub(crate) fn promise<T>() -> (Promise<T>, Answer<T>) {
    let shared = Arc::new(Shared { state: Mutex::new(State::Waiting(None)) });
    (Promise(Some(Arc::clone(&shared))), Answer(shared))
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // The lock is never held while other code runs, so the state is valid even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, end: State<T>) {
        let before = std::mem::replace(&mut *self.state(), end);
        // The waker runs code of the executor, so it is called without the lock.
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Promise<T> {
    /// Sets the value.
    pub(crate) fn keep(mut self, value: T) {
        if let Some(shared) = self.0.take() {
            shared.end(State::Ready(value));
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.end(State::Gone);
        }
    }
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
