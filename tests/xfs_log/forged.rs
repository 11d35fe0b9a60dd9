//! Forged logs, which no kernel writes. A recovery ends within a time limit and shows no data of other files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::common::image::{Image, scratch};
use crate::common::skip::Need;
use crate::common::xfs::Layout;
use crate::require;
use ironmap::fs::Follow;
use ironmap::{ErrorKind, Location, VolumeOptions};

/// The block size of the log, and the maximum length of the data in a record.
const BLOCK: usize = 512;
const RECORD: usize = 32 << 10;
/// The time limit of a recovery.
const LONG: Duration = Duration::from_secs(30);
/// Byte offsets of fields in an inode of version 3.
const FORMAT: usize = 5;
const SIZE: usize = 56;
const FORK_OFFSET: usize = 82;
const FLAGS: usize = 90;
const LSN: usize = 112;
const FORK: usize = 176;
const REALTIME: u8 = 1;

/// A volume with two files of one block each, `one` and `other`. The tests forge its log.
pub(crate) struct World {
    pub(crate) image: Image,
    pub(crate) device: File,
    layout: Layout,
    pub(crate) numbers: [u64; 2],
    /// The number of the log block at which the next record is written, and the position of the log on the device.
    pub(crate) next: u32,
    log: u64,
    uuid: [u8; 16],
}

impl World {
    fn new() -> Self {
        Self::made_by("mkfs.xfs", &[], |_| {})
    }

    /// Makes a volume with this mkfs.xfs. `change` modifies the volume before the test reads its log.
    pub(crate) fn made_by(mkfs: &str, options: &[&str], change: impl FnOnce(&Image)) -> Self {
        let dir = scratch();
        let path = dir.path();
        std::fs::write(path.join("one"), [1; 4096]).unwrap();
        std::fs::write(path.join("other"), [2; 4096]).unwrap();
        let file = |name: &str| format!("{name} ---644 0 0 {}/{name}", path.display());
        let lines = format!("/\n0 0\nd--755 0 0\n{}\n{}\n$\n", file("one"), file("other"));
        std::fs::write(path.join("proto"), lines).unwrap();
        let proto = path.join("proto");
        let options = [options, &["-p", proto.to_str().unwrap()]].concat();
        let image = Image::mkfs_xfs_by(mkfs, "512M", &options).unwrap();
        change(&image);
        let volume = image.open().unwrap();
        let head = volume.xfs().unwrap().log().head;
        assert_eq!(head.0, 1, "the log of a new volume");
        let number =
            |name: &str| volume.fs().resolve(name.as_bytes(), Follow::All).unwrap().number().0;
        let numbers = ["one", "other"].map(number);
        drop(volume);
        let device = File::options().read(true).write(true).open(image.path()).unwrap();
        let layout = Layout::of(&device);
        let mut sector = [0; 512];
        device.read_exact_at(&mut sector, 0).unwrap();
        let log = layout.place_of_block(u64::from_be_bytes(sector[48..56].try_into().unwrap()));
        let uuid = sector[32..48].try_into().unwrap();
        Self { image, device, layout, numbers, next: head.1, log, uuid }
    }

