//! Makes a volume.
//!
//! mkfs first takes three steps in memory. [`geometry`] computes the sizes and counts of the volume. [`layout`] assigns positions to all
//! metadata. [`files`] assigns positions to the files of the new volume. Nothing is written before these steps have succeeded. The
//! superblock is written last. Before that write, no program recognises a volume on the device.
//!
//! The sizes and counts are the same as in a volume that mke2fs makes. The positions are different: the journal is near the start, after
//! the first inode tables, and each file is contiguous.
//!
//! The required memory is 24 bytes and a descriptor for each group, and a few ranges for each flex group. A volume of 16 TiB needs 16 MiB.

mod features;
mod files;
pub(super) mod geometry;
pub(super) mod groups;
mod inode;
pub(super) mod layout;
pub(super) mod map;
mod options;
pub(super) mod output;
mod quota;
pub(super) mod space;
mod superblock;

use std::mem::offset_of;
use std::time::{SystemTime, UNIX_EPOCH};

use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use self::geometry::Geometry;
use self::groups::{TablesAre, Used};
use self::inode::Files;
use self::layout::Layout;
use self::output::Output;
use self::space::Space;
use self::superblock::Identity;
use super::disk::reserved;
use super::disk::superblock::{FIRST_INODE, OFFSET, RawSuperblock, STATE_VALID};
use super::superblock::{Superblock, seal_superblock};
use super::{Compat, Incompat, RoCompat, mmp};
use crate::device::Device;
use crate::error::{Context, Errno, Error, ErrorKind, Result};
use crate::sys::Buffer;
use crate::units::DevOffset;

pub use self::features::Features;
pub use self::options::MkfsOptions;

/// The number of bytes that mkfs zeros at the start and at the end of the device. These bytes can contain magic numbers of other formats.
const SIGNATURES: u64 = 128 << 10;

/// Makes a volume on a device that is open for writing. Refuses to overwrite a volume that another node holds. Any other content of the
/// device is lost without a check. Returns the new volume's superblock.
///
/// # Errors
/// `InvalidInput` for invalid options; `Unsupported`, with the name of the option; `NoSpace` if the volume is too small for its metadata;
/// `Busy` if another node holds a volume on the device; errors of the device. Errors of the options are returned before the first write.
pub(crate) fn mkfs(device: &dyn Device, options: &MkfsOptions) -> Result<Superblock> {
    run(device, options, true)
}

/// Plans a volume, and writes nothing. [`mkfs`] makes the same plan before its first write.
///
/// # Errors
/// The errors of [`mkfs`], except for errors of the device.
pub(crate) fn plan(device: &dyn Device, options: &MkfsOptions) -> Result<()> {
    run(device, options, false).map(drop)
}

fn run(device: &dyn Device, options: &MkfsOptions, write: bool) -> Result<Superblock> {
    let size = options.size.unwrap_or(device.size());
    if size > device.size() {
        let has = device.size();
        return Err(Error::invalid(format!(
            "a volume of {size} bytes does not fit on a device of {has} bytes"
        )));
    }
    let geometry = Geometry::new(options, size, device.limits().logical_block)?;
    if device.limits().logical_block as usize > geometry.block_size.bytes() {
        let (block, unit) = (geometry.block_size.bytes(), device.limits().logical_block);
        return Err(Error::unsupported(format!(
            "blocks of {block} bytes are smaller than the device's sectors of {unit} bytes"
        )));
    }
    let identity = identity(options)?;
    let mut raw = superblock::superblock(&geometry, options, &identity)?;
    seal_superblock(&mut raw);
    // The new superblock is decoded and checked in the same way as when a volume is opened. If the check refuses the superblock, mkfs fails
    // before the first write.
    let sb = Superblock::decode(raw.as_bytes(), device.size())?;

    let mut space =
        Space::new(sb.first_data_block.into()..sb.blocks_count, sb.cluster_blocks.into());
    let layout = Layout::new(&sb, &geometry, &mut space)?;
    let mut files = Files::new(&sb, &geometry, &mut space, FIRST_INODE);
    make_files(&mut files, &layout, &mut raw, options, &identity)?;
    let table = files.table(identity.time)?;
    let used = Used { inodes: files.inodes_in_use(), directories: 2 };
    let Files { blocks, zeros, .. } = files;
    if !write {
        return Ok(sb);
    }
    refuse_held(device)?;
    let output = Output::new(device, geometry.block_size)?;
    let tables = prepare(device, options, &layout, &output)?;
    if !options.zeroed {
        zeros.into_iter().try_for_each(|range| output.zero(range))?;
    }
    let (descriptors, free) = layout.write_groups(&space, used, tables, &output)?;
    output.write_all(blocks)?;
    output.write(layout.tables[0].inode_table, &table)?;
    write_descriptors(&layout, &descriptors, &output)?;

    let free_blocks = free.clusters * u64::from(sb.cluster_blocks);
    raw.s_free_blocks_count_lo.set(free_blocks as u32);
    raw.s_free_blocks_count_hi.set((free_blocks >> 32) as u32);
    raw.s_free_inodes_count.set(free.inodes);
    write_superblocks(&layout, &mut raw, &output).context(|| "superblock")?;
    Superblock::parse(raw.as_bytes(), device.size())
}

