//! The decoded and checked superblock: the geometry and the features that other code relies on.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::checksum::{MetadataSeed, crc32c_raw};
use super::disk::group;
use super::disk::inode::{GOOD_OLD_SIZE, RawInodeExtra};
use super::disk::superblock::{
    FIRST_INODE, MAGIC, OFFSET, REV_DYNAMIC, RawSuperblock, STATE_ERROR, STATE_VALID,
};
use super::features::{Compat, Incompat, RoCompat};
use super::mkfs::Features;
use super::rules::By;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::{OnError, Timestamp};
use crate::units::{BlockSize, DevOffset, FsBlock, InodeNo};

pub(super) const PLACE: Place = Place::new("superblock");
const CHECKSUM_OFFSET: usize = 0x3FC;
const CHECKSUM_TYPE_CRC32C: u8 = 1;
/// A bit of `s_flags`: directory hashes are computed from unsigned characters.
const FLAG_UNSIGNED_HASH: u32 = 2;

/// A bit of `s_encoding_flags`: names that violate the encoding are refused.
const ENCODING_STRICT: u16 = 1;

/// The decoded superblock. Every field that other code relies on is valid with respect to the other fields and the device's size.
#[derive(Clone, Debug)]
pub struct Superblock {
    /// The block size.
    pub block_size: BlockSize,
    /// The number of blocks.
    pub blocks_count: u64,
    /// The number of blocks in an allocation cluster; 1 without bigalloc.
    pub cluster_blocks: u32,
    /// The number of free blocks that the superblock records. On a volume in use, this number can be outdated.
    pub free_blocks: u64,
    /// The number of blocks reserved for the superuser.
    pub reserved_blocks: u64,
    /// The number of blocks of metadata with fixed positions, from `s_overhead_clusters`. The value is 0 if mke2fs did not store the
    /// number.
    pub overhead_blocks: u64,
    /// The first block of group 0.
    pub first_data_block: u32,
    /// The number of blocks in a group.
    pub blocks_per_group: u32,
    /// The number of inodes.
    pub inodes_count: u32,
    /// The number of free inodes that the superblock records. On a volume in use, this number can be outdated.
    pub free_inodes: u32,
    /// The number of inodes in a group.
    pub inodes_per_group: u32,
    /// The size of an inode in bytes.
    pub inode_size: u16,
    /// The first inode that is not reserved.
    pub first_inode: u32,
    /// The revision of the format: 0, or 1 for volumes with features or with a variable inode size.
    pub revision: u32,
    /// The size of a group descriptor in bytes.
    pub descriptor_size: u16,
    /// The number of groups.
    pub groups: u32,
    /// The features that an implementation may ignore.
    pub compat: Compat,
    /// The features that every implementation must support to read or write the volume.
    pub incompat: Incompat,
    /// The features that an implementation must support to write to the volume.
    pub ro_compat: RoCompat,
    /// The UUID of the volume.
    pub uuid: [u8; 16],
    /// The label, without trailing NULs.
    pub label: Vec<u8>,
    /// The last mount point, without trailing NULs.
    pub last_mounted: Vec<u8>,
    /// Whether the volume was unmounted cleanly, according to `s_state`.
    pub clean: bool,
    /// The recorded errors. All fields are zero if no error is recorded.
    pub errors: RecordedErrors,
    /// The reaction of the volume to corruption.
    pub on_error: OnError,
    /// The times of creation, last mount, last write and last check.
    pub times: Times,
    /// `i_extra_isize` of new inodes.
    pub(crate) extra_isize: u16,
    pub(crate) seed: Option<MetadataSeed>,
    pub(crate) hash_seed: [u32; 4],
    pub(crate) hash_unsigned: bool,
    /// `s_def_hash_version`: the hash function of new hash trees.
    pub(crate) hash_version: u8,
    pub(crate) journal_inode: Option<InodeNo>,
    /// The UUID of the external journal; zeros if the volume has no external journal.
    pub(crate) journal_uuid: [u8; 16],
    pub(crate) first_meta_bg: u32,
    /// The number of blocks that are reserved after each copy of the group descriptors, so that the descriptors can grow.
    pub(crate) reserved_descriptor_blocks: u16,
    /// The number of groups whose bitmaps and inode tables are stored together. 1 without the feature flex_bg.
    pub(crate) flex_groups: u32,
    /// The number of blocks in a RAID stripe, or 0.
    pub(crate) stripe: u32,
    pub(crate) backup_groups: [u32; 2],
    pub(crate) mmp_block: Option<FsBlock>,
    pub(crate) mmp_interval: u16,
    pub(crate) encoding: u16,
    /// Whether names in case-insensitive directories must be valid in the volume's encoding.
    pub(crate) encoding_strict: bool,
    pub(crate) orphan_file: Option<InodeNo>,
    /// The quota files of users, groups and projects.
    pub(crate) quota_files: [Option<InodeNo>; 3],
    /// The group of the superblock that was read: 0 for the primary superblock, otherwise the group of a backup. The group descriptors are
    /// read from the same group.
    pub(crate) copy: u32,
}

