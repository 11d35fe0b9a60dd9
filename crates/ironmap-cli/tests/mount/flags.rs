//! The effects of flags of inodes, of `open` and of the mount.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags, copy_file_range, fallocate};
use rustix::process::{Signal, kill_process};

use crate::sides::{Ours, check, ironmap, require_mounts, skip, unmount};
use crate::support::{Bench, pattern, succeed, text, tool};

const EPERM: i32 = 1;
const EXTENTS: u32 = 0x8_0000;
const INLINE_DATA: u32 = 0x1000_0000;

/// Makes a volume with these options of mke2fs. Each element of `files` describes an empty file or directory: the debugfs command that
/// makes it, its name, and its flags.
fn volume(options: &[&str], files: &[(&str, &str, u32)]) -> Bench {
    let bench = Bench::empty();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).args(options).arg(bench.image()).arg("64M"));
    for (how, name, flags) in files {
        bench.debugfs(&format!("{how} {name}"));
        bench.debugfs(&format!("sif {name} flags {flags:#x}"));
    }
    bench
}

/// In a casefolded directory, a file is removed by one spelling of its name. All other spellings disappear too.
#[test]
fn names_without_case_go_together() {
    require_mounts!("names_without_case_go_together");
    let bench = volume(&["-O", "casefold"], &[("mkdir", "d", 0x4000_0000 | EXTENTS)]);
    let dir = bench.path("mounted");
    let ours = Ours::mount(&bench.image(), &dir, "rw");
    let (lower, upper) = (dir.join("d/name"), dir.join("d/NAME"));
    fs::write(&lower, "first").unwrap();
    assert_eq!(fs::read_to_string(&upper).unwrap(), "first");
    fs::remove_file(&lower).unwrap();
    assert!(!upper.exists());
    fs::write(&lower, "second").unwrap();
    assert_eq!(fs::read_to_string(&upper).unwrap(), "second");
    assert_eq!(fs::read_dir(dir.join("d")).unwrap().count(), 1);
    fs::remove_file(&upper).unwrap();
    assert!(!lower.exists());
    ours.unmount();
    check(&bench.image());
}

/// Synchronous changes are durable even if the daemon is killed directly afterwards. The test changes a directory with +D, changes a
/// directory on a mount with dirsync, and writes to a file with +S.
#[test]
fn synchronous_changes_survive_a_killed_daemon() {
    require_mounts!("synchronous_changes_survive_a_killed_daemon");
    let files = [
        ("mkdir", "d", 0x1_0000 | EXTENTS),
        ("mkdir", "plain", EXTENTS),
        ("write /dev/null", "s", 0x8 | EXTENTS),
    ];
    let bench = volume(&[], &files);
    let dir = bench.path("mounted");
    let killed = |options: &str, change: &dyn Fn(&Path)| {
        let mut ours = Ours::mount(&bench.image(), &dir, options);
        change(&dir);
        kill_process(ours.id(), Signal::KILL).unwrap();
        ours.wait();
    };
    killed("rw", &|dir| drop(File::create(dir.join("d/made")).unwrap()));
    killed("rw", &|dir| fs::write(dir.join("s"), pattern(5000, 1)).unwrap());
    killed("dirsync", &|dir| fs::create_dir(dir.join("plain/made")).unwrap());
    let ours = Ours::mount(&bench.image(), &dir, "rw");
    assert!(dir.join("d/made").exists());
    assert!(fs::read(dir.join("s")).unwrap() == pattern(5000, 1));
    assert!(dir.join("plain/made").exists());
    ours.unmount();
    check(&bench.image());
}

