//! Intended differences between ironmap and the running kernel or e2fsck, with their reasons.

use Difference::{Check, Reading, Writing};

/// The result in which ironmap differs from the running kernel or from e2fsck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    Reading,
    Writing,
    Check,
}

/// The program that refuses the volume, while the other program accepts it.
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
    /// A part of a message or finding of ironmap or of e2fsck.
    said: &'static str,
    reason: &'static str,
}

type Values = fn(u64) -> bool;

/// An exception for a volume that Linux refuses to read. ironmap reads it, refuses to write it, and reports this fault in a check.
const fn read(field: &'static str, values: Values, said: &'static str) -> Exception {
    let reason = "reading asks for less than a mount: files are rescued, and the fault is found";
    Exception { what: Reading, side: Side::Linux, field, values, said, reason }
}

/// An exception for a volume that only ironmap refuses to write. ironmap prints this message.
const fn written(
    field: &'static str,
    values: Values,
    said: &'static str,
    reason: &'static str,
) -> Exception {
    Exception { what: Writing, side: Side::Ironmap, field, values, said, reason }
}

/// An exception for a volume in which only ironmap's check finds a fault. The check prints this text.
const fn found(
    field: &'static str,
    values: Values,
    said: &'static str,
    reason: &'static str,
) -> Exception {
    Exception { what: Check, side: Side::Ironmap, field, values, said, reason }
}

const ANY: Values = |_| true;
const NO_JOURNAL: &str = "needs_recovery is set, but the volume has no journal";
const LOST: &str = "the volume has lost its log, or the flag is wrong: e2fsck does not go on";
const COUNTS: &str = "ironmap asks for descriptors of such a volume before it writes";
const NAMED: &str = "e2fsck passes over the resize inode and the orphan file as quota";
const ASKS: &str = "e2fsck asks, and ends with 0";

const EXCEPTIONS: &[Exception] = &[
    read("s_blocks_count_lo", |value| value < 3, "outside the volume"),
    read("s_blocks_count_lo", |value| (3..74).contains(&value), "outside the volume"),
    read("s_desc_size", |value| value > 64, "group descriptor"),
    read("s_feature_incompat", |value| value & 0x80 == 0, "group descriptor"),
    read("s_feature_incompat", |value| value & 0x200 == 0, "although flex_bg is not set"),
    read("s_feature_ro_compat", |value| value & 1 == 0, "superblock"),
    read("s_feature_compat", |value| value & 0x400 != 0, "too small for fast commits"),
    read(
        "s_reserved_gdt_blocks",
        |value| value > 30,
        "also in use by the reserved group descriptors",
    ),
    read("s_checksum_seed", ANY, "bg_checksum"),
    read("s_inode_size", ANY, "the root is not a directory in use"),
    read(
        "s_rev_level",
        |value| value == 0,
        "s_rev_level: 0: features are set, but they need revision 1",
    ),
    read("s_journal_inum", |value| value != 8, "journal: "),
    read("s_orphan_file_inum", |value| value > 10 && value != 12, "orphan file: "),
    Exception {
        what: Reading,
        side: Side::Ironmap,
        field: "s_feature_incompat",
        values: |value| value & 4 != 0,
        said: NO_JOURNAL,
        reason: LOST,
    },
    written("s_feature_incompat", |value| value & 4 != 0, NO_JOURNAL, LOST),
    written("s_blocks_count_lo", |value| value < 12_288, "bg_free_blocks_count", COUNTS),
    written(
        "s_reserved_gdt_blocks",
        |value| value == 24,
        "overlap",
        "Linux does not count the boot block of group 0, and e2fsck finds the fault",
    ),
    written(
        "s_first_ino",
        |value| value > 64,
        "larger than the number of inodes in the volume",
        "no inode can be made there, and e2fsck finds a fault",
    ),
    written(
        "s_feature_ro_compat",
        |value| value & 4 != 0,
        "btree_dir",
        "the feature was never used, and e2fsck does not go on",
    ),
    Exception {
        what: Writing,
        side: Side::Linux,
        field: "s_feature_ro_compat",
        values: |value| value & 0x2100 != 0,
        said: "",
        reason: "this kernel writes no volume with quota",
    },
    found("s_feature_compat", |value| value & 0x10 == 0, "s_reserved_gdt_blocks", ASKS),
    found("s_feature_ro_compat", |value| value & 0x410 == 0x10, "bg_checksum", ASKS),
    found(
        "s_feature_ro_compat",
        |value| value & 0x200 != 0,
        "the number must be 0 with bigalloc",
        "Linux does not write it, and e2fsck does not ask",
    ),
    found(
        "s_last_orphan",
        |value| !(11..=64).contains(&value),
        "the inode with this number cannot be an orphan",
        "e2fsck passes over a number that no file can have",
    ),
    found("s_usr_quota_inum", |value| matches!(value, 7 | 12), "its feature is not set", NAMED),
    found("s_grp_quota_inum", |value| matches!(value, 7 | 12), "its feature is not set", NAMED),
];

/// Returns the reason for a difference if it is intended. `texts` are the messages of the programs.
pub(super) fn reason(
    (what, side): (Difference, Side),
    (field, value): (&str, u64),
    texts: [&str; 2],
) -> Option<&'static str> {
    let known = |row: &&Exception| {
        row.what == what
            && row.side == side
            && row.field == field
            && (row.values)(value)
            && texts.iter().any(|text| text.contains(row.said))
    };
    EXCEPTIONS.iter().find(known).map(|row| row.reason)
}
