//! Linear directories, in which a name is searched block by block.

use super::super::jbd2::Handle;
use super::{Addition, Directory, PLACE, Step};
use crate::error::Result;
use crate::fs::InodeFlags;
use crate::units::FileBlock;

impl Directory<'_> {
    /// Adds a name to the first block with a large enough gap. If there is no such gap, the directory grows. On a volume with the feature
    /// dir_index, a directory of one block becomes hashed. Any other directory gets another block.
    pub(super) fn add_linear(&self, h: &mut Handle<'_>, addition: &Addition<'_>) -> Result<Step> {
        if self.flags.contains(InodeFlags::INDEX) {
            let place = PLACE.inode(self.number).field("i_flags");
            return Err(place.corrupt("the directory has a hash tree, but dir_index is not set"));
        }
        let (name, target) = (addition.wanted.name, addition.target);
        let blocks = self.dir_blocks()?;
        for block in 0..blocks {
            let Some(area) = self.dir_block(FileBlock(block))? else { continue };
            if let Some(gap) = area.gap(name, &self.fs)? {
                let home = area.home;
                drop(area);
                self.change_entries(h, home, |mut entries| entries.insert(gap, name, target))?;
                return Ok(Step::Added);
            }
        }
        if blocks == 0 {
            return Err(PLACE
                .inode(self.number)
                .field("i_size")
                .corrupt("the directory has no blocks"));
        }
        if blocks == 1 && self.hashes_directories() {
            self.make_hashed(h)?;
            return Ok(Step::Grown);
        }
        let entry = std::iter::once((name, target));
        self.append_leaf(h, |mut entries| entries.pack(entry))?;
        Ok(Step::Added)
    }
}
