//! Hash trees of dm-verity: a tree of SHA-256 digests verifies each block of read-only data. Sources: the kernel's documentation of
//! dm-verity, and the page "DMVerity" of cryptsetup for the superblock.
//!
//! The digest of a data block is computed over the salt and the block. A hash block contains the digests of consecutive blocks of the level
//! below. The root hash is the digest of the only block of the top level. The levels are stored from the top to the bottom, after a
//! superblock.

mod check;
mod make;
mod tree;

pub use self::check::{Checked, check, find};
pub use self::make::make;
pub use self::tree::{MadeTree, Tree};

use ironmap::device::Device;
use ironmap::units::DevOffset;
use ironmap::{Buffer, Error, ErrorKind, Result};
use sha2::{Digest, Sha256};

use crate::disk::Ids;
use crate::failure::Failure;
use crate::stop::Stop;

/// The digest of a block.
pub type Hash = [u8; DIGEST];

const DIGEST: usize = 32;
const MAGIC: &[u8; 8] = b"verity\0\0";
const SUPERBLOCK: usize = 512;
const ALGORITHM: &[u8] = b"sha256";
const MAX_SALT: usize = 256;
/// The valid block sizes: powers of two in this range.
const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 512..=(512 << 10);

/// The parameters of a hash tree, as in its superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The size of a data block in bytes, a power of two from 512 to 512 KiB.
    pub data_block: u32,
    /// The size of a hash block in bytes, a power of two from 512 to 512 KiB.
    pub hash_block: u32,
    /// The number of data blocks.
    pub data_blocks: u64,
    /// The salt, at most 256 bytes, which is hashed before each block.
    pub salt: Vec<u8>,
    /// The UUID of the hash tree.
    pub uuid: [u8; 16],
}

/// The data or a hash tree: the bytes of a device, starting at a position.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The device.
    pub device: &'a dyn Device,
    /// The first byte on the device.
    pub start: u64,
}

/// One level of a hash tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    /// The position of the first block, relative to the superblock, in hash blocks.
    first: u64,
    /// The number of blocks.
    blocks: u64,
}

impl Parameters {
    /// Checks the parameters.
    ///
    /// # Errors
    /// `InvalidInput` for impossible block sizes, for empty data, and for a salt that is too long.
    pub fn validate(&self) -> Result<()> {
        for size in [self.data_block, self.hash_block] {
            if !BLOCK_SIZES.contains(&size) || !size.is_power_of_two() {
                return Err(Error::invalid(format!(
                    "a block size of {size} bytes is not possible: it must be a power of two from 512 to 524288"
                )));
            }
        }
        if self.salt.len() > MAX_SALT {
            return Err(Error::invalid(format!("a salt has at most {MAX_SALT} bytes")));
        }
        let fits = self.data_blocks.checked_mul(self.data_block.into());
        if self.data_blocks == 0 || fits.is_none_or(|bytes| bytes > 1 << 62) {
            return Err(Error::invalid(format!(
                "a hash tree cannot cover {} data blocks",
                self.data_blocks
            )));
        }
        Ok(())
    }

    /// The length of the superblock and the hash tree in bytes.
    #[must_use]
    pub fn tree_size(&self) -> u64 {
        let blocks: u64 = self.levels().iter().map(|level| level.blocks).sum();
        (blocks + 1) * u64::from(self.hash_block)
    }

    /// Returns the levels from the data upwards. Data of one block have no level, because the digest of the block is the root hash.
    fn levels(&self) -> Vec<Level> {
        let per_block = u64::from(self.hash_block) / DIGEST as u64;
        let (mut counts, mut blocks) = (Vec::new(), self.data_blocks);
        while blocks > 1 {
            blocks = blocks.div_ceil(per_block);
            counts.push(blocks);
        }
        // The top level is the first one after the superblock.
        let mut first = 1;
        let mut levels: Vec<_> = counts
            .into_iter()
            .rev()
            .map(|blocks| {
                let level = Level { first, blocks };
                first += blocks;
                level
            })
            .collect();
        levels.reverse();
        levels
    }

