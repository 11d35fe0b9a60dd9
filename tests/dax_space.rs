//! Tests volumes in image files that are mapped into memory, on full file systems. A store to a hole of such an image returns an error.
//! Without protection, the kernel would end the program with SIGBUS. On tmpfs, a load from a hole needs the same protection. Each case runs
//! in a separate process.

mod common;

use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use common::again::{again, name_of, role};
use common::command::{output, run};
use common::full_disk::{Tmpfs, fill};
use common::image::{Image, scratch};
use common::mounted::Mounted;
use common::skip::{Need, note_part};
use ironmap::device::{BlockFile, Device, Engine, OpenMode, OpenedEngine, open_engine};
use ironmap::fs::Follow;
use ironmap::units::DevOffset;
use ironmap::{Errno, Error, ErrorKind, FileOptions, Location, QueueOptions, VolumeOptions};

/// The size of the images.
const SIZE: u64 = 8 << 20;
/// The offsets and lengths of the data in an image: at the beginning, between holes, across a page border, and in the last byte.
const DATA: [(u64, usize); 4] =
    [(0, 5000), (1 << 20, 4096), ((3 << 20) + 4000, 200), (SIZE - 1, 1)];

/// An image with holes.
fn sparse(dir: &Path) -> PathBuf {
    let path = dir.join("image");
    let file = File::create(&path).unwrap();
    file.set_len(SIZE).unwrap();
    for (at, len) in DATA {
        file.write_all_at(&vec![0xA5; len], at).unwrap();
    }
    file.sync_all().unwrap();
    path
}

fn mapped(path: &Path, write: bool, window: Option<(u64, u64)>) -> Result<OpenedEngine, Error> {
    let mode = OpenMode { write, window, ..OpenMode::default() };
    open_engine(BlockFile::open(path, &mode)?, Engine::Dax)
}

fn read_all(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![1; device.size() as usize];
    device.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
    bytes
}

/// Reads the whole image, and a part of the image that begins and ends within pages.
fn read(path: &Path) {
    let expected = std::fs::read(path).unwrap();
    for window in [None, Some((1000, SIZE - 3000))] {
        let opened = mapped(path, false, window).unwrap();
        let (start, len) = window.unwrap_or((0, SIZE));
        let bytes = read_all(&*opened.device);
        assert!(bytes == expected[start as usize..(start + len) as usize], "{window:?}");
    }
}

/// Opens the image while the file system has free space, fills this file system, and then writes the whole image.
fn write(path: &Path) {
    let opened = mapped(path, true, None).unwrap();
    fill(path.parent().unwrap());
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at / 911) as u8).collect();
    opened.device.write_all_at(&[IoSlice::new(&bytes)], DevOffset(0), false).unwrap();
    opened.device.flush().unwrap();
    drop(opened);
    assert!(std::fs::read(path).unwrap() == bytes);
}

/// If the file system of the image is full, an open of the image for writing fails and changes nothing. An open for reading succeeds.
fn refuse(path: &Path) {
    let before = (std::fs::read(path).unwrap(), path.metadata().unwrap().blocks());
    let error = mapped(path, true, None).err().expect("it was opened for writing");
    assert!(error.kind() == ErrorKind::Io(Errno::ENOSPC), "{error}");
    let after = (std::fs::read(path).unwrap(), path.metadata().unwrap().blocks());
    assert!(before == after, "{} blocks, now {}", before.1, after.1);
    read(path);
}

/// Runs the case of a child process. The role contains the name of the case and the path of the image.
fn play(role: &str) {
    let (case, path) = role.split_once(' ').unwrap();
    let case = match case {
        "read" => read,
        "write" => write,
        "refuse" => refuse,
        "volume" => volume,
        "write_elsewhere" => write_elsewhere,
        _ => panic!("{case}"),
    };
    case(Path::new(path));
}

fn in_process(test: &str, case: &str, path: &Path) {
    let program = std::env::current_exe().unwrap();
    let test = &name_of(module_path!(), test);
    again(&["env"], &program, test, &format!("{case} {}", path.display()));
}

#[test]
fn an_image_on_a_full_tmpfs() {
    const TEST: &str = "an_image_on_a_full_tmpfs";
    if let Some(role) = role() {
        return play(&role);
    }
    require!([Need::Root]);
    let memory = Tmpfs::new(16);
    in_process(TEST, "write", &sparse(memory.path()));
    let memory = Tmpfs::new(16);
    let path = sparse(memory.path());
    fill(memory.path());
    in_process(TEST, "read", &path);
    in_process(TEST, "refuse", &path);
}

/// Reads all files and tables of a volume in a sparse image. mke2fs wrote only a few blocks, so most blocks of the image are holes.
fn volume(path: &Path) {
    let location: Location = path.to_str().unwrap().parse().unwrap();
    let options = VolumeOptions::new().engine(Engine::Dax);
    let volume = options.open(&location).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let inode = volume.fs().resolve(b"/holes", Follow::All).unwrap();
    let file =
        volume.open_inode(inode, FileOptions::new().write(volume.fs().is_writable())).unwrap();
    let mut bytes = vec![1; 1 << 20];
    assert_eq!(file.read_at(&mut queue, &mut bytes, ironmap::units::FilePos(0)).unwrap(), 1 << 20);
    assert!(bytes == [vec![b'x'; 1 << 19], vec![0; 1 << 19]].concat());
}

