//! The list of orphans. The superblock contains the number of the newest orphan. `i_dtime` of each orphan contains the number of the next
//! older orphan.
//!
//! A volume with an orphan file also has the orphan list, for orphans that do not fit into the file. ironmap adds orphans only to the list.
//! When the volume is opened, the orphans in the file are moved to the list.

use std::marker::PhantomData;

use super::evict::is_of_volume;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::{Locked, MayChange, Operation};
use crate::fs::ext4::orphan::{FiledOrphan, OrphanList, seal_orphan_block};
use crate::fs::ext4::superblock::change_features;
use crate::fs::ext4::{Inode, RoCompat};
use crate::units::InodeNo;

/// The maximum number of blocks that a change of the orphan list modifies: the blocks of two inodes, the superblock, and a block of the
/// orphan file.
const CREDITS: u32 = 4;
/// The maximum number of errors that are reported individually.
const MOST_TOLD: usize = 64;

/// An inode on the orphan list. The thread that has this value holds the lock of the list. This value permits changes of the field
/// `i_dtime` only, because this field links the orphans of the list.
struct Listed<'l> {
    number: InodeNo,
    list: PhantomData<&'l OrphanList>,
}

impl<'l> Listed<'l> {
    fn on(_list: &'l OrphanList, number: InodeNo) -> Self {
        Self { number, list: PhantomData }
    }
}

impl MayChange for Listed<'_> {
    fn number(&self) -> InodeNo {
        self.number
    }
}

/// An orphan in the orphan file. The orphan file is used only while the volume is being opened, so no other thread changes the inode.
impl MayChange for FiledOrphan {
    fn number(&self) -> InodeNo {
        self.inode
    }
}

fn set_next_orphan(
    handle: &mut Handle<'_>,
    inode: &impl MayChange,
    next: Option<InodeNo>,
) -> Result<()> {
    handle.update_inode(inode, |inode| {
        inode.fields()?.i_dtime.set(next.map_or(0, |next| next.0 as u32));
        Ok(())
    })
}

