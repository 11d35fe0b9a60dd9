//! A device for tests under the model checker. It yields to other threads before and after each request.

use std::sync::Arc;

use shuttle::thread;

use super::{Layer, Layered, Ram, Request, Verdict};

#[derive(Debug)]
pub(crate) struct Yields;

impl Layer for Yields {
    fn begin(&self, request: &Request<'_>) -> Verdict {
        thread::yield_now();
        Verdict::pass(request)
    }

    fn end(&self, _ticket: u64, _whole: bool) {
        thread::yield_now();
    }
}

pub(crate) fn yielding(ram: Arc<Ram>) -> Layered<Yields> {
    Layered::with_layer(ram, Yields)
}
