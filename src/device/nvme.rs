//! An NVMe namespace that is opened through its generic character device, `/dev/ngXnY`. Requests to this device are NVMe commands, which
//! bypass the block layer and the page cache.
//!
//! The block device of the same namespace, `/dev/nvmeXnY`, is opened too, with an exclusive open, because a character device cannot be
//! opened exclusively. The block device also serves requests whose speed does not matter, for example reads of metadata.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, major, makedev, minor, stat};

use super::{DeviceProtection, Limits, ThroughFlushes};
use crate::error::{Context, Errno, Error, Result};
use crate::sys::nvme::{NamespaceId, carries, identify, namespace_number};

/// The size of a memory page. Controllers state their transfer limit in a unit that no `ioctl` reports. The page size is the lower bound of
/// this unit.
const PAGE: u32 = 4096;

/// An open character device, and the properties of its namespace.
#[derive(Debug)]
pub(super) struct Namespace {
    file: File,
    id: NamespaceId,
    /// The path of the namespace's block device.
    block: PathBuf,
    /// The largest transfer in bytes.
    max_transfer: u32,
    /// The largest number of separate memory ranges in one command.
    segments: u32,
    volatile_cache: bool,
}

impl Namespace {
    /// Opens a character device and queries its namespace.
    ///
    /// # Errors
    /// `InvalidInput` for a file that is not an NVMe namespace; `Unsupported` for a namespace that interleaves metadata with data; `Io`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |errno: Errno| Error::io(errno, path.display().to_string());
        let sysfs = sysfs(path)?;
        let block = block_node(path, &sysfs)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let file: File = opened.map_err(|errno| failed(errno.into()))?.into();
        let number = namespace_number(file.as_fd()).map_err(failed)?;
        let of_namespace = identify(file.as_fd(), Some(number)).map_err(failed)?;
        let of_controller = identify(file.as_fd(), None).map_err(failed)?;
        let format = Format::read(&of_namespace).at(|| path.display())?;
        let segments = max_segments(&block).unwrap_or(1);
        // A transfer needs one segment for each page of its memory, and one more if the memory begins within a page.
        let by_segments = segments.saturating_sub(1).max(1).saturating_mul(PAGE);
        Ok(Self {
            file,
            id: NamespaceId { number, shift: format.shift, metadata: format.metadata },
            block,
            max_transfer: max_transfer(&of_controller).min(by_segments),
            segments,
            volatile_cache: of_controller[525] & 1 != 0,
        })
    }

    /// Refuses a namespace with metadata, because each command would have to transfer the metadata too. Metadata that consist of protection
    /// tuples are permitted if this crate can compute the tuples.
    pub(super) fn check_metadata(&self, protection: Option<&DeviceProtection>) -> Result<()> {
        let tuples = protection.and_then(|protection| protection.tuples);
        match (self.id.metadata, tuples) {
            (0, _) => Ok(()),
            (bytes, Some(tuples)) if tuples.kind.bytes() == bytes as usize => Ok(()),
            (bytes, _) => Err(Error::unsupported(match protection {
                None => format!(
                    "the namespace has {bytes} bytes of metadata for each block, which is not supported"
                ),
                Some(DeviceProtection { format, .. }) => format!(
                    "the namespace has {bytes} bytes of metadata for each block in the format {format}, which is not supported"
                ),
            })),
        }
    }

    /// The path of the block device of the same namespace.
    pub(super) fn block(&self) -> &Path {
        &self.block
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn id(&self) -> NamespaceId {
        self.id
    }

    /// Whether one command can transfer `len` bytes at the position `at` to or from this number of buffers. The kernel does not split
    /// commands, because commands bypass the block layer.
    #[inline]
    pub(super) fn carries(&self, at: u64, len: usize, buffers: usize) -> bool {
        // Each buffer may begin and end within a page, so the two ends of a buffer may need up to two additional memory ranges.
        let ranges = || len / PAGE as usize + 2 * buffers;
        carries(self.id, at, len) && (buffers == 1 || ranges() <= self.segments as usize)
    }

    /// The limits for commands to the namespace, derived from the limits of its block device.
    pub(super) fn limits(&self, block: &Limits) -> Limits {
        let logical_block = 1 << self.id.shift;
        let max_transfer = block.max_transfer.min(self.max_transfer);
        Limits {
            logical_block,
            max_transfer: (max_transfer - max_transfer % logical_block).max(logical_block),
            fua: true,
            through_flushes: match self.volatile_cache {
                true => ThroughFlushes::OfCalls,
                false => ThroughFlushes::Never,
            },
            volatile_cache: self.volatile_cache,
            // The protection tuples of a write are computed from the memory before the device receives the data. If the memory changed
            // after that, the tuples would not match the data.
            stable_writes: self.id.metadata != 0,
            // io_uring submits an NVMe command without waiting.
            nowait: true,
            ..*block
        }
    }
}

/// Whether this machine has NVMe namespaces.
pub(super) fn are_present() -> bool {
    std::fs::read_dir("/sys/class/nvme-generic").is_ok_and(|mut names| names.next().is_some())
}