/// The errors that the superblock records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedErrors {
    /// Whether the error flag is set in `s_state`.
    pub detected: bool,
    /// The number of errors since the last check.
    pub count: u32,
    /// The time of the first error.
    pub first: Timestamp,
    /// The time of the last error.
    pub last: Timestamp,
    /// The function that reported the last error.
    pub last_function: String,
    /// The inode of the last error, or 0.
    pub last_inode: u32,
    /// The block of the last error, or 0.
    pub last_block: u64,
}

/// The superblock's time stamps, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The time of creation.
    pub made: u64,
    /// The time of the last mount.
    pub mounted: u64,
    /// The time of the last write.
    pub written: u64,
    /// The time of the last check.
    pub checked: u64,
}

impl RecordedErrors {
    fn of(raw: &RawSuperblock) -> Self {
        let stamp =
            |low: u32, high: u8| Timestamp { seconds: wide(low, high) as i64, nanoseconds: 0 };
        let function = String::from_utf8_lossy(until_nul(&raw.s_last_error_func));
        Self {
            detected: raw.s_state.get() & STATE_ERROR != 0,
            count: raw.s_error_count.get(),
            first: stamp(raw.s_first_error_time.get(), raw.s_first_error_time_hi),
            last: stamp(raw.s_last_error_time.get(), raw.s_last_error_time_hi),
            last_function: function.into_owned(),
            last_inode: raw.s_last_error_ino.get(),
            last_block: raw.s_last_error_block.get(),
        }
    }
}

impl Times {
    fn of(raw: &RawSuperblock) -> Self {
        Self {
            made: wide(raw.s_mkfs_time.get(), raw.s_mkfs_time_hi),
            mounted: wide(raw.s_mtime.get(), raw.s_mtime_hi),
            written: wide(raw.s_wtime.get(), raw.s_wtime_hi),
            checked: wide(raw.s_lastcheck.get(), raw.s_lastcheck_hi),
        }
    }
}

/// A time in seconds, from its lower 32 bits and its upper 8 bits.
fn wide(low: u32, high: u8) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The raw superblock of a device. The result is an error if the device contains no ext2, ext3 or ext4 file system.
fn raw(bytes: &[u8]) -> Result<&RawSuperblock> {
    let Ok((raw, _)) = RawSuperblock::ref_from_prefix(bytes) else {
        return Err(PLACE.corrupt("the device ends within the superblock"));
    };
    if raw.s_magic.get() != MAGIC {
        return Err(Error::new(
            ErrorKind::UnknownFormat,
            "the device contains no ext2, ext3 or ext4 file system",
        ));
    }
    Ok(raw)
}

/// The features of the volume. Returns an error if reads do not support one of them.
///
/// # Errors
/// `Unsupported`, with the names of the features that reads do not support.
fn readable_features(raw: &RawSuperblock) -> Result<Features> {
    let features = features(raw);
    let refused = features.incompat - Incompat::READABLE;
    if refused.is_empty() {
        return Ok(features);
    }
    let names: Vec<_> = refused.names().collect();
    Err(Error::unsupported(format!("the volume needs unsupported features: {}", names.join(", "))))
}

/// The size of an inode in bytes, and the first inode number that is not reserved. On a volume of revision 0, both numbers are fixed and
/// are not stored.
fn inode_size_and_first(raw: &RawSuperblock) -> (u16, u32) {
    if raw.s_rev_level.get() >= REV_DYNAMIC {
        (raw.s_inode_size.get(), raw.s_first_ino.get())
    } else {
        (GOOD_OLD_SIZE as u16, FIRST_INODE)
    }
}

