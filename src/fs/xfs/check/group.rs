//! Checks headers of allocation groups, and the trees whose roots these headers name.

use zerocopy::FromBytes;

use super::super::disk::group::{
    FREE_CRC, FREE_MAGIC, FREE_SECTOR, INODES_CRC, INODES_MAGIC, INODES_SECTOR, LIST_SECTOR,
    RawFree, RawInodes,
};
use super::super::disk::tree::{NONE, owner};
use super::super::features::RoCompat;
use super::owners::{Owned, Space};
use super::refcounts::Shared;
use super::{Checker, tree};
use crate::error::Place;
use crate::fs::check::{FindingSite, Kind, Pass};
use crate::units::InodeNo;

/// The data of a group that the check has read so far.
#[derive(Default)]
pub(super) struct Group {
    /// The owners of the group's blocks, in the order in which the check found them. Free space counts as an owner.
    pub(super) owned: Vec<Owned>,
    /// The owners that the reverse-mapping tree records; `None` if the group has no such tree, or if a part of the tree is damaged.
    pub(super) recorded: Option<Vec<Owned>>,
    /// The counts that the reference-count tree records; `None` if the group has no such tree, or if a part of the tree is damaged.
    pub(super) shared: Option<Vec<Shared>>,
    /// Whether the free space is known. It is unknown if the free-space tree is damaged.
    pub(super) free_is_known: bool,
    /// The number of blocks in use.
    pub(super) used: u64,
    /// The number of blocks that the superblock counts as free. These are free extents, the free list, and the trees of free space.
    pub(super) free: u64,
    /// The numbers of allocated and of free inodes that the inode tree records.
    pub(super) inodes: (u64, u64),
    /// The metadata files of a realtime group: the kind and the inode number of each.
    pub(super) files: Vec<(u16, InodeNo)>,
    /// The first inodes of the unlinked lists.
    pub(super) unlinked: Vec<u32>,
}

