//! Checks the copies of the superblock in all groups. Checks the fields of the first superblock that an open of the volume does not check.

use std::mem::offset_of;

use zerocopy::FromBytes;

use super::super::disk::superblock::{CRC_OFFSET, MAGIC, RawSuperblock, features2, version};
use super::super::features::Incompat;
use super::super::header::crc_of;
use super::Checker;
use crate::error::{Place, Result};
use crate::fs::check::{FindingSite, Kind};
use crate::units::DevOffset;

const PLACE: Place = Place::new("superblock");
/// Bits of `sb_versionnum` and `sb_features2` that a mount may add only to the first superblock. They mean attributes, attributes of
/// version 2, link counts of 32 bits, and quota.
const ADDED_VERSION: u16 = 0x0010 | 0x0020 | 0x0040 | 0x1000 | version::MORE_BITS;
const ADDED_FEATURES2: u32 = features2::ATTR2;

/// The minimum number of extents of a realtime group.
const FEWEST_EXTENTS: u64 = 2;

impl Checker<'_> {
    pub(super) fn check_superblocks(&mut self) {
        let geometry = &self.fs.superblock.geometry;
        let size = geometry.blocks << geometry.block.shift();
        self.findings.check_end(&**self.fs.metadata.device(), size);
        match self.fs.copy.as_ref().map(|copy| copy.fault.clone()) {
            None => self.check_first(),
            Some(Some(what)) => self.findings.add(PLACE, Kind::Damaged { what }),
            Some(None) => {
                let what = "the first superblock, because --superblock names a copy";
                self.findings.add(PLACE, Kind::NotChecked { what });
            }
        }
        for group in 1..self.fs.superblock.geometry.groups {
            let site = FindingSite::of_group(group, Place::new("copy of the superblock"));
            match self.sector(group, 0) {
                Ok((bytes, _)) => self.check_copy(site, &bytes),
                Err(error) => self.findings.error(site, &error),
            }
        }
    }

    /// Reads a sector at the start of a group. Also returns whether recovery of the log changed the sector.
    pub(super) fn sector(&self, group: u32, sector: u64) -> Result<(Vec<u8>, bool)> {
        let geometry = &self.fs.superblock.geometry;
        let at = geometry.group_start(group).0 + sector * geometry.sector as u64;
        let unit = u64::from(self.fs.metadata.device().limits().logical_block);
        let (from, to) = (at / unit * unit, (at + geometry.sector as u64).next_multiple_of(unit));
        let mut bytes = vec![0; (to - from) as usize];
        let replayed = self.fs.metadata.read_at(DevOffset(from), &mut bytes)?;
        let mut bytes = bytes.split_off((at - from) as usize);
        bytes.truncate(geometry.sector);
        Ok((bytes, replayed == super::super::overlay::Replayed::Yes))
    }

    /// Checks the fields of the first superblock that were not checked when the volume was opened.
    fn check_first(&mut self) {
        let (raw, findings) = (self.superblock.clone(), &mut self.findings);
        findings.expect(PLACE.field("sb_flags"), raw.sb_flags, 0_u32);
        // Some machines store `sb_features2` at the offset of `sb_bad_features2`, so both fields must be equal.
        let bits = raw.sb_features2.get();
        findings.expect(PLACE.field("sb_bad_features2"), raw.sb_bad_features2.get(), bits);
        if self.fs.superblock.is_v5() {
            let lsn = raw.sb_lsn.get();
            self.fs.check_age(&mut self.findings, lsn, PLACE);
        }
        self.check_stripes(PLACE.into(), &raw);
        self.check_tree_fields(PLACE.into(), &raw);
        match self.sector(0, 0) {
            Ok((bytes, _)) => self.check_rest(PLACE.into(), &bytes),
            Err(error) => self.findings.error(PLACE, &error),
        }
    }

    /// Checks a copy of the superblock. Only constant fields are compared, because XFS does not update the copies.
    fn check_copy(&mut self, site: FindingSite, bytes: &[u8]) {
        let field = |name| FindingSite { place: site.place.field(name), ..site };
        let Ok((raw, _)) = RawSuperblock::ref_from_prefix(bytes) else { return };
        if raw.sb_magicnum.get() != MAGIC {
            return self.wrong(field("sb_magicnum"), "the magic number is not XFSB");
        }
        let is_v5 = self.fs.superblock.is_v5();
        if is_v5 {
            let stored = u32::from_le_bytes(raw.sb_crc);
            self.findings.checksum(field("sb_crc"), stored, crc_of(bytes, CRC_OFFSET));
            self.fs.check_age(&mut self.findings, raw.sb_lsn.get(), site);
        }
        let first = self.superblock.clone();
        let own = |raw: &RawSuperblock| Static::of(raw, is_v5);
        for ((name, stored), (_, expected)) in own(raw).0.into_iter().zip(own(&first).0) {
            self.findings.expect(field(name), stored, expected);
        }
        if raw.sb_uuid != first.sb_uuid {
            self.wrong(field("sb_uuid"), "the UUID differs from the UUID in the first superblock");
        }
        if is_v5 && raw.sb_meta_uuid != first.sb_meta_uuid {
            self.wrong(
                field("sb_meta_uuid"),
                "the UUID differs from the UUID in the first superblock",
            );
        }
        self.check_stripes(site, raw);
        self.check_left_out(site, raw);
        self.check_tree_fields(site, raw);
        self.check_rest(site, bytes);
    }

    /// Checks that the bytes after the last superblock field are zero. The volume's features determine the last field.
    fn check_rest(&mut self, site: FindingSite, bytes: &[u8]) {
        let end = self.end_of_fields();
        let rest = bytes.get(end..).unwrap_or_default();
        if let Some(at) = rest.iter().position(|byte| *byte != 0) {
            let at = end + at;
            self.wrong(
                site,
                format!("the sector has nonzero bytes after the fields, from byte {at} on"),
            );
        }
    }

    fn end_of_fields(&self) -> usize {
        let superblock = &self.fs.superblock;
        let ends = [
            (Incompat::ZONED, size_of::<RawSuperblock>()),
            (Incompat::METADIR, offset_of!(RawSuperblock, sb_rtstart)),
            (Incompat::META_UUID, offset_of!(RawSuperblock, sb_metadirino)),
            (Incompat::empty(), offset_of!(RawSuperblock, sb_meta_uuid)),
        ];
        let has = |(feature, _): &&(Incompat, usize)| superblock.incompat.contains(*feature);
        match ends.iter().find(has) {
            Some((_, end)) if superblock.is_v5() => *end,
            _ => offset_of!(RawSuperblock, sb_features_compat),
        }
    }
}

