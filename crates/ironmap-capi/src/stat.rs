//! Attributes of files.

use ironmap::fs::{Stat, Timestamp};

/// A time: seconds since 1970 in UTC, and nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_time {
    /// Seconds since the beginning of 1970; negative for earlier times.
    pub seconds: i64,
    /// Nanoseconds after the second: 0 to 999999999.
    pub nanoseconds: u32,
    /// Not used: 0.
    pub unused: u32,
}

impl ironmap_time {
    pub(crate) fn of(time: Timestamp) -> Self {
        Self { seconds: time.seconds, nanoseconds: time.nanoseconds, unused: 0 }
    }

    pub(crate) fn timestamp(self) -> Timestamp {
        Timestamp { seconds: self.seconds, nanoseconds: self.nanoseconds }
    }
}

/// The attributes of a file.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct ironmap_stat {
    /// The inode number.
    pub inode: u64,
    /// The type and the permissions, as `st_mode`.
    pub mode: u32,
    /// The number of names.
    pub links: u32,
    /// The user that owns the file.
    pub uid: u32,
    /// The group that owns the file.
    pub gid: u32,
    /// The size in bytes.
    pub size: u64,
    /// The allocated space in units of 512 bytes.
    pub blocks: u64,
    /// The size of a block in bytes.
    pub block_size: u32,
    /// The flags of the inode, as FS_IOC_GETFLAGS returns them.
    pub flags: u32,
    /// The major number of a device; 0 for other files.
    pub device_major: u32,
    /// The minor number of a device; 0 for other files.
    pub device_minor: u32,
    /// The project of the file; 0 if there are no projects.
    pub project: u32,
    /// 1 if the format stores the time of creation.
    pub has_created: u32,
    /// The time of the last read.
    pub accessed: ironmap_time,
    /// The time of the last change of the content.
    pub modified: ironmap_time,
    /// The time of the last change of the attributes.
    pub changed: ironmap_time,
    /// The time of creation, if `has_created` is 1.
    pub created: ironmap_time,
}

pub(crate) fn shown(stat: &Stat) -> ironmap_stat {
    let (device_major, device_minor) = stat.device.unwrap_or((0, 0));
    ironmap_stat {
        inode: stat.inode.0,
        mode: stat.mode,
        links: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        blocks: stat.blocks,
        block_size: stat.block_size,
        flags: stat.flags,
        device_major,
        device_minor,
        project: stat.project.unwrap_or(0),
        has_created: stat.created.is_some().into(),
        accessed: ironmap_time::of(stat.accessed),
        modified: ironmap_time::of(stat.modified),
        changed: ironmap_time::of(stat.changed),
        created: stat.created.map(ironmap_time::of).unwrap_or_default(),
    }
}
