//! ironmap and the kernel see the same tree in an XFS volume. A failure names the options of mkfs.xfs and the seed.

#[path = "../common/mod.rs"]
mod common;

mod ages;
mod collisions;
mod damaged;
mod external_log;
mod fill;
mod grub;
mod listing;
mod metadump;
mod numbers;
mod proto;
mod reads;
mod realtime;
mod scale;
mod scale_tree;
mod superblock;
mod unchanged;
mod variants;

use std::path::Path;

use common::compare::{assert_contents, assert_same};
use common::image::Image;
use common::kernel;
use common::reads::Depth;
use common::skip;
use common::view::{Subject, View};

const SEED: u64 = 0x0058_4653;
const SIZE: &str = "512M";
const DEPTH: Depth = Depth { random: 8, stretches: 200 };
/// The mount options for the comparison. Such a mount changes nothing, not even the log.
const FOR_READING: &str = "ro,norecovery";

/// Compares ironmap's view of the volume with the kernel's view of a read-only mount. Returns the kernel's view.
fn compare_with_kernel(image: &Image, mount_options: &str, what: &str) -> View {
    let mount = image.mount(&format!("{FOR_READING}{mount_options}"));
    let usage = kernel_usage(mount.dir());
    let mut expected = kernel::view_with_maps(mount.dir(), DEPTH, SEED);
    kernel::add_flags(mount.dir(), &mut expected);
    for record in expected.values_mut() {
        // The kernel lists access control lists a second time, in their on-disk form. The test removes these entries.
        record.xattrs.as_mut().unwrap().retain(|name, _| !name.starts_with(b"trusted.SGI_ACL_"));
    }
    drop(mount);
    let mut subject = Subject::open(image);
    let ours = our_usage(&subject);
    assert_eq!(ours, usage, "{what}: statfs: {USAGE:?}");
    let actual = subject.view();
    assert_same(&expected, &actual, &format!("{what}, against the kernel"));
    assert_contents(&expected, &mut subject, &actual, what);
    listing::assert_cursors(&subject, &actual, what);
    expected
}

/// Asserts that a check finds nothing, not even a note.
fn assert_clean(image: &Image, what: &str) {
    let fs = image.fs();
    let report = fs.check(&mut |_| {}).unwrap_or_else(|error| panic!("{what}: {error}"));
    let is_told = |finding: &&ironmap::fs::check::Finding| {
        !matches!(finding.what, ironmap::fs::check::Kind::NotChecked { .. })
    };
    let findings: Vec<_> = report.findings.iter().filter(is_told).take(20).collect();
    let findings: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{what}: {findings:#?}");
}

/// The counts that `statfs` returns.
const USAGE: [&str; 6] = ["size of blocks", "blocks", "free", "available", "inodes", "free inodes"];

fn kernel_usage(dir: &Path) -> [u64; 6] {
    let stat = rustix::fs::statvfs(dir).unwrap();
    [stat.f_bsize, stat.f_blocks, stat.f_bfree, stat.f_bavail, stat.f_files, stat.f_ffree]
}

fn our_usage(subject: &Subject) -> [u64; 6] {
    let usage = subject.fs().usage();
    let (size, free) = (usage.block_size.into(), usage.free);
    [size, usage.blocks, free.blocks, free.available, usage.inodes, free.inodes]
}

/// Records that the running test, or a part of it, is skipped.
fn note(reason: &str) {
    let thread = std::thread::current();
    skip::note(thread.name().unwrap_or("xfs"), &reason.trim_end().replace('\n', " "));
}
