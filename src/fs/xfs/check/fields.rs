//! Checks the fields of an inode, except the content of its forks.

use super::super::disk::inode::{flags, flags2, format};
use super::super::disk::tree::NONE;
use super::super::features::{Incompat, RoCompat};
use super::Checker;
use super::found::{EXTENT, Found};
use crate::fs::FileType;
use crate::fs::check::Kind;

const NANOSECONDS: u32 = 1_000_000_000;
/// The maximum length of an extent, in blocks.
const LONGEST_EXTENT: u32 = (1 << 21) - 1;
/// The maximum number of links of a file.
const MOST_LINKS: u32 = i32::MAX as u32;
/// The maximum length of a symbolic link's target.
const LONGEST_TARGET: u64 = 1024;

impl Checker<'_> {
    /// Reports wrong fields of an inode in use. Returns whether the inode's forks can be read.
    pub(super) fn check_core(&mut self, found: &Found) -> bool {
        let Some(file_type) = found.file_type() else {
            let (stored, rule) = (found.mode().into(), "the mode contains no valid file type");
            self.findings.add(found.place("di_mode"), Kind::Invalid { stored, rule });
            return false;
        };
        if found.links() > MOST_LINKS {
            let (stored, rule) = (found.links().into(), "the link count is too large");
            self.findings.add(found.place("di_nlink"), Kind::Invalid { stored, rule });
        }
        self.check_size(found, file_type);
        self.check_flags(found, file_type);
        self.check_hints(found, file_type);
        self.check_times(found);
        // `di_onlink` has three meanings. In an inode of version 1, it is the link count. In a metadata file, it is the kind of the file.
        // In all other inodes, it is 0.
        if found.is_metadata() {
            self.check_metadata_core(found, file_type);
        } else if found.raw.di_version > 1 {
            self.findings.expect(found.place("di_onlink"), found.raw.di_onlink.get(), 0_u32);
        }
        self.check_formats(found, file_type)
    }

    /// Checks fields that must be valid in every inode, whether free or in use.
    pub(super) fn check_any(&mut self, found: &Found) {
        if found.size() > i64::MAX as u64 {
            let (stored, rule) = (found.size(), "the size is negative");
            self.findings.add(found.place("di_size"), Kind::Invalid { stored, rule });
        }
        let next = found.raw.di_next_unlinked.get();
        let geometry = &self.fs.superblock.geometry;
        let group = (found.block.0 / u64::from(geometry.group_blocks)) as u32;
        let inside = u64::from(next) >> geometry.inodes_per_block_log < geometry.group_len(group);
        if next != NONE && !inside {
            let (stored, rule) = (next.into(), "the inode is outside the group");
            self.findings.add(found.place("di_next_unlinked"), Kind::Invalid { stored, rule });
        }
        self.check_counts(found);
        self.check_lengths(found);
    }

    /// Checks a free inode. Some fields retain their values from the inode's last use.
    pub(super) fn check_free(&mut self, found: &Found) {
        let raw = &found.raw;
        let (room, offset) = (found.literal().len(), usize::from(raw.di_forkoff) * 8);
        let is_device = raw.di_format == format::DEVICE;
        if offset >= room || is_device && !matches!(offset, 0 | 8) {
            let (stored, rule) = (raw.di_forkoff.into(), "the offset leaves no space for a fork");
            self.findings.add(found.place("di_forkoff"), Kind::Invalid { stored, rule });
        }
        self.findings.expect(found.place("di_flags"), raw.di_flags.get(), 0_u32);
        if found.flags2() & !flags2::ALL != 0 {
            let (stored, rule) = (found.flags2(), "the field has unknown flags");
            self.findings.add(found.place("di_flags2"), Kind::Invalid { stored, rule });
        }
        self.findings.expect(found.place("di_nblocks"), raw.di_nblocks.get(), 0_u64);
        if found.attributes().is_none() {
            self.check_no_fork(found);
        }
        let (data, attributes) = found.extents();
        if data.saturating_add(attributes) > raw.di_nblocks.get() {
            let (stored, rule) =
                (data.saturating_add(attributes), "the inode has more extents than blocks");
            self.findings.add(found.place("di_nextents"), Kind::Invalid { stored, rule });
        }
    }

    fn check_size(&mut self, found: &Found, file_type: FileType) {
        let size = found.size();
        let place = found.place("di_size");
        let mut invalid = |rule| {
            self.findings.add(place, Kind::Invalid { stored: size, rule });
        };
        match file_type {
            FileType::Directory | FileType::Symlink if size == 0 && found.links() > 0 => {
                invalid("a directory or symbolic link must not be empty");
            }
            FileType::Symlink if size > LONGEST_TARGET => {
                invalid("the target of the symbolic link has more than 1024 bytes");
            }
            FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket
                if size != 0 =>
            {
                invalid("a special file must have no content");
            }
            _ => {}
        }
    }

    fn check_flags(&mut self, found: &Found, file_type: FileType) {
        let (bits, more) = (found.raw.di_flags.get(), found.flags2());
        let sb = &self.fs.superblock;
        let of_files = flags::REALTIME | flags::EXTENT_SIZE;
        let of_directories = flags::REALTIME_INHERIT
            | flags::PROJECT_INHERIT
            | flags::NO_SYMLINKS
            | flags::EXTENT_SIZE_INHERIT;
        let mut wrong = flags::UNUSED;
        if file_type != FileType::Regular {
            wrong |= of_files;
        }
        if file_type != FileType::Directory {
            wrong |= of_directories;
        }
        if sb.realtime_blocks == 0 || found.is_metadata() {
            wrong |= flags::REALTIME;
        }
        if !sb.internal.contains(&found.number) {
            wrong |= flags::NEW_BITMAP;
        }
        if bits & wrong != 0 {
            let (stored, rule) = (bits.into(), "flags are set that are not valid for this inode");
            self.findings.add(found.place("di_flags"), Kind::Invalid { stored, rule });
        }
        let mut allowed = flags2::DAX;
        if sb.ro_compat.contains(RoCompat::REFLINK) {
            let can_share = bits & flags::REALTIME == 0 || sb.metadata_root.is_some();
            if file_type == FileType::Regular && can_share {
                allowed |= flags2::REFLINK;
            }
            if matches!(file_type, FileType::Regular | FileType::Directory) {
                allowed |= flags2::COPY_SIZE;
            }
        }
        let of_features = [
            (Incompat::BIGTIME, flags2::BIGTIME),
            (Incompat::NREXT64, flags2::NREXT64),
            (Incompat::METADIR, flags2::METADATA),
        ];
        for (feature, flag) in of_features {
            if sb.incompat.contains(feature) {
                allowed |= flag;
            }
        }
        if !matches!(file_type, FileType::Regular | FileType::Directory) {
            allowed &= !flags2::DAX;
        }
        if more & !allowed != 0 {
            let (stored, rule) = (more, "flags are set that are not valid for this inode");
            self.findings.add(found.place("di_flags2"), Kind::Invalid { stored, rule });
        }
    }

    /// Checks the extent-size hints.
    fn check_hints(&mut self, found: &Found, file_type: FileType) {
        let bits = found.raw.di_flags.get();
        let hint = found.raw.di_extsize.get();
        let has_hint = match file_type {
            FileType::Regular => bits & flags::EXTENT_SIZE != 0,
            FileType::Directory => bits & flags::EXTENT_SIZE_INHERIT != 0,
            _ => false,
        };
        if has_hint != (hint != 0) {
            let (stored, rule) = (hint.into(), "the size hint contradicts the flags");
            self.findings.add(found.place("di_extsize"), Kind::Invalid { stored, rule });
        }
        let is_realtime = bits & (flags::REALTIME | flags::REALTIME_INHERIT) != 0;
        let unit = self.superblock.sb_rextsize.get().max(1);
        if has_hint && is_realtime && !hint.is_multiple_of(unit) {
            let (stored, rule) =
                (hint.into(), "the size hint is not a multiple of a realtime extent");
            self.findings.add(found.place("di_extsize"), Kind::Invalid { stored, rule });
        }
        let Some(v3) = &found.v3 else { return };
        let hint = v3.di_cowextsize.get();
        if found.counts_blocks(&self.fs.superblock) {
            return;
        }
        let has_hint = v3.di_flags2.get() & flags2::COPY_SIZE != 0;
        if has_hint != (hint != 0) {
            let (stored, rule) = (hint.into(), "the size hint contradicts the flags");
            self.findings.add(found.place("di_cowextsize"), Kind::Invalid { stored, rule });
        }
    }

    /// Checks that the extent-size hints do not exceed the longest possible extent.
    fn check_lengths(&mut self, found: &Found) {
        let most = LONGEST_EXTENT.min(self.fs.superblock.geometry.group_blocks / 2);
        let has_hint = |_: &_| !found.counts_blocks(&self.fs.superblock);
        let copies = found.v3.as_ref().filter(has_hint).map_or(0, |v3| v3.di_cowextsize.get());
        let hints = [("di_extsize", found.raw.di_extsize.get()), ("di_cowextsize", copies)];
        for (name, hint) in hints.into_iter().filter(|(_, hint)| *hint > most) {
            let (stored, rule) = (hint.into(), "the size hint exceeds the longest extent");
            self.findings.add(found.place(name), Kind::Invalid { stored, rule });
        }
    }

    fn check_times(&mut self, found: &Found) {
        if found.flags2() & flags2::BIGTIME != 0 {
            return;
        }
        let raw = &found.raw;
        let created = found.v3.as_ref().map_or(0, |v3| v3.di_crtime.get());
        let times = [
            ("di_atime", raw.di_atime.get()),
            ("di_mtime", raw.di_mtime.get()),
            ("di_ctime", raw.di_ctime.get()),
            ("di_crtime", created),
        ];
        for (name, time) in times {
            if time as u32 >= NANOSECONDS {
                let (stored, rule) = (u64::from(time as u32), "the nanoseconds exceed 999,999,999");
                self.findings.add(found.place(name), Kind::Invalid { stored, rule });
            }
        }
    }

    /// Checks that the unused bytes of the extent counters are zero. Their position depends on the format of the counters.
    fn check_counts(&mut self, found: &Found) {
        let raw = &found.raw;
        if found.flags2() & flags2::NREXT64 != 0 {
            self.findings.expect(found.place("di_nrext64_pad"), raw.di_anextents.get(), 0_u32);
        } else if found.v3.is_some() {
            self.findings.expect(found.place("di_v3_pad"), raw.di_big_nextents.get(), 0_u32);
        }
    }

    /// Checks the formats of the forks. Returns whether the forks can be read.
    fn check_formats(&mut self, found: &Found, file_type: FileType) -> bool {
        let (raw, findings) = (&found.raw, &mut self.findings);
        let (room, offset) = (found.literal().len(), usize::from(raw.di_forkoff) * 8);
        let is_device = raw.di_format == format::DEVICE;
        if offset >= room || is_device && !matches!(offset, 0 | 8) {
            let (stored, rule) = (raw.di_forkoff.into(), "the offset leaves no space for a fork");
            findings.add(found.place("di_forkoff"), Kind::Invalid { stored, rule });
            return false;
        }
        let (data, attributes) = found.extents();
        let fits = match (raw.di_format, file_type) {
            (kind, FileType::Regular) if found.space_tree().is_some() => {
                kind == format::META_BTREE && data == 0
            }
            (
                format::DEVICE,
                FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket,
            ) => data == 0,
            (format::LOCAL, FileType::Directory | FileType::Symlink) => {
                data == 0 && found.size() <= found.data().len() as u64
            }
            (format::EXTENTS, FileType::Regular | FileType::Directory | FileType::Symlink) => {
                data <= (found.data().len() / EXTENT) as u64
            }
            (format::BTREE, FileType::Regular | FileType::Directory) => {
                data > (found.data().len() / EXTENT) as u64
            }
            _ => false,
        };
        let mut good = fits;
        if !fits {
            let what = format!(
                "format {} is not valid with {data} extents and a size of {} bytes",
                raw.di_format,
                found.size()
            );
            findings.add(found.place("di_format"), Kind::Damaged { what });
        }
        match found.attributes() {
            None => {
                findings.expect(found.place("di_anextents"), attributes, 0_u32);
                self.check_no_fork(found);
            }
            Some(fork) => {
                let most = (fork.len() / EXTENT) as u64;
                let fits = match raw.di_aformat {
                    format::LOCAL => attributes == 0,
                    format::EXTENTS => attributes <= most,
                    format::BTREE => attributes > most,
                    _ => false,
                };
                if !fits {
                    let what =
                        format!("format {} is not valid with {attributes} extents", raw.di_aformat);
                    findings.add(found.place("di_aformat"), Kind::Damaged { what });
                    good = false;
                }
            }
        }
        good
    }

    /// Checks the format field of the attribute fork in an inode without an attribute fork.
    fn check_no_fork(&mut self, found: &Found) {
        let stored = found.raw.di_aformat;
        // In the inodes of a new chunk, the recorded format is 0.
        if !matches!(stored, 0 | format::EXTENTS) {
            let (stored, rule) = (
                stored.into(),
                "the inode has no attribute fork, but the field does not have the value of an empty fork",
            );
            self.findings.add(found.place("di_aformat"), Kind::Invalid { stored, rule });
        }
    }
}
