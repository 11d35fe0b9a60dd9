//! Tests of a directory that the kernel and ironmap change alternately.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirEntryExt;
use std::path::Path;

use super::volume::Volume;
use crate::fs::ext4::for_tests::Image;

/// Whether this test may mount the image with the kernel. If not, reports to `./x test` that the test is skipped.
fn may_mount(test: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    let line = format!("SKIP {test}: needs root\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("IRONMAP_SKIP_LOG") {
        let log = fs::OpenOptions::new().append(true).create(true).open(log);
        log.and_then(|mut log| log.write_all(line.as_bytes())).unwrap();
    }
    false
}

fn name(number: usize) -> Vec<u8> {
    let mut name = format!("{number}-").into_bytes();
    match number % 4 {
        0 => name.resize(20 + number % 230, b'x'),
        1 => name.extend_from_slice("größer-世界".as_bytes()),
        2 => name.extend_from_slice(&[0xFF, 0x80, 0xC3]),
        _ => {}
    }
    name
}

/// The kernel lists the names that ironmap added, and finds each name. Then the kernel removes some names and adds other names. The kernel
/// also creates a file in the directory `new`, which ironmap made. Then it removes the file and the directory.
fn kernels_turn(image: &Image, names: &mut BTreeMap<Vec<u8>, usize>, round: usize) {
    let mount = image.mount().unwrap();
    let dir = mount.path("dir");
    let inode = |path: &Path| rustix::fs::stat(path).unwrap().st_ino;
    let files = ["first", "second"].map(|file| mount.path(file));
    let numbers = [inode(&files[0]), inode(&files[1])];
    let entries = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap());
    let listed: BTreeMap<_, _> =
        entries.map(|entry| (entry.file_name().into_vec(), entry.ino())).collect();
    let expected = names.iter().map(|(name, file)| (name.clone(), numbers[*file]));
    assert!(listed == expected.collect(), "{} listed of {}", listed.len(), names.len());
    // The directory `new` was created by ironmap.
    let new = mount.path("new");
    fs::write(new.join("file"), "content").unwrap();
    fs::remove_dir_all(&new).unwrap();
    let path = |name: &[u8]| dir.join(OsStr::from_bytes(name));
    for (name, file) in names.iter() {
        assert_eq!(inode(&path(name)), numbers[*file], "{}", name.escape_ascii());
    }
    let ours: Vec<_> = names.keys().step_by(3).cloned().collect();
    for name in ours {
        fs::remove_file(path(&name)).unwrap();
        names.remove(&name);
    }
    for number in 0..300 {
        let name = name(round * 10_000 + number);
        fs::hard_link(&files[number % 2], path(&name)).unwrap();
        names.insert(name, number % 2);
    }
}

#[test]
fn the_kernel_and_we_change_the_same_directory() {
    if !may_mount("names::tests::kernel::the_kernel_and_we_change_the_same_directory") {
        return;
    }
    for options in [
        "-t ext4 -b 1024",
        "-t ext4 -b 4096",
        "-t ext4 -b 1024 -O ^metadata_csum",
        "-t ext4 -b 1024 -O inline_data",
        "-t ext4 -b 1024 -O ^filetype,large_dir",
        "-t ext4 -b 4096 -O bigalloc",
        "-t ext3 -b 1024",
        "-t ext2 -b 4096 -O ^dir_index",
    ] {
        println!("{options}");
        let mut image = Image::with_dir("64M", options);
        let mut names = BTreeMap::new();
        for round in 0..3 {
            let mut volume = Volume::of(image, names);
            volume.assert_names();
            // ironmap also removes names that the kernel has added.
            let some: Vec<_> = volume.names.keys().skip(1).step_by(2).cloned().collect();
            for name in some {
                volume.remove(&name);
            }
            // The first round adds only a few names. The directory is therefore still inline when the kernel reads it.
            let count = if round == 0 { 2 } else { 400 };
            for number in 0..count {
                volume.add(&name(round * 10_000 + 5_000 + number), number % 2);
            }
            volume.make_directory(b"new");
            names = volume.names.clone();
            image = volume.finish();
            kernels_turn(&image, &mut names, round);
        }
        Volume::of(image, names).finish();
    }
}
