//! e2fsck as the judge of an image. e2fsck may recover the journal. After the recovery it must find no fault.

use std::fs::File;
use std::path::{Path, PathBuf};

use ironmap::device::Ram;
use tempfile::TempDir;

use crate::common::command::{failure, output};
use crate::common::image::scratch_in;

/// A path in memory. The images are stored there one after the other.
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

    /// The volume after a recovery by e2fsck. If e2fsck made a repair that is not part of a recovery, returns this repair as an error.
    pub(crate) fn recovered(&self, image: &Ram) -> Result<Ram, String> {
        self.store(image);
        let said = self.run("-fy")?;
        let repaired = self.found_clean()?;
        match repair(&said) {
            None => Ok(repaired),
            Some(repair) => Err(format!("e2fsck repairs: {repair}\n{said}")),
        }
    }

    /// The volume after e2fsck has repaired all faults. If the superblock records an error, e2fsck ignores the list of orphans.
    pub(crate) fn repaired(&self, image: &Ram) -> Result<Ram, String> {
        self.store(image);
        // e2fsck 1.47.0 can report remaining errors after a repair: if e2fsck creates lost+found directly after a repair of the checksums
        // or the index of the root directory, it finds the old checksum, or no space for a new one. The next run of e2fsck completes the
        // repair.
        match self.run("-fy") {
            Err(fault) if fault.contains(NO_LOST_AND_FOUND) => self.run("-fy")?,
            first => first?,
        };
        self.found_clean()
    }

    /// Returns an error if e2fsck would change anything in the volume.
    pub(crate) fn clean(&self, image: &Ram) -> Result<(), String> {
        self.store(image);
        self.run("-fn").map(drop)
    }

    fn store(&self, image: &Ram) {
        image.store(&File::create(self.path()).expect("a file")).expect("store the image");
    }

    /// The volume that the previous run of e2fsck has changed. Another run of e2fsck must find no fault in it.
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

/// Faults that are normal for a volume in use. Linux writes the counts of free blocks and inodes to the superblock only at the unmount;
/// until then only the counts of the groups are valid. If e2fsck has processed the orphans of an orphan file, it also reports that this
/// file contains orphans.
const FORGIVEN: [&str; 4] = [
    "Orphan file (inode ",
    "Free blocks count wrong (",
    "Free inodes count wrong (",
    "Feature orphan_present is set but orphan file is clean.",
];

/// Faults that remain after e2fsck 1.47 has removed an orphan with attribute values in separate inodes. If ironmap has removed the orphan,
/// these faults are not accepted.
const OF_ORPHANS: [&str; 3] = [
    "Connect to /lost+found? yes",
    "ref count is 2, should be 1.  Fix? yes",
    "Update quota info for",
];

/// Returns the first repair that is not part of a recovery. The output of e2fsck contains messages about the recovery and the orphans, and
/// one question for each fault.
fn repair(said: &str) -> Option<&str> {
    // A commit block can be torn after its header fields. Linux accepts such a block. e2fsck reports an error, drops the transaction and
    // ignores the orphan list. So the repairs by e2fsck do not show a fault of ironmap.
    if said.contains("was corrupt, replay was aborted.") {
        return None;
    }
    let orphans = said.contains("Clearing orphaned inode ");
    let mut before = "";
    for line in said.lines() {
        let forgiven = FORGIVEN.iter().any(|wrong| before.starts_with(wrong))
            || orphans && OF_ORPHANS.iter().any(|wrong| line.contains(wrong))
            // e2fsck offers to make the map of a file smaller, although the map is valid.
            || line.contains("Optimize? yes");
        if line.contains("? yes") && !forgiven {
            return Some(line);
        }
        before = line;
    }
    None
}
