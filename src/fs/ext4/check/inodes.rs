//! Checks inodes: fields that depend on other fields, and the blocks of the map.

use super::found::Found;
use super::map::{Data, Piece, Walk};
use super::reader::Bytes;
use super::table::{Directory, Record};
use super::usage::Usage;
use super::xattrs::Charged;
use super::{Checker, Pass};
use crate::device::BATCH;
use crate::error::Place;
use crate::fs::check::{Findings, Kind};
use crate::fs::ext4::dir_block::entry_code;
use crate::fs::ext4::disk::reserved::{BAD_BLOCKS, RESIZE};
use crate::fs::ext4::inode::inode_checksums;
use crate::fs::ext4::symlink::SHORT_LINK;
use crate::fs::ext4::{Compat, Incompat, ROOT, RoCompat};
use crate::fs::{FileType, InodeFlags};
use crate::units::FsBlock;

const PLACE: Place = Place::new("inode");
/// An offset in `i_block`. An inode without blocks does not use the words from this offset on.
const SPARE_WORDS: usize = 16;
/// The maximum memory in bytes of the inodes of directories that are stored for the pass over directories.
const KEPT: usize = 16 << 20;
/// The flag in `i_flags` that marks an inode of the AFS server.
const IMAGIC: InodeFlags = InodeFlags::from_bits_retain(0x2000);

/// The totals of an inode's map.
#[derive(Default)]
pub(super) struct Extent {
    /// The number of blocks of the content and of the map itself, rounded up to complete clusters.
    pub(super) blocks: u64,
    /// The first block after the last mapped block, and the first block after the last written block.
    pub(super) end: u64,
    pub(super) written_end: u64,
    /// The number of mapped blocks.
    pub(super) data: u64,
    pub(super) sound: bool,
}

