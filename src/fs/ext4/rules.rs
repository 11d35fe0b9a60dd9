//! The rules for a superblock: the rules that Linux enforces at a mount, and the rules that only e2fsck enforces. When ironmap opens a
//! volume, it enforces the rules of Linux. A check of the volume also reports violations of e2fsck's rules. The fields that describe the
//! geometry are checked in [`superblock`](super::superblock).
//!
//! The source of the rules is an experiment. Each field was set to hostile values. Then Linux 6.18 mounted the volume, and e2fsck 1.47
//! checked it. The test `sweep` repeats this experiment.

use super::disk::inode::GOOD_OLD_SIZE;
use super::disk::superblock::{FIRST_INODE, REV_DYNAMIC, RawSuperblock};
use super::features::{Compat, Incompat, RoCompat};
use super::superblock::{PLACE, Superblock, features};
use crate::error::Result;
use crate::fs::check::{Findings, Kind};

/// The maximum of `s_log_groups_per_flex`. A 32-bit number is shifted by the value of this field.
const MOST_FLEX: u8 = 31;
/// The maximum of `s_log_cluster_size`. For a value n of this field, the cluster size is 2^n KiB.
const MOST_CLUSTER: u32 = 20;
/// The value of `s_creator_os` on a volume that the GNU Hurd made. The inodes of such a volume have different fields.
const HURD: u32 = 1;
/// The maximum of `s_def_hash_version`: the hash function TEA with unsigned bytes. The next value means SipHash, which is never a volume's
/// default.
const LAST_HASH: u8 = 5;
/// The maximum of `s_desc_size`, in bytes.
const MOST_DESCRIPTOR: u16 = 1024;
/// `s_encoding` for UTF-8 with Unicode 12.1.
const UTF8: u16 = 1;

/// The program that enforces a rule. It refuses a superblock that breaks the rule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// Linux, at every mount.
    Mount,
    /// Linux, at a mount for writing.
    Writing,
    Fsck,
}

struct Rule {
    by: By,
    field: &'static str,
    /// The text that describes the fault.
    fault: &'static str,
    broken: Broken,
}

/// Returns the field's value if the value breaks the rule. The function reads only the superblock. The time and the memory of the function
/// do not depend on the number of groups.
type Broken = fn(&RawSuperblock, &Superblock) -> Option<u64>;

const fn mount(field: &'static str, fault: &'static str, broken: Broken) -> Rule {
    Rule { by: By::Mount, field, fault, broken }
}

const fn writing(field: &'static str, fault: &'static str, broken: Broken) -> Rule {
    Rule { by: By::Writing, field, fault, broken }
}

const fn fsck(field: &'static str, fault: &'static str, broken: Broken) -> Rule {
    Rule { by: By::Fsck, field, fault, broken }
}

fn unless(kept: bool, value: impl Into<u64>) -> Option<u64> {
    (!kept).then(|| value.into())
}

