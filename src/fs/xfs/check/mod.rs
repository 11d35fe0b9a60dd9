//! The check of an XFS volume: it reads all metadata and changes nothing.
//!
//! The log is recovered in memory first, so the check reads the recovered volume. The check makes these passes in order:
//!
//! 1. superblocks, group headers and their trees;
//! 2. inodes with their maps and attributes;
//! 3. directories with their indexes;
//! 4. parent pointers;
//! 5. metadata directories;
//! 6. reachability of inodes from the root, and their link counts;
//! 7. owners of blocks, free space, counters and quota.
//!
//! Ordinary reads stop at the first fault. A check continues after a fault, so it has its own walks of the structures. For layouts,
//! checksums, name hashes and recovery, the check uses the code of ordinary reads.
//!
//! **Memory**: The check needs memory for:
//!
//! - each extent of a file and each free extent: 24 bytes, or 48 bytes on a volume with a reverse-mapping tree;
//! - each inode in the chunks: 24 bytes;
//! - each free realtime extent, up to four million extents: 24 bytes;
//! - each directory: 48 bytes;
//! - the names in metadata directories;
//! - 8 MiB that were read ahead;
//! - the map of one file, the names of one directory, and the records of one tree;
//! - the first 100,000 findings.

mod attr_leaf;
mod attr_value;
mod attributes;
mod chunks;
mod counters;
mod dir_data;
mod dir_free;
mod dir_index;
mod dir_short;
mod directories;
mod fields;
mod file;
mod found;
mod group;
mod hash_tree;
mod list;
mod map;
mod metadata;
mod names;
mod owners;
mod parents;
mod quota;
mod realtime;
mod records;
mod refcounts;
mod rmap;
mod seal;
mod space;
mod superblock;
mod table;
mod tree;
mod unlinked;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use zerocopy::FromBytes;

use self::group::Group;
use self::metadata::MetadataTree;
use self::parents::Parents;
use self::quota::Accounts;
use self::table::{Directory, Inodes};
use super::Xfs;
use super::attr::Attribute;
use super::disk::superblock::RawSuperblock;
use super::realtime::Realtime;
use crate::device::AheadQueue;
use crate::error::{Place, Result};
use crate::fs::block::Block;
use crate::fs::check::{FindingSite, Findings, Kind, Pass, Progress, Report, Severity};
use crate::units::{DevOffset, FsBlock};

impl Xfs {
    /// Checks the volume in its state after the log's recovery, and writes nothing. The check calls `progress` as it advances.
    ///
    /// # Errors
    /// Faults of the volume are in the report and are not errors. `Io` only if the superblock cannot be read again.
    pub fn check(self: &Arc<Self>, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
        Checker::new(self, progress)?.run()
    }
}

/// A check in progress.
struct Checker<'a> {
    fs: &'a Arc<Xfs>,
    queue: AheadQueue<'a>,
    findings: Findings,
    progress: &'a mut dyn FnMut(Progress),
    superblock: RawSuperblock,
    groups: Vec<Group>,
    /// The realtime groups for which owners or free space were recorded.
    realtime: BTreeMap<u32, Group>,
    /// The number of free realtime extents that the check may still record.
    runs_left: usize,
    /// The blocks of trees in the data forks of files. This set ensures that a block is not read twice.
    in_file_trees: HashSet<FsBlock>,
    inodes: Inodes,
    directories: Vec<Directory>,
    accounts: Accounts,
    parents: Parents,
    /// The sum of fingerprints of the current inode's parent pointers.
    pointers: u64,
    /// The parent pointers of the current inode. They are collected only if the log contains unfinished changes of the inode's attributes.
    changing: Vec<Attribute>,
    tree: MetadataTree,
}

