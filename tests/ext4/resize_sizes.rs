//! Volumes of other sizes hold what they held.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use ironmap::Volume;
use ironmap::device::{Device, Ram};
use ironmap::fs::ext4::{NewSize, ResizeOptions};
use ironmap::fs::{Clock, FileType, Timestamp};

use crate::common::image::{Image, scratch, words};
use crate::crash::fsck::Fsck;

/// Every path with type, blocks and content.
const CLOCK: Clock = Clock::Fixed(Timestamp { seconds: 1_700_000_000, nanoseconds: 0 });

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
        // Maps have more nodes, or fewer, when extents are cut or joined.
        let blocks = if with_blocks { inode.stat().blocks } else { 0 };
        found.insert(path, (inode.file_type(), blocks, hasher.finish()));
    }
    found
}

fn load(image: &Image) -> Ram {
    Ram::from_image(&fs::read(image.path()).unwrap())
}

/// The volume of a device with another size, and its blocks then.
fn resized(device: &Ram, size: NewSize) -> ironmap::Result<(Ram, u64)> {
    let device = device.snapshot();
    let shared: Arc<dyn Device> = Arc::new(device);
    let resized = Volume::resize(&shared, &ResizeOptions::new().size(size), CLOCK)?;
    let mut bytes = vec![0; (resized.blocks * u64::from(resized.block_size)) as usize];
    shared.read_exact_at(&mut bytes, ironmap::units::DevOffset(0))?;
    Ok((Ram::from_image(&bytes), resized.blocks))
}

/// A file of blocks and pointers may have a block past its size: a journal of an old mke2fs, a file by other drivers. Such a block moves too,
/// and so does space that was allocated past the size.
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
            // The length in the journal's superblock, 16 bytes from its start.
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
