//! The list of orphans: the newest one stands in the superblock, and each names the next in `i_dtime`.
//!
//! Volumes with an orphan file have the list too, for when the file is full; only the list is written, and the entries of the file are moved
//! to it when the volume is opened.

use super::evict::is_of_volume;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::{Locked, Operation};
use crate::fs::ext4::orphan::{FiledOrphan, seal_orphan_block};
use crate::fs::ext4::{Inode, RoCompat};
use crate::units::InodeNo;

/// Two inodes, the superblock, and a block of the orphan file.
const CREDITS: u32 = 4;
/// How many errors are reported one by one.
const MOST_TOLD: usize = 64;

impl Operation<'_> {
    /// Puts an inode on the list, if it is not on it: the next opening removes it, or its blocks past the size, if nothing takes it off the list
    /// before.
    pub(super) fn add_orphan(&self, handle: &mut Handle<'_>, number: InodeNo) -> Result<()> {
        let mut list = self.writing.orphans.lock();
        // Twice it would name itself as the next: a file that was written past its end, and then loses its name.
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
        if self.pass_by_orphan(handle, number)? {
            self.set_next_orphan(handle, number, None)?;
            self.writing.orphans.lock().remove(number);
        }
        Ok(())
    }

    /// Lets the list lead past an inode; whether it is on it.
    fn pass_by_orphan(&self, handle: &mut Handle<'_>, number: InodeNo) -> Result<bool> {
        let beside = self.writing.orphans.lock().beside(number);
        let Some((newer, older)) = beside else { return Ok(false) };
        match newer {
            Some(newer) => self.set_next_orphan(handle, newer, older)?,
            None => self.set_first_orphan(handle, older)?,
        }
        Ok(true)
    }

    /// Takes an orphan that cannot be ended off the list, as Linux does, and leaves it in use: without a name it is freed by e2fsck, which
    /// checks the whole volume because the superblock records errors. A file that has a name keeps its blocks past the end.
    pub(super) fn give_up_orphan(&self, orphan: &Locked<'_>) -> Result<()> {
        let (number, found) = (orphan.number(), orphan.inode());
        self.transact(CREDITS, |handle| {
            match found {
                Ok(inode) => {
                    self.remove_orphan(handle, number)?;
                    if inode.stat().links == 0 {
                        let time = self.deletion_time(handle.now());
                        self.update_inode(handle, number, |inode| inode.set_dtime(time))?;
                    }
                }
                // Its bytes are not to be trusted: they get no new checksum.
                Err(_) => {
                    self.pass_by_orphan(handle, number)?;
                    self.writing.orphans.lock().remove(number);
                }
            }
            self.mark_errors(handle)
        })
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

    fn clear_filed(&self, handle: &mut Handle<'_>, filed: &FiledOrphan) -> Result<()> {
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

    /// The orphans that were found, all on the list, the newest first; and the errors of others. The list ends before an entry that cannot be an
    /// orphan, since the entries after it are unknown; of the orphan file such an entry is cleared.
    pub(super) fn adopt_orphans(&self) -> Result<(Vec<InodeNo>, Vec<Error>)> {
        let mut wrong = Vec::new();
        let follow = || self.follow_orphans(|number| self.check_orphan(number));
        let (mut found, mut broken) = follow()?;
        if let Some(why) = broken.take_if(|why| !is_of_volume(why)) {
            (found, broken) = follow()?;
            // Or it is another error, of what the device gives now.
            if broken.is_none() {
                return Err(why);
            }
        }
        if let Some(why) = broken.take_if(|why| why.kind() == ErrorKind::LimitExceeded) {
            return Err(why);
        }
        let oldest = found.last().copied();
        *self.writing.orphans.lock() = found.into_iter().rev().collect();
        if let Some(why) = broken {
            self.transact(CREDITS, |handle| {
                match oldest {
                    Some(oldest) => self.set_next_orphan(handle, oldest, None)?,
                    None => self.set_first_orphan(handle, None)?,
                }
                self.mark_errors(handle)
            })?;
            wrong.push(why);
        }
        for filed in self.filed_orphans()? {
            let checked = match self.check_orphan(filed.inode) {
                Err(why) if !is_of_volume(&why) => match self.check_orphan(filed.inode) {
                    Ok(_) => return Err(why),
                    again => again,
                },
                checked => checked,
            };
            self.transact(CREDITS, |handle| {
                match checked {
                    Ok(_) => self.add_orphan(handle, filed.inode)?,
                    Err(_) => self.mark_errors(handle)?,
                }
                self.clear_filed(handle, &filed)
            })?;
            // A file of them may hold millions.
            wrong.extend(checked.err().filter(|_| wrong.len() < MOST_TOLD));
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
        let adopted = self.writing.orphans.lock().newest_first().collect();
        Ok((adopted, wrong))
    }

    /// An inode that can be an orphan: in use, and none of the file system's own.
    fn check_orphan(&self, number: InodeNo) -> Result<Inode> {
        if !self.is_inode_in_use(number)? {
            return Err(Place::new("orphans").inode(number).corrupt("it is not in use"));
        }
        self.inode_or_orphan(number)
    }
}
