//! Whether a volume is what it should be: a check that reads all metadata and changes nothing.
//!
//! The passes, in order: superblock and groups, inodes with their maps and attributes,
//! directories with their hash trees, names (which inodes are reachable, and by how many names),
//! bitmaps and counters, quota. The journal and the orphans come first: the volume is checked as
//! recovery leaves it.
//!
//! The read side stops at the first thing that is wrong; a check goes on, so it walks the structures by itself. It shares
//! with the read side the layouts, the checksums, the names' hashes and the recovery.
//!
//! **Memory**: one bit a cluster; 200 bytes a group; six bytes an inode, for groups that have inodes in use; 32 bytes a directory;
//! 48 bytes an attribute block; 8 bytes an encrypted inode, and each policy; the map of one directory, and 16 bytes for each of its names; 32 MiB of metadata that was read
//! together; the first 100,000 findings.

mod bitmaps;
mod bits;
mod directories;
mod encryption;
mod found;
mod groups;
mod htree;
mod inodes;
mod journal;
mod map;
mod names;
mod quota;
mod reader;
mod reserved;
mod resize;
mod size;
mod superblock;
mod table;
mod usage;
mod xattrs;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use self::bits::Bits;
use self::encryption::Policies;
use self::groups::Group;
use self::quota::Accounts;
use self::reader::Reader;
use self::table::{Directory, Inodes};
use self::usage::Usage;
use self::xattrs::SharedBlock;
use super::Ext4;
use super::disk::superblock::RawSuperblock;
use crate::error::{Place, Result};
use crate::fs::check::{Findings, Pass, Progress, Report};
use crate::units::FsBlock;

impl Ext4 {
    /// Checks the whole volume as the journal's recovery leaves it; nothing is written. `progress` is told how far it is.
    ///
    /// # Errors
    /// No error for faults of the volume: the report has them. `Io` only if not even the superblock can be
    /// read again, and errors of memory allocation.
    pub fn check(self: &Arc<Self>, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
        if self.superblock.copy != 0 {
            let what = "a volume that is read by a backup of its superblock is not checked: e2fsck repairs the superblock";
            return Err(Place::new("superblock").corrupt(what));
        }
        Checker::new(self, progress)?.run()
    }
}

/// A check at work.
struct Checker<'a> {
    fs: &'a Arc<Ext4>,
    reader: Reader<'a>,
    findings: Findings,
    progress: &'a mut dyn FnMut(Progress),
    superblock: RawSuperblock,
    groups: Vec<Group>,
    usage: Usage,
    inodes: Inodes,
    directories: Vec<Directory>,
    /// Attribute blocks by number, with the inodes that use them counted.
    xattr_blocks: HashMap<FsBlock, SharedBlock>,
    /// How often attributes name the inodes that hold large values.
    value_uses: HashMap<u32, u64>,
    /// Inodes that the orphan list or file holds.
    orphans: HashSet<u32>,
    policies: Policies,
    /// Blocks read as those of directories whose maps are wrong.
    broken_blocks: Option<Bits>,
    accounts: Accounts,
}

impl<'a> Checker<'a> {
    fn new(fs: &'a Arc<Ext4>, progress: &'a mut dyn FnMut(Progress)) -> Result<Self> {
        let mut reader = Reader::new(fs);
        let sb = &fs.superblock;
        Ok(Self {
            fs,
            superblock: superblock::read(fs, &mut reader)?,
            reader,
            findings: Findings::default(),
            progress,
            groups: Vec::new(),
            usage: Usage::new(sb),
            inodes: Inodes::new(sb),
            directories: Vec::new(),
            xattr_blocks: HashMap::new(),
            value_uses: HashMap::new(),
            orphans: HashSet::new(),
            policies: Policies::default(),
            broken_blocks: None,
            accounts: Accounts::default(),
        })
    }

    fn run(mut self) -> Result<Report> {
        self.check_superblock();
        self.check_groups();
        self.check_journal();
        self.find_orphans();
        self.check_inodes();
        self.check_named_inodes();
        self.check_shared_xattrs();
        self.check_directories();
        self.check_names();
        self.check_bitmaps();
        self.check_quota();
        let directories = self.directories.len() as u64;
        Ok(self.findings.report(self.inodes.used(), directories, self.usage.blocks()))
    }

    fn tell(&mut self, pass: Pass, done: u64, of: u64) {
        (self.progress)(Progress { pass, done, of });
    }
}
