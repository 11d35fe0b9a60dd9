//! Corruption on a volume that is open for writing: how errors are recorded in the superblock, and how the volume reacts.
//!
//! If an operation [fails](Ext4::watch) with `Corrupt`, the failure counts as one error. `s_errors` selects the reaction: nothing
//! (`continue`), refusing changes (`remount-ro`), or refusing changes and reads (`panic`). Errors that do not stop the volume are collected
//! in memory. One write stores all collected errors in the superblock. The next [`sync_all`](Ext4::sync_all), the next tick of the
//! [timer](super::CommitTimer), or the close of the volume makes this write.
//!
//! Corruption counts as an error of the volume only if the operation has locked the inode. Without the lock, another thread may change the
//! [`Inode`](super::Inode) during the read. Valid data can then look corrupt.

use std::mem::offset_of;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use zerocopy::{FromBytes, IntoBytes};

use super::Ext4;
use super::disk::superblock::{RawSuperblock, STATE_ERROR};
use super::superblock::{change_superblock, set_time};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::fs::block::Block;
use crate::fs::{OnError, Timestamp};
use crate::sync::Mutex;

/// The byte ranges of the superblock that record errors.
const FIELDS: [Range<usize>; 2] = [
    offset_of!(RawSuperblock, s_error_count)..offset_of!(RawSuperblock, s_mount_opts),
    offset_of!(RawSuperblock, s_first_error_time_hi)
        ..offset_of!(RawSuperblock, s_last_error_errcode) + 1,
];

impl OnError {
    /// The reaction for the value of `s_errors`. As in Linux, an unknown value means `remount-ro`. dumpe2fs describes an unknown value
    /// differently.
    pub(super) const fn from_raw(raw: u16) -> Self {
        match raw {
            1 => Self::Continue,
            3 => Self::Panic,
            _ => Self::RemountReadOnly,
        }
    }

    pub(super) const fn to_raw(self) -> u16 {
        match self {
            Self::Continue => 1,
            Self::RemountReadOnly => 2,
            Self::Panic => 3,
        }
    }
}

/// The errors of a volume that is open for writing.
pub(super) struct Errors {
    policy: OnError,
    /// The errors that have not been stored in the superblock yet.
    waiting: Mutex<Option<Met>>,
    /// The text of the error after which reads are refused. Empty while reads are allowed.
    stopped: OnceLock<String>,
}

/// The number of errors, the first error and the last error.
#[derive(Clone, Copy)]
struct Met {
    count: u32,
    first: Note,
    last: Note,
}

/// The superblock's record of an error.
#[derive(Clone, Copy)]
struct Note {
    time: Timestamp,
    inode: u32,
    block: u64,
    /// In this field of the superblock, Linux stores the name of a kernel function. ironmap stores the text `ironmap: ` and the name of the
    /// corrupt structure.
    function: [u8; 32],
    code: u8,
}

impl Errors {
    pub(super) fn new(policy: OnError) -> Self {
        Self { policy, waiting: Mutex::default(), stopped: OnceLock::new() }
    }

    /// Moves the pending errors into a superblock.
    pub(super) fn take_into(&self, raw: &mut RawSuperblock) {
        if let Some(met) = self.waiting.lock().take() {
            met.store(raw);
        }
    }

    /// Refuses all further reads, if the volume's reaction to errors is `panic`.
    pub(super) fn stop(&self, why: &Error) {
        if self.policy == OnError::Panic {
            self.stopped.get_or_init(|| why.to_string());
        }
    }

    fn add(&self, newer: Met) {
        let mut waiting = self.waiting.lock();
        *waiting = Some(waiting.map_or(newer, |older| older.then(newer)));
    }
}

impl Met {
    fn one(why: &Error, time: Timestamp) -> Self {
        let note = Note::of(why, time);
        Self { count: 1, first: note, last: note }
    }

    fn then(self, newer: Self) -> Self {
        let count = self.count.saturating_add(newer.count);
        Self { count, first: self.first, last: newer.last }
    }

    fn store(&self, raw: &mut RawSuperblock) {
        raw.s_state.set(raw.s_state.get() | STATE_ERROR);
        let before = raw.s_error_count.get();
        raw.s_error_count.set(before.saturating_add(self.count));
        if before == 0 {
            let Note { time, inode, block, function, code } = self.first;
            set_time(&mut raw.s_first_error_time, &mut raw.s_first_error_time_hi, time);
            raw.s_first_error_ino.set(inode);
            raw.s_first_error_block.set(block);
            raw.s_first_error_func = function;
            raw.s_first_error_line.set(0);
            raw.s_first_error_errcode = code;
        }
        let Note { time, inode, block, function, code } = self.last;
        set_time(&mut raw.s_last_error_time, &mut raw.s_last_error_time_hi, time);
        raw.s_last_error_ino.set(inode);
        raw.s_last_error_block.set(block);
        raw.s_last_error_func = function;
        raw.s_last_error_line.set(0);
        raw.s_last_error_errcode = code;
    }
}

impl Note {
    fn of(why: &Error, time: Timestamp) -> Self {
        let place = why.place();
        let mut function = [0; 32];
        let what = place.map_or("journal", |place| place.structure);
        // The last byte must stay zero, because a zero byte ends the text.
        for (to, from) in function[..31].iter_mut().zip(format!("ironmap: {what}").bytes()) {
            *to = from;
        }
        Self {
            time,
            inode: place.and_then(|place| place.inode).map_or(0, |inode| inode.0 as u32),
            block: place.and_then(|place| place.block).map_or(0, |block| block.0),
            function,
            code: code(why.errno()),
        }
    }
}

