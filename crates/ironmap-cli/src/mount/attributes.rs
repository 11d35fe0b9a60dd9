//! The attributes of an inode for the kernel, and the changes of attributes that the kernel requests.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, TimeOrNow};
use ironmap::fs::{FileType, KeepSetId, SetAttributes, Stat, Timestamp, Usage};
use ironmap::units::InodeNo;

use super::fail::Result;
use super::{Asker, Mount};

/// The attributes that a `setattr` changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Changes {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) accessed: Option<TimeOrNow>,
    pub(super) modified: Option<TimeOrNow>,
    /// The time of the change. With a writeback cache, the kernel itself updates this time and sends it. Without this cache, it is `None`.
    pub(super) changed: Option<SystemTime>,
}

impl Changes {
    /// Whether the request changes attributes besides the size.
    fn asks_for_more(&self) -> bool {
        let Self { mode, uid, gid, size: _, accessed, modified, changed } = self;
        mode.or(*uid).or(*gid).is_some() || accessed.or(*modified).is_some() || changed.is_some()
    }
}

impl Mount {
    pub(super) fn getattr(&self, inode: InodeNo) -> Result<FileAttr> {
        Ok(self.fs().inspect(inode, |inode| Ok(self.attr(inode.stat())))?)
    }

    pub(super) fn setattr(
        &self,
        inode: InodeNo,
        changes: &Changes,
        asker: Asker,
    ) -> Result<FileAttr> {
        let fs = self.fs();
        if let Some(size) = changes.size {
            fs.writable()?.truncate(inode, size)?;
            fs.writable()?.strip_privileges(inode, asker.keeps_set_id())?;
        }
        let now = Some(TimeOrNow::Now);
        let set = SetAttributes::new()
            .permissions(changes.mode.map(|mode| mode & 0o7777))
            .uid(changes.uid)
            .gid(changes.gid)
            .accessed(changes.accessed.map(time))
            .modified(changes.modified.map(time))
            .changed(changes.changed.map(timestamp))
            .times_of_use(
                changes.changed.is_some() || changes.accessed == now && changes.modified == now,
            );
        if changes.size.is_none() || changes.asks_for_more() {
            fs.writable()?.set_attributes(inode, &set)?;
        }
        self.changed(&[inode])?;
        self.getattr(inode)
    }

    /// The attributes of an inode for the kernel. The inode number is also the FUSE node number. The root is the exception: its node number
    /// is 1.
    pub(super) fn attr(&self, stat: &Stat) -> FileAttr {
        FileAttr {
            ino: fuser::INodeNo(stat.inode.0),
            size: stat.size,
            blocks: stat.blocks,
            atime: system_time(stat.accessed),
            mtime: system_time(stat.modified),
            ctime: system_time(stat.changed),
            crtime: system_time(stat.created.unwrap_or_default()),
            kind: kind(stat.file_type),
            perm: (stat.mode & 0o7777) as u16,
            nlink: stat.links,
            uid: self.options.uid.unwrap_or(stat.uid),
            gid: self.options.gid.unwrap_or(stat.gid),
            rdev: stat.device.map_or(0, |(major, minor)| device_number(major, minor)),
            blksize: stat.block_size,
            flags: 0,
        }
    }

    pub(super) fn statfs(&self, reply: fuser::ReplyStatfs) {
        let Usage { block_size, blocks, inodes, free, .. } = self.fs().usage();
        let (available, free_inodes) = (free.available, free.inodes);
        reply.statfs(
            blocks,
            free.blocks,
            available,
            inodes,
            free_inodes,
            block_size,
            255,
            block_size,
        );
    }
}

impl Asker {
    /// Whether a change by the caller keeps set-id bits. The request does not contain the caller's capabilities. Therefore only a change by
    /// the superuser keeps the bits.
    pub(super) fn keeps_set_id(self) -> KeepSetId {
        if self.uid == 0 { KeepSetId::Yes } else { KeepSetId::No }
    }
}

pub(super) fn kind(file_type: FileType) -> fuser::FileType {
    match file_type {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
    }
}

/// A device number in the protocol's encoding: the low 8 bits of the minor number, 12 bits of the major number, and the high 12 bits of the
/// minor number.
fn device_number(major: u32, minor: u32) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
}

pub(super) fn device_numbers(number: u32) -> (u32, u32) {
    (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xfff00)
}

fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
    whole.and_then(|whole| whole.checked_add(nanoseconds)).unwrap_or(UNIX_EPOCH)
}

fn time(time: TimeOrNow) -> Timestamp {
    timestamp(match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    })
}

fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
        }
        // For a time before 1970, fuser 0.18 subtracts the nanoseconds from the seconds instead of adding them. This code recovers the
        // kernel's values.
        Err(before) => {
            let before = before.duration();
            Timestamp {
                seconds: 0_i64.saturating_sub_unsigned(before.as_secs()),
                nanoseconds: before.subsec_nanos(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_keep_all_their_bits() {
        for numbers in [(0, 0), (8, 1), (259, 300), (0xfff, 0xf_ffff)] {
            assert_eq!(device_numbers(device_number(numbers.0, numbers.1)), numbers);
        }
    }

    #[test]
    fn times_before_1970_are_shown() {
        let time = Timestamp { seconds: -2, nanoseconds: 800_000_000 };
        let before = UNIX_EPOCH.duration_since(system_time(time)).unwrap();
        assert_eq!(before, Duration::from_millis(1200));
    }
}