/// The format of a namespace, from its Identify structure.
#[derive(Debug, PartialEq, Eq)]
struct Format {
    shift: u32,
    /// The number of metadata bytes of each block. A transfer uses separate memory for the metadata.
    metadata: u32,
}

impl Format {
    fn read(identify: &[u8; 4096]) -> Result<Self> {
        let (count, flbas) = (identify[25], identify[26]);
        // The upper two bits of the format's index are valid only if there are more than 16 formats.
        let high = if count >= 16 { usize::from(flbas >> 5 & 0b11) } else { 0 };
        let index = high << 4 | usize::from(flbas & 0b1111);
        let format = &identify[128 + 4 * index..][..4];
        let metadata = u16::from_le_bytes([format[0], format[1]]);
        if metadata != 0 && flbas & 1 << 4 != 0 {
            return Err(Error::unsupported(format!(
                "the namespace interleaves {metadata} bytes of metadata with the data of each block, which is not supported"
            )));
        }
        match u32::from(format[2]) {
            shift @ 9..=16 => Ok(Self { shift, metadata: metadata.into() }),
            shift => Err(Error::unsupported(format!(
                "the namespace has blocks of 2^{shift} bytes; 2^9 to 2^16 are supported"
            ))),
        }
    }
}

/// Returns the largest transfer of a controller in bytes, from its Identify structure.
fn max_transfer(identify: &[u8; 4096]) -> u32 {
    match identify[77] {
        0 => u32::MAX,
        power => PAGE.checked_shl(power.into()).filter(|bytes| *bytes > 0).unwrap_or(u32::MAX),
    }
}

/// Returns the sysfs directory of a character device if the device is an NVMe namespace.
fn sysfs(path: &Path) -> Result<PathBuf> {
    let rdev = stat(path).map_err(|errno| Error::io(errno, path.display().to_string()))?.st_rdev;
    let link = format!("/sys/dev/char/{}:{}", major(rdev), minor(rdev));
    let sysfs = std::fs::canonicalize(link).ok();
    let is_namespace = |sysfs: &PathBuf| {
        std::fs::read_link(sysfs.join("subsystem")).is_ok_and(|of| of.ends_with("nvme-generic"))
    };
    sysfs.filter(is_namespace).ok_or_else(|| {
        let path = path.display();
        Error::invalid(format!(
            "{path}: the path must name a block device, an NVMe namespace or an image file"
        ))
    })
}

/// Returns the name of the block device with the same numbers as the character device: `nvme0n1` for `ng0n1`.
fn block_node(path: &Path, sysfs: &Path) -> Result<PathBuf> {
    let name = sysfs.file_name().unwrap_or_default().to_string_lossy().replacen("ng", "nvme", 1);
    let node = Path::new("/dev").join(&name);
    let numbers = std::fs::read_to_string(sysfs.with_file_name(&name).join("dev")).ok();
    let device = numbers.and_then(|numbers| {
        let (major, minor) = numbers.trim().split_once(':')?;
        Some(makedev(major.parse().ok()?, minor.parse().ok()?))
    });
    match stat(&node) {
        Ok(found) if Some(found.st_rdev) == device => Ok(node),
        _ => Err(Error::unsupported(format!(
            "{}: the block device of this namespace is not at {}, so ironmap cannot exclude other programs",
            path.display(),
            node.display()
        ))),
    }
}

/// Returns the largest number of separate memory ranges in one request to a block device.
fn max_segments(block: &Path) -> Option<u32> {
    let queue = Path::new("/sys/class/block").join(block.file_name()?).join("queue/max_segments");
    std::fs::read_to_string(queue).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn identify(format: u8, metadata: u8, shift: u8) -> [u8; 4096] {
        let mut bytes = [0; 4096];
        (bytes[25], bytes[26]) = (3, format);
        let at = 128 + 4 * usize::from(format & 0b1111);
        (bytes[at], bytes[at + 2]) = (metadata, shift);
        bytes
    }

    #[test]
    fn a_format_is_read_and_metadata_among_the_data_is_refused() {
        for (metadata, shift) in [(0, 12), (8, 9), (16, 12)] {
            let expected = Format { shift: shift.into(), metadata: metadata.into() };
            assert_eq!(Format::read(&identify(2, metadata, shift)).unwrap(), expected);
        }
        for (format, metadata, shift) in [(1 | 1 << 4, 8, 9), (1, 0, 8), (1, 0, 255)] {
            let error = Format::read(&identify(format, metadata, shift)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn the_largest_transfer_is_bounded_where_the_controller_says_so() {
        let mut bytes = [0; 4096];
        for (power, expected) in [(0, u32::MAX), (5, 128 << 10), (255, u32::MAX), (30, u32::MAX)] {
            bytes[77] = power;
            assert_eq!(max_transfer(&bytes), expected, "2^{power}");
        }
    }

    #[test]
    fn another_character_device_is_refused() {
        assert_eq!(
            Namespace::open(Path::new("/dev/null")).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
}
