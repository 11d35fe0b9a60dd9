//! Changes the owner of map blocks. When two files exchange their maps (`xfs_fsr`), the log contains the inodes, but not the blocks of the
//! map B+trees. Each of these blocks records its owner, an inode. So recovery writes the new owner into each block.

use zerocopy::FromBytes;
use zerocopy::big_endian::U64;

use super::replay::Replay;
use crate::error::{Error, Place, Result};
use crate::fs::xfs::disk::btree::{HEADER_V5, MAP_V5, RawHeader, RawRoot};
use crate::fs::xfs::geometry::BASIC_SHIFT;
use crate::fs::xfs::header::Header;
use crate::units::InodeNo;

/// The maximum number of ownership changes in a log. A block that changes its owner twice counts twice. With the smallest blocks, this
/// limit covers maps of 15 million extents. With 4 KiB blocks, it covers maps of 65 million extents.
pub(super) const MAX_OWNED: u32 = 1 << 18;

impl Replay<'_> {
    /// Makes an inode the owner of all blocks below the tree root in its fork.
    pub(super) fn change_owner(&mut self, fork: &[u8], owner: InodeNo) -> Result<()> {
        let place = Place::new("root of extents").inode(owner);
        let Ok((root, rest)) = RawRoot::ref_from_prefix(fork) else {
            return Err(place.corrupt("the block of the extent tree is truncated"));
        };
        let mut level = root.bb_level.get();
        let mut pointers = pointers(rest, root.bb_numrecs.get().into(), place)?;
        while level > 0 {
            level -= 1;
            let mut below = Vec::new();
            for number in std::mem::take(&mut pointers) {
                let Some(left) = self.owners_left.checked_sub(1) else {
                    let what =
                        format!("the XFS log changes the owner of more than {MAX_OWNED} blocks");
                    return Err(Error::unsupported(what));
                };
                self.owners_left = left;
                below.extend(self.own_block(number, level, owner)?);
            }
            pointers = below;
        }
        Ok(())
    }

    /// Writes the owner into a block. Returns the pointers to the block's children.
    fn own_block(&mut self, number: u64, level: u16, owner: InodeNo) -> Result<Vec<u64>> {
        let place = Place::new("node of extents").inode(owner);
        let geometry = self.superblock.geometry;
        let block = geometry.fs_block(number, 1, place.field("bb_ptr"))?;
        let sectors = geometry.block.bytes() as u64 >> BASIC_SHIFT;
        let (at, mut bytes) = self.read(geometry.basic_sector(block), sectors)?;
        let place = place.block(block);
        let Ok((raw, _)) = RawHeader::read_from_prefix(&bytes) else {
            return Err(place.corrupt("the block of the extent tree is truncated"));
        };
        if u32::from_be_bytes(raw.bb_magic) != MAP_V5 || raw.bb_level.get() != level {
            // A block that does not belong to this map any more is not changed. Either a later transaction has freed and reused the block,
            // or the map is damaged. Damage is detected when the map is read.
            return Ok(Vec::new());
        }
        let field = Header::MAP.owner;
        bytes[field..field + 8].copy_from_slice(&owner.0.to_be_bytes());
        // The header contains the owner. The sectors after the header are not changed.
        self.put_part(at, &bytes, 0..HEADER_V5);
        if level == 0 {
            return Ok(Vec::new());
        }
        pointers(&bytes[HEADER_V5..], raw.bb_numrecs.get().into(), place)
    }
}

/// The pointers of a node to its children. They follow the space for the largest number of keys that the node can have.
fn pointers(bytes: &[u8], count: usize, place: Place) -> Result<Vec<u64>> {
    let room = bytes.len() / 16;
    match <[U64]>::ref_from_prefix_with_elems(&bytes[room * 8..], count) {
        Ok((pointers, _)) if count <= room => Ok(pointers.iter().map(|at| at.get()).collect()),
        _ => Err(place.field("bb_numrecs").corrupt(format!("{count} of {room}"))),
    }
}