impl Checker<'_> {
    /// Checks the stripe fields. The copies are not compared with the first superblock, because a mount with the options `sunit` and
    /// `swidth` changes only the first superblock.
    fn check_stripes(&mut self, site: FindingSite, raw: &RawSuperblock) {
        let (unit, width) = (raw.sb_unit.get(), raw.sb_width.get());
        let mut invalid = |name, stored: u32, rule| {
            let site = FindingSite { place: site.place.field(name), ..site };
            self.findings.add(site, Kind::Invalid { stored: stored.into(), rule });
        };
        if unit != 0 && !raw.sb_agblocks.get().is_multiple_of(unit) {
            invalid("sb_unit", unit, "the size of a group is not a multiple of sb_unit");
        }
        if (unit == 0) != (width == 0) || unit != 0 && !width.is_multiple_of(unit) {
            invalid("sb_width", width, "the width is not a multiple of sb_unit");
        }
        if raw.sb_versionnum.get() & version::STRIPES == 0 && unit != 0 {
            invalid("sb_unit", unit, "sb_unit is set, but not the stripe bit in sb_versionnum");
        }
    }

    /// Checks fields whose meaning is different on volumes with metadata directories.
    fn check_tree_fields(&mut self, site: FindingSite, raw: &RawSuperblock) {
        if self.fs.superblock.metadata_root.is_none() {
            return;
        }
        let field = |name| FindingSite { place: site.place.field(name), ..site };
        let found_by_name = [
            ("sb_rbmino", raw.sb_rbmino.get()),
            ("sb_rsumino", raw.sb_rsumino.get()),
            ("sb_uquotino", raw.sb_uquotino.get()),
            ("sb_gquotino", raw.sb_gquotino.get()),
            ("sb_pquotino", raw.sb_pquotino.get()),
        ];
        for (name, stored) in found_by_name {
            self.findings.expect(field(name), stored, 0_u64);
        }
        let extents = u64::from(raw.sb_rgextents.get());
        if extents < FEWEST_EXTENTS {
            let rule = "a realtime group must have two extents or more";
            self.findings.add(field("sb_rgextents"), Kind::Invalid { stored: extents, rule });
        } else {
            let groups = raw.sb_rextents.get().div_ceil(extents);
            self.findings.expect(field("sb_rgcount"), raw.sb_rgcount.get(), groups);
            let blocks = extents.saturating_mul(raw.sb_rextsize.get().into()).max(1);
            let log = u64::BITS - (blocks - 1).leading_zeros();
            self.findings.expect(field("sb_rgblklog"), raw.sb_rgblklog, log);
        }
        if raw.sb_pad != [0; 7] {
            self.wrong(field("sb_pad"), "the padding is not zero");
        }
        if self.fs.superblock.incompat.contains(Incompat::ZONED) {
            self.findings.expect(field("sb_frextents"), raw.sb_frextents.get(), 0_u64);
            let (stored, rule) =
                (raw.sb_rtreserved.get(), "the number exceeds the number of realtime blocks");
            if stored > raw.sb_rblocks.get() {
                self.findings.add(field("sb_rtreserved"), Kind::Invalid { stored, rule });
            }
        } else {
            self.findings.expect(field("sb_rtstart"), raw.sb_rtstart.get(), 0_u64);
            self.findings.expect(field("sb_rtreserved"), raw.sb_rtreserved.get(), 0_u64);
        }
    }

    /// Checks fields that mkfs.xfs leaves empty in the copies. The flag `sb_inprogress` is set in copies from mkfs.xfs.
    fn check_left_out(&mut self, site: FindingSite, raw: &RawSuperblock) {
        let field = |name| FindingSite { place: site.place.field(name), ..site };
        if self.superblock.sb_rblocks.get() == 0 {
            self.findings.expect(field("sb_frextents"), raw.sb_frextents.get(), 0_u64);
        }
        if self.fs.superblock.is_v5() {
            let compat = raw.sb_features_compat.get();
            let expected = self.superblock.sb_features_compat.get();
            self.findings.expect(field("sb_features_compat"), compat, expected);
        }
        let fields = [
            ("sb_flags", u64::from(raw.sb_flags)),
            ("sb_shared_vn", raw.sb_shared_vn.into()),
            ("sb_qflags", raw.sb_qflags.get().into()),
            ("sb_uquotino", raw.sb_uquotino.get()),
            ("sb_gquotino", raw.sb_gquotino.get()),
            ("sb_pquotino", if self.fs.superblock.is_v5() { raw.sb_pquotino.get() } else { 0 }),
        ];
        // On volumes with metadata directories, mkfs.xfs enables quota and therefore sets `sb_qflags`.
        let has_tree = self.fs.superblock.metadata_root.is_some();
        for (name, stored) in fields.into_iter().filter(|_| raw.sb_inprogress == 1) {
            if stored != u64::MAX && !(has_tree && name == "sb_qflags") {
                self.findings.expect(field(name), stored, 0_u64);
            }
        }
    }
}

