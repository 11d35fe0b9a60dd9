//! Volumes with the layouts that mke2fs can make.
//!
//! Each layout is tested twice. In one test, `mke2fs -d` fills the volume, which needs no root; the oracles are the source directory and
//! debugfs. In the other test, the kernel fills a mounted volume; the oracles are the kernel and debugfs. A failure names the layout and
//! the seed.

use rustix::fs::FileType;

use crate::common::compare::{assert_contents, assert_same};
use crate::common::image::{Image, scratch};
use crate::common::skip::Need;
use crate::common::tree::{Limits, Scope, grow};
use crate::common::view::{Record, Subject, View};
use crate::common::{debugfs, kernel};
use crate::require;

use crate::{DEPTH, SEED, SIZE, compare_with_kernel};

/// A layout of a volume.
struct Layout {
    name: &'static str,
    options: &'static [&'static str],
    /// The requirements that a machine must meet for a kernel mount of this layout.
    kernel: &'static [Need],
    /// Whether every kernel can mount the layout for writing. A kernel that was built without some options can mount it only for reading.
    kernel_writes: bool,
}

const fn layout(name: &'static str, options: &'static [&'static str]) -> Layout {
    Layout { name, options, kernel: &[], kernel_writes: true }
}

impl Layout {
    const fn kernel_needs(mut self, needs: &'static [Need]) -> Self {
        self.kernel = needs;
        self
    }

    const fn kernel_reads_only(mut self) -> Self {
        self.kernel_writes = false;
        self
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|given| given.split(',').any(|given| given == option))
    }

    fn scope(&self, block: u64, nodes: bool) -> Scope {
        Scope {
            seed: SEED,
            block,
            nodes,
            large_xattrs: nodes && self.has("ea_inode"),
            fragments: 1200.min((6 << 20) / block),
            limits: Limits::EXT4,
        }
    }

    fn mke2fs_options(&self, block: u64) -> Vec<String> {
        let mut options =
            vec!["-b".to_owned(), block.to_string(), "-N".to_owned(), "8192".to_owned()];
        options.extend(self.options.iter().map(ToString::to_string));
        options
    }

    /// Fills a volume with mke2fs, and compares it with the source directory and with debugfs.
    fn by_mke2fs(&self, block: u64) {
        let what = format!("{}, blocks of {block}, mke2fs -d, seed {SEED:#x}", self.name);
        let source = scratch();
        grow(source.path(), self.scope(block, false));
        let options = self.mke2fs_options(block);
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        let image = Image::populated(SIZE, &options, source.path());
        if self.has("project") {
            image.debugfs("sif /sizes/100 projid 4711\nsif /xattrs projid 4294967294\n");
            // e2fsck corrects the quotas, because mke2fs and debugfs do not update them.
            image.repair();
        }
        image.check();

        let mut expected = kernel::view(source.path(), DEPTH, SEED);
        expected.values_mut().for_each(as_copied);
        let mut subject = Subject::open(&image);
        let mut actual = subject.view();
        assert_same(
            &debugfs::view(&image, block, &actual),
            &actual,
            &format!("{what}, against debugfs"),
        );
        // Some files are not compared, because mke2fs itself adds or changes these files. With inline data, mke2fs 1.47.0 also loses the
        // holes at the ends of files.
        let is_copied = |path: &[u8]| {
            let cut = self.has("inline_data")
                && [&b"sparse"[..], b"unwritten"].iter().any(|dir| path.starts_with(dir));
            !(path.is_empty() || path == b"lost+found" || cut)
        };
        expected.retain(|path, _| is_copied(path));
        actual.retain(|path, _| is_copied(path));
        assert_same(&expected, &actual, &format!("{what}, against the source"));
        assert_contents(&expected, &mut subject, &actual, &what);
    }

    /// Fills a volume through a kernel mount. Then compares ironmap's view with the views of the kernel and of debugfs.
    fn by_kernel(&self, block: u64) {
        let what = format!("{}, blocks of {block}, kernel, seed {SEED:#x}", self.name);
        let scope = self.scope(block, true);
        let options = self.mke2fs_options(block);
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        let image = if self.kernel_writes {
            let image = Image::mke2fs(SIZE, &options);
            grow(image.mount("rw").dir(), scope);
            image
        } else {
            let source = scratch();
            grow(source.path(), scope);
            let image = Image::populated(SIZE, &options, source.path());
            image.repair();
            image
        };
        let seen = compare_with_kernel(&image, block, &what);
        if self.kernel_writes {
            self.check_coverage(&seen, block);
        }
    }

    /// Checks that the tree of files contains the special cases for which it was made.
    fn check_coverage(&self, seen: &View, block: u64) {
        let count =
            |what: &dyn Fn(&Record) -> bool| seen.values().filter(|record| what(record)).count();
        let pieces = |record: &Record| record.map.iter().flatten().copied().collect::<Vec<_>>();
        let extents = !(self.has("ext2") || self.has("ext3") || self.has("^extent"));
        assert!(count(&|record| record.device.is_some()) >= 12, "device nodes");
        assert!(
            count(&|record| record.xattrs.as_ref().is_some_and(|list| list.len() > 1)) >= 8,
            "attributes"
        );
        let acl = |record: &Record| {
            record.xattrs.iter().flatten().any(|(name, _)| name.starts_with(b"system."))
        };
        assert!(count(&acl) >= 3, "access control lists");
        assert!(
            count(&|record| pieces(record).len() as u64 >= self.scope(block, true).fragments) >= 1,
            "fragments"
        );
        if extents {
            assert!(
                count(&|record| pieces(record).iter().any(|piece| piece.unwritten)) >= 3,
                "unwritten extents"
            );
        }
        if self.has("ea_inode") {
            let large = |record: &Record| {
                record.xattrs.iter().flatten().any(|(_, value)| value.len() > 50_000)
            };
            assert!(count(&large) >= 1, "large attributes");
        }
        if !self.has("128") && extents {
            assert!(
                count(&|record| record.modified.is_some_and(|time| time.0 > 1 << 33 && time.1 > 0))
                    >= 1,
                "late times"
            );
        }
        assert!(
            count(&|record| record.modified.is_some_and(|time| time.0 < 0)) >= 1,
            "times before 1970"
        );
    }
}

