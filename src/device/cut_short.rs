//! A device over a device that is smaller than the file system on it. Reads past the end of the device below fail.

use std::sync::Arc;

use super::Device;
use super::layered::{Layer, Layered, Request, Verdict};
use crate::error::Errno;

/// A device for reading a truncated file system. It reports the largest possible size. Reads past the end of the device below fail with an
/// I/O error.
pub type CutShort = Layered<End>;

/// The layer of a [`CutShort`]. It stores the end of the truncated device.
#[derive(Debug)]
pub struct End(u64);

impl CutShort {
    /// Creates the device over a truncated device.
    #[must_use]
    pub fn new(below: Arc<dyn Device>) -> Self {
        let end = below.size();
        Self::with_layer(below, End(end))
    }
}

impl Layer for End {
    fn size(&self, _below: u64) -> u64 {
        i64::MAX as u64
    }

    fn stored(&self, below: u64) -> u64 {
        below
    }

    fn begin(&self, request: &Request<'_>) -> Verdict {
        let within = request.at().0.checked_add(request.len()).is_some_and(|end| end <= self.0);
        match within {
            true => Verdict::pass(request),
            false => Verdict { len: 0, error: Some(Errno::EIO), ..Verdict::pass(request) },
        }
    }
}
