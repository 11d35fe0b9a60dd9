//! XFS, versions 4 and 5, as Linux writes them. Volumes can be read, and data of files can be overwritten.

mod attr;
mod check;
mod dir;
mod disk;
mod features;
mod file_system;
mod fork;
mod geometry;
mod group;
mod group_tree;
mod header;
mod inode;
mod inode_tree;
mod log;
mod map;
mod map_changes;
mod metadata;
mod overlay;
mod overwrite;
mod realtime;
mod rescue;
mod rules;
mod shared_blocks;
mod superblock;
mod symlink;
mod undelete;
mod used_inodes;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

pub use features::{Incompat, RoCompat};
pub(crate) use file_system::FORMAT;
pub use log::LogState;
pub use superblock::Superblock;

use self::attr::AttributeChanges;
use self::inode::XfsInode;
use self::map_changes::MapChanges;
use self::metadata::Metadata;
use self::overwrite::Overwriting;
use self::rescue::Copy;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::events::Events;
use crate::fs::{DeviceRange, FileType, Rescue};
use crate::sync::Mutex;
use crate::units::{DevOffset, InodeNo};

/// The maximum number of notices about damaged blocks of directories.
const MOST_NOTICES: usize = 1024;

/// An XFS file system.
pub struct Xfs {
    pub(crate) superblock: Superblock,
    metadata: Metadata,
    log: LogState,
    /// Unfinished map changes from the log.
    changes: MapChanges,
    /// Unfinished attribute changes from the log.
    attribute_changes: AttributeChanges,
    notices: Mutex<Vec<String>>,
    /// The number of blocks in the free-space trees, counted at the first use.
    trees: OnceLock<u64>,
    /// The state of a volume that is open for overwrites.
    overwriting: Option<Overwriting>,
    /// The copy of the superblock, if a copy is used instead of the first superblock.
    copy: Option<Copy>,
    /// The damaged directory blocks for which a notice was added: the directory's inode number, and the number of the block in the
    /// directory.
    passed_over: Mutex<HashSet<(InodeNo, u64)>>,
    /// The directories that have such a block.
    incomplete: Mutex<HashSet<InodeNo>>,
    /// The range of the log's device, if the log is external.
    log_device: Option<DeviceRange>,
    /// The first byte of the realtime space, if its device is given or if the space is on the volume's own device.
    realtime_start: Option<DevOffset>,
    /// The roots of the inode trees. `None` if the log was not read. In that case, directories may name inodes that the trees do not
    /// contain.
    inode_roots: Option<inode_tree::Roots>,
}

impl Xfs {
    /// Opens the file system on a device for reading. A log that needs recovery is recovered in memory: nothing is written.
    ///
    /// # Errors
    /// `UnknownFormat` if the device contains no XFS. `Unsupported` with the name of the feature. `Corrupt` with the block and the field.
    /// Errors of the device are also reported to `events`.
    pub fn open(device: Arc<dyn Device>, events: &Arc<Events>) -> Result<Arc<Self>> {
        Self::open_damaged(device, events, Rescue::default())
    }

    /// Opens the file system for reading and for overwrites of existing data.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open); `ReadOnly` if the log needs recovery, or if the volume has a feature that ironmap supports only
    /// for reading.
    pub fn open_for_overwrites(device: Arc<dyn Device>, events: &Arc<Events>) -> Result<Arc<Self>> {
        let superblock = Superblock::read(&*device)?;
        let mut fs = Self::read(device, events, (superblock, None), Rescue::default())?;
        fs.overwriting = Some(Overwriting::new(&fs.superblock, &fs.log)?);
        let fs = Arc::new(fs);
        fs.check_own_inodes()?;
        Ok(fs)
    }

    /// Opens the file system with a copy of the superblock, with the given log device and realtime device, or without its log. If the log
    /// is ignored, the changes in it are missing, and metadata may contradict each other.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open); `UnknownFormat` if `rescue` names a group without a copy of the superblock.
    pub fn open_damaged(
        device: Arc<dyn Device>,
        events: &Arc<Events>,
        rescue: Rescue,
    ) -> Result<Arc<Self>> {
        let superblock = Self::superblock_for_reading(&*device, &rescue)?;
        let fs = Arc::new(Self::read(device, events, superblock, rescue)?);
        fs.check_own_inodes()?;
        Ok(fs)
    }