#[test]
fn a_volume_on_a_full_tmpfs_is_read() {
    if let Some(role) = role() {
        return play(&role);
    }
    require!([Need::Root]);
    let tree = scratch();
    std::fs::write(tree.path().join("holes"), vec![b'x'; 1 << 20]).unwrap();
    let image = Image::populated("32M", &["-t", "ext4", "-b", "4096"], tree.path());
    // Blocks of zeros become holes when the image is copied.
    image.bmap("/holes", 128..256).iter().for_each(|block| image.poke_block(*block, 0, &[0; 4096]));
    let memory = Tmpfs::new(8);
    let path = memory.path().join("image");
    run("cp", &["--sparse=always", image.path().to_str().unwrap(), path.to_str().unwrap()]);
    fill(memory.path());
    in_process("a_volume_on_a_full_tmpfs_is_read", "volume", &path);
}

#[test]
fn an_image_on_a_full_disk() {
    const TEST: &str = "an_image_on_a_full_disk";
    if let Some(role) = role() {
        return play(&role);
    }
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs")]);
    let kinds: [fn() -> Mounted; 3] = [
        || Mounted::new("mke2fs -t ext4 -b 4096", 64, "noatime"),
        || Mounted::new("mke2fs -t ext4 -b 1024", 64, "noatime"),
        Mounted::xfs_with_reflink,
    ];
    for mount in kinds {
        let mounted = mount();
        in_process(TEST, "write", &sparse(mounted.dir()));
        let mounted = mount();
        let path = sparse(mounted.dir());
        fill(mounted.dir());
        in_process(TEST, "read", &path);
        in_process(TEST, "refuse", &path);
    }
}

/// The image shares its blocks with another file, so each store must allocate new blocks.
#[test]
fn an_image_that_shares_its_blocks() {
    const TEST: &str = "an_image_that_shares_its_blocks";
    if let Some(role) = role() {
        return play(&role);
    }
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs")]);
    let mounted = Mounted::xfs_with_reflink();
    let first = mounted.write("first", &vec![7; SIZE as usize]);
    let share = |name: &str| {
        let path = mounted.path(name);
        run("cp", &["--reflink=always", first.to_str().unwrap(), path.to_str().unwrap()]);
        run("sync", &["-f", path.to_str().unwrap()]);
        path
    };
    let (image, other) = (share("image"), share("other"));
    in_process(TEST, "write", &image);
    assert!(std::fs::read(&first).unwrap() == vec![7; SIZE as usize]);
    // From this point on, the file system of the images is full, so the other image cannot be opened for writing.
    in_process(TEST, "refuse", &other);
}

/// Writes an image on btrfs. btrfs never overwrites data in place, so each write needs free space. If no space is free, the write returns
/// an error, and the data of earlier writes can still be read.
fn write_elsewhere(path: &Path) {
    let opened = mapped(path, true, Some((1000, SIZE - 3000))).unwrap();
    assert!(opened.notices.iter().any(|notice| notice.contains("system calls")));
    let device = &*opened.device;
    let mut expected = std::fs::read(path).unwrap()[1000..(SIZE - 2000) as usize].to_vec();
    assert!(read_all(device) == expected);
    for (round, full) in [(1_u8, false), (2, true), (3, true)] {
        if full {
            fill(path.parent().unwrap());
        }
        let mut refused = 0;
        for at in (0..expected.len() - 5000).step_by(70_001) {
            let bytes = [round; 5000];
            let written = device.write_all_at(&[IoSlice::new(&bytes)], DevOffset(at as u64), false);
            match written.and_then(|()| device.flush()) {
                Ok(()) => expected[at..at + 5000].fill(round),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io(Errno::ENOSPC), "{error}");
                    refused += 1;
                    device
                        .read_exact_at(&mut expected[at..at + 5000], DevOffset(at as u64))
                        .unwrap();
                }
            }
            assert!(full || refused == 0);
        }
        assert!(read_all(device) == expected, "round {round}");
    }
    let behind = device.write_all_at(&[IoSlice::new(&[0; 2])], DevOffset(SIZE - 3001), false);
    assert_eq!(behind.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn an_image_on_a_file_system_that_copies_on_write() {
    const TEST: &str = "an_image_on_a_file_system_that_copies_on_write";
    if let Some(role) = role() {
        return play(&role);
    }
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.btrfs")]);
    let loads = std::fs::read_to_string("/proc/filesystems").unwrap().contains("btrfs");
    if !loads && !output("modprobe", &["btrfs"]).status.success() {
        return note_part(TEST, "all", "the kernel has no btrfs");
    }
    let mounted = Mounted::new("mkfs.btrfs", 128, "noatime");
    let path = sparse(mounted.dir());
    in_process(TEST, "read", &path);
    in_process(TEST, "write_elsewhere", &path);
}
