//! The file-system formats ext2, ext3 and ext4, as Linux writes them.

mod alloc;
mod attr;
mod backups;
mod blocks;
mod casefold;
mod check;
mod checksum;
mod counters;
mod dir;
mod dir_block;
mod dirty;
mod disk;
pub mod dump;
mod errors;
mod features;
mod file_system;
#[cfg(test)]
mod for_tests;
mod group;
mod group_copies;
mod hash;
mod htree;
mod inline_data;
mod inode;
mod jbd2;
mod listing;
mod map;
mod mkfs;
mod mmp;
mod mmp_hold;
mod names;
mod operation;
mod ops;
mod order;
mod orphan;
mod passed_over;
mod path;
mod plausible;
mod quota;
mod raw;
mod rescue;
mod resize;
mod rules;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod stamps;
mod superblock;
mod symlink;
mod tree;
mod tune;
mod undelete;
mod used_inodes;
mod writing;

use std::sync::{Arc, OnceLock};

pub use crate::fs::OnError;
pub use dir::Ext4ReadDir;
pub use features::{Compat, Incompat, RoCompat};
pub(crate) use file_system::FORMAT;
pub use inode::Ext4Inode;
pub use jbd2::{CommitTimer, Journal, JournalFeatures, JournalState, Recovery};
pub use listing::Ext4Listing;
pub use mkfs::{Features, MkfsOptions};
pub(crate) use mkfs::{mkfs, plan};
pub use ops::Ext4Held;
pub use resize::{NewSize, ResizeOptions, Resized};
pub(crate) use resize::{minimum, resize};
pub use superblock::{RecordedErrors, Superblock, Times};
pub(crate) use tune::tune;
pub use tune::{HashAlgorithm, NewUuid, Reserved, TuneOptions};

use self::blocks::{Blocks, Overlay};
use self::inode::Inode;
use self::jbd2::fast_commit::FastCommits;
use self::passed_over::PassedOver;
use self::quota::Quota;
use self::writing::Writing;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::events::Events;
use crate::fs::{DeviceRange, Rescue};
use crate::units::{FsBlock, InodeNo};

/// The inode number of the root directory.
pub const ROOT: InodeNo = InodeNo(disk::reserved::ROOT as u64);

/// An ext4 file system.
pub struct Ext4 {
    pub(crate) superblock: Superblock,
    pub(crate) blocks: Blocks,
    pub(crate) fast_commits: FastCommits,
    journal: Journal,
    /// The addresses of an external journal's device. They are past the end of the volume's device, because ironmap reads both devices as
    /// one combined device. `None` if the journal is internal.
    journal_range: Option<DeviceRange>,
    writing: Option<Writing>,
    /// The quota files of a volume that is open for writing, if the volume has any.
    quota: OnceLock<Quota>,
    left: PassedOver,
}

impl Ext4 {
    /// Opens the file system on a device for reading. A journal that needs recovery is recovered in memory, and nothing is written to the
    /// device. Three faults are tolerated: a damaged group descriptor, a damaged MMP block, and a damaged superblock with a
    /// backup. [`take_left`](Self::take_left) reports the tolerated faults.
    ///
    /// # Errors
    /// `UnknownFormat` if the device contains no ext2, ext3 or ext4 file system; `Unsupported` with the name of the feature; `Corrupt` with
    /// the block and the field; `Busy` if another node holds the volume by multiple mount protection. The check of multiple mount
    /// protection may take some seconds. Errors of the device are also reported to `events`.
    pub fn open(device: Arc<dyn Device>, events: &Arc<Events>) -> Result<Arc<Self>> {
        Self::open_damaged(device, events, Rescue::default())
    }

    /// Opens the file system for reading. `rescue` selects a backup of the superblock, the device of an external journal, or an open
    /// without the journal. Without the journal, recent changes are missing and metadata may be inconsistent.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open); `UnknownFormat` if the selected block contains no superblock; `InvalidInput` if the selected
    /// device does not contain the volume's journal.
    pub fn open_damaged(
        device: Arc<dyn Device>,
        events: &Arc<Events>,
        rescue: Rescue,
    ) -> Result<Arc<Self>> {
        let left = PassedOver::lenient();
        if rescue.realtime.is_some() {
            return Err(Error::invalid("the volume is ext4, but only XFS has a realtime device"));
        }
        let superblock = Self::superblock_for_reading(&*device, rescue, &left)?;
        Self::check_holder(&*device, &superblock, &left)?;
        if !rescue.no_journal {
            return Self::open_held(device, superblock, events, left, rescue.journal);
        }
        let what = if superblock.incompat.contains(Incompat::RECOVER) && superblock.copy == 0 {
            "the journal needs recovery but is not read, so its changes are missing"
        } else {
            "the journal is not read"
        };
        left.tell(what.to_owned());
        let mut fs = Self::assemble(device, superblock, events);
        (fs.journal, fs.left) = (Journal::not_loaded(), left);
        Ok(Arc::new(fs))
    }