    /// Refuses a volume if one of the inodes that Linux reads during a mount is missing. On a volume with metadata directories, this inode
    /// is the root of these directories. On all other volumes, these inodes are the realtime bitmap and the realtime summary. The check is
    /// skipped if the log is not read, because the log of a new volume may contain these inodes. It is also skipped if a copy of the
    /// superblock is used, because a copy may lack the numbers of these inodes.
    fn check_own_inodes(self: &Arc<Self>) -> Result<()> {
        if self.inode_roots.is_none() || self.copy.is_some() {
            return Ok(());
        }
        let sb = &self.superblock;
        group::check_length(&self.metadata, sb)?;
        let Some(root) = sb.metadata_root else {
            let fields = ["sb_rbmino", "sb_rsumino"];
            for ((field, number), after) in fields.into_iter().zip(sb.realtime_files).zip(1..) {
                let Err(error) = self.own_inode(field, number) else { continue };
                // mkfs.xfs creates these inodes directly after the root inode. If the number in the superblock fits this rule, only the
                // inode is damaged, and all files can still be read.
                if self.overwriting.is_some() || number.0.wrapping_sub(sb.root.0) != after {
                    return Err(error);
                }
                let line = format!("the volume has damage that prevents a mount: {error}");
                self.notices.lock().push(line);
            }
            return Ok(());
        };
        let inode = self.own_inode("sb_metadirino", root)?;
        if inode.is_metadata && inode.stat.file_type == FileType::Directory {
            return Ok(());
        }
        let what = format!("inode {root} is not a metadata directory");
        Err(Place::new("superblock").field("sb_metadirino").corrupt(what))
    }

