//! The checked superblock of the journal: the location of the log, its first transaction, and the kind of checksums.

use std::ops::Range;

use bitflags::bitflags;
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::ext4::Compat;
use crate::fs::ext4::checksum::crc32c_raw;
use crate::fs::ext4::disk::journal::{
    CHECKSUM_CRC32C, MAGIC, RawJournalSuperblock, SUPERBLOCK_V1, SUPERBLOCK_V2,
};
use crate::units::{BlockSize, FsBlock};

/// The maximum size in blocks of a journal that mke2fs makes. A larger journal is refused. A damaged journal may map all its blocks to one
/// device block, and be larger than the device.
const MAX_BLOCKS: u32 = 10_240_000;

const PLACE: Place = Place::new("journal superblock");
const SIZE: usize = size_of::<RawJournalSuperblock>();
const CHECKSUM_OFFSET: usize = 0xFC;
/// The number of fast-commit blocks if `s_num_fc_blocks` is 0.
const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;
/// The minimum number of blocks of a log in a journal with a fast-commit area.
const LEAST_LOG: u32 = 1024;

bitflags! {
    /// The features of a journal. The lower 32 bits are `s_feature_incompat`. The upper 32 bits are `s_feature_compat`, which has only one
    /// feature.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct JournalFeatures: u64 {
        /// The log may contain revoke blocks.
        const REVOKE = 0x1;
        /// Block numbers of 64 bits.
        const SIXTY_FOUR_BIT = 0x2;
        /// The commit block may reach the device before the blocks that it commits.
        const ASYNC_COMMIT = 0x4;
        /// Every block has a checksum; tags contain 16 bits of it.
        const CSUM_V2 = 0x8;
        /// Every block has a checksum; tags contain all 32 bits of it.
        const CSUM_V3 = 0x10;
        /// The journal has a fast-commit area.
        const FAST_COMMIT = 0x20;
        /// The commit block has a checksum over the transaction (checksums of version 1). This feature is a bit of `s_feature_compat`.
        const CHECKSUM = 0x1 << 32;
        const _ = !0;
    }
}

impl JournalFeatures {
    const KNOWN: Self = Self::REVOKE
        .union(Self::SIXTY_FOUR_BIT)
        .union(Self::ASYNC_COMMIT)
        .union(Self::CSUM_V2)
        .union(Self::CSUM_V3)
        .union(Self::FAST_COMMIT)
        .union(Self::CHECKSUM);
}

/// The checked fields of the journal's superblock. A position in the log is a number of blocks, counted from the journal's superblock.
#[derive(Clone, Debug)]
pub(super) struct JournalSuperblock {
    pub(super) features: JournalFeatures,
    /// The number of blocks of the journal, including its superblock and the fast-commit area.
    pub(super) blocks: u32,
    /// The blocks of the log, which is a ring.
    pub(super) log: Range<u32>,
    /// The blocks of the fast-commit area; empty if there is none.
    pub(super) fast_commits: Range<u32>,
    /// The size in blocks that a new fast-commit area would have.
    fast_commit_blocks: u32,
    /// The first used block of the log; `None` if no recovery is needed.
    pub(super) start: Option<u32>,
    /// The sequence number of the transaction that begins at `start`.
    pub(super) sequence: u32,
    /// The seed of all checksums of versions 2 and 3.
    pub(super) seed: Option<u32>,
}

impl JournalSuperblock {
    /// Checks the journal's first block, whose number is `block`. `available` is the number of blocks of the journal file.
    pub(super) fn parse(
        bytes: &[u8],
        block: FsBlock,
        size: BlockSize,
        available: u64,
    ) -> Result<Self> {
        let place = PLACE.block(block);
        let Ok((raw, _)) = RawJournalSuperblock::ref_from_prefix(bytes) else {
            return Err(place.corrupt("the journal superblock is truncated"));
        };
        let magic = raw.s_header.h_magic.get();
        if magic != MAGIC {
            return Err(place
                .field("h_magic")
                .corrupt(format!("the magic number is {magic:#x} instead of {MAGIC:#x}")));
        }
        let features = match raw.s_header.h_blocktype.get() {
            SUPERBLOCK_V1 => JournalFeatures::empty(),
            SUPERBLOCK_V2 => Self::features(raw)?,
            other => return Err(place.field("h_blocktype").corrupt(format!("{other}"))),
        };
        let seed = Self::verify(raw, &bytes[..SIZE], features, place)?;

        let blocks = Self::blocks(raw, size, available, place)?;
        let mut log = raw.s_first.get()..blocks;
        let mut fast_commits = 0..0;
        let fast_commit_blocks = match raw.s_num_fc_blocks.get() {
            0 => DEFAULT_FAST_COMMIT_BLOCKS,
            count => count,
        };
        if features.contains(JournalFeatures::FAST_COMMIT) {
            log.end = blocks.saturating_sub(fast_commit_blocks);
            // In images that Linux wrote, the block between the log and the fast-commit area is unused.
            fast_commits = log.end.saturating_add(1)..blocks;
        }
        if log.start == 0 || log.is_empty() {
            let (first, end) = (log.start, log.end);
            return Err(place
                .field("s_first")
                .corrupt(format!("the log cannot begin at block {first} and end at block {end}")));
        }
        let start = raw.s_start.get();
        if start != 0 && !log.contains(&start) {
            return Err(place.field("s_start").corrupt(format!(
                "the start of the log, block {start}, is outside the blocks {log:?}"
            )));
        }
        Ok(Self {
            features,
            blocks,
            log,
            fast_commits,
            fast_commit_blocks,
            start: (start != 0).then_some(start),
            sequence: raw.s_sequence.get(),
            seed,
        })
    }

