//! Checks the resize inode, which reserves blocks for more descriptors.

use super::Checker;
use super::found::Found;
use super::groups::RESERVED_DESCRIPTORS;
use super::inodes::Extent;
use super::map::{Data, Piece, Walk};
use super::usage::Usage;
use crate::fs::check::Kind;
use crate::fs::ext4::Compat;
use crate::units::FsBlock;

impl Checker<'_> {
    pub(super) fn has_resize_inode(&self) -> bool {
        self.fs.superblock.compat.contains(Compat::RESIZE_INODE)
    }

    /// Checks the resize inode, which maps the blocks reserved for descriptors. The map has one double-indirect block. This block points to
    /// the reserved blocks after the first superblock. Each reserved block contains the block numbers of its copies in the groups with
    /// backups.
    pub(super) fn check_resize_inode(&mut self, inode: &Found) -> Extent {
        let fs = self.fs;
        let Self { reader, findings, usage, .. } = self;
        let mut extent = Extent::default();
        let place = inode.place("i_block");
        let mut walk = Walk { fs, reader, findings, inode, sound: true };
        let sb = &fs.superblock;
        // The boot block shifts the reserved blocks of group 0 by `boot` blocks. The other groups have no boot block.
        let boot = (1024_u64 >> sb.block_size.shift()).saturating_sub(sb.first_data_block.into());
        let is_reserved = |usage: &Usage, start: u64, count| {
            [start, start.saturating_sub(boot)].into_iter().any(|start| {
                let fixed = usage.fixed_in(start, count);
                fixed.is_some_and(|fixed| {
                    fixed.structure == RESERVED_DESCRIPTORS
                        && fixed.start <= start
                        && start + count <= fixed.start + fixed.count
                })
            })
        };
        let mut root = None;
        walk.run(&mut |findings, piece| {
            let (start, count) = match piece {
                Piece::Node(block) => (block, 1),
                Piece::Data(Data { start, count, .. }) => (start, count),
            };
            extent.blocks += count * u64::from(fs.superblock.cluster_blocks);
            if let Piece::Data(Data { first, count, .. }) = piece {
                extent.written_end = extent.written_end.max(first + count);
            }
            match piece {
                Piece::Node(block) if root.is_none() => {
                    root = Some(block);
                    usage.claim(findings, place, block, 1)
                }
                _ if is_reserved(usage, start, count) => true,
                _ => {
                    let rule = "the block is not reserved for group descriptors";
                    findings.add(place, Kind::Invalid { stored: start, rule });
                    false
                }
            }
        });
        extent.sound = walk.sound;
        self.check_reserved_descriptors(inode, root);
        extent
    }

    /// Checks that each reserved block is at the right position in the map.
    fn check_reserved_descriptors(&mut self, inode: &Found, root: Option<u64>) {
        let sb = &self.fs.superblock;
        let place = inode.place("i_block");
        let reserved = u64::from(self.superblock.s_reserved_gdt_blocks.get());
        let pointers = sb.block_size.bytes() as u64 / 4;
        let per_block = (sb.block_size.bytes() / usize::from(sb.descriptor_size)) as u32;
        let used = u64::from(sb.groups.div_ceil(per_block));
        let first = (1024 >> sb.block_size.shift()) + 1 + used;
        let Some(root) = root else {
            if reserved > 0 {
                let (stored, rule) = (
                    0,
                    "the resize inode does not contain the blocks reserved for group descriptors",
                );
                self.findings.add(place, Kind::Invalid { stored, rule });
            }
            return;
        };
        let backups: Vec<u32> = (1..sb.groups).filter(|g| sb.group_has_backup(*g)).collect();
        let Ok(content) = self.reader.block(FsBlock(root), place) else { return };
        let pointer = |bytes: &[u8], index: u64| {
            let at = index as usize * 4;
            bytes.get(at..at + 4).map_or(0, |word| {
                u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            })
        };
        for number in 0..reserved {
            let block = first + number;
            let index = (used + number) % pointers;
            let mut wrong = pointer(&content, index) != block;
            if !wrong && let Ok(copies) = self.reader.block(FsBlock(block), place) {
                wrong = backups.iter().zip(0..).any(|(group, index)| {
                    let start = u64::from(*group) * u64::from(sb.blocks_per_group);
                    pointer(&copies, index) != block + start
                });
            }
            if wrong {
                let rule = "the resize inode does not contain this block, which is reserved for group descriptors";
                self.findings.add(place, Kind::Invalid { stored: block, rule });
            }
        }
    }
}
