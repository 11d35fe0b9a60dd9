//! The option `--compress`.

use clap::ValueEnum;
use ironmap::device::image::Compression;

/// A method to compress the clusters of a qcow2 image.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Method {
    /// Every program that reads qcow2 knows this method
    Deflate,
    /// QEMU 5.1 or newer reads it
    Zstd,
}

impl From<Method> for Compression {
    fn from(method: Method) -> Self {
        match method {
            Method::Deflate => Self::Deflate,
            Method::Zstd => Self::Zstd,
        }
    }
}
