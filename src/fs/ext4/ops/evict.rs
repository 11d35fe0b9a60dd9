//! The end of inodes: open ones outlive their names, large ones go in several transactions, and orphans that a crash left go at the next
//! opening.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::attr::Attributes;
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::{InodeToChange, Locked, MayChange, Open, Operation, Patience};
use crate::fs::ext4::stamps::Waiting;
use crate::fs::ext4::{Ext4, Inode};
use crate::fs::{Access, FileType, InodeFlags, Stat, Timestamp};
use crate::open_file::OpenInode;
use crate::units::{FileBlock, InodeNo};

/// The future of an inode that loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It has another one.
    Stays,
    /// It goes in the same transaction.
    EndsNow,
    /// It is an orphan until all of it is gone.
    EndsLater,
    /// It is an orphan until nobody has it open.
    EndsWhenClosed,
}

/// A root without nodes below has at most four extents, each in two groups: bitmaps and descriptors; attributes, inode, superblock.
const SMALL_CREDITS: u32 = 32;
/// An inode alone.
const STAMP_CREDITS: u32 = 1;
/// How many errors of orphans are reported one by one at an opening.
const MOST_TOLD: usize = 64;
/// Beside a piece of a large map: the orphan list and the inode.
const PIECE_CREDITS: u32 = 16;

/// How often a file that is closed is converted where others open and write it meanwhile, and how often that may fail.
const SETTLE_ATTEMPTS: u32 = 100;
const SETTLE_FAILURES: u32 = 3;

/// An inode that is open: it stays when it loses its last name, until this is dropped.
pub struct Ext4Held {
    fs: Arc<Ext4>,
    number: InodeNo,
    /// `None` on a volume that is read-only.
    open: Option<Open>,
}

impl Ext4Held {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> InodeNo {
        self.number
    }

    /// The inode as it is now, with a name or without.
    ///
    /// # Errors
    /// Errors of reading and checking.
    pub fn inode(&self) -> Result<Inode> {
        self.fs.inode_or_orphan(self.number)
    }

    /// The state shared by all who have it open; `None` on a volume that is read-only.
    pub(crate) fn open_inode(&self) -> Option<&Arc<OpenInode>> {
        self.open.as_ref().map(Open::inode)
    }

    /// The file system.
    pub(crate) fn fs(&self) -> &Arc<Ext4> {
        &self.fs
    }

    /// Leaves a time stamp without a transaction: seen by all who ask for the inode, and in the journal with its next change, with
    /// [`sync`](Ext4::sync), with the last of those that hold it, or by the [timer](super::super::CommitTimer). Takes no lock; does
    /// nothing on a volume that is read-only.
    #[inline]
    pub fn stamp(&self, access: Access) {
        if let (Some(open), Some(writing)) = (&self.open, &self.fs.writing) {
            writing.locks.stamp(open, access);
        }
    }
}

impl Drop for Ext4Held {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        // An inode that fails here is an orphan still, and is removed at the next opening; and stamps that are lost are lost as in a crash.
        let _ = self.fs.operate(|op| op.close_inode(self.number, open));
    }
}

impl Operation<'_> {
    /// Closes an inode. The last close converts the data that were written, and removes an inode without a name.
    fn close_inode(&self, number: InodeNo, open: Open) -> Result<()> {
        let mut file = self.lock(number);
        let (mut attempts, mut failures, mut last) = (SETTLE_ATTEMPTS, 0, Ok(()));
        while attempts > 0
            && failures < SETTLE_FAILURES
            && open.is_last()
            && !open.inode().pending.is_empty()
        {
            match file.inode() {
                Ok(inode) if inode.stat().links == 0 => break,
                Ok(_) => {}
                Err(error) => {
                    last = Err(error);
                    break;
                }
            }
            attempts -= 1;
            // Content comes before inodes. Nobody else has requests in flight; but another may open the file meanwhile.
            drop(file);
            last = self.convert(number, open.inode(), Patience::All);
            failures += u32::from(last.is_err());
            file = self.lock(number);
            // Data that another thread has written meanwhile, and left to this one, lie past the size in the metadata.
            if last.is_ok() && open.is_last() && open.inode().pending.is_converted() {
                let _ = self.cut_orphan(&file, open.inode());
            }
        }
        if let Err(error) = last
            && open.is_last()
        {
            self.writing.unheard.lock().get_or_insert(error);
            let _ = self.cut_orphan(&file, open.inode());
        }
        if !file.close(&open) {
            return Ok(());
        }
        let is_gone = file.inode().is_ok_and(|inode| inode.stat().links == 0);
        if is_gone {
            // Others may have its number soon.
            open.inode().pending.forget();
        }
        drop(open);
        if is_gone { self.evict(&file) } else { self.store_stamps_of(number) }
    }
}

