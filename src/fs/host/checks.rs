//! Checks whether a file can be read raw, that is, directly from the block device. All data of the file must be where FIEMAP reports them,
//! and in no other place.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, IFlags, Statx, StatxAttributes, StatxFlags};

use super::Refusal;
use crate::error::{Errno, Result};
use crate::sys::{has_reflink, is_realtime};

/// The file systems whose files may be read directly from the block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostFs {
    /// ext2, ext3 and ext4.
    Ext,
    /// XFS.
    Xfs,
}

impl HostFs {
    /// The machine-readable name, which is the name of the kernel's driver.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

impl fmt::Display for HostFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext => "ext2, ext3 or ext4",
            Self::Xfs => "XFS",
        })
    }
}

// Values of `f_type` in `statfs`. Source: Linux's include/uapi/linux/magic.h.
const EXT: u32 = 0xEF53;
const XFS: u32 = 0x5846_5342;
const OTHERS: [(u32, &str); 12] = [
    (0x9123_683E, "btrfs"),
    (0xF2F5_2010, "f2fs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58F6, "ramfs"),
    (0x794C_7630, "overlayfs"),
    (0x6969, "NFS"),
    (0xFF53_4D42, "CIFS"),
    (0x6573_5546, "FUSE"),
    (0x2FC1_2FC1, "ZFS"),
    (0xCA45_1A4E, "bcachefs"),
    (0x2011_BAB0, "exFAT"),
    (0x4D44, "FAT"),
];

/// The properties of an open file that the kernel reports: the result of `statx`, and the type of the file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) statx: Statx,
    pub(super) magic: u32,
}

impl Facts {
    pub(super) fn of(file: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        Ok(Self { statx: statx(file)?, magic: rustix::fs::fstatfs(file)?.f_type as u32 })
    }

    /// Calls `statx` again for the same file. `self` contains the previous result.
    pub(super) fn now(self, file: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        Ok(Self { statx: statx(file)?, ..self })
    }

    pub(super) fn is_immutable(&self) -> bool {
        self.statx.stx_attributes.contains(StatxAttributes::IMMUTABLE)
    }

    /// The file system, if it is supported.
    pub(super) fn fs(&self) -> Result<HostFs, Refusal> {
        match self.magic {
            EXT => Ok(HostFs::Ext),
            XFS => Ok(HostFs::Xfs),
            magic => {
                let name = OTHERS.iter().find(|(other, _)| *other == magic);
                Err(Refusal::FileSystem(name.map_or("this type of file system", |(_, name)| name)))
            }
        }
    }
}

fn statx(file: BorrowedFd<'_>) -> rustix::io::Result<Statx> {
    let asked = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, asked)
}

/// Returns the first reason why a file cannot be read raw. Reasons that depend on other users of the file are not included.
pub(super) fn refuse(
    file: BorrowedFd<'_>,
    facts: &Facts,
    assume_no_dedupe: bool,
) -> Result<(), Refusal> {
    let fs = facts.fs()?;
    if facts.statx.stx_dev_major == 0 {
        return Err(Refusal::NoBlockDevice);
    }
    let has = |attribute| facts.statx.stx_attributes.contains(attribute);
    if has(StatxAttributes::ENCRYPTED) {
        return Err(Refusal::Encrypted);
    }
    if has(StatxAttributes::VERITY) {
        return Err(Refusal::Verity);
    }
    if has(StatxAttributes::COMPRESSED) {
        return Err(Refusal::Encoded);
    }
    match fs {
        HostFs::Ext => refuse_data_journal(file, facts),
        HostFs::Xfs => {
            let failed = |errno| Refusal::Failed("cannot read the XFS attributes", errno);
            if is_realtime(file).map_err(failed)? {
                return Err(Refusal::Realtime);
            }
            let safe = facts.is_immutable() || assume_no_dedupe;
            // If the kernel does not report whether the file system has reflink, reflink is assumed.
            if !safe && has_reflink(file).unwrap_or(true) {
                return Err(Refusal::Dedupe);
            }
            Ok(())
        }
    }
}

/// Refuses a file whose data are journaled. The mount options come from `/proc/fs/ext4/DEVICE/options`. This file also contains the default
/// options, which `mountinfo` omits.
fn refuse_data_journal(file: BorrowedFd<'_>, facts: &Facts) -> Result<(), Refusal> {
    let flags = rustix::fs::ioctl_getflags(file)
        .map_err(|errno| Refusal::Failed("cannot read the inode flags", errno.into()))?;
    if flags.contains(IFlags::JOURNALING) {
        return Err(Refusal::DataJournal);
    }
    let (major, minor) = (facts.statx.stx_dev_major, facts.statx.stx_dev_minor);
    let name = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}"));
    let name = name.ok().and_then(|link| link.file_name().map(ToOwned::to_owned));
    let options = name.and_then(|name| {
        let path = std::path::Path::new("/proc/fs/ext4").join(name).join("options");
        std::fs::read_to_string(path).ok()
    });
    match options {
        Some(options) if options.lines().any(|line| line == "data=journal") => {
            Err(Refusal::DataJournal)
        }
        Some(_) => Ok(()),
        // The old ext2 driver has no journal and no options file.
        None if mounted_as(major, minor).as_deref() == Some("ext2") => Ok(()),
        None => Err(Refusal::UnknownDataMode),
    }
}

/// The present size of a block device in bytes.
pub(super) fn device_size(major: u32, minor: u32) -> Option<u64> {
    let size = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size")).ok()?;
    // The unit is 512 bytes, for any sector size of the device.
    size.trim().parse::<u64>().ok()?.checked_mul(512)
}

/// The driver that mounts a device, from `/proc/self/mountinfo`.
fn mounted_as(major: u32, minor: u32) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let device = format!("{major}:{minor}");
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&device))?;
    let (_, end) = line.split_once(" - ")?;
    end.split(' ').next().map(str::to_owned)
}

/// Waits until all writes to a file have reached the device.
pub(super) fn sync(file: &std::fs::File) -> Result<(), Refusal> {
    rustix::fs::fdatasync(file.as_fd())
        .map_err(|errno| Refusal::Failed("fdatasync", Errno::from(errno)))
}
