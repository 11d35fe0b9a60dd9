//! Recovery on the device: writes the copies in the journal to their home locations, and prepares the journal for new transactions.

use std::io::IoSlice;
use std::sync::Arc;

use zerocopy::FromBytes;

use super::log::Log;
use super::superblock::{JournalFeatures, JournalSuperblock, seal_journal_superblock};
use super::{JournalState, LogWriter, recover};
use crate::error::{Error, Place, Result};
use crate::fs::block::Block;
use crate::fs::ext4::disk::journal::{CHECKSUM_CRC32C, RawJournalSuperblock};
use crate::fs::ext4::{Ext4, Incompat};
use crate::units::FsBlock;

const PLACE: Place = Place::new("journal superblock");
/// The number of block versions that are written in one batch.
const BATCH: usize = 1024;

/// Recovers the journal of a volume on the device. Returns the writer for the journal, or `None` if the volume has no journal. `fs` was
/// opened read-only.
///
/// A crash during the recovery does no harm: the journal stays valid until all of its copies are written to their home locations.
pub(in crate::fs::ext4) fn restore(fs: &Arc<Ext4>) -> Result<Option<LogWriter>> {
    match &fs.journal.state {
        JournalState::None => return Ok(None),
        JournalState::External => {
            return Err(Error::read_only("the journal is on another device (journal_dev)"));
        }
        JournalState::Unreadable(why) => {
            return Err(Error::read_only(format!("the journal cannot be written: {why}")));
        }
        JournalState::NotLoaded => return Err(Error::read_only("the journal was not loaded")),
        JournalState::Clean | JournalState::Recovered(_) => {}
    }
    if let Some(number) = fs.superblock.journal_inode {
        Log::open(fs, number)?.check_place()?;
    }
    if let JournalState::Recovered(_) = &fs.journal.state {
        write_overlay(fs)?;
    }
    let Some(number) = fs.superblock.journal_inode else { return Ok(None) };
    let log = Log::open(fs, number)?;
    // The log may contain an uncommitted transaction with the next number. This number is skipped, because it must not be used for two
    // transactions.
    let next = match log.superblock.start {
        Some(start) => walked_sequence(fs, &log, start)?.wrapping_add(1),
        None => log.superblock.sequence,
    };
    let (log, raw) = emptied(fs, log, next)?;
    fs.blocks.write_device(log.block(0)?, &[IoSlice::new(&raw)], true)?;
    LogWriter::new(&log, raw, fs.superblock.block_size, next).map(Some)
}

/// Recovers the log of a journal with fast commits. The fast commits stay valid. On return, the log is empty, and the next transaction has
/// the number that the fast commits require. One write of the superblock switches directly from the old log to the empty log. In two
/// writes, the journal would be marked as clean for a moment. After a crash at that moment, the next recovery would ignore the fast
/// commits.
pub(in crate::fs::ext4) fn restore_log(fs: &Arc<Ext4>) -> Result<LogWriter> {
    write_overlay(fs)?;
    let number =
        fs.superblock.journal_inode.ok_or_else(|| Error::read_only("the volume has no journal"))?;
    let log = Log::open(fs, number)?;
    let next = match log.superblock.start {
        Some(start) => walked_sequence(fs, &log, start)?,
        None => {
            return Err(PLACE
                .field("s_start")
                .corrupt("the log is empty (s_start is 0), but the fast commits need a log"));
        }
    };
    let (log, raw) = emptied(fs, log, next)?;
    let mut writer = LogWriter::new(&log, raw, fs.superblock.block_size, next)?;
    writer.open(&fs.blocks)?;
    Ok(writer)
}

/// The number of the transaction that would follow the committed transactions in the log.
fn walked_sequence(fs: &Ext4, log: &Log, start: u32) -> Result<u32> {
    let device_blocks = fs.blocks.device().size() >> fs.superblock.block_size.shift();
    Ok(recover::walk(log, start, device_blocks)?.next_sequence)
}

/// Returns the journal with an empty log, and the journal's first block with the number of the next transaction. The number must already be
/// on the device, because a crash may occur before that transaction is written. With an older number, a recovery would treat old
/// transactions in the log as successors of new transactions.
fn emptied(fs: &Arc<Ext4>, log: Log, next: u32) -> Result<(Log, Block)> {
    let first = log.block(0)?;
    let raw = made_ready(fs, fs.blocks.read_device(first)?, next)?;
    let blocks = u64::from(log.superblock.blocks);
    let superblock = JournalSuperblock::parse(&raw, first, fs.superblock.block_size, blocks)?;
    Ok((log.with(superblock), raw))
}

fn write_overlay(fs: &Ext4) -> Result<()> {
    let blocks = &fs.blocks;
    let all = FsBlock(0)..FsBlock(u64::MAX);
    let mut versions = Vec::with_capacity(BATCH);
    for (block, copy) in blocks.overlay().range(all) {
        let mut version = blocks.read_relocated(copy)?;
        if block == fs.superblock.position().0 {
            fs.keep_recorded(&mut version)?;
        }
        versions.push((block, version));
        if versions.len() == BATCH {
            blocks.write_home(&versions)?;
            versions.clear();
        }
    }
    blocks.write_home(&versions)?;
    blocks.flush()
}

/// The journal's superblock for an empty log. It has the features that new transactions need. Linux also sets these features at a mount. If
/// the journal's superblock records an error, the record stays until the file system's superblock also contains the error.
fn made_ready(fs: &Ext4, mut raw: Block, next: u32) -> Result<Block> {
    let bytes = raw.for_change()?;
    let Ok((fields, _)) = RawJournalSuperblock::mut_from_prefix(bytes) else {
        return Err(PLACE.corrupt("the journal superblock is truncated"));
    };
    let mut features = JournalFeatures::from_bits_retain(fields.s_feature_incompat.get().into());
    features |= JournalFeatures::REVOKE;
    if fs.superblock.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
        features |= JournalFeatures::SIXTY_FOUR_BIT;
    }
    if fs.superblock.seed.is_some() {
        features -= JournalFeatures::CSUM_V2;
        features |= JournalFeatures::CSUM_V3;
        fields.s_checksum_type = CHECKSUM_CRC32C;
        fields.s_feature_compat.set(0);
    }
    fields.s_feature_incompat.set(features.bits() as u32);
    fields.s_start.set(0);
    fields.s_sequence.set(next);
    seal_journal_superblock(fields);
    Ok(raw)
}