impl Checker<'_> {
    pub(super) fn check_inodes(&mut self) {
        let groups = self.fs.superblock.groups;
        for group in 0..groups {
            self.check_table(group);
            self.tell(Pass::Inodes, u64::from(group) + 1, u64::from(groups));
        }
    }

    fn check_table(&mut self, number: u32) {
        let sb = &self.fs.superblock;
        let group = &self.groups[number as usize];
        let inodes = group.initialised_inodes(sb.inodes_per_group);
        let (table, size) = (group.descriptor.inode_table, usize::from(sb.inode_size));
        if !group.has_table {
            return;
        }
        let per_block = (sb.block_size.bytes() / size) as u32;
        let batch = (BATCH >> sb.block_size.shift()).max(1);
        let blocks = u64::from(inodes.div_ceil(per_block));
        for first in (0..inodes).step_by(per_block as usize) {
            let index = u64::from(first / per_block);
            let block = FsBlock(table.0 + index);
            if index.is_multiple_of(batch) {
                self.reader.announce([(block, (blocks - index).min(batch))].into_iter());
            }
            let place = Place::new("inode table").block(block);
            let content = match self.reader.block(block, place) {
                Ok(content) => content,
                Err(error) => {
                    self.findings.error(place, &error);
                    continue;
                }
            };
            for index in 0..per_block.min(inodes - first) {
                let bytes = content.part(index as usize * size, size);
                let inode = number * sb.inodes_per_group + first + index + 1;
                if let Some(found) = Found::new(inode, block, bytes) {
                    self.check_inode(inode, &found);
                }
            }
        }
    }

    /// Checks an inode. The inode number must be valid.
    pub(super) fn inode(&mut self, number: u32) -> Option<Found> {
        let (block, at) = self.position(number)?;
        let content = self.reader.block(block, PLACE).ok()?;
        let size = usize::from(self.fs.superblock.inode_size);
        Found::new(number, block, content.part(at, size))
    }

    /// The block that contains an inode, and the inode's byte offset in the block.
    pub(super) fn position(&self, number: u32) -> Option<(FsBlock, usize)> {
        let sb = &self.fs.superblock;
        let (group, index) =
            ((number - 1) / sb.inodes_per_group, (number - 1) % sb.inodes_per_group);
        let group = self.groups.get(group as usize).filter(|group| group.has_table)?;
        let byte = u64::from(index) * u64::from(sb.inode_size);
        let block = FsBlock(group.descriptor.inode_table.0 + (byte >> sb.block_size.shift()));
        Some((block, byte as usize % sb.block_size.bytes()))
    }

    fn check_inode(&mut self, number: u32, inode: &Found) {
        let (raw, sb) = (inode.raw(), &self.fs.superblock);
        if number == BAD_BLOCKS {
            return self.check_bad_blocks(inode);
        }
        if self.is_spare(number) {
            return self.check_spare(number, inode);
        }
        let (links, mode) = (raw.i_links_count.get(), raw.i_mode.get());
        let orphan = self.orphans.contains(&number);
        if links == 0 && !(orphan && mode != 0) {
            return self.check_unused(number, inode);
        }
        self.check_sum(inode);
        let file_type = inode.file_type();
        let reserved = number < sb.first_inode && number != ROOT.0 as u32;
        if file_type.is_none()
            || (number == ROOT.0 as u32 && file_type != Some(FileType::Directory))
            || (reserved && file_type != Some(FileType::Regular))
        {
            let (stored, rule) =
                (u64::from(mode), "the file type is unknown or not allowed for this inode");
            self.findings.add(inode.place("i_mode"), Kind::Invalid { stored, rule });
        }
        // An inode with an invalid type is recorded as a regular file. The links and the blocks of the inode must still be checked.
        let file_type = file_type.unwrap_or(FileType::Regular);
        // A reserved inode, and an inode that the superblock names, may have any `i_dtime` that cannot be the number of the next orphan.
        let special = reserved || self.fs.superblock.orphan_file == Some(inode.number);
        let dtime = raw.i_dtime.get();
        if dtime != 0 && !orphan && (!special || self.is_low(dtime)) {
            self.findings.expect(inode.place("i_dtime"), dtime, 0_u32);
        }
        let is_value = inode.flags().contains(InodeFlags::EA_INODE);
        self.inodes
            .insert(number, Record { file_type: entry_code(file_type), is_value, links, names: 0 });
        if !reserved {
            self.check_fields(inode, file_type);
        }
        let has_map = self.check_flags_of_inode(inode, file_type);
        let extent = if has_map { self.check_map(inode, file_type) } else { Extent::default() };
        self.check_size(inode, file_type, has_map, &extent);
        // The orphan file is skipped here. The check of the orphan file reports its attributes.
        let orphans = self.fs.superblock.orphan_file == Some(inode.number);
        let attributes = if orphans { Charged::default() } else { self.check_xattrs(inode) };
        self.check_space(inode, has_map, &extent, attributes);
        if inode.flags().contains(InodeFlags::ENCRYPT) {
            self.check_policy(number, inode);
        }
        if file_type == FileType::Directory {
            let broken = has_map && !extent.sound;
            let (inode_block, dot_dot, parent) = (inode.block, 0, 0);
            if self.kept.len() == self.directories.len()
                && (self.kept.len() + 1) * inode.bytes.len() <= KEPT
            {
                self.kept.push(Bytes::all(&inode.bytes));
            }
            self.directories.push(Directory { number, inode_block, dot_dot, parent, broken });
        }
    }

    /// Checks an unused inode. The inode must either be all zeros, or have a valid checksum and a deletion time.
    pub(super) fn check_unused(&mut self, number: u32, inode: &Found) {
        if inode.bytes.iter().any(|byte| *byte != 0) {
            self.check_sum(inode);
        }
        let raw = inode.raw();
        let dtime = raw.i_dtime.get();
        let missing = dtime == 0 && raw.i_mode.get() != 0;
        if missing && number >= self.fs.superblock.first_inode || self.is_low(dtime) {
            let (stored, rule) = (u64::from(dtime), "the time of deletion is not valid");
            self.findings.add(inode.place("i_dtime"), Kind::Invalid { stored, rule });
        }
    }

    /// Whether `i_dtime` probably contains the number of the next orphan instead of a deletion time. This number can remain after the inode
    /// was removed from the orphan list. The criterion: the value is a valid inode number, and is lower than all time stamps of the
    /// superblock.
    fn is_low(&self, dtime: u32) -> bool {
        let low = |time: u32| (1..self.fs.superblock.inodes_count).contains(&time);
        let sb = &self.superblock;
        let clock = [sb.s_wtime.get(), sb.s_mtime.get(), sb.s_mkfs_time.get()];
        low(dtime) && !clock.into_iter().any(low)
    }

    fn check_sum(&mut self, inode: &Found) {
        let Some(seed) = inode.seed(self.fs) else { return };
        let (stored, computed) = inode_checksums(seed, &inode.bytes);
        self.findings.checksum(inode.place("i_checksum"), stored, computed);
    }

    /// Checks fields that must be zero or must not exceed a limit.
    fn check_fields(&mut self, inode: &Found, file_type: FileType) {
        let (raw, sb) = (inode.raw(), &self.fs.superblock);
        let findings = &mut self.findings;
        let mut zero = |field, value: u32| {
            findings.expect(inode.place(field), value, 0_u32);
        };
        zero("i_obso_faddr", raw.i_obso_faddr.get());
        if !sb.ro_compat.contains(RoCompat::HUGE_FILE) {
            zero("l_i_blocks_high", u32::from(raw.i_blocks_high.get()));
        }
        if !sb.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
            zero("l_i_file_acl_high", u32::from(raw.i_file_acl_high.get()));
        }
        if file_type == FileType::Directory && !sb.incompat.contains(Incompat::LARGEDIR) {
            zero("i_size_high", raw.i_size_high.get());
        }
        let (extra, rest) = inode.extra();
        if extra > rest.len() || extra % 4 != 0 || (extra > 0 && extra < 4) {
            let (stored, rule) =
                (extra as u64, "the size is larger than the space in the inode, or not valid");
            self.findings.add(inode.place("i_extra_isize"), Kind::Invalid { stored, rule });
        }
    }

    /// Checks flags against the features and the type. Returns whether the inode has a map of blocks.
    fn check_flags_of_inode(&mut self, inode: &Found, file_type: FileType) -> bool {
        let (sb, flags) = (&self.fs.superblock, inode.flags());
        let directory = file_type == FileType::Directory;
        let mapped =
            matches!(file_type, FileType::Regular | FileType::Directory | FileType::Symlink);
        let inline = flags.contains(InodeFlags::INLINE_DATA);
        let short = file_type == FileType::Symlink && self.is_short_link(inode);
        for (flag, allowed, rule) in [
            (
                InodeFlags::EXTENTS,
                sb.incompat.contains(Incompat::EXTENTS),
                "the flag extents is set without the feature extent",
            ),
            (
                InodeFlags::EXTENTS,
                mapped && !inline,
                "the flag extents is set, but a file of this type has no blocks",
            ),
            (
                InodeFlags::INDEX,
                directory && sb.compat.contains(Compat::DIR_INDEX),
                "the flag index is set, but the inode is not a directory or dir_index is not set",
            ),
            (
                InodeFlags::INLINE_DATA,
                mapped && sb.incompat.contains(Incompat::INLINE_DATA),
                "the flag inline_data is set, but the file type or the volume does not support it",
            ),
            (
                InodeFlags::EA_INODE,
                file_type == FileType::Regular && sb.incompat.contains(Incompat::EA_INODE),
                "the flag ea_inode is set, but the inode is not a regular file or the feature ea_inode is not set",
            ),
            (
                InodeFlags::ENCRYPT,
                sb.incompat.contains(Incompat::ENCRYPT),
                "the flag encrypt is set without the feature encrypt",
            ),
            (
                InodeFlags::CASEFOLD,
                directory && sb.incompat.contains(Incompat::CASEFOLD),
                "the flag casefold is set, but the inode is not a directory or the feature casefold is not set",
            ),
            (
                IMAGIC,
                sb.compat.contains(Compat::IMAGIC_INODES),
                "the flag imagic is set without the feature imagic_inodes",
            ),
        ] {
            if flags.contains(flag) && !allowed {
                let stored = u64::from(flags.bits());
                self.findings.add(inode.place("i_flags"), Kind::Invalid { stored, rule });
            }
        }
        // Nonzero bytes after the device number of a special file are not a fault, because old kernels left such bytes. Together with the
        // flag `IMMUTABLE` or `APPEND`, they are a fault. These flags are never set on a special file, and indicate that the inode was
        // overwritten.
        if !mapped
            && flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
            && inode.raw().i_block[SPARE_WORDS..].iter().any(|byte| *byte != 0)
        {
            let (stored, rule) = (0, "bytes after the device number are not zero");
            self.findings.add(inode.place("i_block"), Kind::Invalid { stored, rule });
        }
        mapped && !inline && !short
    }

    /// Whether a symbolic link has no blocks and stores its target in the inode.
    fn is_short_link(&self, inode: &Found) -> bool {
        if inode.flags().contains(InodeFlags::EXTENTS) || inode.size() >= SHORT_LINK {
            return false;
        }
        let xattr_block = inode.xattr_block(self.fs) != 0;
        let sectors = (self.fs.superblock.block_size.bytes() as u64
            * u64::from(self.fs.superblock.cluster_blocks)
            / 512)
            * u64::from(xattr_block);
        u64::from(inode.raw().i_blocks_lo.get()) <= sectors
    }

    /// Walks the map, and marks its blocks as used.
    pub(super) fn check_map(&mut self, inode: &Found, file_type: FileType) -> Extent {
        if inode.number.0 == u64::from(RESIZE) && self.has_resize_inode() {
            return self.check_resize_inode(inode);
        }
        let fs = self.fs;
        let Self { reader, findings, usage, .. } = self;
        let mut extent = Extent::default();
        let place = inode.place("i_block");
        let mut claims = Claims { cluster: u64::from(fs.superblock.cluster_blocks), last: None };
        let mut walk = Walk { fs, reader, findings, inode, sound: true };
        walk.run(&mut |findings, piece| match piece {
            Piece::Node(block) => {
                extent.blocks += claims.cluster;
                usage.claim(findings, place, block, 1)
            }
            Piece::Data(data) => {
                extent.end = extent.end.max(data.first + data.count);
                extent.data += data.count;
                if data.written {
                    extent.written_end = extent.written_end.max(data.first + data.count);
                }
                let (good, blocks) = claims.data(usage, findings, place, data);
                extent.blocks += blocks;
                good
            }
        });
        extent.sound = walk.sound;
        if file_type != FileType::Regular && extent.end > extent.written_end {
            let (stored, rule) =
                (extent.end, "a file of this type has unwritten blocks at its end");
            self.findings.add(place, Kind::Invalid { stored, rule });
        }
        extent
    }
}

