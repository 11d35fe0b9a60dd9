//! Replaces the module `image` in a library without the feature `images`. Each function refuses images of virtual machines.

use std::sync::Arc;

use super::{Address, Description};
use crate::device::Device;
use crate::error::{Error, Result};

/// Refuses the image.
pub(crate) fn open(
    address: &Address,
    _write: bool,
    _part: impl FnOnce(&dyn Device) -> Result<Option<(u64, u64)>>,
) -> Result<(Arc<dyn Device>, Vec<String>)> {
    Err(refusal().at(address))
}

/// Refuses the image.
pub(crate) fn look(address: &Address) -> Result<Arc<dyn Device>> {
    Err(refusal().at(address))
}

/// Refuses the image.
///
/// # Errors
/// Each call fails with `Unsupported`.
pub fn describe(address: &Address) -> Result<Description> {
    Err(refusal().at(address))
}

fn refusal() -> Error {
    Error::unsupported(
        "this build of ironmap has no support for images of virtual machines (feature images)",
    )
}
