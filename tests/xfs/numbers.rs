//! Inode numbers that callers give. The inode B+tree determines which numbers are in use, for the kernel and for ironmap.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use ironmap::fs::Follow;
use ironmap::units::{FilePos, InodeNo};
use ironmap::{ErrorKind, FileOptions, Volume};
use rustix::fs::{FallocateFlags, fallocate};

use crate::common::command::{output, run};
use crate::common::image::{Image, words};
use crate::common::skip::Need;
use crate::common::xfs::Layout;
use crate::require;

/// The inodes in use, as the kernel reports them. For this report, the kernel reads its inode B+trees and no directories.
fn in_use(dir: &Path) -> BTreeSet<u64> {
    let said = run("xfs_io", &["-c".as_ref(), "bulkstat".as_ref(), dir.as_os_str()]);
    let said = String::from_utf8(said).unwrap();
    let numbers = said.lines().filter_map(|line| line.trim().strip_prefix("bs_ino = "));
    numbers.map(|number| number.parse().unwrap()).collect()
}

/// Creates files while only single blocks are free, so that inode chunks have holes. Every third file is removed again.
fn crowd(dir: &Path, block: u64) {
    let file = File::create_new(dir.join("data")).unwrap();
    let free = rustix::fs::statvfs(dir).unwrap().f_bavail * 9 / 10;
    fallocate(&file, FallocateFlags::empty(), 0, free * block).unwrap();
    let rest = File::create_new(dir.join("rest")).unwrap();
    let mut len = free * block;
    while len >= block {
        let end = rest.metadata().unwrap().len();
        if fallocate(&rest, FallocateFlags::empty(), end, len).is_err() {
            len /= 2;
        }
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // A free piece of this size has space for some inodes, but not for a whole chunk.
    for index in 0..(free / 16).min(400) {
        fallocate(&file, punch, index * 16 * block, 8 * block).unwrap();
    }
    let mut names = Vec::new();
    for number in 0..3000 {
        let name = dir.join(format!("name-{number}"));
        if File::create_new(&name).is_err() {
            break;
        }
        names.push(name);
    }
    for name in names.iter().step_by(3) {
        std::fs::remove_file(name).unwrap();
    }
}

/// Tries every number near an inode in use, and a sample of the other numbers. ironmap finds an inode by its number only if the kernel uses
/// the number. It does not find other numbers, even if their positions contain inodes.
#[test]
fn inodes_in_use_are_those_of_the_kernel() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io"), Need::Tool("xfs_db")]);
    let mut holes = 0;
    for options in [
        "-d agcount=1 -m reflink=0 --unsupported",
        "-b size=1024 -d agcount=1 -m reflink=0 --unsupported",
        "-i sparse=0",
        "-d agcount=4 -i size=2048",
    ] {
        let image = Image::mkfs_xfs("320M", &words(options)).unwrap();
        let device = File::options().read(true).write(true).open(image.path()).unwrap();
        let layout = Layout::of(&device);
        {
            let mount = image.mount("rw");
            crowd(mount.dir(), layout.block);
        }
        holes += sparse_chunks(&image);
        let expected = in_use(image.mount("ro,norecovery").dir());
        assert!(expected.len() > 100, "{options}: {} inodes", expected.len());
        let volume = image.open().unwrap();
        let fs = volume.fs();
        let last = expected.last().unwrap() + 200;
        for number in (0..last).filter(|number| !is_far(&expected, *number)) {
            match fs.inode(InodeNo(number)) {
                // ironmap may find an internal inode of the file system, whether the kernel reports it or not.
                Ok(inode) if inode.is_internal() => {}
                Ok(_) => assert!(expected.contains(&number), "{options}: inode {number} is free"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{options}: {error}");
                    assert!(!expected.contains(&number), "{options}: {error}");
                }
            }
        }
        forged(&volume, &device, &layout, &expected, options);
    }
    assert!(holes > 0, "no chunk of inodes has holes");
}

/// Whether an inode number is far from the numbers of all inodes in use. The test tries only a sample of such numbers.
fn is_far(numbers: &BTreeSet<u64>, number: u64) -> bool {
    let near = numbers.range(number.saturating_sub(200)..number + 200).next().is_some();
    !near && !number.is_multiple_of(61)
}

