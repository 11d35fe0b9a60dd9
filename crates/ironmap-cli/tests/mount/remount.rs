//! Tests two requests to a running mount: `ironmap sync`, which makes data durable, and `-o remount`, which can make the mount read-only.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Signal, kill_process};

use crate::ending::Mapped;
use crate::sides::{Ours, check, ironmap, require_mounts, skip, when_not_busy};
use crate::support::{Bench, pattern, succeed, text, tool};

const LEN: usize = 24 << 20;

fn volume() -> Bench {
    let bench = Bench::empty();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("96M"));
    bench
}

fn kill(mut ours: Ours) {
    kill_process(ours.id(), Signal::KILL).unwrap();
    ours.wait();
}

/// A sync of a directory makes all changes durable that the kernel has sent to the server. They include entries of this directory, names
/// and attributes in other directories, and the content of closed files. Data of open files may be lost if they are only in the kernel's
/// page cache.
#[test]
fn a_synced_directory_has_all_that_was_sent() {
    require_mounts!("a_synced_directory_has_all_that_was_sent");
    for options in ["rw", "writeback_cache"] {
        let bench = volume();
        let dir = bench.path("mounted");
        let ours = Ours::mount(&bench.image(), &dir, options);
        fs::create_dir(dir.join("d")).unwrap();
        fs::write(dir.join("closed"), pattern(3_000_000, 1)).unwrap();
        fs::set_permissions(dir.join("closed"), fs::Permissions::from_mode(0o641)).unwrap();
        let mut open = File::create(dir.join("d/open")).unwrap();
        open.write_all(&pattern(3_000_000, 2)).unwrap();
        fs::hard_link(dir.join("closed"), dir.join("d/link")).unwrap();
        File::open(dir.join("d")).unwrap().sync_all().unwrap();
        kill(ours);
        drop(open);
        let ours = Ours::mount(&bench.image(), &dir, "rw");
        for name in ["closed", "d/link"] {
            assert!(
                fs::read(dir.join(name)).unwrap() == pattern(3_000_000, 1),
                "{options}: {name}"
            );
        }
        let closed = fs::metadata(dir.join("closed")).unwrap();
        assert_eq!((closed.mode() & 0o777, closed.nlink()), (0o641, 2), "{options}");
        let there = fs::read(dir.join("d/open")).unwrap();
        let all = there.len() == 3_000_000;
        assert!(all || options == "writeback_cache", "{options}: {} bytes", there.len());
        assert!(!all || there == pattern(3_000_000, 2), "{options}");
        ours.unmount();
        check(&bench.image());
    }
}

/// After `ironmap sync`, all earlier writes are durable. This includes data of open files and mappings in the kernel's page cache. (The
/// kernel does not pass `sync -f` to this FUSE server.)
#[test]
fn a_synced_mount_has_all_that_was_written() {
    require_mounts!("a_synced_mount_has_all_that_was_written");
    if tool("xfs_io").arg("-V").output().is_err() {
        return skip("a_synced_mount_has_all_that_was_written", "needs the program xfs_io");
    }
    for options in ["rw", "writeback_cache"] {
        let bench = volume();
        let dir = bench.path("mounted");
        let ours = Ours::mount(&bench.image(), &dir, options);
        let mapped = Mapped::store(&dir.join("mapped"), LEN as u64, &bench.path("stored"));
        let mut written = File::create(dir.join("written")).unwrap();
        written.write_all(&vec![b'b'; LEN]).unwrap();
        bench.succeed(["sync".as_ref(), dir.as_os_str()]);
        kill(ours);
        drop((mapped, written));
        let ours = Ours::mount(&bench.image(), &dir, "rw");
        assert!(fs::read(dir.join("written")).unwrap() == vec![b'b'; LEN], "{options}: written");
        assert!(fs::read(dir.join("mapped")).unwrap() == vec![b'a'; LEN], "{options}: mapped");
        ours.unmount();
        check(&bench.image());
    }
}

