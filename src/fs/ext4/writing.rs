//! A volume that is open for writing: how it is opened and closed, and its additional state.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use zerocopy::FromBytes;

use super::alloc::Allocator;
use super::counters::Counters;
use super::disk::superblock::{REV_DYNAMIC, RawSuperblock, STATE_ERROR, STATE_VALID};
use super::errors::Errors;
use super::jbd2::{self, LogWriter, Transactions};
use super::mmp;
use super::mmp_hold::MmpHold;
use super::operation::locks::{Locks, Patience};
use super::orphan::OrphanList;
use super::passed_over::PassedOver;
use super::rules::By;
use super::superblock::{PLACE, change_features, change_superblock, set_time};
use super::{Compat, Ext4, Incompat, ROOT, RoCompat};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::events::Events;
use crate::fs::{Clock, FileType, OnError, Timestamp};
use crate::open_file::Alone;
use crate::sync::Mutex;
use crate::sys::coarse_time;

/// The maximum number of changed blocks in memory on a volume without a journal. At this number, the blocks are written to the device.
const UNJOURNALED_LIMIT: u32 = 8192;

impl Clock {
    #[inline]
    pub(crate) fn now(self) -> Timestamp {
        match self {
            Self::Fixed(time) => time,
            Self::System => {
                let (seconds, nanoseconds) = coarse_time();
                Timestamp { seconds, nanoseconds }
            }
        }
    }
}

/// The additional state of a volume that is open for writing.
pub(crate) struct Writing {
    pub(crate) transactions: Transactions,
    /// The writer of the journal's log. `None` if the volume has no journal.
    pub(crate) log: Mutex<Option<LogWriter>>,
    pub(crate) alloc: Allocator,
    pub(crate) locks: Locks,
    pub(crate) clock: Clock,
    /// The orphans in the volume's orphan list.
    pub(crate) orphans: Mutex<OrphanList>,
    /// The generation that the next new inode gets.
    generations: AtomicU32,
    /// The claim of this computer on a volume with multiple mount protection: while the claim is valid, no other computer uses the volume.
    pub(crate) mmp: Mutex<Option<MmpHold>>,
    /// The result of the first close, or `None` until the first close has ended. A second close waits for this lock, and returns the same
    /// result.
    closed: Mutex<Option<Result<(), (ErrorKind, String)>>>,
    /// Counters of the costs of writing, such as waits for locks.
    pub(crate) counters: Counters,
    /// An error of an earlier close of a file, if no caller has received it yet. The next sync returns this error.
    pub(crate) unheard: Mutex<Option<Error>>,
    /// The corruption that was found, and the volume's reaction to corruption.
    pub(super) errors: Errors,
    /// Whether an operation has enabled a feature that the backups of the superblock do not contain yet.
    pub(super) features_switched: AtomicBool,
}

impl Writing {
    /// Creates the state of a volume. The log is opened later. A transaction may change at most `limit` blocks.
    fn new(fs: &Ext4, alloc: Allocator, limit: u32, clock: Clock) -> Self {
        Self {
            transactions: Transactions::new(limit),
            log: Mutex::new(None),
            alloc,
            locks: Locks::new(clock),
            clock,
            orphans: Mutex::default(),
            generations: AtomicU32::new(clock.now().nanoseconds.wrapping_mul(0x85EB_CA6B)),
            mmp: Mutex::new(None),
            closed: Mutex::default(),
            counters: Counters::default(),
            unheard: Mutex::default(),
            errors: Errors::new(fs.superblock.on_error),
            // The opening of a volume with a journal sets the feature needs_recovery. This feature raises revision 0 to revision 1. The
            // close must then write the new revision to the backups.
            features_switched: AtomicBool::new(
                fs.superblock.revision < REV_DYNAMIC
                    && fs.superblock.compat.contains(Compat::HAS_JOURNAL),
            ),
        }
    }

    /// Returns the generation of a new inode. A new generation makes the file handles of an earlier inode with the same number invalid.
    pub(crate) fn generation(&self) -> u32 {
        // The sequence of generations visits all 32-bit numbers, because the step is odd. With this step, consecutive generations differ in
        // many bits.
        self.generations.fetch_add(0x9E37_79B9, Ordering::Relaxed)
    }
}

