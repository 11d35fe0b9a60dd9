//! Attributes compared with the kernel's ext4: names of extended attributes, flags of inodes, times of symbolic links, and removed
//! directories.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{IFlags, XattrFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;

use crate::sides::{Kernels, Ours, Sides, check, require_mounts};
use crate::support::{Bench, succeed, tool};

/// Each call gives the same errno as on the kernel's ext4. The tested names have an unknown prefix, or are only a prefix. All combinations
/// of flags are tested.
#[test]
fn names_of_attributes_are_refused_as_by_the_kernel() {
    require_mounts!("names_of_attributes_are_refused_as_by_the_kernel");
    let sides = Sides::new(&["-t", "ext4"], &[]);
    let names = "user. user.a User.a trusted. trusted.b security. security.c system. system.data system.other \
         system.posix_acl_accessx system.richacl foo.bar nodot btrfs.x gnu. .";
    let run = |dir: &Path| {
        let mut found = Vec::new();
        fs::write(dir.join("file"), "content").unwrap();
        fs::create_dir(dir.join("dir")).unwrap();
        for path in ["file", "dir"].map(|name| dir.join(name)) {
            let set = |name: &str, flags| rustix::fs::setxattr(&path, name, b"value", flags);
            let get = |name: &str| rustix::fs::getxattr(&path, name, &mut [0; 100][..]);
            let remove = |name: &str| rustix::fs::removexattr(&path, name);
            for name in names.split(' ') {
                found.push((name, "get", get(name).map(drop)));
                found.push((name, "remove", remove(name)));
                for flags in 0..=4 {
                    found.push((name, "set", set(name, XattrFlags::from_bits_retain(flags))));
                }
                found.push((
                    name,
                    "size",
                    rustix::fs::getxattr(&path, name, &mut [0; 0][..]).map(drop),
                ));
                found.push((name, "remove", remove(name)));
            }
            found.push(("gnu.translator", "get", get("gnu.translator").map(drop)));
        }
        found
    };
    let [ours, kernels] = sides.dirs().map(run);
    assert!(kernels.contains(&("foo.bar", "get", Err(Errno::OPNOTSUPP))), "{kernels:?}");
    assert!(kernels.contains(&("user.a", "set", Err(Errno::EXIST))), "{kernels:?}");
    for (ours, kernels) in ours.iter().zip(&kernels) {
        assert_eq!(ours, kernels);
    }
    sides.end();
}

/// Unknown flags are refused. A change of read-only flags is ignored. The kernel's ext4 does the same.
#[test]
fn each_flag_is_set_or_passed_over_as_by_the_kernel() {
    /// Flags that this mount does not support: data in the journal, extents, an unused flag, and DAX.
    const NOT_HERE: u32 = 0x4000 | 0x8_0000 | 0x40_0000 | 0x200_0000;
    const IMMUTABLE: u32 = 0x10;
    const NO_DUMP: u32 = 0x40;
    /// The flags for the format of the extent map, which may differ between ironmap's mount and the kernel's mount.
    const MAPS: u32 = 0x1008_0000;
    require_mounts!("each_flag_is_set_or_passed_over_as_by_the_kernel");
    for options in [&["-t", "ext4"][..], &["-t", "ext4", "-O", "inline_data"], &["-t", "ext3"]] {
        let sides = Sides::new(options, &[]);
        let run = |dir: &Path| {
            let mut found = Vec::new();
            fs::write(dir.join("file"), "content").unwrap();
            fs::create_dir(dir.join("dir")).unwrap();
            for name in ["file", "dir"] {
                let open = File::open(dir.join(name)).unwrap();
                let get = || ioctl_getflags(&open).unwrap().bits();
                let set = |flags| ioctl_setflags(&open, IFlags::from_bits_retain(flags));
                let old = get();
                for bit in (0..32).map(|shift| 1_u32 << shift).filter(|bit| bit & NOT_HERE == 0) {
                    let done = set(old ^ bit);
                    found.push((name, bit, done, get() & !MAPS));
                    set(old).unwrap();
                }
                // While the flag for immutable is set, no other flag can be changed.
                for flags in [old | IMMUTABLE, old | IMMUTABLE | NO_DUMP, old | NO_DUMP, old] {
                    let done = set(flags);
                    found.push((name, flags & !MAPS, done, get() & !MAPS));
                }
                assert_eq!(get(), old, "{name}");
            }
            found
        };
        let [ours, kernels] = sides.dirs().map(run);
        let errno = |found: &(_, u32, rustix::io::Result<()>, u32)| found.2.err();
        for expected in [None, Some(Errno::OPNOTSUPP), Some(Errno::PERM)] {
            assert!(kernels.iter().any(|found| errno(found) == expected), "{expected:?}");
        }
        for (ours, kernels) in ours.iter().zip(&kernels) {
            assert_eq!(ours, kernels, "{options:?}: {:#x}", ours.1);
        }
        sides.end();
    }
}

