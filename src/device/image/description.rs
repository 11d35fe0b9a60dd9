//! The properties of an image, for the user.

use std::path::PathBuf;

/// The description of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// The format with its version: `qcow2 version 3`.
    pub format: String,
    /// The size of the disk in bytes.
    pub virtual_size: u64,
    /// The unit of allocation in bytes, or 0 if the format has no unit of allocation.
    pub cluster_size: u64,
    /// The reason why the image cannot be written; `None` if it can be written.
    pub read_only: Option<String>,
    /// The names of the internal snapshots of a qcow2 image.
    pub snapshots: Vec<String>,
    /// The files of the image, each with its format: the image itself first, then its backing files or extents.
    pub files: Vec<(PathBuf, &'static str)>,
}
