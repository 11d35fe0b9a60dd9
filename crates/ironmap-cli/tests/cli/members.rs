//! Members of MD arrays and physical volumes of LVM: commands that would overwrite them, and arrays with a missing member.

use std::fs;

use crate::md_shape::{FAULTY, Shape};
use crate::support::{Bench, text};

const MIB: usize = 1 << 20;

/// The image of a member of a RAID 1 array, with a volume as its content.
fn leg(bench: &Bench, minor: u32, change: impl Fn(&mut Shape)) -> Vec<u8> {
    bench.succeed(["mkfs", "-qF", "volume.img", "8M"]);
    let content = fs::read(bench.path("volume.img")).unwrap();
    let mut shape = Shape::new(minor, 1, 0, 2, (content.len() / 512) as u64);
    change(&mut shape);
    shape.image(0, &content)
}

/// A disk with an MBR whose only partition has this content.
fn in_partition(content: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; 2 * MIB];
    disk.extend(content);
    let sectors = u32::try_from(content.len() / 512).unwrap();
    disk[450] = 0x83;
    disk[454..458].copy_from_slice(&4096_u32.to_le_bytes());
    disk[458..462].copy_from_slice(&sectors.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    disk
}

/// Tags do not overwrite a member of an array or of a volume group, or a disk with such a partition: neither in the tail of DATA, nor on TAGS.
#[test]
fn tags_overwrite_members_only_by_a_second_force() {
    let bench = Bench::empty();
    let group = crate::lvm_shape::disks(1, 128, &crate::lvm_shape::linear("lv", 0, 0, 4));
    let members = [leg(&bench, 0, |_| ()), leg(&bench, 2, |_| ()), group[0].clone()];
    let partitioned: Vec<_> = members.iter().map(|member| in_partition(member)).collect();
    fs::write(bench.path("data.img"), vec![0; MIB]).unwrap();
    for image in members.iter().chain(&partitioned) {
        for place in ["member.img", "data.img,member.img"] {
            for forces in [&[][..], &["-F"]] {
                fs::write(bench.path("member.img"), image).unwrap();
                let output = bench.run(["integrity", "format", "-q", place].iter().chain(forces));
                let said = text(&output.stderr);
                assert_eq!(output.status.code(), Some(3), "{place} {forces:?}: {said}");
                assert!(said.contains("-F -F overwrites it"), "{said}");
                assert!(fs::read(bench.path("member.img")).unwrap() == *image, "{place}");
            }
            let output = bench.run(["integrity", "format", "-q", "-FF", place]);
            let said = text(&output.stderr);
            // The file system of a RAID 1 member of version 1.0 extends to the tail. It must be shrunk first.
            assert!(output.status.success() || said.contains("shrink the file system"), "{said}");
        }
    }
}

/// An archive overwrites a member only by a second `-F`.
#[test]
fn an_archive_overwrites_members_only_by_a_second_force() {
    let bench = Bench::empty();
    let member = leg(&bench, 2, |_| ());
    for image in [&member, &in_partition(&member)] {
        for forces in [&[][..], &["-F"]] {
            fs::write(bench.path("member.img"), image).unwrap();
            let command = ["tar", "-f", "member.img", "volume.img:/"];
            let output = bench.run(command.iter().chain(forces));
            let said = text(&output.stderr);
            assert!(!output.status.success() && said.contains("-F -F overwrites it"), "{said}");
            assert!(fs::read(bench.path("member.img")).unwrap() == **image);
        }
        bench.succeed(["tar", "-FFf", "member.img", "volume.img:/"]);
    }
}