/// Whether an error is about the volume's own metadata, which are the same when they are read again; others are the device's, or the
/// caller's.
pub(super) fn is_of_volume(why: &Error) -> bool {
    use ErrorKind::{Corrupt, Encrypted, LimitExceeded, NotFound, Unsupported};
    matches!(why.kind(), Corrupt | Unsupported | NotFound | LimitExceeded | Encrypted)
}

impl Ext4 {
    /// Opens an inode, so that it stays as long as it is held, and so do the blocks that it loses meanwhile. Costs nothing on a volume
    /// that is read-only.
    ///
    /// # Errors
    /// `NotFound` where it has no name any more, and nobody else holds it.
    pub fn hold(self: &Arc<Self>, number: InodeNo) -> Result<Ext4Held> {
        self.hold_if(number, |_| Ok(())).map(|(held, _)| held)
    }

    /// Opens the inode that was decoded earlier, and gives what it is now: `None` where that cannot differ, on a volume that is read-only.
    ///
    /// # Errors
    /// As [`hold`](Self::hold); `NotFound` also where its number is another inode's by now.
    pub(crate) fn hold_decoded(
        self: &Arc<Self>,
        earlier: &Stat,
    ) -> Result<(Ext4Held, Option<Inode>)> {
        self.hold_if(earlier.inode, |now| now.check_is(earlier))
    }

    fn hold_if(
        self: &Arc<Self>,
        number: InodeNo,
        check: impl FnOnce(&Inode) -> Result<()>,
    ) -> Result<(Ext4Held, Option<Inode>)> {
        let (mut open, mut now) = (None, None);
        if let (Some(lock), Ok(writing)) = (self.share(number), self.writing()) {
            let inode = self.watch(|| {
                let inode = self.inode_or_orphan(number)?;
                self.check_kept(&inode)?;
                Ok(inode)
            })?;
            check(&inode)?;
            let opened = lock.open();
            // Earlier changes, before it was opened, are not known to be durable.
            writing.transactions.newest().note_map(opened.inode());
            (open, now) = (Some(opened), Some(inode));
        }
        Ok((Ext4Held { fs: Arc::clone(self), number, open }, now))
    }

    /// Gives a time stamp to the writes since the last query.
    pub(crate) fn leave_stamps(&self) {
        if let Ok(writing) = self.writing() {
            writing.locks.stamp_all_noted();
        }
    }

    /// Brings the time stamps that wait into the running transaction.
    ///
    /// # Errors
    /// `ReadOnly`; as reading the inodes' blocks.
    pub(crate) fn store_stamps(self: &Arc<Self>) -> Result<()> {
        let stamped = self.writing()?.locks.stamped();
        stamped.into_iter().try_for_each(|number| self.store_stamps_waiting(number))
    }

    /// The same for an inode.
    pub(super) fn store_stamps_waiting(self: &Arc<Self>, number: InodeNo) -> Result<()> {
        self.operate(|op| {
            // It may have been closed meanwhile, and removed: the thread that does that waits now.
            let _inode = op.share(number);
            op.store_stamps_of(number)
        })
    }
}

