//! Tests on a full volume. A change that needs new nodes fails without any effect if there are too few free blocks for them.

use super::image::File;
use crate::error::{ErrorKind, Result};
use crate::fs::FileSystem;
use crate::fs::ext4::alloc::{Freed, Reserve};
use crate::fs::ext4::for_tests::Image;
use crate::fs::ext4::jbd2::Handle;
use crate::fs::ext4::operation::InodeToChange;
use crate::iomap::ExtentState::{Unwritten, Written};
use crate::units::FsBlock;

/// The number of entries in a node of 1 KiB.
const NODE: u64 = 84;

/// A volume whose free blocks the test has allocated, so that the test can free exactly as many blocks as it needs.
struct Full {
    file: File,
    /// Determines which kinds of reserved blocks the test may allocate.
    reserve: Reserve,
    held: Vec<(FsBlock, u32)>,
}

impl Full {
    fn new(file: File, reserve: Reserve) -> Self {
        Self { file, reserve, held: Vec::new() }
    }

    /// Frees or allocates blocks so that exactly `blocks` blocks are free.
    fn leave(&mut self, blocks: u32) {
        let fs = &self.file.fs;
        fs.sync().unwrap();
        let all = |h: &mut Handle<'_>, _: &InodeToChange<'static>| {
            h.allocate_blocks_for(FsBlock(0), 1 << 20, self.reserve)
        };
        while let Ok(run) = self.file.change(all) {
            self.held.push(run);
        }
        let longest = (0..self.held.len()).max_by_key(|at| self.held[*at].1).unwrap();
        let (start, len) = self.held.swap_remove(longest);
        assert!(len >= blocks);
        self.held.extend((len > blocks).then_some((start, len - blocks)));
        self.free(FsBlock(start.0 + u64::from(len - blocks)), blocks);
        fs.sync().unwrap();
    }

    fn free(&self, start: FsBlock, count: u32) {
        let count = u64::from(count);
        self.file.change(|h, _| h.free_blocks(start, count, Freed::Data)).unwrap();
    }

    fn release(&mut self) {
        for (start, len) in std::mem::take(&mut self.held) {
            self.free(start, len);
        }
        self.file.fs.sync().unwrap();
    }

    /// Runs a change that needs `blocks` blocks. With fewer free blocks, the change must fail without any effect. With `blocks` free
    /// blocks, it must succeed.
    fn needs(&mut self, blocks: u32, what: &str, change: impl Fn(&File) -> Result<()>) {
        for free in 0..blocks {
            self.leave(free);
            let before = (self.file.extents(), self.file.inode().stat().blocks);
            let error = change(&self.file).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{what}, {free} free: {error}");
            assert_eq!((self.file.extents(), self.file.inode().stat().blocks), before, "{what}");
        }
        self.leave(blocks);
        change(&self.file).expect(what);
    }

    fn close(mut self, image: &Image) {
        self.release();
        self.file.close();
        image.fsck();
    }
}

/// Appends extents of one block, with holes between them.
fn append(file: &File, first: u64, count: u64) {
    let (mut next, mut goal) = (first, 0);
    while next < first + count {
        let (start, len) = file.allocate(goal, (first + count - next) as u32);
        goal = start + u64::from(len);
        for block in start..goal {
            file.map(next * 2, block, 1, Unwritten).unwrap();
            next += 1;
        }
    }
}

/// If there is no space for a new node, the attempt to append an extent changes nothing. Two steps need new nodes: the split of a node, and
/// the move of the root's entries.
#[test]
fn nodes_that_cannot_be_had() {
    let image = Image::with_file("-t ext4 -b 1024 -N 64", "64M");
    let file = image.open_file();
    file.set_size(200_000);
    let full_trees = [4, 4 * NODE, 4 * NODE * NODE];
    let (spare, len) = file.allocate(0, full_trees.len() as u32);
    assert_eq!(len as usize, full_trees.len());
    let mut full = Full::new(file, Reserve::Superuser);
    let mut appended = 0;
    for (depth, extents) in (0..).zip(full_trees) {
        full.release();
        append(&full.file, appended, extents - appended);
        let (at, start) = (extents * 2, spare + u64::from(depth));
        full.needs(depth + 1, "append", |file| file.map(at, start, 1, Unwritten));
        assert_eq!(u32::from(full.file.depth()), depth + 1);
        appended = extents + 1;
    }
    full.close(&image);
}

/// The root of the tree is full: it contains four extents of ten blocks each. A split of one extent needs a new node. On a volume without
/// other free blocks, the split succeeds while the blocks that are reserved for nodes are free.
#[test]
fn cuts_that_need_a_node() {
    type Cut = fn(&File) -> Result<()>;
    let cuts: [(&str, Cut); 3] = [
        ("punch", |file| file.unmap(4, 6)),
        ("convert", |file| file.set_state(24, 26, Unwritten)),
        ("insert", |file| file.shift(25, 7)),
    ];
    for (what, cut) in cuts {
        let image = Image::with_file("-t ext4 -b 1024 -N 64", "64M");
        let file = image.open_file();
        file.set_size(2000);
        let (start, len) = file.allocate(0, 40);
        assert_eq!(len, 40);
        for i in 0..4 {
            file.map(i * 20, start + i * 10, 10, Written).unwrap();
        }
        let mut full = Full::new(file, Reserve::Allowed);
        full.needs(1, what, cut);
        full.release();
        full.file.unmap(0, 100).unwrap();
        full.file.fs.sync().unwrap();
        for i in 0..4 {
            let (start, len) = full.file.allocate(0, 10);
            assert_eq!(len, 10);
            full.file.map(i * 20, start, 10, Written).unwrap();
        }
        full.reserve = Reserve::Superuser;
        full.leave(0);
        cut(&full.file).expect(what);
        full.close(&image);
    }
}

#[test]
fn pointer_blocks_that_cannot_be_had() {
    let image = Image::with_file("-t ext3 -b 1024 -N 64", "64M");
    let file = image.open_file();
    file.set_size(200_000);
    let (start, len) = file.allocate(0, 3);
    assert_eq!(len, 3);
    let mut full = Full::new(file, Reserve::Superuser);
    full.needs(1, "one level", |file| file.map(20, start, 1, Written));
    full.needs(2, "two levels", |file| file.map(300, start + 1, 1, Written));
    full.needs(3, "three levels", |file| file.map(70_000, start + 2, 1, Written));
    full.close(&image);
}
