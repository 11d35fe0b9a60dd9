//! Directories whose names are looked for block by block.

use super::super::Ext4;
use super::super::inode::Inode;
use super::super::jbd2::Handle;
use super::{Addition, PLACE, Step};
use crate::error::Result;
use crate::fs::InodeFlags;
use crate::units::FileBlock;

impl Ext4 {
    /// Adds a name to the first block that has room. A directory of one full block becomes hashed, where the volume has such; any other
    /// one gets a block more.
    pub(super) fn add_linear(
        &self,
        h: &mut Handle<'_>,
        dir: &Inode,
        addition: &Addition<'_>,
    ) -> Result<Step> {
        if dir.flags.contains(InodeFlags::INDEX) {
            let place = PLACE.inode(dir.number).field("i_flags");
            return Err(place.corrupt("hashed on a volume without dir_index"));
        }
        let (name, target) = (addition.wanted.name, addition.target);
        let blocks = dir.dir_blocks()?;
        for block in 0..blocks {
            let Some(area) = dir.dir_block(FileBlock(block))? else { continue };
            if let Some(gap) = area.gap(name, self)? {
                let home = area.home;
                drop(area);
                self.change_entries(h, dir, home, |mut entries| entries.insert(gap, name, target))?;
                return Ok(Step::Added);
            }
        }
        if blocks == 0 {
            return Err(PLACE.inode(dir.number).field("i_size").corrupt("it has no block"));
        }
        if blocks == 1 && self.hashes_directories() {
            self.make_hashed(h, dir)?;
            return Ok(Step::Grown);
        }
        let entry = std::iter::once((name, target));
        self.append_leaf(h, dir, |mut entries| entries.pack(entry))?;
        Ok(Step::Added)
    }
}
