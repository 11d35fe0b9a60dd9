//! A volume made by mke2fs, and what e2fsck finds in it.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

use crate::device::{BlockFile, OpenMode, Psync};
use crate::fs::ext4::{Clock, Ext4};

pub(super) struct Image {
    _dir: TempDir,
    path: PathBuf,
}

/// What is marked in use and belongs to no file.
pub(super) struct Marked {
    /// Numbered by their first block over `cluster`.
    pub(super) clusters: BTreeSet<u64>,
    /// Blocks of a cluster.
    pub(super) cluster: u64,
    pub(super) inodes: BTreeSet<u64>,
}

impl Image {
    pub(super) fn new(options: &str, size: &str) -> Self {
        let prefix = format!("ironmap-test-{}-", std::process::id());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        let path = dir.path().join("image");
        // What mke2fs leaves unwritten is not zero by chance.
        if options.contains("nodiscard") {
            std::fs::write(&path, vec![0xA5; 32 << 20]).unwrap();
        }
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.arg("-Fq").args(options.split(' ')).arg(&path).arg(size);
        let out = mke2fs.output().unwrap();
        assert!(out.status.success(), "{options}: {}", String::from_utf8_lossy(&out.stderr));
        Self { _dir: dir, path }
    }

    pub(super) fn device(&self, write: bool) -> Arc<Psync> {
        let mode = OpenMode { write, direct: false, ..OpenMode::default() };
        let file = BlockFile::open(&self.path, &mode).unwrap();
        Arc::new(Psync::new(Arc::new(file)))
    }

    pub(super) fn open(&self) -> Arc<Ext4> {
        Ext4::open_for_writing(self.device(true), &Arc::default(), Clock::System).unwrap()
    }

    fn open_to_read(&self) -> Arc<Ext4> {
        Ext4::open(self.device(false), &Arc::default()).unwrap()
    }

    /// Writes something into all blocks that are free.
    pub(super) fn dirty_all_free_blocks(&self) {
        let fs = self.open();
        let runs = super::fill(&fs, super::Reserve::Allowed);
        let size = fs.superblock().block_size;
        for (start, count) in &runs {
            let bytes = vec![0xA5; *count as usize * size.bytes()];
            let bufs = [IoSlice::new(&bytes)];
            fs.blocks.device().write_all_at(&bufs, size.offset_of(*start), false).unwrap();
        }
        super::free(&fs, &runs);
        fs.close().unwrap();
    }

    /// How many bytes the image takes.
    pub(super) fn allocated(&self) -> u64 {
        std::fs::metadata(&self.path).unwrap().blocks() * 512
    }

    fn e2fsck(&self) -> (bool, String) {
        let out =
            Command::new("e2fsck").env("LC_ALL", "C").arg("-fn").arg(&self.path).output().unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap())
    }

    /// e2fsck finds nothing, and the superblock counts what the groups do, which e2fsck puts right without a word.
    pub(super) fn assert_clean(&self) {
        let (clean, report) = self.e2fsck();
        assert!(clean, "{report}");
        let read = self.open_to_read();
        let recorded = read.free_space();
        drop(read);
        let counted = self.open().free_space();
        assert_eq!(recorded, counted);
    }

    /// What is marked in use though no file has it. Anything else that is found fails.
    pub(super) fn check(&self) -> Marked {
        let (_, report) = self.e2fsck();
        let cluster = u64::from(self.open_to_read().superblock().cluster_blocks);
        let (clusters, inodes) = (BTreeSet::new(), BTreeSet::new());
        let mut marked = Marked { clusters, cluster, inodes };
        for line in report.lines() {
            if let Some(list) = line.strip_prefix("Block bitmap differences:") {
                marked.clusters.extend(numbers(list).into_iter().map(|block| block / cluster));
            } else if let Some(list) = line.strip_prefix("Inode bitmap differences:") {
                marked.inodes.append(&mut numbers(list));
            } else {
                let consequence =
                    ["Free blocks count", "Free inodes count", "Directories count", "Fix? no"];
                let frame = ["Pass ", "WARNING: Filesystem still has errors"];
                let path = self.path.to_str().unwrap();
                let known = |line: &str| {
                    let starts = |start: &&str| line.starts_with(start);
                    line.is_empty()
                        || consequence.iter().any(starts)
                        || frame.iter().any(starts)
                        || line.contains("WARNING: Filesystem still has errors")
                        || line.contains(path)
                };
                assert!(known(line), "{line}\n{report}");
            }
        }
        marked
    }
}

/// Numbers as e2fsck lists them: ` -5 -(7--9)`; those that are in use and not marked have a plus.
fn numbers(list: &str) -> BTreeSet<u64> {
    let mut numbers = BTreeSet::new();
    for word in list.split_whitespace() {
        let marked = word.strip_prefix('-').unwrap_or_else(|| panic!("not marked: {word}"));
        let number = |text: &str| text.parse::<u64>().unwrap();
        match marked.strip_prefix('(').and_then(|range| range.strip_suffix(')')) {
            Some(range) => {
                let (first, last) = range.split_once("--").unwrap();
                numbers.extend(number(first)..=number(last));
            }
            None => {
                numbers.insert(number(marked));
            }
        }
    }
    numbers
}
