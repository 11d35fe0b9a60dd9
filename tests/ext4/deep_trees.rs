//! Extent trees that are deeper than Linux makes or reads. Linux and ironmap can free such a tree, even if they cannot read it. So the
//! removal of a file with such a tree leaks no block.

use std::fs;

use ironmap::fs::ext4::ROOT;
use ironmap::fs::{FileSystem, Follow};
use ironmap::{ErrorKind, Volume, VolumeOptions};

use crate::common::image::{Image, words};
use crate::common::skip::Need;
use crate::require;

const BLOCK: usize = 1024;

/// A tree node with one entry. The entry of an inner node refers to the block `to`. The entry of a leaf is an extent of two blocks at `to`.
fn node(depth: u16, max: u16, to: u64) -> Vec<u8> {
    let [low, high] = [to as u16, (to >> 16) as u16];
    let entry = if depth == 0 { [2, 0, low, high] } else { [low, high, 0, 0] };
    let header = [0xF30A, 1, max, depth, 0, 0, 0, 0];
    header.into_iter().chain(entry).flat_map(u16::to_le_bytes).collect()
}

/// Makes a volume with the file `/f`. The file has two data blocks and this number of tree levels above them. Returns the volume, and the
/// number of free blocks before the file was made.
fn deep(options: &str, levels: u16) -> (Image, u64) {
    let image = Image::mke2fs("8M", &words(options));
    let free = image.ext4().superblock().free_blocks;
    let content = image.beside("content");
    fs::write(&content, vec![7; BLOCK * (usize::from(levels) + 2)]).unwrap();
    image.debugfs(&format!("write {} f\n", content.display()));
    let blocks = image.bmap("f", 0..u64::from(levels) + 2);
    let (nodes, data) = blocks.split_at(usize::from(levels));
    for (level, block) in (1..).zip(nodes) {
        let to = nodes.get(usize::from(level)).unwrap_or(&data[0]);
        image.poke_block(*block, 0, &[0; BLOCK]);
        image.poke_block(*block, 0, &node(levels - level, 84, *to));
    }
    let root = node(levels, 4, nodes[0]);
    let (root, _) = root.as_chunks::<4>();
    let words = root.iter().enumerate().map(|(at, word)| {
        let word = u32::from_le_bytes(*word);
        format!("sif f block[{at}] {word}\n")
    });
    image.debugfs(&format!("{}sif f size {}\n", words.collect::<String>(), 2 * BLOCK));
    image.check();
    (image, free)
}

fn writable(image: &Image) -> Volume {
    let options = VolumeOptions::new().write(true);
    crate::common::beneath::open(&image.location(), &options).unwrap()
}

type Work = fn(&dyn FileSystem);

const WORK: [(&str, Work); 4] = [
    ("rm", |fs| fs.writable().unwrap().unlink(ROOT, b"f").unwrap()),
    ("truncate", |fs| {
        let number = fs.resolve(b"/f", Follow::All).unwrap().number();
        fs.writable().unwrap().truncate(number, 0).unwrap();
        assert_eq!(fs.inode(number).unwrap().stat().blocks, 0);
        fs.writable().unwrap().unlink(ROOT, b"f").unwrap();
    }),
    ("truncate to a block", |fs| {
        let number = fs.resolve(b"/f", Follow::All).unwrap().number();
        fs.writable().unwrap().truncate(number, BLOCK as u64).unwrap();
        fs.writable().unwrap().unlink(ROOT, b"f").unwrap();
    }),
    ("the last close", |fs| {
        let number = fs.resolve(b"/f", Follow::All).unwrap().number();
        let held = fs.hold(number).unwrap();
        fs.writable().unwrap().unlink(ROOT, b"f").unwrap();
        drop(held);
    }),
];

#[test]
fn a_tree_of_any_depth_is_freed() {
    for options in
        ["-t ext4 -b 1024 -O ^metadata_csum", "-t ext4 -b 1024 -O ^metadata_csum,^has_journal"]
    {
        for levels in [5, 6, 7, 32] {
            for (what, work) in WORK {
                let (image, free) = deep(options, levels);
                let volume = writable(&image);
                work(&**volume.fs());
                volume.close().unwrap();
                drop(volume);
                image.check();
                let left = image.ext4().superblock().free_blocks;
                assert_eq!(left, free, "{options}, {levels} levels, {what}");
            }
        }
    }
}

/// Reads and writes of a file fail if its tree is too deep for the kernel. A check reports the file.
#[test]
fn a_tree_that_is_too_deep_is_not_read() {
    let (image, _) = deep("-t ext4 -b 1024 -O ^metadata_csum", 6);
    let report = image.ext4().check(&mut |_| {}).unwrap();
    let said: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(said.len() == 1 && said[0].contains("eh_depth"), "{said:?}");
    let volume = writable(&image);
    let read = volume.read("/f").map(drop).unwrap_err();
    assert_eq!(read.kind(), ErrorKind::Corrupt, "{read}");
    let number = volume.metadata("/f").unwrap().inode;
    for at in [0, BLOCK as u64, 9000] {
        let written =
            volume.fs().writable().unwrap().write(number, ironmap::units::FilePos(at), b"x");
        assert_eq!(written.map(drop).unwrap_err().kind(), ErrorKind::Corrupt, "{at}");
    }
    volume.close().unwrap();
    drop(volume);
    image.check();
    require!([Need::Root]);
    let mount = image.mount("rw");
    assert!(fs::read(mount.dir().join("f")).is_err());
    fs::remove_file(mount.dir().join("f")).unwrap();
    drop(mount);
    image.check();
}
