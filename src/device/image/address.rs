//! The address of a virtual machine's image: its format and its file.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The format of an image. The user must state the format. ironmap never detects it, because the guest of a raw image can write the header
/// of another format to its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageFormat {
    /// QEMU's format. Images can be read and written.
    Qcow2,
    /// VMware's format. Images can be read but not written.
    Vmdk,
    /// Hyper-V's format. Images can be read but not written.
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

/// The address of an image: `qcow2:FILE`, `vmdk:FILE` or `vhdx:FILE`. `qcow2:FILE#NAME` is an internal snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Address {
    /// The format of the image.
    pub format: ImageFormat,
    /// The file of the image. If a VMDK image has several files, this is the path of the descriptor.
    pub path: PathBuf,
    /// The name or number of an internal snapshot. `None` selects the current content of the disk.
    pub snapshot: Option<String>,
}

impl Address {
    /// Creates the address of an image's current content.
    #[must_use]
    pub fn new(format: ImageFormat, path: impl Into<PathBuf>) -> Self {
        Self { format, path: path.into(), snapshot: None }
    }

    /// Parses the text after the prefix: `FILE` or, for qcow2, `FILE#NAME`. If the whole text names an existing file, the text is the path
    /// of this file.
    #[must_use]
    pub fn parse(format: ImageFormat, text: &[u8]) -> Self {
        let path = |bytes| Path::new(OsStr::from_bytes(bytes));
        let can_have = format == ImageFormat::Qcow2 && !path(text).exists();
        let hashes = text.iter().enumerate().filter(|(_, byte)| can_have && **byte == b'#');
        // Both the path and the name of the snapshot may contain `#`. The path ends at the first `#` that follows the path of an existing
        // file.
        let named = hashes.map(|(at, _)| at).find_map(|at| {
            let name = std::str::from_utf8(&text[at + 1..]).ok().filter(|name| !name.is_empty())?;
            path(&text[..at]).is_file().then(|| (path(&text[..at]), name.to_owned()))
        });
        match named {
            Some((file, name)) => Self { snapshot: Some(name), ..Self::new(format, file) },
            None => Self::new(format, path(text)),
        }
    }

    /// Returns the format that the prefix of an address names, and the length of the prefix.
    #[must_use]
    pub fn prefix_of(text: &[u8]) -> Option<(ImageFormat, usize)> {
        ImageFormat::ALL.into_iter().find_map(|format| {
            let rest = text.strip_prefix(format.name().as_bytes())?;
            rest.starts_with(b":").then_some((format, format.name().len() + 1))
        })
    }

    /// Returns the same address with the path that the function `path` returns. If `path` returns `None`, the path stays unchanged.
    #[must_use]
    pub fn with_path(&self, path: &dyn Fn(&Path) -> Option<PathBuf>) -> Self {
        let Self { format, path: own, snapshot } = self;
        let path = path(own).unwrap_or_else(|| own.clone());
        Self { format: *format, path, snapshot: snapshot.clone() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.format, self.path.display())?;
        self.snapshot.as_ref().map_or(Ok(()), |name| write!(f, "#{name}"))
    }
}
