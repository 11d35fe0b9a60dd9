//! Power cuts of a machine with a volume in a qcow2 image. strace records each write and each sync of the image file. From this log, the
//! test makes files as they may be after a power cut. QEMU and e2fsck check these files.

use std::fs;
use std::path::Path;

use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, IRONMAP, succeed, text, tool};

const SECTOR: usize = 512;
/// The number of commands. After a command has ended, its result must survive a power cut.
const COPIES: usize = 4;

/// A change of the image's file.
enum Step {
    Write(usize, Vec<u8>),
    Sync,
    /// A command has ended.
    Ended,
}

/// After a power cut at any moment, three rules hold. QEMU repairs an image that is marked as dirty, and finds no other fault. After the
/// recovery of its journal, the volume is sound. The files of ended commands exist. `IRONMAP_POWER_CUTS` sets the number of cuts for each
/// image.
#[test]
fn a_volume_in_an_image_survives_power_cuts() {
    require!([Need::Tool("qemu-img"), Need::Tool("strace")]);
    let cuts = std::env::var("IRONMAP_POWER_CUTS").map_or(12, |text| text.parse().unwrap());
    let images: [(&str, &[&str]); 4] = [
        ("over a raw image", &["create", "-F", "raw", "-b", "image"]),
        ("small clusters", &["convert", "-f", "raw", "image", "-o", "cluster_size=4k"]),
        (
            "smallest clusters, a refcount table that grows",
            &["convert", "-f", "raw", "image", "-o", "cluster_size=512,refcount_bits=64"],
        ),
        ("compressed", &["convert", "-f", "raw", "image", "-c"]),
    ];
    for (seed, (name, make)) in (1..).zip(images) {
        let bench = Bench::new();
        let mut qemu = tool("qemu-img");
        // The format is inserted before the other options, because the image is the last argument of `create`.
        qemu.arg(make[0]).args(["-q", if make[0] == "create" { "-f" } else { "-O" }, "qcow2"]);
        succeed(qemu.args(&make[1..]).arg("disk").current_dir(bench.path(".")));
        let disk = bench.path("disk");
        let before = fs::read(&disk).unwrap();
        let steps = record(&bench, &disk);
        // The refcount table has grown if its position or its length in the header has changed.
        let grown = fs::read(&disk).unwrap()[48..60] != before[48..60];
        assert_eq!(grown, name.contains("grows"), "{name}");
        let mut rng = Rng::new(seed);
        for round in 0..cuts {
            let at = rng.below(steps.len() as u64 + 1) as usize;
            let what = format!("{name}: cut at {at} of {} steps, round {round}", steps.len());
            fs::write(bench.path("torn"), torn(&before, &steps[..at], &mut rng)).unwrap();
            let ended = steps[..at].iter().filter(|step| matches!(step, Step::Ended)).count();
            judge(&bench, ended, &what);
        }
    }
}

/// Runs commands on a volume. Returns the changes of the image file in order.
fn record(bench: &Bench, disk: &Path) -> Vec<Step> {
    let log = bench.path("log");
    let one = |number: usize| {
        let source = bench.source();
        // The shell's `cd` marks the end of the command in the log.
        format!(
            "'{IRONMAP}' cp -a '{}' 'qcow2:disk:/{number}' && cd . || exit 1; ",
            source.display()
        )
    };
    let script: String = (0..COPIES).map(one).collect();
    let mut strace = tool("strace");
    strace.args(["-f", "-y", "-xx", "-s", "2000000", "-e", "signal=none", "-o"]).arg(&log);
    strace.args(["-e", "trace=pwritev,pwritev2,pwrite64,fdatasync,fallocate,ftruncate,chdir"]);
    succeed(strace.args(["sh", "-c", &script]).current_dir(bench.path(".")));
    let disk = disk.canonicalize().unwrap().into_os_string().into_encoded_bytes();
    let place: String = disk.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let place = format!("<{place}>");
    let steps: Vec<Step> =
        fs::read_to_string(log).unwrap().lines().filter_map(|line| step(line, &place)).collect();
    assert_eq!(steps.iter().filter(|step| matches!(step, Step::Ended)).count(), COPIES);
    assert!(steps.iter().filter(|step| matches!(step, Step::Sync)).count() > COPIES);
    steps
}

