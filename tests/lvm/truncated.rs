//! Logical volumes on a truncated disk. Only with the option for truncated devices, the remaining part is read.

use ironmap::location::LocationOptions;
use ironmap::units::DevOffset;
use ironmap::{ErrorKind, Location};

use crate::common::image::scratch;
use crate::shape::*;

const EXTENTS: usize = 12;
const START: usize = 1 << 20;

/// A disk with one partition of an MBR, which is the physical volume of the group `vg`, or a disk without a partition table. Each extent is
/// filled with its number.
fn disk(volumes: &str, is_partitioned: bool) -> Vec<u8> {
    let mut physical = disks(1, EXTENTS, volumes).remove(0);
    for number in 0..EXTENTS {
        extent(&mut physical, number)[..EXTENT].fill(number as u8 + 1);
    }
    if !is_partitioned {
        return physical;
    }
    let mut disk = vec![0; START];
    disk[450] = 0x8E;
    disk[454..458].copy_from_slice(&((START / 512) as u32).to_le_bytes());
    disk[458..462].copy_from_slice(&((physical.len() / 512) as u32).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    disk.append(&mut physical);
    disk
}

#[test]
fn the_rest_of_a_logical_volume_is_read() {
    let segments = "root { status = [\"READ\", \"WRITE\", \"VISIBLE\"] segment_count = 2 \
        segment1 { start_extent = 0 extent_count = 3 type = \"striped\" stripe_count = 1 stripes = [\"pv0\", 6] } \
        segment2 { start_extent = 3 extent_count = 3 type = \"striped\" stripe_count = 1 stripes = [\"pv0\", 1] } }\n";
    let cases = [
        (linear("root", 0, 2, 6), vec![3, 4, 5, 6, 7, 8]),
        (segments.to_owned(), vec![7, 8, 9, 2, 3, 4]),
    ];
    let dir = scratch();
    let path = dir.path().join("disk");
    for (volumes, expected) in cases {
        for is_partitioned in [false, true] {
            let whole = disk(&volumes, is_partitioned);
            let first = if is_partitioned { START } else { 0 } + EXTENT;
            for left in 0..EXTENTS {
                let what = format!("{volumes}, {is_partitioned}, {left} extents");
                std::fs::write(&path, &whole[..first + left * EXTENT]).unwrap();
                let location: Location = format!("{}@vg/root", path.display()).parse().unwrap();
                let is_whole = expected.iter().all(|number| usize::from(*number) <= left);
                if !is_whole {
                    let refused = location.open(&LocationOptions::new()).expect_err(&what);
                    assert_ne!(refused.kind(), ErrorKind::NotFound, "{what}: {refused}");
                }
                let opened = match location.open(&LocationOptions::new().truncated(true)) {
                    Ok(opened) => opened.device,
                    Err(error) => {
                        // The volume begins past the end of the disk.
                        assert!(usize::from(expected[0]) > left, "{what}: {error}");
                        continue;
                    }
                };
                for (at, number) in expected.iter().enumerate() {
                    let mut bytes = vec![0; EXTENT];
                    let read = opened.read_exact_at(&mut bytes, DevOffset((at * EXTENT) as u64));
                    if usize::from(*number) <= left {
                        read.unwrap_or_else(|error| panic!("{what}: extent {at}: {error}"));
                        assert!(bytes.iter().all(|byte| byte == number), "{what}: extent {at}");
                    } else {
                        assert!(read.is_err(), "{what}: extent {at} was read");
                    }
                }
                let stored = expected.iter().take_while(|number| usize::from(**number) <= left);
                assert_eq!(opened.stored(), (stored.count() * EXTENT) as u64, "{what}");
            }
        }
    }
}

/// A partition that is shorter than its physical volume was not truncated by the end of the disk.
#[test]
fn the_next_partition_is_not_read() {
    let dir = scratch();
    let path = dir.path().join("disk");
    let mut disk = disk(&linear("root", 0, 2, 6), true);
    disk[458..462].copy_from_slice(&((EXTENT * 4 / 512) as u32).to_le_bytes());
    std::fs::write(&path, &disk).unwrap();
    let location: Location = format!("{}@vg/root", path.display()).parse().unwrap();
    for truncated in [false, true] {
        let refused = location.open(&LocationOptions::new().truncated(truncated)).unwrap_err();
        assert!(refused.to_string().contains("is shorter than its physical volume"), "{refused}");
    }
}
