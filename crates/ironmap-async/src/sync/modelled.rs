//! The event, implemented with the types of the model checker.

use std::sync::PoisonError;

use ironmap::{Readiness, Result};
use shuttle::sync::{Mutex, MutexGuard};
use shuttle::thread::{Thread, current, park};

/// The event that the model of a device sets when requests have completed.
pub(crate) type Source<'a> = &'a Event;

/// The model has no descriptor to wait for.
pub(crate) fn source(_: &Readiness) -> Option<Source<'_>> {
    None
}

#[derive(Default)]
pub(crate) struct Event(Mutex<State>);

#[derive(Default)]
struct State {
    is_set: bool,
    waits: Vec<Thread>,
}

impl Event {
    #[allow(
        clippy::unnecessary_wraps,
        reason = "in a normal build, the kernel can refuse the eventfd"
    )]
    pub(crate) fn new() -> Result<Self> {
        Ok(Self::default())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self) {
        let mut state = self.state();
        state.is_set = true;
        state.waits.drain(..).for_each(|thread| thread.unpark());
    }

    pub(crate) fn reset(&self) {
        self.state().is_set = false;
    }

    pub(crate) fn wait(&self, other: Option<Source<'_>>) {
        let is_set = |event: &Self| {
            let mut state = event.state();
            if !state.is_set {
                state.waits.push(current());
            }
            state.is_set
        };
        while !is_set(self) && !other.is_some_and(is_set) {
            park();
        }
    }
}
