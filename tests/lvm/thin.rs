//! Thin volumes without a virtual machine. In one test, thin_restore writes the metadata of the pool. The other tests write rare or damaged
//! metadata themselves.

use std::fmt::Write as _;
use std::sync::Arc;

use ironmap::device::{Device, Ram};
use ironmap::lvm::Groups;
use ironmap::units::DevOffset;
use ironmap::{Error, ErrorKind};

use crate::common::command::run;
use crate::common::image::scratch;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::require;
use crate::shape::*;

const SEED: u64 = 0x7417;
/// The number of extents of the pool's metadata, of the pool's data, and of each thin volume.
const METADATA: usize = 128;
const DATA: usize = 64;
const LEN: usize = 100_000;

/// The metadata text of a pool with its hidden volumes, and with one thin volume for each number.
fn pool(metadata: usize, data: usize, len: usize, numbers: &[u64]) -> String {
    let pool = "type = \"thin-pool\" metadata = \"meta\" pool = \"data\" transaction_id = 5 chunk_size = 128";
    let mut text = linear("meta", 0, 0, metadata) + &linear("data", 0, metadata, data);
    text += &volume("pool", data, pool);
    for number in numbers {
        let thin = format!("type = \"thin\" thin_pool = \"pool\" device_id = {number}");
        text += &volume(&format!("thin{number}"), len, &thin);
    }
    text
}

/// Opens a logical volume. Returns its device and its faults.
fn open(disk: &[u8], name: &str) -> Result<(Arc<dyn Device>, String), Error> {
    let disk: Arc<dyn Device> = Arc::new(Ram::from_image(disk));
    let mut faults = Vec::new();
    let device = Groups::read(&*disk)?.find("vg", name)?.open(&[disk], &mut faults)?;
    Ok((device, faults.join("; ")))
}

fn read(device: &dyn Device, at: usize, len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; len];
    device.read_exact_at(&mut bytes, DevOffset(at as u64))?;
    Ok(bytes)
}

/// thin_restore makes a pool from a list of mappings: a large fragmented volume, a snapshot that shares most of its blocks, and an empty
/// volume. Each mapped block has the bytes of its data block in the list. Blocks that the list lacks are zeros.
#[test]
fn volumes_of_thin_restore_are_read_as_listed() {
    require!([Need::Tool("thin_restore")]);
    let mut rng = Rng::new(SEED);
    let mut maps: Vec<Vec<Option<u64>>> = vec![vec![None; LEN]; 3];
    for block in 0..LEN {
        // Some blocks that are adjacent in the volume are also adjacent in the pool.
        let before = maps[0][block.saturating_sub(1)].map(|data| (data + 1) % DATA as u64);
        let data = before.filter(|_| rng.below(3) > 0).unwrap_or_else(|| rng.below(DATA as u64));
        maps[0][block] = (rng.below(10) > 0).then_some(data);
        maps[1][block] = maps[0][block];
        if rng.below(50) == 0 {
            maps[1][block] = Some(rng.below(DATA as u64));
        }
    }
    let mut xml = format!(
        "<superblock uuid=\"\" time=\"9\" transaction=\"5\" flags=\"0\" version=\"2\" data_block_size=\"128\" nr_data_blocks=\"{DATA}\">\n"
    );
    for (number, map) in maps.iter().enumerate() {
        let mapped = map.iter().flatten().count();
        let number = number + 3;
        writeln!(xml, "<device dev_id=\"{number}\" mapped_blocks=\"{mapped}\" transaction=\"0\" creation_time=\"0\" snap_time=\"1\">").unwrap();
        for (block, data) in
            map.iter().enumerate().filter_map(|(block, data)| Some((block, (*data)?)))
        {
            writeln!(
                xml,
                "<single_mapping origin_block=\"{block}\" data_block=\"{data}\" time=\"1\"/>"
            )
            .unwrap();
        }
        xml += "</device>\n";
    }
    xml += "</superblock>\n";
    let dir = scratch();
    let (list, metadata) = (dir.path().join("list"), dir.path().join("metadata"));
    std::fs::write(&list, xml).unwrap();
    std::fs::write(&metadata, vec![0; METADATA * EXTENT]).unwrap();
    run("thin_restore", &["-i".as_ref(), list.as_os_str(), "-o".as_ref(), metadata.as_os_str()]);
    let mut disk = disks(1, METADATA + DATA, &pool(METADATA, DATA, LEN, &[3, 4, 5])).remove(0);
    extent(&mut disk, 0)[..METADATA * EXTENT].copy_from_slice(&std::fs::read(&metadata).unwrap());
    let data = rng.bytes(DATA * EXTENT);
    extent(&mut disk, METADATA)[..DATA * EXTENT].copy_from_slice(&data);
    for (number, map) in maps.iter().enumerate() {
        let (device, faults) = open(&disk, &format!("thin{}", number + 3)).unwrap();
        assert_eq!((device.size(), faults.as_str()), ((LEN * EXTENT) as u64, ""));
        for _ in 0..500 {
            let first = rng.below(LEN as u64 - 4) as usize;
            let (inside, len) =
                (rng.below(EXTENT as u64) as usize, 1 + rng.below(3 * EXTENT as u64) as usize);
            let found = read(&*device, first * EXTENT + inside, len).unwrap();
            let expected = (inside..inside + len).map(|at| {
                let place =
                    map[first + at / EXTENT].map(|data| data as usize * EXTENT + at % EXTENT);
                place.map_or(0, |place| data[place])
            });
            assert!(found.into_iter().eq(expected), "volume {number}, block {first}, seed {SEED}");
        }
    }
}

