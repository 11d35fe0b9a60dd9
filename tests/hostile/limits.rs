//! Random damage does not produce a volume that exceeds some of the limits of the code. For each of these limits, a test makes such a
//! volume.

use ironmap::ErrorKind;
use ironmap::iomap::MapFile;
use ironmap::units::{FilePos, InodeNo};

use crate::repair::crc;
use crate::scratch::Scratch;
use crate::spots::{JOURNAL_MAGIC, Raw, SUPERBLOCK, Spot, Sum};
use crate::volume::Base;

fn all_of_ext4() -> Scratch {
    Scratch::new(Base::all().swap_remove(0))
}

/// The last descriptor block of the log, and the copied block after it.
fn last_copy(scratch: &Scratch) -> (Spot, Spot) {
    let raw = Raw(scratch.bytes());
    let spots = &scratch.base().spots;
    let descriptor = spots.iter().rfind(|spot| {
        let logged = matches!(spot.sum, Sum::Journal { .. });
        logged && raw.be32(spot.at) == JOURNAL_MAGIC && raw.be32(spot.at + 4) == 1
    });
    let descriptor = *descriptor.unwrap();
    let Sum::Journal { index } = descriptor.sum else { unreachable!() };
    let copy = Sum::Journal { index: index + 1 };
    (descriptor, *spots.iter().find(|spot| spot.sum == copy).unwrap())
}

/// A file has many extents that refer to the same block, and the journal contains a copy of this block. The map would be split into too
/// many parts, so the file is refused.
#[test]
fn extents_that_share_relocated_blocks_are_refused() {
    let mut scratch = all_of_ext4();
    let file = *scratch.base().spots.iter().find(|spot| spot.sum == Sum::Orphan).unwrap();
    let (mut root, blocks) = (vec![0x0A, 0xF3, 4, 0, 4, 0, 0, 0, 0, 0, 0, 0], 4000_u16);
    for number in 0..4 {
        root.extend(u32::to_le_bytes(number * 8192));
        root.extend(blocks.to_le_bytes());
        root.extend([0, 0]);
        root.extend(1_u32.to_le_bytes());
    }
    scratch.write(file.owner + 0x28, &root);
    let volume = scratch.repaired().unwrap();
    let inode = volume.fs().inode(InodeNo(u64::from(file.inode))).unwrap();
    let error = inode.map(FilePos(0), 1).unwrap_err();
    assert_eq!(error.place().map(|place| place.field), Some("ee_start"), "{error}");
}

/// An orphan file that is too long is refused. The size of the volume does not limit the length of the file, because all its blocks can be
/// the same block.
#[test]
fn an_endless_orphan_file_is_refused() {
    let mut scratch = all_of_ext4();
    let file = *scratch.base().spots.iter().find(|spot| spot.sum == Sum::Orphan).unwrap();
    scratch.write(file.owner + 0x6C, &[1]);
    let error = scratch.repaired().unwrap().ext4().unwrap().orphans().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
}

/// A copy of the superblock in the journal cannot change the block size, because the recovery has already used the old block size.
#[test]
fn a_recovered_superblock_keeps_the_block_size() {
    let mut scratch = all_of_ext4();
    let (descriptor, copy) = last_copy(&scratch);
    let mut superblock = scratch.bytes()[SUPERBLOCK..][..1024].to_vec();
    let blocks = Raw(&superblock).u32(4) / 2;
    superblock[4..8].copy_from_slice(&blocks.to_le_bytes());
    superblock[0x18] = 1;
    let sum = crc(!0, &superblock[..0x3FC]);
    superblock[0x3FC..].copy_from_slice(&sum.to_le_bytes());
    scratch.write(copy.at, &superblock);
    scratch.write(descriptor.at + 12, &1_u32.to_be_bytes());
    let error = scratch.repaired().err().unwrap();
    assert_eq!(error.place().map(|place| place.field), Some("s_log_block_size"), "{error}");
}