/// The number of groups whose bitmaps and inode tables are stored together.
fn flex_groups(raw: &RawSuperblock, incompat: Incompat) -> u32 {
    if !incompat.contains(Incompat::FLEX_BG) {
        return 1;
    }
    1_u32.checked_shl(raw.s_log_groups_per_flex.into()).unwrap_or(1)
}

impl Superblock {
    /// The name of the oldest format (ext2, ext3 or ext4) that supports all features of the volume.
    #[must_use]
    pub fn format(&self) -> &'static str {
        let incompat = Incompat::FILETYPE | Incompat::RECOVER | Incompat::META_BG;
        let ro_compat = RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE;
        if !(self.incompat - incompat).is_empty() || !(self.ro_compat - ro_compat).is_empty() {
            "ext4"
        } else if self.compat.contains(Compat::HAS_JOURNAL) {
            "ext3"
        } else {
            "ext2"
        }
    }

    /// The position of the superblock on the device, and its length.
    pub(crate) const RANGE: (DevOffset, usize) = (DevOffset(OFFSET), 1024);

    /// Whether the device contains an ext2, ext3 or ext4 volume. The volume may be damaged.
    pub(crate) fn is_on(device: &dyn Device) -> Result<bool> {
        let mut magic = [0; 2];
        let at = OFFSET + std::mem::offset_of!(RawSuperblock, s_magic) as u64;
        if at + 2 > device.size() {
            return Ok(false);
        }
        device.read_exact_at(&mut magic, DevOffset(at))?;
        Ok(u16::from_le_bytes(magic) == MAGIC)
    }

    /// The block size that the bytes of a superblock contain; `None` if the size is not valid.
    pub(super) fn block_size_of(bytes: &[u8]) -> Option<BlockSize> {
        let (raw, _) = RawSuperblock::ref_from_prefix(bytes).ok()?;
        BlockSize::from_shift(u8::try_from(raw.s_log_block_size.get()).ok()?.checked_add(10)?)
    }

    /// Decodes and checks the bytes at [`Self::RANGE`]. The fields must match each other and the device's size, and must obey the rules
    /// that Linux enforces at a mount.
    pub(crate) fn parse(bytes: &[u8], device_size: u64) -> Result<Self> {
        let superblock = Self::decode(bytes, device_size)?;
        let (raw, _) = RawSuperblock::ref_from_prefix(bytes)
            .map_err(|_| PLACE.corrupt("the superblock is truncated"))?;
        superblock.obey(By::Mount, raw)?;
        Ok(superblock)
    }

    /// Decodes a superblock, but does not check the rules that Linux enforces at a mount. The superblock of a volume that is being made may
    /// not follow these rules yet.
    pub(super) fn decode(bytes: &[u8], device_size: u64) -> Result<Self> {
        let raw = raw(bytes)?;
        let Features { compat, incompat, ro_compat } = readable_features(raw)?;
        // If the volume has metadata_csum and uninit_bg, uninit_bg is ignored.
        let seed = Self::verify(raw, bytes, incompat, ro_compat)?;
        let geometry = Geometry::parse(raw, incompat, ro_compat, device_size)?;

        let (inode_size, first_inode) = inode_size_and_first(raw);
        let is_64bit = incompat.contains(Incompat::SIXTY_FOUR_BIT);
        let hi32 =
            |low: u32, high: u32| u64::from(low) | if is_64bit { u64::from(high) << 32 } else { 0 };
        let inode = |number: u32| (number != 0).then_some(InodeNo(u64::from(number)));
        Ok(Self {
            block_size: geometry.block_size,
            blocks_count: geometry.blocks_count,
            cluster_blocks: geometry.cluster_blocks,
            // This field counts blocks, even on a volume with bigalloc. In contrast, group descriptors count clusters.
            free_blocks: hi32(raw.s_free_blocks_count_lo.get(), raw.s_free_blocks_count_hi.get()),
            overhead_blocks: u64::from(raw.s_overhead_clusters.get())
                * u64::from(geometry.cluster_blocks),
            reserved_blocks: hi32(raw.s_r_blocks_count_lo.get(), raw.s_r_blocks_count_hi.get()),
            first_data_block: raw.s_first_data_block.get(),
            blocks_per_group: raw.s_blocks_per_group.get(),
            inodes_count: raw.s_inodes_count.get(),
            free_inodes: raw.s_free_inodes_count.get(),
            inodes_per_group: raw.s_inodes_per_group.get(),
            inode_size,
            first_inode,
            revision: raw.s_rev_level.get(),
            descriptor_size: geometry.descriptor_size,
            groups: geometry.groups,
            compat,
            incompat,
            ro_compat,
            uuid: raw.s_uuid,
            label: until_nul(&raw.s_volume_name).to_vec(),
            last_mounted: until_nul(&raw.s_last_mounted).to_vec(),
            clean: raw.s_state.get() & STATE_VALID != 0 && !incompat.contains(Incompat::RECOVER),
            errors: RecordedErrors::of(raw),
            on_error: OnError::from_raw(raw.s_errors.get()),
            times: Times::of(raw),
            extra_isize: extra_isize(raw, inode_size, ro_compat),
            seed,
            hash_seed: raw.s_hash_seed.map(|word| word.get()),
            hash_unsigned: raw.s_flags.get() & FLAG_UNSIGNED_HASH != 0,
            hash_version: raw.s_def_hash_version,
            journal_inode: inode(raw.s_journal_inum.get())
                .filter(|_| compat.contains(Compat::HAS_JOURNAL)),
            journal_uuid: raw.s_journal_uuid,
            first_meta_bg: raw.s_first_meta_bg.get(),
            reserved_descriptor_blocks: raw.s_reserved_gdt_blocks.get(),
            flex_groups: flex_groups(raw, incompat),
            stripe: stripe(raw),
            backup_groups: raw.s_backup_bgs.map(|group| group.get()),
            mmp_block: incompat.contains(Incompat::MMP).then(|| FsBlock(raw.s_mmp_block.get())),
            mmp_interval: raw.s_mmp_interval.get(),
            encoding: raw.s_encoding.get(),
            encoding_strict: raw.s_encoding_flags.get() & ENCODING_STRICT != 0,
            orphan_file: inode(raw.s_orphan_file_inum.get())
                .filter(|_| compat.contains(Compat::ORPHAN_FILE)),
            quota_files: [&raw.s_usr_quota_inum, &raw.s_grp_quota_inum, &raw.s_prj_quota_inum]
                .map(|number| inode(number.get()).filter(|_| ro_compat.contains(RoCompat::QUOTA))),
            copy: 0,
        })
    }

    /// Verifies the superblock's own checksum and returns the seed of all other checksums.
    fn verify(
        raw: &RawSuperblock,
        bytes: &[u8],
        incompat: Incompat,
        ro_compat: RoCompat,
    ) -> Result<Option<MetadataSeed>> {
        if !ro_compat.contains(RoCompat::METADATA_CSUM) {
            return Ok(None);
        }
        if raw.s_checksum_type != CHECKSUM_TYPE_CRC32C {
            let number = raw.s_checksum_type;
            return Err(Error::unsupported(format!(
                "the metadata checksum type {number} is not supported"
            )));
        }
        let computed = superblock_checksum(bytes);
        let stored = raw.s_checksum.get();
        if stored != computed {
            return Err(PLACE.field("s_checksum").bad_checksum(stored, computed));
        }
        let seed = if incompat.contains(Incompat::CSUM_SEED) {
            raw.s_checksum_seed.get()
        } else {
            crc32c_raw(!0, &raw.s_uuid)
        };
        Ok(Some(MetadataSeed(seed)))
    }

    /// Whether the journal is external.
    pub(crate) fn has_external_journal(&self) -> bool {
        self.compat.contains(Compat::HAS_JOURNAL) && self.journal_inode.is_none()
    }

    /// The checksum seed for structures that belong to one inode; `None` if the volume has no checksums.
    pub(crate) fn inode_seed(&self, inode: InodeNo, generation: u32) -> Option<u32> {
        self.seed.map(|seed| seed.of_inode(inode, generation))
    }

    /// Whether the volume contains this block.
    #[must_use]
    pub(crate) fn contains(&self, block: FsBlock) -> bool {
        block.0 < self.blocks_count
    }

    /// Whether a group contains a copy of the superblock and of the group descriptors. The result is also true for group 0, which contains
    /// the primary copy.
    pub(crate) fn group_has_backup(&self, group: u32) -> bool {
        if group == 0 {
            true
        } else if self.compat.contains(Compat::SPARSE_SUPER2) {
            self.backup_groups.contains(&group)
        } else {
            sparse_backup(group) || !self.ro_compat.contains(RoCompat::SPARSE_SUPER)
        }
    }

    /// The group of a block; `None` for the boot block and for blocks outside the volume.
    pub(super) fn group_of_block(&self, block: FsBlock) -> Option<u32> {
        let within = block.0.checked_sub(u64::from(self.first_data_block))?;
        let group = u32::try_from(within / u64::from(self.blocks_per_group)).ok()?;
        (group < self.groups).then_some(group)
    }

    /// The first block of a group.
    pub(crate) fn group_start(&self, group: u32) -> FsBlock {
        FsBlock(
            u64::from(self.first_data_block) + u64::from(group) * u64::from(self.blocks_per_group),
        )
    }
}

