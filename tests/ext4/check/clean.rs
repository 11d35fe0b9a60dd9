//! Undamaged volumes with many sets of features. ironmap and e2fsck find no fault in them.

use std::path::Path;

use crate::check::verdict::agree;
use crate::common::image::{Image, scratch, words};
use crate::common::skip::{self, Need};
use crate::common::tree::{Limits, Scope, grow};
use crate::require;

/// The feature sets: name, size, options of mke2fs. If this kernel cannot mount a set, the test records the set as skipped.
pub(crate) const SETS: [(&str, &str, &str); 28] = [
    ("ext4", "96M", "-t ext4 -b 4096"),
    ("1 KiB", "96M", "-t ext4 -b 1024"),
    ("2 KiB", "96M", "-t ext4 -b 2048"),
    ("ext2", "96M", "-t ext2 -b 1024"),
    ("ext3", "96M", "-t ext3 -b 1024"),
    ("ext3, 4 KiB", "96M", "-t ext3 -b 4096"),
    ("no filetype", "96M", "-t ext2 -b 4096 -O ^filetype"),
    ("inodes of 128 bytes", "96M", "-t ext4 -b 1024 -I 128"),
    ("bigalloc", "192M", "-t ext4 -b 4096 -O bigalloc -C 65536"),
    ("bigalloc, 1 KiB", "192M", "-t ext4 -b 1024 -O bigalloc -C 16384"),
    ("inline data", "96M", "-t ext4 -b 4096 -O inline_data"),
    ("inline data, large inodes", "96M", "-t ext4 -b 1024 -O inline_data -I 1024"),
    ("values in inodes", "96M", "-t ext4 -b 1024 -O ea_inode"),
    ("bigalloc and values in inodes", "192M", "-t ext4 -b 1024 -O bigalloc,ea_inode -C 8192"),
    ("casefold", "96M", "-t ext4 -b 4096 -O casefold -E encoding=utf8"),
    ("no journal", "96M", "-t ext4 -b 4096 -O ^has_journal"),
    ("meta groups", "192M", "-t ext4 -b 1024 -O meta_bg,^resize_inode"),
    ("meta groups of small descriptors", "192M", "-t ext4 -b 1024 -O meta_bg,^resize_inode,^64bit"),
    ("not 64bit", "96M", "-t ext4 -b 1024 -O ^64bit"),
    ("uninit_bg", "128M", "-t ext4 -b 1024 -O uninit_bg,^metadata_csum"),
    ("no checksums", "128M", "-t ext4 -b 1024 -O ^uninit_bg,^metadata_csum"),
    ("no flex_bg", "128M", "-t ext4 -b 1024 -O ^flex_bg"),
    ("orphan file", "96M", "-t ext4 -b 1024 -O orphan_file"),
    ("large directories", "96M", "-t ext4 -b 1024 -O large_dir"),
    ("sparse_super2", "128M", "-t ext4 -b 1024 -O sparse_super2"),
    ("quota and projects", "96M", "-t ext4 -b 1024 -I 256 -O quota,project"),
    ("MMP", "96M", "-t ext4 -b 1024 -O mmp"),
    (
        "seed of checksums, lazy groups",
        "256M",
        "-t ext4 -b 1024 -O metadata_csum_seed -E lazy_itable_init=1",
    ),
];

fn scope(options: &str, nodes: bool) -> Scope {
    let block = if options.contains("4096") { 4096 } else { 1024 };
    Scope {
        seed: 26,
        block,
        nodes,
        large_xattrs: options.contains("ea_inode"),
        fragments: 400,
        limits: Limits::EXT4,
    }
}

#[test]
fn volumes_filled_by_mke2fs_are_clean() {
    let source = scratch();
    grow(source.path(), scope("1024", false));
    for (name, size, options) in SETS {
        let image = Image::populated(size, &words(options), source.path());
        // mke2fs copies files into the volume, but does not add them to the usage in the quota files.
        agree(name, &image.path(), !options.contains("quota"));
        image.rebuild_directories();
        agree(&format!("{name}, directories rebuilt"), &image.path(), true);
    }
}

/// Volumes that the kernel fills are clean. They contain large hashed directories, attributes of every size, and sparse, fragmented and
/// truncated files.
#[test]
fn volumes_filled_by_the_kernel_are_clean() {
    require!([Need::Root]);
    for (name, size, options) in SETS {
        let image = Image::mke2fs(size, &words(options));
        let mount = match image.try_mount("noatime") {
            Ok(mount) => mount,
            Err(refusal) => {
                skip::note_part("volumes_filled_by_the_kernel_are_clean", name, &refusal);
                continue;
            }
        };
        let dir = mount.dir().join("tree");
        std::fs::create_dir(&dir).unwrap();
        grow(&dir, scope(options, true));
        many_names(&mount.dir().join("names"));
        drop(mount);
        agree(name, &image.path(), true);
    }
}

/// Makes a hashed directory and removes some of its names. With blocks of 1 KiB, the directory has two levels.
fn many_names(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let file = dir.join("file");
    std::fs::write(&file, "x").unwrap();
    for number in 0..9000 {
        std::fs::hard_link(&file, dir.join(format!("{number}-{}", "n".repeat(60)))).unwrap();
    }
    for number in (0..9000).step_by(3) {
        std::fs::remove_file(dir.join(format!("{number}-{}", "n".repeat(60)))).unwrap();
    }
}

/// ironmap checks a volume with a dirty journal as if the journal had been replayed. e2fsck replays the journal, and must return the same
/// verdict.
#[test]
fn dirty_volumes_are_checked_as_recovered() {
    require!([Need::Root]);
    for (name, options) in [
        ("ext4", "-t ext4 -b 1024"),
        ("ext3", "-t ext3 -b 1024"),
        ("orphan file", "-t ext4 -b 4096 -O orphan_file"),
    ] {
        let image = Image::mke2fs("96M", &words(options));
        // The commit timer is off, so each commit in the journal belongs to a sync.
        let mount = image.mount("noatime,commit=300");
        let dir = mount.dir().join("tree");
        std::fs::create_dir(&dir).unwrap();
        grow(&dir, scope(options, true));
        let sync = std::fs::File::open(&dir).unwrap();
        rustix::fs::syncfs(&sync).unwrap();
        drop(sync);
        let left = image.copy();
        drop(mount);
        let report = left.ext4().check(&mut |_| {}).unwrap();
        assert!(report.is_clean(), "{name}: {:?}", report.findings);
        let recovered =
            report.findings.iter().any(|finding| finding.to_string().contains("recovered"));
        assert!(recovered, "{name}: the journal was clean");
        left.repair_journal();
        agree(name, &left.path(), true);
    }
}
