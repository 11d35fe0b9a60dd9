//! Checks group descriptors and the structures that they locate: bitmaps, inode tables, and the descriptors themselves.

use zerocopy::FromBytes;

use super::usage::Fixed;
use super::{Checker, Pass};
use crate::error::Place;
use crate::fs::check::{FindingSite, Kind, Severity};
use crate::fs::ext4::Incompat;
use crate::fs::ext4::disk::group::{BLOCK_UNINIT, INODE_UNINIT, RawGroupLow};
use crate::fs::ext4::group::Group as Descriptor;
use crate::units::FsBlock;

const PLACE: Place = Place::new("group descriptor");

/// A group descriptor, the block that contains it, and whether the group's inode table lies within the volume.
pub(super) struct Group {
    pub(super) descriptor: Descriptor,
    /// The number of the block that contains the descriptor.
    pub(super) block: FsBlock,
    /// Whether the inode table lies within the volume.
    pub(super) has_table: bool,
}

impl Group {
    /// The number of inodes that are initialised in the inode table. An initialised inode may be used or unused.
    pub(super) fn initialised_inodes(&self, per_group: u32) -> u32 {
        if self.descriptor.inodes_uninit {
            return 0;
        }
        per_group.saturating_sub(self.descriptor.unused_inodes)
    }
}

