//! A map with many extents, and a directory with many names. The test prints how long the kernel and ironmap take.
//!
//! `IRONMAP_XFS_SCALE` is the number of extents and of names. A run with 1000000 takes some minutes and prints meaningful times.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use ironmap::fs::Follow;
use ironmap::iomap::{IomapType, MapFile};
use ironmap::units::FilePos;
use ironmap::{FileOptions, QueueOptions};
use rustix::fs::{FallocateFlags, fallocate};

use crate::common::image::Image;
use crate::common::kernel;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::{FOR_READING, SEED, require};

/// The default number of extents and names.
const COUNT: u64 = 30_000;
/// How many positions and names are looked up.
const LOOKUPS: usize = 10_000;
const BLOCK: u64 = 4096;

fn count() -> u64 {
    std::env::var("IRONMAP_XFS_SCALE").map_or(COUNT, |count| count.parse().expect("a number"))
}

/// Runs a part of a test, and prints its duration.
pub(crate) fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    println!("{what}: {:.2} ms", start.elapsed().as_secs_f64() * 1e3);
    result
}

#[test]
fn a_file_of_many_extents() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("filefrag")]);
    let count = count();
    // The blocks stay unwritten, so the image file is small.
    let size = format!("{}M", 512 + count * 2 * BLOCK / (1 << 20));
    let image = Image::mkfs_xfs(&size, &[]).unwrap();
    {
        let mount = image.mount("rw");
        let file = File::create_new(mount.dir().join("file")).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 2 * count * BLOCK).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for index in 0..count {
            fallocate(&file, punch, 2 * index * BLOCK, BLOCK).unwrap();
        }
    }
    let expected = {
        let mount = image.mount(FOR_READING);
        let path = mount.dir().join("file");
        let maps = timed("kernel: FIEMAP of all, by filefrag", || {
            kernel::maps(std::slice::from_ref(&path))
        });
        let file = File::open(path).unwrap();
        let mut buf = vec![0; BLOCK as usize];
        let rng = &mut Rng::new(SEED);
        timed("kernel: blocks read by random positions", || {
            for _ in 0..LOOKUPS {
                let pos = rng.below(2 * count) * BLOCK;
                rustix::io::pread(&file, &mut buf, pos).unwrap();
            }
        });
        maps.into_iter().next().unwrap()
    };
    assert!(expected.len() as u64 >= count);
    let volume = timed("ironmap: open", || image.open().unwrap());
    let inode = timed("ironmap: path", || volume.fs().resolve(b"file", Follow::All).unwrap());
    let first = timed("ironmap: first mapping", || inode.map(FilePos(0), 1).unwrap());
    assert_eq!(first.kind, IomapType::Hole);
    let rng = &mut Rng::new(SEED);
    timed("ironmap: mappings of random positions", || {
        for _ in 0..LOOKUPS {
            inode.map(FilePos(rng.below(2 * count) * BLOCK), 1).unwrap();
        }
    });
    let file = volume.open_inode(inode, FileOptions::new()).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let mut buf = vec![0xA5; BLOCK as usize];
    let rng = &mut Rng::new(SEED);
    timed("ironmap: blocks read by random positions", || {
        for _ in 0..LOOKUPS {
            let pos = FilePos(rng.below(2 * count) * BLOCK);
            assert_eq!(file.read_at(&mut queue, &mut buf, pos).unwrap() as u64, BLOCK);
        }
    });
    let mapped = timed("ironmap: all mappings", || {
        let mappings = file.mappings().map(|iomap| iomap.unwrap());
        mappings.filter(|iomap| iomap.kind != IomapType::Hole).collect::<Vec<_>>()
    });
    assert_eq!(mapped.len(), expected.len());
    for (iomap, piece) in mapped.iter().zip(&expected) {
        let seen = (iomap.pos.0, iomap.len, iomap.addr.0, iomap.kind == IomapType::Unwritten);
        assert_eq!(seen, (piece.pos, piece.len, piece.addr, piece.unwritten), "seed {SEED:#x}");
    }
}

#[test]
fn a_directory_of_many_names() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    let count = count();
    let size = format!("{}M", 512 + count * 128 / (1 << 20));
    let image = Image::mkfs_xfs(&size, &[]).unwrap();
    let name = |number: u64| format!("name-{number:09}-{:x}", number.wrapping_mul(0x9E37_79B9));
    {
        let mount = image.mount("rw");
        let dir = mount.dir().join("dir");
        std::fs::create_dir(&dir).unwrap();
        let mut file = dir.join("first");
        for number in 0..count {
            let path = dir.join(name(number));
            // Some inodes have many names each.
            if number.is_multiple_of(1000) {
                File::create_new(&path).unwrap();
                file = path;
            } else {
                std::fs::hard_link(&file, path).unwrap();
            }
        }
    }
    let rng = &mut Rng::new(SEED);
    let wanted: Vec<_> = (0..LOOKUPS).map(|_| name(rng.below(count))).collect();
    let numbers: Vec<u64> = {
        let mount = image.mount(FOR_READING);
        let dir = mount.dir().join("dir");
        let listed = timed("kernel: listing", || std::fs::read_dir(&dir).unwrap().count());
        assert_eq!(listed as u64, count);
        drop(mount);
        let mount = image.mount(FOR_READING);
        let dir = mount.dir().join("dir");
        timed("kernel: lookups", || {
            wanted.iter().map(|name| dir.join(name).metadata().unwrap().ino()).collect()
        })
    };
    let volume = timed("ironmap: open", || image.open().unwrap());
    let dir = timed("ironmap: path", || volume.fs().resolve(b"dir", Follow::All).unwrap());
    let found: Vec<_> = timed("ironmap: lookups", || {
        let lookup = |name: &String| dir.lookup(name.as_bytes()).unwrap().number().0;
        wanted.iter().map(lookup).collect()
    });
    assert_eq!(found, numbers, "seed {SEED:#x}");
    let volume = image.open().unwrap();
    let dir = volume.fs().resolve(b"dir", Follow::All).unwrap();
    let listed = timed("ironmap: listing", || {
        dir.read_dir().unwrap().map(|entry| entry.unwrap().name).collect::<Vec<_>>()
    });
    let listed: BTreeSet<_> = listed.into_iter().filter(|name| name[0] != b'.').collect();
    let expected: BTreeSet<_> = (0..count).map(|number| name(number).into_bytes()).collect();
    assert!(listed == expected, "{} of {count} names", listed.len());
    timed("ironmap: lookups of numbers", || {
        for number in &numbers {
            volume.fs().inode(ironmap::units::InodeNo(*number)).unwrap();
        }
    });
    timed("ironmap: lookups of known numbers", || {
        for number in &numbers {
            volume.fs().known_inode(ironmap::units::InodeNo(*number)).unwrap();
        }
    });
}
