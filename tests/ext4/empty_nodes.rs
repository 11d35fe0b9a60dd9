//! Pointer blocks that contain only zeros. Linux leaves such blocks in the map after it punches a hole, and e2fsck accepts them. When the
//! file is removed, truncated or punched, ironmap frees these blocks, as Linux does. e2fsck finds no leaked block.

use crate::require;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::common::image::{Image, words};
use crate::common::skip::Need;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Fallocate, FileSystem, Follow};
use ironmap::units::FilePos;
use ironmap::{Volume, VolumeOptions};

const BLOCK: u64 = 1024;
/// The number of pointers in a block.
const FAN_OUT: u64 = BLOCK / 4;

const POINTERS: &str = "-t ext4 -b 1024 -I 256 -O ^extents,^64bit,^flex_bg,^metadata_csum";

/// The first file block of each region. One, two and three levels of pointer blocks map the regions.
const REGIONS: [u64; 3] = [12, 12 + FAN_OUT, 12 + FAN_OUT + FAN_OUT * FAN_OUT];

fn writable(image: &Image) -> Volume {
    let options = VolumeOptions::new().write(true);
    crate::common::beneath::open(&image.location(), &options).unwrap()
}

/// Changes the volume, closes it, and checks it with e2fsck.
fn change(image: &Image, work: impl FnOnce(&Arc<dyn FileSystem>)) {
    let volume = writable(image);
    work(volume.fs());
    volume.close().unwrap();
    drop(volume);
    image.check();
}

/// Writes a file with data in these blocks.
fn write_sparse(image: &Image, name: &str, blocks: &[u64]) {
    let path = image.beside("sparse");
    let file = std::fs::File::create(&path).unwrap();
    for block in blocks {
        file.write_all_at(&[7; BLOCK as usize], block * BLOCK).unwrap();
    }
    image.debugfs(&format!("write {} {name}\n", path.display()));
}

/// The pointer blocks of a file, with debugfs's names: `(IND)`, `(DIND)`, `(TIND)`.
fn nodes(image: &Image, name: &str) -> Vec<(String, u64)> {
    let said = image.ask_debugfs(&format!("stat {name}\n"));
    let (_, blocks) = said.split_once("BLOCKS:").unwrap();
    let parts = blocks.split(|c: char| c.is_whitespace() || c == ',');
    let pairs = parts.filter_map(|part| part.split_once("):"));
    let named = pairs.filter(|(name, _)| name.contains("IND"));
    named.map(|(name, block)| (name[1..].to_owned(), block.parse().unwrap())).collect()
}

/// The operation that the test runs on the file whose map has an empty pointer block.
#[derive(Clone, Copy, Debug)]
enum Work {
    Remove,
    Empty,
    Shorten,
    PunchAll,
    PunchThere,
}

const WORK: [Work; 5] =
    [Work::Remove, Work::Empty, Work::Shorten, Work::PunchAll, Work::PunchThere];

impl Work {
    /// Runs the operation. `first` is the first file block in the range of the empty pointer block.
    fn on(self, fs: &Arc<dyn FileSystem>, first: u64) {
        let file = fs.resolve(b"/f", Follow::All).unwrap();
        let (number, size) = (file.number(), file.size());
        let punch = |from: u64, len| {
            fs.writable().unwrap().fallocate(number, Fallocate::Punch, FilePos(from), len)
        };
        match self {
            Self::Remove => fs.writable().unwrap().unlink(ROOT, b"f").unwrap(),
            Self::Empty => fs.writable().unwrap().truncate(number, 0).unwrap(),
            Self::Shorten => fs.writable().unwrap().truncate(number, BLOCK).unwrap(),
            Self::PunchAll => punch(0, size).unwrap(),
            Self::PunchThere => punch(first * BLOCK, BLOCK).unwrap(),
        }
        drop(file);
        // If the operation did not remove the file, the test removes it now. The removal frees the blocks that remain.
        if let Ok(file) = fs.resolve(b"/f", Follow::All) {
            if matches!(self, Self::PunchAll | Self::Empty) {
                assert_eq!(file.stat().blocks, 0, "{self:?}");
            }
            if matches!(self, Self::PunchThere) {
                assert_eq!(file.stat().blocks, 2, "{self:?}: the first block of the file");
            }
            fs.writable().unwrap().unlink(ROOT, b"f").unwrap();
        }
    }
}

/// The path to a data block has one, two or three levels of pointer blocks. The test fills one of these pointer blocks with zeros. Each
/// operation frees this block.
#[test]
fn pointer_blocks_of_zeros_are_freed() {
    for (levels, first) in (1..).zip(REGIONS) {
        for (empty, work) in (0..levels).flat_map(|empty| WORK.map(|work| (empty, work))) {
            let image = Image::mke2fs("16M", &words(POINTERS));
            write_sparse(&image, "f", &[0, first]);
            let nodes = nodes(&image, "f");
            assert_eq!(nodes.len(), levels, "{nodes:?}");
            image.poke_block(nodes[empty].1, 0, &[0; BLOCK as usize]);
            // e2fsck frees the blocks below the zeroed pointer block and corrects the counts.
            image.repair();
            image.check();
            let left = self::nodes(&image, "f").len();
            assert_eq!(left, empty + 1, "e2fsck leaves the empty block where it is");
            change(&image, |fs| work.on(fs, first));
        }
    }
}

/// After the kernel has punched a range, pointer blocks of zeros remain in the map. Later operations on the file leak no block.
#[test]
fn ranges_that_the_kernel_punched_are_freed() {
    require!([Need::Root]);
    for work in WORK {
        let image = Image::mke2fs("16M", &words(POINTERS));
        let mount = image.mount("rw");
        let path = mount.dir().join("f");
        let file = std::fs::File::create(&path).unwrap();
        for region in [0, REGIONS[0] + 3, REGIONS[1] + 3, REGIONS[2] + 3] {
            file.write_all_at(&[7; BLOCK as usize], region * BLOCK).unwrap();
        }
        file.sync_all().unwrap();
        for region in REGIONS {
            let (at, len) = ((region + 2) * BLOCK, 3 * BLOCK);
            let flags =
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, flags, at, len).unwrap();
        }
        drop((file, mount));
        image.check();
        change(&image, |fs| match work {
            Work::PunchThere => fs.writable().unwrap().unlink(ROOT, b"f").unwrap(),
            _ => work.on(fs, REGIONS[0]),
        });
    }
}

/// A hashed directory can also have a pointer block of zeros. The removal of the directory frees this block.
#[test]
fn a_directory_with_a_pointer_block_of_zeros_is_freed() {
    let image = Image::mke2fs("16M", &words(POINTERS));
    let empty = 5000;
    image.poke_block(empty, 0, &[0; BLOCK as usize]);
    image.debugfs(&format!("mkdir f\nsetb {empty}\nsif f block[IND] {empty}\n"));
    image.repair();
    image.check();
    assert_eq!(nodes(&image, "f"), [("IND".to_owned(), empty)], "e2fsck leaves it");
    change(&image, |fs| fs.writable().unwrap().rmdir(ROOT, b"f").unwrap());
}
