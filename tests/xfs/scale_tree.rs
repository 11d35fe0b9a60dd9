//! A tree of many files. The test reads all names with their attributes, and all content. It prints how long the kernel and ironmap take.
//!
//! `IRONMAP_XFS_SCALE` is the number of files. 100000 gives the table in docs/BENCHMARKS.md.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ironmap::fs::{FileType, Follow};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{FileOptions, Queue, QueueOptions, Volume};

use crate::common::image::Image;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::scale::timed;
use crate::{FOR_READING, SEED, require};

/// The default number of files.
const COUNT: u64 = 3000;
/// The number of files in a directory.
const IN_DIRECTORY: u64 = 100;
/// The range of file sizes, and the size of every fiftieth file.
const SIZES: [usize; 8] = [0, 100, 700, 3000, 4096, 6000, 9000, 20_000];
const LARGER: usize = 150_000;
/// How many times the tree is listed and read. The test prints the duration of each round.
const ROUNDS: usize = 3;

/// The sums over all files of a tree.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    names: u64,
    size: u64,
    /// The total length of the content, and the sum of its bytes.
    bytes: u64,
    sum: u64,
}

impl Sums {
    fn add(&mut self, content: &[u8]) {
        self.bytes += content.len() as u64;
        // The sum makes both the kernel's run and ironmap's run read every byte.
        self.sum += content.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }
}

fn kernel(dir: &Path, reads: bool, sums: &mut Sums) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let stat = entry.metadata().unwrap();
        sums.names += 1;
        if stat.is_dir() {
            kernel(&entry.path(), reads, sums);
            continue;
        }
        sums.size += stat.size();
        if reads {
            sums.add(&std::fs::read(entry.path()).unwrap());
        }
    }
}

fn ironmap(volume: &Volume, reads: &mut Option<(Queue, Vec<u8>)>, dir: InodeNo, sums: &mut Sums) {
    let dir = volume.fs().known_inode(dir).unwrap();
    for entry in dir.read_dir().unwrap() {
        let entry = entry.unwrap();
        if matches!(&entry.name[..], b"." | b"..") {
            continue;
        }
        let inode = volume.fs().known_inode(entry.inode).unwrap();
        sums.names += 1;
        if inode.stat().file_type == FileType::Directory {
            ironmap(volume, reads, entry.inode, sums);
            continue;
        }
        sums.size += inode.size();
        let Some((queue, buffer)) = reads else { continue };
        buffer.resize(inode.size() as usize, 0);
        let file = volume.open_inode(inode, FileOptions::new()).unwrap();
        let mut pos = 0;
        while pos < buffer.len() {
            let count = file.read_at(queue, &mut buffer[pos..], FilePos(pos as u64)).unwrap();
            assert!(count > 0, "a file that is cut short");
            pos += count;
        }
        sums.add(buffer);
    }
}

#[test]
fn a_tree_of_many_files() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    let count = std::env::var("IRONMAP_XFS_SCALE").map_or(COUNT, |count| count.parse().unwrap());
    let image = Image::mkfs_xfs(&format!("{}M", 512 + count * 20_000 / (1 << 20)), &[]).unwrap();
    {
        let mount = image.mount("rw");
        let rng = &mut Rng::new(SEED);
        for number in 0..count {
            let dir = mount.dir().join(format!("dir-{}", number / IN_DIRECTORY / 10));
            let dir = dir.join(format!("dir-{}", number / IN_DIRECTORY));
            if number.is_multiple_of(IN_DIRECTORY) {
                std::fs::create_dir_all(&dir).unwrap();
            }
            let size = if rng.below(50) == 0 { LARGER } else { SIZES[rng.below(8) as usize] };
            std::fs::write(dir.join(format!("file-{number}.txt")), rng.bytes(size)).unwrap();
        }
    }
    for _ in 0..ROUNDS {
        for (reads, what) in [(false, "names and attributes"), (true, "all content")] {
            let mut expected = Sums::default();
            let mount = image.mount(FOR_READING);
            timed(&format!("kernel: {what}"), || kernel(mount.dir(), reads, &mut expected));
            drop(mount);
            let mut found = Sums::default();
            timed(&format!("ironmap: {what}, with the open"), || {
                let volume = image.open().unwrap();
                let queue = || volume.queue(&QueueOptions::default()).unwrap();
                let mut reads = reads.then(|| (queue(), Vec::new()));
                let root = volume.fs().resolve(b"", Follow::All).unwrap().number();
                ironmap(&volume, &mut reads, root, &mut found);
            });
            assert_eq!(found, expected, "{what}, seed {SEED:#x}");
        }
    }
}
