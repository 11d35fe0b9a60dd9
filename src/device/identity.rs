//! The identity of a device. It does not depend on the device's current name.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

use super::BlockFile;
use crate::units::DevOffset;

/// A file or a block device of the host. All paths to the same file or device have the same value.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    /// Zero for a block device.
    inode: u64,
}

impl FileId {
    pub(super) fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => Self { device: stat.st_rdev, inode: 0 },
            _ => Self { device: stat.st_dev, inode: stat.st_ino },
        }
    }

    /// Whether this value identifies the file with these attributes.
    #[must_use]
    pub fn is_of(self, found: &Metadata) -> bool {
        self == match found.file_type().is_block_device() {
            true => Self { device: found.rdev(), inode: 0 },
            false => Self { device: found.dev(), inode: found.ino() },
        }
    }
}

impl BlockFile {
    /// Returns the identity of the open file or block device.
    #[doc(hidden)]
    #[must_use]
    pub fn file_id(&self) -> FileId {
        self.id
    }

    /// Whether a path names the open file or device.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        rustix::fs::stat(path).is_ok_and(|found| self.id == FileId::of(&found))
    }

    /// Returns the identity of an open device: a hash of the disk's identity and of the device's offset on the disk. A partition has the
    /// same identity as the same range of its disk. The result is all zeros for a device without an identity, for example an image or a RAM
    /// disk.
    ///
    /// A disk is identified by its worldwide name (`wwid`), and a mapped device by its UUID. If a disk has no identity, a partition of the
    /// disk is identified by the partition's UUID.
    #[must_use]
    pub fn identity(&self) -> [u8; 16] {
        let FileId { device, inode: 0 } = self.id else { return [0; 16] };
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let dir = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        name(&dir, self.absolute(DevOffset(0))).map_or([0; 16], |name| digest(name.as_bytes()))
    }
}

/// Returns a text that identifies a range of a device or partition. The range begins at byte `base`. `dir` is the sysfs directory of the
/// device or partition.
fn name(dir: &Path, base: u64) -> Option<String> {
    let start = text(&dir.join("start")).and_then(|start| start.parse::<u64>().ok());
    let Some(start) = start else {
        return disk(dir).map(|disk| format!("{disk}@{base}"));
    };
    if let Some(disk) = disk(&dir.join("..")) {
        return Some(format!("{disk}@{}", start.saturating_mul(512).saturating_add(base)));
    }
    let uevent = text(&dir.join("uevent"))?;
    let uuid = uevent.lines().find_map(|line| line.strip_prefix("PARTUUID="))?;
    Some(format!("partuuid:{uuid}@{base}"))
}

/// Returns a text that identifies a disk or mapped device: its worldwide name or UUID.
fn disk(dir: &Path) -> Option<String> {
    ["wwid", "device/wwid", "dm/uuid", "md/uuid"].iter().find_map(|name| text(&dir.join(name)))
}

fn text(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Returns the FNV-1a hash with 128 bits. It does not resist deliberate collisions.
fn digest(bytes: &[u8]) -> [u8; 16] {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
    let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let step = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    bytes.iter().fold(start, step).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A partition and the same range of its disk have the same identity. Another disk has a different identity. A device without
    /// identifying attributes has no identity.
    #[test]
    fn a_part_is_identified_by_its_disk_and_its_start() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        let part = disk.join("part");
        std::fs::create_dir_all(&part).unwrap();
        std::fs::write(part.join("start"), "2048\n").unwrap();
        std::fs::write(part.join("uevent"), "DEVTYPE=partition\nPARTUUID=abc-01\n").unwrap();
        assert_eq!(name(&disk, 0), None);
        assert_eq!(name(&part, 4096).as_deref(), Some("partuuid:abc-01@4096"));
        std::fs::write(disk.join("wwid"), "naa.5000\n").unwrap();
        assert_eq!(name(&part, 0).as_deref(), Some("naa.5000@1048576"));
        assert_eq!(name(&disk, 1 << 20), name(&part, 0));
        assert_ne!(digest(b"naa.5000@0"), digest(b"naa.5001@0"));
    }
}
