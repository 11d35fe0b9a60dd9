//! Decodes and checks the superblock.

use zerocopy::FromBytes;

use super::disk::superblock::{CRC_OFFSET, MAGIC, RawSuperblock, features2, version};
use super::features::{Incompat, RoCompat};
use super::geometry::Geometry;
use super::header::crc_of;
use super::log::LogRange;
use super::overlay::Replayed;
use super::realtime::Realtime;
use super::rules;
use crate::device::Device;
use crate::error::{Error, Place, Result};
use crate::fs::DeviceRange;
use crate::units::{BlockSize, DevOffset, InodeNo};

const PLACE: Place = Place::new("superblock");
/// The valid values of log2 of the sector size: 512 bytes to 32 KiB.
const SECTOR_LOGS: std::ops::RangeInclusive<u8> = 9..=15;
/// Limits for the number of blocks in a group: log2 of the maximum, and the minimum.
const MAX_GROUP_BLOCKS_LOG: u8 = 31;
const MIN_GROUP_BLOCKS: u32 = 64;
/// `sb_features_log_incompat`: the log can contain intents that change attributes.
const LOGGED_ATTRIBUTES: u32 = 0x1;
/// The number of bytes to read from a device in order to get the sector size.
const PROBE: usize = 512;

/// The checked superblock.
#[derive(Clone, Debug)]
pub struct Superblock {
    pub(crate) geometry: Geometry,
    /// The version of the format: 4 or 5. In version 5, metadata have checksums.
    pub version: u8,
    /// Features for which a program without support may still read the volume.
    pub ro_compat: RoCompat,
    /// Features that a program must support in order to read the volume.
    pub incompat: Incompat,
    /// Features of the log. An unknown feature matters only if the log needs recovery.
    log_incompat: u32,
    /// The log position (LSN) of the superblock's last change; 0 in version 4.
    pub(super) lsn: u64,
    /// The UUID of the volume.
    pub uuid: [u8; 16],
    /// The name of the volume, up to the first NUL.
    pub label: Vec<u8>,
    /// The UUID that metadata blocks contain.
    pub(crate) meta_uuid: [u8; 16],
    pub(crate) root: InodeNo,
    /// The realtime bitmap and summary on volumes without metadata directories.
    pub(crate) realtime_files: [InodeNo; 2],
    /// The inodes of internal files, including quota files. The list is empty on a volume with metadata directories.
    pub(crate) internal: Vec<InodeNo>,
    /// The inodes of quota files.
    pub(crate) quota: Vec<InodeNo>,
    /// The root of the metadata directories.
    pub(crate) metadata_root: Option<InodeNo>,
    /// The log's first block and its length in blocks; the first block is 0 for an external log.
    pub(crate) log_start: u64,
    pub(crate) log_blocks: u32,
    /// The number of realtime blocks.
    pub realtime_blocks: u64,
    /// The numbering of realtime blocks, if the volume has realtime blocks.
    pub(super) realtime: Option<Realtime>,
    /// Whether directory entries contain file types.
    pub(crate) has_ftype: bool,
    /// Whether names are compared without regard to case, by the rules of ISO 8859-1 (feature `ascii-ci`).
    pub(crate) ascii_ci: bool,
    pub(crate) projid32: bool,
    /// The numbers of inodes, free inodes and free blocks. With lazy counters, these numbers are correct only after a clean unmount.
    pub(crate) inodes: u64,
    pub(crate) free_inodes: u64,
    pub(crate) free_blocks: u64,
    /// The maximum percentage of the volume's space that inodes may use.
    pub(crate) max_inode_percent: u8,
    /// The group that contains the copy from which the superblock was read; 0 for the first superblock.
    pub(super) copy: u32,
}

fn check_version(number: u8) -> Result<()> {
    match number {
        4 | 5 => Ok(()),
        _ => Err(Error::unsupported(format!("XFS version {number} is not supported"))),
    }
}

impl Superblock {
    /// Whether a device contains an XFS file system, undamaged or damaged.
    pub(super) fn is_on(device: &dyn Device) -> Result<bool> {
        let unit = (device.limits().logical_block as usize).max(PROBE);
        if device.size() < unit as u64 {
            return Ok(false);
        }
        let mut bytes = vec![0; unit];
        device.read_exact_at(&mut bytes, DevOffset(0))?;
        Ok(bytes[..4] == MAGIC.to_be_bytes())
    }

    pub(super) fn read(device: &dyn Device) -> Result<Self> {
        let unit = (device.limits().logical_block as usize).max(1 << SECTOR_LOGS.end());
        let mut bytes = vec![0; unit.min(device.size() as usize)];
        device.read_exact_at(&mut bytes, DevOffset(0))?;
        Self::decode(&bytes, device.size(), Replayed::No)
    }

