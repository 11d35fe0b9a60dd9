//! Reads inodes by number, checks them, and decodes them.

use std::sync::{Arc, OnceLock};

use zerocopy::FromBytes;

use super::Xfs;
use super::disk::inode::{
    CRC_OFFSET, FORKS_V2, FORKS_V3, MAGIC, RawInode, RawInodeV3, flags, flags2, format,
};
use super::features::Incompat;
use super::fork::{Fork, Format};
use super::geometry::InodePlace;
use super::header::crc_of;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::block::Part;
use crate::fs::{FileType, InodeFlags, Stat, Timestamp};
use crate::iomap::ExtentMap;
use crate::units::InodeNo;

const PLACE: Place = Place::new("inode");
/// The code for inodes in [`Part`], which identifies the structures whose checksums were verified.
const KIND: u8 = 1;
/// A time stamp in `bigtime` format counts nanoseconds. The value 0 is this many seconds before 1970.
const BIGTIME_EPOCH: i64 = 1 << 31;
/// `lsattr` shows this flag as `x`.
const FS_DAX_FL: u32 = 0x0200_0000;
const NANOSECONDS: u64 = 1_000_000_000;

/// An inode in memory. The map of the inode's data is read at the first use.
pub struct XfsInode {
    pub(super) fs: Arc<Xfs>,
    pub(super) stat: Stat,
    pub(super) data: Fork,
    pub(super) attributes: Option<Fork>,
    /// Whether the inode is internal to the file system.
    pub(super) is_metadata: bool,
    /// Whether some of the inode's blocks may be shared with other files.
    pub(super) is_reflinked: bool,
    pub(super) map: OnceLock<Option<Arc<ExtentMap>>>,
}

impl Xfs {
    /// Reads an inode by a number that a caller supplied. The inode must also be in use according to the inode tree, because file content
    /// can look like an inode.
    ///
    /// # Errors
    /// The errors of [`inode`](Self::inode); `Corrupt` also if the inode tree is damaged.
    pub fn inode_by_number(self: &Arc<Self>, number: InodeNo) -> Result<XfsInode> {
        self.superblock.geometry.inode_place(number)?;
        if !self.is_in_use(number)? {
            return Err(not_in_use(number));
        }
        self.inode(number)
    }

    /// Reads and checks an inode by a number from the volume's own metadata.
    ///
    /// # Errors
    /// `NotFound` if the inode is not in use or has no name, or if no inode has this number. `Corrupt` if the inode is damaged.
    pub fn inode(self: &Arc<Self>, number: InodeNo) -> Result<XfsInode> {
        let inode = self.inode_or_orphan(number)?;
        if inode.stat.links == 0 {
            return Err(not_in_use(number));
        }
        Ok(inode)
    }

    /// The inode with this number, even if the inode has no name.
    pub(super) fn inode_or_orphan(self: &Arc<Self>, number: InodeNo) -> Result<XfsInode> {
        let mut inode = self.inode_as_stored(number)?;
        if self.changes.has(number) {
            inode.change_map(&self.changes)?;
        }
        Ok(inode)
    }

