//! Commands on images of virtual machines, beside qemu-img.

use std::fs;

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, succeed, text, tool};

/// A volume in a qcow2 image takes the same commands as one in a raw image, and qemu-img has the same bytes.
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

/// Without its prefix an image is refused with the prefix in the message, and formats that are only read say so.
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