    /// Decodes a superblock. `bytes` must contain the superblock's complete sector.
    pub(super) fn decode(bytes: &[u8], device_size: u64, replayed: Replayed) -> Result<Self> {
        let Ok((raw, _)) = RawSuperblock::ref_from_prefix(bytes) else {
            return Err(PLACE.corrupt("the superblock is truncated"));
        };
        if raw.sb_magicnum.get() != MAGIC {
            return Err(PLACE.field("sb_magicnum").corrupt("the magic number is not XFSB"));
        }
        let versionnum = raw.sb_versionnum.get();
        let number = (versionnum & version::NUMBER) as u8;
        let is_v5 = number == 5;
        // Only version 5 has a checksum. If the superblock has a checksum and another version number, the number is damaged. Linux decides
        // in the same way.
        let is_sealed = is_v5 || raw.sb_crc != [0; 4];
        check_version(if is_sealed { 5 } else { number })?;
        let sector = Self::sector(raw, bytes)?;
        if is_sealed && replayed == Replayed::No {
            let (stored, computed) = (u32::from_le_bytes(raw.sb_crc), crc_of(sector, CRC_OFFSET));
            if stored != computed {
                return Err(PLACE.field("sb_crc").bad_checksum(stored, computed));
            }
        }
        check_version(number)?;
        if raw.sb_inprogress != 0 {
            return Err(PLACE
                .field("sb_inprogress")
                .corrupt("the volume is incomplete, because mkfs.xfs was interrupted"));
        }
        let (ro_compat, incompat, features2) = Self::check_features(raw, is_v5)?;
        let geometry = Self::geometry(raw, device_size)?;
        rules::obey(raw)?;
        let has_meta_uuid = incompat.contains(Incompat::META_UUID);
        let label = raw.sb_fname.split(|byte| *byte == 0).next().unwrap_or_default();
        let project = if is_v5 { raw.sb_pquotino.get() } else { 0 };
        let has_tree = incompat.contains(Incompat::METADIR);
        let inodes = |numbers: &[u64]| -> Vec<InodeNo> {
            let is_there = |number: &u64| !has_tree && *number != 0 && *number != u64::MAX;
            numbers.iter().copied().filter(is_there).map(InodeNo).collect()
        };
        let quota = inodes(&[raw.sb_uquotino.get(), raw.sb_gquotino.get(), project]);
        let mut internal = inodes(&[raw.sb_rbmino.get(), raw.sb_rsumino.get()]);
        internal.extend(&quota);
        Ok(Self {
            geometry,
            version: number,
            ro_compat,
            incompat,
            log_incompat: if is_v5 { raw.sb_features_log_incompat.get() } else { 0 },
            lsn: if is_v5 { raw.sb_lsn.get() } else { 0 },
            uuid: raw.sb_uuid,
            label: label.to_vec(),
            meta_uuid: if has_meta_uuid { raw.sb_meta_uuid } else { raw.sb_uuid },
            root: InodeNo(raw.sb_rootino.get()),
            realtime_files: [&raw.sb_rbmino, &raw.sb_rsumino].map(|at| InodeNo(at.get())),
            internal,
            quota,
            metadata_root: has_tree.then(|| InodeNo(raw.sb_metadirino.get())),
            log_start: raw.sb_logstart.get(),
            log_blocks: raw.sb_logblocks.get(),
            realtime_blocks: raw.sb_rblocks.get(),
            realtime: Realtime::new(raw, incompat)?,
            has_ftype: incompat.contains(Incompat::FTYPE) || features2 & features2::FTYPE != 0,
            ascii_ci: versionnum & version::ASCII_CI != 0,
            projid32: is_v5 || features2 & features2::PROJID32 != 0,
            inodes: raw.sb_icount.get(),
            free_inodes: raw.sb_ifree.get(),
            free_blocks: raw.sb_fdblocks.get(),
            max_inode_percent: raw.sb_imax_pct,
            copy: 0,
        })
    }

    /// Marks the superblock as the copy in a group. A copy does not state whether the log can contain changes of attributes, so the log is
    /// treated as if it can.
    pub(super) fn of_copy(mut self, group: u32) -> Self {
        self.copy = group;
        self.log_incompat |= LOGGED_ATTRIBUTES;
        self
    }