impl Operation<'_> {
    /// The same for an inode, its lock held.
    fn store_stamps_of(&self, number: InodeNo) -> Result<()> {
        if self.writing.locks.stamps(number) == Waiting::default() {
            return Ok(());
        }
        // Any change takes them with it.
        self.transact(STAMP_CREDITS, |handle| handle.store_stamps(number))
    }

    /// The fate of an inode when it loses a name, its lock held.
    pub(super) fn fate(&self, inode: &InodeToChange<'_>) -> Result<Fate> {
        let directory = inode.file_type() == FileType::Directory;
        if inode.stat().links > 1 && !directory {
            return Ok(Fate::Stays);
        }
        if self.writing.locks.is_open(inode.number()) {
            return Ok(Fate::EndsWhenClosed);
        }
        // An inode that does not fit into a small journal is freed in several transactions.
        let credits = self.eviction_credits(inode, Fate::EndsNow);
        let fits = credits <= self.writing.transactions.limit() / 2;
        Ok(if inode.has_small_map() && fits { Fate::EndsNow } else { Fate::EndsLater })
    }

    /// How many blocks that changes beside the directory's.
    pub(super) fn eviction_credits(&self, inode: &InodeToChange<'_>, fate: Fate) -> u32 {
        match fate {
            Fate::Stays | Fate::EndsWhenClosed | Fate::EndsLater => 8,
            Fate::EndsNow => SMALL_CREDITS + inode.credits_for_unmap() + inode.xattr_credits(),
        }
    }

    /// Ends what the transaction of its last name left, its lock held, or could not end.
    pub(super) fn finish(
        &self,
        file: &Locked<'_>,
        fate: Fate,
        failed: Option<Error>,
    ) -> Result<()> {
        match (failed, fate) {
            (Some(why), _) => self.leave_orphan(file, why),
            (None, Fate::EndsLater) => self.evict(file),
            (None, _) => Ok(()),
        }
    }

    /// Ends an orphan without names, or gives it up where its metadata are broken: its name is gone in any case.
    fn evict(&self, orphan: &Locked<'_>) -> Result<()> {
        self.try_evict(orphan).or_else(|why| self.leave_orphan(orphan, why))
    }

    /// Handles an orphan that could not be removed.
    ///
    /// # Errors
    /// The device's, and those of a volume that is read-only: it is an orphan still, and the next opening tries again.
    fn leave_orphan(&self, orphan: &Locked<'_>, why: Error) -> Result<()> {
        if !is_of_volume(&why) || self.writing.transactions.check().is_err() {
            return Err(why);
        }
        self.give_up_orphan(orphan)?;
        self.note_left(vec![Self::left(orphan.number(), &why)], &[why])
    }

    /// The report of an orphan that was given up.
    fn left(number: InodeNo, why: &Error) -> String {
        format!("inode {number} could not be freed, and is left to e2fsck: {why}")
    }

    fn try_evict(&self, orphan: &Locked<'_>) -> Result<()> {
        let inode = orphan.inode()?;
        let directory = inode.file_type() == FileType::Directory;
        let credits = PIECE_CREDITS + inode.credits_for_unmap() + inode.xattr_credits();
        self.transact(credits, |handle| {
            let ended = self.release_content(handle, &inode).and_then(|()| {
                self.remove_orphan(handle, orphan)?;
                self.end_inode(handle, orphan, directory)
            });
            // However far it came: nobody reads an inode without a name, and freed blocks have no reference.
            ended.inspect_err(|why| self.pardon(handle, why))
        })
    }

    /// Frees all that an inode has beside itself.
    pub(super) fn release_content(
        &self,
        handle: &mut Handle<'_>,
        inode: &InodeToChange<'_>,
    ) -> Result<()> {
        if inode.has_map() {
            inode.unmap_range(handle, FileBlock(0)..FileBlock(1 << 32))?;
        }
        Attributes::of(inode).drop_xattrs(handle)
    }

    /// The value of `i_dtime` for an inode that is deleted now. A lower number than that of the last inode would be the next orphan of a list.
    pub(super) fn deletion_time(&self, now: Timestamp) -> u32 {
        u32::try_from(now.seconds.max(0)).unwrap_or(u32::MAX).max(self.superblock.inodes_count)
    }

    /// Frees an inode that has nothing any more.
    pub(super) fn end_inode(
        &self,
        handle: &mut Handle<'_>,
        inode: &impl MayChange,
        directory: bool,
    ) -> Result<()> {
        let now = handle.now();
        handle.update_inode(inode, |inode| {
            inode.end();
            inode.set_links(0)?;
            inode.set_size(0)?;
            inode.set_dtime(self.deletion_time(now))
        })?;
        handle.free_inode(inode, directory)
    }

    /// Removes the orphans that a crash, or a program that had them open, left. Those that fail are given up: no orphan keeps a volume from being opened.
    /// `wrong` has the errors of the recovery of fast commits.
    ///
    /// # Errors
    /// The device's: it is an orphan still. But not those of a place that cannot be read when that is tried again.
    pub(in crate::fs::ext4) fn end_orphans(&self, mut wrong: Vec<Error>) -> Result<()> {
        let (orphans, more) = self.adopt_orphans()?;
        wrong.extend(more);
        let cut = |why| format!("the inodes on the list of orphans are left to e2fsck: {why}");
        let mut told: Vec<_> = wrong.iter().map(cut).collect();
        for number in orphans {
            let orphan = self.lock(number);
            let Err(why) = self.end_orphan(&orphan) else { continue };
            // Half a change that the device has failed ends the volume; a place that it does not read is given up.
            let fails = !is_of_volume(&why)
                && (self.writing.transactions.check().is_err() || self.end_orphan(&orphan).is_ok());
            if fails {
                return Err(why);
            }
            // Where that fails too it is not the orphan's fault.
            self.give_up_orphan(&orphan)?;
            if told.len() < MOST_TOLD {
                told.push(Self::left(number, &why));
                wrong.push(why);
            }
        }
        self.note_left(told, &wrong)
    }

    fn end_orphan(&self, orphan: &Locked<'_>) -> Result<()> {
        let inode = orphan.inode()?;
        if inode.stat().links == 0 {
            self.try_evict(orphan)
        } else {
            self.finish_truncation(&inode, true)
        }
    }

    /// An orphan was freed as far as its metadata go: that can be committed, with the mark that the volume has errors.
    fn pardon(&self, handle: &mut Handle<'_>, why: &Error) {
        if is_of_volume(why) && handle.mark_errors().is_ok() {
            handle.took_back();
        }
    }

    /// Ends a truncation that was under way: the blocks past the size go. A file without a name stays an orphan. Where its metadata are
    /// broken, a part of that is committed at an opening alone: a later write could make the file longer again, over the rest.
    pub(super) fn finish_truncation(&self, inode: &InodeToChange<'_>, opening: bool) -> Result<()> {
        let end = FileBlock(self.superblock.block_size.blocks_for(inode.size()));
        self.transact(PIECE_CREDITS + inode.credits_for_unmap(), |handle| {
            if inode.has_map() {
                let unmapped = inode.unmap_range(handle, end..FileBlock(1 << 32));
                if let (Err(why), true) = (&unmapped, opening) {
                    // It is an orphan still, and freed blocks have no reference.
                    self.pardon(handle, why);
                }
                unmapped?;
            }
            if inode.stat().links > 0 { self.remove_orphan(handle, inode) } else { Ok(()) }
        })
    }
}

impl Inode {
    /// Whether blocks hold its content: no device, no link within the inode, no inline data.
    pub(crate) fn has_map(&self) -> bool {
        match self.file_type() {
            FileType::Regular | FileType::Directory => !self.has_inline_data(),
            FileType::Symlink => !self.is_fast_symlink() && !self.has_inline_data(),
            _ => false,
        }
    }

    /// Whether its map has no nodes beside its root.
    pub(crate) fn has_small_map(&self) -> bool {
        // `eh_depth` in the root.
        let flat = self.i_block[6..8] == [0, 0];
        !self.has_map() || self.flags().contains(InodeFlags::EXTENTS) && flat
    }
}
