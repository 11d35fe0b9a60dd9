//! Checks the superblock fields that are not checked when the volume is opened, and the backups.

use zerocopy::FromBytes;

use super::Checker;
use super::reader::Reader;
use crate::error::{Place, Result};
use crate::fs::check::{FindingSite, Kind, Severity};
use crate::fs::ext4::checksum::crc32c_raw;
use crate::fs::ext4::disk::reserved;
use crate::fs::ext4::disk::superblock::{MAGIC, OFFSET, REV_DYNAMIC, RawSuperblock};
use crate::fs::ext4::superblock::features;
use crate::fs::ext4::{Compat, Ext4, Features, RoCompat, mmp};
use crate::units::{FsBlock, InodeNo};

const PLACE: Place = Place::new("superblock");
const CHECKSUM_OFFSET: usize = std::mem::offset_of!(RawSuperblock, s_checksum);
const PROJECT_QUOTA: &str = "s_prj_quota_inum";
/// The maximum number of backups that are checked. With sparse_super, volumes rarely have more.
const BACKUPS: usize = 32;

/// Reads the superblock's raw fields.
pub(super) fn read(fs: &Ext4, reader: &mut Reader<'_>) -> Result<RawSuperblock> {
    let size = fs.superblock.block_size;
    let block = FsBlock(OFFSET >> size.shift());
    let content = reader.block(block, PLACE)?;
    let at = OFFSET as usize % size.bytes();
    RawSuperblock::read_from_prefix(&content[at..])
        .map(|(raw, _)| raw)
        .map_err(|_| PLACE.block(block).corrupt("the superblock is truncated"))
}

impl Checker<'_> {
    pub(super) fn check_superblock(&mut self) {
        let (sb, raw) = (&self.fs.superblock, &self.superblock);
        let findings = &mut self.findings;
        findings.check_end(&**self.fs.blocks.device(), sb.blocks_count << sb.block_size.shift());
        if sb.errors.count > 0 {
            let count = sb.errors.count;
            findings.add(PLACE.field("s_error_count"), Kind::RecordedErrors { count });
        }
        sb.find_broken_rules(raw, findings);
        if sb.ro_compat.contains(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM) {
            let (stored, rule) = (sb.ro_compat.bits().into(), "uninit_bg beside metadata_csum");
            let what = Kind::Invalid { stored, rule };
            findings.add_as(Severity::Note, PLACE.field("s_feature_ro_compat"), what);
        }
        let journal = sb.compat.contains(Compat::HAS_JOURNAL);
        if (!journal || raw.s_journal_inum.get() != 0) && raw.s_journal_uuid != [0; 16] {
            let why =
                if journal { "s_journal_inum names an inode" } else { "has_journal is not set" };
            let what = format!("the field names a journal on another device, but {why}");
            let place = PLACE.field("s_journal_uuid");
            findings.add_as(Severity::Repairable, place, Kind::Damaged { what });
        }
        if sb.revision < REV_DYNAMIC && features(raw) != Features::NONE {
            let (stored, rule) =
                (u64::from(sb.revision), "features are set, but they need revision 1");
            let what = Kind::Invalid { stored, rule };
            findings.add_as(Severity::Note, PLACE.field("s_rev_level"), what);
        }
        if let Some(block) = sb.mmp_block
            && let Err(error) = mmp::read(&**self.fs.blocks.device(), sb, block)
        {
            let place = Place::new("MMP block").block(block);
            let what = error.to_string();
            findings.add_as(Severity::Repairable, place, Kind::Damaged { what });
        }
        self.check_backups();
    }

    /// Checks the inodes that the superblock names. Such an inode may be used only if its feature is set. The quota files of users and
    /// groups must have their fixed inode numbers. The caller must have completed the pass over all inodes.
    pub(super) fn check_named_inodes(&mut self) {
        let (sb, raw) = (&self.fs.superblock, &self.superblock);
        let quota = sb.ro_compat.contains(RoCompat::QUOTA);
        let orphans = sb.compat.contains(Compat::ORPHAN_FILE);
        let named = [
            ("s_usr_quota_inum", raw.s_usr_quota_inum.get(), quota, Some(reserved::USER_QUOTA)),
            ("s_grp_quota_inum", raw.s_grp_quota_inum.get(), quota, Some(reserved::GROUP_QUOTA)),
            (PROJECT_QUOTA, raw.s_prj_quota_inum.get(), quota, None),
            ("s_orphan_file_inum", raw.s_orphan_file_inum.get(), orphans, None),
        ];
        let used = |number: u32| {
            let is_journal = sb.journal_inode == Some(InodeNo(number.into()));
            (1..=sb.inodes_count).contains(&number)
                && self.inodes.get(number).is_some()
                && !is_journal
        };
        // e2fsck treats an inode that the superblock names as existing if its part of the inode table is initialised.
        let unused = |number: u32| {
            let index = number.wrapping_sub(1);
            let group = self.groups.get((index / sb.inodes_per_group) as usize);
            let looked_at = group.map_or(0, |group| group.initialised_inodes(sb.inodes_per_group));
            number >= sb.first_inode
                && index % sb.inodes_per_group < looked_at
                && self.inodes.get(number).is_none()
        };
        for (field, number, has_feature, own) in named {
            let rule = if !has_feature && used(number) {
                "the field names an inode in use, but its feature is not set"
            } else if !has_feature && field == PROJECT_QUOTA && unused(number) {
                "the field names an inode that is not in use, and its feature is not set"
            } else if own.is_some_and(|own| own != number && used(own)) {
                "the field does not name the inode of the quota file"
            } else {
                continue;
            };
            let what = Kind::Invalid { stored: number.into(), rule };
            self.findings.add(PLACE.field(field), what);
        }
    }

    /// Checks the backups of the superblock. Only the fields that never change are compared: Linux does not update the backups at each
    /// change.
    fn check_backups(&mut self) {
        let sb = &self.fs.superblock;
        let groups = (1..sb.groups).filter(|group| sb.group_has_backup(*group));
        for group in groups.take(BACKUPS) {
            let block = sb.group_start(group);
            let site = FindingSite::of_group(group, Place::new("backup superblock").block(block));
            let content = match self.reader.block(block, site.place) {
                Ok(content) => content,
                Err(error) => {
                    self.findings.error(site, &error);
                    continue;
                }
            };
            let raw = RawSuperblock::ref_from_prefix(&content);
            if !raw.is_ok_and(|(raw, _)| self.is_backup(raw, &content, group)) {
                self.findings.add(site, Kind::Backup);
            }
        }
    }

    fn is_backup(&self, raw: &RawSuperblock, bytes: &[u8], group: u32) -> bool {
        let first = &self.superblock;
        let summed = self.fs.superblock.seed.is_none()
            || raw.s_checksum.get() == crc32c_raw(!0, &bytes[..CHECKSUM_OFFSET]);
        let same = |field: fn(&RawSuperblock) -> u32| field(raw) == field(first);
        raw.s_magic.get() == MAGIC
            && summed
            && u32::from(raw.s_block_group_nr.get()) == group & 0xFFFF
            && raw.s_uuid == first.s_uuid
            && same(|raw| raw.s_blocks_count_lo.get())
            && same(|raw| raw.s_blocks_count_hi.get())
            && same(|raw| raw.s_log_block_size.get())
            && same(|raw| raw.s_blocks_per_group.get())
            && same(|raw| raw.s_inodes_per_group.get())
            && same(|raw| raw.s_first_data_block.get())
    }
}
