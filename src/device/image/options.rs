//! How images are opened and created.

/// How an image is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageOptions {
    /// Whether the image is opened for writing as well.
    pub write: bool,
    /// Whether a write of whole clusters compresses them, if they have no place in the file yet. Only qcow2 has compressed clusters. A later
    /// write to such a cluster replaces it by a cluster that is not compressed.
    pub compress: bool,
}

/// How the clusters of a new image are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// By deflate, which every program that reads qcow2 knows.
    #[default]
    Deflate,
    /// By zstd: QEMU 5.1 or newer reads it.
    Zstd,
}

/// The options of a new image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreateOptions {
    /// The size of the disk in bytes, a multiple of 512.
    pub size: u64,
    /// The size of a cluster in bytes: a power of two from 512 to 2 MiB.
    pub cluster_size: u32,
    /// The method of compressed clusters. [`ImageOptions`] decides whether writes compress.
    pub compression: Compression,
}

impl CreateOptions {
    /// Options for a disk of this size, with clusters of 64 KiB.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self { size, cluster_size: 64 << 10, compression: Compression::default() }
    }
}