    /// The superblock's sector.
    fn sector<'a>(raw: &RawSuperblock, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let sector_log = raw.sb_sectlog;
        let sector = 1_usize << sector_log.min(31);
        if !SECTOR_LOGS.contains(&sector_log)
            || usize::from(raw.sb_sectsize.get()) != sector
            || sector > bytes.len()
        {
            let what = format!("a sector size of {} bytes is not valid", raw.sb_sectsize.get());
            return Err(PLACE.field("sb_sectsize").corrupt(what));
        }
        Ok(&bytes[..sector])
    }

    /// Decodes the features. An unsupported feature is refused, and the error names the feature.
    fn check_features(raw: &RawSuperblock, is_v5: bool) -> Result<(RoCompat, Incompat, u32)> {
        let versionnum = raw.sb_versionnum.get();
        if versionnum & version::DIR_V2 == 0 {
            return Err(Error::unsupported("directories of version 1 are not supported"));
        }
        if versionnum & version::SHARED != 0 {
            return Err(Error::unsupported(
                "a volume shared by read-only mounts (the shared bit) is not supported",
            ));
        }
        let has_more = versionnum & version::MORE_BITS != 0;
        let features2 = if has_more { raw.sb_features2.get() } else { 0 };
        if !is_v5 {
            return Ok((RoCompat::empty(), Incompat::empty(), features2));
        }
        let incompat = Incompat::from_bits_retain(raw.sb_features_incompat.get());
        let unknown = incompat.unknown();
        if unknown != 0 {
            return Err(Error::unsupported(format!(
                "the XFS volume has the unknown feature {unknown:#x}"
            )));
        }
        let needs = [(Incompat::ZONED, Incompat::METADIR), (Incompat::ZONE_GAPS, Incompat::ZONED)];
        if needs.iter().any(|(one, other)| incompat.contains(*one) && !incompat.contains(*other)) {
            let what = "zoned is set without metadir, or zone_gaps without zoned";
            return Err(PLACE.field("sb_features_incompat").corrupt(what));
        }
        if incompat.contains(Incompat::NEEDS_REPAIR) {
            return Err(Error::unsupported("the volume needs a repair: run xfs_repair"));
        }
        let ro_compat = RoCompat::from_bits_retain(raw.sb_features_ro_compat.get());
        Ok((ro_compat, incompat, features2))
    }

    fn geometry(raw: &RawSuperblock, device_size: u64) -> Result<Geometry> {
        let is_v5 = raw.sb_versionnum.get() & version::NUMBER == 5;
        let size = BlockSize::from_shift(raw.sb_blocklog)
            .filter(|size| size.bytes() as u64 == u64::from(raw.sb_blocksize.get()))
            .filter(|size| !is_v5 || size.bytes() >= 1024);
        let Some(block) = size else {
            let what = format!("{} bytes", raw.sb_blocksize.get());
            return Err(PLACE.field("sb_blocksize").corrupt(what));
        };
        let inode = 1_usize << raw.sb_inodelog.min(31);
        let smallest = if is_v5 { 512 } else { 256 };
        if usize::from(raw.sb_inodesize.get()) != inode
            || !(smallest..=2048).contains(&inode)
            || inode > block.bytes() / 2
        {
            let what = format!("{} bytes", raw.sb_inodesize.get());
            return Err(PLACE.field("sb_inodesize").corrupt(what));
        }
        let per_block_log = raw.sb_blocklog - raw.sb_inodelog;
        if raw.sb_inopblog != per_block_log {
            return Err(PLACE.field("sb_inopblog").corrupt(format!("{}", raw.sb_inopblog)));
        }
        let (blocks, groups) = (raw.sb_dblocks.get(), raw.sb_agcount.get());
        let group_blocks = raw.sb_agblocks.get();
        let log = raw.sb_agblklog;
        let fits =
            log <= MAX_GROUP_BLOCKS_LOG && u64::from(group_blocks).next_power_of_two() == 1 << log;
        if !fits || group_blocks < MIN_GROUP_BLOCKS {
            let what = format!(
                "groups of {group_blocks} blocks do not match {log} bits for a block number"
            );
            return Err(PLACE.field("sb_agblklog").corrupt(what));
        }
        if groups == 0 || u64::from(groups) != blocks.div_ceil(group_blocks.into()) {
            let what = format!(
                "{groups} groups of {group_blocks} blocks do not match a volume of {blocks} blocks"
            );
            return Err(PLACE.field("sb_agcount").corrupt(what));
        }
        let bytes = blocks.checked_mul(block.bytes() as u64);
        if bytes.is_none_or(|bytes| bytes > device_size) {
            let what = format!(
                "the volume of {blocks} blocks exceeds the device of {device_size} bytes: the volume is truncated (--truncated reads the remaining part)"
            );
            return Err(PLACE.field("sb_dblocks").corrupt(what));
        }
        let dir_block_log = raw.sb_dirblklog;
        if dir_block_log.checked_add(raw.sb_blocklog).is_none_or(|log| log > 16) {
            let what = format!("directory blocks of 2^{dir_block_log} blocks are too large");
            return Err(PLACE.field("sb_dirblklog").corrupt(what));
        }
        Ok(Geometry {
            block,
            sector: usize::from(raw.sb_sectsize.get()),
            inode,
            inodes_per_block_log: per_block_log,
            blocks,
            groups,
            group_blocks,
            group_blocks_log: log,
            dir_block_log,
        })
    }

    /// The location of the log. If the log is external, its location is `outside`.
    pub(super) fn log_range(&self, outside: Option<DeviceRange>) -> Result<LogRange> {
        let len = u64::from(self.log_blocks) << self.geometry.block.shift();
        if self.log_start == 0 {
            let Some(outside) = outside else {
                let what = "the log of the XFS volume is on a separate device: name this device with --journal DEVICE";
                return Err(Error::unsupported(what));
            };
            if outside.len < len {
                let what = format!(
                    "the journal device has {} bytes, too few for a log of {len} bytes",
                    outside.len
                );
                return Err(Error::invalid(what));
            }
            return Ok(LogRange { start: outside.start, len, block: self.geometry.block });
        }
        if outside.is_some() {
            let what = "no journal device is needed: the log of the XFS volume is on the volume's own device";
            return Err(Error::invalid(what));
        }
        let place = PLACE.field("sb_logstart");
        let start = self.geometry.fs_block(self.log_start, self.log_blocks.into(), place)?;
        let block = self.geometry.block;
        Ok(LogRange { start: block.offset_of(start).0, len, block })
    }

    /// The first block number that is too large for a file. File positions have at most 63 bits.
    pub(super) fn max_file_block(&self) -> u64 {
        1 << (63 - self.geometry.block.shift())
    }

    /// Whether the log can contain unfinished changes of attributes other than parent pointers.
    pub(super) fn logs_attributes(&self) -> bool {
        self.log_incompat & LOGGED_ATTRIBUTES != 0
    }

    /// Returns an error if the log has an unknown feature, because the log can then contain unknown items.
    pub(super) fn check_log_features(&self) -> Result<()> {
        match self.log_incompat & !LOGGED_ATTRIBUTES {
            0 => Ok(()),
            bits => {
                let what =
                    format!("the XFS log has the unknown feature {bits:#x} and needs recovery");
                Err(Error::unsupported(what))
            }
        }
    }

    /// Whether metadata have checksums and record their own positions.
    pub(crate) fn is_v5(&self) -> bool {
        self.version == 5
    }

    /// The features of the volume, with the names that `xfs_info` uses.
    #[must_use]
    pub fn features(&self) -> Vec<String> {
        let names = |bits: Vec<&'static str>| bits.into_iter().map(str::to_lowercase);
        let mut features = Vec::new();
        features.extend(self.is_v5().then(|| "crc".to_owned()));
        features.extend(names(self.ro_compat.iter_names().map(|(name, _)| name).collect()));
        features.extend(names(self.incompat.iter_names().map(|(name, _)| name).collect()));
        if self.has_ftype && !self.incompat.contains(Incompat::FTYPE) {
            features.push("ftype".to_owned());
        }
        if self.ascii_ci {
            features.push("ascii-ci".to_owned());
        }
        features.into_iter().map(|name| name.replace('_', "-")).collect()
    }

    /// The number of free blocks. After a crash the number is the sum of the allocation groups' headers.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// The total number of inodes, and the number of free inodes.
    #[must_use]
    pub fn inodes(&self) -> (u64, u64) {
        (self.inodes, self.free_inodes)
    }

    /// The number of log blocks, and whether the log is external.
    #[must_use]
    pub fn log(&self) -> (u32, bool) {
        (self.log_blocks, self.log_start == 0)
    }

    /// The number of bytes in a directory block.
    #[must_use]
    pub fn directory_block_size(&self) -> usize {
        self.geometry.dir_block()
    }

    /// The number of bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.geometry.block.bytes()
    }

    /// The number of blocks of the volume.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.geometry.blocks
    }

    /// The number of allocation groups, and the number of blocks in each group except the last.
    #[must_use]
    pub fn groups(&self) -> (u32, u32) {
        (self.geometry.groups, self.geometry.group_blocks)
    }

    /// The number of bytes in an inode.
    #[must_use]
    pub fn inode_size(&self) -> usize {
        self.geometry.inode
    }

    /// The number of bytes in a sector.
    #[must_use]
    pub fn sector_size(&self) -> usize {
        self.geometry.sector
    }
}
