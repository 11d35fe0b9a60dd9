//! Suggests a size for a volume that is too small for its sources.

use ironmap_image::failure::TooSmall;
use ironmap_image::needs::{Dimensions, Needs};
use ironmap_image::place::shown;

use super::Args;

/// Returns the reason why the volume is too small, and a sufficient size. For the metadata, the size includes a third of the content, which
/// is more than enough. Returns `None` if the volume should have been large enough, so that the failure has another cause.
pub(super) fn advice(small: &TooSmall, args: &Args) -> Option<String> {
    const MIB: u64 = 1 << 20;
    let Needs { inodes, bytes, .. } = small.needs;
    let Dimensions { size, inodes: count, inode_size, .. } = small.volume;
    // The file system itself uses some inodes.
    let few = inodes + 16 > count;
    let wanted = inodes + 64;
    let room = bytes.saturating_add(bytes / 3 + args.journal_size.unwrap_or(0) + 8 * MIB);
    // The number of bytes of the volume per inode. The default is at most 16 KiB.
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