/// The length of the extra fields of a new inode, which follow the first 128 bytes of the inode. The superblock can request a length. If
/// the requested length is not possible, the length of the fields that Linux supports is used.
fn extra_isize(raw: &RawSuperblock, inode_size: u16, ro_compat: RoCompat) -> u16 {
    let room = inode_size.saturating_sub(GOOD_OLD_SIZE as u16);
    let known = (size_of::<RawInodeExtra>() as u16).min(room);
    let wanted = raw.s_want_extra_isize.get().max(raw.s_min_extra_isize.get());
    let fits = wanted >= known && wanted <= room && wanted.is_multiple_of(4);
    if ro_compat.contains(RoCompat::EXTRA_ISIZE) && fits { wanted } else { known }
}

/// Whether a group contains a copy of the superblock on a volume with the feature sparse_super. The groups with a copy are 0, 1, and all
/// powers of 3, 5 and 7.
pub(crate) fn sparse_backup(group: u32) -> bool {
    let power_of = |base: u32| {
        let mut power = base;
        while power < group {
            power = power.saturating_mul(base);
        }
        power == group
    };
    group <= 1 || power_of(3) || power_of(5) || power_of(7)
}

/// The checksum of a superblock. The checksum covers all bytes before the checksum field.
pub(super) fn superblock_checksum(bytes: &[u8]) -> u32 {
    crc32c_raw(!0, &bytes[..CHECKSUM_OFFSET])
}

