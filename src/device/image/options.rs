//! The options for opening and creating images.

/// The options for opening an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageOptions {
    /// Whether the image is opened for writing as well.
    pub write: bool,
    /// Whether a write of whole clusters compresses the clusters that are not yet in the file. Only qcow2 has compressed clusters. A later
    /// write to a compressed cluster replaces it with an uncompressed cluster.
    pub compress: bool,
}

/// How the clusters of a new image are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Deflate, which every program that reads qcow2 supports.
    #[default]
    Deflate,
    /// zstd, which QEMU supports since version 5.1.
    Zstd,
}

/// The options of a new image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreateOptions {
    /// The size of the disk in bytes, a multiple of 512.
    pub size: u64,
    /// The size of a cluster in bytes: a power of two from 512 bytes to 2 MiB.
    pub cluster_size: u32,
    /// The compression method. [`ImageOptions`] determines whether writes are compressed.
    pub compression: Compression,
}

impl CreateOptions {
    /// Creates options for a disk of this size, with clusters of 64 KiB.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self { size, cluster_size: 64 << 10, compression: Compression::default() }
    }
}
