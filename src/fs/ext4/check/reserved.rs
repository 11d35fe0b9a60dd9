//! Checks the reserved inodes that no feature uses, and the list of bad blocks.
//!
//! The rules come from pass 1 of e2fsck 1.47, which checks inodes. The test `sweep` compares the rules with e2fsck for each field.

use super::Checker;
use super::found::Found;
use super::groups::RESERVED_DESCRIPTORS;
use super::inodes::Extent;
use super::map::{Piece, Walk};
use super::xattrs::Charged;
use crate::fs::check::Kind;
use crate::fs::ext4::disk::reserved::{
    BAD_BLOCKS, BOOT_LOADER, GROUP_QUOTA, JOURNAL, RESIZE, ROOT, USER_QUOTA,
};
use crate::fs::ext4::{Compat, Incompat, RoCompat};
use crate::fs::{FileType, InodeFlags};

impl Checker<'_> {
    /// Whether this is a reserved inode that the volume's features do not use.
    pub(super) fn is_spare(&self, number: u32) -> bool {
        let sb = &self.fs.superblock;
        let used = match number {
            ROOT => true,
            RESIZE => self.has_resize_inode(),
            _ => self.is_hidden(number),
        };
        number < sb.first_inode && !used
    }

    /// Checks the inode of the list of bad blocks. The inode has a map, and all its other fields are zero.
    pub(super) fn check_bad_blocks(&mut self, inode: &Found) {
        self.check_unused(BAD_BLOCKS, inode);
        self.check_casefold(inode);
        let raw = inode.raw();
        let inline = inode.flags() & InodeFlags::INLINE_DATA;
        for (field, stored) in [
            ("i_mode", u64::from(raw.i_mode.get())),
            ("i_uid", raw.i_uid.get().into()),
            ("i_gid", raw.i_gid.get().into()),
            ("i_links_count", raw.i_links_count.get().into()),
            ("i_flags", inline.bits().into()),
            ("i_file_acl", inode.xattr_block(self.fs)),
        ] {
            if stored != 0 {
                let rule = "the field of the bad blocks inode is not zero";
                self.findings.add(inode.place(field), Kind::Invalid { stored, rule });
            }
        }
        if inline.is_empty() && raw.i_block != [0; 60] {
            self.claim_bad_blocks(inode);
        }
    }

    /// Marks the bad blocks as used. A bad block may lie within an inode table, a backup, or the blocks reserved for descriptors. The file
    /// system skips the bad blocks of an inode table. It rarely reads backups and reserved blocks.
    fn claim_bad_blocks(&mut self, inode: &Found) {
        let fs = self.fs;
        let Self { reader, findings, usage, .. } = self;
        let place = inode.place("i_block");
        let backups =
            u64::from(fs.superblock.first_data_block) + u64::from(fs.superblock.blocks_per_group);
        let may_be_bad = |block: u64, structure: &str| match structure {
            "inode table" | RESERVED_DESCRIPTORS => true,
            "superblock" | "group descriptors" => block >= backups,
            _ => false,
        };
        let mut walk = Walk { fs, reader, findings, inode, sound: true };
        walk.run(&mut |findings, piece| {
            let (start, count) = match piece {
                Piece::Node(block) => return usage.claim(findings, place, block, 1),
                Piece::Data(data) => (data.start, data.count),
            };
            for block in start..start + count {
                let fixed = usage.fixed_in(block, 1);
                if fixed.is_none_or(|fixed| !may_be_bad(block, fixed.structure)) {
                    usage.claim(findings, place, block, 1);
                }
            }
            true
        });
    }

    fn check_casefold(&mut self, inode: &Found) {
        let has_feature = self.fs.superblock.incompat.contains(Incompat::CASEFOLD);
        if inode.flags().contains(InodeFlags::CASEFOLD) && !has_feature {
            let rule = "the flag casefold is set without the feature casefold";
            let stored = inode.flags().bits().into();
            self.findings.add(inode.place("i_flags"), Kind::Invalid { stored, rule });
        }
    }

    /// Checks a reserved inode that the volume's features do not use. The inode must have no data. Only the boot loader inode and the
    /// resize inode may have a file type.
    pub(super) fn check_spare(&mut self, number: u32, inode: &Found) {
        self.check_unused(number, inode);
        self.check_casefold(inode);
        let raw = inode.raw();
        let sb = &self.fs.superblock;
        let tables = [
            (USER_QUOTA, sb.ro_compat.contains(RoCompat::QUOTA)),
            (GROUP_QUOTA, sb.ro_compat.contains(RoCompat::QUOTA)),
            (JOURNAL, sb.compat.contains(Compat::HAS_JOURNAL)),
        ];
        if let Some((_, feature)) = tables.iter().find(|(table, _)| *table == number) {
            let data = raw.i_block.first_chunk::<4>().is_some_and(|word| *word != [0; 4]);
            let used = raw.i_links_count.get() != 0 || raw.i_blocks_lo.get() != 0 || data;
            if used && !feature {
                let (stored, rule) =
                    (1, "the reserved inode is in use, but its feature is not set");
                self.findings.add(inode.place("i_blocks"), Kind::Invalid { stored, rule });
            }
            return;
        }
        let (mode, file_type) = (raw.i_mode.get(), inode.file_type());
        let is_wrong = match number {
            BOOT_LOADER => file_type == Some(FileType::Directory),
            RESIZE => mode != 0 && file_type != Some(FileType::Regular),
            _ => mode != 0,
        };
        if is_wrong {
            let (stored, rule) = (mode.into(), "the file type is not valid for a reserved inode");
            self.findings.add(inode.place("i_mode"), Kind::Invalid { stored, rule });
        }
        if inode.flags().contains(InodeFlags::INDEX) && file_type != Some(FileType::Directory) {
            let (stored, rule) = (
                inode.flags().bits().into(),
                "the flag index is set, but the inode is not a directory",
            );
            self.findings.add(inode.place("i_flags"), Kind::Invalid { stored, rule });
        }
        let has_map = file_type.is_some_and(|kind| {
            matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink)
        });
        let none = Extent { sound: true, ..Extent::default() };
        let extent = if has_map { self.check_map(inode, FileType::Regular) } else { none };
        self.check_size(inode, FileType::Regular, has_map, &extent);
        // e2fsck ignores the attribute block in two cases: the volume has no attribute feature, or the block number is outside the volume.
        let block = inode.xattr_block(self.fs);
        let has_attributes = self.fs.superblock.compat.contains(Compat::EXT_ATTR)
            && (block == 0 || self.usage.contains(block, 1));
        let attributes = if has_attributes { self.check_xattrs(inode) } else { Charged::default() };
        self.check_space(inode, has_map, &extent, attributes);
    }
}
