//! Writes to logical volumes. ironmap writes to the positions that `lvs` shows, and refuses to write a logical volume that LVM would not
//! write.

use ironmap::bio::{Bio, BioEnd, BioOp, Memory};
use ironmap::device::Limits;
use ironmap::error::Result;

use super::*;

/// The bytes of the disk at the positions of a logical volume.
fn content(disk: &[u8], places: &[u64]) -> Vec<u8> {
    places.iter().flat_map(|at| disk[*at as usize..][..8].iter().copied()).collect()
}

fn write_options() -> LocationOptions {
    LocationOptions::new().write(true)
}

/// The test writes at random positions: by calls, by immediate requests of a queue, and by queued bios, with flushes between them.
/// Afterwards the disk has the written bytes at the positions that `lvs` shows, and all other bytes are unchanged.
#[test]
fn writes_reach_the_places_that_lvs_shows() {
    const SEED: u64 = 0x1F_57A6;
    require!(NEEDS);
    let disk = Disk::new();
    disk.make_all_kinds();
    let mut rng = Rng::new(SEED);
    for name in ["root", "striped", "whole", "spread"] {
        let places = disk.expected(name);
        let mut expected = std::fs::read(&disk.path).unwrap();
        let opened = disk.location(name).open(&write_options()).unwrap();
        let device = opened.device;
        let mut queue = device.queue(&QueueOptions::new()).unwrap();
        assert!(device.is_writable() && !device.limits().read_only);
        for round in 0..200 {
            let len = (1 + rng.below(64)) * 4096;
            let at = rng.below((device.size() - len) / 4096 + 1) * 4096;
            let mut buffer = Buffer::aligned(len as usize).unwrap();
            buffer.iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
            for (word, place) in buffer.chunks(8).zip(&places[at as usize / 8..]) {
                expected[*place as usize..][..8].copy_from_slice(word);
            }
            match round % 3 {
                0 => device
                    .write_all_at(&[IoSlice::new(&buffer)], DevOffset(at), round % 2 == 0)
                    .unwrap(),
                1 => write_now(&mut queue, &buffer, at),
                _ => write_queued(&mut queue, buffer, at),
            }
            if round % 20 == 0 {
                queue.flush_now(Dev::OWN).unwrap();
                device.flush().unwrap();
            }
        }
        let mut read = vec![0; device.size() as usize];
        device.read_exact_at(&mut read, DevOffset(0)).unwrap();
        drop((queue, device));
        assert!(std::fs::read(&disk.path).unwrap() == expected, "{name}, seed {SEED:#x}");
        assert!(read == content(&expected, &places), "{name}, seed {SEED:#x}");
    }
}

fn write_now(queue: &mut impl DeviceQueue, bytes: &[u8], at: u64) {
    let mut done = 0;
    while done < bytes.len() {
        let bufs = [IoSlice::new(&bytes[done..])];
        let at = DevOffset(at + done as u64);
        done += queue.write_now(Dev::OWN, &bufs, at, BioFlags::empty()).unwrap();
    }
}

/// Writes the buffer by one bio. Then a second bio flushes the device.
fn write_queued(queue: &mut impl DeviceQueue, buffer: Buffer, at: u64) {
    let len = buffer.len();
    let bio = |op, at, memory, token| Bio {
        op,
        dev: Dev::OWN,
        at: DevOffset(at),
        memory,
        flags: BioFlags::empty(),
        end: BioEnd::Part { request: token, part: 0 },
    };
    let mut run = |bio: Bio, count| {
        assert!(queue.submit(bio).is_ok());
        queue.commit().unwrap();
        queue.wait(1).unwrap();
        assert_eq!(queue.pop().unwrap().result, Ok(count));
    };
    run(bio(BioOp::Write, at, Memory::Flat(buffer), 1), len);
    run(bio(BioOp::Flush, 0, Memory::Flat(Buffer::aligned(0).unwrap()), 2), 0);
}

