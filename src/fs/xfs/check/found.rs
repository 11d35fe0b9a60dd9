//! An inode as read from the disk, with accessors of its fields.

use zerocopy::FromBytes;

use super::super::disk::inode::{
    CRC_OFFSET, FORKS_V2, FORKS_V3, MAGIC, RawInode, RawInodeV3, flags2, metatype,
};
use super::super::overlay::Replayed;
use super::Checker;
use crate::error::Place;
use crate::fs::FileType;
use crate::fs::check::{Findings, Kind};
use crate::fs::xfs::{Incompat, Superblock, Xfs};
use crate::units::{FsBlock, InodeNo};

/// The number of bytes of an extent in an extent list. The smallest root of an extent B+tree has the same length.
pub(super) const EXTENT: usize = 16;

/// An inode as read from the disk.
pub(super) struct Found {
    pub(super) number: InodeNo,
    pub(super) block: FsBlock,
    pub(super) raw: RawInode,
    pub(super) v3: Option<RawInodeV3>,
    bytes: Vec<u8>,
}

impl Found {
    pub(super) fn place(&self, field: &'static str) -> Place {
        Place::new("inode").inode(self.number).block(self.block).field(field)
    }

    /// Names a structure of this inode in a finding.
    pub(super) fn part(&self, structure: &'static str) -> Place {
        Place::new(structure).inode(self.number)
    }

    pub(super) fn mode(&self) -> u32 {
        self.raw.di_mode.get().into()
    }

    pub(super) fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode())
    }

    pub(super) fn size(&self) -> u64 {
        self.raw.di_size.get()
    }

    pub(super) fn flags2(&self) -> u64 {
        self.v3.as_ref().map_or(0, |v3| v3.di_flags2.get())
    }

    /// Whether the inode is internal to the file system and belongs to the metadata directories.
    pub(super) fn is_metadata(&self) -> bool {
        self.flags2() & flags2::METADATA != 0
    }

    /// The kind of the B+tree in the inode's data fork: reverse mapping or reference counts of realtime blocks. `None` if the fork contains
    /// no such tree.
    pub(super) fn space_tree(&self) -> Option<u16> {
        let kind = self.raw.di_onlink.get();
        let is_tree = matches!(kind, metatype::REALTIME_OWNERS | metatype::REALTIME_REFCOUNTS);
        (self.is_metadata() && is_tree).then_some(kind)
    }

    /// Whether the field for the copy-on-write extent size contains the number of used blocks of a zone instead.
    pub(super) fn counts_blocks(&self, superblock: &Superblock) -> bool {
        let is_zoned = superblock.incompat.contains(Incompat::ZONED);
        is_zoned && self.space_tree() == Some(metatype::REALTIME_OWNERS)
    }

    /// The project id. In a file of a realtime group, this field contains the number of the group.
    pub(super) fn project(&self) -> u32 {
        let raw = &self.raw;
        u32::from(raw.di_projid_lo.get()) | u32::from(raw.di_projid_hi.get()) << 16
    }

    pub(super) fn links(&self) -> u32 {
        match self.raw.di_version {
            1 => self.raw.di_onlink.get().into(),
            _ => self.raw.di_nlink.get(),
        }
    }

    /// The extent counters of the data fork and of the attribute fork.
    pub(super) fn extents(&self) -> (u64, u64) {
        if self.flags2() & flags2::NREXT64 != 0 {
            (self.raw.di_big_nextents.get(), self.raw.di_nextents.get().into())
        } else {
            (self.raw.di_nextents.get().into(), self.raw.di_anextents.get().into())
        }
    }

    /// The bytes of both forks.
    pub(super) fn literal(&self) -> &[u8] {
        let start = if self.raw.di_version == 3 { FORKS_V3 } else { FORKS_V2 };
        self.bytes.get(start..).unwrap_or_default()
    }

    /// The bytes of the data fork.
    pub(super) fn data(&self) -> &[u8] {
        let literal = self.literal();
        match usize::from(self.raw.di_forkoff) * 8 {
            0 => literal,
            offset => literal.get(..offset).unwrap_or(literal),
        }
    }

    /// The bytes of the attribute fork, if there is one.
    pub(super) fn attributes(&self) -> Option<&[u8]> {
        let offset = usize::from(self.raw.di_forkoff) * 8;
        self.literal().get(offset..).filter(|rest| offset > 0 && !rest.is_empty())
    }
}

impl Xfs {
    /// Reads an inode of a chunk and reports its wrong fields. Returns `None` if there is no inode at this position.
    pub(super) fn find_inode(
        &self,
        findings: &mut Findings,
        number: InodeNo,
        (block, index): (FsBlock, usize),
    ) -> Option<Found> {
        let sb = &self.superblock;
        let place = Place::new("inode").inode(number).block(block);
        let size = sb.geometry.inode;
        let (content, start) = match self.metadata.inodes(block) {
            Ok(found) => found,
            Err(error) => {
                findings.error(place, &error);
                return None;
            }
        };
        let bytes = content.get(start..)?.get(index * size..(index + 1) * size)?;
        let (Ok((raw, _)), Ok((v3, _))) =
            (RawInode::read_from_prefix(bytes), RawInodeV3::read_from_prefix(&bytes[CRC_OFFSET..]))
        else {
            return None;
        };
        if raw.di_magic.get() != MAGIC {
            let what = "the magic number does not match an inode".into();
            findings.add(place.field("di_magic"), Kind::Damaged { what });
            return None;
        }
        let version = raw.di_version;
        if (version == 3) != sb.is_v5() || !(1..=3).contains(&version) {
            let (stored, rule) = (version.into(), "the version is not valid on this volume");
            findings.add(place.field("di_version"), Kind::Invalid { stored, rule });
            return None;
        }
        if version == 3 {
            if self.metadata.replayed(&[block]) == Replayed::No {
                self.check_sum(findings, bytes, CRC_OFFSET, place.field("di_crc"));
            }
            findings.expect(place.field("di_ino"), v3.di_ino.get(), number.0);
            self.check_uuid(findings, v3.di_uuid, place);
            self.check_age(findings, v3.di_lsn.get(), place);
        }
        let v3 = (version == 3).then_some(v3);
        Some(Found { number, block, raw, v3, bytes: bytes.to_vec() })
    }
}

impl Checker<'_> {
    /// Reads an inode again, without reporting its faults again.
    pub(super) fn again(&mut self, number: InodeNo) -> Option<Found> {
        let place = self.fs.superblock.geometry.inode_place(number).ok()?;
        self.fs.find_inode(&mut Findings::default(), number, (place.block, place.index))
    }
}
