//! File systems with little free space, and functions that allocate the free space.

use std::fs::File;
use std::path::Path;

use rustix::fs::FallocateFlags;
use tempfile::TempDir;

use super::command::run;
use super::image::scratch;
use super::mounted::unmount;

/// A mounted tmpfs. When this value is dropped, the tmpfs is unmounted.
pub(crate) struct Tmpfs(TempDir);

impl Tmpfs {
    pub(crate) fn new(mib: u64) -> Self {
        let dir = scratch();
        let size = format!("size={mib}m");
        run("mount", &["-t", "tmpfs", "-o", &size, "none", dir.path().to_str().unwrap()]);
        Self(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        unmount(self.0.path());
    }
}

/// Allocates as much of the free space as possible.
pub(crate) fn fill(dir: &Path) {
    let file = File::create(dir.join("filler")).unwrap();
    for piece in [1 << 20, 64 << 10, 4096_u64] {
        loop {
            let at = file.metadata().unwrap().len();
            if rustix::fs::fallocate(&file, FallocateFlags::empty(), at, piece).is_err() {
                break;
            }
        }
    }
    file.sync_all().unwrap();
}
