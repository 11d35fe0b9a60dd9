//! Without `--force`, ironmap does not overwrite data in the format of another program. `blkid -k` lists these formats. `wipefs -n`
//! confirms that the image of the test has the format.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, text, tool};

const SIZE: u64 = 8 << 20;

/// How the image of a format is made, and whether wipefs then reports the format.
enum How {
    /// The format's own program makes the image. The program runs in the directory of `image`.
    Program(&'static str),
    /// A header whose format wipefs reports.
    Header(Vec<(u64, Vec<u8>)>),
    /// A header that wipefs does not report. wipefs also verifies a checksum or other fields, which the test does not write.
    Silent(Vec<(u64, Vec<u8>)>),
}

use How::{Header, Program, Silent};

fn one(at: u64, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    vec![(at, bytes.to_vec())]
}

/// `len` zeros, with each part copied to its offset.
fn with(len: usize, parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (at, part) in parts {
        bytes[*at..*at + part.len()].copy_from_slice(part);
    }
    bytes
}

/// Headers of firmware RAID arrays. They have valid checksums, and most are in the last sectors.
fn firmware() -> Vec<(&'static str, How)> {
    let last = SIZE - 512;
    let mut via = with(51, &[(0, &[0x55, 0xAA, 1])]);
    via[50] = via.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte));
    let mut silicon = with(512, &[(96, &[0, 0, 0, 0x2F])]);
    silicon[0x13E..0x140].copy_from_slice(&0x2F00_u16.wrapping_neg().to_le_bytes());
    let sum = u16::from_le_bytes(*b"JM").wrapping_neg();
    let jmicron = with(128, &[(0, b"JM"), (126, &sum.to_le_bytes())]);
    let adaptec = with(512, &[(0, &[0x37, 0xFC, 0x4D, 0x1E]), (256, b"DPTM")]);
    vec![
        ("ddf_raid_member", Header(one(last, &[0xDE, 0x11, 0xDE, 0x11]))),
        ("isw_raid_member", Header(one(SIZE - 1024, b"Intel Raid ISM Cfg Sig. "))),
        ("lsi_mega_raid_member", Header(one(last, b"$XIDE$"))),
        ("via_raid_member", Header(one(last, &via))),
        ("silicon_medley_raid_member", Header(one(last, &silicon))),
        ("nvidia_raid_member", Header(one(SIZE - 1024, b"NVIDIA  "))),
        (
            "promise_fasttrack_raid_member",
            Header(one(SIZE - 63 * 512, b"Promise Technology, Inc.")),
        ),
        ("hpt45x_raid_member", Header(one(SIZE - 11 * 512, &0x5A78_16F3_u32.to_le_bytes()))),
        ("hpt37x_raid_member", Header(one(9 * 512 + 32, &0x5A78_16F0_u32.to_le_bytes()))),
        ("adaptec_raid_member", Header(one(last, &adaptec))),
        ("jmicron_raid_member", Header(one(last, &jmicron))),
    ]
}

