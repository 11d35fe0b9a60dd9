//! e2fsck as the judge of an image: it may recover the journal, and must then find no fault.

use std::fs::File;
use std::path::{Path, PathBuf};

use ironmap::device::Ram;
use tempfile::TempDir;

use crate::common::command::{failure, output};
use crate::common::image::scratch_in;

/// A place in memory for the images, one after the other.
pub(crate) struct Fsck {
    dir: TempDir,
}

impl Fsck {
    pub(crate) fn new() -> Self {
        Self { dir: scratch_in(Path::new("/dev/shm")) }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// The volume after e2fsck's recovery, or the fault if e2fsck had to repair more than that.
    pub(crate) fn recovered(&self, image: &Ram) -> Result<Ram, String> {
        self.store(image);
        let said = self.run("-fy")?;
        let repaired = self.found_clean()?;
        match repair(&said) {
            None => Ok(repaired),
            Some(repair) => Err(format!("e2fsck repairs: {repair}\n{said}")),
        }
    }

    /// The volume after any repair by e2fsck. If the superblock records an error, e2fsck ignores the list of
    /// orphans.
    pub(crate) fn repaired(&self, image: &Ram) -> Result<Ram, String> {
        self.store(image);
        // e2fsck 1.47.0 reports remaining errors if it must create lost+found in a root directory whose checksums or index it has just
        // repaired: it finds the old checksum there, or no space for a new one. Its next run completes the work.
        match self.run("-fy") {
            Err(fault) if fault.contains(NO_LOST_AND_FOUND) => self.run("-fy")?,
            first => first?,
        };
        self.found_clean()
    }

    /// Fails if e2fsck would recover or repair anything.
    pub(crate) fn clean(&self, image: &Ram) -> Result<(), String> {
        self.store(image);
        self.run("-fn").map(drop)
    }

    fn store(&self, image: &Ram) {
        image.store(&File::create(self.path()).expect("a file")).expect("store the image");
    }

    /// The volume after e2fsck's work, in which another run finds nothing.
    fn found_clean(&self) -> Result<Ram, String> {
        self.run("-fn")?;
        Ok(Ram::from_image(&std::fs::read(self.path()).expect("the image")))
    }

    fn run(&self, how: &str) -> Result<String, String> {
        let path = self.path();
        let args = [how.as_ref(), path.as_os_str()];
        let result = output("e2fsck", &args);
        let wanted = matches!((result.status.code(), how), (Some(0), _) | (Some(1), "-fy"));
        if !wanted {
            return Err(failure("e2fsck", &args, &result));
        }
        Ok(String::from_utf8_lossy(&result.stdout).into_owned())
    }
}

const NO_LOST_AND_FOUND: &str =
    "Error creating /lost+found directory (ext2fs_link): Directory block ";

/// Faults that Linux too leaves to the recovery of a volume in use: the superblock's counts of free blocks and inodes
/// are written at the unmount, and until then those of the groups are valid; a flag says that the volume is in use. e2fsck reports that an
/// orphan file holds orphans after it has just processed them.
const FORGIVEN: [&str; 4] = [
    "Orphan file (inode ",
    "Free blocks count wrong (",
    "Free inodes count wrong (",
    "Feature orphan_present is set but orphan file is clean.",
];

/// Faults that e2fsck 1.47 leaves after it removes an orphan whose attribute values are in separate inodes. They are not allowed if ironmap
/// has removed the orphan.
const OF_ORPHANS: [&str; 3] = [
    "Connect to /lost+found? yes",
    "ref count is 2, should be 1.  Fix? yes",
    "Update quota info for",
];

/// A repair beyond recovery. e2fsck prints recovery and orphans as messages; for a fault it asks a question.
fn repair(said: &str) -> Option<&str> {
    // If a commit block is torn after its fields, Linux accepts it. e2fsck reports an error, drops the transaction, and then ignores the orphan
    // list, so its repairs say nothing about the volume.
    if said.contains("was corrupt, replay was aborted.") {
        return None;
    }
    let orphans = said.contains("Clearing orphaned inode ");
    let mut before = "";
    for line in said.lines() {
        let forgiven = FORGIVEN.iter().any(|wrong| before.starts_with(wrong))
            || orphans && OF_ORPHANS.iter().any(|wrong| line.contains(wrong))
            // e2fsck offers to make a correct map smaller.
            || line.contains("Optimize? yes");
        if line.contains("? yes") && !forgiven {
            return Some(line);
        }
        before = line;
    }
    None
}
