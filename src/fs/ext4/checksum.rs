//! ext4's checksums: CRC32C without the final inversion ("raw"), and CRC16 for descriptors without metadata_csum.
//!
//! Source: "Checksums" in Linux's ext4 documentation. Tests compare the results with images made by mke2fs.
//!
//! The module of each structure defines which bytes the structure's checksum covers. A function `…_checksum` computes the checksum, and a
//! function `seal_…` stores it. Functions that read a structure verify the checksum. A change of a structure calls the `seal_…` function as
//! its last step. On a volume without checksums, the `seal_…` functions do nothing.

use crate::units::InodeNo;

/// CRC32C without a final inversion. `seed` is the checksum of the preceding bytes. A checksum can thus cover several separate parts.
#[must_use]
pub(crate) fn crc32c_raw(seed: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, data)
}

/// CRC16 for group descriptors (polynomial 0x8005 reflected, seed 0xFFFF).
#[must_use]
pub(crate) fn crc16(parts: &[&[u8]]) -> u16 {
    const CRC16: crc::Crc<u16> = crc::Crc::<u16>::new(&crc::CRC_16_MODBUS);
    let mut digest = CRC16.digest();
    for part in parts {
        digest.update(part);
    }
    digest.finalize()
}

/// CRC32 with the highest bit first and without a final inversion. Version 1 of the journal's checksums uses it. For the first part of the
/// data, the caller passes `!0` as `sum`.
#[must_use]
pub(crate) fn crc32_be(sum: u32, data: &[u8]) -> u32 {
    const CRC32: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_MPEG_2);
    let mut digest = CRC32.digest_with_initial(sum);
    digest.update(data);
    digest.finalize()
}

/// The kind of structure that a checksum covers.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// A block of directory entries.
    Entries = 1,
    /// The root of a directory's hash tree.
    DxRoot = 2,
    DxNode = 3,
    /// A node of an extent tree.
    Extents = 4,
    /// Inodes of an inode table.
    Inodes = 5,
    /// Group descriptors.
    Descriptors = 6,
}

impl From<Kind> for u8 {
    fn from(kind: Kind) -> Self {
        kind as Self
    }
}

/// The seed of all checksums of a volume; `None` if the volume has no checksums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataSeed(pub(crate) u32);

impl MetadataSeed {
    /// The seed for structures that belong to one inode. The seed depends on the inode's number and generation.
    #[must_use]
    pub(crate) fn of_inode(self, inode: InodeNo, generation: u32) -> u32 {
        let number = u32::try_from(inode.0).unwrap_or(u32::MAX);
        crc32c_raw(crc32c_raw(self.0, &number.to_le_bytes()), &generation.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32_be_chains() {
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_E6E7);
        assert_eq!(crc32_be(crc32_be(!0, b"1234"), b"56789"), crc32_be(!0, b"123456789"));
    }

    #[test]
    fn crc32c_raw_is_the_standard_sum_without_the_last_inversion() {
        assert_eq!(!crc32c_raw(!0, b"123456789"), 0xE306_9283);
        assert_eq!(crc32c_raw(crc32c_raw(!0, b"1234"), b"56789"), crc32c_raw(!0, b"123456789"));
    }
}
