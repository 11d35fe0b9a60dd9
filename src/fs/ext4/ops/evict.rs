//! The removal of inodes. Open inodes outlive their names, large inodes are freed in several
//! transactions, and orphans of a crash are freed when the volume is next opened.

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

/// The fate of an inode that loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The inode has another name and remains.
    Stays,
    /// The inode is freed in the same transaction.
    EndsNow,
    /// The inode is an orphan until all of it is freed.
    EndsLater,
    /// The inode is an orphan until it is closed.
    EndsWhenClosed,
}

/// The number of blocks for freeing a file whose map has only a root: at most four extents, each in two groups, with bitmaps and descriptors;
/// attributes, inode, superblock.
const SMALL_CREDITS: u32 = 32;
/// The number of blocks for a change of only the inode.
const STAMP_CREDITS: u32 = 1;
/// The maximum number of orphan errors that an open reports individually.
const MOST_TOLD: usize = 64;
/// The number of blocks in addition to a piece of a large map: for the orphan list and the inode.
const PIECE_CREDITS: u32 = 16;

/// The maximum number of conversions that a close attempts while other threads open and write the file, and how many of them may fail.
const SETTLE_ATTEMPTS: u32 = 100;
const SETTLE_FAILURES: u32 = 3;

/// An open inode. If it loses its last name, it is freed only after this value is dropped.
pub struct Ext4Held {
    fs: Arc<Ext4>,
    number: InodeNo,
    /// The open handle; `None` on a read-only volume.
    open: Option<Open>,
}

impl Ext4Held {
    /// The inode number.
    #[must_use]
    pub fn number(&self) -> InodeNo {
        self.number
    }

    /// Reads the current state of the inode, even if it has no name.
    ///
    /// # Errors
    /// The errors of reading and checking the inode.
    pub fn inode(&self) -> Result<Inode> {
        self.fs.inode_or_orphan(self.number)
    }

    /// The state that all open handles of the inode share; `None` on a read-only volume.
    pub(crate) fn open_inode(&self) -> Option<&Arc<OpenInode>> {
        self.open.as_ref().map(Open::inode)
    }

    /// The file system.
    pub(crate) fn fs(&self) -> &Arc<Ext4> {
        &self.fs
    }

    /// Sets a time stamp without a transaction. All readers of the inode see it. The journal gets it with the inode's next change, with
    /// a sync, with the last close, or from the [timer](super::super::CommitTimer). Takes no lock. Does nothing on a read-only volume.
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
        // If this fails, the inode stays an orphan and is removed at the next opening of the volume; its pending stamps are lost, as in a crash.
        let _ = self.fs.operate(|op| op.close_inode(self.number, open));
    }
}

impl Operation<'_> {
    /// Closes an inode. The last close converts written data, and removes the inode if it has no name.
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
            // In the lock order, the content's lock precedes the inode's, so the inode is unlocked. No other thread has requests in flight, but one
            // may open the file in between.
            drop(file);
            last = self.convert(number, open.inode(), Patience::All);
            failures += u32::from(last.is_err());
            file = self.lock(number);
            // Data that another thread has written in the meantime, and not converted, lie past the size in the metadata.
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
            // The number may soon be reused.
            open.inode().pending.forget();
        }
        drop(open);
        if is_gone { self.evict(&file) } else { self.store_stamps_of(number) }
    }
}

/// Whether an error is a fault of the volume's own metadata, which will be found again at every
/// read. Other errors come from the device or the caller.
pub(super) fn is_of_volume(why: &Error) -> bool {
    use ErrorKind::{Corrupt, Encrypted, LimitExceeded, NotFound, Unsupported};
    matches!(why.kind(), Corrupt | Unsupported | NotFound | LimitExceeded | Encrypted)
}

impl Ext4 {
    /// Opens an inode. The inode and its blocks, even those that it loses, are not freed while the handle exists. Does nothing on a read-only volume.
    ///
    /// # Errors
    /// `NotFound` if the inode has no name and no other open handle.
    pub fn hold(self: &Arc<Self>, number: InodeNo) -> Result<Ext4Held> {
        self.hold_if(number, |_| Ok(())).map(|(held, _)| held)
    }

