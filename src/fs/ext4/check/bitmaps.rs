//! Compares bitmaps and counters with the blocks and inodes in use.

use super::bits::Bits;
use super::{Checker, Pass};
use crate::error::Place;
use crate::fs::check::{FindingSite, Kind, Severity};
use crate::fs::ext4::disk::group::SMALL;
use crate::units::FsBlock;

/// The blocks and inodes in use in a group, as counted from the inodes.
#[derive(Default)]
struct Totals {
    free_clusters: u64,
    free_inodes: u64,
}

impl Checker<'_> {
    pub(super) fn check_bitmaps(&mut self) {
        let groups = self.fs.superblock.groups;
        let mut all = Totals::default();
        for group in 0..groups {
            let free_clusters = self.check_block_bitmap(group);
            let free_inodes = self.check_inode_bitmap(group);
            all.free_clusters += free_clusters;
            all.free_inodes += free_inodes;
            self.tell(Pass::Space, u64::from(group) + 1, u64::from(groups));
        }
        let sb = &self.fs.superblock;
        let place = Place::new("superblock");
        // A wrong count is harmless: Linux computes the superblock's counts of free blocks and free inodes again at every mount.
        for (field, stored, expected) in [
            (
                "s_free_blocks_count",
                sb.free_blocks,
                all.free_clusters * u64::from(sb.cluster_blocks),
            ),
            ("s_free_inodes_count", u64::from(sb.free_inodes), all.free_inodes),
        ] {
            if stored != expected {
                let what = Kind::Value { stored, expected };
                self.findings.add_as(Severity::Note, place.field(field), what);
            }
        }
    }

    /// Compares a group's block bitmap with the blocks in use. Returns the number of free clusters, as counted from the inodes.
    fn check_block_bitmap(&mut self, group: u32) -> u64 {
        let sb = &self.fs.superblock;
        let start = sb.group_start(group).0;
        let end = (start + u64::from(sb.blocks_per_group)).min(sb.blocks_count);
        let first = self.usage.cluster(start);
        let count = self.usage.cluster(end - 1) + 1 - first;
        let free = count - self.usage.bits().count(first..first + count);

        let descriptor = self.groups[group as usize].descriptor;
        let block_of =
            |cluster: u64| start + cluster * u64::from(self.fs.superblock.cluster_blocks);
        if descriptor.blocks_uninit {
            self.check_uninit_group(group, start, end);
        } else if let Some(bitmap) = self.bitmap(group, "block bitmap", descriptor.block_bitmap) {
            let site = self.bitmap_site(group, "block bitmap", descriptor.block_bitmap);
            let computed = self.fs.superblock.block_bitmap_checksum(&bitmap);
            self.check_bitmap_sum(site, descriptor.block_bitmap_checksum, computed);
            for (run, marked) in self.usage.bits().differences(first, count, &bitmap) {
                let ratio = u64::from(self.fs.superblock.cluster_blocks);
                let (first, count) = (block_of(run.start), (run.end - run.start) * ratio);
                self.difference(site, first, count, marked);
            }
            self.check_padding(site, &bitmap, count);
        }
        let site = self.counter_site(group, "bg_free_blocks_count");
        self.findings.expect(site, descriptor.free_clusters, free);
        free
    }

    /// Checks that a group with an uninitialised block bitmap uses only blocks of the file system's own structures.
    fn check_uninit_group(&mut self, group: u32, start: u64, end: u64) {
        let mut at = start;
        let site = self.counter_site(group, "bg_flags");
        while at < end {
            let ratio = u64::from(self.fs.superblock.cluster_blocks);
            let next = (at + ratio).min(end);
            if self.usage.bits().get(self.usage.cluster(at))
                && self.usage.fixed_in(at, next - at).is_none()
            {
                self.findings.add(site, Kind::MarkedFree { first: at, count: next - at });
                return;
            }
            at = next;
        }
    }

    /// Compares a group's inode bitmap with the inodes in use. Returns the number of free inodes, as counted from the inodes.
    fn check_inode_bitmap(&mut self, group: u32) -> u64 {
        let sb = &self.fs.superblock;
        let (per_group, first) = (sb.inodes_per_group, group * sb.inodes_per_group + 1);
        let mut used = Bits::new(u64::from(per_group));
        let mut directories = 0_u32;
        for (index, record) in self.inodes.of_group(group) {
            used.set(u64::from(index));
            directories += u32::from(record.is_directory());
        }
        // The inodes with numbers below `s_first_ino` are reserved. They are never free.
        let reserved = sb.first_inode.saturating_sub(first).min(per_group);
        used.set_range(0..u64::from(reserved));
        let free = u64::from(per_group) - used.count(0..u64::from(per_group));

        let descriptor = self.groups[group as usize].descriptor;
        if !descriptor.inodes_uninit
            && let Some(bitmap) = self.bitmap(group, "inode bitmap", descriptor.inode_bitmap)
        {
            let site = self.bitmap_site(group, "inode bitmap", descriptor.inode_bitmap);
            let computed = self.fs.superblock.inode_bitmap_checksum(&bitmap);
            self.check_bitmap_sum(site, descriptor.inode_bitmap_checksum, computed);
            for (run, marked) in used.differences(0, u64::from(per_group), &bitmap) {
                let count = run.end - run.start;
                self.difference(site, u64::from(first) + run.start, count, marked);
            }
            self.check_padding(site, &bitmap, u64::from(per_group));
        }
        let site = self.counter_site(group, "bg_free_inodes_count");
        self.findings.expect(site, descriptor.free_inodes, free);
        let site = self.counter_site(group, "bg_used_dirs_count");
        self.findings.expect(site, descriptor.directories, directories);
        free
    }

    fn bitmap(
        &mut self,
        group: u32,
        name: &'static str,
        at: FsBlock,
    ) -> Option<super::reader::Bytes> {
        if !self.fs.blocks.contain(at, 1) || at.0 == 0 {
            return None;
        }
        let site = self.bitmap_site(group, name, at);
        match self.reader.block(at, site.place) {
            Ok(bitmap) => Some(bitmap),
            Err(error) => {
                self.findings.error(site, &error);
                None
            }
        }
    }

    fn bitmap_site(&self, group: u32, name: &'static str, at: FsBlock) -> FindingSite {
        FindingSite::of_group(group, Place::new(name).block(at))
    }

    fn counter_site(&self, group: u32, field: &'static str) -> FindingSite {
        let block = self.groups[group as usize].block;
        FindingSite::of_group(group, Place::new("group descriptor").block(block).field(field))
    }

    /// Compares the stored checksum of a bitmap with the computed checksum. A small descriptor stores only the lower half of the checksum.
    fn check_bitmap_sum(&mut self, mut site: FindingSite, stored: u32, computed: Option<u32>) {
        let small = usize::from(self.fs.superblock.descriptor_size) == SMALL;
        if let Some(computed) = computed {
            let computed = if small { computed & 0xFFFF } else { computed };
            site.place = site.place.field("checksum");
            self.findings.checksum(site, stored, computed);
        }
    }

    fn difference(&mut self, site: FindingSite, first: u64, count: u64, marked: bool) {
        let what = if marked {
            Kind::MarkedUsed { first, count }
        } else {
            Kind::MarkedFree { first, count }
        };
        self.findings.add(site, what);
    }

    /// Checks that all bits past a bitmap's end are set.
    fn check_padding(&mut self, site: FindingSite, bitmap: &[u8], count: u64) {
        let (whole, rest) = (count as usize / 8, count % 8);
        let mut bytes = bitmap.iter().skip(whole).enumerate();
        let free = bytes.any(|(index, byte)| {
            let before = if index == 0 { (1 << rest) - 1 } else { 0 };
            byte | before != u8::MAX
        });
        if free {
            let (stored, rule) = (count, "bits after the end of the bitmap are not set");
            self.findings.add(site, Kind::Invalid { stored, rule });
        }
    }
}
