//! The groups of a new volume: their descriptors and, if required, their bitmaps.
//!
//! If group descriptors have checksums, a group can stay uninitialised. In this case, flags in the group's descriptor say that its bitmaps
//! were not written, and a counter in the descriptor contains the number of unused inodes at the end of the inode table. Without checksums,
//! all bitmaps and inode tables are written.

use zerocopy::{FromZeros, IntoBytes};

use super::layout::{Layout, Tables};
use super::output::Output;
use super::space::Space;
use crate::error::Result;
use crate::fs::ext4::RoCompat;
use crate::fs::ext4::disk::group::{
    BLOCK_UNINIT, INODE_UNINIT, INODE_ZEROED, RawGroupHigh, RawGroupLow,
};
use crate::sys::Buffer;

/// The numbers of free clusters and inodes.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::fs::ext4) struct Free {
    pub(in crate::fs::ext4) clusters: u64,
    pub(in crate::fs::ext4) inodes: u32,
}

/// The inodes in use in a group. In a new volume, only group 0 has inodes in use.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::fs::ext4) struct Used {
    /// The number of used inodes. They are the first inodes of the group.
    pub(in crate::fs::ext4) inodes: u32,
    pub(in crate::fs::ext4) directories: u32,
}

/// The content of the new inode tables' blocks on the device before mkfs writes inodes: zeros, or unknown bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs::ext4) enum TablesAre {
    Zero,
    Unknown,
}

/// A group and its counts.
struct Group {
    number: u32,
    used: Used,
    free: Free,
    /// Whether the group's block bitmap is not written.
    block_uninit: bool,
    /// Whether the group's inode bitmap is not written.
    inode_uninit: bool,
}