fn containers() -> Vec<(&'static str, How)> {
    let raid = with(256, &[(0, &[0xFC, 0x4E, 0x2B, 0xA9, 1]), (144, &8_u64.to_le_bytes())]);
    let bcache = b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA\x82\x65\xF5\x7F\x48\xBA\x6D\x81";
    let bcachefs = b"\xC6\x85\x73\xF6\x66\xCE\x90\xA9\xD9\x6A\x60\xCF\x80\x3D\xF7\xEF";
    let uberblocks = |label: u64| {
        (0..8).map(move |slot| ((label + 128 + slot) << 10, 0x00BA_B10C_u64.to_le_bytes().to_vec()))
    };
    vec![
        ("linux_raid_member", Header(one(4096, &raid))),
        ("bcache", Silent(one(4096 + 24, bcache))),
        ("bcachefs", Silent(one(4096 + 24, bcachefs))),
        ("ceph_bluestore", Header(one(0, b"bluestore block device\n"))),
        ("drbd", Header(one(SIZE - 4096 + 60, &[0x83, 0x74, 0x02, 0x6D]))),
        ("drbdmanage_control_volume", Silent(one(0, b"$DRBDmgr=q"))),
        ("drbdproxy_datalog", Silent(one(16, b"DRBDdlh*"))),
        ("LVM2_member", Header(one(512, b"LABELONE\x01\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001"))),
        ("LVM1_member", Header(one(0, b"HM\x01\0"))),
        ("DM_snapshot_cow", Header(one(0, b"SnAp"))),
        ("DM_verity_hash", Header(one(0, b"verity\0\0\x01\0\0\0"))),
        ("DM_integrity", Silent(one(0, b"integrt\0"))),
        ("crypto_LUKS", Header(one(0, b"LUKS\xBA\xBE\0\x01"))),
        ("cs_fvault2", Silent(one(88, b"CS\x01\0"))),
        ("VMFS_volume_member", Header(one(1 << 20, &[0x0D, 0xD0, 0x01, 0xC0]))),
        ("ubi", Header(one(0, b"UBI#"))),
        ("vdo", Header(one(0, b"dmvdo001"))),
        ("stratis", Silent(one(516, b"!Stra0tis\x86\xFF\x02^\x41rh"))),
        ("BitLocker", Silent(one(0, b"\xEB\x58\x90-FVE-FS-"))),
        ("zfs_member", Silent([0, 256].into_iter().flat_map(uberblocks).collect())),
        ("oracleasm", Header(one(32, b"ORCLDISK"))),
        ("mpool", Header(one(0, b"mpoolDev"))),
        ("swsuspend", Header(one(4096 - 10, b"S1SUSPEND"))),
        ("swap", Program("truncate -s 8M image; mkswap -q image")),
    ]
}

fn file_systems() -> Vec<(&'static str, How)> {
    let fat = with(
        512,
        &[
            (0, b"\xEB\x3C\x90"),
            (11, &[0, 2, 1, 1, 0, 2, 224, 0, 0x40, 0x0B, 0xF0, 9]),
            (510, &[0x55, 0xAA]),
        ],
    );
    let apfs = with(64, &[(24, &[1, 0]), (32, b"NXSB"), (36, &4096_u32.to_le_bytes())]);
    let udf = [(0, b"\0BEA01\x01"), (2048, b"\0NSR02\x01"), (4096, b"\0TEA01\x01")];
    let udf = udf.map(|(at, bytes)| (32768 + at, bytes.to_vec())).to_vec();
    let hfs = with(64, &[(0, b"BD"), (20, &4096_u32.to_be_bytes())]);
    let gfs =
        |version: u32| with(32, &[(0, &[0x01, 0x16, 0x19, 0x70]), (24, &version.to_be_bytes())]);
    let squashfs = |magic: &[u8], version: u8| with(32, &[(0, magic), (28, &[version])]);
    vec![
        ("vfat", Header(one(0, &fat))),
        (
            "xfs_external_log",
            Program("mkfs.xfs -q -f -l logdev=image,size=64m -d name=data,file,size=300m"),
        ),
        ("xfs", Program("mkfs.xfs -q -f -d name=image,file,size=300m")),
        ("exfs", Silent(one(0, b"EXFS"))),
        ("ext4dev", Program("mke2fs -q -t ext4 -E test_fs image 8M")),
        ("ext4", Program("mke2fs -q -t ext4 image 8M")),
        ("ext3", Program("mke2fs -q -t ext3 image 8M")),
        ("ext2", Program("mke2fs -q -t ext2 image 8M")),
        ("jbd", Program("mke2fs -q -O journal_dev image 8M")),
        ("reiserfs", Silent(one(65536 + 52, b"ReIsEr2Fs"))),
        ("reiser4", Header(one(65536, b"ReIsEr4"))),
        ("jfs", Silent(one(32768, b"JFS1"))),
        ("udf", Silent(udf)),
        ("iso9660", Header(one(32768, b"\x01CD001\x01"))),
        ("hfsplus", Silent(one(1024, b"H+\0\x04"))),
        ("hfs", Header(one(1024, &hfs))),
        ("ufs", Header(one(8192 + 1372, &0x0001_1954_u32.to_le_bytes()))),
        ("hpfs", Silent(one(8192, &[0x49, 0xE8, 0x95, 0xF9]))),
        ("sysv", Header(one(512 + 504, &0xFD18_7E20_u32.to_le_bytes()))),
        ("xenix", Header(one(2048, &[0x44, 0x55, 0x2B]))),
        ("ntfs", Silent(one(3, b"NTFS    "))),
        ("ReFS", Header(one(0, b"\0\0\0ReFS\0"))),
        ("cramfs", Program("mkdir tree; mkfs.cramfs tree image")),
        ("romfs", Header(one(0, b"-rom1fs-"))),
        ("minix", Program("truncate -s 8M image; mkfs.minix image")),
        ("gfs", Silent(one(65536, &gfs(1309)))),
        ("gfs2", Silent(one(65536, &gfs(1801)))),
        ("ocfs", Silent(one(8, b"OracleCFS"))),
        ("ocfs2", Silent(one(8192, b"OCFSV2"))),
        ("vxfs", Header(one(1024, &[0xF5, 0xFC, 0x01, 0xA5]))),
        ("squashfs", Header(one(0, &squashfs(b"hsqs", 4)))),
        ("squashfs3", Silent(one(0, &squashfs(b"hsqs", 3)))),
        ("nss", Header(one(4096, b"SPB5"))),
        ("btrfs", Program("truncate -s 120M image; mkfs.btrfs -q image")),
        ("ubifs", Header(one(0, &[0x31, 0x18, 0x10, 0x06]))),
        ("bfs", Program("truncate -s 8M image; mkfs.bfs image")),
        ("VMFS", Header(one(2 << 20, &[0x5E, 0xF1, 0xAB, 0x2F]))),
        ("befs", Silent(one(32, b"1SFB"))),
        ("nilfs2", Silent(one(1024, b"\x02\0\0\0\0\0\x34\x34"))),
        ("exfat", Silent(one(3, b"EXFAT   "))),
        ("f2fs", Header(one(1024, &[0x10, 0x20, 0xF5, 0xF2]))),
        ("apfs", Header(one(0, &apfs))),
        ("zonefs", Header(one(0, b"SFOZ"))),
        ("erofs", Header(one(1024, &[0xE2, 0xE1, 0xF5, 0xE0]))),
    ]
}