/// Parses a line of strace. Calls of other threads can interrupt a call. Such a call has two lines, and the first line contains all
/// arguments.
fn step(line: &str, disk: &str) -> Option<Step> {
    let (_, call) = line.split_once(' ')?;
    let call = call.trim_start();
    if call.starts_with("chdir(") {
        return Some(Step::Ended);
    }
    let (name, arguments) = call.split_once('(')?;
    let (file, rest) = arguments.split_once(|sign| ",)".contains(sign) || sign == ' ')?;
    if !file.ends_with(disk) {
        return None;
    }
    match name {
        "fdatasync" => Some(Step::Sync),
        "pwritev" => {
            let bytes = rest.split('"').skip(1).step_by(2).flat_map(bytes_of).collect();
            let end = rest.rfind(['<', ')'])?;
            let at = rest[..end].trim_end().rsplit(' ').next()?.parse().ok()?;
            Some(Step::Write(at, bytes))
        }
        // Space is reserved, and neither the size nor the content changes.
        "fallocate" if rest.contains("FALLOC_FL_KEEP_SIZE, ") => None,
        _ => {
            panic!("the image's file is changed in a way that this test does not know: {call:.200}")
        }
    }
}

fn bytes_of(hex: &str) -> impl Iterator<Item = u8> + '_ {
    hex.split("\\x").skip(1).map(|byte| u8::from_str_radix(byte, 16).unwrap())
}

/// Returns the file as it may be after a power cut. The file contains everything that was synced, and any sectors of each later write.
fn torn(before: &[u8], steps: &[Step], rng: &mut Rng) -> Vec<u8> {
    let mut file = before.to_vec();
    let synced = steps.iter().rposition(|step| matches!(step, Step::Sync)).unwrap_or(0);
    for (number, step) in steps.iter().enumerate() {
        let Step::Write(at, bytes) = step else { continue };
        // A write past the end extends the file, even if its bytes are lost.
        if file.len() < at + bytes.len() {
            file.resize(at + bytes.len(), 0);
        }
        let (mut at, mut left) = (*at, &bytes[..]);
        while !left.is_empty() {
            let unit = if is_superblock(left) { 2 * SECTOR } else { SECTOR - at % SECTOR };
            let (sectors, rest) = left.split_at(left.len().min(unit));
            if number < synced || rng.below(2) == 0 {
                file[at..at + sectors.len()].copy_from_slice(sectors);
            }
            (at, left) = (at + sectors.len(), rest);
        }
    }
    file
}

/// Whether these bytes begin with a superblock of ext4. The test does not tear superblocks. A superblock has two sectors but one checksum,
/// and Linux does not mount a volume with a torn superblock.
fn is_superblock(bytes: &[u8]) -> bool {
    bytes.get(56..58) == Some(&[0x53, 0xef])
}

fn judge(bench: &Bench, ended: usize, what: &str) {
    let qemu = |args: &[&str]| {
        let output = tool("qemu-img").args(args).current_dir(bench.path(".")).output().unwrap();
        let text = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{what}: qemu-img {args:?}: {text}");
    };
    let marked = fs::read(bench.path("torn")).unwrap()[79] & 1 != 0;
    assert!(!marked, "{what}: the image is marked as dirty");
    // The image can be used without a repair. At worst, some of its clusters are allocated but not used.
    let listed = bench.run(["ls", "qcow2:torn:/"]);
    assert!(listed.status.success(), "{what}: {}", text(&listed.stderr));
    qemu(&["check", "-q", "-r", "leaks", "torn"]);
    qemu(&["check", "-q", "torn"]);
    qemu(&["convert", "-O", "raw", "torn", "flat"]);
    let e2fsck = |options: &[&str]| {
        let output = tool("e2fsck").args(options).arg(bench.path("flat")).output().unwrap();
        let found = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.code() < Some(2), "{what}: e2fsck {options:?}: {found}");
        output.status.code()
    };
    e2fsck(&["-y", "-E", "journal_only"]);
    assert_eq!(e2fsck(&["-fn"]), Some(0), "{what}");
    for number in 0..ended {
        let out = format!("out{number}");
        let copied = bench.run(["cp", "-a", &format!("flat:/{number}"), &out]);
        assert!(copied.status.success(), "{what}: {}", text(&copied.stderr));
        let mut diff = tool("diff");
        succeed(diff.args(["-r", "--no-dereference"]).arg(bench.source()).arg(bench.path(&out)));
        fs::remove_dir_all(bench.path(&out)).unwrap();
    }
}
