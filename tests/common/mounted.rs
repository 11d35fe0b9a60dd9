//! File systems that the kernel has mounted, on loop devices over sparse files; all gone when their guards are dropped.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::command::{failure, output, run};
use super::image::{scratch, scratch_in, words};

/// A mounted file system on a loop device.
pub(crate) struct Mounted {
    device: String,