/// Removes from a record of the source directory all fields that `mke2fs -d` does not copy.
fn as_copied(record: &mut Record) {
    let is_directory = record.is(FileType::Directory);
    *record = Record {
        mode: record.mode,
        owner: record.owner,
        links: record.links.filter(|_| !is_directory),
        size: record.size.filter(|_| !is_directory),
        target: record.target.take(),
        xattrs: record.xattrs.take(),
        reads: std::mem::take(&mut record.reads),
        ..Record::default()
    };
}

/// Tests for each layout and block size: `LAYOUT::block_SIZE::by_mke2fs` and `by_kernel`.
macro_rules! layouts {
    ($($name:ident: [$($block:tt),+], $layout:expr;)+) => {
        $(mod $name {
            use super::*;
            const LAYOUT: Layout = $layout;
            layouts!(@blocks $($block)+);
        })+
    };
    (@blocks $($block:tt)+) => { $(layouts!(@block $block);)+ };
    (@block 1024) => { layouts!(@tests block_1024, 1024); };
    (@block 2048) => { layouts!(@tests block_2048, 2048); };
    (@block 4096) => { layouts!(@tests block_4096, 4096); };
    (@block 65536) => { layouts!(@tests block_65536, 65536); };
    (@tests $module:ident, $block:tt) => {
        mod $module {
            use super::*;

            #[test]
            fn by_mke2fs() {
                LAYOUT.by_mke2fs($block);
            }

            #[test]
            fn by_kernel() {
                require!([Need::Root], [Need::PageSize($block)], LAYOUT.kernel.iter().copied());
                LAYOUT.by_kernel($block);
            }
        }
    };
}