    /// Reads the backup of the superblock that `rescue` selects. Without a selection, reads the primary superblock, or the first valid
    /// backup if the primary superblock is damaged.
    fn superblock_for_reading(
        device: &dyn Device,
        rescue: Rescue,
        left: &PassedOver,
    ) -> Result<Superblock> {
        let (backup, why) = match rescue.superblock {
            Some(block) => (Superblock::backup_at(device, block)?, None),
            None => match Self::superblock_of(device) {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let Some(backup) = Superblock::find_backup(device)? else { return Err(error) };
                    (backup, Some(error))
                }
                superblock => return superblock.and_then(|sb| Self::check_sectors(device, sb)),
            },
        };
        let block = backup.group_start(backup.copy);
        left.tell(match why {
            None => format!("the backup of the superblock in block {block} is used"),
            Some(error) => {
                format!("the superblock is damaged ({error}): the backup in block {block} is used")
            }
        });
        Self::check_sectors(device, backup)
    }

    /// Refuses a volume that another node holds. As in Linux, a damaged block of multiple mount protection does not prevent an open for
    /// reading.
    fn check_holder(device: &dyn Device, superblock: &Superblock, left: &PassedOver) -> Result<()> {
        match mmp::check(device, superblock, mmp::Purpose::Read) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                left.tell(format!(
                    "cannot determine whether another node uses the volume: {error}"
                ));
                Ok(())
            }
            checked => checked,
        }
    }

    /// Opens the volume. If the volume has multiple mount protection, the caller must already have checked or acquired it.
    fn open_held(
        device: Arc<dyn Device>,
        superblock: Superblock,
        events: &Arc<Events>,
        left: PassedOver,
        journal: Option<DeviceRange>,
    ) -> Result<Arc<Self>> {
        let mut as_found = Self::assemble(Arc::clone(&device), superblock, events);
        as_found.left = left.alike();
        let as_found = Arc::new(as_found);
        let (found, overlay, fast_commits) = jbd2::recover(&as_found, journal)?;
        let superblock = as_found.recovered_superblock(&overlay)?;
        let mut fs = Self::assemble(device, superblock, events);
        fs.left = left;
        fs.blocks.set_overlay(overlay);
        fs.fast_commits = fast_commits;
        fs.journal = found;
        fs.journal_range = journal;
        Ok(Arc::new(fs))
    }

    /// Reads and checks the superblock on a device.
    fn superblock_of(device: &dyn Device) -> Result<Superblock> {
        let (at, len) = Superblock::RANGE;
        let mut bytes = vec![0; len];
        device.read_exact_at(&mut bytes, at)?;
        let superblock = Superblock::parse(&bytes, device.size())?;
        superblock.check_revision(device)?;
        Ok(superblock)
    }

    fn read_superblock(device: &dyn Device) -> Result<Superblock> {
        Self::check_sectors(device, Self::superblock_of(device)?)
    }

    /// Refuses a device whose sectors are larger than a block.
    fn check_sectors(device: &dyn Device, superblock: Superblock) -> Result<Superblock> {
        // This check must precede any write. A recovery writes single blocks, and a device cannot write a block that is smaller than a
        // sector.
        let (block, unit) = (superblock.block_size.bytes(), device.limits().logical_block);
        if unit as usize > block {
            let text = format!(
                "blocks of {block} bytes are smaller than the device's sectors of {unit} bytes"
            );
            return Err(Error::unsupported(text));
        }
        Ok(superblock)
    }

    fn assemble(device: Arc<dyn Device>, superblock: Superblock, events: &Arc<Events>) -> Self {
        let (size, count) = (superblock.block_size, superblock.blocks_count);
        let blocks = Blocks::new(device, size, count, Arc::clone(events));
        let (fast_commits, journal) = (FastCommits::default(), Journal::none());
        Self {
            superblock,
            blocks,
            fast_commits,
            journal,
            journal_range: None,
            writing: None,
            quota: OnceLock::new(),
            left: PassedOver::default(),
        }
    }

    /// Returns the copy of the superblock in the journal. If the journal contains no copy, returns the superblock on the device.
    fn recovered_superblock(&self, overlay: &Overlay) -> Result<Superblock> {
        let (at, len) = Superblock::RANGE;
        let size = self.superblock.block_size;
        let block = FsBlock(at.0 >> size.shift());
        let Some(copy) = overlay.get(block) else { return Ok(self.superblock.clone()) };
        let content = self.blocks.read_relocated(copy)?;
        let start = at.0 as usize % size.bytes();
        let bytes = &content[start..start + len];
        // The positions of the journal's blocks were computed with the block size in the superblock on the device. The copy of the
        // superblock in the journal must have the same block size.
        if Superblock::block_size_of(bytes) != Some(size) {
            let place = Place::new("superblock").block(block).field("s_log_block_size");
            return Err(place.corrupt("the value differs between the device and the journal"));
        }
        let mut recovered = Superblock::parse(bytes, self.blocks.device().size())?;
        recovered.copy = self.superblock.copy;
        // The error that aborts a volume is recorded directly in the superblock on the device. The copy in the journal does not contain
        // this record.
        if self.superblock.errors.count > recovered.errors.count {
            recovered.errors = self.superblock.errors.clone();
        }
        Ok(recovered)
    }

    /// The decoded superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The journal, and the state in which it was found.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }
}