/// A small pool with two volumes. The tree of the first volume has two levels. The blocks of its metadata are: the superblock, the tree of
/// volumes, the tree of mappings, the root of volume 1, its two leaves, and the root of volume 2, which is a leaf.
fn small() -> Vec<u8> {
    let mut disk = disks(1, 12, &pool(1, 10, 20, &[1, 2, 3])).remove(0);
    let metadata = extent(&mut disk, 0);
    superblock(metadata, 2, 1);
    node(metadata, 1, LEAF, 24, &[(1, 7), (2, 1)]);
    node(metadata, 2, LEAF, 8, &[(1, 3), (2, 6)]);
    node(metadata, 3, INNER, 8, &[(0, 4), (9, 5)]);
    node(metadata, 4, LEAF, 8, &[mapping(0, 4), mapping(1, 5), mapping(4, 0)]);
    node(metadata, 5, LEAF, 8, &[mapping(9, 9), mapping(10, 1), mapping(18, 2), mapping(19, 3)]);
    node(metadata, 6, LEAF, 8, &[mapping(2, 5)]);
    for block in 0..10 {
        extent(&mut disk, 1 + block)[..EXTENT].fill(block as u8 + 1);
    }
    disk
}

/// The first byte of each block of a thin volume.
fn firsts(disk: &[u8], name: &str) -> Result<Vec<u8>, Error> {
    let (device, _) = open(disk, name)?;
    let all = read(&*device, 0, device.size() as usize)?;
    Ok(all.chunks(EXTENT).map(|block| block[0]).collect())
}

/// The disk with the small pool, after a change of the pool's metadata. The checksums of the metadata are repaired.
fn changed(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut disk = small();
    let metadata = &mut extent(&mut disk, 0)[..EXTENT];
    change(metadata);
    for (number, block) in metadata.chunks_mut(BLOCK).enumerate().take(7) {
        seal(block, number == 0);
    }
    disk
}

/// ironmap reads from the small pool the blocks to which the pool's trees refer. The next tests change this pool.
#[test]
fn a_tree_with_two_levels_is_read() {
    let one = [5, 6, 0, 0, 1, 0, 0, 0, 0, 10, 2, 0, 0, 0, 0, 0, 0, 0, 3, 4];
    assert_eq!(firsts(&small(), "thin1").unwrap(), one);
    assert_eq!(firsts(&small(), "thin2").unwrap()[..4], [0, 0, 6, 0]);
    // A metadata snapshot is another root, which is ignored.
    assert_eq!(firsts(&changed(|all| put64(all, 56, 9)), "thin1").unwrap(), one);
    let needs_check = changed(|all| put32(all, 4, 1));
    assert!(open(&needs_check, "thin1").unwrap().1.contains("need a check"));
    assert_eq!(firsts(&needs_check, "thin1").unwrap(), one);
}

