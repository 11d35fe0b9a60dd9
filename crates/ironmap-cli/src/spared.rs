//! The files of the host that a volume lies in.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use ironmap::Location;

/// What a volume is opened from, by device and inode: nothing that is read out of it replaces any of that.
pub(crate) struct Spared(Vec<(u64, u64)>);

impl Spared {
    pub(crate) fn of(location: &Location) -> Self {
        let sites = [Some(location.data()), location.tags()].into_iter().flatten();
        let mut found: Vec<_> = sites.filter_map(|site| site.path.metadata().ok()).collect();
        let images: Vec<_> = found.iter().filter_map(loop_file).collect();
        found.extend(images);
        Self(found.iter().map(|found| (found.dev(), found.ino())).collect())
    }

    pub(crate) fn has(&self, file: &Metadata) -> bool {
        self.contains(file.dev(), file.ino())
    }

    pub(crate) fn contains(&self, dev: u64, ino: u64) -> bool {
        self.0.contains(&(dev, ino))
    }
}

/// The file that a loop device, or its partition, serves (sysfs-block-loop).
fn loop_file(device: &Metadata) -> Option<Metadata> {
    if !device.file_type().is_block_device() {
        return None;
    }
    let number = device.rdev();
    let (major, minor) = (rustix_libc::fs::major(number), rustix_libc::fs::minor(number));
    let dir = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let file = ["loop/backing_file", "../loop/backing_file"]
        .iter()
        .find_map(|file| std::fs::read_to_string(dir.join(file)).ok())?;
    PathBuf::from(file.trim_end_matches('\n')).metadata().ok()
}