impl<'a> Checker<'a> {
    fn new(fs: &'a Arc<Xfs>, progress: &'a mut dyn FnMut(Progress)) -> Result<Self> {
        let superblock = match &fs.copy {
            Some(copy) => copy.raw.clone(),
            None => Self::first_superblock(fs)?,
        };
        Ok(Self {
            fs,
            queue: AheadQueue::new(&**fs.metadata.device()),
            findings: Findings::default(),
            progress,
            superblock,
            groups: Vec::new(),
            realtime: BTreeMap::new(),
            runs_left: realtime::MOST_RUNS,
            in_file_trees: HashSet::new(),
            inodes: Inodes::default(),
            directories: Vec::new(),
            accounts: Accounts::default(),
            parents: Parents::default(),
            pointers: 0,
            changing: Vec::new(),
            tree: MetadataTree::default(),
        })
    }

    fn first_superblock(fs: &Xfs) -> Result<RawSuperblock> {
        let unit = fs.metadata.device().limits().logical_block as usize;
        let mut bytes = vec![0; unit.max(fs.superblock.geometry.sector)];
        fs.metadata.read_at(DevOffset(0), &mut bytes)?;
        match RawSuperblock::read_from_prefix(&bytes) {
            Ok((superblock, _)) => Ok(superblock),
            Err(_) => Err(Place::new("superblock").corrupt("the superblock is truncated")),
        }
    }

    fn run(mut self) -> Result<Report> {
        self.check_log();
        self.check_superblocks();
        self.check_groups();
        self.check_inodes();
        self.check_intents();
        self.check_unlinked();
        self.check_directories();
        self.check_parent_pointers();
        self.check_metadata_tree();
        self.check_names();
        self.check_realtime_space();
        self.check_space();
        self.check_counters();
        self.check_quota();
        let (inodes, directories) = (self.inodes.used(), self.directories.len() as u64);
        let blocks = self.groups.iter().map(|group| group.used).sum();
        Ok(self.findings.report(inodes, directories, blocks))
    }

    fn check_log(&mut self) {
        let (log, place) = (self.fs.log(), Place::new("log"));
        if log.recovered {
            let transactions = u32::try_from(log.transactions).unwrap_or(u32::MAX);
            self.findings.add(place, Kind::Recovered { transactions });
        }
        let realtime = self.fs.superblock.realtime();
        let has_superblock = realtime.is_some_and(Realtime::has_superblock);
        if has_superblock && self.fs.realtime_start.is_none() {
            let what =
                "the superblock of the realtime device, because the option --realtime is missing";
            self.findings.add(Place::new("superblock"), Kind::NotChecked { what });
        }
        for (what, count) in &log.unfinished {
            let what =
                format!("the next mount completes unfinished operations: {what} ({count} times)");
            self.findings.add_as(Severity::Note, place, Kind::Damaged { what });
        }
    }

    /// Whether the log contains operations that the next mount must finish. Until that mount, the free-space trees may be older than the
    /// maps of files.
    fn is_unfinished(&self) -> bool {
        let log = self.fs.log();
        log.finished > log.finished_attributes || !log.unfinished.is_empty()
    }

    fn add(&mut self, site: FindingSite, what: Kind) {
        self.findings.add(site, what);
    }

    /// Adds a finding about the use of blocks. If the log contains unfinished operations, the finding is only a note, because these
    /// operations can explain the difference.
    fn add_of_space(&mut self, site: impl Into<FindingSite>, what: Kind) {
        if self.is_unfinished() {
            self.findings.add_as(Severity::Note, site, what);
        } else {
            self.findings.add(site, what);
        }
    }

    /// Reads the blocks of a structure. If the read fails, adds a finding and returns `None`.
    fn read(&mut self, site: impl Into<FindingSite>, blocks: &[FsBlock]) -> Option<Block> {
        let read = self.fs.metadata.blocks(blocks);
        read.inspect_err(|error| self.findings.error(site, error)).ok()
    }

    /// Adds a finding that is described only by a text, for a fault that loses no data.
    fn wrong(&mut self, site: impl Into<FindingSite>, what: impl Into<String>) {
        self.findings.wrong(site, what);
    }

    fn tell(&mut self, pass: Pass, done: u64, of: u64) {
        (self.progress)(Progress { pass, done, of });
    }
}
