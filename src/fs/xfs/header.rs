//! Checksums, and the header by which a block of metadata says what, where and whose it is.
//!
//! Source: "Self-Describing Metadata" in the book. The checksum is CRC32C of the whole structure with its own field as zeros, stored little-endian.

use super::Xfs;
use super::overlay::Replayed;
use crate::error::{Place, Result};
use crate::units::{FsBlock, InodeNo};

/// CRC32C of bytes, four of them from `at` on taken as zeros.
pub(super) fn crc_of(bytes: &[u8], at: usize) -> u32 {
    let sum = crc32c::crc32c(&bytes[..at]);
    let sum = crc32c::crc32c_append(sum, &[0; 4]);
    crc32c::crc32c_append(sum, &bytes[at + 4..])
}

/// Where a structure has the fields that all have: byte offsets in it.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) crc: usize,
    /// Its place in basic sectors.
    pub(crate) blkno: usize,
    /// The position in the log up to which it has all changes.
    pub(crate) lsn: usize,
    pub(crate) uuid: usize,
    pub(crate) owner: usize,
}

impl Header {
    /// Of a B+tree that a file has.
    pub(crate) const MAP: Self = Self { crc: 64, blkno: 24, lsn: 32, uuid: 40, owner: 56 };
    /// Of a B+tree that a group has. The owner has 32 bits.
    pub(crate) const GROUP: Self = Self { crc: 52, blkno: 16, lsn: 24, uuid: 32, owner: 48 };
    /// Of directory entries, and of the free space in a directory.
    pub(crate) const DIR_DATA: Self = Self { crc: 4, blkno: 8, lsn: 16, uuid: 24, owner: 40 };
    /// Of hash indexes of directories and attributes.
    pub(crate) const DA: Self = Self { crc: 12, blkno: 16, lsn: 24, uuid: 32, owner: 48 };
    /// Of the bitmap and the summary of a realtime group.
    pub(crate) const REALTIME: Self = Self { crc: 4, blkno: 16, lsn: 24, uuid: 32, owner: 8 };
    /// Of remote values and symbolic links.
    pub(crate) const REMOTE: Self = Self { crc: 12, blkno: 40, lsn: 48, uuid: 16, owner: 32 };
}

impl Xfs {
    /// Checks the header of a structure of an inode, which lies in these blocks. Nothing to check where the volume has no checksums.
    pub(super) fn check_header(
        &self,
        bytes: &[u8],
        header: Header,
        blocks: &[FsBlock],
        owner: InodeNo,
        place: Place,
    ) -> Result<()> {
        if !self.superblock.is_v5() {
            return Ok(());
        }
        self.check_place(bytes, header, blocks, place)?;
        let found = u64::from_be_bytes(array(bytes, header.owner));
        if found != owner.0 {
            return Err(place.field("owner").corrupt(format!("it is of inode {found}")));
        }
        Ok(())
    }

    /// The same of a block of a tree that a group has.
    pub(super) fn check_group_header(
        &self,
        bytes: &[u8],
        block: FsBlock,
        group: u32,
        place: Place,
    ) -> Result<()> {
        if !self.superblock.is_v5() {
            return Ok(());
        }
        self.check_place(bytes, Header::GROUP, &[block], place)?;
        let found = u32::from_be_bytes(array(bytes, Header::GROUP.owner));
        if found != group {
            return Err(place.field("owner").corrupt(format!("it is of group {found}")));
        }
        Ok(())
    }

    /// Checks all but the owner.
    fn check_place(
        &self,
        bytes: &[u8],
        header: Header,
        blocks: &[FsBlock],
        place: Place,
    ) -> Result<()> {
        // The log has no checksum of a structure, but of its own records.
        if self.metadata.replayed(blocks) == Replayed::No {
            let stored = u32::from_le_bytes(array(bytes, header.crc));
            let computed = crc_of(bytes, header.crc);
            if stored != computed {
                return Err(place.field("crc").bad_checksum(stored, computed));
            }
        }
        self.metadata.check_age(u64::from_be_bytes(array(bytes, header.lsn)), place)?;
        let at = blocks.first().map_or(0, |block| self.superblock.geometry.basic_sector(*block));
        let blkno = u64::from_be_bytes(array(bytes, header.blkno));
        if blkno != at {
            return Err(place.field("blkno").corrupt(format!("{blkno} at sector {at}")));
        }
        if array(bytes, header.uuid) != self.superblock.meta_uuid {
            return Err(place.field("uuid").corrupt("it is of another volume"));
        }
        Ok(())
    }
}

/// The bytes of a field. The structure is longer: its caller has a whole block.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}
