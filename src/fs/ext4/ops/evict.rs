//! The removal of inodes. An inode that is open is freed when it is closed. A large inode is freed in several transactions. Orphans that
//! remain after a crash are freed when the volume is opened the next time.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::fs::ext4::alloc::FreshInode;
use crate::fs::ext4::attr::Attributes;
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::{
    InodeToChange, Locked, MayChange, Open, Operation, Patience, WriteState,
};
use crate::fs::ext4::stamps::Waiting;
use crate::fs::ext4::writing::Writing;
use crate::fs::ext4::{Ext4, Inode};
use crate::fs::{Access, FileType, InodeFlags, Stat, Timestamp};
use crate::units::{FileBlock, InodeNo};

/// The fate of an inode after the removal of one of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The inode has another name and remains.
    Stays,
    /// The inode is freed in the same transaction.
    EndsNow,
    /// The inode is an orphan until all its blocks are freed.
    EndsLater,
    /// The inode is an orphan until it is closed.
    EndsWhenClosed,
}

/// The number of blocks that change when a file with only a root node is freed: the bitmaps and descriptors of at most four extents, each
/// in two groups; attributes; the inode; the superblock.
const SMALL_CREDITS: u32 = 32;
/// The number of blocks that an update of time stamps changes: only the inode's block.
const STAMP_CREDITS: u32 = 1;
/// The maximum number of orphans whose errors are reported individually when a volume is opened.
const MOST_TOLD: usize = 64;
/// A large map is freed piece by piece. Each transaction changes the blocks of one piece, and at most this number of blocks for the orphan
/// list and the inode.
const PIECE_CREDITS: u32 = 16;

/// The limits for the attempts to convert a file's written data when the file is closed. Attempts are repeated, because other threads may
/// open and write the file between two attempts. The first limit is the number of all attempts, and the second limit is the number of
/// failed attempts.
const SETTLE_ATTEMPTS: u32 = 100;
const SETTLE_FAILURES: u32 = 3;

/// An open inode. An inode that loses its last name is freed only after this value is dropped.
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
    pub(crate) fn state(&self) -> Option<&Arc<WriteState>> {
        self.open.as_ref().map(Open::state)
    }

    /// The file system.
    pub(crate) fn fs(&self) -> &Arc<Ext4> {
        &self.fs
    }

    /// Sets a time stamp in memory, without a transaction. All readers of the inode see this time stamp. The next change of the inode
    /// writes the time stamp to the journal. A sync, the last close and the [timer](super::super::CommitTimer) also write it. The function
    /// acquires no lock, and does nothing on a read-only volume.
    #[inline]
    pub fn stamp(&self, access: Access) {
        if let (Some(open), Some(writing)) = (&self.open, &self.fs.writing) {
            writing.locks.stamp(open, access);
        }
    }
}

fn opened(writing: &Writing, open: Open) -> Open {
    // Earlier changes of the map may not be durable yet. The newest transaction is therefore recorded as the last change of the map.
    open.state().mapped_in(writing.transactions.newest());
    open
}

impl Drop for Ext4Held {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        // An error of the close is ignored. An inode without a name then stays an orphan, and the next opening of the volume removes it.
        // Pending time stamps are lost, as in a crash.
        let _ = self.fs.operate(|op| op.close_inode(self.number, open));
    }
}

impl Operation<'_> {
    /// Opens a new file. The file is still locked. No other thread can therefore remove it before it is open.
    pub(in crate::fs::ext4) fn open_new(&self, fresh: &FreshInode<'_>) -> Ext4Held {
        let open = opened(self.writing, fresh.open());
        Ext4Held { fs: Arc::clone(self), number: fresh.number(), open: Some(open) }
    }

    /// Closes an inode. The last close converts the written data, and removes the inode if it has no name.
    fn close_inode(&self, number: InodeNo, open: Open) -> Result<()> {
        let mut file = self.lock(number);
        let (mut attempts, mut failures, mut last) = (SETTLE_ATTEMPTS, 0, Ok(()));
        while attempts > 0
            && failures < SETTLE_FAILURES
            && open.is_last()
            && !open.state().is_settled()
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
            // The lock order requires that a thread locks the content before the inode. The inode is therefore unlocked here. No other
            // thread has requests in flight. However, another thread may open the file before the inode is locked again.
            drop(file);
            last = self.convert(number, open.state(), Patience::All);
            failures += u32::from(last.is_err());
            file = self.lock(number);
            // Blocks past the size are freed only if all data are converted. Another thread may have written data while the inode was
            // unlocked. These data may lie past the size in the metadata.
            if last.is_ok() && open.is_last() && open.state().inode.pending.is_converted() {
                let _ = self.cut_orphan(&file, open.state());
            }
        }
        if let Err(error) = last
            && open.is_last()
        {
            self.writing.unheard.lock().get_or_insert(error);
            let _ = self.cut_orphan(&file, open.state());
        }
        if !file.close(&open) {
            return Ok(());
        }
        let is_gone = file.inode().is_ok_and(|inode| inode.stat().links == 0);
        if is_gone {
            // The recorded changes that wait for a conversion are dropped, because the inode number may soon be reused.
            open.state().inode.pending.forget();
            open.state().set_orphan(false);
        }
        drop(open);
        if is_gone { self.evict(&file) } else { self.store_stamps_of(number) }
    }
}

