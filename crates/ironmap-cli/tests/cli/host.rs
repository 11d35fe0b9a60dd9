//! Tests `host`, `map`, `stat`, `cat` and `bench` on files of mounted file systems. The commands report how the files are served. They
//! return the same content as the kernel.

use crate::require;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::mounted::Mounted;
use crate::common::skip::Need;
use crate::support::{Bench, IRONMAP, pattern, succeed, text, tool};
use serde_json::Value;

const BLOCK: u64 = 4096;

fn json(args: &[&str]) -> Value {
    let output = succeed(Command::new(IRONMAP).args(args));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The output of `ironmap host --json` for a file.
fn report(path: &Path, options: &[&str]) -> Value {
    let path = path.to_str().unwrap();
    let files = json(&[&["host", "--json", path], options].concat());
    let [file] = &files.as_array().unwrap()[..] else { panic!("{files}") };
    assert_eq!(file["path"], path);
    file.clone()
}

/// The location `host:PATH` of a file.
fn target(path: &Path) -> String {
    format!("host:{}", path.display())
}

/// A file with data, holes and a preallocated range.
fn holes(mounted: &Mounted) -> PathBuf {
    let path = mounted.path("holes");
    let file = File::create(&path).unwrap();
    for (at, blocks) in [(0, 16), (256, 32), (1024, 100)] {
        file.write_all_at(&pattern((blocks * BLOCK) as usize, at), at * BLOCK).unwrap();
    }
    let range = ["--offset", "2097152", "--length", "262144", "--keep-size"];
    succeed(tool("fallocate").args(range).arg(&path));
    file.sync_all().unwrap();
    path
}

/// The extents of a file, from filefrag. The values are the position in the file, the position on the device, the length, and whether the
/// extent is unwritten. Positions and lengths are in bytes. Adjacent extents are joined. Unwritten extents past the end are omitted,
/// because they are never read.
fn filefrag(path: &Path) -> Vec<(u64, u64, u64, bool)> {
    let output = succeed(tool("filefrag").args(["-s", "-v", "-b4096"]).arg(path));
    let size = fs::metadata(path).unwrap().len();
    let mut extents: Vec<(u64, u64, u64, bool)> = Vec::new();
    for line in text(&output.stdout).lines() {
        let mut fields = line.split(':');
        if fields.next().is_none_or(|index| index.trim().parse::<u32>().is_err()) {
            continue;
        }
        let mut number = || {
            let field = fields.next().unwrap();
            field.split("..").next().unwrap().trim().parse::<u64>().unwrap() * BLOCK
        };
        let (pos, place, len) = (number(), number(), number());
        let unwritten = line.contains("unwritten");
        if pos >= size {
            continue;
        }
        match extents.last_mut() {
            Some((before, at, length, state))
                if (*before + *length, *at + *length, *state) == (pos, place, unwritten) =>
            {
                *length += len;
            }
            _ => extents.push((pos, place, len, unwritten)),
        }
    }
    assert!(!extents.is_empty(), "{}", text(&output.stdout));
    extents
}

#[test]
fn files_without_writers_are_read_raw() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs"), Need::Tool("filefrag")]);
    for (name, mounted) in [("ext4", Mounted::ext4()), ("xfs", Mounted::xfs())] {
        let path = holes(&mounted);
        let found = report(&path, &[]);
        assert_eq!(found["served_by"], "raw", "{found}");
        assert!(found.get("refusal").is_none(), "{found}");
        assert_eq!(found["file_system"], name);
        assert_eq!((&found["block_size"], &found["shared"]), (&4096.into(), &false.into()));
        assert_eq!(found["size"], fs::metadata(&path).unwrap().len());
        assert_eq!(found["lease"], serde_json::json!({"state": "stands", "breaks": 0}));
        let device = &found["device"];
        assert_eq!(device["device_path"], mounted.device(), "{found}");
        assert_eq!((&device["kind"], &device["base"]), (&"file_system".into(), &0.into()));
        assert!(device["choice"].as_str().unwrap().starts_with(mounted.device()), "{found}");

        let map = json(&["map", "--json", &target(&path)]);
        assert_eq!((&map["served_by"], &map["size"]), (&found["served_by"], &found["size"]));
        let extents: Vec<_> = map["extents"].as_array().unwrap().iter().map(extent).collect();
        assert_eq!(extents, filefrag(&path), "{name}");
        assert_eq!(found["extents"], extents.len());
        assert!(extents.iter().any(|extent| extent.3), "{name}: nothing is preallocated");

        let cat = succeed(Command::new(IRONMAP).args(["cat", &target(&path)]));
        assert!(cat.stdout == fs::read(&path).unwrap(), "{name}: the bytes differ");

        let shown = text(&succeed(Command::new(IRONMAP).arg("host").arg(&path)).stdout);
        for says in ["Served by: raw", "Lease: stands", mounted.device()] {
            assert!(shown.contains(says), "{says}: {shown}");
        }
    }
}

