//! Walks the log and finds the newest committed copy of each block.
//!
//! Linux needs three passes over the log, because it writes during the recovery: one pass finds the end of the log, one collects the
//! revocations, and one replays the copies. This recovery writes nothing and needs only one pass. The pass collects copies, and removes the
//! copies that a revocation cancels.
//!
//! Damaged blocks are handled as in Linux:
//!
//! - A block without the magic number or with another sequence number ends the log. A transaction without a commit block also ends the log.
//! - A transaction with a bad descriptor, revoke or commit block is an error. There is one exception: if its commit time is older than that
//!   of the previous transaction, the transaction remains from an earlier use of the journal, and ends the log.
//! - With asynchronous commits, a bad commit block counts as an interrupted commit and ends the log. With version 1 checksums, a later
//!   commit proves that the commit was not interrupted, and the bad commit block is an error.
//! - A copy with a bad checksum is an error in Linux if Linux would write this copy. In ironmap it is an error only if no later copy or
//!   revocation supersedes the copy.

use std::collections::BTreeMap;

use super::log::{Log, Tag};
use super::superblock::JournalFeatures;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::ext4::blocks::{Overlay, Relocated};
use crate::fs::ext4::checksum::crc32_be;
use crate::fs::ext4::disk::journal::{CHECKSUM_CRC32, COMMIT, DESCRIPTOR, REVOKE};
use crate::units::FsBlock;

const DESCRIPTOR_PLACE: Place = Place::new("journal descriptor");
const REVOKE_PLACE: Place = Place::new("journal revoke block");
const COMMIT_PLACE: Place = Place::new("journal commit block");
/// The maximum number of copies. The records of this many copies need about 250 MiB of memory. Linux's default journals have at most
/// 262,144 blocks.
const MAX_COPIES: usize = 4 << 20;

/// A committed copy of a block: its position in the journal, and its checksum.
struct Copy {
    index: u32,
    sequence: u32,
    tag: Tag,
}

/// The result of a walk of the log.
#[derive(Default)]
pub(super) struct Replay {
    copies: BTreeMap<FsBlock, Copy>,
    pub(super) transactions: u32,
    pub(super) revoked: u64,
    /// The sequence number of the next transaction.
    pub(super) next_sequence: u32,
}

/// A transaction whose commit block the walk has not reached yet.
struct Transaction {
    copies: Vec<(Tag, u32)>,
    /// The positions of the transaction's revoke blocks. The walk reads these blocks when it reaches the commit block.
    revokes: Vec<u32>,
    /// The checksum of version 1, computed over the descriptor blocks and the copies.
    checksum: u32,
    damage: Option<Error>,
}

impl Transaction {
    fn new() -> Self {
        Self { copies: Vec::new(), revokes: Vec::new(), checksum: !0, damage: None }
    }

    /// Verifies a transaction with the checksum in its commit block.
    fn verify(self, log: &Log, commit: &[u8], place: Place) -> Result<Self, Fault> {
        if let Some(error) = self.damage {
            return Err(Fault::Damaged(error));
        }
        let verified = if log.superblock.has(JournalFeatures::CHECKSUM) {
            self.verify_first_version(commit, place)
        } else {
            log.verify_commit(commit, place)
        };
        match verified {
            Ok(()) => Ok(self),
            Err(error) if log.superblock.has(JournalFeatures::ASYNC_COMMIT) => {
                Err(Fault::Interrupted(error))
            }
            Err(error) => Err(Fault::Damaged(error)),
        }
    }

    /// Verifies the checksum of version 1. A commit block without a checksum has zeros in three fields: the type, the size and the value of
    /// the checksum.
    fn verify_first_version(&self, commit: &[u8], place: Place) -> Result<()> {
        let raw = Log::commit(commit, place)?;
        let stored = raw.h_chksum[0].get();
        match (raw.h_chksum_type, raw.h_chksum_size) {
            (0, 0) if stored == 0 => Ok(()),
            (CHECKSUM_CRC32, 4) if stored == self.checksum => Ok(()),
            (CHECKSUM_CRC32, 4) => Err(place.field("h_chksum").bad_checksum(stored, self.checksum)),
            (number, _) => Err(place.field("h_chksum_type").corrupt(format!("{number}"))),
        }
    }
}

/// The reason why a transaction with a commit block is invalid.
enum Fault {
    Damaged(Error),
    /// Only the commit block is wrong, and the journal commits asynchronously.
    Interrupted(Error),
}

/// A position in the ring. The walk ends, because the position advances at most once around the ring.
struct Cursor<'a> {
    log: &'a Log,
    index: u32,
    left: usize,
}