/// Whether the error is caused by the volume's metadata. After such an error, each further attempt fails in the same way. All other errors
/// come from the device or the caller.
pub(super) fn is_of_volume(why: &Error) -> bool {
    use ErrorKind::{Corrupt, Encrypted, LimitExceeded, NotFound, Unsupported};
    matches!(why.kind(), Corrupt | Unsupported | NotFound | LimitExceeded | Encrypted)
}

impl Ext4 {
    /// Opens an inode. While the handle exists, the inode is not freed, even if it loses its last name. The inode's blocks are not reused
    /// either. Does nothing on a read-only volume.
    ///
    /// # Errors
    /// `NotFound` if the inode has no name and no other open handle.
    pub fn hold(self: &Arc<Self>, number: InodeNo) -> Result<Ext4Held> {
        self.hold_if(number, |_| Ok(())).map(|(held, _)| held)
    }

    /// Opens the inode that `earlier` describes. Returns the inode's current state, or `None` on a read-only volume, where the state equals
    /// `earlier`.
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
            (open, now) = (Some(opened(writing, lock.open())), Some(inode));
        }
        Ok((Ext4Held { fs: Arc::clone(self), number, open }, now))
    }

    /// Sets the time stamps of all files with writes that were recorded since the last call.
    pub(crate) fn leave_stamps(&self) {
        if let Ok(writing) = self.writing() {
            writing.locks.stamp_all_noted();
        }
    }

    /// Moves the time stamps that are set only in memory into the running transaction.
    ///
    /// # Errors
    /// `ReadOnly`; the errors of reading the inodes' blocks.
    pub(crate) fn store_stamps(self: &Arc<Self>) -> Result<()> {
        let stamped = self.writing()?.locks.stamped();
        stamped.into_iter().try_for_each(|number| self.store_stamps_waiting(number))
    }

    /// Moves the time stamps of one inode that are set only in memory into the running transaction.
    pub(super) fn store_stamps_waiting(self: &Arc<Self>, number: InodeNo) -> Result<()> {
        self.operate(|op| {
            // Another thread may try to close and remove the inode at the same time. That thread must wait until this thread releases the
            // shared lock.
            let _inode = op.share(number);
            op.store_stamps_of(number)
        })
    }
}