fn extent(record: &Value) -> (u64, u64, u64, bool) {
    let of = |name: &str| record[name].as_u64().unwrap();
    let unwritten = record["flags"].as_array().unwrap().iter().any(|flag| flag == "unwritten");
    (of("logical"), of("physical"), of("length"), unwritten)
}

#[test]
fn xfs_with_reflink_needs_the_immutable_flag_or_a_promise() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs"), Need::Tool("chattr")]);
    let mounted = Mounted::xfs_with_reflink();
    let path = mounted.write("file", &pattern(1 << 20, 7));
    let found = report(&path, &[]);
    assert_eq!(
        (&found["served_by"], &found["refusal"]["name"]),
        (&"kernel".into(), &"dedupe".into())
    );
    assert!(found["refusal"]["reason"].as_str().unwrap().contains("chattr +i"), "{found}");
    assert!(found.get("extents").is_none() && found.get("shared").is_none(), "{found}");
    assert_eq!(found["lease"]["state"], "none");
    assert_eq!(report(&path, &["--assume-no-dedupe"])["served_by"], "raw");
    succeed(tool("chattr").arg("+i").arg(&path));
    assert_eq!(report(&path, &[])["served_by"], "raw");
    let cat = succeed(Command::new(IRONMAP).args(["cat", &target(&path)]));
    assert!(cat.stdout == pattern(1 << 20, 7));
}

#[test]
fn a_file_with_a_writer_is_served_by_the_kernel() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let path = mounted.write("file", b"written");
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    let found = report(&path, &[]);
    assert_eq!(
        (&found["served_by"], &found["refusal"]["name"]),
        (&"kernel".into(), &"writers".into())
    );
    assert_eq!(found["lease"]["state"], "waits");
    drop(writer);
    assert_eq!(report(&path, &[])["served_by"], "raw");
}

/// A file system in memory is refused before its device is queried. Therefore this test does not need root.
#[test]
fn files_that_the_kernel_serves_are_named_and_read() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("file");
    fs::write(&path, pattern(100_000, 9)).unwrap();
    let reason = "files of tmpfs can only be read through the kernel";
    let found = report(&path, &[]);
    assert_eq!(found["refusal"]["reason"], reason);
    assert_eq!(found["refusal"]["name"], "file_system");
    assert!(found.get("file_system").is_none() && found.get("device").is_none(), "{found}");

    let map = json(&["map", "--json", &target(&path)]);
    assert_eq!((&map["served_by"], &map["refusal"]), (&"kernel".into(), &found["refusal"]));
    assert!(map.get("extents").is_none(), "{map}");
    let map = text(&succeed(Command::new(IRONMAP).args(["map", &target(&path)])).stdout);
    assert!(map.contains(&format!("Served by the kernel: {reason}\n")), "{map}");

    let cat = Command::new(IRONMAP).args(["cat", &target(&path)]).output().unwrap();
    assert!(cat.status.success() && cat.stdout == pattern(100_000, 9));
    let note = format!("ironmap: note: {}: read through the kernel: {reason}\n", path.display());
    assert_eq!(text(&cat.stderr), note);

    let args = ["--bs", "4k", "--rounds", "1", "--runtime", "0.01"];
    let bench = succeed(Command::new(IRONMAP).args(["bench", &target(&path)]).args(args));
    let note = format!("note: host simple=1: served by the kernel: {reason}\n");
    assert_eq!(text(&bench.stdout).matches(&note).count(), 1, "{}", text(&bench.stdout));
}