/// The value of `s_last_error_errcode` for an error number. The values do not depend on the machine. The value 1 means any other error.
fn code(errno: Errno) -> u8 {
    match errno {
        Errno::EIO => 2,
        Errno::ENOMEM => 3,
        Errno::EUCLEAN => 5,
        Errno::ENOSPC => 6,
        Errno::EROFS => 8,
        _ => 1,
    }
}

impl Ext4 {
    /// Runs an operation. The operation must lock the structures that it reads. On a volume that is open for writing, a failure with
    /// `Corrupt` counts as an error of the volume. An operation inside another operation must not return its error to the outer operation,
    /// because the error would then count twice.
    pub(crate) fn watch<R>(&self, operation: impl FnOnce() -> Result<R>) -> Result<R> {
        operation().map_err(|error| self.met(error))
    }

    #[cold]
    fn met(&self, error: Error) -> Error {
        if let Some(writing) = &self.writing
            && error.kind() == ErrorKind::Corrupt
            // After an abort, the device already contains the record of the error that caused the abort. Later errors result from the abort
            // and are not recorded.
            && writing.transactions.check().is_ok()
        {
            match writing.errors.policy {
                OnError::Continue => writing.errors.add(Met::one(&error, writing.clock.now())),
                OnError::RemountReadOnly | OnError::Panic => self.abort(&error),
            }
        }
        error
    }

    /// Records errors that did not stop an operation. The errors are committed together with the operation's changes. If `s_errors`
    /// requires an abort of the volume, the abort follows this commit. `lines` are texts about the errors, for the callers of
    /// [`take_left`](Self::take_left).
    pub(super) fn note_left(&self, lines: Vec<String>, errors: &[Error]) -> Result<()> {
        let Some((last, earlier)) = errors.split_last() else { return Ok(()) };
        let writing = self.writing()?;
        lines.into_iter().for_each(|line| self.left.tell(line));
        let note = |error| writing.errors.add(Met::one(error, writing.clock.now()));
        earlier.iter().for_each(note);
        if writing.errors.policy == OnError::Continue {
            note(last);
            return Ok(());
        }
        self.commit_running()?;
        self.abort(last);
        Ok(())
    }

    /// Moves the pending errors into the running transaction.
    ///
    /// # Errors
    /// `ReadOnly`; the errors of reading the superblock.
    pub(super) fn store_errors(self: &Arc<Self>) -> Result<()> {
        let errors = &self.writing()?.errors;
        let waiting = errors.waiting.lock().take();
        let Some(met) = waiting else { return Ok(()) };
        let store = |raw: &mut RawSuperblock| {
            met.store(raw);
            Ok(())
        };
        let stored = self.operate(|op| op.transact(1, |handle| handle.update_superblock(store)));
        // The errors were not stored. They become pending again. If the volume is aborted later, the abort records them.
        stored.inspect_err(|_| errors.add(met))
    }

    /// Records errors in the superblock on the device: all pending errors, and the error that aborts the volume. Also records the errors
    /// that are only in the newest version of the superblock in memory: this version may never be committed or checkpointed.
    pub(super) fn record_last(&self, why: &Error) -> Result<()> {
        let writing = self.writing()?;
        writing.errors.add(Met::one(why, writing.clock.now()));
        let Some(met) = writing.errors.waiting.lock().take() else { return Ok(()) };
        let (block, at) = self.superblock.position();
        let newest = self.blocks.dirty().get(block);
        self.write_superblock(|raw| {
            if let Some(newest) = &newest {
                adopt(raw, &newest[at..]);
            }
            met.store(raw);
        })
    }

    /// Copies the errors in the device's superblock into the journal's copy of the superblock. A recovery then writes this copy to the
    /// device. The error that aborted a volume is recorded only on the device, and not in the journal. Without this function, the recovery
    /// would overwrite this record.
    pub(super) fn keep_recorded(&self, copy: &mut Block) -> Result<()> {
        let (block, at) = self.superblock.position();
        let device = self.blocks.read_device(block)?;
        change_superblock(&mut copy.for_change()?[at..], |raw| {
            adopt(raw, &device[at..]);
            Ok(())
        })
    }

    /// Refuses reads after an error if the reaction is `panic`. Each read of an inode calls this function. A request with a block map in
    /// memory normally does not read the inode. The error therefore invalidates all block maps in memory. Each further request then reads
    /// the inode and is refused. Requests that have already passed the check are completed.
    ///
    /// # Errors
    /// `Io`, with the text of the first error.
    #[inline]
    pub(super) fn check_stopped(&self) -> Result<()> {
        match self.writing.as_ref().and_then(|writing| writing.errors.stopped.get()) {
            None => Ok(()),
            Some(why) => Err(stopped(why)),
        }
    }
}

/// Copies the record of errors from another copy of the superblock, if the record of that copy is newer.
fn adopt(raw: &mut RawSuperblock, other: &[u8]) {
    let Ok((other, _)) = RawSuperblock::ref_from_prefix(other) else { return };
    let age = |raw: &RawSuperblock| {
        (raw.s_error_count.get(), raw.s_last_error_time_hi, raw.s_last_error_time.get())
    };
    if age(other) > age(raw) {
        raw.s_state.set(raw.s_state.get() | other.s_state.get() & STATE_ERROR);
        for fields in FIELDS {
            raw.as_mut_bytes()[fields.clone()].copy_from_slice(&other.as_bytes()[fields]);
        }
    }
}

#[cold]
fn stopped(why: &str) -> Error {
    let what = format!("the volume is stopped after an error, because errors=panic is set: {why}");
    Error::io(Errno::EIO, what)
}