/// ironmap makes an ext4 volume in a logical volume of several segments, fills it, and changes it. Then e2fsck finds no fault in the bytes
/// at the positions that `lvs` shows. The test covers one disk and several disks, raw and qcow2.
#[test]
fn a_volume_in_several_segments_is_made_and_changed() {
    require!(NEEDS);
    let disk = Disk::new();
    disk.make_root_in_segments();
    let places = disk.expected("root");
    let image = disk.dir.path().join("root.img");
    run("mke2fs", &["-q", "-t", "ext4", "-b", "4096", image.to_str().unwrap(), "30M"]);
    let mut bytes = std::fs::read(&disk.path).unwrap();
    for (number, at) in std::fs::read(&image).unwrap().chunks(8).zip(&places) {
        bytes[*at as usize..][..8].copy_from_slice(number);
    }
    std::fs::write(&disk.path, &bytes).unwrap();
    let (raw, qcow2) = (disk.path.display().to_string(), disk.dir.path().join("disk.qcow2"));
    let qcow2 = qcow2.display().to_string();
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &raw, &qcow2]);
    let one = disk.dir.path().join("one").display().to_string();
    let (start, len) = PARTS[0];
    std::fs::write(&one, &bytes[start as usize..][..len as usize]).unwrap();
    for location in [
        format!("{raw}@vg/root"),
        format!("qcow2:{qcow2}@vg/root"),
        format!("lvm:vg/root@{one},{raw}@p2"),
    ] {
        change(&location);
        if location.starts_with("qcow2:") {
            run("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", &qcow2, &raw]);
        } else if location.starts_with("lvm:") {
            disk.overwrite(&std::fs::read(&one).unwrap(), start);
        }
        std::fs::write(&image, content(&std::fs::read(&raw).unwrap(), &places)).unwrap();
        run("e2fsck", &["-fn", image.to_str().unwrap()]);
        let volume = Volume::open(image.as_path()).unwrap();
        assert_eq!(volume.read("/dir/file").unwrap(), vec![7; 9_000_000], "{location}");
        drop(volume);
        std::fs::write(&disk.path, &bytes).unwrap();
    }
}

fn change(location: &str) {
    let volume = VolumeOptions::new().write(true).open(location).unwrap();
    volume.create_dir("/dir").unwrap();
    volume.write("/dir/file", vec![7; 9_000_000]).unwrap();
    volume.write("/dir/other", b"gone").unwrap();
    volume.remove_file("/dir/other").unwrap();
    volume.close().unwrap();
}

/// If LVM or a snapshot forbids writes to a logical volume, an open for writing is refused and changes nothing on the disk. An open for
/// reading succeeds.
#[test]
fn writes_are_refused_by_name() {
    require!(NEEDS);
    let disk = Disk::new();
    for name in ["root", "store", "other"] {
        disk.make(&["-n", name, "-L", "4M"]);
    }
    let check = |name: &str, what: &str| {
        let before = std::fs::read(&disk.path).unwrap();
        let error = disk.location(name).open(&write_options()).map(drop).unwrap_err();
        assert!(error.to_string().contains(what), "{name}: {error}");
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{name}: {error}");
        assert_eq!(open(&disk, name), Ok(()), "{name} can be read");
        assert!(std::fs::read(&disk.path).unwrap() == before, "{name}: the disk changed");
    };
    let writable = |name: &str| -> Result<Limits> {
        disk.location(name).open(&write_options()).map(|opened| *opened.device.limits())
    };
    disk.lvm("lvchange", &["-pr", "vg/other"]);
    check("other", "permission r");
    disk.lvm("lvchange", &["-prw", "vg/other"]);
    writable("other").unwrap();
    let volumes = "logical_volumes {";
    disk.edit(|text| text.replacen(volumes, &format!("{volumes}{SNAPSHOT}"), 1));
    check("root", "its snapshots would change too");
    writable("other").unwrap();
    disk.edit(|text| text.replace("\"VISIBLE\"", "\"LOCKED\", \"VISIBLE\""));
    check("other", "pvmove or lvconvert has not ended");
    disk.edit(|text| text.replace(", \"VISIBLE\", \"LOCKED\"", ""));
    check("other", "a part of other logical volumes");
    disk.edit(|text| text.replace("[\"READ\", \"WRITE\"]", "[\"READ\", \"WRITE\", \"VISIBLE\"]"));
    disk.edit(|text| {
        text.replacen(
            "status = [\"RESIZEABLE\", \"READ\", \"WRITE\"]",
            "status = [\"RESIZEABLE\", \"READ\"]",
            1,
        )
    });
    check("other", "group is read-only");
    disk.edit(|text| {
        text.replacen(
            "status = [\"RESIZEABLE\", \"READ\"]",
            "status = [\"EXPORTED\", \"RESIZEABLE\", \"READ\", \"WRITE\"]",
            1,
        )
    });
    check("other", "is exported");
    // In this case, the two copies of the group's metadata differ.
    let disk = Disk::new();
    disk.make(&["-n", "root", "-L", "4M"]);
    let older = disk.metadata(PARTS[1]);
    disk.make(&["-n", "more", "-L", "4M"]);
    disk.overwrite(&older, PARTS[1].0);
    let error = disk.location("root").open(&write_options()).map(drop).unwrap_err();
    assert!(error.to_string().contains("the copies of the metadata of vg differ"), "{error}");
    assert_eq!(open(&disk, "root"), Ok(()));
}