impl Ext4 {
    /// Opens the file system on a device for reading and writing. A journal that needs recovery is recovered on the device.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open); `ReadOnly`, with the reason, if the volume or the device cannot be written.
    pub fn open_for_writing(
        device: Arc<dyn Device>,
        events: &Arc<Events>,
        clock: Clock,
    ) -> Result<Arc<Self>> {
        if !device.is_writable() {
            return Err(Error::read_only("the device was opened read-only"));
        }
        let superblock = Self::read_superblock(&*device)?;
        mmp::check(&*device, &superblock, mmp::Purpose::Write)?;
        // Another computer may have changed the volume while `mmp::check` waited. The superblock is therefore read again.
        let open = || {
            let superblock = Self::read_superblock(&*device)?;
            let (device, left) = (Arc::clone(&device), PassedOver::default());
            Self::open_held(device, superblock, events, left, None)
        };
        let mut found = open()?;
        found.check_writable()?;
        let mmp = MmpHold::take(&device, &found.superblock, events, clock)?;
        if mmp.is_some() {
            // The volume is read again. Another computer may have written to the volume before it noticed that this computer has claimed
            // the volume.
            found = open()?;
            found.check_writable()?;
        }
        let journal = found.journal.clone();
        let mut wrong = Vec::new();
        if !found.fast_commits.is_empty() {
            wrong = found.recover_fast_commits(&device, events, clock)?;
            // The recovery has written changes to their home locations. The volume is therefore read again.
            found = open()?;
        }
        // All checks that can refuse the volume are made before the first write.
        let alloc = Allocator::load(&found)?;
        found.check_own_inodes()?;
        let mut log = jbd2::restore(&found)?;
        let mut fs = Self::assemble(device, found.superblock.clone(), events);
        fs.journal = journal;
        drop(found);
        // Before the log is used, the superblock must record that the journal needs recovery. Without this record, e2fsck would ask whether
        // to recover the log.
        fs.mark_open(log.as_ref(), clock)?;
        if let Some(log) = &mut log {
            log.forget_abort()?;
            log.open(&fs.blocks)?;
        }
        let limit = log.as_ref().map_or(UNJOURNALED_LIMIT, LogWriter::limit);
        let mut writing = Writing::new(&fs, alloc, limit, clock);
        (writing.log, writing.mmp) = (Mutex::new(log), Mutex::new(mmp));
        fs.writing = Some(writing);
        let fs = Arc::new(fs);
        fs.load_quota()?;
        fs.operate(|op| op.end_orphans(wrong))?;
        Ok(fs)
    }

    /// Opens the volume `found` for changes that form one transaction of any size. Only [`commit_to`](Self::commit_to) writes the changes
    /// to the device. Dropping the volume writes nothing. The blocks in the log must already be at their home locations.
    pub(super) fn for_one_transaction(
        found: &Self,
        device: &Arc<dyn Device>,
        events: &Arc<Events>,
        clock: Clock,
    ) -> Result<Arc<Self>> {
        let mut fs = Self::assemble(Arc::clone(device), found.superblock.clone(), events);
        let mut writing = Writing::new(&fs, Allocator::load(&fs)?, u32::MAX, clock);
        writing.closed = Mutex::new(Some(Ok(())));
        // Errors are returned only to the caller of this function, and are not recorded in the superblock.
        writing.errors = Errors::new(OnError::Continue);
        fs.writing = Some(writing);
        Ok(Arc::new(fs))
    }

