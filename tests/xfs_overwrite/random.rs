//! Random overwrites of every kind, on volumes with many options.

use crate::common::image::{Image, scratch};
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::content::assert_read_by_kernel;
use crate::{SEED, SIZE, assert_only_data, filled, for_writing, known, open, require};
use ironmap::bio::Buffer;
use ironmap::dio::DioFlags;
use ironmap::fs::Follow;
use ironmap::{ErrorKind, QueueOptions, VolumeOptions};

const WRITES: usize = 1500;

/// Overwrites all data that may be overwritten. Asserts that writes to other ranges are refused. Then the kernel reads the data.
fn overwritten(options: &[&str], block: u64) {
    let what = format!("{options:?}, seed {SEED:#x}");
    let Some(image) = filled(options, block) else { return };
    let (mut files, before) = (known(&image), std::fs::read(image.path()).unwrap());
    let volume = open(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let rng = &mut Rng::new(SEED);
    let names: Vec<_> = files.keys().cloned().collect();
    let (mut written, mut refused) = (0, 0);
    let handles: Vec<_> = names
        .iter()
        .map(|name| {
            volume
                .open_inode(
                    volume.fs().resolve(name.as_bytes(), Follow::All).unwrap(),
                    for_writing(),
                )
                .unwrap()
        })
        .collect();
    for round in 0..WRITES {
        let at = rng.below(names.len() as u64) as usize;
        let (file, known) = (&handles[at], files.get_mut(&names[at]).unwrap());
        let size = known.content.len() as u64;
        let unit = [1, 512, 4096, block][rng.below(4) as usize];
        let pos = rng.below(size + 2 * block) / unit * unit;
        let longest = [unit, 4 * block, 16 * block][rng.below(3) as usize];
        let len = (1 + rng.below(longest)).next_multiple_of(unit);
        let bytes = rng.bytes(len as usize);
        let flags = [DioFlags::empty(), DioFlags::DSYNC, DioFlags::SYNC][rng.below(3) as usize];
        let mut memory = Buffer::aligned(bytes.len()).unwrap();
        memory.copy_from_slice(&bytes);
        let result = match rng.below(3) {
            0 => file
                .submit_write(&mut queue, memory, pos, flags, 7)
                .map_err(|rejected| rejected.error)
                .and_then(|()| {
                    queue.wait(1).unwrap();
                    queue.pop().unwrap().result
                }),
            1 => file.write_buffer_at(&mut queue, &memory, pos, flags),
            _ => file.write_at_with(&mut queue, &bytes, pos, flags),
        };
        let of = || format!("{what}, write {round}: {len} bytes at {pos} of {}", names[at]);
        if known.takes(pos..pos + len) {
            assert_eq!(result.map_err(|error| error.to_string()), Ok(len as usize), "{}", of());
            known.content[pos as usize..(pos + len) as usize].copy_from_slice(&bytes);
            written += 1;
        } else {
            let error = result.expect_err(&of());
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{}: {error}", of());
            refused += 1;
        }
        // The queue that wrote the data reads them back.
        let from = pos.min(size) as usize;
        let until = (from + len as usize).min(size as usize);
        let mut read = vec![0; until - from];
        assert_eq!(file.read_at(&mut queue, &mut read, from as u64).unwrap(), read.len());
        assert!(read == known.content[from..until], "{}: read back", of());
    }
    assert!(written > WRITES / 4 && refused > WRITES / 20, "{what}: {written}, {refused}");
    handles[0].sync(&mut queue).unwrap();
    drop((handles, queue));
    volume.close().unwrap();
    drop(volume);
    assert_only_data(&image, &before, &files, &what);
    image.check();
    assert_read_by_kernel(&image, &files, &what);
}

macro_rules! variants {
    ($($name:ident: $options:expr, $block:expr;)*) => {
        $(#[test]
        fn $name() {
            require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("filefrag")]);
            overwritten(&$options, $block);
        })*
    };
}

variants! {
    default: [], 4096;
    blocks_of_1k: ["-b", "size=1024"], 1024;
    blocks_of_2k_sectors_of_2k: ["-b", "size=2048", "-s", "size=2048"], 2048;
    sectors_of_4k: ["-s", "size=4096"], 4096;
    all_features: ["-m", "rmapbt=1,reflink=1,finobt=1,bigtime=1,inobtcount=1", "-i", "sparse=1,nrext64=1"], 4096;
    no_features: ["-m", "rmapbt=0,reflink=0,finobt=0,bigtime=0,inobtcount=0", "-i", "sparse=0"], 4096;
    many_groups: ["-d", "agcount=6"], 4096;
    inodes_of_2k: ["-i", "size=2048"], 4096;
    large_stripes: ["-d", "su=16k,sw=2,agcount=4"], 4096;
}

/// Data on a volume of version 4 can be overwritten. Few kernels still mount this version, so mkfs.xfs makes the file from a prototype. The
/// file is contiguous.
#[test]
fn without_checksums() {
    require!([Need::Tool("mkfs.xfs"), Need::Tool("xfs_repair")]);
    let dir = scratch();
    let (content, proto) = (Rng::new(SEED).bytes(1 << 20), dir.path().join("proto"));
    std::fs::write(dir.path().join("content"), &content).unwrap();
    let lines =
        format!("/\n0 0\nd--755 0 0\nfile ---644 0 0 {}/content\n$\n", dir.path().display());
    std::fs::write(&proto, lines).unwrap();
    let options = ["-m", "crc=0", "-p", proto.to_str().unwrap()];
    let image = Image::mkfs_xfs(SIZE, &options).unwrap();
    let mut expected = std::fs::read(image.path()).unwrap();
    let at = expected.chunks(4096).position(|block| *block == content[..4096]).unwrap() * 4096;
    assert!(expected[at..at + content.len()] == content);
    let volume = open(&image).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let inode = volume.fs().resolve(b"file", Follow::All).unwrap();
    let file = volume.open_inode(inode, for_writing()).unwrap();
    let rng = &mut Rng::new(SEED);
    for _ in 0..200 {
        let (pos, len) = (rng.below(1 << 20), 1 + rng.below(10_000));
        let bytes = rng.bytes(len.min((1 << 20) - pos) as usize);
        file.write_all_at(&mut queue, &bytes, pos).unwrap();
        expected[at + pos as usize..at + pos as usize + bytes.len()].copy_from_slice(&bytes);
    }
    drop((file, queue));
    volume.close().unwrap();
    drop(volume);
    assert!(std::fs::read(image.path()).unwrap() == expected, "seed {SEED:#x}");
    image.check();
}

/// On a writable volume, a read-only handle also returns zeros for unwritten ranges.
#[test]
fn unwritten_ranges_read_as_zeros() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("filefrag")]);
    let Some(image) = filled(&[], 4096) else { return };
    let files = known(&image);
    for write in [false, true] {
        let options = VolumeOptions::default().write(write);
        let volume = crate::common::beneath::open(&image.location(), &options).unwrap();
        for (name, known) in &files {
            assert!(volume.read(name).unwrap() == known.content, "{name}, {write}");
        }
    }
}
