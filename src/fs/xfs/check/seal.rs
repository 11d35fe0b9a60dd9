//! Checks the self-describing fields of metadata blocks: checksum, position, volume, owner and age (LSN). A wrong field is reported, and
//! the check continues.

use super::super::header::{Header, array, crc_of};
use super::super::overlay::Replayed;
use crate::error::Place;
use crate::fs::check::{FindingSite, Findings};
use crate::fs::xfs::Xfs;
use crate::units::{FsBlock, InodeNo};

const OTHER_VOLUME: &str = "the UUID belongs to another volume";

impl Xfs {
    /// Reports wrong fields in the header of a structure that belongs to an inode. `blocks` are the blocks of the structure.
    pub(super) fn check_seal(
        &self,
        findings: &mut Findings,
        bytes: &[u8],
        header: Header,
        blocks: &[FsBlock],
        (owner, place): (InodeNo, Place),
    ) {
        if !self.superblock.is_v5() {
            return;
        }
        if self.metadata.replayed(blocks) == Replayed::No {
            self.check_sum(findings, bytes, header.crc, place.field("crc"));
        }
        let at = blocks.first().map_or(0, |block| self.superblock.geometry.basic_sector(*block));
        let number = |at: usize| u64::from_be_bytes(array(bytes, at));
        findings.expect(place.field("blkno"), number(header.blkno), at);
        findings.expect(place.field("owner"), number(header.owner), owner.0);
        self.check_uuid(findings, array(bytes, header.uuid), place);
        self.check_age(findings, number(header.lsn), place);
    }

    /// Reports wrong fields in the header of a block of a group's B+tree.
    pub(super) fn check_tree_seal(
        &self,
        findings: &mut Findings,
        bytes: &[u8],
        block: FsBlock,
        site: FindingSite,
    ) {
        if !self.superblock.is_v5() {
            return;
        }
        let field = |name| FindingSite { place: site.place.field(name), ..site };
        if self.metadata.replayed(&[block]) == Replayed::No {
            self.check_sum(findings, bytes, Header::GROUP.crc, field("crc"));
        }
        let number = |at: usize| u64::from_be_bytes(array(bytes, at));
        let at = self.superblock.geometry.basic_sector(block);
        findings.expect(field("blkno"), number(Header::GROUP.blkno), at);
        let owner = u32::from_be_bytes(array(bytes, Header::GROUP.owner));
        findings.expect(field("owner"), owner, site.group.unwrap_or_default());
        self.check_uuid(findings, array(bytes, Header::GROUP.uuid), site);
        self.check_age(findings, number(Header::GROUP.lsn), site);
    }

    pub(super) fn check_sum(
        &self,
        findings: &mut Findings,
        bytes: &[u8],
        at: usize,
        site: impl Into<FindingSite>,
    ) {
        findings.checksum(site, u32::from_le_bytes(array(bytes, at)), crc_of(bytes, at));
    }

    pub(super) fn check_uuid(
        &self,
        findings: &mut Findings,
        uuid: [u8; 16],
        site: impl Into<FindingSite>,
    ) {
        if uuid != self.superblock.meta_uuid {
            let mut site = site.into();
            site.place = site.place.field("uuid");
            findings.wrong(site, OTHER_VOLUME);
        }
    }

    /// Checks that a structure's last change is not past the head of the log.
    pub(super) fn check_age(
        &self,
        findings: &mut Findings,
        lsn: u64,
        site: impl Into<FindingSite>,
    ) {
        if self.metadata.is_past_head(lsn) {
            let (head, mut site) = (self.metadata.head, site.into());
            site.place = site.place.field("lsn");
            findings
                .wrong(site, format!("the LSN {lsn:#x} is past the head of the log, {head:#x}"));
        }
    }
}