/// The number of inode chunks with holes. The volume has one group, and the root block of its inode B+tree contains the chunks.
fn sparse_chunks(image: &Image) -> usize {
    let path = image.path();
    let commands = ["-r", "-c", "agi 0", "-c", "addr root", "-c", "p"];
    let args: Vec<_> = commands.iter().map(AsRef::as_ref).chain([path.as_os_str()]).collect();
    let said = String::from_utf8(run("xfs_db", &args)).unwrap();
    // A record has the form 3:[1024,0xff00,32,0,0]. The first value is the first inode, and the second is the mask of holes.
    let records = said.split_whitespace().filter_map(|word| word.split_once(":["));
    records.filter(|(_, record)| record.split(',').nth(1).is_some_and(|holes| holes != "0")).count()
}

/// Writes file content that looks like inodes: it has the UUID of the volume, the inode number of its position, and a valid checksum.
/// ironmap does not find these inodes.
fn forged(volume: &Volume, device: &File, layout: &Layout, in_use: &BTreeSet<u64>, options: &str) {
    let fs = volume.fs();
    let name = *in_use
        .iter()
        .find(|number| {
            let inode = fs.inode(InodeNo(**number)).unwrap();
            inode.size() == 0 && inode.file_type() == ironmap::fs::FileType::Regular
        })
        .unwrap();
    let like = layout.read(device, name);
    let file = fs.resolve(b"data", Follow::All).unwrap();
    let mut numbers = Vec::new();
    for iomap in volume.open_inode(file, FileOptions::new()).unwrap().mappings().take(300) {
        let iomap = iomap.unwrap();
        if iomap.kind != ironmap::iomap::IomapType::Hole {
            numbers.extend(layout.numbers_in(iomap.addr_of(iomap.pos).0));
            numbers.extend(layout.numbers_in(iomap.addr_of(FilePos(iomap.end().0 - 1)).0));
        }
    }
    assert!(numbers.len() > 100, "{options}");
    numbers.iter().for_each(|number| layout.forge(device, &like, *number));
    for number in numbers.into_iter().map(InodeNo) {
        // Only one fact distinguishes the forged inode from a real one: no inode B+tree contains its number.
        let known = fs.known_inode(number).unwrap();
        assert_eq!(known.number(), number, "{options}");
        let found = [
            fs.inode(number).err(),
            fs.resolve_at(number, b"", Follow::All).err(),
            volume.open_inode(number, FileOptions::new()).err(),
        ];
        for error in found {
            let error = error.unwrap_or_else(|| panic!("{options}: forged inode {number}"));
            assert_eq!(error.kind(), ErrorKind::NotFound, "{options}: {error}");
        }
    }
}

/// A damaged inode B+tree does not prevent access to files by name, as in the kernel. Access by inode number returns an error.
#[test]
fn a_damaged_tree_of_inodes_hides_no_name() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    // For the root directory, the kernel needs the B+tree of the first group. So the test damages the B+tree of another group.
    let options = "-s size=512 -d agcount=4";
    let image = Image::mkfs_xfs("320M", &words(options)).unwrap();
    {
        let mount = image.mount("rw");
        // XFS places each new directory in another group.
        for name in ["other", "dir"] {
            let dir = mount.dir().join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("file"), "content").unwrap();
        }
    }
    let number = image.mount("ro,norecovery").dir().join("dir/file").metadata().unwrap().ino();
    let device = File::options().read(true).write(true).open(image.path()).unwrap();
    let layout = Layout::of(&device);
    let group = layout.group_of(number);
    assert!(group > 0, "all directories are in the first group");
    let mut root = [0; 4];
    // The field `agi_root` in the third sector.
    device.read_exact_at(&mut root, group + 2 * 512 + 20).unwrap();
    let at = group + u64::from(u32::from_be_bytes(root)) * layout.block + 200;
    device.write_all_at(&[0x55], at).unwrap();
    let number = {
        let mount = image.mount("ro,norecovery");
        let single = format!("bulkstat_single {number}");
        let said = output("xfs_io", &["-c".as_ref(), single.as_ref(), mount.dir().as_os_str()]);
        assert!(!String::from_utf8_lossy(&said.stdout).contains("bs_ino"), "the kernel finds it");
        // The call of `metadata` loads the inode into the kernel's memory. So the kernel does not read the B+tree for this inode.
        mount.dir().join("dir/file").metadata().unwrap();
        InodeNo(number)
    };
    let volume = image.open().unwrap();
    let fs = volume.fs();
    let inode = fs.resolve(b"dir/file", Follow::All).unwrap();
    assert_eq!(inode.number(), number);
    volume.open_inode(inode, FileOptions::new()).unwrap();
    assert_eq!(fs.known_inode(number).unwrap().number(), number);
    let error = fs.inode(number).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("crc"), "{error}");
}