    /// Writes a log record whose data consist of these log operations.
    fn record(&mut self, tail: u32, operations: &[Vec<u8>]) {
        let mut data: Vec<u8> = operations.concat();
        assert!(data.len() <= RECORD, "{}", data.len());
        let len = data.len();
        data.resize(len.next_multiple_of(BLOCK), 0);
        let mut header = vec![0; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &0xFEED_BABE_u32.to_be_bytes());
        put(4, &1_u32.to_be_bytes());
        put(8, &2_u32.to_be_bytes());
        put(12, &(data.len() as u32).to_be_bytes());
        put(16, &(1 << 32 | u64::from(self.next)).to_be_bytes());
        put(24, &(1 << 32 | u64::from(tail)).to_be_bytes());
        put(40, &(operations.len() as u32).to_be_bytes());
        for (number, block) in data.chunks_exact_mut(BLOCK).enumerate() {
            put(44 + number * 4, &block[..4]);
            block[..4].copy_from_slice(&1_u32.to_be_bytes());
        }
        put(300, &1_u32.to_be_bytes());
        put(304, &self.uuid);
        put(320, &(RECORD as u32).to_be_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&header[..328]), &data);
        header[32..36].copy_from_slice(&sum.to_le_bytes());
        header.extend(&data);
        self.device.write_all_at(&header, self.log + u64::from(self.next) * BLOCK as u64).unwrap();
        self.next += (header.len() / BLOCK) as u32;
    }

    /// Writes a log record with one transaction. The transaction contains these log items. Each item consists of regions.
    pub(crate) fn transaction(&mut self, tail: u32, items: &[Vec<Vec<u8>>]) {
        let mut head = vec![0; 16];
        head[..4].copy_from_slice(&0x5452_414E_u32.to_le_bytes());
        head[12..16].copy_from_slice(&(items.len() as u32).to_le_bytes());
        let mut operations = vec![operation(1, &[]), operation(0, &head)];
        operations.extend(items.iter().flatten().map(|region| operation(0, region)));
        operations.push(operation(2, &[]));
        self.record(tail, &operations);
    }

    /// The inode number of the root directory.
    pub(crate) fn root(&self) -> u64 {
        let mut bytes = [0; 8];
        self.device.read_exact_at(&mut bytes, 56).unwrap();
        u64::from_be_bytes(bytes)
    }

    pub(crate) fn place_of(&self, number: u64) -> u64 {
        self.layout.place_of(number)
    }

    pub(crate) fn generation(&self, number: u64) -> u32 {
        let inode = self.layout.read(&self.device, number);
        u32::from_be_bytes(inode[92..96].try_into().unwrap())
    }

    fn change_inode(&self, number: u64, change: impl FnOnce(&mut [u8])) {
        let mut inode = self.layout.read(&self.device, number);
        change(&mut inode);
        self.layout.forge(&self.device, &inode, number);
    }
}

fn operation(flags: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes[..4].copy_from_slice(&7_u32.to_be_bytes());
    bytes[4..8].copy_from_slice(&(content.len() as u32).to_be_bytes());
    (bytes[8], bytes[9]) = (0x69, flags);
    bytes.extend(content);
    bytes
}