/// Allocations and copies through a descriptor with O_DSYNC are durable, including the size of the file. The daemon is killed directly
/// afterwards.
#[test]
fn allocations_and_copies_are_as_synchronous_as_writes() {
    const O_DSYNC: i32 = 0o10000;
    const LEN: usize = 300_000;
    require_mounts!("allocations_and_copies_are_as_synchronous_as_writes");
    let bench =
        volume(&[], &[("write /dev/null", "a", EXTENTS), ("write /dev/null", "c", EXTENTS)]);
    let dir = bench.path("mounted");
    let killed = |name: &str, change: &dyn Fn(&File)| {
        let mut ours = Ours::mount(&bench.image(), &dir, "rw");
        let mut open = File::options();
        let open = open.write(true).custom_flags(O_DSYNC).open(dir.join(name)).unwrap();
        change(&open);
        kill_process(ours.id(), Signal::KILL).unwrap();
        ours.wait();
    };
    killed("a", &|file| fallocate(file, FallocateFlags::empty(), 0, LEN as u64).unwrap());
    killed("c", &|file| {
        fs::write(dir.join("source"), pattern(LEN, 2)).unwrap();
        let source = File::open(dir.join("source")).unwrap();
        assert_eq!(copy_file_range(source, None, file, None, LEN).unwrap(), LEN);
    });
    let ours = Ours::mount(&bench.image(), &dir, "rw");
    let allocated = fs::metadata(dir.join("a")).unwrap();
    assert!(allocated.len() == LEN as u64 && allocated.blocks() >= LEN as u64 / 512);
    assert!(fs::read(dir.join("c")).unwrap() == pattern(LEN, 2));
    ours.unmount();
    check(&bench.image());
}

/// Reads of a file with +A, and reads through a descriptor with O_NOATIME, do not update the access time.
#[test]
fn reads_leave_no_time_where_none_is_wanted() {
    const O_NOATIME: i32 = 0o1_000_000;
    require_mounts!("reads_leave_no_time_where_none_is_wanted");
    let files = [
        ("write /dev/null", "a", 0x80 | EXTENTS),
        ("write /dev/null", "b", EXTENTS),
        ("mkdir", "d", 0x80 | EXTENTS),
    ];
    let bench = volume(&[], &files);
    let dir = bench.path("mounted");
    let ours = Ours::mount(&bench.image(), &dir, "strictatime");
    let time = |name: &str| {
        let found = fs::metadata(dir.join(name)).unwrap();
        (found.atime(), found.atime_nsec())
    };
    for name in ["a", "b"] {
        fs::write(dir.join(name), "content").unwrap();
    }
    succeed(tool("touch").args(["-a", "-d", "2001-02-03"]).args(["a", "b", "d"]).current_dir(&dir));
    let set = time("a");
    fs::read(dir.join("a")).unwrap();
    assert_eq!(fs::read_dir(dir.join("d")).unwrap().count(), 0);
    let mut open = File::options().read(true).custom_flags(O_NOATIME).open(dir.join("b")).unwrap();
    std::io::read_to_string(&mut open).unwrap();
    assert_eq!([time("a"), time("b"), time("d")], [set; 3]);
    fs::read(dir.join("b")).unwrap();
    assert_ne!(time("b"), set);
    drop(open);
    ours.unmount();
}

/// With a writeback cache, appended data and the times of an append-only file are still written to the volume.
#[test]
fn appends_pass_a_writeback_cache() {
    require_mounts!("appends_pass_a_writeback_cache");
    for (features, flags) in
        [("extents", EXTENTS), ("^extents,^64bit", 0), ("inline_data", INLINE_DATA)]
    {
        let bench = volume(&["-O", features], &[("write /dev/null", "app", flags | 0x20)]);
        let (image, dir) = (bench.image(), bench.path("mounted"));
        let ours = Ours::mount(&image, &dir, "writeback_cache");
        let mut expected = Vec::new();
        for round in 0..5 {
            let mut app = File::options().append(true).open(dir.join("app")).unwrap();
            for piece in pattern(3000 * round + 10, round as u64).chunks(1000) {
                app.write_all(piece).unwrap();
                expected.extend_from_slice(piece);
            }
            app.sync_all().unwrap();
        }
        let modified = fs::metadata(dir.join("app")).unwrap().modified().unwrap();
        ours.unmount();
        check(&image);
        let ours = Ours::mount(&image, &dir, "rw");
        assert!(fs::read(dir.join("app")).unwrap() == expected);
        assert!(fs::metadata(dir.join("app")).unwrap().modified().unwrap() >= modified);
        // An append-only file can be opened for appends, but not for other writes. This holds even without a writeback cache.
        assert!(File::options().write(true).open(dir.join("app")).is_err());
        ours.unmount();
    }
}