/// Refuses a device if another node holds its volume by multiple mount protection. The check waits until it knows whether the other node is
/// alive. If the other node has crashed, the check succeeds.
fn refuse_held(device: &dyn Device) -> Result<()> {
    let (at, len) = Superblock::RANGE;
    let mut bytes = vec![0; len];
    if at.0 + len as u64 > device.size() {
        return Ok(());
    }
    device.read_exact_at(&mut bytes, at)?;
    // No node can hold a volume that has no valid superblock.
    let Ok(held) = Superblock::parse(&bytes, device.size()) else { return Ok(()) };
    match mmp::check(device, &held, mmp::Purpose::Write) {
        Err(error) if error.kind() == ErrorKind::Busy => Err(error),
        _ => Ok(()),
    }
}

/// The UUID, the hash seed and the time of the new volume. The options can set each of them. By default the UUID and the hash seed are
/// random, and the time is the current time.
fn identity(options: &MkfsOptions) -> Result<Identity> {
    let uuid = match options.uuid {
        Some(uuid) => uuid,
        None => random_uuid()?,
    };
    let hash_seed = match (options.hash_seed, options.uuid) {
        (Some(seed), _) => seed,
        (None, Some(uuid)) => uuid,
        (None, None) => random()?,
    };
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    Ok(Identity { uuid, hash_seed, time: options.time.unwrap_or_else(now) })
}

/// A random UUID (version 4, variant 1 of RFC 9562).
pub(super) fn random_uuid() -> Result<[u8; 16]> {
    let mut uuid = random()?;
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    Ok(uuid)
}

/// Random bytes from the kernel.
pub(super) fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
    let failed = |error: std::io::Error| {
        Error::io(Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)), "/dev/urandom")
    };
    read.map_err(failed).map(|()| bytes)
}

/// Creates the files of the new volume in the order of their positions. Stores the inode numbers of internal files in the superblock.
fn make_files(
    files: &mut Files<'_>,
    layout: &Layout<'_>,
    raw: &mut RawSuperblock,
    options: &MkfsOptions,
    identity: &Identity,
) -> Result<()> {
    let sb = layout.sb;
    // The number of clusters that files can never use: the clusters of the metadata at fixed positions, and the clusters of the journal's
    // content. The blocks of the journal's map are not counted.
    let within = u64::from(sb.first_data_block)..sb.blocks_count;
    let taken: u64 = files.space.clusters_in(within).map(|taken| taken.end - taken.start).sum();
    let journal = layout.geometry.journal_blocks.div_ceil(sb.cluster_blocks);
    let overhead = u64::from(sb.first_data_block) + taken + u64::from(journal);
    raw.s_overhead_clusters.set(u32::try_from(overhead).unwrap_or(0));

    files.goal = layout.tables[0].inode_table + u64::from(layout.geometry.table_blocks);
    if layout.geometry.journal_blocks > 0 {
        let backup = files.journal(identity.uuid)?;
        raw.s_journal_inum.set(reserved::JOURNAL);
        raw.s_jnl_backup_type = 1;
        raw.s_jnl_blocks = backup.map(U32::new);
    }
    files.directories(options)?;
    if sb.compat.contains(Compat::RESIZE_INODE) {
        files.resize_inode(layout)?;
    }
    if sb.ro_compat.contains(RoCompat::QUOTA) {
        let [user, group, project] = files.quota()?;
        raw.s_usr_quota_inum.set(user);
        raw.s_grp_quota_inum.set(group);
        raw.s_prj_quota_inum.set(project);
    }
    if sb.compat.contains(Compat::ORPHAN_FILE) {
        raw.s_orphan_file_inum.set(files.orphan_file()?);
    }
    if sb.incompat.contains(Incompat::MMP) {
        raw.s_mmp_block.set(files.mmp(identity.time)?);
    }
    Ok(())
}

