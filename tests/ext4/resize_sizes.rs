//! The minimum size of a volume. A resize to the printed minimum succeeds, and no data are lost.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use ironmap::device::{Device, Ram};
use ironmap::fs::ext4::{NewSize, ResizeOptions};
use ironmap::fs::{Clock, FileType, Timestamp};
use ironmap::{Volume, VolumeOptions};

use crate::common::image::{Image, scratch, words};
use crate::common::rng::Rng;
use crate::crash::fsck::Fsck;

const SEED: u64 = 0x53_495A_4553;
const CLOCK: Clock = Clock::Fixed(Timestamp { seconds: 1_700_000_000, nanoseconds: 0 });

/// Each layout, with the minimum size in MiB of a volume with this layout.
const LAYOUTS: &[(&str, u64)] = &[
    ("-t ext4 -b 1024", 32),
    ("-t ext4 -b 4096", 64),
    ("-t ext4 -b 1024 -O ^flex_bg", 32),
    ("-t ext4 -b 1024 -O ^has_journal -g 1024", 28),
    ("-t ext4 -b 4096 -O bigalloc -C 16384", 128),
    ("-t ext4 -b 1024 -J size=1,location=20M -g 2048", 32),
    ("-t ext3 -b 1024 -J size=1 -g 2048", 32),
    ("-t ext4 -b 1024 -O sparse_super2,^resize_inode -N 4000", 32),
];

/// A volume with fragmented files and small files. In a fragmented file, holes separate the blocks of data, so each block is a separate
/// extent. Removed files leave free space before these files.
fn filled(options: &str, mib: u64, rng: &mut Rng) -> Image {
    let source = scratch();
    let root = source.path();
    let front = (mib / 4 + rng.below(mib / 4)) << 20;
    fs::write(root.join("a-front"), vec![0xA5; front as usize]).unwrap();
    for number in 0..1 + rng.below(2) {
        let file = File::create(root.join(format!("b-fragments-{number}"))).unwrap();
        let step = 8192 << rng.below(2);
        for at in 0..1500 + rng.below(400) {
            file.write_all_at(&[at as u8 | 1; 1024], at * step).unwrap();
        }
    }
    for dir in 0..rng.below(12) {
        let dir = root.join(format!("c-{dir}"));
        fs::create_dir(&dir).unwrap();
        for file in 0..rng.below(20) {
            let len = rng.below(20_000) as usize;
            fs::write(dir.join(format!("file-{file}")), rng.bytes(len)).unwrap();
        }
    }
    let mut args = words(options);
    args.push("-q");
    let image = Image::populated(&format!("{mib}M"), &args, root);
    let volume = VolumeOptions::new().write(true).open(image.location()).unwrap();
    volume.remove_file("/a-front").unwrap();
    volume.close().unwrap();
    image.repair();
    image
}

/// Every path with its type, its number of blocks and a hash of its content.
fn tree(device: &Ram, with_blocks: bool) -> BTreeMap<String, (FileType, u64, u64)> {
    let volume = Volume::on(Arc::new(device.snapshot())).unwrap();
    let (mut found, mut pending) =
        (BTreeMap::new(), vec![(ironmap::fs::ext4::ROOT, String::new())]);
    while let Some((number, path)) = pending.pop() {
        let inode = volume.fs().inode(number).unwrap();
        let mut hasher = DefaultHasher::new();
        if inode.file_type() == FileType::Regular {
            volume.read(&path).unwrap().hash(&mut hasher);
        } else if inode.file_type() == FileType::Directory {
            for entry in inode.read_dir().unwrap().map(Result::unwrap) {
                let name = String::from_utf8(entry.name).unwrap();
                if ![".", ".."].contains(&&*name) {
                    pending.push((entry.inode, format!("{path}/{name}")));
                }
            }
        }
        // When extents are split or joined, the number of map nodes changes. So the numbers of blocks are compared only on request.
        let blocks = if with_blocks { inode.stat().blocks } else { 0 };
        found.insert(path, (inode.file_type(), blocks, hasher.finish()));
    }
    found
}

fn load(image: &Image) -> Ram {
    Ram::from_image(&fs::read(image.path()).unwrap())
}

/// The device after a resize, and the volume's number of blocks.
fn resized(device: &Ram, size: NewSize) -> ironmap::Result<(Ram, u64)> {
    let device = device.snapshot();
    let shared: Arc<dyn Device> = Arc::new(device);
    let resized = ironmap::tools::resize(&shared, &ResizeOptions::new().size(size), CLOCK)?;
    let mut bytes = vec![0; (resized.blocks * u64::from(resized.block_size)) as usize];
    shared.read_exact_at(&mut bytes, ironmap::units::DevOffset(0))?;
    Ok((Ram::from_image(&bytes), resized.blocks))
}