/// Fields that are constant while the size of the volume does not change.
struct Static([(&'static str, u64); 35]);

impl Static {
    fn of(raw: &RawSuperblock, is_v5: bool) -> Self {
        let v5 = |value: u32| if is_v5 { u64::from(value) } else { 0 };
        let has_groups = is_v5 && raw.sb_features_incompat.get() & Incompat::METADIR.bits() != 0;
        let of_groups = |value: u64| if has_groups { value } else { 0 };
        Self([
            ("sb_blocksize", raw.sb_blocksize.get().into()),
            ("sb_dblocks", raw.sb_dblocks.get()),
            ("sb_rblocks", raw.sb_rblocks.get()),
            ("sb_rextents", raw.sb_rextents.get()),
            ("sb_logstart", raw.sb_logstart.get()),
            ("sb_rextsize", raw.sb_rextsize.get().into()),
            ("sb_agblocks", raw.sb_agblocks.get().into()),
            ("sb_agcount", raw.sb_agcount.get().into()),
            ("sb_rbmblocks", raw.sb_rbmblocks.get().into()),
            ("sb_logblocks", raw.sb_logblocks.get().into()),
            ("sb_versionnum", (raw.sb_versionnum.get() & !ADDED_VERSION).into()),
            ("sb_sectsize", raw.sb_sectsize.get().into()),
            ("sb_inodesize", raw.sb_inodesize.get().into()),
            ("sb_inopblock", raw.sb_inopblock.get().into()),
            ("sb_blocklog", raw.sb_blocklog.into()),
            ("sb_sectlog", raw.sb_sectlog.into()),
            ("sb_inodelog", raw.sb_inodelog.into()),
            ("sb_inopblog", raw.sb_inopblog.into()),
            ("sb_agblklog", raw.sb_agblklog.into()),
            ("sb_rextslog", raw.sb_rextslog.into()),
            ("sb_imax_pct", raw.sb_imax_pct.into()),
            ("sb_logsectlog", raw.sb_logsectlog.into()),
            ("sb_logsectsize", raw.sb_logsectsize.get().into()),
            ("sb_inoalignmt", raw.sb_inoalignmt.get().into()),
            ("sb_dirblklog", raw.sb_dirblklog.into()),
            ("sb_logsunit", raw.sb_logsunit.get().into()),
            ("sb_features2", (raw.sb_features2.get() & !ADDED_FEATURES2).into()),
            ("sb_features_ro_compat", v5(raw.sb_features_ro_compat.get())),
            ("sb_features_incompat", v5(raw.sb_features_incompat.get())),
            ("sb_spino_align", v5(raw.sb_spino_align.get())),
            ("sb_rgcount", of_groups(raw.sb_rgcount.get().into())),
            ("sb_rgextents", of_groups(raw.sb_rgextents.get().into())),
            ("sb_rgblklog", of_groups(raw.sb_rgblklog.into())),
            ("sb_rtstart", of_groups(raw.sb_rtstart.get())),
            ("sb_rtreserved", of_groups(raw.sb_rtreserved.get())),
        ])
    }
}
