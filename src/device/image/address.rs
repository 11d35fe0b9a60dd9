//! The address of a virtual machine's image: its format and its file.

use std::fmt;
use std::path::{Path, PathBuf};

/// The format of an image. The user must state the format. ironmap never detects the format. The disk may be a raw image, and its guest can
/// write the header of another format to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageFormat {
    /// QEMU's format. Images can be read and written.
    Qcow2,
    /// VMware's format. Images can only be read.
    Vmdk,
    /// Hyper-V's format. Images can only be read.
    Vhdx,
}

impl ImageFormat {
    const ALL: [Self; 3] = [Self::Qcow2, Self::Vmdk, Self::Vhdx];

    /// The name of the format: `qcow2`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "vmdk",
            Self::Vhdx => "vhdx",
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The address of an image: `qcow2:FILE`, `vmdk:FILE` or `vhdx:FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The format of the image.
    pub format: ImageFormat,
    /// The file of the image. For a VMDK image with several files, it is the descriptor.
    pub path: PathBuf,
}

impl Address {
    /// The prefix of an address names a format. Returns this format and the length of the prefix.
    #[must_use]
    pub fn prefix_of(text: &[u8]) -> Option<(ImageFormat, usize)> {
        ImageFormat::ALL.into_iter().find_map(|format| {
            let rest = text.strip_prefix(format.name().as_bytes())?;
            rest.starts_with(b":").then_some((format, format.name().len() + 1))
        })
    }

    /// Returns the address with the path from the function `path`. If `path` returns `None`, the address keeps its path.
    #[must_use]
    pub fn with_path(&self, path: &dyn Fn(&Path) -> Option<PathBuf>) -> Self {
        let Self { format, path: own } = self;
        Self { format: *format, path: path(own).unwrap_or_else(|| own.clone()) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.format, self.path.display())
    }
}