impl Checker<'_> {
    pub(super) fn check_groups(&mut self) {
        let groups = self.fs.superblock.geometry.groups;
        for group in 0..groups {
            self.tell(Pass::Groups, group.into(), groups.into());
            self.groups.push(Group::default());
            self.claim_fixed(group);
            self.check_free_header(group);
            self.check_inodes_header(group);
        }
        self.inodes.sort();
    }

    /// Claims the blocks of structures at fixed positions: the headers of the group, and the log if it is in this group.
    fn claim_fixed(&mut self, group: u32) {
        let sb = &self.fs.superblock;
        let geometry = sb.geometry;
        let headers = (LIST_SECTOR + 1) * geometry.sector as u64;
        let count = headers.div_ceil(geometry.block.bytes() as u64) as u32;
        let log = (sb.log_start, sb.log_blocks);
        self.claim(Space::Data(group), (0, count), owner::HEADERS, 0);
        if log.0 != 0 && log.0 >> geometry.group_blocks_log == u64::from(group) {
            let start = (log.0 & ((1 << geometry.group_blocks_log) - 1)) as u32;
            self.claim(Space::Data(group), (start, log.1), owner::LOG, 0);
        }
    }

    fn check_free_header(&mut self, group: u32) {
        let site = FindingSite::of_group(group, Place::new("header of free space"));
        let field = |name| FindingSite { place: site.place.field(name), ..site };
        let (bytes, replayed) = match self.sector(group, FREE_SECTOR) {
            Ok(read) => read,
            Err(error) => return self.findings.error(site, &error),
        };
        let Ok((raw, _)) = RawFree::read_from_prefix(&bytes) else { return };
        if raw.agf_magicnum != FREE_MAGIC {
            let what = "the magic number is not XAGF".into();
            return self.findings.add(field("agf_magicnum"), Kind::Damaged { what });
        }
        let sb = &self.fs.superblock;
        let (is_v5, ro_compat, length) = (sb.is_v5(), sb.ro_compat, sb.geometry.group_len(group));
        if is_v5 {
            if !replayed {
                self.fs.check_sum(&mut self.findings, &bytes, FREE_CRC, field("agf_crc"));
            }
            self.fs.check_uuid(&mut self.findings, raw.agf_uuid, site);
            self.fs.check_age(&mut self.findings, raw.agf_lsn.get(), site);
        }
        self.findings.expect(field("agf_versionnum"), raw.agf_versionnum.get(), 1_u32);
        self.findings.expect(field("agf_seqno"), raw.agf_seqno.get(), group);
        self.findings.expect(field("agf_length"), raw.agf_length.get(), length);
        let listed = self.check_list(group, &raw);
        let (roots, levels) = (raw.agf_roots.map(|n| n.get()), raw.agf_levels.map(|n| n.get()));
        let by_place = self.walk_tree(group, &tree::BY_PLACE, roots[0], levels[0]);
        let by_length = self.walk_tree(group, &tree::BY_LENGTH, roots[1], levels[1]);
        let mut trees = by_place.blocks.saturating_sub(1) + by_length.blocks.saturating_sub(1);
        let mut whole = by_place.whole && by_length.whole;
        self.check_free_space(group, &by_place, &by_length, &raw);
        if ro_compat.contains(RoCompat::RMAPBT) {
            let found = self.walk_tree(group, &tree::OWNERS, roots[2], levels[2]);
            if found.whole {
                let blocks = found.blocks;
                self.findings.expect(field("agf_rmap_blocks"), raw.agf_rmap_blocks.get(), blocks);
                self.groups[group as usize].recorded =
                    Some(self.recorded_owners(Space::Data(group), &found));
            }
            trees += found.blocks.saturating_sub(1);
            whole &= found.whole;
        }
        if ro_compat.contains(RoCompat::REFLINK) {
            let (root, level) = (raw.agf_refcount_root.get(), raw.agf_refcount_level.get());
            let found = self.walk_tree(group, &tree::REFCOUNTS, root, level);
            if found.whole {
                let (site, stored) = (field("agf_refcount_blocks"), raw.agf_refcount_blocks.get());
                self.findings.expect(site, stored, found.blocks);
                self.groups[group as usize].shared =
                    Some(self.recorded_counts(Space::Data(group), &found));
            }
        }
        let counts_trees = self.fs.superblock.is_v5() || self.has_lazy_counters();
        if whole && counts_trees {
            self.findings.expect(field("agf_btreeblks"), raw.agf_btreeblks.get(), trees);
        }
        let counted = if counts_trees { u64::from(trees) } else { 0 };
        self.groups[group as usize].free += u64::from(listed) + counted;
    }

    fn check_inodes_header(&mut self, group: u32) {
        let site = FindingSite::of_group(group, Place::new("header of inodes"));
        let field = |name| FindingSite { place: site.place.field(name), ..site };
        let (bytes, replayed) = match self.sector(group, INODES_SECTOR) {
            Ok(read) => read,
            Err(error) => return self.findings.error(site, &error),
        };
        let Ok((raw, _)) = RawInodes::read_from_prefix(&bytes) else { return };
        if raw.agi_magicnum != INODES_MAGIC {
            let what = "the magic number is not XAGI".into();
            return self.findings.add(field("agi_magicnum"), Kind::Damaged { what });
        }
        let sb = &self.fs.superblock;
        let (is_v5, ro_compat, length) = (sb.is_v5(), sb.ro_compat, sb.geometry.group_len(group));
        if is_v5 {
            if !replayed {
                self.fs.check_sum(&mut self.findings, &bytes, INODES_CRC, field("agi_crc"));
            }
            self.fs.check_uuid(&mut self.findings, raw.agi_uuid, site);
            self.fs.check_age(&mut self.findings, raw.agi_lsn.get(), site);
        }
        self.findings.expect(field("agi_versionnum"), raw.agi_versionnum.get(), 1_u32);
        self.findings.expect(field("agi_seqno"), raw.agi_seqno.get(), group);
        self.findings.expect(field("agi_length"), raw.agi_length.get(), length);
        let found = self.walk_tree(group, &tree::INODES, raw.agi_root.get(), raw.agi_level.get());
        let chunks = self.check_chunks(group, &found);
        if found.whole {
            let (inodes, free) = self.groups[group as usize].inodes;
            self.findings.expect(field("agi_count"), raw.agi_count.get(), inodes);
            self.findings.expect(field("agi_freecount"), raw.agi_freecount.get(), free);
        }
        let counts_blocks = ro_compat.contains(RoCompat::INOBTCOUNT);
        if counts_blocks && found.whole {
            self.findings.expect(field("agi_iblocks"), raw.agi_iblocks.get(), found.blocks);
        }
        if ro_compat.contains(RoCompat::FINOBT) {
            let (root, level) = (raw.agi_free_root.get(), raw.agi_free_level.get());
            let with_free = self.walk_tree(group, &tree::FREE_INODES, root, level);
            if found.whole && with_free.whole {
                self.check_free_chunks(group, &chunks, &with_free);
            }
            if counts_blocks && with_free.whole {
                self.findings.expect(field("agi_fblocks"), raw.agi_fblocks.get(), with_free.blocks);
            }
        }
        let inside = |number: u32| {
            u64::from(number) >> self.fs.superblock.geometry.inodes_per_block_log < length
        };
        for (name, number) in [("agi_newino", &raw.agi_newino), ("agi_dirino", &raw.agi_dirino)] {
            let number = number.get();
            if number != NONE && !inside(number) {
                let (stored, rule) = (number.into(), "the inode is outside the group");
                self.findings.add(field(name), Kind::Invalid { stored, rule });
            }
        }
        let unlinked = raw.agi_unlinked.iter().map(|number| number.get()).collect();
        self.groups[group as usize].unlinked = unlinked;
    }
}
