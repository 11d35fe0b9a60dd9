//! The rules of Linux's mount for superblock fields that do not describe the geometry. A volume that violates a rule is refused.
//!
//! Sources: "Superblocks" in "XFS Algorithms & Data Structures" describes the fields and their meaning. The values that Linux 6.18 mounts
//! were found by tests. Each test changes one field and corrects the checksum (tests/xfs_check/sweep.rs).

use super::disk::superblock::{RawSuperblock, features2, version};
use super::features::Incompat;
use crate::error::{Place, Result};

/// Bits of `sb_versionnum` that every volume of version 5 has: link counts of 32 bits, aligned inodes, log version 2, unwritten extents,
/// directory version 2, and `MORE_BITS`.
const REQUIRED: u16 =
    0x20 | version::ALIGNED_INODES | 0x400 | 0x1000 | version::DIR_V2 | version::MORE_BITS;
const UNWRITTEN: u16 = 0x1000;
/// The required bits and the permitted bits of `sb_features2`.
const REQUIRED_2: u32 =
    features2::LAZY_COUNTERS | features2::ATTR2 | features2::PROJID32 | features2::CHECKSUMS;
const KNOWN_2: u32 = REQUIRED_2 | features2::FTYPE;
/// Bits of `sb_qflags` for the quota that groups and projects share. Only volumes before version 5 have this quota.
const SHARED_QUOTA: u16 = 0x30;
/// The valid sizes of a group in bytes.
const GROUP: std::ops::RangeInclusive<u64> = 1 << 24..=1 << 40;
/// The minimum number of blocks of the last group.
const LAST_GROUP: u64 = 64;
/// The maximum size of a log in blocks, and in bytes.
const LOG_BLOCKS: u32 = 1 << 20;
const LOG_BYTES: u64 = 1 << 31;
/// The maximum value of the log's stripe unit in bytes.
const LOG_UNIT: u32 = 256 << 10;
/// The valid sizes of a realtime extent in bytes.
const EXTENT: std::ops::RangeInclusive<u64> = 4 << 10..=1 << 30;
/// The minimum length of a version 5 log in blocks that ironmap accepts. The minimum length for Linux depends on features and sizes: in the
/// tests, it is between 294 and 5244 blocks.
const LEAST_LOG_BLOCKS: u32 = 256;
/// The number of inodes in a chunk.
const CHUNK: u32 = 64;

/// A rule for a field. A violation is reported with the stored value.
struct Rule {
    field: &'static str,
    stored: fn(&RawSuperblock) -> u64,
    rule: &'static str,
    holds: fn(&RawSuperblock) -> bool,
}

