//! The journal. If a volume is opened read-only, its journal is recovered in memory. If a volume is opened for writing, its journal is
//! recovered on the device, and changes are then written to the journal.
//!
//! A volume that is open read-only is not changed, not even by a recovery. Linux recovers a journal by copying the newest committed version
//! of each block to the block's home location. In ironmap, the copies stay in the journal, and an [overlay](super::blocks::Overlay) records
//! their locations. The overlay redirects reads of metadata, and reads of files with journalled data. Fast commits record operations
//! instead of blocks. These operations are converted to [edits](fast_commit) of inodes, maps and directories.
//!
//! On a volume that is open for writing, an operation joins the running [transaction](Transactions) with a [`Handle`]. A commit freezes the
//! transaction's blocks and writes them to the [log](LogWriter). When the log needs space, a checkpoint writes the committed blocks to
//! their home locations. If a volume was not closed cleanly, its journal is first recovered on the device.
//!
//! A recovery needs up to 60 bytes of memory for each block in the log. The log has at most four million blocks. A recovery of fast commits
//! also needs a few times the size of the fast-commit area.

mod commit;
mod external;
pub(crate) mod fast_commit;
mod handle;
mod history;
mod log;
mod log_writer;
mod recover;
mod restore;
mod superblock;
pub(super) mod tid;
mod timer;
mod transactions;

use std::sync::Arc;

pub(crate) use handle::Handle;
pub(super) use history::{History, Past};
pub(super) use log_writer::LogWriter;
pub(super) use restore::{restore, restore_log};
pub use superblock::JournalFeatures;
pub(super) use superblock::seal_journal_superblock;
pub use timer::CommitTimer;
pub(super) use transactions::Transactions;

use self::fast_commit::{Bounds, FastCommits};
use self::log::Log;
use super::blocks::Overlay;
use super::{Compat, Ext4, Incompat};
use crate::error::{Context, Error, Place, Result};
use crate::fs::{DeviceRange, uuid_text};

/// A volume's journal: its state at the time when the volume was opened, and its properties.
#[derive(Clone, Debug)]
pub struct Journal {
    /// The state of the journal when the volume was opened.
    pub state: JournalState,
    /// The journal's features; empty if the journal's superblock was not read.
    pub features: JournalFeatures,
    /// The size of the journal in file system blocks; 0 if the journal's superblock was not read.
    pub blocks: u32,
}

/// The state of a journal when the volume was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalState {
    /// The volume has no journal.
    None,
    /// No recovery was needed.
    Clean,
    /// The journal was recovered in memory.
    Recovered(Recovery),
    /// The journal is external, and no recovery is needed. The journal's superblock was read only if the caller passed the journal's
    /// device.
    External,
    /// No recovery is needed, but the journal's superblock is damaged or unsupported. The string describes the error.
    Unreadable(String),
    /// The journal was ignored at the caller's request.
    NotLoaded,
}

/// The results of a recovery, as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The number of committed transactions.
    pub transactions: u32,
    /// The number of blocks whose newest version is in the journal.
    pub blocks: u64,
    /// The number of copies that a revocation cancelled.
    pub revoked: u64,
    /// The number of fast commits after the last full commit.
    pub fast_commits: u32,
}

impl Journal {
    /// The state of a volume without a journal.
    pub(super) fn none() -> Self {
        Self::without_superblock(JournalState::None)
    }

    /// The state of a journal that is ignored.
    pub(super) fn not_loaded() -> Self {
        Self::without_superblock(JournalState::NotLoaded)
    }

    fn without_superblock(state: JournalState) -> Self {
        Self { state, features: JournalFeatures::empty(), blocks: 0 }
    }
}