/// The content of an append-only file cannot be changed, in any cache mode. The test uses a descriptor whose O_APPEND was cleared, and a
/// mapping.
#[test]
fn appended_data_stay() {
    require_mounts!("appended_data_stay");
    if tool("xfs_io").arg("-V").output().is_err() {
        return skip("appended_data_stay", "needs the program xfs_io");
    }
    for options in ["rw", "writeback_cache"] {
        let bench = volume(&[], &[("write /dev/null", "app", EXTENTS | 0x20)]);
        let (image, dir) = (bench.image(), bench.path("mounted"));
        let path = dir.join("app");
        let content = pattern(10_000, 3);
        let ours = Ours::mount(&image, &dir, options);
        let mut app = File::options().append(true).read(true).open(&path).unwrap();
        app.write_all(&content).unwrap();
        rustix::fs::fcntl_setfl(&app, OFlags::empty()).unwrap();
        assert_eq!(app.write_at(b"over", 4).unwrap_err().raw_os_error(), Some(EPERM), "{options}");
        // The error of the store through the mapping may be reported late, or not at all.
        let store = ["-a", "-c", "mmap -rw 0 4096", "-c", "mwrite 0 4096", "-c", "msync -s"];
        let _ = tool("xfs_io").args(store).arg(&path).output().unwrap();
        drop(app);
        ours.unmount();
        let ours = Ours::mount(&image, &dir, options);
        assert!(fs::read(&path).unwrap() == content, "{options}");
        ours.unmount();
        check(&image);
    }
}

/// A `--` in the user's command line does not prevent the start of the daemon in the background.
#[test]
fn a_double_dash_is_understood() {
    require_mounts!("a_double_dash_is_understood");
    let bench = volume(&[], &[]);
    let dir = bench.path("mounted");
    fs::create_dir(&dir).unwrap();
    let mount = bench.command().arg("mount").arg("--").args([bench.image(), dir.clone()]).output();
    let mount = mount.unwrap();
    let unmounted = unmount(&dir);
    assert!(mount.status.success() && unmounted, "{}", text(&mount.stderr));
}

/// The mount helper, which mount(8) calls, supports two flags of mount(8). With -f, no mount is made. With -s, unknown options are
/// accepted.
#[test]
fn mount_8_can_fake_and_be_sloppy() {
    require_mounts!("mount_8_can_fake_and_be_sloppy");
    let bench = volume(&[], &[]);
    let dir = bench.path("mounted");
    fs::create_dir(&dir).unwrap();
    let mount = |flags: &[&str]| {
        let mut helper = Command::new(ironmap());
        helper.arg0("/sbin/mount.fuse.ironmap").args([bench.image(), dir.clone()]).args(flags);
        let told = helper.output().unwrap();
        let is_mounted = unmount_if_mounted(&dir);
        (told.status.success(), is_mounted)
    };
    assert_eq!(mount(&["-f", "-o", "rw"]), (true, false));
    assert_eq!(mount(&["-o", "rw,jam=1"]), (false, false));
    assert_eq!(mount(&["-s", "-o", "rw,jam=1"]), (true, true));
}

fn unmount_if_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let is_mounted = mounts.contains(dir.to_str().unwrap());
    assert!(!is_mounted || unmount(dir));
    is_mounted
}

/// The options in a line of /etc/fstab for the kernel's ext4 are accepted. `errors=` must equal the setting of the volume.
#[test]
fn options_of_ext4_are_taken() {
    require_mounts!("options_of_ext4_are_taken");
    let bench = volume(&["-e", "remount-ro"], &[]);
    let dir = bench.path("mounted");
    let options = "errors=remount-ro,data=ordered,acl,user_xattr,barrier=1,commit=1";
    let ours = Ours::mount(&bench.image(), &dir, options);
    fs::write(dir.join("file"), "content").unwrap();
    ours.unmount();
    check(&bench.image());
    let mut refused = Command::new(ironmap());
    refused.args(["mount", "-o", "errors=continue"]).arg(bench.image()).arg(&dir);
    let refused = refused.output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("ironmap tune -e continue"), "{refused:?}");
}