// Some features have structures that depend on the block size. The tests use several block sizes for these features.
layouts! {
    ext2: [1024, 2048, 4096], layout("ext2", &["-t", "ext2"]);
    ext3: [1024, 2048, 4096], layout("ext3", &["-t", "ext3"]);
    ext4: [1024, 2048, 4096, 65536], layout("ext4", &["-t", "ext4"]);
    no_64bit: [1024], layout("no 64bit", &["-t", "ext4", "-O", "^64bit"]);
    no_flex_bg: [4096], layout("no flex_bg", &["-t", "ext4", "-O", "^flex_bg"]);
    meta_bg: [1024], layout("meta_bg", &["-t", "ext4", "-O", "meta_bg,^resize_inode"]);
    bigalloc: [1024, 2048, 4096], layout("bigalloc", &["-t", "ext4", "-O", "bigalloc", "-C", "16384"]);
    no_metadata_csum: [1024], layout("no metadata_csum", &["-t", "ext4", "-O", "^metadata_csum"]);
    metadata_csum_seed: [4096], layout("metadata_csum_seed", &["-t", "ext4", "-O", "metadata_csum_seed"]);
    gdt_csum: [1024], layout("gdt_csum", &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"]);
    sparse_super2: [4096], layout("sparse_super2", &["-t", "ext4", "-O", "sparse_super2,^resize_inode"]);
    inline_data: [1024, 2048, 4096], layout("inline_data", &["-t", "ext4", "-O", "inline_data"]);
    inline_data_wide: [4096], layout("inline_data, inodes of 1024", &["-t", "ext4", "-O", "inline_data", "-I", "1024"]);
    no_dir_index: [1024], layout("no dir_index", &["-t", "ext4", "-O", "^dir_index"]);
    no_filetype: [4096], layout("no filetype", &["-t", "ext4", "-O", "^filetype"]);
    no_extents: [1024, 4096], layout("no extents", &["-t", "ext4", "-O", "^extent,^64bit"]);
    large_dir: [1024], layout("large_dir", &["-t", "ext4", "-O", "large_dir"]);
    casefold: [4096], layout("casefold", &["-t", "ext4", "-O", "casefold", "-E", "encoding=utf8"])
        .kernel_needs(&[Need::KernelExt4("casefold")]);
    ea_inode: [1024, 4096], layout("ea_inode", &["-t", "ext4", "-O", "ea_inode"]);
    no_huge_file: [4096], layout("no huge_file", &["-t", "ext4", "-O", "^huge_file"]);
    inode_128: [1024], layout("inodes of 128", &["-t", "ext4", "-I", "128"]);
    inode_512: [4096], layout("inodes of 512", &["-t", "ext4", "-I", "512"]);
    no_extra_isize: [4096], layout("no extra_isize", &["-t", "ext4", "-O", "^extra_isize"]);
    orphan_file: [1024], layout("orphan_file", &["-t", "ext4", "-O", "orphan_file"]);
    mmp: [4096], layout("mmp", &["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"]);
    quota_project: [4096], layout("quota, project", &["-t", "ext4", "-O", "quota,project"]).kernel_reads_only();
    encrypt: [4096], layout("encrypt", &["-t", "ext4", "-O", "encrypt"]);
    verity: [4096], layout("verity", &["-t", "ext4", "-O", "verity"]);
    fast_commit: [4096], layout("fast_commit", &["-t", "ext4", "-O", "fast_commit"]);
    no_journal: [1024], layout("no journal", &["-t", "ext4", "-O", "^has_journal"]);
    small_groups: [1024, 4096], layout("groups of 512 blocks", &["-t", "ext4", "-g", "512", "-O", "^resize_inode"]);
}
