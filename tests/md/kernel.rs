//! Arrays that the kernel makes and fills in a virtual machine (lab/md.sh). The kernel assembles each array again and compares its content
//! before the members leave the virtual machine. `./x lab md` runs these tests; `IRONMAP_MD_ONLY=NAME` selects the arrays whose names begin with
//! NAME.

use std::path::{Path, PathBuf};
use std::process::Command;

use ironmap::ErrorKind;
use ironmap::device::{Device, Ram};
use ironmap::md::{assemble, look};
use ironmap::prelude::*;

use crate::common::command::{output, run};
use crate::common::image::scratch;
use crate::common::rng::Rng;
use crate::common::skip::{Need, note};
use crate::{assert_content, choices, members, refusal, require};

const SEED: u64 = 0x4D44;
const UNAVAILABLE: i32 = 77;
const MIB: usize = 1 << 20;
/// The modules of the guest's kernel.
const MODULES: &str = "libcrc32c xor raid6_pq async_tx async_memcpy async_xor async_pq async_raid6_recov md-mod linear raid0 raid1 raid10 raid456 loop";

/// The result that the test expects when ironmap assembles the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    /// The array can be read. It can also be read if any members, up to this number of members, are missing.
    Complete(usize),
    /// The array can be read with all devices, and has a fault that contains this text.
    Faulty(&'static str),
    /// The array can be read only with all devices. If one device is missing, the array is refused with this text.
    Dirty(&'static str),
    /// ironmap refuses the array, and the message contains this text.
    Refused(&'static str),
}

use Is::{Complete, Dirty, Faulty, Refused};

/// Arrays: name, state, sizes of the devices in units of 512 bytes, number of devices that do not belong to the array at first, options of
/// mdadm, and the expectation. The sizes are odd, so that the ends of devices are tested.
type Case = (&'static str, &'static str, &'static [u32], u32, &'static str, Is);

const TWO: &[u32] = &[5003, 4999];
const THREE: &[u32] = &[5003, 4999, 5120];
const FOUR: &[u32] = &[5003, 4999, 5120, 5001];
const FIVE: &[u32] = &[5003, 4999, 5120, 5001, 5555];
const SIX: &[u32] = &[5003, 4999, 5120, 5001, 5555, 5013];
const UNEQUAL: &[u32] = &[5003, 7777, 6144, 7777];

const CASES: &[Case] = &[
    ("linear", "clean", UNEQUAL, 0, "-e 1.2 -l linear", Complete(0)),
    ("linear-old", "clean", UNEQUAL, 0, "-e 0.90 -l linear -c 64", Complete(0)),
    ("raid0", "clean", THREE, 0, "-e 1.2 -l 0 -c 4", Complete(0)),
    ("raid0-odd", "clean", THREE, 0, "-e 1.1 -l 0 -c 12", Complete(0)),
    ("raid0-original", "clean", UNEQUAL, 0, "-e 1.2 -l 0 -c 16 --layout=original", Complete(0)),
    ("raid0-alternate", "clean", UNEQUAL, 0, "-e 1.0 -l 0 -c 8 --layout=alternate", Complete(0)),
    ("raid0-odd-zones", "clean", UNEQUAL, 0, "-l 0 -c 12 --layout=original", Complete(0)),
    ("raid0-unknown", "unknown", UNEQUAL, 0, "-l 0 -c 16", Refused("does not name the layout")),
    ("raid1", "clean", TWO, 0, "-e 1.0 -l 1", Complete(1)),
    ("raid1-old", "clean", THREE, 0, "-e 0.90 -l 1", Complete(2)),
    ("raid1-bitmap", "clean", THREE, 0, "-e 1.2 -l 1 --bitmap=internal", Complete(2)),
    ("raid1-stale", "stale", TWO, 0, "-e 1.2 -l 1", Faulty("1 is left out")),
    ("raid1-recovering", "recovering", THREE, 1, "-e 1.2 -l 1", Faulty("not completely in sync")),
    ("raid1-bad", "bad", TWO, 0, "-e 1.2 -l 1 -a yes", Faulty("")),
    ("raid1-dirty", "dirty", TWO, 0, "-e 1.2 -l 1", Faulty("not stopped cleanly")),
    ("raid10-4", "clean", FOUR, 0, "-e 1.2 -l 10 -p n2 -c 4", Complete(1)),
    ("raid10-3", "clean", THREE, 0, "-e 1.0 -l 10 -p n2 -c 16", Complete(1)),
    ("raid10-5", "clean", FIVE, 0, "-e 1.1 -l 10 -p n3 -c 4", Complete(2)),
    ("raid10-old", "clean", FIVE, 0, "-e 0.90 -l 10 -p n2 -c 64", Complete(1)),
    ("raid10-bad", "bad", THREE, 0, "-e 1.2 -l 10 -p n2 -c 4", Faulty("")),
    ("raid10-stale", "stale", FOUR, 0, "-e 1.2 -l 10 -p n2 -c 4", Faulty("1 is left out")),
    ("raid10-far", "clean", FOUR, 0, "-l 10 -p f2 -c 4", Refused("is far")),
    ("raid10-offset", "clean", FOUR, 0, "-l 10 -p o2 -c 4", Refused("is offset")),
    ("raid4", "clean", THREE, 0, "-e 1.1 -l 4 -c 4", Complete(1)),
    ("raid4-old", "clean", FOUR, 0, "-e 0.90 -l 4 -c 16", Complete(1)),
    ("raid5-2", "clean", TWO, 0, "-l 5 -c 8", Complete(1)),
    ("raid5-la", "clean", FOUR, 0, "-e 1.0 -l 5 -c 4 -p la", Complete(1)),
    ("raid5-ra", "clean", THREE, 0, "-e 1.1 -l 5 -c 4 -p ra", Complete(1)),
    ("raid5-ls", "clean", FIVE, 0, "-e 1.2 -l 5 -c 4 -p ls", Complete(1)),
    ("raid5-rs", "clean", FOUR, 0, "-e 1.2 -l 5 -c 16 -p rs", Complete(1)),
    ("raid5-first", "clean", FOUR, 0, "-l 5 -c 4 -p parity-first", Complete(1)),
    ("raid5-last", "clean", FOUR, 0, "-l 5 -c 4 -p parity-last", Complete(1)),
    ("raid5-old", "clean", FIVE, 0, "-e 0.90 -l 5 -c 8", Complete(1)),
    ("raid5-bitmap", "clean", THREE, 0, "-l 5 -c 4 --bitmap=internal", Complete(1)),
    ("raid5-ppl", "clean", THREE, 0, "-l 5 -c 4 --consistency-policy=ppl", Complete(1)),
    ("raid5-stale", "stale", FOUR, 0, "-l 5 -c 4", Faulty("1 is left out")),
    ("raid5-recovering", "recovering", FIVE, 1, "-l 5 -c 4", Faulty("not completely in sync")),
    ("raid5-replacing", "replacing", FOUR, 1, "-l 5 -c 4", Faulty("replacement")),
    ("raid5-bad", "bad", FOUR, 0, "-l 5 -c 4", Faulty("")),
    ("raid5-dirty", "dirty", THREE, 0, "-l 5 -c 4", Dirty("not stopped cleanly")),
    ("raid5-dirty-ppl", "dirty", THREE, 0, "-l 5 -c 4 --consistency-policy=ppl", Dirty("cleanly")),
    ("raid5-reshaping", "reshaping", FOUR, 1, "-l 5 -c 4", Refused("being reshaped")),
    ("raid5-journal", "clean", FOUR, 0, JOURNALED, Refused("write journal")),
    ("raid6-la", "clean", FIVE, 0, "-e 1.0 -l 6 -c 4 -p la", Complete(2)),
    ("raid6-ra", "clean", FIVE, 0, "-e 1.1 -l 6 -c 4 -p ra", Complete(2)),
    ("raid6-ls", "clean", SIX, 0, "-e 1.2 -l 6 -c 4 -p ls", Complete(2)),
    ("raid6-rs", "clean", FOUR, 0, "-l 6 -c 16 -p rs", Complete(2)),
    ("raid6-first", "clean", FIVE, 0, "-l 6 -c 4 -p parity-first", Complete(2)),
    ("raid6-last", "clean", FIVE, 0, "-l 6 -c 4 -p parity-last", Complete(2)),
    ("raid6-la-6", "clean", FIVE, 0, "-l 6 -c 4 -p left-asymmetric-6", Complete(2)),
    ("raid6-ra-6", "clean", FIVE, 0, "-l 6 -c 4 -p right-asymmetric-6", Complete(2)),
    ("raid6-ls-6", "clean", FIVE, 0, "-l 6 -c 4 -p left-symmetric-6", Complete(2)),
    ("raid6-rs-6", "clean", FIVE, 0, "-l 6 -c 4 -p right-symmetric-6", Complete(2)),
    ("raid6-first-6", "clean", FIVE, 0, "-l 6 -c 4 -p parity-first-6", Complete(2)),
    ("raid6-ddf", "clean", FIVE, 0, "-l 6 -c 4 -p ddf-N-continue", Complete(2)),
    ("raid6-old", "clean", SIX, 0, "-e 0.90 -l 6 -c 8", Complete(2)),
    ("raid6-stale", "stale", FIVE, 0, "-l 6 -c 4", Faulty("1 is left out")),
    ("raid6-bad", "bad", FIVE, 0, "-l 6 -c 4", Faulty("")),
    ("raid6-dirty", "dirty", FOUR, 0, "-l 6 -c 4", Dirty("not stopped cleanly")),
];

const JOURNALED: &str = "-l 5 -c 4 --write-journal=/dev/loop3";

impl Is {
    /// The number of devices that mdadm gets when it creates the array.
    fn members(case: &Case) -> u32 {
        let journal = u32::from(case.4 == JOURNALED);
        case.2.len() as u32 - case.3 - journal
    }
}

/// The line of text that describes an array to the program in the guest.
fn line(case: &Case) -> String {
    let (name, state, sizes, extra, options, _) = *case;
    let sizes: Vec<_> = sizes.iter().map(|size| (size * 512).to_string()).collect();
    let extra = extra + u32::from(options == JOURNALED);
    let count = Is::members(case);
    format!("{name} {state} {} {extra} -n {count} {options}\n", sizes.join(","))
}

/// Runs the guest. Returns its output, and the disk with the members. `None` if there is no virtual machine.
fn boot(dir: &Path, pattern: &[u8]) -> Option<(String, PathBuf)> {
    let (files, disk) = (dir.join("files"), dir.join("disk"));
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("pattern"), pattern).unwrap();
    std::fs::write(files.join("other"), Rng::new(SEED + 1).bytes(pattern.len())).unwrap();
    let only = std::env::var("IRONMAP_MD_ONLY").unwrap_or_default();
    let cases = CASES.iter().filter(|case| case.0.starts_with(&only));
    std::fs::write(files.join("list"), cases.map(line).collect::<String>()).unwrap();
    std::fs::File::create(&disk).unwrap().set_len(2 << 30).unwrap();
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/boot.sh"));
    command.args(["md.sh", "mdadm"]).env("LAB_FILES", &files).env("LAB_DISKS", &disk);
    command.env("LAB_MODULES", MODULES).env("LAB_SECONDS", "1800");
    command.env("LAB_CONSOLE", dir.join("console"));
    let output = command.output().expect("the lab's script");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.code() == Some(UNAVAILABLE) {
        note("md::kernel", text.lines().last().unwrap_or_default());
        return None;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{errors}", output.status);
    Some((text, disk))
}

/// ironmap reads the same bytes from every array as the kernel, with all members and without each set of members that may be missing. If
/// one more member is missing, or if the state of the array cannot be read, ironmap refuses the array, and the error names the reason. The
/// description of each member agrees with `mdadm --examine`.
#[test]
fn arrays_are_read_as_the_kernel_wrote_them() {
    require!([
        Need::Variable("IRONMAP_MD_LAB"),
        Need::Tool("qemu-system-x86_64"),
        Need::Tool("mdadm")
    ]);
    let dir = scratch();
    let pattern = Rng::new(SEED).bytes(16 * MIB);
    let Some((said, disk)) = boot(dir.path(), &pattern) else { return };
    println!("{}", said.lines().find(|line| line.starts_with("lab: Linux")).unwrap_or_default());
    let volume = Volume::open(disk.as_path()).unwrap();
    let mut faults = Vec::new();
    for case in CASES {
        let prefix = format!("lab: md {} ", case.0);
        let Some(result) = said.lines().find_map(|line| line.strip_prefix(&prefix)) else {
            continue;
        };
        let Some((bytes, "made")) = result.split_once(' ') else {
            if result.ends_with("missing") {
                note(&format!("md::kernel, {}", case.0), "this kernel lacks the level");
            } else {
                let before = said.split(&prefix).next().unwrap_or_default();
                let message = before.rsplit("lab: md ").next().unwrap_or_default();
                faults.push(format!("{}: {message}", case.0));
            }
            continue;
        };
        let read = |index| volume.read(format!("/{}.{index}", case.0)).unwrap();
        let images: Vec<Vec<u8>> = (0..case.2.len()).map(read).collect();
        check(case, &images, &pattern[..bytes.parse().unwrap()]);
        for (index, image) in images.iter().enumerate() {
            examine(dir.path(), image, &format!("{}.{index}", case.0));
        }
        println!("{}: {bytes} bytes", case.0);
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

fn check(case: &Case, images: &[Vec<u8>], content: &[u8]) {
    let (name, .., is) = *case;
    let assembled = |without: &[usize]| {
        let what = format!("{name} without {without:?}");
        let array = assemble(members(images, without));
        let array = array.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_content(&array, content, &what, SEED);
        (array.faults().join("\n"), array.to_string())
    };
    let refused = |without: &[usize], kind: ErrorKind, text: &str| {
        let error = refusal(members(images, without));
        assert!(error.kind() == kind && error.to_string().contains(text), "{name}: {error}");
    };
    match is {
        Complete(spared) => {
            for count in 0..=spared {
                for without in choices(images.len(), count) {
                    let (faults, shown) = assembled(&without);
                    assert_eq!(faults.lines().count(), count, "{name}: {faults}");
                    let used = images.len() - count;
                    assert!(shown.contains(&format!(" {used} of {} ", images.len())), "{shown}");
                }
            }
            let more = if spared + 1 < images.len() { spared + 1 } else { 0 };
            for without in choices(images.len(), more).into_iter().filter(|_| more > 0) {
                // RAID 10 can lose more members if they have no chunk in common.
                if name.starts_with("raid10") && assemble(members(images, &without)).is_ok() {
                    assembled(&without);
                } else {
                    refused(&without, ErrorKind::NotFound, "missing");
                }
            }
        }
        Faulty(text) => {
            let (faults, _) = assembled(&[]);
            assert!(faults.contains(text), "{name}: {faults}");
        }
        Dirty(text) => {
            let (faults, _) = assembled(&[]);
            assert!(faults.contains(text), "{name}: {faults}");
            refused(&[1], ErrorKind::Unsupported, text);
        }
        Refused(text) => refused(&[], ErrorKind::Unsupported, text),
    }
}

/// Compares the description of a member with `mdadm --examine`.
fn examine(dir: &Path, image: &[u8], what: &str) {
    let path = dir.join("member");
    std::fs::write(&path, image).unwrap();
    let shown = String::from_utf8(run("mdadm", &["--examine".as_ref(), path.as_os_str()])).unwrap();
    let device: &dyn Device = &Ram::from_image(image);
    let found = look(device).unwrap().unwrap_or_else(|| panic!("{what}: no superblock"));
    let field = |names: &[&str]| {
        let line = shown.lines().find_map(|line| {
            let (name, value) = line.split_once(" : ")?;
            names.contains(&name.trim()).then(|| value.trim().to_owned())
        });
        line.unwrap_or_else(|| panic!("{what}: no {names:?} in {shown}"))
    };
    let uuid = field(&["Array UUID", "UUID"]);
    assert_eq!(Some(found.uuid.as_str()), uuid.split(' ').next(), "{what}");
    let ours = found.to_string();
    let level = field(&["Raid Level"]).replace("raid", "RAID ");
    assert!(ours.contains(&level), "{what}: {ours}, {level}");
    let devices = format!(" of {} devices", field(&["Raid Devices"]));
    assert!(ours.contains(&devices), "{what}: {ours}, {devices}");
    // mdadm pads the version in its output, and shows the role of a member only for version 1.
    let version = field(&["Version"]);
    assert!(ours.contains(&format!("metadata {version}").replace(".00", "")), "{what}: {version}");
    if version != "0.90.00" {
        let role = field(&["Device Role"]).to_lowercase();
        let role = role.replace("active ", "").replace("replacement ", "");
        assert!(ours.contains(&role), "{what}: {ours}, {role}");
    }
    let _ = output("rm", &[path]);
}