    fn superblock(&self) -> [u8; SUPERBLOCK] {
        let mut superblock = [0; SUPERBLOCK];
        let mut put = |at: usize, bytes: &[u8]| {
            superblock[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, MAGIC);
        // The version of the superblock, and the type of the hash: the salt is hashed before the data.
        put(8, &1_u32.to_le_bytes());
        put(12, &1_u32.to_le_bytes());
        put(16, &self.uuid);
        put(32, ALGORITHM);
        put(64, &self.data_block.to_le_bytes());
        put(68, &self.hash_block.to_le_bytes());
        put(72, &self.data_blocks.to_le_bytes());
        put(80, &(self.salt.len() as u16).to_le_bytes());
        put(88, &self.salt);
        superblock
    }

    /// Reads a superblock.
    ///
    /// # Errors
    /// `UnknownFormat` if there is no superblock; `Unsupported` for another version, hash type or algorithm; `Corrupt`; `Io`.
    pub fn read(hashes: Place<'_>) -> Result<Self> {
        let mut bytes = [0; SUPERBLOCK];
        if hashes.start.saturating_add(SUPERBLOCK as u64) > hashes.device.size() {
            return Err(Error::new(
                ErrorKind::UnknownFormat,
                "too short for a dm-verity superblock",
            ));
        }
        hashes.device.read_exact_at(&mut bytes, DevOffset(hashes.start))?;
        if !bytes.starts_with(MAGIC) {
            return Err(Error::new(ErrorKind::UnknownFormat, "no dm-verity superblock"));
        }
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if (number(8), number(12)) != (1, 1) {
            return Err(Error::unsupported(format!(
                "dm-verity superblock version {}, hash type {}: only version 1 and hash type 1 are supported",
                number(8),
                number(12)
            )));
        }
        let name = bytes[32..64].split(|byte| *byte == 0).next().unwrap_or_default();
        if name != ALGORITHM {
            let name = String::from_utf8_lossy(name);
            return Err(Error::unsupported(format!(
                "dm-verity with the hash {name}: only sha256 is supported"
            )));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[16..32]);
        let data_blocks = u64::from(number(76)) << 32 | u64::from(number(72));
        let salt = usize::from(u16::from_le_bytes([bytes[80], bytes[81]]));
        let read = Self {
            data_block: number(64),
            hash_block: number(68),
            data_blocks,
            salt: bytes.get(88..88 + salt.min(MAX_SALT + 1)).unwrap_or_default().to_vec(),
            uuid,
        };
        read.validate().map_err(|error| {
            Error::new(ErrorKind::Corrupt, format!("dm-verity superblock: {error}"))
        })?;
        Ok(read)
    }

    /// Returns the state of the hash function after the salt. The computation of each digest begins with this state.
    fn salted(&self) -> Sha256 {
        Sha256::new_with_prefix(&self.salt)
    }
}

/// Computes the digest of a block.
fn digest(salted: &Sha256, block: &[u8]) -> Hash {
    salted.clone().chain_update(block).finalize().into()
}

/// Returns the UUID and the salt of a new hash tree for data of `size` bytes: random, or derived from `seed`.
///
/// # Errors
/// Fails if the kernel provides no random bytes.
#[doc(hidden)]
pub fn identity(
    seed: Option<String>,
    size: u64,
) -> std::result::Result<([u8; 16], [u8; 32]), Failure> {
    let ids = Ids::new(seed);
    Ok((ids.uuid(&format!("verity of {size}"))?, ids.bytes(&format!("salt of {size}"))?))
}

/// Fails if the job was asked to stop. The caller replaces this error with a failure that names the signal.
///
/// # Errors
/// `Io` with EINTR.
#[doc(hidden)]
pub fn unless_stopped(stop: &Stop) -> Result<()> {
    if stop.is_set() {
        Err(Error::new(ErrorKind::Io(ironmap::Errno::EINTR), "interrupted"))
    } else {
        Ok(())
    }
}

/// Returns a buffer of zeros, aligned for requests to a device.
fn buffer(len: usize) -> Result<Buffer> {
    let mut buffer = Buffer::aligned(len)?;
    buffer.fill(0);
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(data_blocks: u64) -> Parameters {
        let (data_block, hash_block) = (4096, 4096);
        Parameters { data_block, hash_block, data_blocks, salt: Vec::new(), uuid: [0; 16] }
    }

    /// The levels are stored from the top to the bottom, and the top level has one block. The numbers follow from 128 digests per block.
    #[test]
    fn levels_are_stored_from_the_top() {
        let level = |first, blocks| Level { first, blocks };
        assert_eq!(parameters(1).levels(), []);
        assert_eq!(parameters(2).levels(), [level(1, 1)]);
        assert_eq!(parameters(128).levels(), [level(1, 1)]);
        assert_eq!(parameters(129).levels(), [level(2, 2), level(1, 1)]);
        assert_eq!(parameters(128 * 128 + 1).levels(), [level(4, 129), level(2, 2), level(1, 1)]);
        assert_eq!(parameters(1 << 50).levels().len(), 8);
    }
}