/// An intent to change mappings of a file. Each range is `(first, len)`. All ranges are mapped to the same block.
fn mappings(id: u64, owner: u64, changes: impl Iterator<Item = (u64, u32)>) -> Vec<u8> {
    let (mut bytes, mut count) = (vec![0; 16], 0_u32);
    for (first, len) in changes {
        count += 1;
        for number in [owner, 1000, first] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(len.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
    }
    bytes[..4].copy_from_slice(&[0x44, 0x12, 1, 0]);
    bytes[4..8].copy_from_slice(&count.to_le_bytes());
    bytes[8..16].copy_from_slice(&id.to_le_bytes());
    bytes
}

/// An intent to exchange ranges of two files.
fn exchange(inodes: [u64; 2], generations: [u32; 2], blocks: u64, flags: u64) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes[..4].copy_from_slice(&[0x48, 0x12, 1, 0]);
    inodes.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    generations.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    for number in [0, 0, blocks, flags, 0, 0_u64] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

/// The log is full of changes to one map. A recovery ends within the time limit.
#[test]
fn a_million_changes_of_a_map_end() {
    require!([Need::Tool("mkfs.xfs")]);
    let mut world = World::new();
    let (tail, [one, _]) = (world.next, world.numbers);
    for number in 0..600 {
        // The changes map every second block of the file.
        let changes = (0..1000).map(|index| (2 * (number * 1000 + index), 1));
        world.transaction(tail, &[vec![mappings(number, one, changes)]]);
    }
    let begun = Instant::now();
    let volume = world.image.open().unwrap();
    assert!(volume.xfs().unwrap().log().recovered);
    let inode = volume.fs().resolve(b"one", Follow::All).unwrap();
    // The list of extents itself needs one more block.
    assert_eq!(inode.stat().blocks, 600_001 * 8);
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
}

/// Changes to the map of a realtime file are completed. Here the caller gives no realtime device. ironmap does not read blocks with the
/// same numbers from the data device.
#[test]
fn changes_of_realtime_files_show_no_other_blocks() {
    require!([Need::Tool("mkfs.xfs")]);
    for by_exchange in [false, true] {
        let mut world = World::new();
        let (tail, [one, other]) = (world.next, world.numbers);
        let generations = [one, other].map(|number| world.generation(number));
        world.change_inode(one, |inode| inode[FLAGS + 1] |= REALTIME);
        let intent = if by_exchange {
            exchange([one, other], generations, 1, 0)
        } else {
            mappings(1, one, [(0, 1)].into_iter())
        };
        world.transaction(tail, &[vec![intent]]);
        let volume = world.image.open().unwrap();
        assert!(volume.xfs().unwrap().log().recovered);
        let read = volume.read("one").map(|content| content[0]);
        let error = read.expect_err("blocks of the data device");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        if by_exchange {
            // After the exchange, the other file has these realtime blocks. So it cannot be read either.
            let read = volume.read("other").map(|content| content[0]);
            assert_eq!(read.expect_err("realtime blocks").kind(), ErrorKind::Unsupported);
        }
    }
}

/// The caller gives the realtime device. Changes that map realtime blocks are completed. A change that maps blocks of the data device is
/// refused.
#[test]
fn changes_of_realtime_files_are_finished() {
    require!([Need::Tool("mkfs.xfs")]);
    let dir = scratch();
    let device = dir.path().join("realtime");
    std::fs::write(&device, vec![9; 64 << 20]).unwrap();
    let rtdev = format!("rtdev={}", device.display());
    for is_realtime in [true, false] {
        let options = ["-m", "reflink=0,rmapbt=0", "-r", &rtdev];
        let mut world = World::made_by("mkfs.xfs", &options, |_| {});
        let (tail, [one, _]) = (world.next, world.numbers);
        world.change_inode(one, |inode| inode[FLAGS + 1] |= REALTIME);
        let mut intent = mappings(1, one, [(0, 1)].into_iter());
        if is_realtime {
            intent[16 + 31] |= 0x20;
        }
        world.transaction(tail, &[vec![intent]]);
        let content = vec![9; 4096];
        File::options()
            .write(true)
            .open(&device)
            .and_then(|file| file.write_all_at(&content, 1000 * 4096))
            .unwrap();
        let location = Location::try_from(&*device).unwrap();
        let volume = VolumeOptions::new().realtime(location).open(&*world.image.path()).unwrap();
        match volume.read("one") {
            Ok(found) => assert!(is_realtime && found == content, "{found:?}"),
            Err(error) => {
                assert!(!is_realtime, "{error}");
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            }
        }
    }
}

/// All nodes of a B+tree refer to one child. The log is full of items that change the owner of the B+tree's blocks. The recovery still ends
/// within the time limit.
#[test]
fn owners_of_a_tree_that_is_none_end() {
    require!([Need::Tool("mkfs.xfs")]);
    let mut world = World::new();
    let (tail, [one, _]) = (world.next, world.numbers);
    let block = world.layout.block as usize;
    let room = (block - 72) / 16;
    let first = 20_000_u64;
    for level in 0..3_u16 {
        let mut node = vec![0; block];
        node[..4].copy_from_slice(b"BMA3");
        node[4..6].copy_from_slice(&level.to_be_bytes());
        node[6..8].copy_from_slice(&(room as u16).to_be_bytes());
        let child = first + u64::from(level).saturating_sub(1);
        for at in (72 + room * 8..72 + room * 16).step_by(8) {
            node[at..at + 8].copy_from_slice(&child.to_be_bytes());
        }
        let at = world.layout.place_of_block(first + u64::from(level));
        world.device.write_all_at(&node, at).unwrap();
    }
    world.change_inode(one, |inode| {
        inode[FORMAT] = 3;
        // The inode has a newer log position than the item. So the recovery changes only the owner of the blocks.
        inode[LSN..LSN + 8].copy_from_slice(&(u64::MAX - 1).to_be_bytes());
        let root = &mut inode[FORK..];
        let room = (root.len() - 4) / 16;
        root.fill(0);
        root[..4].copy_from_slice(&[0, 3, 0, 1]);
        let at = 4 + room * 8;
        root[at..at + 8].copy_from_slice(&(first + 2).to_be_bytes());
    });
    let inode = world.layout.read(&world.device, one);
    let place = world.layout.place_of(one);
    let (cluster, within) = (place / 512, 0_u32);
    let mut item = vec![0; 56];
    item[..4].copy_from_slice(&[0x3B, 0x12, 2, 0]);
    // The item sets the core fields of the inode, and the owner of the data fork's blocks.
    item[4..8].copy_from_slice(&0x201_u32.to_le_bytes());
    item[16..24].copy_from_slice(&one.to_le_bytes());
    item[40..48].copy_from_slice(&cluster.to_le_bytes());
    item[48..52].copy_from_slice(&1_u32.to_le_bytes());
    item[52..56].copy_from_slice(&within.to_le_bytes());
    let mut core = inode[..FORK].to_vec();
    core[..2].copy_from_slice(&0x494E_u16.to_le_bytes());
    let items: Vec<_> = (0..100).map(|_| vec![item.clone(), core.clone()]).collect();
    for _ in 0..4 {
        world.transaction(tail, &items);
    }
    let begun = Instant::now();
    let error = world.image.open().map(drop).expect_err("owners without end");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
}

/// An item sets the root of an attribute B+tree. If the inode has no space for this root, ironmap refuses the item.
#[test]
fn a_root_without_a_fork_is_refused() {
    require!([Need::Tool("mkfs.xfs")]);
    let mut world = World::new();
    let (tail, [one, _]) = (world.next, world.numbers);
    let place = world.layout.place_of(one);
    let mut core = world.layout.read(&world.device, one)[..FORK].to_vec();
    core[..2].copy_from_slice(&0x494E_u16.to_le_bytes());
    core[FORK_OFFSET] = 0;
    let mut item = vec![0; 56];
    item[..4].copy_from_slice(&[0x3B, 0x12, 3, 0]);
    // The item sets the core fields of the inode, and the root of the attribute B+tree.
    item[4..8].copy_from_slice(&0x101_u32.to_le_bytes());
    item[16..24].copy_from_slice(&one.to_le_bytes());
    item[40..48].copy_from_slice(&(place / 512).to_le_bytes());
    item[48..52].copy_from_slice(&1_u32.to_le_bytes());
    world.transaction(tail, &[vec![item, core, vec![0; 72]]]);
    let error = world.image.open().map(drop).expect_err("a root that has no place");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// Two files with many extents are exchanged, one extent after another. The recovery ends within the time limit.
#[test]
fn an_exchange_of_many_pieces_ends() {
    require!([Need::Tool("mkfs.xfs")]);
    let mut world = World::new();
    let (tail, [one, other]) = (world.next, world.numbers);
    for number in 0..200 {
        let owner = if number % 2 == 0 { one } else { other };
        let changes = (0..1000).map(|index| (2 * (number / 2 * 1000 + index), 1));
        world.transaction(tail, &[vec![mappings(number, owner, changes)]]);
    }
    let generations = [one, other].map(|number| world.generation(number));
    world.transaction(tail, &[vec![exchange([one, other], generations, 1 << 20, 4)]]);
    let begun = Instant::now();
    let volume = world.image.open().unwrap();
    for name in [&b"one"[..], b"other"] {
        let inode = volume.fs().resolve(name, Follow::All).unwrap();
        assert_eq!(inode.stat().blocks, 100_001 * 8);
    }
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
}

/// A crash can interrupt an exchange after the size of one file was changed. As in Linux, each file then gets the present size of the other
/// file. The size in the intent, which is 0 here, is ignored.
#[test]
fn an_exchange_takes_the_sizes_of_the_inodes() {
    require!([Need::Tool("mkfs.xfs")]);
    for (blocks, expected) in [(1, [4096, 77]), (0, [77, 4096])] {
        let mut world = World::new();
        let (tail, [one, other]) = (world.next, world.numbers);
        for (number, size) in [(one, 77_u64), (other, 4096)] {
            world.change_inode(number, |inode| {
                inode[SIZE..SIZE + 8].copy_from_slice(&size.to_be_bytes());
            });
        }
        let generations = [one, other].map(|number| world.generation(number));
        world.transaction(tail, &[vec![exchange([one, other], generations, blocks, 2)]]);
        let volume = world.image.open().unwrap();
        let size = |name: &[u8]| volume.fs().resolve(name, Follow::All).unwrap().stat().size;
        assert_eq!([size(b"one"), size(b"other")], expected, "{blocks} blocks");
    }
}
