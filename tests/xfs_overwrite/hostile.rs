//! Damaged and hostile volumes. ironmap opens them for overwrites.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::common::image::{Image, scratch};
use crate::common::skip::Need;
use crate::common::xfs::Layout;
use crate::{filled, for_writing, known, open, require};
use ironmap::fs::Follow;
use ironmap::{ErrorKind, QueueOptions, Volume};

/// The byte offset of the data fork in an inode.
const FORK: usize = 176;

/// The time limit for an operation on a damaged volume.
const LONG: Duration = Duration::from_secs(20);

fn number(image: &Image, name: &str) -> u64 {
    let volume = image.open().unwrap();
    volume.fs().resolve(name.as_bytes(), Follow::All).unwrap().number().0
}

fn device(image: &Image) -> File {
    File::options().read(true).write(true).open(image.path()).unwrap()
}

/// The position and the content of the root block of a group's refcount B+tree.
fn shared_root(image: &Image, group: u64) -> (u64, Vec<u8>) {
    let device = device(image);
    let layout = Layout::of(&device);
    let start = group * layout.group_len();
    let mut root = [0; 4];
    // The field `agf_refcount_root` in the second sector.
    device.read_exact_at(&mut root, start + 512 + 88).unwrap();
    let at = start + u64::from(u32::from_be_bytes(root)) * layout.block;
    let mut block = vec![0; layout.block as usize];
    device.read_exact_at(&mut block, at).unwrap();
    assert_eq!(block[..4], *b"R3FC");
    (at, block)
}

fn write_sealed(image: &Image, at: u64, mut block: Vec<u8>) {
    block[52..56].fill(0);
    let sum = crc32c::crc32c(&block);
    block[52..56].copy_from_slice(&sum.to_le_bytes());
    device(image).write_all_at(&block, at).unwrap();
}

/// The map of a file refers to the headers of groups. They cannot be overwritten through the file. Linux refuses a map that contains these
/// blocks.
#[test]
fn headers_of_groups_are_not_overwritten() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    let Some(image) = filled(&["-d", "agcount=2"], 4096) else { return };
    let number = number(&image, "small");
    {
        let device = device(&image);
        let layout = Layout::of(&device);
        let mut inode = layout.read(&device, number);
        // The map of the file refers to the block of the superblock.
        inode[FORK..FORK + 16].copy_from_slice(&1_u128.to_be_bytes());
        layout.forge(&device, &inode, number);
    }
    let before = std::fs::read(image.path()).unwrap();
    let volume = open(&image).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let inode = volume.fs().resolve(b"small", Follow::All).unwrap();
    let file = volume.open_inode(inode, for_writing()).unwrap();
    let written = file.write_at(&mut queue, b"XXXX", 0);
    drop((file, queue));
    volume.close().unwrap();
    drop(volume);
    assert!(before == std::fs::read(image.path()).unwrap(), "a header was overwritten");
    assert_eq!(written.unwrap_err().kind(), ErrorKind::Corrupt);
    let mount = image.mount("ro,norecovery");
    std::fs::read(mount.dir().join("small")).unwrap_err();
}