/// The rules for the superblock. The sizes of blocks, sectors and inodes are checked before these rules.
const RULES: &[Rule] = &[
    Rule {
        field: "sb_versionnum",
        stored: |raw| raw.sb_versionnum.get().into(),
        rule: "a bit that XFS version 5 requires is missing",
        holds: |raw| !is_v5(raw) || raw.sb_versionnum.get() & REQUIRED == REQUIRED,
    },
    Rule {
        field: "sb_versionnum",
        stored: |raw| raw.sb_versionnum.get().into(),
        rule: "an XFS volume with directories of version 2 must have the bit of unwritten extents",
        holds: |raw| raw.sb_versionnum.get() & UNWRITTEN != 0,
    },
    Rule {
        field: "sb_features2",
        stored: |raw| raw.sb_features2.get().into(),
        rule: "a bit that XFS version 5 requires is missing, or a bit is unknown",
        holds: |raw| {
            // Some machines store `sb_features2` at the offset of `sb_bad_features2`, so Linux combines the bits of both fields.
            let (bits, other) = (raw.sb_features2.get(), raw.sb_bad_features2.get());
            !is_v5(raw) || bits & REQUIRED_2 == REQUIRED_2 && (bits | other) & !KNOWN_2 == 0
        },
    },
    Rule {
        field: "sb_inopblock",
        stored: |raw| raw.sb_inopblock.get().into(),
        rule: "the value is not the number of inodes in a block",
        holds: |raw| raw.sb_inopblock.get() == 1 << (raw.sb_blocklog - raw.sb_inodelog),
    },
    Rule {
        field: "sb_agblocks",
        stored: |raw| raw.sb_agblocks.get().into(),
        rule: "a group must have 16 MiB to 1 TiB",
        holds: |raw| GROUP.contains(&bytes(raw, raw.sb_agblocks.get())),
    },
    Rule {
        field: "sb_dblocks",
        stored: |raw| raw.sb_dblocks.get(),
        rule: "the last group must have 64 blocks or more",
        holds: |raw| {
            let before = u64::from(raw.sb_agcount.get() - 1) * u64::from(raw.sb_agblocks.get());
            raw.sb_dblocks.get() - before >= LAST_GROUP
        },
    },
    Rule {
        field: "sb_imax_pct",
        stored: |raw| raw.sb_imax_pct.into(),
        rule: "the value must be at most 100 percent",
        holds: |raw| raw.sb_imax_pct <= 100,
    },
    Rule {
        field: "sb_qflags",
        stored: |raw| raw.sb_qflags.get().into(),
        rule: "the flags that group and project quotas share are valid only in XFS version 4",
        holds: |raw| !is_v5(raw) || raw.sb_qflags.get() & SHARED_QUOTA == 0,
    },
    Rule {
        field: "sb_shared_vn",
        stored: |raw| raw.sb_shared_vn.into(),
        rule: "not 0",
        holds: |raw| raw.sb_shared_vn == 0,
    },
    Rule {
        field: "sb_logblocks",
        stored: |raw| raw.sb_logblocks.get().into(),
        rule: "a log must have at most 1048576 blocks and 2 GiB",
        holds: |raw| {
            let blocks = raw.sb_logblocks.get();
            blocks <= LOG_BLOCKS && bytes(raw, blocks) <= LOG_BYTES
        },
    },
    Rule {
        field: "sb_logblocks",
        stored: |raw| raw.sb_logblocks.get().into(),
        rule: "the log of a volume of XFS version 5 must have 256 blocks or more",
        holds: |raw| !is_v5(raw) || raw.sb_logblocks.get() >= LEAST_LOG_BLOCKS,
    },
    Rule {
        field: "sb_rootino",
        stored: |raw| raw.sb_rootino.get(),
        rule: "the root inode cannot be the inode of the realtime bitmap or summary",
        holds: |raw| {
            let others = [raw.sb_rbmino.get(), raw.sb_rsumino.get()];
            has(raw, Incompat::METADIR) || !others.contains(&raw.sb_rootino.get())
        },
    },
    Rule {
        field: "sb_logsectsize",
        stored: |raw| raw.sb_logsectsize.get().into(),
        rule: "the size contradicts sb_logsectlog or sb_versionnum",
        holds: |raw| {
            let (size, log) = (raw.sb_logsectsize.get(), raw.sb_logsectlog);
            match raw.sb_versionnum.get() & version::LOG_SECTORS {
                0 => (size, log) == (0, 0),
                _ => 1_u64.checked_shl(log.into()) == Some(size.into()),
            }
        },
    },
    Rule {
        field: "sb_logsunit",
        stored: |raw| raw.sb_logsunit.get().into(),
        rule: "the value is not a multiple of the block size, or exceeds 256 KiB",
        holds: |raw| {
            let unit = raw.sb_logsunit.get();
            unit <= 1 || unit.is_multiple_of(raw.sb_blocksize.get()) && unit <= LOG_UNIT
        },
    },
    Rule {
        field: "sb_rextsize",
        stored: |raw| raw.sb_rextsize.get().into(),
        rule: "realtime extents must have 4 KiB to 1 GiB",
        holds: |raw| EXTENT.contains(&bytes(raw, raw.sb_rextsize.get())),
    },
    Rule {
        field: "sb_rblocks",
        stored: |raw| raw.sb_rblocks.get(),
        rule: "without realtime blocks, the numbers of extents, free extents and bitmap blocks must be 0",
        holds: |raw| {
            let others = [raw.sb_rextents.get(), raw.sb_frextents.get()];
            let (bitmap, log) = (raw.sb_rbmblocks.get(), raw.sb_rextslog);
            raw.sb_rblocks.get() != 0 || (others, bitmap, log) == ([0; 2], 0, 0)
        },
    },
    Rule {
        field: "sb_unit",
        stored: |raw| raw.sb_unit.get().into(),
        rule: "the value contradicts the stripe bit of sb_versionnum",
        holds: |raw| (raw.sb_unit.get() != 0) == (raw.sb_versionnum.get() & version::STRIPES != 0),
    },
    Rule {
        field: "sb_width",
        stored: |raw| raw.sb_width.get().into(),
        rule: "the width is not a multiple of sb_unit",
        holds: |raw| {
            let (unit, width) = (raw.sb_unit.get(), raw.sb_width.get());
            (unit == 0) == (width == 0) && (unit == 0 || width.is_multiple_of(unit))
        },
    },
    Rule {
        field: "sb_inoalignmt",
        stored: |raw| raw.sb_inoalignmt.get().into(),
        rule: "with sparse inodes the value must be the length of an inode chunk in blocks",
        holds: |raw| {
            let chunk = (CHUNK * u32::from(raw.sb_inodesize.get())) >> raw.sb_blocklog;
            !has(raw, Incompat::SPARSE_INODES) || raw.sb_inoalignmt.get() == chunk
        },
    },
    Rule {
        field: "sb_features_incompat",
        stored: |raw| raw.sb_features_incompat.get().into(),
        rule: "the feature metadir requires the features ftype and exchange-range",
        holds: |raw| {
            let others = [Incompat::FTYPE, Incompat::EXCHANGE_RANGE];
            !has(raw, Incompat::METADIR) || others.into_iter().all(|other| has(raw, other))
        },
    },
    Rule {
        field: "sb_pad",
        stored: |raw| raw.sb_pad.iter().fold(0, |pad, byte| pad << 8 | u64::from(*byte)),
        rule: "not 0",
        holds: |raw| !has(raw, Incompat::METADIR) || raw.sb_pad == [0; 7],
    },
    Rule {
        field: "sb_spino_align",
        stored: |raw| raw.sb_spino_align.get().into(),
        rule: "with sparse inodes the value must be half an inode chunk in blocks; without sparse inodes it must be 0",
        holds: |raw| {
            let half = (CHUNK / 2 * u32::from(raw.sb_inodesize.get())) >> raw.sb_blocklog;
            let expected = if has(raw, Incompat::SPARSE_INODES) { half } else { 0 };
            !is_v5(raw) || raw.sb_spino_align.get() == expected
        },
    },
];

fn is_v5(raw: &RawSuperblock) -> bool {
    raw.sb_versionnum.get() & version::NUMBER == 5
}

fn has(raw: &RawSuperblock, feature: Incompat) -> bool {
    is_v5(raw) && raw.sb_features_incompat.get() & feature.bits() != 0
}

/// The length of `blocks` blocks in bytes.
fn bytes(raw: &RawSuperblock, blocks: u32) -> u64 {
    u64::from(blocks) << raw.sb_blocklog
}

/// Refuses a superblock that violates a rule. The caller has checked the geometry.
pub(super) fn obey(raw: &RawSuperblock) -> Result<()> {
    match RULES.iter().find(|rule| !(rule.holds)(raw)) {
        None => Ok(()),
        Some(Rule { field, stored, rule, .. }) => {
            let place = Place::new("superblock").field(field);
            Err(place.corrupt(format!("{:#x}: {rule}", stored(raw))))
        }
    }
}
