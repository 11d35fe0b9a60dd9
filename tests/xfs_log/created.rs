//! Log items that create inodes, for every version, block size and inode size. The test forges the logs, because kernels mount blocks above
//! the page size only in version 5. mkfs.xfs makes the inodes. The test moves them from the device into the log, in the form in which Linux
//! logs new inodes. The recovery must restore them.

use std::os::unix::fs::FileExt;

use ironmap::ErrorKind;
use ironmap::fs::Follow;

use crate::common::skip::Need;
use crate::forged::World;
use crate::require;

/// The number of inodes in a chunk. XFS creates one chunk of inodes at a time. If a block contains more inodes than a chunk, XFS creates
/// one block at a time.
const CHUNK: u64 = 64;
/// The maximum length of a buffer in a log item, and the number of bytes that one bit of the item's map covers.
const BUFFER: u64 = 64 << 10;
const PART: usize = 128;

/// The version, the block size and the inode size of a volume.
type Sizes = (u64, u64, u64);

fn table() -> Vec<Sizes> {
    let mut table = Vec::new();
    for (version, smallest) in [(4, 256), (5, 512)] {
        for block in (9..=16).map(|log| 1 << log).filter(|block| version == 4 || *block >= 1024) {
            let inodes = [256, 512, 1024, 2048].into_iter().filter(|inode| *inode >= smallest);
            table.extend(
                inodes.filter(|inode| *inode <= block / 2).map(|inode| (version, block, inode)),
            );
        }
    }
    table
}

fn world((version, block, inode): Sizes) -> World {
    let sizes = [format!("size={block}"), format!("size={inode}"), format!("crc={}", version - 4)];
    let [block, inode, crc] = sizes.each_ref().map(String::as_str);
    World::made_by("mkfs.xfs", &["-m", crc, "-b", block, "-i", inode], |_| {})
}

/// A log item that creates `count` inodes. The first of these inodes is in block `block` of the first group.
fn made(block: u64, count: u64, inode: u64, blocks: u64) -> Vec<u8> {
    let mut item = vec![0x3F, 0x12, 1, 0];
    for value in [0, block, count, inode, blocks, 7] {
        item.extend((value as u32).to_be_bytes());
    }
    item
}

/// A log item for a buffer. It contains the parts of the buffer with nonzero bytes.
fn buffer(at: u64, content: &[u8]) -> Vec<Vec<u8>> {
    let mut map = vec![0_u32; content.len().div_ceil(32 * PART)];
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let mut before = false;
    for (number, part) in content.chunks(PART).enumerate() {
        let is_logged = part.iter().any(|byte| *byte != 0);
        if is_logged {
            map[number / 32] |= 1 << (number % 32);
            match parts.last_mut().filter(|_| before) {
                Some(run) => run.extend(part),
                None => parts.push(part.to_vec()),
            }
        }
        before = is_logged;
    }
    let mut item = vec![0x3C, 0x12, 1 + parts.len() as u8, 0, 0, 0];
    item.extend(((content.len() / 512) as u16).to_le_bytes());
    item.extend((at / 512).to_le_bytes());
    item.extend((map.len() as u32).to_le_bytes());
    item.extend(map.iter().flat_map(|word| word.to_le_bytes()));
    [vec![item], parts].concat()
}

/// The content of a chunk. Unused inodes are replaced by zeros.
fn in_use(chunk: &[u8], inode: u64) -> Vec<u8> {
    let each = chunk.chunks(inode as usize).flat_map(|one| {
        // An inode in use has a nonzero `di_mode`.
        let is_used = one[2..4] != [0; 2];
        one.iter().map(move |byte| if is_used { *byte } else { 0 })
    });
    each.collect()
}

#[test]
fn new_inodes_of_every_version_and_size_come_back() {
    require!([Need::Tool("mkfs.xfs")]);
    for sizes in table() {
        let (_, block, inode) = sizes;
        let mut world = world(sizes);
        let (tail, root) = (world.next, world.root());
        let count = CHUNK.max(block / inode);
        let bytes = count * inode;
        let at = world.place_of(root);
        let mut chunk = vec![0; bytes as usize];
        world.device.read_exact_at(&mut chunk, at).unwrap();
        world.device.write_all_at(&vec![0xA5; bytes as usize], at).unwrap();
        let logged = in_use(&chunk[..bytes.min(BUFFER) as usize], inode);
        let create = |count: u64| vec![made(at / block, count, inode, count * inode / block)];
        world.transaction(tail, &[create(count), buffer(at, &logged)]);
        let what = format!("version, block, inode: {sizes:?}");
        let volume = world.image.open().unwrap_or_else(|error| panic!("{what}: {error}"));
        for (name, byte) in [("one", 1), ("other", 2)] {
            assert_eq!(volume.read(name).unwrap(), [byte; 4096], "{what}: {name}");
        }
        let numbers = ["one", "other"]
            .map(|name| volume.fs().resolve(name.as_bytes(), Follow::All).unwrap().number().0);
        assert_eq!(numbers, world.numbers, "{what}");
        let report = volume.fs().check(&mut |_| {}).unwrap();
        assert!(report.is_clean(), "{what}: {:#?}", report.findings);
        drop(volume);
        // The item contains more inodes than XFS creates at a time.
        world.transaction(tail, &[create(2 * count)]);
        let error = world.image.open().map(drop).expect_err("too many inodes");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
    }
}