    /// Opens the inode that was decoded as `earlier`. Returns its current state, or `None` on a read-only volume, where the state cannot differ.
    ///
    /// # Errors
    /// The errors of [`hold`](Self::hold); `NotFound` also if the number belongs to another inode.
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
            // Changes that were made before the inode was opened may not be durable yet.
            writing.transactions.newest().note_map(opened.inode());
            (open, now) = (Some(opened), Some(inode));
        }
        Ok((Ext4Held { fs: Arc::clone(self), number, open }, now))
    }

    /// Sets the time stamps for the writes recorded since the last call.
    pub(crate) fn leave_stamps(&self) {
        if let Ok(writing) = self.writing() {
            writing.locks.stamp_all_noted();
        }
    }

    /// Moves pending time stamps into the running transaction.
    ///
    /// # Errors
    /// `ReadOnly`; the errors of reading the inodes' blocks.
    pub(crate) fn store_stamps(self: &Arc<Self>) -> Result<()> {
        let stamped = self.writing()?.locks.stamped();
        stamped.into_iter().try_for_each(|number| self.store_stamps_waiting(number))
    }

    /// Moves the pending time stamps of one inode into the running transaction.
    pub(super) fn store_stamps_waiting(self: &Arc<Self>, number: InodeNo) -> Result<()> {
        self.operate(|op| {
            // The inode may be closed and removed at the same time. The shared lock makes the thread that removes it wait.
            let _inode = op.share(number);
            op.store_stamps_of(number)
        })
    }
}