impl Checker<'_> {
    pub(super) fn check_groups(&mut self) {
        let sb = &self.fs.superblock;
        let mut fixed = Vec::new();
        self.fixed_by_geometry(&mut fixed);
        for number in 0..sb.groups {
            let group = self.group(number);
            let descriptor = &group.descriptor;
            let table = self.fs.superblock.inode_table_blocks();
            let of_group = [
                Fixed { start: descriptor.block_bitmap.0, count: 1, structure: "block bitmap" },
                Fixed { start: descriptor.inode_bitmap.0, count: 1, structure: "inode bitmap" },
                Fixed { start: descriptor.inode_table.0, count: table, structure: "inode table" },
            ];
            self.check_end(number, &of_group);
            fixed.extend(of_group);
            self.groups.push(group);
            self.tell(Pass::Groups, u64::from(number) + 1, u64::from(sb.groups));
        }
        // The check of the descriptors has already reported structures outside the volume.
        fixed.retain(|fixed| self.fs.blocks.contain(FsBlock(fixed.start), fixed.count));
        for (one, other) in self.usage.set_fixed(fixed) {
            let place = Place::new(other.structure).block(FsBlock(other.start));
            let (block, count, structure) = (other.start, other.count, one.structure);
            let what = Kind::ClaimsMetadata { block, count, structure };
            self.findings.add_as(Severity::Fatal, place, what);
        }
    }

    /// Reports the structures of a group that are past the end of a truncated device.
    fn check_end(&mut self, number: u32, structures: &[Fixed]) {
        let shift = self.fs.superblock.block_size.shift();
        let stored = self.fs.blocks.device().stored() >> shift;
        for &Fixed { start, count, structure } in structures {
            let end = start.saturating_add(count);
            if stored < end && self.fs.blocks.contain(FsBlock(start), count) {
                let place = Place::new(structure).block(FsBlock(start));
                let what =
                    format!("blocks {} to {end} are past the end of the device", start.max(stored));
                self.findings.add(FindingSite::of_group(number, place), Kind::Damaged { what });
            }
        }
    }

    fn group(&mut self, number: u32) -> Group {
        let sb = &self.fs.superblock;
        let block = self.fs.descriptor_block(number);
        let site = |field| FindingSite::of_group(number, PLACE.block(block).field(field));
        let content = match self.reader.block(block, PLACE.block(block)) {
            Ok(content) => content,
            Err(error) => {
                self.findings.error(site(""), &error);
                let descriptor = self.fs.group(number).unwrap_or_default();
                return Group { descriptor, block, has_table: descriptor.inode_table.0 != 0 };
            }
        };
        let bytes = &content[self.fs.descriptor_range(number)];
        let mut descriptor = sb.decode_group(bytes).unwrap_or_default();
        let mut trusted = true;
        if let Some((stored, computed)) = sb.descriptor_checksums(number, bytes) {
            trusted = self.findings.checksum(site("bg_checksum"), stored.into(), computed.into());
        }
        if let Ok((raw, _)) = RawGroupLow::ref_from_prefix(bytes) {
            self.check_flags(number, raw, &descriptor, site("bg_flags"));
        }
        let per_group = sb.inodes_per_group;
        if descriptor.unused_inodes > per_group {
            let (stored, rule) = (
                u64::from(descriptor.unused_inodes),
                "the count is larger than the group's number of inodes",
            );
            self.findings.add(site("bg_itable_unused"), Kind::Invalid { stored, rule });
            trusted = false;
        }
        if !trusted {
            // The group's descriptor is unreliable, so the check treats both bitmaps and the complete inode table as initialised.
            descriptor.inodes_uninit = false;
            descriptor.blocks_uninit = false;
            descriptor.unused_inodes = 0;
        }
        for (field, start, count) in [
            ("bg_block_bitmap", descriptor.block_bitmap, 1),
            ("bg_inode_bitmap", descriptor.inode_bitmap, 1),
            ("bg_inode_table", descriptor.inode_table, self.fs.superblock.inode_table_blocks()),
        ] {
            self.check_place(number, site(field), start, count);
        }
        self.use_copy(number, &mut descriptor, site, trusted);
        let has_table =
            self.fs.blocks.contain(descriptor.inode_table, self.fs.superblock.inode_table_blocks())
                && descriptor.inode_table.0 != 0;
        Group { descriptor, block, has_table }
    }

    /// Replaces the positions in a damaged descriptor by those of a copy. The other passes can then check the group.
    fn use_copy(
        &mut self,
        number: u32,
        descriptor: &mut Descriptor,
        site: impl Fn(&'static str) -> FindingSite,
        is_summed: bool,
    ) {
        let Ok(used) = self.fs.group(number) else { return };
        for (field, found, used) in [
            ("bg_block_bitmap", &mut descriptor.block_bitmap, used.block_bitmap),
            ("bg_inode_bitmap", &mut descriptor.inode_bitmap, used.inode_bitmap),
            ("bg_inode_table", &mut descriptor.inode_table, used.inode_table),
        ] {
            // The wrong checksum of a descriptor has been reported.
            if *found != used && is_summed {
                let (stored, rule) = (found.0, "the position differs from the copies");
                self.findings.add(site(field), Kind::Invalid { stored, rule });
            }
            *found = used;
        }
    }

    fn check_flags(
        &mut self,
        number: u32,
        raw: &RawGroupLow,
        found: &Descriptor,
        site: FindingSite,
    ) {
        let sb = &self.fs.superblock;
        let flags = raw.bg_flags.get();
        let stored = u64::from(flags);
        if sb.has_uninit_groups() {
            if number + 1 == sb.groups && flags & BLOCK_UNINIT != 0 {
                // The last group may be shorter than the others. Its bitmap must be initialised, because it marks the blocks past the
                // volume's end as used.
                let rule = "BLOCK_UNINIT is set on the last group";
                self.findings.add(site, Kind::Invalid { stored, rule });
            }
        } else if flags & (BLOCK_UNINIT | INODE_UNINIT) != 0 {
            // Without descriptor checksums, Linux ignores BLOCK_UNINIT and INODE_UNINIT. The flag INODE_UNINIT is then a fault only if the
            // group has used inodes.
            let used = flags & INODE_UNINIT != 0 && found.free_inodes < sb.inodes_per_group;
            let severity = if used { Severity::Repairable } else { Severity::Note };
            let rule = "BLOCK_UNINIT or INODE_UNINIT is set without uninit_bg or metadata_csum";
            self.findings.add_as(severity, site, Kind::Invalid { stored, rule });
        }
    }

    /// Checks that a group's structures lie in the group itself, if the volume has no flex_bg.
    fn check_place(&mut self, number: u32, site: FindingSite, start: FsBlock, count: u64) {
        let sb = &self.fs.superblock;
        if !self.fs.blocks.contain(start, count) || start.0 == 0 {
            let what = Kind::Outside { block: start.0, count };
            return self.findings.add_as(Severity::Fatal, site, what);
        }
        let first = sb.group_start(number).0;
        let end = (first + u64::from(sb.blocks_per_group)).min(sb.blocks_count);
        if !sb.incompat.contains(Incompat::FLEX_BG) && (start.0 < first || start.0 + count > end) {
            let (stored, rule) =
                (start.0, "the block is outside the group, although flex_bg is not set");
            self.findings.add(site, Kind::Invalid { stored, rule });
        }
    }

    /// Adds the blocks of superblocks and descriptors, and the blocks reserved for more descriptors.
    fn fixed_by_geometry(&self, fixed: &mut Vec<Fixed>) {
        let sb = &self.fs.superblock;
        let per_block = (sb.block_size.bytes() / usize::from(sb.descriptor_size)) as u32;
        let descriptor_blocks = sb.groups.div_ceil(per_block);
        let meta = sb.incompat.contains(Incompat::META_BG);
        let plain = if meta { sb.first_meta_bg.min(descriptor_blocks) } else { descriptor_blocks };
        let most = sb.block_size.bytes() as u64 / 4;
        let reserved = u64::from(self.superblock.s_reserved_gdt_blocks.get()).min(most);
        // Adds the boot block, if it is block 0 of group 0.
        let superblock = 1024_u64 >> sb.block_size.shift();
        let boot = superblock.saturating_sub(u64::from(sb.first_data_block));
        fixed.push(Fixed {
            start: u64::from(sb.first_data_block),
            count: boot,
            structure: "boot block",
        });
        for group in 0..sb.groups {
            let mut start = sb.group_start(group).0 + if group == 0 { boot } else { 0 };
            let backup = sb.group_has_backup(group);
            if backup {
                fixed.push(Fixed { start, count: 1, structure: "superblock" });
                start += 1;
            }
            let meta_group = group / per_block;
            if meta && meta_group >= sb.first_meta_bg {
                let index = group % per_block;
                if matches!(index, 0 | 1) || index == per_block - 1 {
                    fixed.push(Fixed { start, count: 1, structure: "group descriptors" });
                }
            } else if backup {
                let count = u64::from(plain);
                fixed.push(Fixed { start, count, structure: "group descriptors" });
                start += count;
                fixed.push(Fixed { start, count: reserved, structure: RESERVED_DESCRIPTORS });
            }
        }
        if let Some(block) = sb.mmp_block {
            fixed.push(Fixed { start: block.0, count: 1, structure: "MMP block" });
        }
        // The last group may be too small for a structure. The structure's blocks then end at the volume's end.
        for fixed in fixed {
            fixed.count = fixed.count.min(sb.blocks_count.saturating_sub(fixed.start));
        }
    }
}

/// The name, in findings, of the blocks that the resize inode reserves for more descriptors.
pub(super) const RESERVED_DESCRIPTORS: &str = "reserved group descriptors";