    /// Reads the inode that a field of the superblock names.
    fn own_inode(self: &Arc<Self>, field: &'static str, number: InodeNo) -> Result<XfsInode> {
        self.inode(number).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let what = format!("the field refers to inode {number}, which is not in use");
                Place::new("superblock").field(field).corrupt(what)
            }
            _ => error,
        })
    }

    fn read(
        device: Arc<dyn Device>,
        events: &Arc<Events>,
        (superblock, copy): (Superblock, Option<Copy>),
        rescue: Rescue,
    ) -> Result<Self> {
        let unit = device.limits().logical_block as usize;
        if unit > superblock.geometry.block.bytes() {
            let block = superblock.geometry.block.bytes();
            let text = format!(
                "blocks of {block} bytes are smaller than the device's sectors of {unit} bytes"
            );
            return Err(Error::unsupported(text));
        }
        let realtime = rescue.realtime;
        let mut metadata = Metadata::new(device, superblock.geometry, Arc::clone(events));
        if rescue.no_journal {
            let mut fs = Self::with(superblock, metadata, None);
            fs.use_copy(copy);
            fs.join_realtime(realtime)?;
            return Ok(fs);
        }
        let recovery = log::recover(&metadata, &superblock, rescue.journal).map_err(|error| {
            match error.kind() {
                ErrorKind::Corrupt | ErrorKind::Io(_) => {
                    error.context("recovery of the log (--noload reads the volume without its log)")
                }
                _ => error,
            }
        })?;
        metadata.overlay = recovery.overlay;
        if superblock.is_v5() {
            metadata.head = recovery.state.head_lsn();
            metadata.check_age(superblock.lsn, Place::new("superblock"))?;
            group::check_ages(&metadata, &superblock)?;
        }
        let mut fs = Self::with(superblock, metadata, Some(recovery.state));
        fs.log_device = rescue.journal;
        fs.changes = recovery.changes;
        fs.attribute_changes = recovery.attributes;
        fs.use_copy(copy);
        if fs.log.recovered && fs.superblock.copy == 0 {
            fs.superblock = fs.recovered_superblock()?;
            fs.count();
        }
        // The realtime space is attached after the log's recovery, because recovery can create or grow it.
        fs.join_realtime(realtime)?;
        let unfinished = fs.log.unfinished.iter();
        let told = unfinished.map(|(what, count)| {
            format!("the log contains unfinished operations: {what} ({count} times)")
        });
        fs.notices.lock().extend(told);
        Ok(fs)
    }

    /// Records that a copy of the superblock is used. The counters in a copy are outdated. Therefore the counters are computed from the
    /// groups.
    fn use_copy(&mut self, copy: Option<Copy>) {
        let Some(copy) = copy else { return };
        let group = self.superblock.copy;
        let named = || format!("the copy of the superblock in group {group} is used");
        self.notices.lock().push(copy.fault.clone().unwrap_or_else(named));
        self.count();
        self.copy = Some(copy);
    }

    /// Computes the numbers of free blocks and inodes from the headers of the groups. A group with damaged headers is skipped, and a notice
    /// names the group.
    fn count(&mut self) {
        let mut superblock = self.superblock.clone();
        let faults = group::count(&self.metadata, &mut superblock);
        for group in 0..superblock.geometry.groups {
            // An error in a group's tree is ignored, because reads of files do not need the number of free blocks.
            superblock.free_blocks += self.staging_blocks(group).unwrap_or(0);
        }
        self.superblock = superblock;
        if let Some(error) = faults {
            self.notices
                .lock()
                .push(format!("the counts of free blocks and inodes are incomplete: {error}"));
        }
    }

    /// Builds the file system. `log` is `None` if the log was not read.
    fn with(superblock: Superblock, metadata: Metadata, log: Option<LogState>) -> Self {
        let told = "the log is not read: if the log needs recovery, its changes are missing";
        let notices = if log.is_none() { vec![told.to_owned()] } else { Vec::new() };
        Self {
            superblock,
            metadata,
            inode_roots: log.is_some().then(inode_tree::no_roots),
            log: log.unwrap_or_default(),
            changes: MapChanges::default(),
            attribute_changes: AttributeChanges::default(),
            notices: Mutex::new(notices),
            trees: OnceLock::new(),
            overwriting: None,
            copy: None,
            log_device: None,
            passed_over: Mutex::default(),
            incomplete: Mutex::default(),
            realtime_start: None,
        }
    }

    /// Reads the superblock again after the recovery of the log.
    fn recovered_superblock(&self) -> Result<Superblock> {
        let before = &self.superblock;
        let device = self.metadata.device();
        let unit = (device.limits().logical_block as usize).max(before.geometry.sector);
        let mut bytes = vec![0; unit];
        let replayed = self.metadata.read_at(DevOffset(0), &mut bytes)?;
        let superblock = Superblock::decode(&bytes, device.size(), replayed)?;
        let (geometry, read) = (superblock.geometry, before.geometry);
        if (geometry.block, geometry.inode) != (read.block, read.inode) {
            let place = Place::new("superblock").field("sb_blocksize");
            return Err(place.corrupt("the value differs between the device and the log"));
        }
        Ok(superblock)
    }

    /// Adds a notice about a damaged block of a directory, once for each block.
    #[cold]
    fn pass_over_names(&self, dir: InodeNo, block: u64, error: &Error) {
        self.incomplete.lock().insert(dir);
        let mut known = self.passed_over.lock();
        if known.len() < MOST_NOTICES && known.insert((dir, block)) {
            let line = format!("some names of directory inode {dir} cannot be read: {error}");
            self.notices.lock().push(line);
        }
    }

    /// The state in which the log was found.
    #[must_use]
    pub fn log(&self) -> &LogState {
        &self.log
    }

    /// The number of blocks in the free-space trees, or 0 if a group's header is damaged.
    fn free_space_trees(&self) -> u64 {
        *self
            .trees
            .get_or_init(|| group::free_space_trees(&self.metadata, &self.superblock).unwrap_or(0))
    }

    /// The decoded superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }
}
