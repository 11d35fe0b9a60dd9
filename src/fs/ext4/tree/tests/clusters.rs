//! Tests with bigalloc. A cluster is freed when its last mapped block is unmapped.

use super::image::extent;
use super::model::Run;
use crate::fs::ext4::for_tests::Image;
use crate::iomap::ExtentState::{Unwritten, Written};

const BIGALLOC: &str = "-t ext4 -b 1024 -O bigalloc -C 8192";

fn sectors(clusters: u64) -> u64 {
    clusters * 16
}

#[test]
fn a_cluster_belongs_to_the_file_as_long_as_one_block_is_mapped() {
    let image = Image::with_file(BIGALLOC, "64M");
    let file = image.open_file();
    file.set_size(100);
    let (start, len) = file.allocate(3000, 16);
    assert_eq!(len, 16);
    file.map(10, start + 2, 3, Written).unwrap();
    assert_eq!(file.inode().stat().blocks, sectors(1));
    file.map(14, start + 6, 4, Unwritten).unwrap();
    assert_eq!(file.inode().stat().blocks, sectors(2));
    file.unmap(10, 13).unwrap();
    assert_eq!(file.inode().stat().blocks, sectors(2));
    file.unmap(14, 16).unwrap();
    assert_eq!(file.inode().stat().blocks, sectors(1));
    file.unmap(17, 18).unwrap();
    assert_eq!(file.extents(), [extent(16, start + 8, 1, Unwritten)]);
    file.set_state(16, 17, Written).unwrap();
    file.close();
    image.fsck();
    let file = image.open_file();
    file.unmap(0, 100).unwrap();
    assert_eq!(file.inode().stat().blocks, 0);
    file.close();
    image.fsck();
}

#[test]
fn random_changes_with_clusters() {
    for (seed, options) in [(11, BIGALLOC), (12, "-t ext4 -O bigalloc,^metadata_csum -C 65536")] {
        Run { seed, options, blocks: 30_000, steps: 3000, extents: true, scattered: 0, depth: 1 }
            .go();
    }
}
