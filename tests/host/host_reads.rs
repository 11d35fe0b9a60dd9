//! For files of mounted file systems, reads from the device (raw reads) return the same bytes as reads by the kernel. The tests cover many
//! kinds of file systems, and files with many kinds of extents.

use crate::require;
use std::fs::{File as OsFile, OpenOptions as OsOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::common::calls::{Both, Call, read};
use crate::common::command::run;
use crate::common::mounted::Mounted;
use crate::common::rng::Rng;
use crate::common::skip::{Need, note_part};
use ironmap::device::Engine;
use ironmap::dio::DioFlags;
use ironmap::{Host, HostOptions, Queue, QueueOptions};
use rustix::fs::FallocateFlags;

const SEED: u64 = 0x4ea_d500;
const ROUNDS: usize = 120;
/// A number of extents that does not fit into the result of one FIEMAP call.
const EXTENTS: u64 = 600;
const NONE: DioFlags = DioFlags::empty();

fn host(engine: Engine) -> (Host, Queue) {
    let host = Host::new(&HostOptions::new().engine(engine)).unwrap();
    let queue = host.queue(&QueueOptions::default()).unwrap();
    (host, queue)
}

/// Creates files of many kinds, without a sync.
fn files(mounted: &Mounted) -> Vec<PathBuf> {
    let rng = &mut Rng::new(SEED);
    let create = |name| OsFile::create(mounted.path(name)).unwrap();
    create("solid").write_all_at(&rng.bytes(700_001), 0).unwrap();
    create("empty");
    create("hole").set_len(100_000).unwrap();
    create("byte").write_all_at(&rng.bytes(1), 0).unwrap();
    let many = create("many extents");
    let block = rustix::fs::fstatfs(&many).unwrap().f_bsize as u64;
    for index in 0..EXTENTS {
        many.write_all_at(&rng.bytes(block as usize), 2 * index * block).unwrap();
    }
    let mut names = vec!["solid", "empty", "hole", "byte", "many extents"];
    let unwritten = create("unwritten");
    let reserve = |flags, len| rustix::fs::fallocate(&unwritten, flags, 0, len);
    if reserve(FallocateFlags::empty(), 2 * EXTENTS * block).is_ok() {
        for index in 0..EXTENTS / 3 {
            unwritten.write_all_at(&rng.bytes(100), 6 * index * block).unwrap();
        }
        // This call of fallocate also preallocates space past the end of the file.
        reserve(FallocateFlags::KEEP_SIZE, 3 * EXTENTS * block).unwrap();
        names.push("unwritten");
    }
    names.into_iter().map(|name| mounted.path(name)).collect()
}

fn check(mounted: &Mounted, what: &str) {
    for path in files(mounted) {
        for engine in [Engine::Psync, Engine::IoUring] {
            let (host, mut queue) = host(engine);
            let both = Both::open(&host, &path);
            let what = format!("{what}, {}, {engine}", path.display());
            assert_eq!(both.served(), "raw", "{what}: {:?}", both.any.host());
            if path.ends_with("many extents") {
                // XFS preallocates space between these blocks.
                assert!(both.any.host().unwrap().extents >= Some(EXTENTS as usize), "{what}");
            }
            both.check(&mut queue, &std::fs::read(&path).unwrap(), SEED, ROUNDS);
            assert_eq!((queue.stats().kernel_served, queue.stats().cut), (0, 0), "{what}");
            assert!(host.events().take().0.is_empty(), "{what}");
        }
    }
}

#[test]
fn ext4_and_its_elders() {
    require!([Need::Root, Need::Tool("losetup")]);
    for mkfs in [
        "mke2fs -t ext4 -b 1024",
        "mke2fs -t ext4 -b 2048",
        "mke2fs -t ext4 -b 4096",
        "mke2fs -t ext4 -b 4096 -O bigalloc -C 65536",
        "mke2fs -t ext4 -b 1024 -O ^extent,^64bit",
        "mke2fs -t ext3 -b 4096",
        "mke2fs -t ext2 -b 1024",
        "mke2fs -t ext2 -b 4096",
    ] {
        check(&Mounted::new(mkfs, 64, "noatime"), mkfs);
    }
}

#[test]
fn xfs_of_all_block_sizes() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs")]);
    for options in ["-m crc=0 -b size=512", "-b size=1024", "-b size=4096", "-b size=16384"] {
        let mkfs = format!("mkfs.xfs {options} -m reflink=0");
        match Mounted::try_new(512, &mkfs, 320, "noatime") {
            Ok(mounted) => check(&mounted, &mkfs),
            Err(refusal) => note_part("xfs_of_all_block_sizes", options, &refusal),
        }
    }
}

/// A file system is on a partition. Its files are read from the whole disk, at the offset of the partition.
#[test]
fn a_partition() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs"), Need::Tool("addpart")]);
    for (mkfs, mib) in [("mke2fs -t ext4 -b 4096", 64), ("mkfs.xfs -m reflink=0", 320)] {
        check(&Mounted::on_partition(mkfs, mib, "noatime"), mkfs);
    }
}