/// Partition tables other than GPT and MBR.
fn tables() -> Vec<(&'static str, How)> {
    let apple =
        [(0, b"ER\x02\0".to_vec()), (512, b"PM\0\0\0\0\0\x01\0\0\0\x01\0\0\0\x3F".to_vec())];
    vec![
        ("mac", Silent(apple.to_vec())),
        ("sgi", Silent(one(0, &[0x0B, 0xE5, 0xA9, 0x41]))),
        ("sun", Silent(one(508, &[0xDA, 0xBE, 0xDA, 0xBE]))),
        ("aix", Silent(one(0, &[0xC9, 0xC2, 0xD4, 0xC1]))),
    ]
}

/// Image formats that blkid does not list: the name in ironmap's error, and the command that makes an image.
const IMAGES: [(&str, &str); 8] = [
    ("VHD", "qemu-img create -q -f vpc image 8M"),
    ("VHD", "qemu-img create -q -f vpc -o subformat=fixed image 8M"),
    ("Parallels", "qemu-img create -q -f parallels image 8M"),
    ("VDI", "qemu-img create -q -f vdi image 8M"),
    ("VMDK", "qemu-img create -q -f vmdk image 8M"),
    ("VHDX", "qemu-img create -q -f vhdx image 8M"),
    ("qcow2", "qemu-img create -q -f qcow2 image 8M"),
    (
        "Android sparse",
        r"truncate -s 8M image; printf '\072\377\046\355\001\000' | dd of=image conv=notrunc status=none",
    ),
];

