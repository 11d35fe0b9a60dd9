//! `clone`: copies of whole devices, images and exports.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};

/// A sparse image that contains a volume, and data up to its last sector. The image has 48 MiB and one sector.
fn sparse(bench: &Bench) -> Vec<u8> {
    let file = fs::File::create(bench.path("source.img")).unwrap();
    file.write_all_at(&fs::read(bench.image()).unwrap()[..8 << 20], 0).unwrap();
    file.write_all_at(&pattern(70_000, 3), 20 << 20 | 4096).unwrap();
    file.write_all_at(&pattern(512, 4), 48 << 20).unwrap();
    drop(file);
    fs::read(bench.path("source.img")).unwrap()
}

/// The bytes of a location, as qemu-img reads them.
fn by_qemu(bench: &Bench, format: &str, what: &str) -> Vec<u8> {
    let convert = ["convert", "-f", format, "-O", "raw", what, "by-qemu"];
    succeed(tool("qemu-img").args(convert).current_dir(bench.path(".")));
    fs::read(bench.path("by-qemu")).unwrap()
}

/// Every byte is copied, even over older data, and holes stay holes. The sources and targets are raw images, qcow2 images, parts of images,
/// and exports.
#[test]
fn every_byte_arrives_and_holes_stay() {
    require!([Need::Tool("qemu-img"), Need::Tool("nbdkit")]);
    let bench = Bench::new();
    let expected = sparse(&bench);
    let len = expected.len();
    let allocated = |name: &str| fs::metadata(bench.path(name)).unwrap().blocks() * 512;
    bench.succeed(["clone", "source.img", "raw.img"]);
    assert!(fs::read(bench.path("raw.img")).unwrap() == expected, "a new image");
    assert!(allocated("raw.img") <= 9 << 20, "{} bytes are allocated", allocated("raw.img"));
    // The target is longer than the source. The part after the source's length is not changed.
    let old = pattern(len + 5000, 7);
    fs::write(bench.path("old.img"), &old).unwrap();
    bench.succeed(["clone", "source.img", "old.img"]);
    let new = fs::read(bench.path("old.img")).unwrap();
    assert!(new[..len] == expected && new[len..] == old[len..], "an old image");
    assert!(allocated("old.img") <= 9 << 20, "{} bytes are allocated", allocated("old.img"));
    succeed(
        tool("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "new.qcow2", "50M"])
            .current_dir(bench.path(".")),
    );
    bench.succeed(["clone", "source.img", "qcow2:new.qcow2"]);
    succeed(tool("qemu-img").args(["check", "-q", "new.qcow2"]).current_dir(bench.path(".")));
    assert!(by_qemu(&bench, "qcow2", "new.qcow2")[..len] == expected, "to qcow2");
    assert!(allocated("new.qcow2") <= 10 << 20, "{} bytes are allocated", allocated("new.qcow2"));
    bench.succeed(["clone", "qcow2:new.qcow2", "back.img"]);
    let back = fs::read(bench.path("back.img")).unwrap();
    assert!(back.len() == 50 << 20 && back[..len] == expected, "from qcow2");
    bench.succeed(["clone", "old.img@1M", "part.img"]);
    assert!(fs::read(bench.path("part.img")).unwrap()[..len - (1 << 20)] == expected[1 << 20..]);
    let mut nbdkit = tool("nbdkit");
    nbdkit.args(["-U", "-", "--filter=log", "memory", "50M", "logfile=requests", "--run"]);
    // The server prints a warning that other clients may also write to the export.
    nbdkit
        .arg("\"$IRONMAP\" clone source.img \"$uri\" && \"$IRONMAP\" clone \"$uri\" of-export.img");
    nbdkit.env("IRONMAP", bench.command().get_program()).current_dir(bench.path("."));
    succeed(&mut nbdkit);
    assert!(fs::read(bench.path("of-export.img")).unwrap()[..len] == expected, "by an export");
    // The client does not read the ranges of the export that contain no data.
    let log = fs::read_to_string(bench.path("requests")).unwrap();
    let reads = log.lines().filter(|line| line.contains(" Read id="));
    let count_of = |line: &str| {
        let (_, rest) = line.split_once("count=0x").unwrap();
        u64::from_str_radix(rest.split(' ').next().unwrap(), 16).unwrap()
    };
    let read: u64 = reads.map(count_of).sum();
    assert!(read < 12 << 20, "{read} bytes of some 9 MiB were read");
    assert!(log.contains(" Extents id="), "the server was not asked where it has data");
    // The program first flushes the target. After that, it queries which ranges read as zeros. These ranges are not written, so only the
    // flush makes them durable.
    assert!(log.find(" Flush id=") < log.find(" Extents id="), "not flushed before: {log}");
}

/// The source ends within a sector of the target. The bytes of the target past the end of the source are not changed.
#[test]
fn the_end_of_a_source_within_a_sector_arrives() {
    require!([Need::Tool("nbdkit")]);
    let bench = Bench::empty();
    let expected = [vec![0; 300_000], pattern(777, 1)].concat();
    fs::write(bench.path("odd"), &expected).unwrap();
    bench.succeed(["clone", "odd", "new"]);
    let new = fs::read(bench.path("new")).unwrap();
    assert!(
        new[..expected.len()] == expected && new[expected.len()..].iter().all(|byte| *byte == 0)
    );
    let old = pattern(1 << 20, 2);
    fs::write(bench.path("old"), &old).unwrap();
    let mut nbdkit = tool("nbdkit");
    nbdkit.args(["-U", "-", "--filter=blocksize-policy", "file", "old"]);
    nbdkit.args(["blocksize-minimum=4096", "blocksize-error-policy=error", "--run"]);
    nbdkit.arg("\"$IRONMAP\" clone odd \"$uri\"");
    nbdkit.env("IRONMAP", bench.command().get_program()).current_dir(bench.path("."));
    succeed(&mut nbdkit);
    let new = fs::read(bench.path("old")).unwrap();
    assert!(new[..expected.len()] == expected && new[expected.len()..] == old[expected.len()..]);
}

/// A missing qcow2 image is made. QEMU finds no fault in it, and reads the bytes of the source from it. Its clusters can be compressed.
#[test]
fn qcow2_images_are_made() {
    require!([Need::Tool("qemu-img")]);
    let bench = Bench::new();
    let expected = sparse(&bench);
    // The text can be compressed. The data of the source cannot be compressed.
    let words = "all bytes of this file are words of a text\n".repeat(40_000);
    fs::write(bench.path("text.img"), &words.as_bytes()[..words.len() / 512 * 512]).unwrap();
    for (name, options) in [
        ("plain", &[][..]),
        ("deflate", &["--compress", "deflate"]),
        ("zstd", &["--compress", "zstd"]),
    ] {
        for source in ["source.img", "text.img"] {
            let image = format!("{name}-{source}.qcow2");
            let target = format!("qcow2:{image}");
            bench.succeed([&["clone"][..], options, &[source, &target]].concat());
            succeed(tool("qemu-img").args(["check", "-q", &image]).current_dir(bench.path(".")));
            let bytes = fs::read(bench.path(source)).unwrap();
            assert!(by_qemu(&bench, "qcow2", &image) == bytes, "{image}");
            bench.succeed(["clone", &target, "back.img"]);
            assert!(fs::read(bench.path("back.img")).unwrap() == bytes, "{image}");
            fs::remove_file(bench.path("back.img")).unwrap();
            let len = fs::metadata(bench.path(&image)).unwrap().len();
            let most = if name != "plain" && source == "text.img" { 640 << 10 } else { 10 << 20 };
            assert!(len <= most, "{image} has {len} bytes");
        }
    }
    assert!(!expected.is_empty());
}

/// mkfs makes a missing qcow2 image, with a size or as large as its sources need. e2fsck finds no fault in the volume.
/// With `--compress`, each cluster that can be compressed is compressed.
#[test]
fn volumes_are_made_in_new_qcow2_images() {
    require!([Need::Tool("qemu-img"), Need::Tool("e2fsck")]);
    let bench = Bench::empty();
    fs::create_dir(bench.path("tree")).unwrap();
    fs::write(bench.path("tree/file"), pattern(3 << 20, 1)).unwrap();
    for (image, args) in [
        ("sized.qcow2", &["mkfs", "-q", "qcow2:sized.qcow2", "2G"][..]),
        ("filled.qcow2", &["mkfs", "-q", "-d", "tree", "qcow2:filled.qcow2"]),
        ("both.qcow2", &["mkfs", "-q", "-d", "tree", "qcow2:both.qcow2", "64M"]),
        ("small.qcow2", &["mkfs", "-q", "--shrink", "-d", "tree", "qcow2:small.qcow2"]),
        ("packed.qcow2", &["mkfs", "-q", "--compress", "qcow2:packed.qcow2", "1G", "-d", "tree"]),
        ("fit.qcow2", &["mkfs", "-q", "--compress=zstd", "-d", "tree", "qcow2:fit.qcow2"]),
    ] {
        bench.succeed(args);
        succeed(tool("qemu-img").args(["check", "-q", image]).current_dir(bench.path(".")));
        by_qemu(&bench, "qcow2", image);
        succeed(tool("e2fsck").args(["-fn", "by-qemu"]).current_dir(bench.path(".")));
        if image != "sized.qcow2" {
            let file = bench.run(["cat", &format!("qcow2:{image}:/file")]);
            assert!(file.stdout == pattern(3 << 20, 1), "{image}");
        }
    }
    let output = bench.run(["mkfs", "-q", "qcow2:none.qcow2"]);
    let error = text(&output.stderr);
    assert!(output.status.code() == Some(3) && error.contains("give a size"), "{error}");
    assert!(!bench.path("none.qcow2").exists());
}

/// A target that must not be overwritten is refused before any change.
#[test]
fn targets_that_would_lose_something_are_refused() {
    require!([Need::Tool("qemu-img")]);
    let bench = Bench::new();
    let expected = sparse(&bench);
    let before = fs::read(bench.image()).unwrap();
    let create = |args: &[&str]| {
        succeed(
            tool("qemu-img")
                .args(["create", "-q", "-f", "qcow2"])
                .args(args)
                .current_dir(bench.path(".")),
        );
    };
    create(&["-F", "raw", "-b", "source.img", "overlay.qcow2"]);
    create(&["small.qcow2", "40M"]);
    let refused = |args: &[&str], code: i32, why: &str| {
        let output = bench.run([&["clone"], args].concat());
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
        assert!(message.contains(why) && message.lines().count() == 1, "{args:?}: {message}");
    };
    refused(
        &["source.img", "image"],
        3,
        "contains an ext2, ext3 or ext4 file system: -F overwrites it",
    );
    assert!(fs::read(bench.image()).unwrap() == before, "the target was written");
    refused(&["-F", "source.img", "./source.img"], 2, "is on the device or image that is copied");
    refused(&["-F", "qcow2:overlay.qcow2", "source.img"], 2, "that is copied");
    refused(&["source.img", "qcow2:small.qcow2"], 1, "has 41943040 bytes, but source.img needs");
    refused(&["--compress", "zstd", "source.img", "qcow2:small.qcow2"], 2, "only a new image");
    refused(&["--compress", "zstd", "source.img", "new.img"], 2, "qcow2:FILE");
    refused(&["source.img", "qcow2:none/new.qcow2"], 1, "none/new.qcow2");
    refused(&["source.img", "qcow2:small.qcow2@p1"], 3, "partition");
    refused(&["none.img", "new.img"], 3, "none.img");
    refused(&["source.img", "nbd:localhost:10809"], 2, "./nbd:localhost:10809");
    refused(&["source.img", "-"], 2, "write ./-");
    refused(&["source.img@p7", "new.img"], 3, "partition");
    assert!(!bench.path("new.img").exists(), "a target of no copy was left");
    refused(&["-F", "source.img", "noload:image"], 3, "but not written");
    // A clone would extend the target file `tagged`. ironmap finds tags only at the end of a file. After the clone, the tags would be in
    // the middle.
    fs::File::create(bench.path("tagged")).unwrap().set_len(8 << 20).unwrap();
    assert!(bench.run(["integrity", "format", "tagged"]).status.success());
    refused(&["source.img", "tagged"], 3, "contains the tags of an integrity device: -F");
    assert!(fs::read(bench.path("source.img")).unwrap() == expected, "the source was written");
    bench.succeed(["clone", "-F", "source.img", "image"]);
    assert!(fs::read(bench.image()).unwrap()[..expected.len()] == expected);
}

/// `mkfs --compress` compresses all clusters of text, as `qemu-img check` shows. It refuses a raw image, and an image that exists.
#[test]
fn a_new_volume_is_compressed() {
    require!([Need::Tool("qemu-img")]);
    let bench = Bench::empty();
    fs::create_dir(bench.path("tree")).unwrap();
    fs::write(bench.path("tree/file"), "words of a text\n".repeat(200_000)).unwrap();
    bench.succeed(["mkfs", "-q", "--compress", "qcow2:new.qcow2", "1G", "-d", "tree"]);
    let check = ["check", "--output=json", "new.qcow2"];
    let check = succeed(tool("qemu-img").args(check).current_dir(bench.path(".")));
    let check: serde_json::Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!(check["compressed-clusters"], check["allocated-clusters"], "{check}");
    assert!(check["compressed-clusters"].as_u64() >= Some(48), "{check}");
    assert!(fs::metadata(bench.path("new.qcow2")).unwrap().len() < 640 << 10);
    for volume in ["qcow2:new.qcow2", "new.img"] {
        let output = bench.run(["mkfs", "--compress", volume, "1G"]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("only a new image can be compressed"), "{volume}");
    }
}

/// A failed or interrupted copy leaves no new image, and reports the failed position.
#[test]
fn a_copy_that_fails_leaves_no_new_image() {
    require!([Need::Tool("nbdkit")]);
    let bench = Bench::new();
    for (filter, how, code) in [
        ("--filter=error", "error-pread-rate=100% error-pread=EIO", 1),
        ("--filter=delay", "rdelay=1", 130),
    ] {
        let mut nbdkit = tool("nbdkit");
        nbdkit.args(["-U", "-", filter, "file", "image"]).args(how.split(' ')).arg("--run");
        // A process in the background of a shell ignores SIGINT, so `env` restores the default.
        let run = "env --default-signal=INT \"$IRONMAP\" clone \"$uri\" new.img & pid=$!; \
                   if [ $CODE != 1 ]; then until [ -e .ironmap-$pid-0 ]; do :; done; kill -INT $pid; fi; \
                   wait $pid";
        nbdkit.arg(run).env("CODE", code.to_string());
        nbdkit.env("IRONMAP", bench.command().get_program()).current_dir(bench.path("."));
        let output = nbdkit.output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{filter}: {message}");
        assert_eq!(message.matches("socket=").count(), usize::from(code == 1), "{message}");
        let left = fs::read_dir(bench.path(".")).unwrap().flatten();
        let left = left.map(|it| it.file_name()).find(|it| it != "image" && it != "source");
        assert_eq!(left, None, "{filter}: a part of a copy was left");
    }
}
