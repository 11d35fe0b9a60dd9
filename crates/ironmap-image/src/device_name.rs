//! Names of devices that do not exist. An image file is never given such a name.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::failure::{Failure, Reason};
use crate::new_image::target_of;

/// The directory of the device nodes.
const NODES: &str = "/dev";

/// Whether a file with this name would be on the file system of the device nodes. An image there would occupy kernel memory, and programs
/// would mistake its name for the name of a device. Other file systems that are mounted below /dev, such as /dev/shm, can contain images.
#[must_use]
pub fn is_of_node(path: &Path) -> bool {
    let target = target_of(path);
    let parents = target.ancestors().skip(1).map(|dir| match dir.as_os_str().is_empty() {
        true => Path::new("."),
        false => dir,
    });
    let Some(dir) = parents.into_iter().find_map(|dir| dir.canonicalize().ok()) else {
        return false;
    };
    let device = |path: &Path| path.metadata().map(|found| found.dev()).ok();
    let Some(nodes) = device(Path::new(NODES)) else { return false };
    // In a chroot, /dev can be a directory of the root file system. In this case, the function checks the path instead of the file system.
    let is_mounted = device(Path::new("/")) != Some(nodes);
    device(&dir) == Some(nodes) && (is_mounted || dir.starts_with(NODES))
}

/// Refuses to make a file with the name of a missing device.
///
/// # Errors
/// Fails if the file is missing and [`is_of_node`] is true for its name.
pub fn check(path: &Path) -> Result<(), Failure> {
    if target_of(path).symlink_metadata().is_ok() || !is_of_node(path) {
        return Ok(());
    }
    let what = format!("{}: the device does not exist", path.display());
    Err(Failure::with(Reason::Refused, what))
}