/// While a logical volume is open for writing, its disks cannot be opened, neither as whole disks nor as other logical volumes.
#[test]
fn every_disk_of_a_written_volume_is_locked() {
    require!(NEEDS);
    let disk = Disk::new();
    disk.make(&["-n", "root", "-L", "4M"]);
    disk.make(&["-n", "striped", "-L", "8M", "-i", "2", "-I", "64k"]);
    let one = disk.dir.path().join("one").display().to_string();
    let (start, len) = PARTS[0];
    let bytes = std::fs::read(&disk.path).unwrap();
    std::fs::write(&one, &bytes[start as usize..][..len as usize]).unwrap();
    let raw = disk.path.display().to_string();
    let location: Location = format!("lvm:vg/striped@{one},{raw}@p2").parse().unwrap();
    let held = location.open(&write_options()).unwrap();
    for text in [one.clone(), raw.clone(), format!("{raw}@p2"), format!("{one}@vg/root")] {
        for write in [false, true] {
            let other: Location = text.parse().unwrap();
            let error = other.open(&LocationOptions::new().write(write)).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{text}: {error}");
        }
    }
    drop(held);
    location.open(&write_options()).unwrap();
}

/// Some metadata have valid checksums, but LVM refuses them, or they make a write dangerous. ironmap does not write a logical volume with
/// such metadata.
#[test]
fn contradictions_in_the_metadata_forbid_writes() {
    let future = shape::linear("root", 0, 0, 4).replace("\"VISIBLE\"", "\"VISIBLE\", \"FUTURE\"");
    for (volumes, what) in [
        (shape::linear("root", 0, 0, 4), ""),
        (shape::linear("root", 0, 0, 4) + &shape::linear("other", 0, 4, 2), ""),
        (shape::linear("root", 0, 0, 4) + &shape::linear("other", 0, 3, 2), "overlap on pv0"),
        (future, "its status in the metadata is not known"),
        (shape::linear("root", 0, 0, 4).replace("\"WRITE\", ", ""), "permission r"),
        (shape::linear("root", 0, 0, 4).replace(", \"VISIBLE\"", ""), "a part of other"),
    ] {
        let disk = Ram::from_image(&shape::disks(1, 8, &volumes)[0]);
        let found = Groups::read(&disk).and_then(|groups| groups.find("vg", "root")).unwrap();
        match found.check_writable() {
            Ok(()) => assert_eq!(what, "", "{volumes}"),
            Err(error) => {
                assert!(!what.is_empty() && error.to_string().contains(what), "{what}: {error}");
            }
        }
    }
}

/// A member of an array does not count as a physical volume, neither as a whole disk nor as a partition. A write to one member would make
/// the members differ.
#[test]
fn a_member_of_an_array_is_no_physical_volume() {
    let volume = &shape::disks(1, 12, &shape::linear("root", 0, 0, 4))[0];
    let member = array::Shape::new(0, 1, 0, 2, volume.len() as u64 / 512).image(0, volume);
    let mut disk = vec![0; MIB as usize];
    let entry = &mut disk[446..462];
    entry[4] = 0x8E;
    entry[8..12].copy_from_slice(&2048_u32.to_le_bytes());
    entry[12..16].copy_from_slice(&(member.len() as u32 / 512).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    disk.extend(&member);
    let dir = scratch();
    for (name, content) in [("whole", &member), ("partition", &disk)] {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        let path = path.display();
        for text in [format!("{path}@vg/root"), format!("lvm:vg/root@{path}")] {
            for write in [false, true] {
                let location: Location = text.parse().unwrap();
                let opened = location.open(&LocationOptions::new().write(write)).map(drop);
                let error = opened.unwrap_err().to_string();
                assert!(error.contains("lvm:VG/LV@md:DISK,DISK"), "{text}: {error}");
            }
        }
    }
}
