//! Compares the recorded usage of users, groups and projects with the inodes that were found.

use std::collections::BTreeMap;

use zerocopy::FromBytes;

use super::super::Superblock;
use super::super::disk::quota::{BIGTIME, CRC, MAGIC, RawQuota, flags};
use super::super::disk::superblock::version;
use super::super::overlay::Replayed;
use super::Checker;
use super::found::Found;
use super::map::Which;
use crate::error::Place;
use crate::fs::check::{Findings, Kind};
use crate::units::{FsBlock, InodeNo};

/// Usage by id.
type Usage = BTreeMap<u32, Used>;

#[derive(Clone, Copy, Default)]
struct Used {
    blocks: u64,
    realtime: u64,
    inodes: u64,
}

/// The usage that was found, for users, groups and projects in this order.
#[derive(Default)]
pub(super) struct Accounts([Usage; 3]);

impl Accounts {
    /// Adds an inode to the usage of its user, group and project. Linux counts all inodes except quota files. The realtime bitmap and the
    /// realtime summary count as files of root. `realtime` is the number of realtime blocks of the inode.
    pub(super) fn add(&mut self, superblock: &Superblock, found: &Found, realtime: u64) {
        if found.is_metadata() || superblock.quota.contains(&found.number) {
            return;
        }
        let (raw, project) = (&found.raw, found.project());
        let project = if superblock.projid32 { project } else { project & 0xFFFF };
        for (usage, id) in self.0.iter_mut().zip([raw.di_uid.get(), raw.di_gid.get(), project]) {
            let used: &mut Used = usage.entry(id).or_default();
            let blocks = raw.di_nblocks.get().saturating_sub(realtime);
            used.blocks = used.blocks.saturating_add(blocks);
            used.realtime = used.realtime.saturating_add(realtime);
            used.inodes += 1;
        }
    }
}

/// A quota file. `code` is the type code of its entries. `counted` states whether the superblock marks the recorded usage as correct.
struct File {
    number: u64,
    code: u8,
    counted: bool,
    name: &'static str,
}

impl Checker<'_> {
    pub(super) fn check_quota(&mut self) {
        let raw = &self.superblock;
        let bits = raw.sb_qflags.get();
        let has = |bit: u16| bits & bit != 0;
        let [user, group, project] = match self.fs.superblock.metadata_root {
            None => [raw.sb_uquotino.get(), raw.sb_gquotino.get(), raw.sb_pquotino.get()],
            Some(_) => self.tree.quota.map(|number| number.map_or(0, |number| number.0)),
        };
        let is_v5 = self.fs.superblock.is_v5();
        let has_quota = raw.sb_versionnum.get() & version::QUOTA != 0;
        // In version 4, groups and projects use the same quota file, so a volume has quota for only one of them.
        let of_project = if is_v5 { project } else { group };
        let files = [
            File {
                number: user,
                code: 1,
                counted: has(flags::USERS_CHECKED),
                name: "quota of users",
            },
            File {
                number: group,
                code: 4,
                counted: has(flags::GROUPS_CHECKED),
                name: "quota of groups",
            },
            File {
                number: of_project,
                code: 2,
                counted: has(flags::PROJECTS_CHECKED),
                name: "quota of projects",
            },
        ];
        let has_tree = self.fs.superblock.metadata_root.is_some();
        if has_quota && !has_tree && files.iter().all(|file| matches!(file.number, 0 | u64::MAX)) {
            let place = Place::new("superblock").field("sb_versionnum");
            self.findings.wrong(place, "the quota bit is set, but there is no quota file");
        }
        let accounts = std::mem::take(&mut self.accounts);
        for (file, usage) in files.into_iter().zip(accounts.0) {
            let exists = !matches!(file.number, 0 | u64::MAX);
            if exists && has_quota && (is_v5 || file.counted || file.code == 1) {
                self.check_quota_file(&file, usage);
            }
        }
    }

    fn check_quota_file(&mut self, file: &File, mut usage: Usage) {
        let number = InodeNo(file.number);
        let place = Place::new(file.name).inode(number);
        let Some(found) = self.again(number) else {
            let what = "the inode of the quota file does not exist".into();
            return self.findings.add(place, Kind::Damaged { what });
        };
        // A quota file has the size 0. Its entries are stored past the end of the file.
        self.findings.expect(found.place("di_size"), found.size(), 0_u64);
        let map = self.fs.check_map(&mut Findings::default(), &found, Which::Data);
        let per_block = self.fs.superblock.geometry.block.bytes() / size_of::<RawQuota>();
        // Changes of usage in the log are not applied, because a mount after a crash counts usage again.
        let compares = file.counted && !self.fs.log().recovered && map.whole;
        if file.counted && !compares {
            let what = "the usage, because the next mount counts it again after a crash";
            self.findings.add(place, Kind::NotChecked { what });
        }
        for piece in &map.pieces {
            for at in 0..u64::from(piece.len) {
                let first = (piece.first + at).saturating_mul(per_block as u64);
                let block = FsBlock(piece.start.0 + at);
                self.check_quota_block(file, (block, first), place, &mut usage, compares);
            }
        }
        if !compares {
            return;
        }
        for (id, used) in usage {
            self.compare_usage(place, id, Used::default(), used);
        }
    }

    fn check_quota_block(
        &mut self,
        file: &File,
        (block, first): (FsBlock, u64),
        place: Place,
        usage: &mut Usage,
        compares: bool,
    ) {
        let place = place.block(block);
        let Some(content) = self.read(place, &[block]) else { return };
        let is_v5 = self.fs.superblock.is_v5();
        for (index, bytes) in content.chunks_exact(size_of::<RawQuota>()).enumerate() {
            let Ok(raw) = RawQuota::ref_from_bytes(bytes) else { continue };
            let id = first + index as u64;
            if raw.d_magic.get() != MAGIC || raw.d_version != 1 {
                let what = format!("the entry of id {id} is not valid");
                self.findings.add(place.field("d_magic"), Kind::Damaged { what });
                continue;
            }
            self.findings.expect(place.field("d_type"), raw.d_type & !BIGTIME, file.code);
            self.findings.expect(place.field("d_id"), raw.d_id.get(), id);
            if is_v5 {
                if self.fs.metadata.replayed(&[block]) == Replayed::No {
                    self.fs.check_sum(&mut self.findings, bytes, CRC, place.field("dd_crc"));
                }
                self.fs.check_uuid(&mut self.findings, raw.dd_uuid, place);
                self.fs.check_age(&mut self.findings, raw.dd_lsn.get(), place);
            }
            let Ok(id) = u32::try_from(id) else { continue };
            let used = usage.remove(&id).unwrap_or_default();
            let stored = Used {
                blocks: raw.d_bcount.get(),
                realtime: raw.d_rtbcount.get(),
                inodes: raw.d_icount.get(),
            };
            if compares {
                self.compare_usage(place, id, stored, used);
            }
        }
    }

    fn compare_usage(&mut self, place: Place, id: u32, stored: Used, used: Used) {
        if (stored.blocks, stored.inodes) != (used.blocks, used.inodes) {
            let shift = self.fs.superblock.geometry.block.shift();
            let bytes = [stored, used].map(|used| used.blocks.saturating_mul(1 << shift));
            let (bytes, inodes) = (bytes.into(), (stored.inodes, used.inodes));
            self.findings.add(place, Kind::Usage { id, bytes, inodes });
        }
        self.findings.expect(place.field("d_rtbcount"), stored.realtime, used.realtime);
    }
}