/// `-F` is not enough to overwrite a member of an array or of a volume group. The refusal names the array or the group, and says what to do.
#[test]
fn members_are_overwritten_only_by_a_second_force() {
    let bench = Bench::empty();
    let group = crate::lvm_shape::disks(1, 128, &crate::lvm_shape::linear("lv", 0, 0, 4));
    let unused = {
        // A physical volume whose metadata area has no text belongs to no group.
        let mut disk = group[0].clone();
        disk[4096 + 40..4096 + 64].fill(0);
        let area = &mut disk[4096..4096 + 512];
        let sum = area[4..].iter().fold(0xF597_A6CF, |crc: u32, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0xEDB8_8320))
        });
        area[..4].copy_from_slice(&sum.to_le_bytes());
        disk
    };
    let members = [
        (leg(&bench, 0, |_| ()), "RAID 1 array lab:name"),
        (leg(&bench, 2, |_| ()), "RAID 1 array lab:name"),
        (group[0].clone(), "the volume group vg"),
    ];
    fs::write(bench.path("source.img"), vec![7; MIB]).unwrap();
    let commands: [&[&str]; 4] = [
        &["mkfs", "-q", "member.img"],
        &["mkfs", "-q", "member.img", "64M"],
        &["clone", "source.img", "member.img"],
        &["disk", "-q", "member.img", "--part", "root:4M:fs=ext4"],
    ];
    for command in commands {
        for (image, name) in &members {
            for forces in [&[][..], &["-F"]] {
                fs::write(bench.path("member.img"), image).unwrap();
                let output = bench.run(command.iter().chain(forces));
                let said = text(&output.stderr);
                assert_eq!(output.status.code(), Some(3), "{command:?} {forces:?}: {said}");
                assert!(said.contains(name) && said.contains("-F -F overwrites it"), "{said}");
                assert!(fs::read(bench.path("member.img")).unwrap() == *image, "{command:?}");
            }
            bench.succeed(command.iter().chain(&["-FF"]));
        }
        fs::write(bench.path("member.img"), &unused).unwrap();
        bench.succeed(command.iter().chain(&["-F"]));
    }
    // A disk with one partition that is a member. Each command would overwrite the whole disk.
    for (member, name) in &members {
        let whole = in_partition(member);
        for command in &commands[..3] {
            for forces in [&[][..], &["-F"]] {
                fs::write(bench.path("member.img"), &whole).unwrap();
                let output = bench.run(command.iter().chain(forces));
                let said = text(&output.stderr);
                assert_eq!(output.status.code(), Some(3), "{command:?} {forces:?}: {said}");
                assert!(fs::read(bench.path("member.img")).unwrap() == whole, "{command:?}");
                let named = said.contains("partition 1 is") && said.contains(name);
                assert!(named && said.contains("-F -F overwrites it"), "{said}");
            }
            bench.succeed(command.iter().chain(&["-FF"]));
        }
    }
    // A range of a disk that is a member.
    let mut disk = vec![0; 2 * MIB];
    disk.extend(&members[1].0);
    fs::write(bench.path("disk.img"), &disk).unwrap();
    let place = format!("disk.img@2M+{}", members[1].0.len());
    let output = bench.run(["mkfs", "-qF", &place]);
    assert!(text(&output.stderr).contains("RAID 1 array lab:name"), "{}", text(&output.stderr));
    assert!(fs::read(bench.path("disk.img")).unwrap() == disk);
    bench.succeed(["mkfs", "-qFF", &place]);
}

/// If a member that may be newer is missing, or if one member is read as a volume, each command says once that the content may be old. If
/// the superblock says that the missing member has failed, the content is not old.
#[test]
fn the_content_of_a_lone_member_may_be_old() {
    let bench = Bench::empty();
    for minor in [0, 2, 90] {
        fs::write(bench.path("leg.img"), leg(&bench, minor, |_| ())).unwrap();
        let old = "the member with the role 1 of 2 devices is missing: it may be newer, so the content may be old";
        for args in [
            &["ls", "md:leg.img:/"][..],
            &["info", "md:leg.img"],
            &["info", "--json", "md:leg.img"],
        ] {
            let output = bench.run(args);
            let said = text(&output.stderr);
            assert!(output.status.success() && said.matches(old).count() == 1, "{args:?}: {said}");
        }
        let info = bench.run(["info", "--json", "md:leg.img"]);
        let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
        assert!(info["device"]["notices"].to_string().contains(old), "{info}");
        fs::write(bench.path("leg.img"), leg(&bench, minor, |shape| shape.roles[1] = FAULTY))
            .unwrap();
        let said = text(&bench.run(["ls", "md:leg.img:/"]).stderr);
        assert!(said.contains("the member with the role 1 of 2 devices is missing\n"), "{said}");
    }
    // The superblock is at the end of the member, so the member begins like a volume.
    fs::write(bench.path("leg.img"), leg(&bench, 0, |_| ())).unwrap();
    let output = bench.run(["ls", "leg.img:/"]);
    let said = text(&output.stderr);
    assert!(
        output.status.success() && said.matches("device 0 of the RAID 1 array").count() == 1,
        "{said}"
    );
}