/// Pool states and features that ironmap cannot read, and trees that contradict themselves, give errors. Each error names the reason.
#[test]
fn wrong_pools_are_refused_by_name() {
    let block = |number: usize| number * BLOCK;
    let value = |number: usize, index: usize| block(number) + 32 + 252 * 8 + index * 8;
    let cases: &[(usize, u64, ErrorKind, &str)] = &[
        (48, 6, ErrorKind::Unsupported, "is at transaction 6, but the metadata of LVM say 5"),
        (40, 3, ErrorKind::Unsupported, "the version 3"),
        (360, 1, ErrorKind::Unsupported, "the features 0x1"),
        (336, 8 << 32 | 256, ErrorKind::Corrupt, "have 131072 bytes, but 65536"),
        (336, 8 << 32, ErrorKind::Corrupt, "an invalid block size"),
        (336, 16 << 32 | 128, ErrorKind::Corrupt, "an invalid block size"),
        (32, 1, ErrorKind::Corrupt, "there is no superblock"),
        (320, 0, ErrorKind::Corrupt, "cannot be in block 0"),
        (320, 1 << 40, ErrorKind::Corrupt, "cannot be in block 1099511627776"),
        (320, 1, ErrorKind::Corrupt, "have 24 bytes, not 8"),
        (block(3) + 8, 4, ErrorKind::Corrupt, "belongs to another block"),
        (block(3) + 4, 3 << 32 | 3, ErrorKind::Corrupt, "neither an inner node nor a leaf"),
        (block(4) + 16, 252 << 32 | 253, ErrorKind::Corrupt, "wrong numbers of entries"),
        (block(4) + 16, 255 << 32 | 3, ErrorKind::Corrupt, "more entries than fit into a block"),
        (block(3) + 16, 252 << 32, ErrorKind::Corrupt, "wrong order"),
        (block(4) + 40, 7, ErrorKind::Corrupt, "wrong order"),
        (block(3) + 40, 3, ErrorKind::Corrupt, "outside the range of the parent"),
        (value(3, 0), 3, ErrorKind::Corrupt, "outside the range of the parent"),
        (value(4, 0), 10 << 24, ErrorKind::Corrupt, "which has only 10 blocks"),
        (value(4, 0), u64::MAX, ErrorKind::Corrupt, "which has only 10 blocks"),
    ];
    for (at, number, kind, text) in cases {
        // A write of 64 bits would also change the flags in the next field.
        let is_short = matches!(at, 40 | 360);
        let disk = changed(|all| match is_short {
            true => put32(all, *at, *number as u32),
            false => put64(all, *at, *number),
        });
        let error = firsts(&disk, "thin1").unwrap_err();
        let shown = error.to_string();
        assert!(error.kind() == *kind && shown.contains(text), "{at}: {:?} {shown}", error.kind());
    }
    // In this tree, an inner node has itself as its only child.
    let cycle = changed(|all| node(all, 3, INNER, 8, &[(0, 3)]));
    let error = firsts(&cycle, "thin1").unwrap_err().to_string();
    assert!(error.contains("more than 12 levels"), "{error}");
    let error = firsts(&small(), "thin3").unwrap_err().to_string();
    assert!(error.contains("has no volume with the number 3"), "{error}");
    let error = firsts(&small(), "pool").unwrap_err().to_string();
    assert!(error.contains("it is a thin pool"), "{error}");
    let mut disk = small();
    extent(&mut disk, 0)[3 * BLOCK + 100] ^= 1;
    let error = firsts(&disk, "thin1").unwrap_err().to_string();
    assert!(error.contains("wrong checksum"), "{error}");
}

/// A read of a damaged pool returns an error or the original content. If the checksums are repaired after the damage, reads still end and
/// do not panic.
#[test]
fn damaged_pools_are_errors() {
    let mut rng = Rng::new(SEED);
    let sound = firsts(&small(), "thin1").unwrap();
    let mut refused = 0;
    for _ in 0..2000 {
        let mut disk = small();
        let at = rng.below(7 * BLOCK as u64) as usize;
        extent(&mut disk, 0)[at] ^= 1 << rng.below(8);
        match firsts(&disk, "thin1") {
            // The damage is in the tree of volume 2.
            Ok(found) => assert!(found == sound && at / BLOCK == 6, "byte {at}, seed {SEED}"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 1000, "only {refused} changes were refused");
    let mut read = 0;
    for _ in 0..2000 {
        let disk = changed(|all| {
            for _ in 0..=rng.below(3) {
                // Most words of a node are zeros that have no meaning.
                let word =
                    if rng.below(2) == 0 { rng.below(12) } else { rng.below(512) } as usize * 8;
                let number = [rng.below(12), rng.next(), u64::MAX, rng.below(12) << 24]
                    [rng.below(4) as usize];
                put64(all, rng.below(7) as usize * BLOCK + word, number);
            }
        });
        read += usize::from(firsts(&disk, "thin1").is_ok());
    }
    assert!((100..1900).contains(&read), "{read} of 2000 pools are read");
}