impl Layout<'_> {
    /// Writes the bitmaps that cannot stay uninitialised. Returns all group descriptors, and the numbers of free clusters and inodes.
    pub(in crate::fs::ext4) fn write_groups(
        &self,
        space: &Space,
        used: Used,
        tables: TablesAre,
        output: &Output<'_>,
    ) -> Result<(Buffer, Free)> {
        let size = usize::from(self.sb.descriptor_size);
        let blocks = self.geometry.descriptor_blocks as usize;
        let mut descriptors = Buffer::aligned(blocks << self.sb.block_size.shift())?;
        let mut free = Free::default();
        for (number, descriptor) in (0..self.sb.groups).zip(descriptors.chunks_exact_mut(size)) {
            let used = if number == 0 { used } else { Used::default() };
            let group = self.write_group((number, used), space, tables, output, descriptor)?;
            free.clusters += group.clusters;
            free.inodes += group.inodes;
        }
        Ok((descriptors, free))
    }

    /// Writes the bitmaps of one group.
    pub(in crate::fs::ext4) fn write_group(
        &self,
        (number, used): (u32, Used),
        space: &Space,
        tables: TablesAre,
        output: &Output<'_>,
        descriptor: &mut [u8],
    ) -> Result<Free> {
        let group = self.group(number, space, used);
        self.describe(&group, tables, descriptor);
        self.write_bitmaps(&group, space, output, descriptor)?;
        self.sb.seal_descriptor(number, descriptor);
        Ok(group.free)
    }

    /// Whether bitmaps may stay unwritten. Flags in the group descriptors then say which bitmaps were not written.
    fn is_lazy(&self) -> bool {
        self.sb.ro_compat.intersects(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM)
    }

    fn clusters_of(&self, group: u32) -> u64 {
        let blocks = self.blocks_of(group);
        (blocks.end - blocks.start).div_ceil(u64::from(self.sb.cluster_blocks))
    }

    fn group(&self, number: u32, space: &Space, used: Used) -> Group {
        let within = self.blocks_of(number);
        let taken: u64 =
            space.clusters_in(within.clone()).map(|taken| taken.end - taken.start).sum();
        let clusters = self.clusters_of(number) - taken;
        let free = Free { clusters, inodes: self.sb.inodes_per_group - used.inodes };
        let blocks: u64 = space.taken_in(within).map(|taken| taken.end - taken.start).sum();
        let only_own = blocks == self.own_blocks(number);
        let ends = number == 0 || number + 1 == self.sb.groups;
        let block_uninit = self.is_lazy() && only_own && !ends;
        let inode_uninit = self.is_lazy() && used.inodes == 0;
        Group { number, used, free, block_uninit, inode_uninit }
    }

    /// Sets the fields of a descriptor, except for the checksums.
    fn describe(&self, group: &Group, tables: TablesAre, descriptor: &mut [u8]) {
        let &Group { number, used, free, .. } = group;
        let Tables { block_bitmap, inode_bitmap, inode_table } = self.tables[number as usize];
        let lazy = self.is_lazy();
        let mut flags = 0;
        for (on, flag) in [
            (group.block_uninit, BLOCK_UNINIT),
            (group.inode_uninit, INODE_UNINIT),
            (lazy && tables == TablesAre::Zero, INODE_ZEROED),
        ] {
            flags |= if on { flag } else { 0 };
        }
        let unused = if lazy { free.inodes } else { 0 };
        let mut low = RawGroupLow::new_zeroed();
        low.bg_block_bitmap_lo.set(block_bitmap as u32);
        low.bg_inode_bitmap_lo.set(inode_bitmap as u32);
        low.bg_inode_table_lo.set(inode_table as u32);
        low.bg_free_blocks_count_lo.set(free.clusters as u16);
        low.bg_free_inodes_count_lo.set(free.inodes as u16);
        low.bg_used_dirs_count_lo.set(used.directories as u16);
        low.bg_itable_unused_lo.set(unused as u16);
        low.bg_flags.set(flags);
        let mut high = RawGroupHigh::new_zeroed();
        high.bg_block_bitmap_hi.set((block_bitmap >> 32) as u32);
        high.bg_inode_bitmap_hi.set((inode_bitmap >> 32) as u32);
        high.bg_inode_table_hi.set((inode_table >> 32) as u32);
        high.bg_free_blocks_count_hi.set((free.clusters >> 16) as u16);
        high.bg_free_inodes_count_hi.set((free.inodes >> 16) as u16);
        high.bg_itable_unused_hi.set((unused >> 16) as u16);
        let (first, rest) = descriptor.split_at_mut(size_of::<RawGroupLow>());
        first.copy_from_slice(low.as_bytes());
        if let Some(second) = rest.get_mut(..size_of::<RawGroupHigh>()) {
            second.copy_from_slice(high.as_bytes());
        }
    }

    /// Writes the bitmaps that a group needs, and stores their checksums in its descriptor.
    fn write_bitmaps(
        &self,
        group: &Group,
        space: &Space,
        output: &Output<'_>,
        descriptor: &mut [u8],
    ) -> Result<()> {
        let sb = self.sb;
        let Tables { block_bitmap, inode_bitmap, .. } = self.tables[group.number as usize];
        if !group.block_uninit {
            let mut bitmap = Buffer::aligned(sb.block_size.bytes())?;
            for taken in space.clusters_in(self.blocks_of(group.number)) {
                set_bits(&mut bitmap, taken.start as usize, taken.end as usize);
            }
            // The bits past the end of the group belong to no block and no inode. They must be set, so that they are never allocated.
            let bits = bitmap.len() * 8;
            set_bits(&mut bitmap, self.clusters_of(group.number) as usize, bits);
            sb.seal_block_bitmap(&bitmap, descriptor);
            output.write(block_bitmap, &bitmap)?;
        }
        if !group.inode_uninit {
            let mut bitmap = Buffer::aligned(sb.block_size.bytes())?;
            let bits = bitmap.len() * 8;
            set_bits(&mut bitmap, 0, group.used.inodes as usize);
            set_bits(&mut bitmap, sb.inodes_per_group as usize, bits);
            sb.seal_inode_bitmap(&bitmap, descriptor);
            output.write(inode_bitmap, &bitmap)?;
        }
        Ok(())
    }
}

fn set_bits(bitmap: &mut [u8], start: usize, end: usize) {
    let mut bit = start;
    while bit < end {
        if bit.is_multiple_of(8) && end - bit >= 8 {
            bitmap[bit / 8] = !0;
            bit += 8;
        } else {
            bitmap[bit / 8] |= 1 << (bit % 8);
            bit += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_from_the_first_to_the_one_before_the_last() {
        for (start, end) in [(0, 0), (3, 5), (0, 8), (5, 30), (8, 24), (31, 32)] {
            let mut bitmap = [0; 4];
            set_bits(&mut bitmap, start, end);
            for bit in 0..32 {
                assert_eq!(bitmap[bit / 8] >> (bit % 8) & 1 == 1, (start..end).contains(&bit));
            }
        }
    }
}
