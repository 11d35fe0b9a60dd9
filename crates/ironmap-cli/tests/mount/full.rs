//! A mounted volume runs out of space. It reports the same errors as the kernel's ext4.

use std::fs::{self, File};
use std::path::Path;

use crate::sides::{Ours, Sides, check, require_mounts, skip};
use crate::support::{Bench, succeed, text, tool};

/// Fills a volume except for `room` bytes. If possible, these bytes are contiguous. The writes are direct. The page cache would accept more
/// data than the volume can store.
pub(crate) fn leave(dir: &Path, room: u64) {
    let dd = |file: &str, arguments: &[&str]| {
        let file = format!("of={}", dir.join(file).display());
        tool("dd").args(["if=/dev/zero", &file, "status=none"]).args(arguments).output().unwrap()
    };
    let count = format!("count={}", room / 1024);
    assert!(dd("kept", &["bs=1k", &count, "conv=fsync"]).status.success());
    for how in [&["bs=256k", "oflag=direct"][..], &["bs=4k", "oflag=direct,append", "conv=notrunc"]]
    {
        let told = text(&dd("filler", how).stderr);
        assert!(told.contains("No space left on device"), "the filler: {told}");
    }
    fs::remove_file(dir.join("kept")).unwrap();
    // Freed blocks can be allocated again only after the commit of their transaction, so the directory is synced.
    File::open(dir).unwrap().sync_all().unwrap();
}

/// The way in which a program writes through the kernel's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachedWrite {
    /// A `write` on a mount with a writeback cache.
    Collected,
    /// A store through a mapping, on a mount without a writeback cache.
    Mapped,
    /// A store through a mapping, on a mount with a writeback cache.
    MappedAndCollected,
}

impl CachedWrite {
    pub(crate) const ALL: [Self; 3] = [Self::Collected, Self::Mapped, Self::MappedAndCollected];

    /// The options of the mount.
    pub(crate) fn options(self) -> &'static str {
        if self == Self::Mapped { "rw" } else { "writeback_cache" }
    }

    /// Writes `len` bytes `a` to a file, and syncs it. Returns the errors that the program prints.
    pub(crate) fn write(self, path: &Path, len: u64) -> String {
        let commands = if self == Self::Collected {
            vec![format!("pwrite -q -S 0x61 -b {len} 0 {len}")]
        } else {
            let map = format!("mmap -rw 0 {len}");
            vec![
                format!("truncate {len}"),
                map,
                format!("mwrite -S 0x61 0 {len}"),
                "msync -s".to_owned(),
            ]
        };
        let mut program = tool("xfs_io");
        program.arg("-f");
        for command in commands.iter().map(String::as_str).chain(["fsync"]) {
            program.args(["-c", command]);
        }
        text(&program.arg(path).output().unwrap().stderr)
    }
}

/// If data in the page cache do not fit into the volume, `msync` or `fsync` fails. If both succeed, the file contains the data.
#[test]
fn a_cached_write_without_room_is_an_error() {
    const LEN: u64 = 128 << 10;
    require_mounts!("a_cached_write_without_room_is_an_error");
    if tool("xfs_io").arg("-V").output().is_err() {
        return skip("a_cached_write_without_room_is_an_error", "needs the program xfs_io");
    }
    for way in CachedWrite::ALL {
        for (room, fits) in [(LEN / 2, false), (2 * LEN, true)] {
            let bench = Bench::empty();
            let (image, dir) = (bench.image(), bench.path("mounted"));
            succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(&image).arg("64M"));
            let ours = Ours::mount(&image, &dir, way.options());
            leave(&dir, room);
            let told = way.write(&dir.join("file"), LEN);
            ours.unmount();
            check(&image);
            if fits {
                assert_eq!(told, "", "{way:?}");
                let there = bench.succeed(["cat", &bench.target("/file")]);
                assert!(there == vec![b'a'; LEN as usize], "{way:?}");
            } else {
                assert!(told.contains("No space left on device"), "{way:?}: {told:?}");
            }
        }
    }
}

/// A direct write past the end of a file, or into a hole, fails with ENOSPC if the volume has too little space for the write. The content
/// of the file does not change.
#[test]
fn a_direct_write_without_room_is_as_the_kernels() {
    const LEN: usize = 128 << 10;
    require_mounts!("a_direct_write_without_room_is_as_the_kernels");
    if tool("fio").arg("--version").output().is_err() {
        return skip("a_direct_write_without_room_is_as_the_kernels", "needs the program fio");
    }
    let job = |dir: &Path, name: &str, engine: &str| {
        let out = tool("fio")
            .args(["--name=job", "--direct=1", "--rw=write", "--fallocate=none"])
            .args(["--iodepth=1", "--bs=128k", "--size=128k", "--overwrite=0"])
            .arg(format!("--ioengine={engine}"))
            .arg(format!("--filename={}", dir.join(name).display()))
            .output()
            .unwrap();
        let said = text(&out.stdout) + &text(&out.stderr);
        let told = said.lines().find_map(|line| Some(line.split_once("io_u error on file")?.1));
        let told = told.and_then(|told| told.split(": ").nth(1)).map(str::to_owned);
        (told, fs::read(dir.join(name)).unwrap_or_default())
    };
    for features in ["extents", "^extents,^64bit"] {
        let sides = Sides::new(&["-t", "ext4", "-O", features], &[]);
        for dir in sides.dirs() {
            File::create(dir.join("holes")).unwrap().set_len(4 * LEN as u64).unwrap();
            leave(dir, LEN as u64 / 2);
        }
        for engine in ["psync", "libaio", "io_uring"] {
            for name in ["end", "holes"] {
                let [ours, kernels] = sides.dirs().map(|dir| job(dir, name, engine));
                let what = format!("{features}, {engine}, {name}");
                assert_eq!(kernels.0.as_deref(), Some("No space left on device"), "{what}");
                assert_eq!(ours.0, kernels.0, "{what}");
                assert_eq!(ours.1.len(), kernels.1.len(), "{what}");
                // An ext4 volume without extents has no unwritten blocks. On such a volume, the content after a failed write may differ
                // from the content on the kernel's side, so it is not compared.
                assert!(features != "extents" || ours.1 == kernels.1, "{what}");
                for dir in sides.dirs() {
                    let holes = File::options().write(true).open(dir.join("holes")).unwrap();
                    holes.set_len(0).unwrap();
                    holes.set_len(4 * LEN as u64).unwrap();
                    let _ = fs::remove_file(dir.join("end"));
                    File::open(dir).unwrap().sync_all().unwrap();
                }
            }
        }
        sides.end();
    }
}
