//! Blocks of metadata in memory. Each version of a block records which of its checksums were verified.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::sys::Buffer;
use crate::units::InodeNo;

/// A block of metadata, shared and immutable.
#[derive(Clone)]
pub(crate) struct Block(Arc<Content>);

struct Content {
    buffer: Buffer,
    verified: Verified,
}

/// The verified checksums of one version of a block. A verified checksum is not computed again.
#[derive(Default)]
struct Verified {
    /// The kind and the number of the structure (for example an inode) for which the block was first verified; 0 before the first
    /// verification. If a block is read as another structure, it is verified each time.
    identity: AtomicU64,
    /// A bit for each verified part.
    parts: AtomicU64,
}

/// A part of a block with its own checksum.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    identity: u64,
    index: u32,
}

impl Part {
    /// Describes a block that belongs to one inode and has one checksum. The kind and the inode number identify the structure. The inode's
    /// generation is not needed, because an inode with a new generation gets new blocks.
    pub(crate) fn whole(kind: impl Into<u8>, owner: InodeNo) -> Self {
        Self { identity: identity(kind, owner.0), index: 0 }
    }

    /// The part for one structure of a table, of which each block contains `per_block` structures. `number` is the number of the structure
    /// in the complete table.
    pub(crate) fn numbered(kind: impl Into<u8>, number: u32, per_block: u32) -> Self {
        let index = number % per_block;
        Self { identity: identity(kind, u64::from(number - index)), index }
    }

    /// The bit that records the verification of this part, or 0 if there is no bit for this part. A part without a bit is verified each
    /// time.
    fn bit(self) -> u64 {
        1_u64.checked_shl(self.index).unwrap_or(0)
    }
}

/// Combines the kind of a structure (1 or more) with the number of the structure. 56 bits suffice for every inode number.
fn identity(kind: impl Into<u8>, which: u64) -> u64 {
    u64::from(kind.into()) << 56 | which & ((1 << 56) - 1)
}

impl Verified {
    fn has(&self, part: Part) -> bool {
        self.identity.load(Ordering::Relaxed) == part.identity
            && self.parts.load(Ordering::Relaxed) & part.bit() != 0
    }

    fn add(&self, part: Part) {
        // The identity (kind and number of the structure) never changes after it is set, so each bit of `parts` belongs to this identity.
        let identity = &self.identity;
        let before =
            identity.compare_exchange(0, part.identity, Ordering::Relaxed, Ordering::Relaxed);
        if before.is_ok() || before == Err(part.identity) {
            self.parts.fetch_or(part.bit(), Ordering::Relaxed);
        }
    }

    /// Returns the record of verified checksums for a new version of the block in which `part` changes. All other verified parts stay
    /// verified.
    fn without(&self, part: Part) -> Self {
        if self.identity.load(Ordering::Relaxed) != part.identity {
            return Self::default();
        }
        let parts = self.parts.load(Ordering::Relaxed) & !part.bit();
        Self { identity: AtomicU64::new(part.identity), parts: AtomicU64::new(parts) }
    }
}

impl Block {
    pub(crate) fn new(buffer: Buffer) -> Self {
        Self::with(buffer, Verified::default())
    }

    fn with(buffer: Buffer, verified: Verified) -> Self {
        Self(Arc::new(Content { buffer, verified }))
    }

    /// Verifies a part of this version, if the part was not verified before.
    pub(crate) fn verify_once(
        &self,
        part: Part,
        verify: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if !self.0.verified.has(part) {
            verify()?;
            self.0.verified.add(part);
        }
        Ok(())
    }

    /// Whether `self` and `other` are the same version of a block.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the bytes of the block for a change. If other references to this version exist, the bytes are first copied to a new version.
    pub(crate) fn for_change(&mut self) -> Result<&mut [u8]> {
        self.changed(Verified::default())
    }

    /// Changes one part of the block. `change` must also store the new checksum of the part. The part then counts as verified.
    pub(crate) fn change_sealed<R>(
        &mut self,
        part: Part,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let verified = self.0.verified.without(part);
        let result = change(self.changed(verified)?)?;
        self.0.verified.add(part);
        Ok(result)
    }

    fn changed(&mut self, verified: Verified) -> Result<&mut [u8]> {
        if Arc::get_mut(&mut self.0).is_none() {
            let mut copy = Buffer::aligned(self.0.buffer.len())?;
            copy.copy_from_slice(&self.0.buffer);
            *self = Self::new(copy);
        }
        match Arc::get_mut(&mut self.0) {
            Some(content) => {
                content.verified = verified;
                Ok(&mut content.buffer)
            }
            None => Err(Error::invalid(
                "the block cannot be changed, because another reference to it exists",
            )),
        }
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: u8 = 1;
    const INODES: u8 = 2;
    const DESCRIPTORS: u8 = 3;

    fn block() -> Block {
        Block::new(Buffer::aligned(4096).unwrap())
    }

    fn inode(number: u32) -> Part {
        Part::numbered(INODES, number, 16)
    }

    /// Whether `verify_once` computes the checksum of a part, because the part was not verified before.
    fn verifies(block: &Block, part: Part) -> bool {
        let mut verified = false;
        block
            .verify_once(part, || {
                verified = true;
                Ok(())
            })
            .unwrap();
        verified
    }

    #[test]
    fn each_part_of_a_version_is_verified_once() {
        let block = block();
        assert!(verifies(&block, inode(33)) && verifies(&block, inode(34)));
        assert!(!verifies(&block, inode(33)) && !verifies(&block.clone(), inode(34)));
    }

    #[test]
    fn a_damaged_block_never_counts_as_verified() {
        let block = block();
        assert!(block.verify_once(inode(1), || Err(Error::invalid("wrong"))).is_err());
        assert!(verifies(&block, inode(1)));
    }

    #[test]
    fn a_block_taken_for_two_things_is_verified_for_each() {
        let block = block();
        assert!(verifies(&block, inode(1)));
        for _ in 0..2 {
            assert!(verifies(&block, Part::whole(ENTRIES, InodeNo(1))), "verified as entries");
            assert!(verifies(&block, inode(17)), "verified as another block of the table");
        }
        assert!(!verifies(&block, inode(1)));
    }

    #[test]
    fn a_part_without_a_bit_is_verified_each_time() {
        let (block, part) = (block(), Part::numbered(DESCRIPTORS, 64, 128));
        assert!(verifies(&block, part) && verifies(&block, part));
    }

    #[test]
    fn a_change_forgets_all_and_a_sealed_one_of_a_part_nothing() {
        let mut block = block();
        assert!(verifies(&block, inode(1)));
        let _reader = block.clone();
        block.change_sealed(inode(2), |_| Ok(())).unwrap();
        assert!(!verifies(&block, inode(1)) && !verifies(&block, inode(2)));
        let failed = block.change_sealed(inode(2), |_| Err::<(), _>(Error::invalid("no")));
        assert!(failed.is_err() && verifies(&block, inode(2)));
        block.for_change().unwrap();
        assert!(verifies(&block, inode(1)));
    }
}
