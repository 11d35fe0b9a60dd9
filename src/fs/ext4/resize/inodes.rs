//! Changes inodes during a resize: their positions in the inode tables, their block maps and their attribute blocks.

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::Volume;
use super::edits::{Edits, Rank};
use super::plan::{Change, Plan};
use super::scan::Item;
use super::shape::Shape;
use crate::error::{Place, Result};
use crate::fs::InodeFlags;
use crate::fs::ext4::attr::seal_xattr_block;
use crate::fs::ext4::disk::inode::RawInode;
use crate::fs::ext4::inode::{seal_inode, sectors};
use crate::fs::ext4::mkfs::layout::Tables;
use crate::fs::ext4::mkfs::map::FileMap;
use crate::fs::ext4::orphan::seal_orphan_block;
use crate::fs::ext4::{Incompat, RoCompat, Superblock};
use crate::sys::Buffer;
use crate::units::{FsBlock, InodeNo};

const INODE: Place = Place::new("inode");

impl Volume {
    /// Adds a changed inode to `edits`, the blocks to write. The written inode has the number, the block map and the attribute block that
    /// it gets in the new volume.
    pub(super) fn edit_inode(
        &self,
        plan: &Plan,
        change: &Change,
        items: &[Item],
        shape: &mut Shape,
        edits: &mut Edits<'_>,
    ) -> Result<()> {
        let fs = &self.found;
        let Some(item) = find(items, change.number) else { return Ok(()) };
        let number = plan.numbers.of(change.number);
        let Shape { raw: superblock, sb, .. } = shape;
        let size = usize::from(sb.inode_size);
        let old_place = fs.inode_place(change.number)?;
        let old = fs.blocks.read(old_place.block, INODE)?;
        let old = &old[old_place.at..old_place.at + size];
        let (block, at) = place_in(sb, &plan.tables, number);
        let map = change.map.as_ref();
        let attributes = item.xattr.map(|block| plan.moves.place(block));
        edits.edit(fs, block, Rank::Inodes, |bytes| {
            let bytes = &mut bytes[at..at + size];
            bytes.copy_from_slice(old);
            let Ok((raw, _)) = RawInode::mut_from_prefix(bytes) else {
                return Err(INODE.inode(number).corrupt("the inode is truncated"));
            };
            if let Some(map) = map {
                put_map(sb, raw, map, change.old_nodes.len() as u64);
            }
            if let Some(block) = attributes {
                raw.i_file_acl_lo.set(block as u32);
                if sb.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
                    raw.i_file_acl_high.set((block >> 32) as u16);
                }
            }
            seal_inode(sb, number, bytes);
            Ok(())
        })??;
        if number != change.number {
            self.delete(change.number, edits)?;
        }
        for (at, content) in map.into_iter().flat_map(|map| &map.blocks) {
            let mut copy = Buffer::aligned(content.len())?;
            copy.copy_from_slice(content);
            edits.put(FsBlock(*at), Rank::Fresh, copy);
        }
        if let Some(block) = attributes.filter(|block| item.xattr != Some(*block)) {
            edits.edit(fs, FsBlock(block), Rank::Inodes, |bytes| {
                seal_xattr_block(sb.seed, FsBlock(block), bytes);
            })?;
        }
        if self.journal() == Some(change.number)
            && let Some(map) = map
            && superblock.s_jnl_backup_type == 1
        {
            let (words, _) = map.i_block.as_chunks::<4>();
            for (to, word) in superblock.s_jnl_blocks.iter_mut().zip(words) {
                *to = U32::new(u32::from_le_bytes(*word));
            }
        }
        if sb.orphan_file == Some(change.number) {
            self.seal_orphan_file(plan, sb.inode_seed(number, item.generation), item, edits)?;
        }
        Ok(())
    }

    /// Computes new checksums of the orphan file's blocks. The checksum of each block covers the block's position.
    fn seal_orphan_file(
        &self,
        plan: &Plan,
        seed: Option<u32>,
        item: &Item,
        edits: &mut Edits<'_>,
    ) -> Result<()> {
        for extent in &item.map.extents {
            let range = extent.start.0..extent.start.0 + u64::from(extent.len);
            for block in plan.moves.places(range).into_iter().flatten() {
                edits.edit(&self.found, FsBlock(block), Rank::Entries, |bytes| {
                    seal_orphan_block(seed, FsBlock(block), bytes);
                })?;
            }
        }
        Ok(())
    }

    /// Deletes the old copy of an inode that has a new number. If the old copy remained and the resize was interrupted before the size
    /// changes, e2fsck would find two files with the same blocks.
    fn delete(&self, number: InodeNo, edits: &mut Edits<'_>) -> Result<()> {
        let (fs, now) = (&self.found, self.clock.now());
        let place = fs.inode_place(number)?;
        let size = usize::from(fs.superblock.inode_size);
        edits.edit(fs, place.block, Rank::Gone, |bytes| {
            let bytes = &mut bytes[place.at..place.at + size];
            if let Ok((raw, _)) = RawInode::mut_from_prefix(bytes) {
                raw.i_links_count.set(0);
                raw.i_dtime.set(now.seconds as u32);
            }
            seal_inode(&fs.superblock, number, bytes);
        })
    }
}

/// Finds the properties of an inode in `items`, which must be sorted by inode number.
pub(super) fn find(items: &[Item], number: InodeNo) -> Option<&Item> {
    items.binary_search_by_key(&number, |item| item.number).ok().map(|at| &items[at])
}

/// Stores a block map in an inode and updates `i_blocks`, which also counts the blocks of the map. `old_nodes` is the number of blocks of
/// the old map.
fn put_map(sb: &Superblock, raw: &mut RawInode, map: &FileMap, old_nodes: u64) {
    raw.i_block = map.i_block;
    let shift = sb.block_size.shift() - 9;
    let per_node = u64::from(sb.cluster_blocks) << shift;
    let (before, after) = (old_nodes * per_node, map.blocks.len() as u64 * per_node);
    let total = (sectors(sb, raw) + after).saturating_sub(before);
    let flags = InodeFlags::from_bits_retain(raw.i_flags.get());
    let in_blocks = flags.contains(InodeFlags::HUGE_FILE);
    let total = if in_blocks { total >> shift } else { total };
    raw.i_blocks_lo.set(total as u32);
    if sb.ro_compat.contains(RoCompat::HUGE_FILE) {
        raw.i_blocks_high.set((total >> 32) as u16);
    }
}

/// The position of an inode in the inode tables of the new volume.
fn place_in(sb: &Superblock, tables: &[Tables], number: InodeNo) -> (FsBlock, usize) {
    let index = number.0 - 1;
    let per_group = u64::from(sb.inodes_per_group);
    let byte = index % per_group * u64::from(sb.inode_size);
    let table = tables[(index / per_group) as usize].inode_table;
    let block = FsBlock(table + (byte >> sb.block_size.shift()));
    (block, byte as usize & (sb.block_size.bytes() - 1))
}