impl Operation<'_> {
    /// Moves the pending time stamps of an inode into the running transaction. The inode's lock must be held.
    fn store_stamps_of(&self, number: InodeNo) -> Result<()> {
        if self.writing.locks.stamps(number) == Waiting::default() {
            return Ok(());
        }
        // Every change of an inode also stores its pending stamps.
        self.transact(STAMP_CREDITS, |handle| handle.store_stamps(number))
    }

    /// The fate of an inode that loses a name. The inode's lock must be held.
    pub(super) fn fate(&self, inode: &InodeToChange<'_>) -> Result<Fate> {
        let directory = inode.file_type() == FileType::Directory;
        if inode.stat().links > 1 && !directory {
            return Ok(Fate::Stays);
        }
        if self.writing.locks.is_open(inode.number()) {
            return Ok(Fate::EndsWhenClosed);
        }
        // An inode whose removal does not fit into one transaction of a small journal is freed in several transactions.
        let credits = self.eviction_credits(inode, Fate::EndsNow);
        let fits = credits <= self.writing.transactions.limit() / 2;
        Ok(if inode.has_small_map() && fits { Fate::EndsNow } else { Fate::EndsLater })
    }

    /// The maximum number of blocks changed by the removal of an inode, without the blocks of the directory.
    pub(super) fn eviction_credits(&self, inode: &InodeToChange<'_>, fate: Fate) -> u32 {
        match fate {
            Fate::Stays | Fate::EndsWhenClosed | Fate::EndsLater => 8,
            Fate::EndsNow => SMALL_CREDITS + inode.credits_for_unmap() + inode.xattr_credits(),
        }
    }

    /// Finishes the removal after the transaction that removed the last name. The inode's lock must be held.
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

    /// Frees an orphan without names. If its metadata are damaged, gives it up; its name stays removed in either case.
    fn evict(&self, orphan: &Locked<'_>) -> Result<()> {
        self.try_evict(orphan).or_else(|why| self.leave_orphan(orphan, why))
    }

    /// Handles an orphan that could not be removed.
    ///
    /// # Errors
    /// Errors of the device, and those of a read-only volume. The inode then stays an orphan, and the next opening of the volume tries again.
    fn leave_orphan(&self, orphan: &Locked<'_>, why: Error) -> Result<()> {
        if !is_of_volume(&why) || self.writing.transactions.check().is_err() {
            return Err(why);
        }
        self.give_up_orphan(orphan)?;
        self.note_left(vec![Self::left(orphan.number(), &why)], &[why])
    }

    /// The report about an orphan that was given up.
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
            // A partial result can be committed: no thread reads an inode without a name, and nothing refers to the freed blocks.
            ended.inspect_err(|why| self.pardon(handle, why))
        })
    }

    /// Frees everything that an inode uses outside of its slot in the inode table.
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

    /// The value of `i_dtime` for an inode that is deleted now. A value that is a valid inode number would be taken for the next orphan of a list.
    pub(super) fn deletion_time(&self, now: Timestamp) -> u32 {
        u32::try_from(now.seconds.max(0)).unwrap_or(u32::MAX).max(self.superblock.inodes_count)
    }

    /// Frees an inode without content.
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

    /// Removes the orphans of a crash, and of programs that had files open. An orphan that cannot be removed is given
    /// up, so that it never prevents the opening of a volume. `wrong` holds the errors of the recovery of fast commits.
    ///
    /// # Errors
    /// Errors of the device; the inode then stays an orphan. If a location on the device is unreadable again at a second attempt, the orphan is given
    /// up instead.
    pub(in crate::fs::ext4) fn end_orphans(&self, mut wrong: Vec<Error>) -> Result<()> {
        let (orphans, more) = self.adopt_orphans()?;
        wrong.extend(more);
        let cut = |why| format!("the inodes on the list of orphans are left to e2fsck: {why}");
        let mut told: Vec<_> = wrong.iter().map(cut).collect();
        for number in orphans {
            let orphan = self.lock(number);
            let Err(why) = self.end_orphan(&orphan) else { continue };
            // If the device failed in the middle of a change, the volume is ended. If only the orphan's location is unreadable, the orphan is given
            // up.
            let fails = !is_of_volume(&why)
                && (self.writing.transactions.check().is_err() || self.end_orphan(&orphan).is_ok());
            if fails {
                return Err(why);
            }
            // If giving up fails too, the orphan is not the cause.
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

    /// Permits a commit of an orphan that was freed as far as its metadata permit, together with the mark of errors in the superblock.
    fn pardon(&self, handle: &mut Handle<'_>, why: &Error) {
        if is_of_volume(why) && handle.mark_errors().is_ok() {
            handle.took_back();
        }
    }

    /// Finishes an interrupted truncation by freeing the blocks past the size. A file without a name stays an orphan. If the metadata are damaged, a
    /// partial result is committed only while the volume is being opened, because a later write could extend the file over the remaining blocks.
    pub(super) fn finish_truncation(&self, inode: &InodeToChange<'_>, opening: bool) -> Result<()> {
        let end = FileBlock(self.superblock.block_size.blocks_for(inode.size()));
        self.transact(PIECE_CREDITS + inode.credits_for_unmap(), |handle| {
            if inode.has_map() {
                let unmapped = inode.unmap_range(handle, end..FileBlock(1 << 32));
                if let (Err(why), true) = (&unmapped, opening) {
                    // The inode is still an orphan, and nothing refers to the freed blocks.
                    self.pardon(handle, why);
                }
                unmapped?;
            }
            if inode.stat().links > 0 { self.remove_orphan(handle, inode) } else { Ok(()) }
        })
    }
}

impl Inode {
    /// Whether the content is in blocks, that is, the inode is not a device or a link with its target in the inode, and has no inline data.
    pub(crate) fn has_map(&self) -> bool {
        match self.file_type() {
            FileType::Regular | FileType::Directory => !self.has_inline_data(),
            FileType::Symlink => !self.is_fast_symlink() && !self.has_inline_data(),
            _ => false,
        }
    }

    /// Whether the map has no nodes except the root.
    pub(crate) fn has_small_map(&self) -> bool {
        // `eh_depth` in the root.
        let flat = self.i_block[6..8] == [0, 0];
        !self.has_map() || self.flags().contains(InodeFlags::EXTENTS) && flat
    }
}
