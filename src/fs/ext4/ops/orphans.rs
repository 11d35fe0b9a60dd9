//! The list of orphans: the newest one stands in the superblock, and each names the next in `i_dtime`.
//!
//! Volumes with an orphan file have the list too, for when the file is full; it is what is written here, and what the file holds is moved
//! to it when the volume is opened.

use std::sync::Arc;

use crate::error::{Place, Result};
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::orphan::{FiledOrphan, seal_orphan_block};
use crate::fs::ext4::{Ext4, RoCompat};
use crate::units::InodeNo;

impl Ext4 {
    /// Puts an inode on the list, if it is not on it: it goes at the next opening, or what is behind its size does, if nothing removes it
    /// before.
    pub(super) fn add_orphan(&self, handle: &mut Handle<'_>, number: InodeNo) -> Result<()> {
        let mut list = self.writing()?.orphans.lock();
        // Twice it would name itself as the next: a file that was written behind its end, and then loses its name.
        if list.contains(number) {
            return Ok(());
        }
        let next = list.newest();
        self.set_next_orphan(handle, number, next)?;
        self.set_first_orphan(handle, Some(number))?;
        list.push(number);
        Ok(())
    }

    /// Takes an inode off the list, if it is on it. Its `i_dtime` is the caller's to set.
    pub(super) fn remove_orphan(&self, handle: &mut Handle<'_>, number: InodeNo) -> Result<()> {
        let mut list = self.writing()?.orphans.lock();
        let Some((newer, older)) = list.beside(number) else { return Ok(()) };
        match newer {
            Some(newer) => self.set_next_orphan(handle, newer, older)?,
            None => self.set_first_orphan(handle, older)?,
        }
        self.set_next_orphan(handle, number, None)?;
        list.remove(number);
        Ok(())
    }

    fn set_next_orphan(
        &self,
        handle: &mut Handle<'_>,
        number: InodeNo,
        next: Option<InodeNo>,
    ) -> Result<()> {
        self.update_inode(handle, number, |inode| {
            inode.fields()?.i_dtime.set(next.map_or(0, |next| next.0 as u32));
            Ok(())
        })
    }

    fn set_first_orphan(&self, handle: &mut Handle<'_>, first: Option<InodeNo>) -> Result<()> {
        self.update_superblock(handle, |raw| {
            raw.s_last_orphan.set(first.map_or(0, |first| first.0 as u32));
            Ok(())
        })
    }

    fn clear_filed(self: &Arc<Self>, handle: &mut Handle<'_>, filed: &FiledOrphan) -> Result<()> {
        let Some(file) = self.superblock.orphan_file else { return Ok(()) };
        let seed = self.superblock.inode_seed(file, self.inode(file)?.generation);
        let place = Place::new("orphan file").inode(file).block(filed.block);
        handle.update(filed.block, place, |bytes| {
            let at = filed.index * 4;
            bytes[at..at + 4].fill(0);
            seal_orphan_block(seed, filed.block, bytes);
            Ok(())
        })
    }

    /// The orphans that were found, all on the list, the newest first.
    pub(super) fn adopt_orphans(self: &Arc<Self>) -> Result<Vec<InodeNo>> {
        let found = self.listed_orphans()?;
        *self.writing()?.orphans.lock() = found.into_iter().rev().collect();
        for filed in self.filed_orphans()? {
            self.transact(4, |handle| {
                self.add_orphan(handle, filed.inode)?;
                self.clear_filed(handle, &filed)
            })?;
        }
        if self.superblock.ro_compat.contains(RoCompat::ORPHAN_PRESENT) {
            self.transact(1, |handle| {
                self.update_superblock(handle, |raw| {
                    let features = RoCompat::from_bits_retain(raw.s_feature_ro_compat.get());
                    raw.s_feature_ro_compat.set((features - RoCompat::ORPHAN_PRESENT).bits());
                    Ok(())
                })
            })?;
        }
        Ok(self.writing()?.orphans.lock().newest_first().collect())
    }
}