#[test]
fn devices_with_blocks_of_4096_bytes() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs")]);
    for (mkfs, mib) in [("mke2fs -t ext4 -b 4096", 64), ("mkfs.xfs -m reflink=0", 320)] {
        check(&Mounted::on_sectors(4096, mkfs, mib, "noatime"), mkfs);
    }
}

/// A file of a mounted file system contains a second file system, which is mounted through a loop device. ironmap reads the files of the
/// second file system from the loop device. It reads the file that contains them through the kernel, because the loop device has this file
/// open for writing.
#[test]
fn a_file_system_in_a_host_file() {
    require!([Need::Root, Need::Tool("losetup")]);
    let outer = Mounted::ext4();
    let inner = Mounted::within(outer.dir(), "mke2fs -t ext4 -b 4096", 64, "noatime");
    check(&inner, "inner");
    let (host, mut queue) = host(Engine::Auto);
    let file = Both::open(&host, &inner.image());
    assert_eq!(file.served(), "writers");
    run("sync", &["-f".as_ref(), inner.dir().as_os_str()]);
    file.check(&mut queue, &std::fs::read(inner.image()).unwrap(), SEED, ROUNDS);
}

/// Data that a program has just written have no blocks yet. When ironmap opens the file, the kernel writes the data back, so ironmap can
/// read the file from the device.
#[test]
fn a_file_is_read_raw_right_after_it_was_written() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("filefrag")]);
    let mounted = Mounted::ext4();
    let content = Rng::new(SEED).bytes(1 << 20);
    let path = mounted.write("file", &content);
    let map = String::from_utf8(run("filefrag", &["-v".as_ref(), path.as_os_str()])).unwrap();
    assert!(map.contains("delalloc"), "the file is no proof: {map}");
    let (host, mut queue) = host(Engine::Auto);
    let both = Both::open(&host, &path);
    assert_eq!(both.served(), "raw");
    both.check(&mut queue, &content, SEED, ROUNDS);
    assert_eq!(queue.stats().kernel_served, 0);
}

/// While a writer extends and truncates the file, each read returns the present content without an error. This includes reads that were
/// submitted before the writer changed the file.
#[test]
fn the_size_follows_a_writer() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs")]);
    for mounted in [Mounted::ext4(), Mounted::xfs()] {
        for engine in [Engine::Psync, Engine::IoUring] {
            let rng = &mut Rng::new(SEED);
            let mut content = rng.bytes(300_000);
            let path = mounted.write("file", &content);
            let (host, mut queue) = host(engine);
            let both = Both::open(&host, &path);
            assert_eq!(both.served(), "raw");
            let writer = OsOptions::new().write(true).open(&path).unwrap();
            for round in 0..20 {
                if round % 2 == 0 {
                    let more = rng.below(200_000) as usize;
                    let more = rng.bytes(more);
                    writer.write_all_at(&more, content.len() as u64).unwrap();
                    content.extend(more);
                } else {
                    content.truncate(rng.below(content.len() as u64) as usize);
                    writer.set_len(content.len() as u64).unwrap();
                }
                assert_eq!(both.any.size(), content.len() as u64);
                both.check(&mut queue, &content, SEED + round, 40);
            }
            assert!(["broken", "writers"].contains(&both.served()));
            drop(writer);
            // Reads the file until ironmap has acquired the lease again.
            while both.any.host().unwrap().refusal.is_some() {
                read(Call::Flat, &mut queue, &both.any, (0, 0, 4096), &[], NONE).0.unwrap();
            }
            assert_eq!(both.any.size(), content.len() as u64);
            read(Call::Flat, &mut queue, &both.any, (0, 0, 4096), &[], NONE).0.unwrap();
            assert!(host.events().take().0.is_empty(), "nothing failed");
        }
    }
}

/// A read is submitted, and the file is truncated before the kernel carries the read out. The read then returns fewer bytes than requested.
#[test]
fn a_truncate_in_flight_makes_a_short_read() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let content = Rng::new(SEED).bytes(64 * 4096);
    for len in [4096, 16 * 4096] {
        for left in [0, 1000, 20_000] {
            let path = mounted.write("file", &content);
            let (host, mut queue) = host(Engine::IoUring);
            let both = Both::open(&host, &path);
            let writer = OsOptions::new().write(true).open(&path).unwrap();
            let buffer = ironmap::bio::Buffer::aligned(len).unwrap();
            let start = ironmap::units::FilePos(0);
            assert!(both.any.submit_read(&mut queue, buffer, start, NONE, 1).is_ok());
            writer.set_len(left).unwrap();
            queue.wait(1).unwrap();
            let done = queue.pop().unwrap();
            let count = done.result.unwrap();
            assert_eq!(count, len.min(left as usize), "{len} of {left}");
            assert!(done.memory.buffers()[0][..count] == content[..count]);
            assert_eq!(host.events().take().0, [], "{len} of {left}: no error");
        }
    }
}