    /// Checks the block size and the length of the journal. Returns the length, in blocks.
    fn blocks(
        raw: &RawJournalSuperblock,
        size: BlockSize,
        available: u64,
        place: Place,
    ) -> Result<u32> {
        let block_size = raw.s_blocksize.get();
        if usize::try_from(block_size) != Ok(size.bytes()) {
            return Err(place.field("s_blocksize").corrupt(format!("{block_size} bytes")));
        }
        let blocks = raw.s_maxlen.get();
        if u64::from(blocks) > available {
            return Err(place.field("s_maxlen").corrupt(format!(
                "the length is {blocks} blocks, but the journal has only {available}"
            )));
        }
        if blocks > MAX_BLOCKS {
            let what = format!("the journal has {blocks} blocks; the limit is {MAX_BLOCKS}");
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        Ok(blocks)
    }

    fn features(raw: &RawJournalSuperblock) -> Result<JournalFeatures> {
        let (incompat, compat) = (raw.s_feature_incompat.get(), raw.s_feature_compat.get());
        let read_only = raw.s_feature_ro_compat.get();
        let first_version = JournalFeatures::CHECKSUM.bits() & u64::from(compat) << 32;
        let features = JournalFeatures::from_bits_retain(u64::from(incompat) | first_version);
        let unknown = features - JournalFeatures::KNOWN;
        if !unknown.is_empty() || read_only != 0 {
            return Err(Error::unsupported(format!(
                "the journal needs unknown features: incompat {:#x}, ro_compat {read_only:#x}",
                unknown.bits()
            )));
        }
        Ok(features)
    }

    /// Verifies the checksum of the journal's superblock, and returns the seed of the other checksums. At most one of the three checksum
    /// features may be set.
    fn verify(
        raw: &RawJournalSuperblock,
        bytes: &[u8],
        features: JournalFeatures,
        place: Place,
    ) -> Result<Option<u32>> {
        let versions = features
            & (JournalFeatures::CSUM_V2 | JournalFeatures::CSUM_V3 | JournalFeatures::CHECKSUM);
        if versions.bits().count_ones() > 1 {
            let names: Vec<_> = versions.iter_names().map(|(name, _)| name).collect();
            return Err(place.field("s_feature_incompat").corrupt(names.join(" and ")));
        }
        if !versions.intersects(JournalFeatures::CSUM_V2 | JournalFeatures::CSUM_V3) {
            return Ok(None);
        }
        if raw.s_checksum_type != CHECKSUM_CRC32C {
            let number = raw.s_checksum_type;
            return Err(Error::unsupported(format!(
                "the checksum type {number} of the journal is not supported"
            )));
        }
        let computed = superblock_checksum(bytes);
        let stored = raw.s_checksum.get();
        if stored != computed {
            return Err(place.field("s_checksum").bad_checksum(stored, computed));
        }
        Ok(Some(crc32c_raw(!0, &raw.s_uuid)))
    }

    /// Checks that the journal has enough space for a fast-commit area. If the volume has the fast-commit feature, Linux creates a missing
    /// area at a mount.
    ///
    /// # Errors
    /// `Corrupt` if Linux would refuse to mount the volume.
    pub(super) fn check_room(&self, compat: Compat) -> Result<()> {
        let lacks = compat.contains(Compat::FAST_COMMIT) && !self.has(JournalFeatures::FAST_COMMIT);
        let needed = LEAST_LOG.saturating_add(self.fast_commit_blocks);
        if lacks && self.blocks < needed {
            let blocks = self.blocks;
            let what = format!(
                "the journal of {blocks} blocks is too small for fast commits, which need {needed} blocks"
            );
            return Err(PLACE.field("s_maxlen").corrupt(what));
        }
        Ok(())
    }

    pub(super) fn has(&self, feature: JournalFeatures) -> bool {
        self.features.contains(feature)
    }
}

/// The checksum of a journal's superblock. The checksum covers the complete superblock, with the checksum field set to 0.
fn superblock_checksum(bytes: &[u8]) -> u32 {
    let mut sum = crc32c_raw(!0, &bytes[..CHECKSUM_OFFSET]);
    sum = crc32c_raw(sum, &[0; 4]);
    crc32c_raw(sum, &bytes[CHECKSUM_OFFSET + 4..])
}

/// Stores the checksum of a journal's superblock, if the journal has checksums of version 2 or 3.
pub(crate) fn seal_journal_superblock(raw: &mut RawJournalSuperblock) {
    let features = JournalFeatures::from_bits_retain(u64::from(raw.s_feature_incompat.get()));
    if features.intersects(JournalFeatures::CSUM_V2 | JournalFeatures::CSUM_V3) {
        raw.s_checksum.set(superblock_checksum(raw.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A journal with more than `MAX_BLOCKS` blocks is refused. The limit bounds the time and the memory of a recovery. A damaged journal
    /// may map all its blocks to one device block, and be larger than the volume.
    #[test]
    fn an_endless_journal_is_refused() {
        let size = BlockSize::from_shift(10).unwrap();
        let parse = |blocks: u32| {
            let words = [MAGIC, SUPERBLOCK_V2, 0, 1024, blocks, 1, 1, 1];
            let mut bytes: Vec<_> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            bytes.resize(SIZE, 0);
            JournalSuperblock::parse(&bytes, FsBlock(1), size, u64::from(u32::MAX))
        };
        assert_eq!(parse(MAX_BLOCKS).unwrap().blocks, MAX_BLOCKS);
        assert_eq!(parse(MAX_BLOCKS + 1).unwrap_err().kind(), ErrorKind::LimitExceeded);
    }
}