/// A directory that was removed while it was open has 0 links. A stat of it succeeds.
#[test]
fn a_removed_directory_is_reported_as_by_the_kernel() {
    const O_PATH: i32 = 0o10_000_000;
    require_mounts!("a_removed_directory_is_reported_as_by_the_kernel");
    let sides = Sides::new(&["-t", "ext4"], &[]);
    let run = |dir: &Path| {
        let mut found = Vec::new();
        for name in ["plain", "replaced"] {
            let path = dir.join(name);
            fs::create_dir(&path).unwrap();
            let open = File::open(&path).unwrap();
            let by_path = File::options().read(true).custom_flags(O_PATH).open(&path).unwrap();
            if name == "plain" {
                fs::remove_dir(&path).unwrap();
            } else {
                fs::create_dir(dir.join("other")).unwrap();
                fs::rename(dir.join("other"), &path).unwrap();
            }
            for file in [&open, &by_path] {
                let stat = rustix::fs::fstat(file).map(|stat| (stat.st_nlink, stat.st_mode));
                found.push(format!("{name}: {stat:?}"));
            }
            let again = rustix::fs::openat(
                &open,
                ".",
                rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY,
                rustix::fs::Mode::empty(),
            );
            let stat =
                again.as_ref().map(|again| rustix::fs::fstat(again).map(|stat| stat.st_nlink));
            found.push(format!("{name}: again {stat:?}"));
            let list =
                rustix::fs::Dir::read_from(&open).unwrap().next().map(|entry| entry.map(drop));
            found.push(format!("{name}: {list:?}"));
            let made = rustix::fs::mkdirat(&open, "below", rustix::fs::Mode::RWXU);
            found.push(format!("{name}: {made:?}"));
            let synced = rustix::fs::fsync(&open);
            found.push(format!("{name}: {synced:?}"));
        }
        found
    };
    let [ours, kernels] = sides.dirs().map(run);
    assert!(kernels[0].starts_with("plain: Ok((0, "), "{kernels:?}");
    assert_eq!(ours, kernels);
    sides.end();
}

/// Waits until the clock for the kernel's timestamps shows another time.
fn wait_for_another_stamp() {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let before = now();
    while now() == before {
        std::thread::yield_now();
    }
}

fn access_time(link: &Path) -> (i64, i64) {
    let found = fs::symlink_metadata(link).unwrap();
    (found.atime(), found.atime_nsec())
}

/// Returns whether a read of a symbolic link updates its access time. If `waits` is true, the reads are repeated for up to 20 seconds until
/// one of them updates the access time.
fn leaves_time(link: &Path, read: &dyn Fn(&Path), waits: bool) -> bool {
    wait_for_another_stamp();
    let (before, begin) = (access_time(link), Instant::now());
    loop {
        read(link);
        let left = access_time(link) != before;
        // The kernel can answer a read from its cached copy of the target. It drops this copy some time after a change, so the reads are
        // repeated.
        if left || !waits || begin.elapsed() > Duration::from_secs(20) {
            return left;
        }
        std::thread::yield_now();
    }
}

/// A read or a lookup through a symbolic link updates the same times of the link as on the kernel's ext4. Each mount option for access
/// times is tested.
#[test]
fn symbolic_links_have_times_of_reads() {
    require_mounts!("symbolic_links_have_times_of_reads");
    let bench = Bench::empty();
    let (image, twin) = (bench.image(), bench.path("twin"));
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(&image).arg("64M"));
    let long = format!("./././{}/../file", "d".repeat(80));
    bench.debugfs("write /dev/null file");
    bench.debugfs(&format!("mkdir {}", "d".repeat(80)));
    for (name, target) in [("short", "file"), ("long", &long)] {
        bench.debugfs(&format!("symlink {name} {target}"));
        bench.debugfs(&format!("sif {name} atime @1000000000"));
    }
    fs::copy(&image, &twin).unwrap();
    let read = |path: &Path| drop(fs::read_link(path).unwrap());
    let follow = |path: &Path| assert!(fs::metadata(path).unwrap().is_file());
    let sh = |script: &str, dir: &Path| {
        succeed(tool("sh").args(["-c", script]).current_dir(dir));
    };
    for options in ["ro", "noatime", "relatime", "strictatime"] {
        let kernels = Kernels::mount(&twin, &bench.path("kernel"), options);
        let ours = Ours::mount(&image, &bench.path("mounted"), options);
        let mut left = 0;
        let mut step = |what: &str, change: &str, name: &str, read: &dyn Fn(&Path)| {
            let does = |dir: &Path, waits: bool| {
                let path = dir.join(name);
                if !change.is_empty() {
                    sh(&change.replace('%', name), dir);
                }
                leaves_time(&path, read, waits)
            };
            let expected = does(&kernels.dir, false);
            assert_eq!(
                does(&ours.dir, expected),
                expected,
                "{options}: {name}: {what} after {change:?}"
            );
            left += u32::from(expected);
        };
        for name in ["short", "long"] {
            step("read", "", name, &read);
            step("read", "", name, &read);
            step("follow", "", name, &follow);
            if options != "ro" {
                for change in [
                    "touch -h -a -d @1000000000 %",
                    "mv % other; mv other %",
                    "ln % other; rm other",
                    "chown -h 5 %",
                    "rm %; ln -s file %",
                ] {
                    step("read", change, name, &read);
                    step("read", "", name, &read);
                    step("follow", change, name, &follow);
                }
            }
        }
        assert_eq!(left > 0, ["relatime", "strictatime"].contains(&options), "{options}");
        ours.unmount();
        check(&image);
        drop(kernels);
    }
    // The access times that reads have updated are also in the volume after the unmount.
    let ours = Ours::mount(&image, &bench.path("mounted"), "ro");
    assert!(access_time(&ours.dir.join("short")).0 > 1_000_000_000);
    ours.unmount();
}