impl Operation<'_> {
    /// Moves the time stamps of an inode that are set only in memory into the running transaction. The inode's lock must be held.
    fn store_stamps_of(&self, number: InodeNo) -> Result<()> {
        if self.writing.locks.stamps(number) == Waiting::default() {
            return Ok(());
        }
        // This transaction changes only the time stamps. Every other change of an inode also stores the time stamps that are set in memory.
        self.transact(STAMP_CREDITS, |handle| handle.store_stamps(number))
    }

    /// Determines what happens to an inode after the removal of one of its names: the inode remains, is freed, or becomes an orphan. The
    /// inode's lock must be held.
    pub(super) fn fate(&self, inode: &InodeToChange<'_>) -> Result<Fate> {
        let directory = inode.file_type() == FileType::Directory;
        if inode.stat().links > 1 && !directory {
            return Ok(Fate::Stays);
        }
        if self.writing.locks.is_open(inode.number()) {
            return Ok(Fate::EndsWhenClosed);
        }
        // In a small journal, the removal of an inode may not fit into one transaction. The inode is then freed in several transactions.
        let credits = self.eviction_credits(inode, Fate::EndsNow);
        let fits = credits <= self.writing.transactions.limit() / 2;
        Ok(if inode.has_small_map() && fits { Fate::EndsNow } else { Fate::EndsLater })
    }

    /// The maximum number of blocks that the removal of an inode changes. The blocks of the directory are not included.
    pub(super) fn eviction_credits(&self, inode: &InodeToChange<'_>, fate: Fate) -> u32 {
        match fate {
            Fate::Stays | Fate::EndsWhenClosed | Fate::EndsLater => 8,
            Fate::EndsNow => SMALL_CREDITS + inode.credits_for_unmap() + inode.xattr_credits(),
        }
    }

    /// Completes the removal of an inode after the transaction that removed its last name. Frees the inode if its fate requires further
    /// transactions. `failed` is the error if that transaction could not free the inode; the inode is then handled as an orphan that cannot
    /// be removed. The inode's lock must be held.
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

    /// Frees an orphan without names. If the orphan's metadata are damaged, the orphan is removed from the list and left for e2fsck.
    fn evict(&self, orphan: &Locked<'_>) -> Result<()> {
        self.try_evict(orphan).or_else(|why| self.leave_orphan(orphan, why))
    }

    /// Handles an orphan that could not be removed because of the error `why`. If the orphan's metadata are damaged, removes the orphan
    /// from the list without freeing it. All other errors are returned.
    ///
    /// # Errors
    /// Errors of the device; the error of a volume that has become read-only. The inode then stays an orphan. The next opening of the
    /// volume tries to remove it again.
    fn leave_orphan(&self, orphan: &Locked<'_>, why: Error) -> Result<()> {
        if !is_of_volume(&why) || self.writing.transactions.check().is_err() {
            return Err(why);
        }
        self.give_up_orphan(orphan)?;
        self.note_left(vec![Self::left(orphan.number(), &why)], &[why])
    }

    /// The message about an orphan that was removed from the list without being freed.
    fn left(number: InodeNo, why: &Error) -> String {
        format!("orphan inode {number} could not be freed, run e2fsck: {why}")
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
            // A part of the changes may be committed after an error. This does no harm: no thread reads an inode without a name, and no
            // metadata refer to the freed blocks.
            ended.inspect_err(|why| self.pardon(handle, why))
        })
    }

    /// Frees the blocks and the attributes of an inode. The inode itself is not freed.
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

    /// The value of `i_dtime` for an inode that is deleted at this time. The value is never a valid inode number, because a valid number
    /// would be read as the next orphan in the list.
    pub(super) fn deletion_time(&self, now: Timestamp) -> u32 {
        u32::try_from(now.seconds.max(0)).unwrap_or(u32::MAX).max(self.superblock.inodes_count)
    }

    /// Frees an inode. The caller must already have freed the inode's content.
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

    /// Removes the orphans that remain after a crash. An orphan with damaged metadata is removed from the list but not freed. Such an
    /// orphan must never prevent the opening of the volume. `wrong` contains the errors of the recovery of fast commits.
    ///
    /// # Errors
    /// Errors of the device. If a second attempt fails too, for example at an unreadable sector, the orphan is removed from the list
    /// without an error.
    pub(in crate::fs::ext4) fn end_orphans(&self, mut wrong: Vec<Error>) -> Result<()> {
        let (orphans, more) = self.adopt_orphans()?;
        wrong.extend(more);
        let cut =
            |why| format!("the inodes on the orphan list could not be freed, run e2fsck: {why}");
        let mut told: Vec<_> = wrong.iter().map(cut).collect();
        for number in orphans {
            let orphan = self.lock(number);
            let Err(why) = self.end_orphan(&orphan) else { continue };
            // An error of the device is returned in two cases: it occurred during a change and has aborted the journal, or a second attempt
            // succeeds. If the second attempt fails without an abort, the orphan's sectors are unreadable, and the orphan is removed from
            // the list.
            let fails = !is_of_volume(&why)
                && (self.writing.transactions.check().is_err() || self.end_orphan(&orphan).is_ok());
            if fails {
                return Err(why);
            }
            // If the orphan also cannot be removed from the list, the orphan is not the cause of the errors, and the error of the removal
            // is returned.
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

    /// If `why` is an error of damaged metadata, permits that the incomplete removal of an orphan is committed. The same commit records in
    /// the superblock that the volume has errors.
    fn pardon(&self, handle: &mut Handle<'_>, why: &Error) {
        if is_of_volume(why) && handle.mark_errors().is_ok() {
            handle.took_back();
        }
    }

    /// Finishes an interrupted truncation by freeing the blocks past the size. A file without a name stays an orphan. If the metadata are
    /// damaged, the truncation is incomplete. An incomplete truncation is committed only while the volume is being opened. At any other
    /// time, a later write could extend the file over the blocks that were not freed.
    pub(super) fn finish_truncation(&self, inode: &InodeToChange<'_>, opening: bool) -> Result<()> {
        let end = FileBlock(self.superblock.block_size.blocks_for(inode.size()));
        self.transact(PIECE_CREDITS + inode.credits_for_unmap(), |handle| {
            if inode.has_map() {
                let unmapped = inode.unmap_range(handle, end..FileBlock(1 << 32));
                if let (Err(why), true) = (&unmapped, opening) {
                    // The incomplete truncation does no harm: the inode is still an orphan, and no metadata refer to the freed blocks.
                    self.pardon(handle, why);
                }
                unmapped?;
            }
            if inode.stat().links > 0 { self.remove_orphan(handle, inode) } else { Ok(()) }
        })
    }
}

impl Inode {
    /// Whether the content is in blocks. Returns false for special files, for symbolic links with their target in the inode, and for inline
    /// data.
    pub(crate) fn has_map(&self) -> bool {
        match self.file_type() {
            FileType::Regular | FileType::Directory => !self.has_inline_data(),
            FileType::Symlink => !self.is_fast_symlink() && !self.has_inline_data(),
            _ => false,
        }
    }

    /// Whether the map has no nodes except the root.
    pub(crate) fn has_small_map(&self) -> bool {
        // These bytes are `eh_depth` of the root. They are zeros if the root is the only node.
        let flat = self.i_block[6..8] == [0, 0];
        !self.has_map() || self.flags().contains(InodeFlags::EXTENTS) && flat
    }
}
