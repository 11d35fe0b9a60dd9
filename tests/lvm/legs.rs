//! RAID and mirrors in rare states, and types that are refused. The tests make the disks.

use std::sync::Arc;

use ironmap::device::{Device, Ram};
use ironmap::location::LocationOptions;
use ironmap::lvm::Groups;
use ironmap::units::DevOffset;
use ironmap::{Error, ErrorKind, Location};

use crate::common::image::scratch;
use crate::shape::*;

/// A volume group on one disk. Its logical volume `root` has the given segment. Each of the volumes `m0` to `m2` has one extent of
/// metadata. Each of the volumes `d0` to `d2` has two extents of data, and all bytes of `dN` are N + 1.
fn disk(extents: usize, segment: &str) -> Vec<u8> {
    let mut text = volume("root", extents, segment);
    for leg in 0..3 {
        let parts = linear(&format!("m{leg}"), 0, leg * 3, 1)
            + &linear(&format!("d{leg}"), 0, leg * 3 + 1, 2);
        text += &parts.replace(", \"VISIBLE\"", "");
    }
    let mut disk = disks(1, 9, &text).remove(0);
    for leg in 0..3 {
        extent(&mut disk, leg * 3 + 1)[..2 * EXTENT].fill(leg as u8 + 1);
    }
    disk
}

const RAID1: &str = "type = \"raid1\" device_count = 3 region_size = 4096 raids = [\"m0\", \"d0\", \"m1\", \"d1\", \"m2\", \"d2\"]";

/// A raid1 volume whose legs have these superblocks.
fn raid1(legs: &[Leg; 3]) -> Vec<u8> {
    let mut disk = disk(2, RAID1);
    for (index, leg) in legs.iter().enumerate() {
        leg.write(extent(&mut disk, index * 3));
    }
    disk
}

/// Opens `root`. Returns its faults, and its first and its last byte.
fn open(disk: &[u8]) -> Result<(String, u8, u8), Error> {
    let disk: Arc<dyn Device> = Arc::new(Ram::from_image(disk));
    let mut faults = Vec::new();
    let device = Groups::read(&*disk)?.find("vg", "root")?.open(&[disk], &mut faults)?;
    let mut bytes = vec![0; device.size() as usize];
    device.read_exact_at(&mut bytes, DevOffset(0))?;
    Ok((faults.join("; "), bytes[0], bytes[bytes.len() - 1]))
}

fn assert_refused(disk: &[u8], kind: ErrorKind, text: &str) {
    let error = open(disk).unwrap_err();
    let shown = error.to_string();
    assert!(error.kind() == kind && shown.contains(text), "{text}: {:?}: {shown}", error.kind());
}

/// A test case: a change of the legs' superblocks, the fault that the change causes, and the bytes that are read at the beginning and at
/// the end.
type Case<'a> = (&'a dyn Fn(&mut [Leg; 3]), &'a str, u8, u8);

/// The superblocks of the legs show which legs are in sync. They contain the failed legs, the number of events, the position of a recovery,
/// and the position of the first synchronization. ironmap does not use a leg without a superblock, or with the superblock of another array.
#[test]
fn legs_that_are_not_in_sync_are_left_out() {
    let sound = [0, 1, 2].map(|leg| Leg::new(1, 0, 3, leg));
    let with = |change: &dyn Fn(&mut [Leg; 3])| {
        let mut legs = sound.clone();
        change(&mut legs);
        open(&raid1(&legs))
    };
    assert_eq!(with(&|_| ()).unwrap(), (String::new(), 1, 1));
    let cases: &[Case] = &[
        (&|legs| (legs[1].events, legs[1].failed) = (12, 1), "d0 is left out: it is older", 2, 2),
        (
            &|legs| legs[1..].iter_mut().for_each(|leg| (leg.events, leg.failed) = (10, 1)),
            "it has failed",
            2,
            2,
        ),
        (&|legs| legs[0].recovered = 128, "d0 is not completely in sync", 2, 2),
        (&|legs| legs[0].recovered = 0, "d0 is not completely in sync", 2, 2),
        (&|legs| legs.iter_mut().for_each(|leg| leg.resynced = 0), "copies may differ", 1, 1),
        (&|legs| legs[0].level = 5, "describes an array of level 5", 2, 2),
        (&|legs| legs[0].position = 1, "describes leg 1 of 3", 2, 2),
        (&|legs| legs[0].legs = 2, "describes leg 0 of 2", 2, 2),
    ];
    for (change, text, first, last) in cases {
        let (faults, begin, end) = with(*change).unwrap();
        assert!(faults.contains(text), "{text}: {faults}");
        assert_eq!((begin, end), (*first, *last), "{text}");
    }
    let mut unused = raid1(&sound);
    extent(&mut unused, 0)[0] = 0;
    let (faults, first, _) = open(&unused).unwrap();
    assert!(first == 2 && faults.contains("the leg was never in use"), "{faults}");
    // The superblock of the first leg says that another leg has failed. Both legs have the same number of events. ironmap uses the first
    // leg and not the other one.
    let mut legs = sound;
    legs[0].failed = 1 << 2;
    let (faults, first, last) = open(&raid1(&legs)).unwrap();
    assert!(faults.contains("d2 is left out: it has failed, as d0 says"), "{faults}");
    assert_eq!((first, last), (1, 1));
}

