//! A volume made by mke2fs, and what e2fsck finds in it.

use std::collections::BTreeSet;
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
    pub(super) blocks: BTreeSet<u64>,
    pub(super) inodes: BTreeSet<u64>,
}

impl Image {
    pub(super) fn new(options: &str, size: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.arg("-Fq").args(options.split(' ')).arg(&path).arg(size);
        let out = mke2fs.output().unwrap();
        assert!(out.status.success(), "{options}: {}", String::from_utf8_lossy(&out.stderr));
        Self { _dir: dir, path }
    }

    pub(super) fn open(&self) -> Arc<Ext4> {
        let mode = OpenMode { write: true, direct: false, ..OpenMode::default() };
        let file = BlockFile::open(&self.path, &mode).unwrap();
        let device = Arc::new(Psync::new(Arc::new(file)));
        Ext4::open_for_writing(device, &Arc::default(), Clock::System).unwrap()
    }

    fn e2fsck(&self) -> (bool, String) {
        let out =
            Command::new("e2fsck").env("LC_ALL", "C").arg("-fn").arg(&self.path).output().unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap())
    }

    pub(super) fn assert_clean(&self) {
        let (clean, report) = self.e2fsck();
        assert!(clean, "{report}");
    }

    /// What is marked in use though no file has it. Anything else that is found fails.
    pub(super) fn check(&self) -> Marked {
        let (_, report) = self.e2fsck();
        let mut marked = Marked { blocks: BTreeSet::new(), inodes: BTreeSet::new() };
        for line in report.lines() {
            if let Some(list) = line.strip_prefix("Block bitmap differences:") {
                marked.blocks.append(&mut numbers(list));
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