#[test]
fn stat_says_what_the_kernel_says() {
    let bench = Bench::empty();
    let path = bench.path("file");
    fs::write(&path, pattern(5000, 3)).unwrap();
    let real = fs::metadata(&path).unwrap();
    let found = bench.json(&["stat", "--json", &target(&path)]);
    for (name, value) in [
        ("inode", real.ino()),
        ("mode", real.mode().into()),
        ("links", real.nlink()),
        ("uid", real.uid().into()),
        ("size", real.len()),
        ("blocks", real.blocks()),
    ] {
        assert_eq!(found[name], value, "{name}");
    }
    assert_eq!(found["type"], "regular");
    assert!(found["served_by"] == "raw" || found["refusal"]["reason"].is_string(), "{found}");
    let shown = text(&bench.succeed(["stat", &target(&path)]));
    assert!(shown.contains("\nServed by: "), "{shown}");

    std::os::unix::fs::symlink("file", bench.path("link")).unwrap();
    let link = bench.json(&["stat", "--json", "host:link"]);
    assert_eq!((&link["type"], &link["target"]), (&"symlink".into(), &"file".into()));
    assert!(link.get("served_by").is_none(), "{link}");
    assert_eq!(bench.json(&["stat", "--json", "-L", "host:link"])["inode"], real.ino());
}

/// If one of several files cannot be opened, the other files are still reported. The exit code reports the failure.
#[test]
fn a_file_that_cannot_be_opened_is_a_failure_and_the_others_are_not() {
    let bench = Bench::empty();
    fs::write(bench.path("file"), "text").unwrap();
    let output = bench.run(["host", "--json", "missing", "file", "."]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert_eq!(
        errors.lines().collect::<Vec<_>>(),
        [
            "ironmap: missing: No such file or directory (ENOENT)",
            "ironmap: .: is a directory (EISDIR)"
        ]
    );
    let files: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(files.as_array().unwrap().len(), 1);
    assert_eq!(files[0]["path"], "file");
    for command in ["map", "cat", "stat"] {
        assert_eq!(bench.run([command, "host:missing"]).status.code(), Some(1), "{command}");
    }
    for command in ["ls", "info"] {
        assert_ne!(bench.run([command, "host:file"]).status.code(), Some(0), "{command}");
    }
}

#[test]
fn bench_reads_a_host_file_raw_beside_the_device_and_the_kernel() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let path = mounted.write("file", &pattern(8 << 20, 11));
    let (raw, kernel) = (format!("raw:{}", mounted.device()), format!("kernel:{}", path.display()));
    for engine in ["psync", "io_uring", "null"] {
        let args = ["--engine", engine, "--rounds", "1", "--runtime", "0.02", "--json", "-"];
        let output = succeed(
            Command::new(IRONMAP)
                .args(["bench", &raw, &target(&path), &kernel, "--simple", "both"])
                .args(args),
        );
        let shown = text(&output.stdout);
        let document: Value = serde_json::from_str(&shown[shown.find('{').unwrap()..]).unwrap();
        let [_, off, on, _] = &document["results"].as_array().unwrap()[..] else {
            panic!("{shown}")
        };
        assert_eq!((&off["simple"], &on["simple"]), (&0.into(), &1.into()));
        assert_eq!(off["counters"]["simple_hits"], 0);
        assert!(on["counters"]["simple_hits"].as_u64() > Some(0), "{shown}");
        for row in [off, on] {
            assert!(row["counters"].get("kernel_served").is_none(), "{engine}: {shown}");
        }
        assert!(shown.contains("note: host simple=1: through /dev/loop"), "{shown}");
    }
}