/// In a refcount B+tree, an empty leaf refers to itself as its right neighbour. A search still ends.
#[test]
fn a_circle_of_empty_leaves_ends() {
    require!([Need::Tool("mkfs.xfs"), Need::Tool("truncate")]);
    // The group is large, so a search that did not detect the cycle would read very many blocks.
    let dir = scratch();
    let (content, proto) = (vec![7; 4096], dir.path().join("proto"));
    std::fs::write(dir.path().join("content"), content).unwrap();
    let lines =
        format!("/\n0 0\nd--755 0 0\nfile ---644 0 0 {}/content\n$\n", dir.path().display());
    std::fs::write(&proto, lines).unwrap();
    let image = Image::mkfs_xfs(
        "1800G",
        &["-d", "agcount=2", "-l", "size=64m", "-p", proto.to_str().unwrap()],
    )
    .unwrap();
    let number = number(&image, "file");
    let device = device(&image);
    let layout = Layout::of(&device);
    let mut inode = layout.read(&device, number);
    // The inode gets the flag that permits shared blocks (`XFS_DIFLAG2_REFLINK`).
    inode[127] |= 2;
    layout.forge(&device, &inode, number);
    drop(device);
    let (at, mut block) = shared_root(&image, 0);
    let own = (at / layout.block) as u32;
    block[6..8].fill(0);
    block[12..16].copy_from_slice(&own.to_be_bytes());
    write_sealed(&image, at, block);
    let volume = open(&image).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let inode = volume.fs().resolve(b"file", Follow::All).unwrap();
    let file = volume.open_inode(inode, for_writing()).unwrap();
    let begun = Instant::now();
    assert_eq!(file.write_at(&mut queue, &[1; 4096], 0).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
}

/// Only writes need the refcount B+tree and the attributes. Damage in these structures does not prevent reads.
#[test]
fn damage_that_only_a_write_meets_prevents_no_reading() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("filefrag")]);
    let Some(image) = filled(&["-d", "agcount=2"], 4096) else { return };
    let files = known(&image);
    let content = &files["shared"].content;
    for group in 0..2 {
        let (at, mut block) = shared_root(&image, group);
        block[6] = 0xFF;
        write_sealed(&image, at, block);
    }
    let read = |volume: &Volume| volume.read("shared").map_err(|error| error.to_string());
    assert!(read(&image.open().unwrap()).as_ref() == Ok(content));
    let volume = open(&image).unwrap();
    let read = read(&volume);
    assert!(read.as_ref() == Ok(content), "{:?}", read.err());
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let inode = volume.fs().resolve(b"shared", Follow::All).unwrap();
    let file = volume.open_inode(inode, for_writing()).unwrap();
    assert_eq!(file.write_at(&mut queue, &[1; 4096], 0).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// A volume has millions of groups. While it is open, ironmap allocates memory only for groups that are used.
#[test]
fn many_groups_take_no_memory() {
    require!([Need::Tool("mkfs.xfs")]);
    let image = Image::mkfs_xfs("512M", &["-b", "size=1024"]).unwrap();
    let device = device(&image);
    let mut sector = vec![0; 512];
    device.read_exact_at(&mut sector, 0).unwrap();
    // The superblock is changed: the volume then has 2 PiB, in groups of 16 MiB, which is the minimum.
    let (blocks, group_log) = (2_u64 << 40, 14);
    let group = 1_u32 << group_log;
    device.set_len(blocks << 10).unwrap();
    sector[8..16].copy_from_slice(&blocks.to_be_bytes());
    sector[84..88].copy_from_slice(&group.to_be_bytes());
    sector[88..92].copy_from_slice(&((blocks / u64::from(group)) as u32).to_be_bytes());
    sector[124] = group_log;
    // The log is moved to 512 blocks of group 100.
    let log = 100_u64 << group_log;
    sector[48..56].copy_from_slice(&log.to_be_bytes());
    sector[96..100].copy_from_slice(&512_u32.to_be_bytes());
    sector[224..228].fill(0);
    let sum = crc32c::crc32c(&sector);
    sector[224..228].copy_from_slice(&sum.to_le_bytes());
    device.write_all_at(&sector, 0).unwrap();
    // The AGI header of the first group also contains the length of the group. So this header is changed too.
    device.read_exact_at(&mut sector, 2 * 512).unwrap();
    sector[12..16].copy_from_slice(&group.to_be_bytes());
    sector[312..316].fill(0);
    let sum = crc32c::crc32c(&sector);
    sector[312..316].copy_from_slice(&sum.to_le_bytes());
    device.write_all_at(&sector, 2 * 512).unwrap();
    device.write_all_at(&vec![0; 512 << 10], log << 10).unwrap();
    drop(device);
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() << 12
    };
    let before = resident();
    let volume = open(&image);
    let more = resident().saturating_sub(before) >> 20;
    assert!(more < 512, "{more} MiB, {:?}", volume.err());
    volume.unwrap();
}