/// The last cluster that was marked as used during the walk of one file. Several blocks of the file may be in the same cluster.
struct Claims {
    cluster: u64,
    /// The number of the last marked cluster within the file, and the number of the same cluster on the volume.
    last: Option<(u64, u64)>,
}

impl Claims {
    /// Marks blocks of content as used. Returns whether no other structure uses the blocks. Also returns the number of blocks in the
    /// clusters that this call has marked.
    fn data(
        &mut self,
        usage: &mut Usage,
        findings: &mut Findings,
        place: Place,
        data: Data,
    ) -> (bool, u64) {
        if self.cluster == 1 {
            return (usage.claim_content(findings, place, data.start, data.count), data.count);
        }
        let ratio = self.cluster;
        let mut good = true;
        if data.start % ratio != data.first % ratio {
            let (stored, rule) = (
                data.start,
                "the block's offset within its cluster differs between the volume and the file",
            );
            findings.add(place, Kind::Invalid { stored, rule });
            good = false;
        }
        let (mut start, end) = (data.start, data.start + data.count);
        let (first, last) = (data.first / ratio, (data.first + data.count - 1) / ratio);
        if self.last == Some((first, usage.cluster(start))) {
            // The cluster was already marked for this file.
            start = (start / ratio + 1) * ratio;
        }
        self.last = Some((last, usage.cluster(end - 1)));
        if start >= end {
            return (good, 0);
        }
        let clusters = usage.cluster(end - 1) - usage.cluster(start) + 1;
        (usage.claim_content(findings, place, start, end - start) && good, clusters * ratio)
    }
}
