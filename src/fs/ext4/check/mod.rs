//! The check of a volume, which reads all metadata and changes nothing.
//!
//! The passes, in order: superblock and groups; inodes with their maps and attributes; directories with their htrees; names (reachability
//! and link counts); bitmaps and counters; quota. Two steps precede the passes. The first step recovers the journal in memory, and all
//! passes read the recovered volume. The second step collects the orphans.
//!
//! Ordinary reads stop at the first fault, but a check must continue. The check therefore has separate code that walks the structures. The
//! check and ordinary reads share the code for the layouts, the checksums, the name hashes and the recovery.
//!
//! **Memory**: one bit for each cluster; 200 bytes for each group; six bytes for each inode of groups with used inodes; 32 bytes for each
//! directory; 48 bytes for each attribute block; 8 bytes for each encrypted inode; every distinct encryption policy; the map of one
//! directory, and 16 bytes for each name in it; 32 MiB of cached metadata; 16 MiB of
//! directories' inodes; 8 MiB that were read ahead; the first 100,000 findings.

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
use self::reader::{Bytes, Reader};
use self::table::{Directory, Inodes};
use self::usage::Usage;
use self::xattrs::SharedBlock;
use super::Ext4;
use super::disk::superblock::RawSuperblock;
use crate::error::{Place, Result};
use crate::fs::check::{Findings, Pass, Progress, Report};
use crate::units::FsBlock;

impl Ext4 {
    /// Checks the complete volume in the state after the journal's recovery. Writes nothing. `progress` receives progress reports.
    ///
    /// # Errors
    /// The report contains the faults of the volume; a fault is not an error. Errors are `Io` if the superblock cannot be read again;
    /// `Corrupt` if the volume was opened with a backup of the superblock; errors of memory allocation.
    pub fn check(self: &Arc<Self>, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
        if self.superblock.copy != 0 {
            let what = "the check needs the primary superblock, but a backup is in use: e2fsck repairs the superblock";
            return Err(Place::new("superblock").corrupt(what));
        }
        Checker::new(self, progress)?.run()
    }
}

/// A check in progress.
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
    /// The inodes of the first directories. The pass over directories need not read them again.
    kept: Vec<Bytes>,
    /// The attribute blocks by number, each with the inodes that use it.
    xattr_blocks: HashMap<FsBlock, SharedBlock>,
    /// The number of attributes that refer to each value inode (the inode of a large value).
    value_uses: HashMap<u32, u64>,
    /// Inodes in the orphan list or the orphan file.
    orphans: HashSet<u32>,
    policies: Policies,
    /// The blocks that were read for directories with damaged maps.
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
            kept: Vec::new(),
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