/// The rules, in the order in which Linux checks them. A rule may rely on a field that an earlier rule has checked.
const RULES: &[Rule] = &[
    mount(
        "s_log_cluster_size",
        "without bigalloc a cluster must have the size of a block",
        |raw, sb| {
            let log = raw.s_log_cluster_size.get();
            unless(sb.has_clusters() || log == raw.s_log_block_size.get(), log)
        },
    ),
    mount("s_log_cluster_size", "the cluster size is too large", |raw, _| {
        let log = raw.s_log_cluster_size.get();
        unless(log <= MOST_CLUSTER, log)
    }),
    mount("s_clusters_per_group", "the number must match s_blocks_per_group", |raw, sb| {
        let clusters = raw.s_clusters_per_group.get();
        unless(clusters == sb.blocks_per_group / sb.cluster_blocks, clusters)
    }),
    mount("s_first_ino", "the number must be 11 to 2^31 - 1", |_, sb| {
        unless((FIRST_INODE..1 << 31).contains(&sb.first_inode), sb.first_inode)
    }),
    mount("s_inode_size", "the size must be a power of two from 128 to the block size", |_, sb| {
        let (size, block) = (usize::from(sb.inode_size), sb.block_size.bytes());
        unless((GOOD_OLD_SIZE..=block).contains(&size) && size.is_power_of_two(), sb.inode_size)
    }),
    mount("s_want_extra_isize", "the size is larger than the space in an inode", |raw, sb| {
        unless(sb.has_room_for(raw.s_want_extra_isize.get()), raw.s_want_extra_isize)
    }),
    mount("s_min_extra_isize", "the size is larger than the space in an inode", |raw, sb| {
        unless(sb.has_room_for(raw.s_min_extra_isize.get()), raw.s_min_extra_isize)
    }),
    mount(
        "s_inodes_per_group",
        "the inodes must fill a block or more, and their bitmap must fit into a block",
        |_, sb| {
            let (size, block) = (u32::from(sb.inode_size), sb.block_size.bytes() as u32);
            unless((block / size..=block * 8).contains(&sb.inodes_per_group), sb.inodes_per_group)
        },
    ),
    mount(
        "s_inodes_count",
        "the number must be s_inodes_per_group times the number of groups",
        |_, sb| {
            let all = u64::from(sb.groups) * u64::from(sb.inodes_per_group);
            unless(all == u64::from(sb.inodes_count), sb.inodes_count)
        },
    ),
    mount("s_first_data_block", "the number must be 1 with blocks of 1 KiB", |raw, sb| {
        let small = raw.s_log_block_size.get() == 0 && sb.cluster_blocks == 1;
        unless(!small || sb.first_data_block == 1, sb.first_data_block)
    }),
    mount("s_first_meta_bg", "the number is past the descriptors of the last group", |_, sb| {
        let per_block = sb.block_size.bytes() as u32 / u32::from(sb.descriptor_size);
        let last = sb.groups.div_ceil(per_block);
        unless(
            !sb.incompat.contains(Incompat::META_BG) || sb.first_meta_bg <= last,
            sb.first_meta_bg,
        )
    }),
    mount(
        "s_reserved_gdt_blocks",
        "the number is larger than the number of pointers in a block",
        |_, sb| {
            let reserved = sb.reserved_descriptor_blocks;
            unless(usize::from(reserved) <= sb.block_size.bytes() / 4, reserved)
        },
    ),
    mount("s_log_groups_per_flex", "the value must be at most 31 with flex_bg", |raw, sb| {
        let log = raw.s_log_groups_per_flex;
        unless(log <= MOST_FLEX || !sb.incompat.contains(Incompat::FLEX_BG), log)
    }),
    mount("s_encryption_level", "the value must be 0 with encrypt", |raw, sb| {
        let level = raw.s_encryption_level;
        unless(level == 0 || !sb.incompat.contains(Incompat::ENCRYPT), level)
    }),
    mount("s_encoding", "with casefold the encoding must be 1 (UTF-8 of Unicode 12.1)", |_, sb| {
        unless(sb.encoding == UTF8 || !sb.incompat.contains(Incompat::CASEFOLD), sb.encoding)
    }),
    mount(
        "s_creator_os",
        "the creator is the Hurd, which supports neither 64bit nor ea_inode",
        |raw, sb| {
            let wide = Incompat::SIXTY_FOUR_BIT | Incompat::EA_INODE;
            unless(
                raw.s_creator_os.get() != HURD || !sb.incompat.intersects(wide),
                raw.s_creator_os,
            )
        },
    ),
    mount("s_def_hash_version", "no hash function has this number", |_, sb| {
        unless(sb.hash_version <= LAST_HASH, sb.hash_version)
    }),
    mount(
        "s_journal_dev",
        "the volume has two journals, s_journal_inum and s_journal_dev",
        |raw, sb| {
            unless(sb.journal_inode.is_none() || raw.s_journal_dev.get() == 0, raw.s_journal_dev)
        },
    ),
    mount("s_journal_inum", "has_journal is set, but no field names a journal", |raw, sb| {
        let named = raw.s_journal_dev.get() != 0 || sb.journal_uuid != [0; 16];
        unless(!sb.has_external_journal() || named, 0_u64)
    }),
    mount(
        "s_orphan_file_inum",
        "orphan_file is set, but no file can have this inode number",
        |raw, sb| {
            let number = raw.s_orphan_file_inum.get();
            let without = !sb.compat.contains(Compat::ORPHAN_FILE);
            unless(without || (FIRST_INODE..=sb.inodes_count).contains(&number), number)
        },
    ),
    writing(
        "s_first_ino",
        "the number is larger than the number of inodes in the volume",
        |_, sb| unless(sb.first_inode <= sb.inodes_count, sb.first_inode),
    ),
    writing("s_first_data_block", "the number must be 0 with bigalloc", |_, sb| {
        unless(!sb.has_clusters() || sb.first_data_block == 0, sb.first_data_block)
    }),
    writing("s_feature_ro_compat", "bigalloc is set without extents", |_, sb| {
        let extents = sb.incompat.contains(Incompat::EXTENTS);
        unless(!sb.has_clusters() || extents, sb.ro_compat.bits())
    }),
    fsck("s_desc_size", "without 64bit the size must be a power of two up to 1024", |raw, sb| {
        let size = raw.s_desc_size.get();
        let plain = size == 0 || size.is_power_of_two() && size <= MOST_DESCRIPTOR;
        unless(plain || sb.incompat.contains(Incompat::SIXTY_FOUR_BIT), size)
    }),
    fsck("s_log_groups_per_flex", "the value must be at most 31", |raw, _| {
        unless(raw.s_log_groups_per_flex <= MOST_FLEX, raw.s_log_groups_per_flex)
    }),
    fsck("s_r_blocks_count", "more than half of the volume is reserved", |_, sb| {
        unless(sb.reserved_blocks <= sb.blocks_count / 2, sb.reserved_blocks)
    }),
    fsck("s_rev_level", "the revision is larger than 1", |_, sb| {
        unless(sb.revision <= REV_DYNAMIC, sb.revision)
    }),
    fsck(
        "s_journal_inum",
        "has_journal is set, but there is neither a journal inode nor a journal UUID",
        |_, sb| unless(!sb.has_external_journal() || sb.journal_uuid != [0; 16], 0_u64),
    ),
    fsck("s_feature_compat", "orphan_file is set without has_journal", |_, sb| {
        let journal = sb.compat.contains(Compat::HAS_JOURNAL);
        unless(journal || !sb.compat.contains(Compat::ORPHAN_FILE), sb.compat.bits())
    }),
    fsck("s_feature_compat", "features are set that e2fsck does not support", |raw, _| {
        unless(Compat::KNOWN.contains(features(raw).compat), raw.s_feature_compat)
    }),
    fsck("s_feature_ro_compat", "orphan_present is set without orphan_file", |_, sb| {
        let present = sb.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
        unless(!present || sb.compat.contains(Compat::ORPHAN_FILE), sb.ro_compat.bits())
    }),
    fsck("s_feature_incompat", "64bit is set without extents", |_, sb| {
        let wide = sb.incompat.contains(Incompat::SIXTY_FOUR_BIT);
        unless(!wide || sb.incompat.contains(Incompat::EXTENTS), sb.incompat.bits())
    }),
    fsck("s_feature_ro_compat", "features are set that e2fsck does not support", |raw, _| {
        unless(RoCompat::KNOWN.contains(features(raw).ro_compat), raw.s_feature_ro_compat)
    }),
];