/// Clears the signatures of other formats on the device, and zeros the inode tables.
fn prepare(
    device: &dyn Device,
    options: &MkfsOptions,
    layout: &Layout<'_>,
    output: &Output<'_>,
) -> Result<TablesAre> {
    let sb = layout.sb;
    if options.discard {
        match device.discard(DevOffset(0), sb.blocks_count << sb.block_size.shift()) {
            // The device does not support discards. mkfs continues without them.
            Err(error) if error.errno() == Errno::EOPNOTSUPP => {}
            result => result?,
        }
    }
    if options.zeroed {
        return Ok(TablesAre::Zero);
    }
    let ends = sb.block_size.blocks_for(SIGNATURES).min(sb.blocks_count);
    output.zero(0..ends)?;
    // After this flush, the superblock of an earlier volume is durably removed. If mkfs is interrupted later, no program recognises the
    // earlier volume.
    output.flush()?;
    output.zero(sb.blocks_count - ends..sb.blocks_count)?;
    let lazy = sb.ro_compat.intersects(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM);
    if options.lazy_tables && lazy {
        return Ok(TablesAre::Unknown);
    }
    for tables in &layout.tables {
        let start = tables.inode_table;
        output.zero(start..start + u64::from(layout.geometry.table_blocks))?;
    }
    Ok(TablesAre::Zero)
}

/// Writes all copies of the group descriptors.
fn write_descriptors(layout: &Layout<'_>, descriptors: &[u8], output: &Output<'_>) -> Result<()> {
    let size = layout.sb.block_size.bytes();
    layout.descriptor_copies().try_for_each(|(blocks, at)| {
        let bytes = blocks.start as usize * size..blocks.end as usize * size;
        output.write(at, &descriptors[bytes])
    })
}

/// Writes the backups of the superblock, and then the primary superblock. All other blocks are durable before the magic number of the
/// primary superblock is written.
fn write_superblocks(
    layout: &Layout<'_>,
    raw: &mut RawSuperblock,
    output: &Output<'_>,
) -> Result<()> {
    let size = layout.sb.block_size.bytes();
    let mut block = Buffer::aligned(size)?;
    let len = size_of::<RawSuperblock>();
    for group in (0..layout.sb.groups).rev().filter(|group| layout.sb.group_has_backup(*group)) {
        raw.s_block_group_nr.set(group as u16);
        raw.s_state.set(if group == 0 { STATE_VALID } else { 0 });
        seal_superblock(raw);
        let at = if group == 0 { OFFSET as usize % size } else { 0 };
        block.fill(0);
        block[at..at + len].copy_from_slice(raw.as_bytes());
        if group == 0 {
            // The magic number is written last. If it were written with the other fields, a partly written superblock could appear valid on
            // a volume without checksums.
            let magic = at + offset_of!(RawSuperblock, s_magic);
            block[magic..magic + 2].fill(0);
            output.write(layout.superblock_at(group), &block)?;
            output.flush()?;
            block[magic..magic + 2].copy_from_slice(raw.s_magic.as_bytes());
        }
        output.write(layout.superblock_at(group), &block)?;
    }
    output.flush()
}