/// Stores the checksum of a superblock.
pub(crate) fn seal_superblock(raw: &mut RawSuperblock) {
    if features(raw).ro_compat.contains(RoCompat::METADATA_CSUM) {
        raw.s_checksum.set(superblock_checksum(raw.as_bytes()));
    }
}

/// The sizes in a superblock. They are checked together, because they depend on each other.
struct Geometry {
    block_size: BlockSize,
    blocks_count: u64,
    cluster_blocks: u32,
    descriptor_size: u16,
    groups: u32,
}

impl Geometry {
    fn parse(
        raw: &RawSuperblock,
        incompat: Incompat,
        ro_compat: RoCompat,
        device_size: u64,
    ) -> Result<Self> {
        let log = raw.s_log_block_size.get();
        let block_size = Superblock::block_size_of(raw.as_bytes())
            .ok_or_else(|| PLACE.field("s_log_block_size").corrupt(format!("{log}")))?;
        let sixty_four = incompat.contains(Incompat::SIXTY_FOUR_BIT);
        let high = if sixty_four { raw.s_blocks_count_hi.get() } else { 0 };
        let blocks_count = u64::from(raw.s_blocks_count_lo.get()) | u64::from(high) << 32;
        let size = blocks_count
            .checked_mul(block_size.bytes() as u64)
            .filter(|size| *size <= i64::MAX as u64);
        let field = PLACE.field("s_blocks_count");
        let Some(size) = size else {
            return Err(
                field.corrupt(format!("{blocks_count} blocks are more than any device can have"))
            );
        };
        if size > device_size {
            return Err(field.corrupt(format!(
                "the file system has {size} bytes, but the device has only {device_size}: the volume is truncated (--truncated reads the remaining part)"
            )));
        }

        let log_ratio = if ro_compat.contains(RoCompat::BIGALLOC) {
            raw.s_log_cluster_size.get().checked_sub(log).filter(|ratio| *ratio <= 16)
        } else {
            Some(0)
        };
        let Some(log_ratio) = log_ratio else {
            let value = raw.s_log_cluster_size.get();
            return Err(PLACE.field("s_log_cluster_size").corrupt(format!("{value}")));
        };
        let cluster_blocks = 1_u32 << log_ratio;

        let blocks_per_group = raw.s_blocks_per_group.get();
        let clusters_per_group = blocks_per_group / cluster_blocks;
        if clusters_per_group == 0
            || !blocks_per_group.is_multiple_of(cluster_blocks)
            || u64::from(clusters_per_group) > block_size.bytes() as u64 * 8
        {
            return Err(PLACE.field("s_blocks_per_group").corrupt(format!("{blocks_per_group}")));
        }
        let first = raw.s_first_data_block.get();
        let data_blocks =
            blocks_count.checked_sub(u64::from(first)).filter(|count| *count > 0 && first <= 1);
        let Some(data_blocks) = data_blocks else {
            return Err(PLACE.field("s_first_data_block").corrupt(format!(
                "block {first} is not valid on a volume of {blocks_count} blocks"
            )));
        };
        let groups =
            u32::try_from(data_blocks.div_ceil(u64::from(blocks_per_group))).map_err(|_| {
                field.corrupt(format!("{blocks_count} blocks in groups of {blocks_per_group} give too many groups or none"))
            })?;

        let descriptor_size = if sixty_four { raw.s_desc_size.get() } else { group::SMALL as u16 };
        if sixty_four
            && (descriptor_size < 64
                || !descriptor_size.is_power_of_two()
                || descriptor_size > 1024)
        {
            return Err(PLACE.field("s_desc_size").corrupt(format!("{descriptor_size} bytes")));
        }
        Ok(Self { block_size, blocks_count, cluster_blocks, descriptor_size, groups })
    }
}

