//! Makes images with qemu-img.

use std::path::{Path, PathBuf};

use ironmap::device::Device;
use ironmap::device::image::{Address, Image, ImageFormat};
use ironmap::units::DevOffset;
use tempfile::TempDir;

use crate::common::command::{output, run};
use crate::common::image::scratch;
use crate::common::rng::Rng;

/// A directory for images.
pub(crate) struct Dir(TempDir);

impl Dir {
    pub(crate) fn new() -> Self {
        Self(scratch())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A raw image with these bytes.
    pub(crate) fn raw(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Converts a raw image with qemu-img.
    pub(crate) fn convert(
        &self,
        raw: &Path,
        name: &str,
        format: &str,
        options: &[&str],
    ) -> PathBuf {
        let path = self.path(name);
        let mut args = vec!["convert", "-f", "raw", "-O", format];
        args.extend(options);
        args.extend([raw.to_str().unwrap(), path.to_str().unwrap()]);
        run("qemu-img", &args);
        path
    }

    /// Creates an image with qemu-img.
    pub(crate) fn create(&self, name: &str, options: &[&str], size: u64) -> PathBuf {
        let path = self.path(name);
        let size = size.to_string();
        let mut args = vec!["create", "-q", "-f", "qcow2"];
        args.extend(options);
        args.extend([path.to_str().unwrap(), &size]);
        run("qemu-img", &args);
        path
    }
}

/// Bytes with long runs of zeros, long runs of one byte, and random parts.
pub(crate) fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        let len = (1 + rng.below(96)) as usize * 2048;
        match rng.below(4) {
            0 | 1 => bytes.resize(bytes.len() + len, 0),
            2 => bytes.resize(bytes.len() + len, rng.next() as u8),
            _ => bytes.extend(rng.bytes(len)),
        }
    }
    bytes.truncate(size);
    bytes
}

pub(crate) fn open(path: &Path, format: ImageFormat, write: bool) -> ironmap::Result<Image> {
    Image::open(&Address::new(format, path), write)
}

pub(crate) fn qcow2(path: &Path, write: bool) -> ironmap::Result<Image> {
    open(path, ImageFormat::Qcow2, write)
}

/// Reads the entire content of a device, by requests of odd lengths.
pub(crate) fn all(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    let mut at = 0;
    for piece in bytes.chunks_mut(999_999) {
        device.read_exact_at(piece, DevOffset(at)).unwrap();
        at += piece.len() as u64;
    }
    bytes
}

/// Lets qemu-img check an image for errors and leaks.
pub(crate) fn check(path: &Path) {
    let checked = output("qemu-img", &["check", "-f", "qcow2", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&checked.stdout);
    let errors = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{}: {text}{errors}", path.display());
}

/// Lets qemu-img compare an image with a raw image.
pub(crate) fn compare(path: &Path, format: &str, raw: &Path) {
    run(
        "qemu-img",
        &["compare", "-f", format, "-F", "raw", path.to_str().unwrap(), raw.to_str().unwrap()],
    );
}
