//! Checksums, and the header in which a block of metadata records its kind, its position and its owner.
//!
//! Source: "Self-Describing Metadata" in "XFS Algorithms & Data Structures". The checksum is CRC32C of the whole structure, computed with
//! zeros in the checksum field and stored little-endian.

use super::Xfs;
use super::overlay::Replayed;
use crate::error::{Place, Result};
use crate::units::{FsBlock, InodeNo};

/// CRC32C of `bytes`. The stored checksum (four bytes at offset `at`) counts as zeros.
pub(super) fn crc_of(bytes: &[u8], at: usize) -> u32 {
    let sum = crc32c::crc32c(&bytes[..at]);
    let sum = crc32c::crc32c_append(sum, &[0; 4]);
    crc32c::crc32c_append(sum, &bytes[at + 4..])
}

/// The byte offsets of the common fields in a structure.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) crc: usize,
    /// The structure's own position in basic sectors.
    pub(crate) blkno: usize,
    /// The log position (LSN) of the structure's last change.
    pub(crate) lsn: usize,
    pub(crate) uuid: usize,
    pub(crate) owner: usize,
}

impl Header {
    /// A block of a file's B+tree.
    pub(crate) const MAP: Self = Self { crc: 64, blkno: 24, lsn: 32, uuid: 40, owner: 56 };
    /// A block of a group's B+tree. The owner has 32 bits.
    pub(crate) const GROUP: Self = Self { crc: 52, blkno: 16, lsn: 24, uuid: 32, owner: 48 };
    /// A block of directory entries, or of the free space in a directory.
    pub(crate) const DIR_DATA: Self = Self { crc: 4, blkno: 8, lsn: 16, uuid: 24, owner: 40 };
    /// A block of a hash index of directories or attributes.
    pub(crate) const DA: Self = Self { crc: 12, blkno: 16, lsn: 24, uuid: 32, owner: 48 };
    /// A block of the bitmap or the summary of a realtime group.
    pub(crate) const REALTIME: Self = Self { crc: 4, blkno: 16, lsn: 24, uuid: 32, owner: 8 };
    /// A block of a remote value or a symbolic link.
    pub(crate) const REMOTE: Self = Self { crc: 12, blkno: 40, lsn: 48, uuid: 16, owner: 32 };
}

impl Xfs {
    /// Checks the header of a structure that belongs to an inode. The structure is in the given blocks. A volume without checksums has no
    /// such header.
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
            return Err(place
                .field("owner")
                .corrupt(format!("the block belongs to inode {found}")));
        }
        Ok(())
    }

    /// Checks the header of a block of a group's B+tree.
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
            return Err(place
                .field("owner")
                .corrupt(format!("the block belongs to group {found}")));
        }
        Ok(())
    }

    /// Checks all header fields except the owner.
    fn check_place(
        &self,
        bytes: &[u8],
        header: Header,
        blocks: &[FsBlock],
        place: Place,
    ) -> Result<()> {
        // The log does not contain new checksums of structures. So after recovery has changed a structure, its checksum is not valid.
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
            return Err(place.field("blkno").corrupt(format!(
                "the recorded sector is {blkno}, but the block is at sector {at}"
            )));
        }
        if array(bytes, header.uuid) != self.superblock.meta_uuid {
            return Err(place.field("uuid").corrupt("the UUID belongs to another volume"));
        }
        Ok(())
    }
}

/// The bytes of a field. The caller passes a whole block, so the field is inside `bytes`.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}