    /// Whether the volume was opened for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writing.is_some()
    }

    /// The additional state of a volume that is open for writing.
    ///
    /// # Errors
    /// `ReadOnly` if the volume was not opened for writing.
    pub(crate) fn writing(&self) -> Result<&Writing> {
        self.writing.as_ref().ok_or_else(|| Error::read_only("the volume was opened read-only"))
    }

    /// Checks that the volume can be opened for writing.
    ///
    /// # Errors
    /// `ReadOnly`, with the names of the features that do not support writes.
    pub fn check_writable(&self) -> Result<()> {
        if self.superblock.has_external_journal() {
            return Err(Error::read_only(
                "volumes with a journal on another device (journal_dev) can only be read: tune2fs -O ^has_journal removes the journal",
            ));
        }
        let sb = &self.superblock;
        if sb.revision > REV_DYNAMIC {
            let what = format!("volumes of revision {} can only be read", sb.revision);
            return Err(Error::read_only(what));
        }
        let incompat = sb.incompat - Incompat::WRITABLE;
        let ro_compat = sb.ro_compat - RoCompat::WRITABLE;
        let names: Vec<_> = incompat.names().chain(ro_compat.names()).collect();
        if names.is_empty() {
            return sb.obey(By::Writing, &self.raw_superblock()?);
        }
        Err(Error::read_only(format!("volumes with {} can only be read", names.join(", "))))
    }

    /// Checks internal inodes as Linux does at a mount. The root must be a directory with a block. The block maps and the attribute blocks
    /// of the root and of the journal must be valid.
    ///
    /// # Errors
    /// `Corrupt`; the errors of [`inode`](Self::inode).
    fn check_own_inodes(self: &Arc<Self>) -> Result<()> {
        let root = self.inode_or_orphan(ROOT)?;
        let stat = root.stat();
        let used = stat.links > 0 && stat.size > 0 && stat.blocks > 0;
        if stat.file_type != FileType::Directory || !used {
            let what = "the root inode is not a directory, or has no name, no size or no block";
            return Err(Place::new("inode").inode(ROOT).corrupt(what));
        }
        root.check_own()?;
        let Some(number) = self.superblock.journal_inode else { return Ok(()) };
        let journal = self.inode_or_orphan(number)?;
        if u32::try_from(journal.size() >> self.superblock.block_size.shift()).is_err() {
            let place = Place::new("journal").inode(number).field("i_size");
            return Err(place.corrupt(format!("{} bytes", journal.size())));
        }
        journal.check_own()
    }

    pub(super) fn raw_superblock(&self) -> Result<RawSuperblock> {
        let (block, at) = self.superblock.position();
        let content = self.blocks.read(block, PLACE)?;
        let raw = RawSuperblock::read_from_prefix(&content[at..]);
        raw.map(|(raw, _)| raw).map_err(|_| PLACE.corrupt("the superblock is truncated"))
    }

    /// Marks the volume on the device as in use. If the journal records an error, the superblock's error flag is also set.
    fn mark_open(&self, log: Option<&LogWriter>, clock: Clock) -> Result<()> {
        let now = clock.now();
        self.write_superblock(|raw| {
            let errors = log.is_some_and(LogWriter::has_recorded_abort);
            let state = raw.s_state.get() | if errors { STATE_ERROR } else { 0 };
            raw.s_state.set(state);
            if log.is_some() {
                change_features(raw, |features| features.incompat.insert(Incompat::RECOVER));
            } else {
                raw.s_state.set(state & !STATE_VALID);
            }
            raw.s_mnt_count.set(raw.s_mnt_count.get().wrapping_add(1));
            set_time(&mut raw.s_mtime, &mut raw.s_mtime_hi, now);
            set_time(&mut raw.s_wtime, &mut raw.s_wtime_hi, now);
        })
    }

    /// Commits all changes, writes all blocks to their home locations, and records that the journal needs no recovery. Further changes are
    /// refused. A second close returns the same result.
    ///
    /// The close waits until the requests in flight of other threads have completed.
    ///
    /// # Errors
    /// The errors of [`sync`](Self::sync), after which the volume is in the same state as after a crash. `Busy` if the calling thread has
    /// requests in flight; the thread may call close again when these requests have completed.
    pub(crate) fn end_writing(self: &Arc<Self>) -> Result<()> {
        let Some(writing) = &self.writing else { return Ok(()) };
        let mut closed = writing.closed.lock();
        match &*closed {
            Some(Ok(())) => return Ok(()),
            Some(Err((kind, why))) => {
                return Err(Error::new(
                    *kind,
                    format!("the volume was already closed, with an error: {why}"),
                ));
            }
            None => {}
        }
        // The close waits for all requests in flight. The completion of a write records the extents that must be converted from unwritten
        // to written. No conversion is possible after the close.
        let mut alone = Ok(());
        for open in writing.locks.opened() {
            match Alone::wait(&open, 0..u64::MAX).map(drop) {
                Err(error) if error.kind() == ErrorKind::Busy => return Err(error),
                // If an I/O queue of the process was lost, its requests in flight may never complete. The close nevertheless continues: the
                // loss of the queue has already aborted the volume.
                waited => alone = alone.and(waited),
            }
        }
        let converted = self.convert_all(Patience::Some);
        if converted.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy) {
            return converted;
        }
        // If the extents of a file could not be converted, all other changes are nevertheless written.
        let ended = self.store_waiting().and_then(|()| self.end(writing));
        let ended = ended.and(converted).and(alone);
        *closed = Some(ended.as_ref().map_err(|error| (error.kind(), error.to_string())).copied());
        ended
    }

    /// Commits the last transaction and closes the log. The caller has converted the extents of all files and stored the pending time
    /// stamps. The function also stores the errors that are not recorded in the superblock yet.
    fn end(&self, writing: &Writing) -> Result<()> {
        self.check_stopped()?;
        writing.transactions.check()?;
        self.commit_with_data(writing.transactions.newest())?;
        self.check_held()?;
        writing.transactions.abort(&Error::read_only("the volume is closed"));
        writing.locks.all_changed();
        let mut log = writing.log.lock();
        if let Some(log) = &mut *log {
            log.close(&self.blocks)?;
        }
        let counts = writing.alloc.counts();
        self.write_superblock(|raw| {
            change_features(raw, |features| features.incompat.remove(Incompat::RECOVER));
            writing.errors.take_into(raw);
            if raw.s_state.get() & STATE_ERROR == 0 {
                raw.s_state.set(raw.s_state.get() | STATE_VALID);
            }
            set_time(&mut raw.s_wtime, &mut raw.s_wtime_hi, writing.clock.now());
            counts.store(raw);
        })?;
        self.raise_backups()?;
        *writing.mmp.lock() = None;
        self.tell_unheard()
    }

    /// Changes the superblock on the device, outside of transactions. The caller must ensure that no other thread changes the superblock at
    /// the same time.
    pub(super) fn write_superblock(&self, change: impl FnOnce(&mut RawSuperblock)) -> Result<()> {
        let (block, at) = self.superblock.position();
        let mut content = self.blocks.read_device(block)?;
        change_superblock(&mut content.for_change()?[at..], |raw| {
            change(raw);
            Ok(())
        })?;
        self.blocks.write_device(block, &[IoSlice::new(&content)], true)?;
        self.blocks.keep(block, content);
        Ok(())
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        // A drop cannot return an error. A caller that needs the result must call `close` before the drop. When the volume is dropped, no
        // file is open.
        if let Some(writing) = &self.writing
            && writing.closed.lock().is_none()
        {
            let _ = self.end(writing);
        }
    }
}
