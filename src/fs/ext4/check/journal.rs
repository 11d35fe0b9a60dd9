//! Checks the state of the journal, and the orphans.

use zerocopy::FromBytes;

use super::Checker;
use super::found::Found;
use crate::error::Place;
use crate::fs::FileType;
use crate::fs::check::{Kind, Severity};
use crate::fs::ext4::checksum::crc32c_raw;
use crate::fs::ext4::disk::journal::{self, RawJournalSuperblock};
use crate::fs::ext4::disk::orphan::{MAGIC, RawOrphanTail};
use crate::fs::ext4::orphan::MAX_BLOCKS;
use crate::fs::ext4::{Compat, JournalState, Recovery, RoCompat};
use crate::units::{FsBlock, InodeNo};

const PLACE: Place = Place::new("journal");

impl Checker<'_> {
    pub(super) fn check_journal(&mut self) {
        self.check_users();
        self.check_left_journal();
        match &self.fs.journal.state {
            JournalState::None | JournalState::Clean => {}
            JournalState::Recovered(Recovery { transactions, fast_commits, .. }) => {
                let transactions = *transactions;
                self.findings.add(PLACE, Kind::Recovered { transactions });
                if *fast_commits > 0 {
                    let what = "the changes of fast commits after the last full commit";
                    self.findings.add(PLACE, Kind::NotChecked { what });
                }
            }
            JournalState::NotLoaded => {
                let what = "the journal, because it was not loaded";
                self.findings.add(PLACE, Kind::NotChecked { what });
            }
            JournalState::External => {
                let what = "the journal, because it is on another device";
                self.findings.add(PLACE, Kind::NotChecked { what });
            }
            JournalState::Unreadable(error) => {
                let what = Kind::Damaged { what: error.clone() };
                self.findings.add_as(Severity::Repairable, PLACE, what);
            }
        }
    }

    /// Checks that no other volume uses the internal journal.
    fn check_users(&mut self) {
        let Some(number) = self.fs.superblock.journal_inode else { return };
        let number32 = u32::try_from(number.0).ok();
        let number32 = number32.filter(|n| (1..=self.fs.superblock.inodes_count).contains(n));
        let Some(inode) = number32.and_then(|number| self.inode(number)) else { return };
        let Some(content) = self.first_block(&inode) else { return };
        let Ok((raw, _)) = RawJournalSuperblock::ref_from_prefix(&content) else { return };
        let users = raw.s_nr_users.get();
        if raw.s_header.h_magic.get() == journal::MAGIC && users > 1 {
            let place = Place::new("journal superblock").inode(number).field("s_nr_users");
            let (stored, rule) = (u64::from(users), "more than one file system uses the journal");
            self.findings.add(place, Kind::Invalid { stored, rule });
        }
    }

    /// Checks the journal inode of a volume without the feature has_journal. The superblock may still name such an inode after the journal
    /// was removed.
    fn check_left_journal(&mut self) {
        let number = self.superblock.s_journal_inum.get();
        if self.fs.superblock.compat.contains(Compat::HAS_JOURNAL) || number == 0 {
            return;
        }
        let valid = number <= self.fs.superblock.inodes_count;
        let inode = if valid { self.inode(number) } else { None };
        let content = inode.and_then(|inode| self.first_block(&inode));
        let is_journal = content.is_some_and(|content| {
            RawJournalSuperblock::ref_from_prefix(&content)
                .is_ok_and(|(raw, _)| raw.s_header.h_magic.get() == journal::MAGIC)
        });
        let place = Place::new("superblock").field("s_journal_inum");
        if is_journal {
            let what = Kind::Value { stored: number.into(), expected: 0 };
            self.findings.add_as(Severity::Note, place, what);
        } else {
            let rule = "the field names an inode that is not a journal, and has_journal is not set";
            self.findings.add(place, Kind::Invalid { stored: number.into(), rule });
        }
    }

    /// Collects the orphans from the orphan list and the orphan file.
    pub(super) fn find_orphans(&mut self) {
        self.listed_orphans();
        self.filed_orphans();
        if !self.orphans.is_empty() {
            let count = self.orphans.len() as u64;
            self.findings.add(Place::new("orphans"), Kind::Orphans { count });
        }
    }

    pub(super) fn is_orphan(&self, inode: &Found) -> bool {
        u32::try_from(inode.number.0).is_ok_and(|number| self.orphans.contains(&number))
    }

    /// Follows the orphan list, in which `i_dtime` contains the number of the next inode. Each orphan is accepted only once. The walk
    /// therefore ends.
    fn listed_orphans(&mut self) {
        let mut place = Place::new("superblock").field("s_last_orphan");
        let mut next = self.superblock.s_last_orphan.get();
        while next != 0 {
            let sb = &self.fs.superblock;
            let valid = (sb.first_inode..=sb.inodes_count).contains(&next);
            let found = if valid && self.orphans.insert(next) { self.inode(next) } else { None };
            let Some(inode) = found else {
                let (stored, rule) =
                    (u64::from(next), "the inode with this number cannot be an orphan");
                self.findings.add(place, Kind::Invalid { stored, rule });
                return;
            };
            place = Place::new("inode").inode(InodeNo(u64::from(next))).field("i_dtime");
            next = inode.raw().i_dtime.get();
        }
    }

    fn filed_orphans(&mut self) {
        let Some(number) = self.fs.superblock.orphan_file else { return };
        let place = Place::new("orphan file").inode(number);
        let number = u32::try_from(number.0).ok();
        let number = number.filter(|number| *number <= self.fs.superblock.inodes_count);
        let inode = number.and_then(|number| self.inode(number));
        let Some(inode) = inode.filter(|inode| inode.file_type() == Some(FileType::Regular)) else {
            let what = Kind::Damaged {
                what: "the inode of the orphan file is not a regular file in use".to_owned(),
            };
            return self.findings.add_as(Severity::Repairable, place, what);
        };
        let unit = self.fs.superblock.block_size;
        let blocks = inode.size() >> unit.shift();
        if !inode.size().is_multiple_of(unit.bytes() as u64) {
            let (stored, rule) = (inode.size(), "the size is not a multiple of the block size");
            self.findings.add(inode.place("i_size"), Kind::Invalid { stored, rule });
        }
        let attributes = inode.xattr_block(self.fs);
        if blocks > MAX_BLOCKS {
            let (stored, rule) =
                (inode.size(), "the orphan file has more than the 512 blocks that Linux accepts");
            self.findings.add(inode.place("i_size"), Kind::Invalid { stored, rule });
        }
        self.findings.expect(inode.place("i_file_acl"), attributes, 0_u64);
        // The pass over all inodes also walks the map of the orphan file and reports its faults.
        let mut remaining = blocks.min(MAX_BLOCKS);
        let listed = self.orphans.len();
        for data in self.blocks_of(&inode, true) {
            let count = data.count.min(remaining);
            remaining -= count;
            for at in data.start..data.start + count {
                let place = place.block(FsBlock(at));
                match self.reader.block(FsBlock(at), place) {
                    Ok(content) => self.check_orphan_block(&inode, at, &content, place),
                    Err(error) => self.findings.error(place, &error),
                }
            }
        }
        if remaining > 0 && blocks <= MAX_BLOCKS {
            let what =
                Kind::Damaged { what: format!("{remaining} blocks of the orphan file are holes") };
            self.findings.add_as(Severity::Repairable, place, what);
        }
        let sb = &self.fs.superblock;
        if sb.clean
            && sb.ro_compat.contains(RoCompat::ORPHAN_PRESENT)
            && self.orphans.len() == listed
        {
            let place = Place::new("superblock").field("s_feature_ro_compat");
            let (stored, rule) =
                (sb.ro_compat.bits().into(), "orphan_present is set, but there is no orphan");
            self.findings.add(place, Kind::Invalid { stored, rule });
        }
    }

    fn check_orphan_block(&mut self, inode: &Found, at: u64, content: &[u8], place: Place) {
        let Ok((entries, tail)) = RawOrphanTail::ref_from_suffix(content) else { return };
        let magic = tail.ob_magic.get();
        if !self.findings.expect(place.field("ob_magic"), magic, MAGIC) {
            return;
        }
        let computed = inode
            .seed(self.fs)
            .map_or(0, |seed| crc32c_raw(crc32c_raw(seed, &at.to_le_bytes()), entries));
        self.findings.checksum(place.field("ob_checksum"), tail.ob_checksum.get(), computed);
        let (entries, _) = entries.as_chunks::<4>();
        let sb = &self.fs.superblock;
        let present = sb.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
        for number in entries.iter().map(|entry| u32::from_le_bytes(*entry)) {
            if number == 0 {
                continue;
            }
            if present && (sb.first_inode..=sb.inodes_count).contains(&number) {
                self.orphans.insert(number);
            } else {
                let rule = "the inode cannot be an orphan, or orphan_present is not set";
                let stored = u64::from(number);
                self.findings.add(place, Kind::Invalid { stored, rule });
            }
        }
    }
}