/// With -v, a mount for writing prints one note. The note reports that sync -f commits nothing on the mount, and names the command to use
/// instead. If another command finds the volume locked, its message says that ironmap has mounted the volume, and names the directory. The
/// flags -r, -w and -v have the same meaning as in mount(8), also if the program is called as the mount helper.
#[test]
fn flags_of_mount_8_and_the_note_on_sync() {
    require_mounts!("flags_of_mount_8_and_the_note_on_sync");
    let bench = volume();
    let dir = bench.path("mounted");
    fs::create_dir(&dir).unwrap();
    let mount = |name: &str, args: &[&str], mode: &str| {
        let mut command = bench.command();
        if name != "ironmap" {
            command.arg0(name);
        } else {
            command.arg("mount");
        }
        let said = command.args(args).output().unwrap();
        assert!(said.status.success(), "{args:?}: {}", text(&said.stderr));
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let shown = mounts.lines().find(|line| line.contains(dir.to_str().unwrap())).unwrap();
        assert!(shown.contains(&format!(" {mode},")), "{args:?}: {shown}");
        if mode == "rw" {
            let locked = text(&bench.run(["ls", "image:/"]).stderr);
            let by = format!(", mounted by ironmap on {}\n", dir.canonicalize().unwrap().display());
            assert!(
                locked.contains("locked by another program: ") && locked.ends_with(&by),
                "{locked}"
            );
        }
        assert!(when_not_busy(|| bench.run(["umount", "mounted"])), "{args:?}: stays mounted");
        (text(&said.stdout), text(&said.stderr))
    };
    let names = ["image", "mounted"];
    let quiet = (String::new(), String::new());
    assert_eq!(mount("ironmap", &names, "rw"), quiet);
    let (out, note) = mount("ironmap", &["-v", "image", "mounted"], "rw");
    assert!(note.contains("note: sync -f ") && note.contains("ironmap sync "), "{note}");
    assert_eq!((out.as_str(), note.lines().count()), ("image mounted on mounted\n", 1), "{note}");
    let said = ("image mounted on mounted\n".to_owned(), String::new());
    assert_eq!(mount("ironmap", &["-q", "image", "mounted"], "rw"), quiet);
    assert_eq!(mount("ironmap", &["-r", "image", "mounted"], "ro"), quiet);
    assert_eq!(mount("ironmap", &["-v", "-o", "rw", "-r", "image", "mounted"], "ro"), said);
    assert_eq!(mount("ironmap", &["-q", "-o", "ro", "-w", "image", "mounted"], "rw"), quiet);
    assert_eq!(mount("/sbin/mount.ironmap", &["image", "mounted", "-rv"], "ro"), said);
    assert_eq!(mount("mount.ironmap", &["image", "mounted", "-r", "-n", "-w", "-r"], "ro"), quiet);
    let missing = bench.run(["mount", "mounted"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("DIR is missing"), "{}", text(&missing.stderr));
    check(&bench.image());
}

/// Calls the mount helper as mount(8) does for a remount. mount(8) passes all options that the mount shall have, including the options that
/// the kernel shows.
fn remount(bench: &Bench, dir: &Path, options: &str) -> Result<(), String> {
    let mut helper = Command::new(ironmap());
    helper.arg0("/sbin/mount.fuse.ironmap").args([&bench.image(), dir]).arg("-o");
    helper.arg(format!("{options},remount,user_id=0,group_id=0,default_permissions"));
    let told = helper.output().unwrap();
    if told.status.success() { Ok(()) } else { Err(text(&told.stderr)) }
}

/// A mount becomes read-only: writes are refused, written data are durable, and reads update no times. It can become writable again only if
/// the volume was opened for writing.
#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    require_mounts!("a_mount_becomes_read_only_and_writable_again");
    let bench = volume();
    let (image, dir) = (bench.image(), bench.path("mounted"));
    let ours = Ours::mount(&image, &dir, "strictatime,nosuid");
    fs::write(dir.join("file"), pattern(100_000, 1)).unwrap();
    let open = File::options().append(true).open(dir.join("file")).unwrap();
    assert!(remount(&bench, &dir, "ro,nosuid,relatime").unwrap_err().contains("busy"));
    drop(open);
    succeed(tool("touch").args(["-a", "-d", "2001-02-03"]).arg(dir.join("file")));
    let time = || fs::metadata(dir.join("file")).unwrap().atime();
    let set = time();
    remount(&bench, &dir, "ro,nosuid,relatime").unwrap();
    let refused = fs::write(dir.join("other"), "").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // A read with O_DIRECT gets the data from the server, not from the page cache.
    assert!(
        succeed(tool("dd").arg("iflag=direct").arg(format!("if={}", dir.join("file").display())))
            .stdout
            .len()
            == 100_000
    );
    assert_eq!(time(), set);
    let shows = |flags: &str| {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let shown = mounts.lines().find(|line| line.contains(dir.to_str().unwrap())).unwrap();
        assert!(shown.contains(flags), "{shown}, not {flags}");
    };
    shows(" ro,nosuid,relatime");
    // For `ironmap mount -o remount`, the user names only the changes. All other options are kept.
    bench.succeed(["mount", "-o", "remount,noexec", "mounted"]);
    shows(" ro,nosuid,noexec,");
    // mount(8) clears an option by omitting it from the list. Here, `nosuid` is omitted.
    remount(&bench, &dir, "rw,noexec").unwrap();
    shows(" rw,noexec,");
    fs::write(dir.join("other"), "content").unwrap();
    fs::read(dir.join("file")).unwrap();
    assert!(time() > set);
    remount(&bench, &dir, "ro").unwrap();
    kill(ours);
    let ours = Ours::mount(&image, &dir, "ro");
    assert!(fs::read(dir.join("file")).unwrap() == pattern(100_000, 1));
    assert_eq!(fs::read(dir.join("other")).unwrap(), b"content");
    let refused = remount(&bench, &dir, "rw").unwrap_err();
    assert!(refused.contains("open for reading only"), "{refused}");
    remount(&bench, &dir, "ro,noexec").unwrap();
    ours.unmount();
    let refused = remount(&bench, &dir, "ro").unwrap_err();
    assert!(refused.contains("not a volume that ironmap has mounted"), "{refused}");
}