/// Makes `image`. Returns false, and prints the script, if the script fails.
fn make(bench: &Bench, name: &str, how: &How) -> bool {
    let path = bench.path("image");
    let _ = fs::remove_file(&path);
    match how {
        Program(script) => {
            let mut shell = tool("sh");
            shell.args(["-c", &format!("set -e; {script}")]).current_dir(bench.path("."));
            shell.stdout(Stdio::null()).stderr(Stdio::null());
            if !shell.status().unwrap().success() {
                eprintln!("skipped: {name}: {script}");
                return false;
            }
        }
        Header(parts) | Silent(parts) => {
            let file = File::create(&path).unwrap();
            for (at, bytes) in parts {
                file.write_all_at(bytes, *at).unwrap();
            }
        }
    }
    let file = File::options().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    // A fixed VHD is not extended, because its signature is at its end.
    if len < SIZE {
        file.set_len(SIZE).unwrap();
    }
    true
}

/// Runs commands that would overwrite `image`. Checks that each fails with one line that contains `says`, and leaves `image` unchanged.
fn refused(bench: &Bench, name: &str, says: &str) {
    let image = bench.path("image");
    let before = fs::read(&image).unwrap();
    let commands: [&[&str]; 6] = [
        &["mkfs", "-q", "image"],
        &["mkfs", "-q", "image", "1G"],
        &["clone", "small.img", "image"],
        &["integrity", "format", "image"],
        &["integrity", "format", "small.img,image"],
        &["tar", "-f", "image", "small.img:/"],
    ];
    for args in commands {
        let output = bench.run(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{name}: {args:?}: {error}");
        assert!(error.contains(says) && error.lines().count() == 1, "{name}: {args:?}: {error}");
    }
    assert!(fs::read(&image).unwrap() == before, "{name}: the image was changed");
}

fn types_of(image: &Path) -> BTreeSet<String> {
    let output = tool("wipefs").args(["-n", "--noheadings", "-O", "TYPE"]).arg(image).output();
    text(&output.unwrap().stdout).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn each_format_of_blkid_is_refused() {
    require!([Need::Tool("blkid"), Need::Tool("wipefs")]);
    let bench = Bench::empty();
    bench.succeed(["mkfs", "-q", "small.img", "1M"]);
    let rows: Vec<_> =
        [firmware(), containers(), file_systems(), tables()].into_iter().flatten().collect();
    let list = tool("blkid").arg("-k").output().unwrap();
    let list: BTreeSet<_> = text(&list.stdout).split_whitespace().map(str::to_owned).collect();
    let known: BTreeSet<_> = rows.iter().map(|(name, _)| (*name).to_owned()).collect();
    let missing: Vec<_> = list.difference(&known).collect();
    assert!(missing.is_empty(), "blkid knows more formats, which need a row here: {missing:?}");
    for (name, how) in &rows {
        if !make(&bench, name, how) {
            continue;
        }
        let named = types_of(&bench.path("image")).contains(*name);
        assert!(
            named || matches!(how, Silent(_)) || !list.contains(*name),
            "wipefs does not name this image: {name}"
        );
        refused(&bench, name, "");
    }
}

#[test]
fn each_image_is_refused_by_its_own_name() {
    require!([Need::Tool("qemu-img")]);
    let bench = Bench::empty();
    bench.succeed(["mkfs", "-q", "small.img", "1M"]);
    for (name, script) in IMAGES {
        if !make(&bench, name, &Program(script)) {
            continue;
        }
        refused(
            &bench,
            name,
            &format!("contains a{} {name} image", if name == "Android sparse" { "n" } else { "" }),
        );
        let read = bench.run(["ls", "image:/"]);
        assert_eq!(read.status.code(), Some(3), "{name}");
        assert!(text(&read.stderr).contains(&format!("{name} image")), "{}", text(&read.stderr));
    }
}

/// The signature of a suspended system is at the end of the first memory page. Its offset depends on the page size of the suspended
/// machine.
#[test]
fn a_suspended_system_is_refused_with_each_size_of_a_page() {
    let bench = Bench::empty();
    bench.succeed(["mkfs", "-q", "small.img", "1M"]);
    for page in [4096, 8192, 16384, 32768, 65536] {
        for mark in [&b"S1SUSPEND"[..], b"S2SUSPEND", b"ULSUSPEND", b"LINHIB0001"] {
            assert!(make(&bench, "swsuspend", &Header(one(page - 10, mark))));
            let output = bench.run(["mkfs", "-q", "image"]);
            assert_eq!(output.status.code(), Some(3), "{page}: {}", text(&output.stderr));
        }
    }
}
