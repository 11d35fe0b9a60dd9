//! Replaces the module `image` in a build without the feature `images`. Each function refuses images of virtual machines.

use std::path::Path;
use std::sync::Arc;

use super::{Address, CreateOptions, Description, ImageOptions};

use crate::device::Device;
use crate::error::{Error, Result};

/// Refuses to open an image.
pub(crate) fn open(
    address: &Address,
    _how: ImageOptions,
    _part: impl FnOnce(&dyn Device) -> Result<Option<(u64, u64)>>,
) -> Result<(Arc<dyn Device>, Vec<String>)> {
    Err(refusal().at(address))
}

/// Refuses to open an image without locks.
pub(crate) fn look(address: &Address) -> Result<Arc<dyn Device>> {
    Err(refusal().at(address))
}

/// Refuses to describe an image.
///
/// # Errors
/// Each call fails with `Unsupported`.
pub fn describe(address: &Address) -> Result<Description> {
    Err(refusal().at(address))
}

/// Refuses to create an image.
///
/// # Errors
/// Each call fails with `Unsupported`.
pub fn create(path: &Path, _options: &CreateOptions) -> Result<()> {
    Err(refusal().at(path.display()))
}

fn refusal() -> Error {
    Error::unsupported(
        "this build of ironmap has no support for images of virtual machines (feature images)",
    )
}
