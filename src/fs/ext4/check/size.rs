//! Checks the fields that depend on an inode's map: its size, and its number of blocks.

use super::Checker;
use super::found::Found;
use super::inodes::Extent;
use super::map::{DIRECT, Piece, Walk};
use super::reader::Bytes;
use super::xattrs::Charged;
use crate::fs::check::{Findings, Kind, Severity};
use crate::fs::ext4::symlink::SHORT_LINK;
use crate::fs::ext4::{Inode, RoCompat};
use crate::fs::{FileType, InodeFlags};
use crate::units::FsBlock;

impl Checker<'_> {
    pub(super) fn check_size(
        &mut self,
        inode: &Found,
        file_type: FileType,
        has_map: bool,
        extent: &Extent,
    ) {
        let (size, unit) = (inode.size(), self.fs.superblock.block_size.bytes() as u64);
        let place = inode.place("i_size");
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            self.check_inline_size(inode, file_type);
            if file_type != FileType::Regular {
                return;
            }
        }
        match file_type {
            FileType::Directory => {
                if size != extent.end * unit && extent.sound {
                    let (stored, expected) = (size, extent.end * unit);
                    self.findings.add(place, Kind::Value { stored, expected });
                }
            }
            FileType::Regular => {
                // A file with fs-verity stores the data of fs-verity past its size.
                let verity = inode.flags().contains(InodeFlags::VERITY);
                // An orphan that has a name is a file whose truncation was interrupted. Such a file may have blocks past its size. The next
                // mount frees these blocks.
                let truncated = self.is_orphan(inode);
                if size < extent.written_end.saturating_sub(1) * unit && !verity && !truncated {
                    let (stored, expected) = (size, extent.written_end * unit);
                    self.findings.add(place, Kind::Value { stored, expected });
                } else if self.fs.superblock.journal_inode == Some(inode.number) {
                    // A journal has no holes. A journal that an old mke2fs created may have a block past its end.
                    if size > extent.end * unit {
                        self.findings.expect(place, size, extent.end * unit);
                    } else if extent.sound && extent.data < size / unit {
                        let holes = size / unit - extent.data;
                        let what = format!("{holes} blocks of the journal are holes");
                        self.findings.add(place, Kind::Damaged { what });
                    }
                } else if size > self.largest(inode) {
                    let rule = "the size is larger than the maximum size of a file";
                    self.findings.add(place, Kind::Invalid { stored: size, rule });
                }
                let large = self.fs.superblock.ro_compat.contains(RoCompat::LARGE_FILE);
                if size > i32::MAX as u64 && !large {
                    let rule = "the size is larger than 2 GiB, but large_file is not set";
                    self.findings.add(place, Kind::Invalid { stored: size, rule });
                }
            }
            FileType::Symlink => self.check_link(inode, has_map, extent),
            _ => {
                self.findings.expect(place, size, 0_u64);
            }
        }
    }

    /// Checks the size of an inode with inline data. Also checks that the inode has the attribute `system.data`, which contains the content
    /// past `i_block`.
    fn check_inline_size(&mut self, inode: &Found, file_type: FileType) {
        let place = inode.place("i_size");
        let front = inode.raw().i_block.len() as u64;
        let attribute = |inode: Inode| Ok(inode.inline_attribute()?.map(<[u8]>::len));
        let rest = match self.fs.inode(inode.number).and_then(attribute) {
            Ok(Some(rest)) => rest as u64,
            Ok(None) => {
                let what = "the inode has inline data, but no attribute system.data".to_owned();
                return self.findings.add(place, Kind::Damaged { what });
            }
            // If the attributes or the inode cannot be read, other checks report the error.
            Err(_) => return,
        };
        let (stored, expected) = (inode.size(), front + rest);
        if file_type != FileType::Regular {
            self.findings.expect(place, stored, expected);
        } else if stored > expected {
            // If a file consists only of a hole, mke2fs creates inline data that is shorter than the file's size. Linux returns zeros for
            // the missing content.
            let what =
                Kind::Invalid { stored, rule: "the size is larger than the content in the inode" };
            self.findings.add_as(Severity::Note, place, what);
        }
    }

    /// The maximum size of a file with this kind of map.
    fn largest(&self, inode: &Found) -> u64 {
        let size = self.fs.superblock.block_size;
        let fan_out = size.bytes() as u64 / 4;
        let blocks = if inode.flags().contains(InodeFlags::EXTENTS) {
            1 << 32
        } else {
            DIRECT + fan_out + fan_out.pow(2) + fan_out.pow(3)
        };
        (blocks << size.shift()).min(i64::MAX as u64)
    }

    /// Checks that the target of a symbolic link has the length `i_size`, and that a NUL follows the target.
    fn check_link(&mut self, inode: &Found, has_map: bool, extent: &Extent) {
        let (size, place) = (inode.size(), inode.place("i_size"));
        let unit = self.fs.superblock.block_size.bytes() as u64;
        let encrypted = inode.flags().contains(InodeFlags::ENCRYPT);
        if has_map && size < SHORT_LINK {
            let rule = "the short target of the symbolic link is in a block: Linux reads the target, but e2fsck expects it in the inode";
            return self.findings.add(place, Kind::Invalid { stored: size, rule });
        }
        if size == 0 || size >= unit || (has_map && extent.end != 1) {
            let rule = "the size is not a valid length of the target of a symbolic link";
            return self.findings.add(place, Kind::Invalid { stored: size, rule });
        }
        let size = size as usize;
        if encrypted || !extent.sound && has_map {
            return;
        }
        let length = |bytes: &[u8]| bytes.iter().position(|byte| *byte == 0);
        let length = if has_map {
            match self.first_block(inode) {
                Some(content) => length(&content),
                None => return,
            }
        } else {
            length(&inode.raw().i_block)
        };
        if length != Some(size) {
            let stored = size as u64;
            let expected = length.map_or(unit, |length| length as u64);
            self.findings.add(place, Kind::Value { stored, expected });
        }
    }

    /// The first block of a file's content.
    pub(super) fn first_block(&mut self, inode: &Found) -> Option<Bytes> {
        let mut start = None;
        let (fs, mut quiet) = (self.fs, Findings::default());
        let (reader, findings) = (&mut self.reader, &mut quiet);
        Walk { fs, reader, findings, inode, sound: true }.run(&mut |_, piece| {
            if let Piece::Data(data) = piece
                && data.first == 0
            {
                start = Some(data.start);
            }
            true
        });
        self.reader.block(FsBlock(start?), inode.place("i_block")).ok()
    }

    /// Checks `i_blocks`. This field counts the blocks of content, of the map and of attributes, and the charge for large values.
    pub(super) fn check_space(
        &mut self,
        inode: &Found,
        has_map: bool,
        extent: &Extent,
        attributes: Charged,
    ) {
        let (raw, sb) = (inode.raw(), &self.fs.superblock);
        let mut stored = u64::from(raw.i_blocks_lo.get());
        if sb.ro_compat.contains(RoCompat::HUGE_FILE) {
            stored |= u64::from(raw.i_blocks_high.get()) << 32;
        }
        let huge = inode.flags().contains(InodeFlags::HUGE_FILE)
            && sb.ro_compat.contains(RoCompat::HUGE_FILE);
        let unit = if huge { 1 } else { sb.block_size.bytes() as u64 / 512 };
        let blocks = extent.blocks + attributes.blocks;
        // For a symbolic link with inline data, `i_blocks` has no meaning.
        let link = inode.file_type() == Some(FileType::Symlink)
            && inode.flags().contains(InodeFlags::INLINE_DATA);
        if (extent.sound || !has_map) && !link {
            self.findings.expect(inode.place("i_blocks"), stored, blocks * unit);
        }
        self.account(inode, blocks, 1 + attributes.inodes);
    }
}