#[test]
fn the_size_that_is_printed_is_reached() {
    let (mut rng, fsck) = (Rng::new(SEED), Fsck::new());
    for (options, mib) in LAYOUTS {
        let image = filled(options, mib + rng.below(8), &mut rng);
        let mut device = load(&image);
        let before = tree(&device, false);
        for round in 0..2 {
            let what = format!("{options}, round {round} of seed {SEED:#x}");
            let shared: Arc<dyn Device> = Arc::new(device.snapshot());
            let said = ironmap::tools::smallest_size(&shared).unwrap();
            let unit = u64::from(said.block_size);
            let between = said.blocks + rng.below(said.before - said.blocks);
            for (how, size) in [
                ("smallest", NewSize::Minimum),
                ("printed", NewSize::Bytes(said.blocks * unit)),
                ("between", NewSize::Bytes(between * unit)),
            ] {
                let (small, blocks) =
                    resized(&device, size).unwrap_or_else(|error| panic!("{what}: {how}: {error}"));
                fsck.clean(&small).unwrap_or_else(|said| panic!("{what}: {how}: {said}"));
                assert!(tree(&small, false) == before, "{what}: {how}: the tree");
                if how == "between" {
                    assert!((said.blocks..=between).contains(&blocks), "{what}: {blocks} blocks");
                    // The next round begins with the shrunk volume.
                    device = small;
                } else {
                    assert_eq!(blocks, said.blocks, "{what}: {how}");
                }
            }
        }
    }
}

/// A resize also moves blocks past the size of a file. Examples are the extra block of a journal that an old mke2fs made, a block that
/// another driver left, and space that was preallocated.
#[test]
fn blocks_past_the_size_move() {
    let fsck = Fsck::new();
    let past = |image: &Image, path: &str, size: u64| {
        image.debugfs(&format!("sif {path} size {size}"));
    };
    let tail = |image: &Image| {
        past(image, "/tail", 12 * 1024);
        past(image, "/deep", 300 * 1024);
    };
    type Change<'a> = &'a dyn Fn(&Image);
    let cases: [(&str, Change<'_>); 4] = [
        ("-t ext2 -b 1024 -g 2048", &tail),
        ("-t ext3 -b 1024 -g 2048 -J size=1,location=10M", &tail),
        ("-t ext3 -b 1024 -g 2048 -J size=2", &|image| {
            past(image, "<8>", 2047 * 1024);
            // The length in the journal's superblock is at byte 16.
            image.poke("<8>", 0, 16, &2047_u32.to_be_bytes());
        }),
        ("-t ext4 -b 1024 -g 2048", &|image| {
            image.debugfs("fallocate /tail 40 60");
        }),
    ];
    for (options, change) in cases {
        let source = scratch();
        let write = |name: &str, len: usize| fs::write(source.path().join(name), vec![7; len]);
        write("a-front", 6 << 20).unwrap();
        write("deep", 301 * 1024).unwrap();
        write("tail", 13 * 1024).unwrap();
        let mut args = words(options);
        args.push("-q");
        let image = Image::populated("14M", &args, source.path());
        change(&image);
        image.debugfs("rm /a-front");
        fsck.clean(&load(&image)).unwrap_or_else(|said| panic!("{options}: before: {said}"));
        let device = load(&image);
        let before = tree(&device, true);
        for size in [NewSize::Minimum, NewSize::Bytes(9 << 20)] {
            let (small, _) = resized(&device, size).unwrap();
            fsck.clean(&small).unwrap_or_else(|said| panic!("{options}: {size:?}: {said}"));
            assert!(tree(&small, true) == before, "{options}: {size:?}");
        }
    }
}

/// If one resize step cannot reach the requested size, ironmap tries in memory whether several steps can reach it. If no sequence of steps
/// reaches the size, nothing is written to the device.
#[test]
fn nothing_is_written_for_a_size_that_cannot_be() {
    let image = filled("-t ext4 -b 1024", 48, &mut Rng::new(SEED));
    let device = load(&image);
    let shared: Arc<dyn Device> = Arc::new(device.snapshot());
    let said = ironmap::tools::smallest_size(&shared).unwrap();
    for less in [1, said.blocks / 2] {
        let size = NewSize::Bytes((said.blocks - less) * 1024);
        let error =
            ironmap::tools::resize(&shared, &ResizeOptions::new().size(size), CLOCK).unwrap_err();
        assert!(error.to_string().contains(&format!("{} blocks (", said.blocks)), "{error}");
    }
    let mut bytes = vec![0; device.size() as usize];
    shared.read_exact_at(&mut bytes, ironmap::units::DevOffset(0)).unwrap();
    assert!(bytes == fs::read(Path::new(&image.path())).unwrap());
}
