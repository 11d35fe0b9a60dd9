//! The superblock beyond what opening the volume needs, and its backups.

use zerocopy::FromBytes;

use super::Checker;
use super::reader::Reader;
use crate::error::{Place, Result};
use crate::fs::check::{FindingSite, Kind, Severity};
use crate::fs::ext4::checksum::crc32c_raw;
use crate::fs::ext4::disk::superblock::{MAGIC, OFFSET, REV_DYNAMIC, RawSuperblock};
use crate::fs::ext4::superblock::features;
use crate::fs::ext4::{Compat, Ext4, Features, Incompat, mmp};
use crate::units::FsBlock;

const PLACE: Place = Place::new("superblock");
const CHECKSUM_OFFSET: usize = std::mem::offset_of!(RawSuperblock, s_checksum);
/// Backups that are looked at: with sparse_super there are hardly more.
const BACKUPS: usize = 32;

/// The superblock's fields as they are.
pub(super) fn read(fs: &Ext4, reader: &mut Reader<'_>) -> Result<RawSuperblock> {
    let size = fs.superblock.block_size;
    let block = FsBlock(OFFSET >> size.shift());
    let content = reader.block(block, PLACE)?;
    let at = OFFSET as usize % size.bytes();
    RawSuperblock::read_from_prefix(&content[at..])
        .map(|(raw, _)| raw)
        .map_err(|_| PLACE.block(block).corrupt("it is cut short"))
}

impl Checker<'_> {
    pub(super) fn check_superblock(&mut self) {
        let (sb, raw) = (&self.fs.superblock, &self.superblock);
        let findings = &mut self.findings;
        if sb.errors.count > 0 {
            let count = sb.errors.count;
            findings.add(PLACE.field("s_error_count"), Kind::RecordedErrors { count });
        }
        if sb.reserved_blocks > sb.blocks_count / 2 {
            let (stored, rule) = (sb.reserved_blocks, "more than half of the volume is reserved");
            findings.add(PLACE.field("s_r_blocks_count"), Kind::Invalid { stored, rule });
        }
        let reserved = raw.s_reserved_gdt_blocks.get();
        if usize::from(reserved) > sb.block_size.bytes() / 4 {
            let (stored, rule) = (u64::from(reserved), "more than a block of pointers can name");
            findings.add(PLACE.field("s_reserved_gdt_blocks"), Kind::Invalid { stored, rule });
        }
        let log = u32::from(sb.block_size.shift()) - 10 + sb.cluster_blocks.trailing_zeros();
        findings.expect(PLACE.field("s_log_cluster_size"), raw.s_log_cluster_size.get(), log);
        let clusters = sb.blocks_per_group / sb.cluster_blocks;
        let stored = raw.s_clusters_per_group.get();
        findings.expect(PLACE.field("s_clusters_per_group"), stored, clusters);
        if sb.incompat.contains(Incompat::SIXTY_FOUR_BIT)
            && !sb.incompat.contains(Incompat::EXTENTS)
        {
            let (stored, rule) = (u64::from(sb.incompat.bits()), "64bit without extents");
            findings.add(PLACE.field("s_feature_incompat"), Kind::Invalid { stored, rule });
        }
        if !sb.compat.contains(Compat::HAS_JOURNAL) && raw.s_journal_inum.get() != 0 {
            let stored = u64::from(raw.s_journal_inum.get());
            let what = Kind::Value { stored, expected: 0 };
            findings.add_as(Severity::Note, PLACE.field("s_journal_inum"), what);
        }
        let journal = sb.compat.contains(Compat::HAS_JOURNAL);
        if (!journal || raw.s_journal_inum.get() != 0) && raw.s_journal_uuid != [0; 16] {
            let why = if journal { "it is in an inode" } else { "has_journal is not set" };
            let what = format!("names a journal on another device, but {why}");
            let place = PLACE.field("s_journal_uuid");
            findings.add_as(Severity::Repairable, place, Kind::Damaged { what });
        }
        if sb.revision < REV_DYNAMIC && features(raw) != Features::NONE {
            let (stored, rule) = (u64::from(sb.revision), "features, which need revision 1");
            let what = Kind::Invalid { stored, rule };
            findings.add_as(Severity::Note, PLACE.field("s_rev_level"), what);
        }
        if sb.revision > REV_DYNAMIC {
            let (stored, rule) = (u64::from(sb.revision), "at most 1");
            findings.add(PLACE.field("s_rev_level"), Kind::Invalid { stored, rule });
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

    /// Backups are not kept up to date, so that only what never changes is compared.
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