/// Reads the journal, and recovers it if the volume's superblock requires this. `fs` must read the volume without an overlay. An external
/// journal is read through a combined device, which consists of the volume's device and the journal's device. `external` is the part that
/// the journal's device occupies.
pub(super) fn recover(
    fs: &Arc<Ext4>,
    external: Option<DeviceRange>,
) -> Result<(Journal, Overlay, FastCommits)> {
    let sb = &fs.superblock;
    let dirty = sb.incompat.contains(Incompat::RECOVER);
    let nothing = |journal| Ok((journal, Overlay::default(), FastCommits::default()));
    if external.is_some() && !sb.has_external_journal() {
        return Err(Error::invalid("the volume has no journal on another device"));
    }
    if !sb.compat.contains(Compat::HAS_JOURNAL) {
        if dirty {
            let place = Place::new("superblock").field("s_feature_incompat");
            return Err(place.corrupt("needs_recovery is set, but the volume has no journal"));
        }
        return nothing(Journal::none());
    }
    let Some(number) = sb.journal_inode else {
        if let Some(range) = external {
            let log = external::open(fs, range).context(|| "journal device")?;
            // The volume was opened with a backup of the superblock. A backup does not record whether the journal needs recovery. Therefore
            // a recovery always runs.
            if dirty || sb.copy != 0 {
                return replay(fs, &log).context(|| "journal recovery");
            }
            let (features, blocks) = (log.superblock.features, log.superblock.blocks);
            return nothing(Journal { state: JournalState::External, features, blocks });
        }
        if dirty {
            return Err(Error::unsupported(format!(
                "the journal is on another device (journal_dev, UUID {}) and needs recovery: --journal DEVICE names the device, e2fsck -j recovers the journal, and noload reads the volume without the journal",
                uuid_text(&sb.journal_uuid)
            )));
        }
        return nothing(Journal::without_superblock(JournalState::External));
    };
    if dirty {
        return Log::open(fs, number)
            .and_then(|log| replay(fs, &log))
            .context(|| "journal recovery");
    }
    let room = |log: Log| log.superblock.check_room(sb.compat).map(|()| log);
    let journal = match Log::open(fs, number).and_then(room) {
        Ok(log) => Journal {
            state: JournalState::Clean,
            features: log.superblock.features,
            blocks: log.superblock.blocks,
        },
        Err(error) => Journal::without_superblock(JournalState::Unreadable(error.to_string())),
    };
    nothing(journal)
}

/// If `compat` contains the fast-commit feature, checks that the journal has enough space for a fast-commit area.
///
/// # Errors
/// `Corrupt` if the journal is too small. Linux would also refuse to mount the volume.
pub(super) fn check_room(fs: &Arc<Ext4>, compat: Compat) -> Result<()> {
    match fs.superblock.journal_inode {
        Some(number) => Log::open(fs, number)?.superblock.check_room(compat),
        None => Ok(()),
    }
}

fn replay(fs: &Arc<Ext4>, log: &Log) -> Result<(Journal, Overlay, FastCommits)> {
    let (features, blocks) = (log.superblock.features, log.superblock.blocks);
    let Some(start) = log.superblock.start else {
        let journal = Journal { state: JournalState::Clean, features, blocks };
        return Ok((journal, Overlay::default(), FastCommits::default()));
    };
    let device_blocks = fs.blocks.device().size() >> fs.superblock.block_size.shift();
    let replay = recover::walk(log, start, device_blocks)?;
    let bounds = Bounds { inodes: fs.superblock.inodes_count, blocks: fs.superblock.blocks_count };
    let fast_commits = FastCommits::read(log, replay.next_sequence, &bounds)?;
    let (transactions, revoked) = (replay.transactions, replay.revoked);
    let overlay = replay.into_overlay(log)?;
    let recovery = Recovery {
        transactions,
        blocks: overlay.len() as u64,
        revoked,
        fast_commits: fast_commits.count,
    };
    let state = JournalState::Recovered(recovery);
    Ok((Journal { state, features, blocks }, overlay, fast_commits))
}

#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(test)]
mod tests;
