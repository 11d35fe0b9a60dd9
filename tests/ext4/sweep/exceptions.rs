//! Where ironmap differs from this kernel and from e2fsck, and why.

use Difference::{Check, Reading, Writing};

/// The refusal that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    Reading,
    Writing,
    Check,
}

/// The program that refuses alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Ironmap,
    Linux,
}

struct Exception {
    what: Difference,
    side: Side,
    field: &'static str,
    values: Values,
    reason: &'static str,
}

type Values = fn(u64) -> bool;

/// Linux refuses what ironmap takes.
const fn linux(
    what: Difference,
    field: &'static str,
    values: Values,
    reason: &'static str,
) -> Exception {
    Exception { what, side: Side::Linux, field, values, reason }
}

/// The reverse.
const fn ironmap(
    what: Difference,
    field: &'static str,
    values: Values,
    reason: &'static str,
) -> Exception {
    Exception { what, side: Side::Ironmap, field, values, reason }
}

const ANY: Values = |_| true;

const DESCRIPTORS: &str =
    "the kernel reads all descriptors when it mounts, ironmap each one that it needs";
const ROOT: &str =
    "the kernel reads the root directory when it mounts, ironmap when it is asked for";
const INODES: &str = "the kernel asks for an upper bound when it makes an inode";
const JOURNAL: &str = "a volume is read without a journal that is damaged";
const ORPHANS: &str = "a reader has no use for the orphan file";
const BITMAPS: &str =
    "ironmap reads the bitmaps before it writes, and they are not those of such a volume";
const FAST: &str = "the journal has no room for fast commits, which ironmap does not write";
const READ_ONLY: &str = "the kernel mounts it for reading only, and does not fail";
const NAMED: &str = "e2fsck asks only whether the inode has a name or data";
const LEFT: &str = "without has_journal e2fsck calls a journal a fault, or does not";
const QUOTA: &str = "this kernel writes no volume with quota";

const EXCEPTIONS: &[Exception] = &[
    linux(Reading, "s_inode_size", ANY, ROOT),
    linux(Writing, "s_inode_size", ANY, ROOT),
    linux(Reading, "s_journal_inum", ANY, JOURNAL),
    linux(Reading, "s_orphan_file_inum", ANY, ORPHANS),
    linux(Reading, "s_reserved_gdt_blocks", |value| value > 191, DESCRIPTORS),
    linux(Reading, "s_desc_size", ANY, DESCRIPTORS),
    linux(Reading, "s_feature_incompat", |value| value & 0x200 == 0, DESCRIPTORS),
    linux(Reading, "s_feature_incompat", |value| value & 0x80 == 0, DESCRIPTORS),
    linux(Reading, "s_feature_compat", |value| value & 0x400 != 0, FAST),
    linux(Writing, "s_feature_compat", |value| value & 0x400 != 0, FAST),
    linux(Writing, "s_feature_incompat", |value| value & 0x200 == 0, DESCRIPTORS),
    linux(Writing, "s_feature_ro_compat", |value| value & 0x2100 != 0, QUOTA),
    ironmap(Reading, "s_first_ino", |value| value > 64, INODES),
    ironmap(Writing, "s_first_ino", |value| value > 64, INODES),
    ironmap(Writing, "s_rev_level", ANY, READ_ONLY),
    ironmap(Writing, "s_feature_ro_compat", |value| value & 0x1000 != 0, READ_ONLY),
    ironmap(Writing, "s_feature_ro_compat", |value| value & 0x4 != 0, "btree_dir was never used"),
    ironmap(Writing, "s_feature_ro_compat", |value| value & 0x400 == 0, BITMAPS),
    ironmap(Writing, "s_feature_compat", |value| value & 0x200 != 0, BITMAPS),
    ironmap(Writing, "s_feature_incompat", |value| value & 0x10 != 0, BITMAPS),
    ironmap(Writing, "s_reserved_gdt_blocks", ANY, BITMAPS),
    linux(
        Check,
        "s_prj_quota_inum",
        |value| value > 11,
        "e2fsck takes an inode that is named without the feature for one in use",
    ),
    linux(Check, "s_feature_compat", |value| value & 4 == 0, LEFT),
    linux(Check, "s_journal_inum", |value| value == 8, LEFT),
    ironmap(Check, "s_last_orphan", ANY, "e2fsck passes over a number that no inode has"),
    ironmap(
        Check,
        "s_feature_compat",
        |value| value & 0x10 == 0,
        "e2fsck asks whether blocks for descriptors are to go, and ends with 0",
    ),
    ironmap(Check, "s_usr_quota_inum", ANY, NAMED),
    ironmap(Check, "s_grp_quota_inum", ANY, NAMED),
];

/// Why a difference is meant.
pub(super) fn reason(
    what: Difference,
    side: Side,
    field: &str,
    value: u64,
) -> Option<&'static str> {
    let known = |row: &&Exception| {
        row.what == what && row.side == side && row.field == field && (row.values)(value)
    };
    EXCEPTIONS.iter().find(known).map(|row| row.reason)
}