    /// Reads an inode. Unfinished map changes in the log are not applied to the inode.
    pub(super) fn inode_as_stored(self: &Arc<Self>, number: InodeNo) -> Result<XfsInode> {
        let InodePlace { block, index } = self.superblock.geometry.inode_place(number)?;
        let place = PLACE.inode(number).block(block);
        let size = self.superblock.geometry.inode;
        let (content, start) = self.metadata.inodes(block)?;
        let start = start + index * size;
        let bytes = &content[start..start + size];
        let (Ok((raw, _)), Ok((v3, _))) =
            (RawInode::ref_from_prefix(bytes), RawInodeV3::ref_from_prefix(&bytes[CRC_OFFSET..]))
        else {
            return Err(place.corrupt("the inode is truncated"));
        };
        if raw.di_magic.get() != MAGIC {
            // The number may come from a caller, so the error does not mean that the volume is damaged. If the number is from a directory
            // entry, the caller reports a damaged entry instead.
            let what =
                format!("inode {number} does not exist: the magic number does not match an inode");
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        let is_v5 = self.superblock.is_v5();
        let version = raw.di_version;
        if (version == 3) != is_v5 || !(1..=3).contains(&version) {
            return Err(place.field("di_version").corrupt(format!("version {version}")));
        }
        if is_v5 {
            let part = Part::numbered(KIND, (start / size) as u32, u32::MAX);
            content.verify_once(part, || {
                // Inodes that the log changed got new checksums during recovery.
                let (stored, computed) = (u32::from_le_bytes(v3.di_crc), crc_of(bytes, CRC_OFFSET));
                if stored == computed {
                    Ok(())
                } else {
                    Err(place.field("di_crc").bad_checksum(stored, computed))
                }
            })?;
            if v3.di_ino.get() != number.0 {
                return Err(place
                    .field("di_ino")
                    .corrupt(format!("the inode records the number {}", v3.di_ino)));
            }
            if v3.di_uuid != self.superblock.meta_uuid {
                return Err(place.field("di_uuid").corrupt("the UUID belongs to another volume"));
            }
        }
        self.decode(number, bytes, raw, is_v5.then_some(v3), place)
    }

    pub(super) fn decode(
        self: &Arc<Self>,
        number: InodeNo,
        bytes: &[u8],
        raw: &RawInode,
        v3: Option<&RawInodeV3>,
        place: Place,
    ) -> Result<XfsInode> {
        let mode = u32::from(raw.di_mode.get());
        if mode == 0 {
            return Err(not_in_use(number));
        }
        let Some(file_type) = FileType::from_mode(mode) else {
            return Err(place
                .field("di_mode")
                .corrupt(format!("the mode {mode:#o} contains no valid file type")));
        };
        let size = raw.di_size.get();
        if size > i64::MAX as u64 {
            return Err(place.field("di_size").corrupt(format!("{size} bytes")));
        }
        let flags2 = v3.map_or(0, |v3| v3.di_flags2.get());
        let needs = [(flags2::BIGTIME, Incompat::BIGTIME), (flags2::NREXT64, Incompat::NREXT64)];
        let lacks = |(flag, feature): &(u64, Incompat)| {
            flags2 & flag != 0 && !self.superblock.incompat.contains(*feature)
        };
        if needs.iter().any(lacks) {
            let what = format!("a flag in {flags2:#x} needs a feature that is not set");
            return Err(place.field("di_flags2").corrupt(what));
        }
        let (mut data, attributes) = self.forks(bytes, raw, flags2, file_type, place)?;
        data.is_realtime =
            raw.di_flags.get() & flags::REALTIME != 0 && file_type == FileType::Regular;
        let device = (data.format == Format::Device).then(|| device_number(&data.bytes)).flatten();
        let stat = self.stat(number, raw, v3, file_type, device);
        Ok(XfsInode {
            fs: Arc::clone(self),
            is_metadata: flags2 & flags2::METADATA != 0
                || self.superblock.internal.contains(&number),
            is_reflinked: flags2 & flags2::REFLINK != 0,
            stat,
            data,
            attributes,
            map: OnceLock::new(),
        })
    }

    fn stat(
        &self,
        number: InodeNo,
        raw: &RawInode,
        v3: Option<&RawInodeV3>,
        file_type: FileType,
        device: Option<(u32, u32)>,
    ) -> Stat {
        let flags2 = v3.map_or(0, |v3| v3.di_flags2.get());
        let is_big = flags2 & flags2::BIGTIME != 0;
        let time = |raw: u64| if is_big { bigtime(raw) } else { time(raw) };
        let project = u32::from(raw.di_projid_lo.get()) | u32::from(raw.di_projid_hi.get()) << 16;
        let project = if self.superblock.projid32 { project } else { project & 0xFFFF };
        let block_size = self.superblock.geometry.block;
        let flags = raw.di_flags.get();
        Stat {
            inode: number,
            file_type,
            mode: u32::from(raw.di_mode.get()),
            links: if raw.di_version == 1 {
                raw.di_onlink.get().into()
            } else {
                raw.di_nlink.get()
            },
            uid: raw.di_uid.get(),
            gid: raw.di_gid.get(),
            size: raw.di_size.get(),
            blocks: raw.di_nblocks.get().saturating_mul(block_size.bytes() as u64 / 512),
            block_size: block_size.bytes() as u32,
            accessed: time(raw.di_atime.get()),
            modified: time(raw.di_mtime.get()),
            changed: time(raw.di_ctime.get()),
            created: v3.map(|v3| time(v3.di_crtime.get())),
            device,
            flags: linux_flags(flags, flags2).bits(),
            generation: raw.di_gen.get(),
            project: Some(project),
        }
    }

    /// Decodes the forks of an inode. An extent list with the counted number of extents must fit into the inode.
    fn forks(
        &self,
        bytes: &[u8],
        raw: &RawInode,
        flags2: u64,
        file_type: FileType,
        place: Place,
    ) -> Result<(Fork, Option<Fork>)> {
        let literal = &bytes[if raw.di_version == 3 { FORKS_V3 } else { FORKS_V2 }..];
        let offset = usize::from(raw.di_forkoff) * 8;
        if offset >= literal.len() {
            return Err(place.field("di_forkoff").corrupt(format!(
                "the offset {offset} is past the {} bytes of the inode's forks",
                literal.len()
            )));
        }
        let is_large = flags2 & flags2::NREXT64 != 0;
        let (extents, attribute_extents) = if is_large {
            (raw.di_big_nextents.get(), raw.di_nextents.get().into())
        } else {
            (raw.di_nextents.get().into(), raw.di_anextents.get().into())
        };
        let (data, attributes) = match offset {
            0 => (literal, None),
            offset => (&literal[..offset], Some(&literal[offset..])),
        };
        let field = place.field("di_format");
        let format = match (raw.di_format, file_type) {
            (
                format::DEVICE,
                FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket,
            ) => Format::Device,
            (format::LOCAL, FileType::Directory | FileType::Symlink)
                if raw.di_size.get() <= data.len() as u64 =>
            {
                Format::Local
            }
            (format::EXTENTS, FileType::Regular | FileType::Directory | FileType::Symlink) => {
                Format::Extents
            }
            (format::BTREE, FileType::Regular | FileType::Directory) => Format::Tree,
            (format::META_BTREE, _) => {
                return Err(Error::unsupported(format!(
                    "inode {} contains a B+tree of realtime space and cannot be read as a file",
                    place.inode.unwrap_or_default()
                )));
            }
            (format, _) => {
                let what = format!("format {format} does not fit the file's type and size");
                return Err(field.corrupt(what));
            }
        };
        let data = Fork::new(format, data, extents);
        let Some(area) = attributes else { return Ok((data, None)) };
        let format = match raw.di_aformat {
            format::LOCAL => Format::Local,
            format::EXTENTS => Format::Extents,
            format::BTREE => Format::Tree,
            format => {
                return Err(place.field("di_aformat").corrupt(format!("format {format}")));
            }
        };
        Ok((data, Some(Fork::new(format, area, attribute_extents))))
    }
}

fn not_in_use(number: InodeNo) -> Error {
    Error::new(ErrorKind::NotFound, format!("inode {number} is not in use"))
}

/// Decodes a time of 32 bits for the seconds and 32 bits for the nanoseconds.
fn time(raw: u64) -> Timestamp {
    let nanoseconds = (raw as u32).min(NANOSECONDS as u32 - 1);
    Timestamp { seconds: i64::from((raw >> 32) as u32 as i32), nanoseconds }
}

fn bigtime(raw: u64) -> Timestamp {
    Timestamp {
        seconds: (raw / NANOSECONDS) as i64 - BIGTIME_EPOCH,
        nanoseconds: (raw % NANOSECONDS) as u32,
    }
}

/// Major number in the upper 14 bits, minor number in the lower 18.
fn device_number(bytes: &[u8]) -> Option<(u32, u32)> {
    let number = u32::from_be_bytes(*bytes.first_chunk()?);
    Some((number >> 18, number & 0x3_FFFF))
}

/// The flags as `lsattr` shows them.
fn linux_flags(flags: u16, flags2: u64) -> InodeFlags {
    let of = [
        (flags::IMMUTABLE, InodeFlags::IMMUTABLE),
        (flags::APPEND, InodeFlags::APPEND),
        (flags::SYNC, InodeFlags::SYNC),
        (flags::NO_ATIME, InodeFlags::NO_ATIME),
        (flags::NO_DUMP, InodeFlags::NO_DUMP),
        (flags::PROJECT_INHERIT, InodeFlags::PROJECT_INHERIT),
    ];
    let set = of.into_iter().filter(|(bit, _)| flags & bit != 0).map(|(_, flag)| flag);
    let dax = if flags2 & flags2::DAX != 0 { FS_DAX_FL } else { 0 };
    set.fold(InodeFlags::from_bits_retain(dax), |all, flag| all | flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970() {
        let of = |seconds: i32, nanoseconds: u32| {
            time(u64::from(seconds as u32) << 32 | u64::from(nanoseconds))
        };
        assert_eq!(of(-5, 7), Timestamp { seconds: -5, nanoseconds: 7 });
        assert_eq!(bigtime(0), Timestamp { seconds: -(1 << 31), nanoseconds: 0 });
        let late = ((5_000_000_000 + (1_u64 << 31)) * NANOSECONDS) + 9;
        assert_eq!(bigtime(late), Timestamp { seconds: 5_000_000_000, nanoseconds: 9 });
    }
}