impl Cursor<'_> {
    fn take(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let index = self.index;
        self.index = self.log.after(index);
        Some(index)
    }
}

/// Walks the log from `start`. Only copies of blocks below `device_blocks` may be replayed. This limit is the size of the device. The size
/// in the superblock may be too small: the log may contain a resize that enlarged the volume.
pub(super) fn walk(log: &Log, start: u32, device_blocks: u64) -> Result<Replay> {
    let sb = &log.superblock;
    let first_version = sb.has(JournalFeatures::CHECKSUM);
    let mut replay = Replay { next_sequence: sb.sequence, ..Replay::default() };
    let mut cursor = Cursor { log, index: start, left: sb.log.len() };
    let mut transaction = Transaction::new();
    let mut sequence = sb.sequence;
    let mut newest = 0;
    let mut interrupted: Option<Error> = None;

    'log: while let Some(index) = cursor.take() {
        let (at, content) = log.read(index)?;
        match Log::block_type(&content, sequence) {
            Some(DESCRIPTOR) => {
                let verified = log.verify_tail(&content, DESCRIPTOR_PLACE.block(at));
                transaction.damage = transaction.damage.or(verified.err());
                if first_version {
                    transaction.checksum = crc32_be(transaction.checksum, &content);
                }
                for tag in log.tags(&content) {
                    let Some(index) = cursor.take() else { break 'log };
                    if first_version {
                        let (_, copy) = log.read(index)?;
                        transaction.checksum = crc32_be(transaction.checksum, &copy);
                    }
                    transaction.copies.push((tag, index));
                }
                if transaction.copies.len() + replay.copies.len() > MAX_COPIES {
                    return Err(Error::new(
                        ErrorKind::LimitExceeded,
                        format!("the journal contains more than {MAX_COPIES} blocks to recover"),
                    ));
                }
            }
            Some(REVOKE) => {
                let verified = log.verify_tail(&content, REVOKE_PLACE.block(at));
                transaction.damage = transaction.damage.or(verified.err());
                transaction.revokes.push(index);
            }
            Some(COMMIT) => {
                if let Some(error) = interrupted {
                    return Err(error);
                }
                let finished = std::mem::replace(&mut transaction, Transaction::new());
                let seconds = Log::commit(&content, COMMIT_PLACE.block(at))?.h_commit_sec.get();
                match finished.verify(log, &content, COMMIT_PLACE.block(at)) {
                    Ok(finished) => replay.apply(log, &finished, sequence, device_blocks)?,
                    Err(_) if seconds < newest => break,
                    Err(Fault::Damaged(error)) => return Err(error),
                    Err(Fault::Interrupted(error)) if first_version => interrupted = Some(error),
                    Err(Fault::Interrupted(_)) => break,
                }
                newest = seconds;
                sequence = sequence.wrapping_add(1);
            }
            _ => break,
        }
    }
    Ok(replay)
}

impl Replay {
    /// Applies a committed transaction: first its copies, then its revocations. The revocations also cancel copies in the same transaction.
    fn apply(
        &mut self,
        log: &Log,
        transaction: &Transaction,
        sequence: u32,
        device_blocks: u64,
    ) -> Result<()> {
        for &(tag, index) in &transaction.copies {
            if tag.target.0 >= device_blocks {
                let place = DESCRIPTOR_PLACE.block(log.read(index)?.0).field("t_blocknr");
                let target = tag.target;
                return Err(place.corrupt(format!(
                    "the tag names block {target}, which is outside the device"
                )));
            }
            self.copies.insert(tag.target, Copy { index, sequence, tag });
        }
        for &index in &transaction.revokes {
            let (at, content) = log.read(index)?;
            for block in log.revocations(&content, REVOKE_PLACE.block(at))? {
                self.revoked += u64::from(self.copies.remove(&block).is_some());
            }
        }
        self.transactions += 1;
        self.next_sequence = sequence.wrapping_add(1);
        Ok(())
    }

    /// Verifies the checksums of the remaining copies: those that no revocation has cancelled and no later copy has superseded. Returns the
    /// locations of these copies.
    pub(super) fn into_overlay(self, log: &Log) -> Result<Overlay> {
        let mut overlay = Overlay::outside(log.outside());
        for (target, copy) in self.copies {
            let at = log.block(copy.index)?;
            if log.superblock.seed.is_some() {
                let (shown, content) = log.read(copy.index)?;
                let place = Place::new("journal copy").block(shown);
                log.verify_copy(&copy.tag, copy.sequence, &content, place)?;
            }
            let relocated =
                if copy.tag.escaped { Relocated::Escaped(at) } else { Relocated::Journal(at) };
            overlay.insert(target, relocated);
        }
        Ok(overlay)
    }
}
