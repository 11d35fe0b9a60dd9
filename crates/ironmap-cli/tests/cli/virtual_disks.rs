//! Commands on virtual disk images, compared with qemu-img.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, succeed, text, tool};
use serde_json::Value;

/// A volume in a qcow2 image accepts the same commands as a volume in a raw image, and qemu-img reads the same bytes.
#[test]
fn commands_take_an_image_by_its_format() {
    require!([Need::Tool("qemu-img")]);
    let bench = Bench::new();
    let (overlay, base) = (bench.path("overlay.qcow2"), bench.image());
    let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "image"];
    succeed(tool("qemu-img").args(create).arg(&overlay));
    let before = fs::read(&base).unwrap();
    let volume = format!("qcow2:{}", overlay.display());
    let done = |args: &[&str]| {
        let output = bench.run(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    done(&["cp", "-a", bench.source().to_str().unwrap(), &format!("{volume}:/copy")]);
    done(&["mv", &format!("{volume}:/copy"), &format!("{volume}:/moved")]);
    done(&["check", &volume]);
    done(&["cp", "-a", &format!("{volume}:/moved"), "out"]);
    succeed(
        tool("diff").args(["-r", "--no-dereference"]).arg(bench.source()).arg(bench.path("out")),
    );
    let info = bench.json(&["info", "--json", &volume]);
    let image = &info["device"]["image"];
    assert_eq!(image["format"], "qcow2 version 3");
    assert_eq!(image["virtual_size"], before.len());
    assert_eq!(image["files"][1]["path"], base.to_str().unwrap());
    assert!(fs::read(&base).unwrap() == before, "the backing file has changed");
    succeed(tool("qemu-img").args(["check", "-q"]).arg(&overlay));
    succeed(tool("qemu-img").args(["convert", "-O", "raw"]).arg(&overlay).arg(bench.path("raw")));
    succeed(tool("e2fsck").arg("-fn").arg(bench.path("raw")));
    let raw = bench.run(["ls", "-R", "raw:/"]);
    let listed = done(&["ls", "-R", &format!("{volume}:/")]);
    assert_eq!(text(&raw.stdout), listed.replace(&volume, "raw"));
}

/// The path of a virtual disk image is refused without the prefix of its format, such as `qcow2:`. The message contains the prefix. An
/// image in a format that ironmap can only read is refused for writing even with the prefix.
#[test]
fn an_image_without_its_prefix_is_refused() {
    require!([Need::Tool("qemu-img")]);
    let bench = Bench::new();
    for format in ["qcow2", "vmdk", "vhdx"] {
        let convert = ["convert", "-f", "raw", "-O", format, "image", format];
        succeed(tool("qemu-img").args(convert).current_dir(bench.path(".")));
        let refused = bench.run(["ls", &format!("./{format}:/")]);
        assert_eq!(refused.status.code(), Some(3));
        let message = text(&refused.stderr);
        assert!(message.contains(&format!("as in {format}:FILE")), "{message}");
        assert!(bench.run(["ls", &format!("{format}:{format}:/")]).status.success());
        let written = bench.run(["mkdir", &format!("{format}:{format}:/new")]);
        assert_eq!(written.status.success(), format == "qcow2");
    }
}

/// `info` shows the reason why an image is read-only. The error of a refused write contains the same text.
#[test]
fn info_says_why_an_image_is_only_read() {
    require!([Need::Tool("qemu-img")]);
    let bench = Bench::new();
    let make = |args: &[&str]| {
        succeed(tool("qemu-img").args(args).current_dir(bench.path(".")));
    };
    let convert = |format: &str, options: &[&str], name: &str| {
        let args = [&["convert", "-f", "raw", "-O", format], options, &["image", name]].concat();
        make(&args);
    };
    convert("qcow2", &[], "plain");
    convert("qcow2", &[], "snapshot");
    make(&["snapshot", "-c", "first", "snapshot"]);
    convert("qcow2", &["-o", "compat=0.10"], "old");
    convert("qcow2", &[], "dirty");
    let file = fs::OpenOptions::new().write(true).open(bench.path("dirty")).unwrap();
    file.write_all_at(&1_u64.to_be_bytes(), 72).unwrap();
    drop(file);
    convert("vmdk", &[], "vmdk");
    for (volume, why) in [
        ("qcow2:plain", None),
        ("qcow2:snapshot", Some("qemu-img snapshot -d")),
        ("qcow2:old", Some("qemu-img amend")),
        ("qcow2:dirty", Some("qemu-img check -r all")),
        ("vmdk:vmdk", Some("images of this format can be read but not written")),
    ] {
        // For one of the images, `info` also prints a note on standard error.
        let shown = bench.run(["info", "--json", volume]);
        let info: Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(info["writable"], why.is_none(), "{volume}");
        let written = bench.run(["mkdir", &format!("{volume}:/new")]);
        assert_eq!(written.status.success(), why.is_none(), "{volume}");
        if let Some(why) = why {
            let told = info["read_only"].as_str().unwrap();
            assert!(told.contains(why), "{volume}: {told}");
            let refusal = text(&written.stderr);
            assert!(refusal.contains(told), "{volume}: {told}, but {refusal}");
        }
    }
}

/// The format of an image is recognised even if the image file is too short to contain a file system. Such an image is overwritten only on
/// request.
#[test]
fn images_of_other_programs_are_known() {
    require!([Need::Tool("qemu-img")]);
    let bench = Bench::new();
    for (format, options, hint) in [
        ("vmdk", "subformat=monolithicFlat", "vmdk:FILE"),
        ("vdi", "static=off", "qemu-nbd"),
        ("vpc", "subformat=dynamic", "qemu-nbd"),
        ("parallels", "cluster_size=1048576", "qemu-nbd"),
    ] {
        let convert = ["convert", "-f", "raw", "-O", format, "-o", options, "image", format];
        succeed(tool("qemu-img").args(convert).current_dir(bench.path(".")));
        let message = text(&bench.run(["ls", &format!("./{format}:/")]).stderr);
        assert!(message.contains(hint), "{format}: {message}");
        let refused = bench.run(["mkfs", format, "64M"]);
        assert!(!refused.status.success(), "{format}");
        let message = text(&refused.stderr);
        assert!(message.contains("-F overwrites it"), "{format}: {message}");
    }
}
