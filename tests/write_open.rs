//! A volume that is opened for writing and closed again is as clean as before, and recovers a dirty journal as the kernel does.

mod common;

use std::path::Path;
use std::process::Command;

use common::image::scratch;
use ironmap::{Location, OpenOptions, Volume};

fn fsck(image: &Path) {
    let out = Command::new("e2fsck").args(["-fn"]).arg(image).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

fn open(image: &Path) -> Volume {
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let location: Location = image.to_str().unwrap().parse().unwrap();
    common::beneath::open(&location, &options).unwrap()
}

#[test]
fn opened_and_closed_it_is_clean() {
    let dir = scratch();
    let image = dir.path().join("image");
    for features in
        ["-t ext4", "-t ext4 -b 1024", "-t ext3", "-t ext2", "-t ext4 -O ^metadata_csum,^64bit"]
    {
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.arg("-Fq").args(features.split(' ')).arg(&image).arg("64M");
        assert!(mke2fs.status().unwrap().success());
        let volume = open(&image);
        volume.fs().sync().unwrap();
        volume.close().unwrap();
        drop(volume);
        fsck(&image);
        drop(open(&image));
        fsck(&image);
    }
}

/// While it is open for writing, multiple mount protection keeps others off; afterwards it does not.
#[test]
fn a_protected_volume_is_held_while_it_is_open() {
    let dir = scratch();
    let image = dir.path().join("image");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-Fq", "-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"]);
    assert!(mke2fs.arg(&image).arg("64M").status().unwrap().success());
    let seq = |path: &Path| {
        let out = Command::new("dumpe2fs").arg("-h").arg(path).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.lines().find(|line| line.contains("mmp_sequence")).unwrap_or_default().to_owned()
    };
    let clean = seq(&image);
    let volume = open(&image);
    assert_ne!(seq(&image), clean, "it is not held");
    // Another node sees the same image without our lock.
    let other = dir.path().join("other");
    std::fs::copy(&image, &other).unwrap();
    let out = Command::new("e2fsck").arg("-p").arg(&image).output().unwrap();
    assert!(!out.status.success(), "e2fsck took it: {}", String::from_utf8_lossy(&out.stdout));
    volume.close().unwrap();
    drop(volume);
    assert_eq!(seq(&image), clean);
    fsck(&image);
}