/// `lsattr` and `chattr` on a mount behave as on the kernel's ext4. A changed flag takes effect at once.
#[test]
fn flags_are_shown_and_set() {
    require_mounts!("flags_are_shown_and_set");
    let bench = volume(&[], &[("mkdir", "dir", EXTENTS)]);
    let twin = bench.path("twin");
    fs::copy(bench.image(), &twin).unwrap();
    let (dir, theirs) = (bench.path("mounted"), bench.path("kernel"));
    let ours = Ours::mount(&bench.image(), &dir, "allow_other");
    fs::create_dir(&theirs).unwrap();
    succeed(tool("mount").args(["-o", "loop"]).arg(&twin).arg(&theirs));
    let script = r#"
        echo content > file; chmod 666 file; chmod 777 .
        user='setpriv --reuid=1000 --regid=1000 --clear-groups'
        lsattr -d file dir .
        chattr +adS file; lsattr file
        echo more >> file; ! echo over > file 2>/dev/null
        $user chattr -d file 2>/dev/null || echo "not the owner's"
        chattr -adS file; chattr +A dir; lsattr -d file dir
        chattr +i file; ! echo over 2>/dev/null > file; ! rm -f file 2>/dev/null; chattr -i file
        $user touch own; $user chattr +d own; lsattr own
        $user chattr +i own 2>/dev/null || echo 'not allowed'
        for flag in T P D; do chattr +$flag file 2>/dev/null || echo "no $flag"; done
        lsattr file; chattr +TD dir; lsattr -d dir; chattr -TD dir; lsattr -d dir
        cat file
    "#;
    let run = |dir: &Path| {
        let out = succeed(tool("sh").args(["-c", script]).current_dir(dir));
        text(&out.stdout)
    };
    let (found, expected) = (run(&dir), run(&theirs));
    succeed(tool("umount").arg(&theirs));
    assert_eq!(found, expected);
    ours.unmount();
    check(&bench.image());
}

/// `fstrim` and the mount option `discard` make holes in a sparse image.
#[test]
fn free_space_is_given_back() {
    require_mounts!("free_space_is_given_back");
    let bench = volume(&[], &[]);
    let dir = bench.path("mounted");
    let taken = || fs::metadata(bench.image()).unwrap().blocks() * 512;
    let content = pattern(8 << 20, 3);
    for (options, trims) in [("rw", true), ("discard", false)] {
        let ours = Ours::mount(&bench.image(), &dir, options);
        fs::write(dir.join("large"), &content).unwrap();
        File::open(dir.join("large")).unwrap().sync_all().unwrap();
        let full = taken();
        let free = || rustix::fs::statvfs(&dir).unwrap();
        let before = free();
        fs::remove_file(dir.join("large")).unwrap();
        // The kernel sends the last close of the removed file asynchronously. The server frees the blocks of the file only after this
        // close, so the test waits.
        let begin = Instant::now();
        while free().f_bfree < before.f_bfree + (7 << 20) / before.f_frsize {
            assert!(begin.elapsed() < Duration::from_secs(60), "{options}: no blocks are freed");
            std::thread::yield_now();
        }
        File::open(&dir).unwrap().sync_all().unwrap();
        if trims {
            succeed(tool("fstrim").arg(&dir));
            let user = ["--reuid=1000", "--regid=1000", "--clear-groups", "fstrim"];
            assert!(!tool("setpriv").args(user).arg(&dir).output().unwrap().status.success());
            // The first five requests are invalid: in each of them, the range is outside the volume or shorter than a block, or the minimum
            // length is too long. The last request trims only a part of the volume, which is not supported.
            for (range, expected) in [
                ("-o 1T", "Invalid argument"),
                ("-l 100", "Invalid argument"),
                ("-l 0", "Invalid argument"),
                ("-m 2G", "Invalid argument"),
                ("-o 64M -l 1M", "Invalid argument"),
                ("-o 1M", "not supported"),
            ] {
                let mut fstrim = tool("fstrim");
                let output = fstrim.args(range.split(' ')).arg(&dir).output().unwrap();
                let said = text(&output.stderr);
                assert!(!output.status.success() && said.contains(expected), "{range}: {said}");
            }
        }
        ours.unmount();
        assert!(taken() + (7 << 20) < full, "{options}: {} of {full} bytes", taken());
        check(&bench.image());
    }
}