/// The alignment of large requests, in blocks: the width of a RAID stripe. If the superblock contains no usable width, the alignment is the
/// stride of one disk. If the superblock also contains no usable stride, the alignment is 0.
fn stripe(raw: &RawSuperblock) -> u32 {
    let candidates = [raw.s_raid_stripe_width.get(), u32::from(raw.s_raid_stride.get())];
    let fits = |blocks: &u32| *blocks > 1 && *blocks <= raw.s_blocks_per_group.get();
    candidates.into_iter().find(fits).unwrap_or(0)
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

impl Superblock {
    /// The block that contains the superblock, and the offset in that block.
    pub(super) fn position(&self) -> (FsBlock, usize) {
        let (at, _) = Self::RANGE;
        let size = self.block_size;
        (FsBlock(at.0 >> size.shift()), at.0 as usize % size.bytes())
    }
}

/// The features of a volume. As in Linux, the feature fields are also used in revision 0.
pub(super) fn features(raw: &RawSuperblock) -> Features {
    Features {
        compat: Compat::from_bits_retain(raw.s_feature_compat.get()),
        incompat: Incompat::from_bits_retain(raw.s_feature_incompat.get()),
        ro_compat: RoCompat::from_bits_retain(raw.s_feature_ro_compat.get()),
    }
}

/// Changes the features. If a volume of revision 0 gets a feature, its revision becomes 1, as in Linux. Revision 0 implies the values of
/// some fields. These values are stored in the fields when the revision changes.
pub(super) fn change_features(raw: &mut RawSuperblock, change: impl FnOnce(&mut Features)) {
    let mut now = features(raw);
    change(&mut now);
    raw.s_feature_compat.set(now.compat.bits());
    raw.s_feature_incompat.set(now.incompat.bits());
    raw.s_feature_ro_compat.set(now.ro_compat.bits());
    if raw.s_rev_level.get() < REV_DYNAMIC && now != Features::NONE {
        raw.s_rev_level.set(REV_DYNAMIC);
        raw.s_first_ino.set(FIRST_INODE);
        raw.s_inode_size.set(GOOD_OLD_SIZE as u16);
    }
}

/// Changes the superblock at the start of `bytes`, and stores its checksum.
pub(super) fn change_superblock<R>(
    bytes: &mut [u8],
    change: impl FnOnce(&mut RawSuperblock) -> Result<R>,
) -> Result<R> {
    let Ok((raw, _)) = RawSuperblock::mut_from_prefix(bytes) else {
        return Err(PLACE.corrupt("the superblock is truncated"));
    };
    let result = change(raw)?;
    seal_superblock(raw);
    Ok(result)
}

/// Sets a time stamp of the superblock.
pub(super) fn set_time(low: &mut U32, high: &mut u8, time: Timestamp) {
    low.set(time.seconds as u32);
    *high = (time.seconds >> 32) as u8;
}