impl Superblock {
    fn has_clusters(&self) -> bool {
        self.ro_compat.contains(RoCompat::BIGALLOC)
    }

    /// Whether the inodes have space for `extra` bytes of extra fields after the first 128 bytes. The result is true if the volume has no
    /// extra fields.
    fn has_room_for(&self, extra: u16) -> bool {
        let room = usize::from(self.inode_size) - GOOD_OLD_SIZE;
        room == 0 || !self.ro_compat.contains(RoCompat::EXTRA_ISIZE) || usize::from(extra) <= room
    }

    /// Refuses a superblock that the given program (Linux or e2fsck) would refuse.
    ///
    /// # Errors
    /// `Corrupt`, with the name of the field.
    pub(super) fn obey(&self, by: By, raw: &RawSuperblock) -> Result<()> {
        for rule in RULES.iter().filter(|rule| rule.by == by) {
            if let Some(value) = (rule.broken)(raw, self) {
                return Err(PLACE.field(rule.field).corrupt(format!("{value}: {}", rule.fault)));
            }
        }
        Ok(())
    }

    /// Reports violations of the rules that Linux does not enforce at every mount. e2fsck enforces these rules.
    pub(super) fn find_broken_rules(&self, raw: &RawSuperblock, findings: &mut Findings) {
        for rule in RULES.iter().filter(|rule| rule.by != By::Mount) {
            if let Some(stored) = (rule.broken)(raw, self) {
                let what = Kind::Invalid { stored, rule: rule.fault };
                findings.add(PLACE.field(rule.field), what);
            }
        }
    }
}