/// ironmap refuses an array in a state that it cannot read. The error names the state.
#[test]
fn reshaped_arrays_are_refused() {
    for (at, number, text) in [
        (60, 1, "being reshaped"),
        (84, 1, "being reshaped"),
        (96, 8, "begin at sector 8"),
        (144, 1, "unknown features"),
    ] {
        let mut disk = raid1(&[0, 1, 2].map(|leg| Leg::new(1, 0, 3, leg)));
        for leg in 0..3 {
            put32(extent(&mut disk, leg * 3), at, number);
        }
        assert_refused(&disk, ErrorKind::Unsupported, text);
    }
}

/// ironmap reads the first leg of a mirror. If the first leg is lost, another leg is read only if the log of the mirror shows that this leg
/// is complete.
#[test]
fn a_mirror_without_its_first_leg_needs_its_log() {
    let segment = |first: &str, log: &str| {
        format!(
            "type = \"mirror\" mirror_count = 2 {log} region_size = 16 mirrors = [\"{first}\", 0, \"d1\", 0]"
        )
    };
    let log = "mirror_log = \"m2\"";
    assert_eq!(open(&disk(2, &segment("d0", ""))).unwrap(), (String::new(), 1, 1));
    assert_refused(&disk(2, &segment("lost", "")), ErrorKind::NotFound, "known to be complete");
    let with = |regions: u64, bits: u16| {
        let mut disk = disk(2, &segment("lost", log));
        let log = extent(&mut disk, 6);
        log[..4].copy_from_slice(b"rRiM");
        put32(log, 4, 2);
        put64(log, 8, regions);
        log[1024..1026].copy_from_slice(&bits.to_le_bytes());
        disk
    };
    // The two extents have 16 regions of 8 KiB.
    let (faults, first, last) = open(&with(16, 0xFFFF)).unwrap();
    assert!((first, last) == (2, 2) && faults.contains("lost is left out"), "{faults}");
    for bit in 0..16 {
        let bits = 0xFFFF ^ 1 << bit;
        assert_refused(&with(16, bits), ErrorKind::Unsupported, "differ from the first leg");
    }
    assert_refused(&with(15, 0xFFFF), ErrorKind::Corrupt, "wrong number of regions");
    assert_refused(&disk(2, &segment("lost", log)), ErrorKind::Corrupt, "no header");
}

/// ironmap refuses types that it cannot read, volumes that contain themselves, and hidden volumes that are opened for writing. The error
/// names the reason.
#[test]
fn other_types_are_refused_by_name() {
    for kind in
        ["cache", "cache-pool", "writecache", "vdo", "vdo-pool", "integrity", "error", "zero"]
    {
        let text = format!("a segment has the type {kind}, which is not supported");
        let disk = disk(2, &format!("type = \"{kind}\""));
        assert_refused(&disk, ErrorKind::Unsupported, &text);
    }
    let own = RAID1.replace("\"d0\"", "\"root\"");
    assert_refused(
        &disk(2, &own.replace("\"d1\"", "\"root\"").replace("\"d2\"", "\"root\"")),
        ErrorKind::NotFound,
        "too many",
    );
    let thin = "type = \"thin\" thin_pool = \"d0\" device_id = 1";
    assert_refused(&disk(2, thin), ErrorKind::Corrupt, "d0 is not a thin pool");
    let dir = scratch();
    let path = dir.path().join("disk");
    std::fs::write(&path, disk(2, RAID1)).unwrap();
    for name in ["root", "d0", "m0"] {
        let location: Location = format!("{}@vg/{name}", path.display()).parse().unwrap();
        let error = location.open(&LocationOptions::new().write(true)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{name}: {error}");
    }
}
