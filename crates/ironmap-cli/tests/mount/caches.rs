//! Tests data in the kernel's page cache that the kernel has not yet sent to the server.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;

use crate::ending::Mapped;
use crate::sides::{Ours, check, require_mounts, skip};
use crate::support::{Bench, succeed, tool};

const LEN: u64 = 64 << 20;
const AT: u64 = 40 << 20;
const STORED: u64 = 32 << 20;

/// The ranges of a file that contain data.
fn data(file: &File) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Ok(data) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap();
        found.push((data, at));
    }
    found
}

/// A range with data is not reported as a hole, even if the kernel has not sent the data yet. SEEK_DATA finds all ranges of data, and no
/// other ranges.
#[test]
fn ranges_that_the_kernel_has_not_sent_are_data() {
    require_mounts!("ranges_that_the_kernel_has_not_sent_are_data");
    if tool("xfs_io").arg("-V").output().is_err() {
        return skip("ranges_that_the_kernel_has_not_sent_are_data", "needs the program xfs_io");
    }
    for options in ["rw", "writeback_cache"] {
        let bench = Bench::empty();
        succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("64M"));
        let dir = bench.path("mounted");
        let ours = Ours::mount(&bench.image(), &dir, options);
        // When a file is opened, the kernel sends its cached data to the server. Therefore the files are opened before the writes.
        let [written, stored] = ["written", "stored"].map(|name| File::create(dir.join(name)));
        let (written, stored) = (written.unwrap(), stored.unwrap());
        written.set_len(LEN).unwrap();
        written.write_all_at(&[b'b'; 4096], AT).unwrap();
        assert_eq!(data(&written), [(AT, AT + 4096)], "written with {options}");
        // The range is so long that the kernel does not send it at once.
        let mapped = Mapped::store(&dir.join("stored"), STORED, &bench.path("is_stored"));
        assert_eq!(data(&stored), [(0, STORED)], "stored through a mapping with {options}");
        drop((written, stored, mapped));
        ours.unmount();
        check(&bench.image());
    }
}
