//! Suggests a size for a volume that is too small for its sources.

use ironmap::fs::ext4::Superblock;
use ironmap_image::needs::Needs;
use ironmap_image::place::shown;

use super::Args;

/// The unit of the space of files, in bytes.
pub(super) fn unit(made: &Superblock) -> u64 {
    // The suggested volume may be larger than this volume, and may therefore have blocks of 4096 bytes.
    (made.block_size.bytes() as u64 * u64::from(made.cluster_blocks)).max(4096)
}

/// The reason why the volume is too small, and a sufficient size. The size includes an additional third for metadata, which is more than
/// enough. `None` if the volume should have been large enough: then the failure has another cause.
pub(super) fn advice(needs: &Needs, args: &Args, made: &Superblock) -> Option<String> {
    const MIB: u64 = 1 << 20;
    let &Needs { inodes, bytes, .. } = needs;
    let (size, count) =
        (made.blocks_count * made.block_size.bytes() as u64, u64::from(made.inodes_count));
    // The file system itself uses some inodes, so the volume needs some more.
    let few = inodes + 16 > count;
    let (wanted, inode_size) = (inodes + 64, u64::from(made.inode_size));
    let room = bytes.saturating_add(bytes / 3 + args.journal_size.unwrap_or(0) + 8 * MIB);
    // The size of the volume for each inode, in bytes: by default at most 16 KiB.
    let usual = (size / count.max(1)).max(1);
    let (room, for_inodes) = match args.inodes {
        Some(_) => (room.saturating_add(wanted.max(count) * inode_size), 0),
        None => {
            let usual = if wanted * usual < 512 * MIB { usual } else { usual.max(16 << 10) };
            (room.saturating_add(room / usual * inode_size * 2), wanted * usual)
        }
    };
    let with_more = room.saturating_add(wanted * inode_size).max(size).div_ceil(MIB);
    let enough = room.max(for_inodes).div_ceil(MIB);
    let sources: Vec<_> = args.sources.iter().map(|path| shown(path)).collect();
    let (sources, bytes) = (sources.join(" and "), bytes.div_ceil(MIB));
    let need = if args.sources.len() == 1 { "needs" } else { "need" };
    let needs = format!("{sources} {need} {inodes} inodes and about {bytes}M");
    match args.inodes {
        Some(_) if few => {
            let enough = enough.max(size.div_ceil(MIB));
            Some(format!(
                "the volume has too few inodes: {needs}; --inodes {wanted} and a size of {enough}M should be enough"
            ))
        }
        None if few && with_more < enough => Some(format!(
            "the volume is too small: {needs}; --inodes {wanted} and {with_more}M, or a size of {enough}M should be enough"
        )),
        _ if enough <= size / MIB => None,
        _ => {
            Some(format!("the volume is too small: {needs}; a size of {enough}M should be enough"))
        }
    }
}
