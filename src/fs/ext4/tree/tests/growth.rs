//! Tests of trees that grow by appending, and of a large tree.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::image::File;
use crate::fs::ext4::for_tests::Image;
use crate::iomap::{Extent, ExtentState};
use crate::units::{FileBlock, FsBlock};

/// Appends extents of one block, with holes between them. Each transaction appends `at_once` extents.
fn append(file: &File, count: u64, at_once: u64) {
    let mut goal = 0;
    let mut at = 0;
    while at < count {
        let (start, len) = file.allocate(goal, (count - at).min(1 << 20) as u32);
        goal = start + u64::from(len);
        let mut blocks = start..goal;
        while !blocks.is_empty() {
            file.change(|handle, inode| {
                for block in blocks.by_ref().take(at_once as usize) {
                    let (first, start) = (FileBlock(at * 2), FsBlock(block));
                    let extent = Extent { first, start, len: 1, state: ExtentState::Unwritten };
                    inode.map_extent(handle, extent)?;
                    at += 1;
                }
                Ok(())
            })
            .unwrap();
        }
    }
}

/// The processor time that this thread uses for `work`.
fn computed(work: impl FnOnce()) -> Duration {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let start = now();
    work();
    now() - start
}

/// Appended extents fill each leaf completely before the next leaf is created, so that the tree is as small as possible.
#[test]
fn appending_fills_the_leaves() {
    let image = Image::with_file("-t ext4 -b 1024 -N 64", "64M");
    let file = image.open_file();
    file.set_size(40_000);
    append(&file, 20_000, 1);
    let leaves = 20_000_u64.div_ceil(84);
    let inner = leaves.div_ceil(84);
    assert_eq!(file.inode().stat().blocks, 2 * (20_000 + leaves + inner));
    assert_eq!(file.depth(), 2);
    file.close();
    image.fsck();
}

/// A tree with a million extents can be built, converted, shifted and removed. The test prints the processor time: `cargo test --lib
/// a_million_extents -- --nocapture`.
#[test]
fn a_million_extents() {
    const COUNT: u64 = 1 << 20;
    let image = Image::with_file("-t ext4 -b 1024 -N 64 -E lazy_itable_init", "1400M");
    let file = image.open_file();
    file.set_size(2 * COUNT);
    let appended = computed(|| append(&file, COUNT, 64));
    assert_eq!(file.extents().len() as u64, COUNT);
    file.close();
    image.fsck();
    let file = image.open_file();
    let all = 2 * COUNT;
    let converted = computed(|| file.set_state(0, all, ExtentState::Written).unwrap());
    let shifted = computed(|| {
        file.shift(0, 10).unwrap();
        file.shift(10, -10).unwrap();
    });
    let removed = computed(|| file.unmap(1, all).unwrap());
    eprintln!(
        "{COUNT} extents of one block: appended {} ns each, converted {} ns, shifted {} ns, removed {} ns",
        appended.as_nanos() / u128::from(COUNT),
        converted.as_nanos() / u128::from(COUNT),
        shifted.as_nanos() / u128::from(2 * COUNT),
        removed.as_nanos() / u128::from(COUNT),
    );
    assert_eq!((file.extents().len(), file.depth()), (1, 0));
    file.unmap(0, 1).unwrap();
    assert_eq!(file.inode().stat().blocks, 0);
    file.close();
    image.fsck();
}