impl Operation<'_> {
    /// Adds an inode to the list, if the inode is not already in the list. The next opening of the volume handles the inodes that are still
    /// in the list: it frees an inode without a name. If the inode has a name, only the blocks past the size are freed.
    pub(super) fn add_orphan(&self, handle: &mut Handle<'_>, inode: &impl MayChange) -> Result<()> {
        let number = inode.number();
        let mut list = self.writing.orphans.lock();
        // An inode may be added twice: for example, a file is written past its end and then loses its last name. Without this check, the
        // inode would become its own successor in the list.
        if list.contains(number) {
            return Ok(());
        }
        let next = list.newest();
        set_next_orphan(handle, inode, next)?;
        self.set_first_orphan(handle, Some(number))?;
        list.push(number);
        Ok(())
    }

    /// Removes an inode from the list, if it is on the list. The caller sets the inode's `i_dtime`.
    pub(super) fn remove_orphan(
        &self,
        handle: &mut Handle<'_>,
        inode: &impl MayChange,
    ) -> Result<()> {
        let mut list = self.writing.orphans.lock();
        if self.pass_by_orphan(handle, &list, inode.number())? {
            set_next_orphan(handle, inode, None)?;
            list.remove(inode.number());
        }
        Ok(())
    }

    /// Unlinks an inode from the list on the device. Returns whether the inode was on the list.
    fn pass_by_orphan(
        &self,
        handle: &mut Handle<'_>,
        list: &OrphanList,
        number: InodeNo,
    ) -> Result<bool> {
        let Some((newer, older)) = list.beside(number) else { return Ok(false) };
        match newer {
            Some(newer) => set_next_orphan(handle, &Listed::on(list, newer), older)?,
            None => self.set_first_orphan(handle, older)?,
        }
        Ok(true)
    }

    /// Handles an orphan that cannot be freed, with the same result as in Linux. The orphan is removed from the list, but the inode stays
    /// in use. The volume is marked as having errors, so that e2fsck checks the complete volume. If the inode has no name, e2fsck frees it.
    /// If the inode has a name, the file keeps its blocks past the end.
    pub(super) fn give_up_orphan(&self, orphan: &Locked<'_>) -> Result<()> {
        let (number, found) = (orphan.number(), orphan.inode());
        self.transact(CREDITS, |handle| {
            match found {
                Ok(inode) => {
                    self.remove_orphan(handle, orphan)?;
                    if inode.stat().links == 0 {
                        let time = self.deletion_time(handle.now());
                        handle.update_inode(orphan, |inode| inode.set_dtime(time))?;
                    }
                }
                // The inode is damaged and its checksum is wrong. It is not written, because a write would give it a correct checksum.
                Err(_) => {
                    let mut list = self.writing.orphans.lock();
                    self.pass_by_orphan(handle, &list, number)?;
                    list.remove(number);
                }
            }
            handle.mark_errors()
        })
    }

    fn set_first_orphan(&self, handle: &mut Handle<'_>, first: Option<InodeNo>) -> Result<()> {
        handle.update_superblock(|raw| {
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

    /// Reads the list of orphans, and moves the orphans in the orphan file to the list. Returns all orphans, newest first, and the errors
    /// of invalid entries. The list is cut before an entry that cannot be an orphan: the entries after it are unknown. An invalid entry in
    /// the orphan file is cleared.
    pub(super) fn adopt_orphans(&self) -> Result<(Vec<InodeNo>, Vec<Error>)> {
        let mut wrong = Vec::new();
        let follow = || self.follow_orphans(|number| self.check_orphan(number));
        let (mut found, mut broken) = follow()?;
        if let Some(why) = broken.take_if(|why| !is_of_volume(why)) {
            (found, broken) = follow()?;
            // After an error, the list is read again. If the second read succeeds, the error of the first read was temporary and is
            // returned. If the second read also fails, the list is cut at the unreadable entry.
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
                    Some(oldest) => {
                        let list = self.writing.orphans.lock();
                        set_next_orphan(handle, &Listed::on(&list, oldest), None)?;
                    }
                    None => self.set_first_orphan(handle, None)?,
                }
                handle.mark_errors()
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
                    Ok(_) => self.add_orphan(handle, &filed)?,
                    Err(_) => handle.mark_errors()?,
                }
                self.clear_filed(handle, &filed)
            })?;
            // An orphan file may contain millions of entries. The number of reported errors is therefore limited.
            wrong.extend(checked.err().filter(|_| wrong.len() < MOST_TOLD));
        }
        if self.superblock.ro_compat.contains(RoCompat::ORPHAN_PRESENT) {
            self.transact(1, |handle| {
                handle.update_superblock(|raw| {
                    change_features(raw, |features| {
                        features.ro_compat.remove(RoCompat::ORPHAN_PRESENT);
                    });
                    Ok(())
                })
            })?;
        }
        let adopted = self.writing.orphans.lock().newest_first().collect();
        Ok((adopted, wrong))
    }

    /// Checks that an inode can be an orphan: it must be in use, and must not be internal.
    fn check_orphan(&self, number: InodeNo) -> Result<Inode> {
        if !self.is_inode_in_use(number)? {
            return Err(Place::new("orphans").inode(number).corrupt("the inode is not in use"));
        }
        self.inode_or_orphan(number)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::Volume;
    use crate::device::Ram;
    use crate::fs::ext4::{MkfsOptions, ROOT};
    use crate::fs::{Clock, Credentials, NewFile, Writer};

    /// Threads may remove adjacent orphans at the same time. After the removals, the list on the device still contains all remaining
    /// orphans.
    #[test]
    fn threads_that_end_neighbours_keep_the_list_whole() {
        const COUNT: usize = 64;
        let ram = Arc::new(Ram::new(8 << 20));
        crate::tools::make(&*ram, &MkfsOptions::default()).unwrap();
        let volume = Volume::writable_on(ram, Clock::default()).unwrap();
        let fs = volume.ext4().unwrap();
        for round in 0..20 {
            let held = (0..COUNT).map(|at| {
                let (name, who) = (format!("file-{at}"), Credentials::default());
                let name = name.as_bytes();
                let number = fs.create(ROOT, name, NewFile::Regular, 0o644, &who).unwrap();
                let held = fs.hold(number).unwrap();
                fs.unlink(ROOT, name).unwrap();
                held
            });
            // Every fourth orphan stays on the list.
            let mut ends: [Vec<_>; 3] = Default::default();
            let mut stays = Vec::new();
            for (at, held) in held.enumerate() {
                match at % 4 {
                    3 => stays.push(held),
                    thread => ends[thread].push(held),
                }
            }
            std::thread::scope(|scope| {
                for held in ends {
                    scope.spawn(move || held.into_iter().for_each(drop));
                }
            });
            assert_eq!(fs.orphans().unwrap(), stays.len() as u64, "round {round}");
            drop(stays);
            assert_eq!(fs.orphans().unwrap(), 0, "round {round}");
        }
    }
}
