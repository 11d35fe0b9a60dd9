//! Evaluates e2fsck's findings on a volume on which the tests have allocated blocks and inodes.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::os::unix::fs::MetadataExt;

use crate::fs::FileSystem;
use crate::fs::ext4::for_tests::Image;

/// Clusters and inodes that are marked as used but belong to no file.
pub(super) struct Marked {
    /// The numbers of the clusters. A cluster's number is its first block divided by `cluster`.
    pub(super) clusters: BTreeSet<u64>,
    /// The number of blocks in a cluster.
    pub(super) cluster: u64,
    pub(super) inodes: BTreeSet<u64>,
}

impl Image {
    /// Fills all free blocks with bytes other than zero.
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

    /// The number of bytes that the image occupies.
    pub(super) fn allocated(&self) -> u64 {
        std::fs::metadata(self.path()).unwrap().blocks() * 512
    }

    /// Asserts that e2fsck finds nothing, and that the superblock's counters equal the sums over all groups. The counters are compared
    /// because e2fsck corrects wrong counters without a report.
    pub(super) fn assert_clean(&self) {
        let (clean, report) = self.e2fsck();
        assert!(clean, "{report}");
        let read = self.open_to_read();
        let recorded = read.free_space();
        drop(read);
        let counted = self.open().free_space();
        assert_eq!(recorded, counted);
    }

    /// Runs e2fsck, and returns the clusters and inodes that are marked as used but belong to no file. Any other finding fails the test.
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
                let path = self.path();
                let path = path.to_str().unwrap();
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

/// The numbers in a list of e2fsck's output, for example ` -5 -(7--9)`. A plus sign would precede numbers that are used but not marked.
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
