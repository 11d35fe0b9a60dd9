//! A daemon that is killed during its work: synced data exist afterwards.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::{Signal, kill_process};

use crate::sides::{Ours, check, ironmap, require_mounts, skip, unmount, when_not_busy};
use crate::support::{Bench, pattern, succeed, text, tool};

fn volume() -> Bench {
    let bench = Bench::empty();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("64M"));
    bench
}

/// After SIGKILL of the daemon, everything before a successful fsync exists: content, names, and replaced files. The next mount recovers
/// the volume.
#[test]
fn synced_data_survive_a_killed_daemon() {
    require_mounts!("synced_data_survive_a_killed_daemon");
    let bench = volume();
    let dir = bench.path("mounted");
    let mut ours = Ours::mount(&bench.image(), &dir, "rw");
    let mut synced = Vec::new();
    for number in 0..40 {
        let (name, content) =
            (format!("file{}", number % 7), pattern(1 + number * 3001, number as u64));
        let mut new = File::create(dir.join("new")).unwrap();
        new.write_all(&content).unwrap();
        new.sync_all().unwrap();
        fs::rename(dir.join("new"), dir.join(&name)).unwrap();
        File::open(&dir).unwrap().sync_all().unwrap();
        synced.retain(|(other, _)| *other != name);
        synced.push((name, content));
    }
    let data = File::create(dir.join("data")).unwrap();
    data.write_all_at(&pattern(100_000, 1), 5000).unwrap();
    data.sync_data().unwrap();
    // Data that were not synced may be lost.
    let mut lost = File::create(dir.join("lost")).unwrap();
    lost.write_all(&pattern(1 << 20, 9)).unwrap();
    kill_process(ours.id(), Signal::KILL).unwrap();
    ours.wait();
    drop((data, lost, ours));

    let ours = Ours::mount(&bench.image(), &dir, "rw");
    for (name, content) in &synced {
        assert!(fs::read(dir.join(name)).unwrap() == *content, "{name}");
    }
    assert!(fs::read(dir.join("data")).unwrap()[5000..] == pattern(100_000, 1));
    ours.unmount();
    check(&bench.image());
}

/// A signal unmounts and closes the volume, even with open files. No recovery is needed.
#[test]
fn a_signal_leaves_a_clean_volume() {
    require_mounts!("a_signal_leaves_a_clean_volume");
    for busy in [false, true] {
        let bench = volume();
        let dir = bench.path("mounted");
        let mut ours = Ours::mount(&bench.image(), &dir, "rw");
        fs::write(dir.join("file"), b"content").unwrap();
        let open = busy.then(|| File::open(dir.join("file")).unwrap());
        kill_process(ours.id(), Signal::TERM).unwrap();
        assert!(ours.wait().success());
        drop(open);
        check(&bench.image());
        let found = bench.ask("cat /file");
        assert_eq!(found, "content", "busy: {busy}");
    }
}

/// A daemon in the background ends after an unmount. A read-only mount writes nothing to the volume.
#[test]
fn a_read_only_mount_in_the_background_writes_nothing() {
    require_mounts!("a_read_only_mount_in_the_background_writes_nothing");
    let bench = volume();
    let (dir, before) = (bench.path("mounted"), fs::read(bench.image()).unwrap());
    fs::create_dir(&dir).unwrap();
    let mut command = bench.command();
    succeed(command.args(["mount", "-o", "ro"]).args([bench.image(), dir.clone()]));
    let names = fs::read_dir(&dir).map(|names| names.count());
    let refused = fs::write(dir.join("file"), b"").unwrap_err();
    // A sync without changes succeeds.
    let synced = File::open(&dir).and_then(|dir| dir.sync_all());
    assert!(unmount(&dir));
    assert_eq!((names.unwrap(), refused.raw_os_error()), (1, Some(30)));
    synced.unwrap();
    assert!(fs::read(bench.image()).unwrap() == before);
}

/// `ironmap umount` returns when the volume is closed. Another program can then open the volume. `ironmap umount` does not unmount other
/// file systems.
#[test]
fn umount_waits_until_the_volume_is_closed() {
    require_mounts!("umount_waits_until_the_volume_is_closed");
    let bench = volume();
    let (image, dir) = (bench.image(), bench.path("mounted"));
    fs::create_dir(&dir).unwrap();
    let umount = |dir: &Path| bench.command().arg("umount").arg(dir).output().unwrap();
    let is_root = rustix::process::geteuid().is_root();
    for round in 0..5_u64 {
        bench.succeed(["mount".as_ref(), "-q".as_ref(), image.as_os_str(), dir.as_os_str()]);
        fs::write(dir.join("file"), pattern(3_000_000, round)).unwrap();
        // An open file makes the mount busy. The mount is not unmounted.
        let open = File::open(dir.join("file")).unwrap();
        let busy = umount(&dir);
        let own = format!("(pid {})", std::process::id());
        let names =
            text(&busy.stderr).contains("busy: used by ") && text(&busy.stderr).contains(&own);
        assert!(!busy.status.success() && (names || !is_root), "{busy:?}");
        drop(open);
        assert!(when_not_busy(|| umount(&dir)));
        // This command succeeds only if the server has closed the volume.
        bench.succeed(["truncate", "--size=7", &bench.target("/file")]);
        check(&image);
    }
    for (dir, what) in
        [(&*dir, "nothing is mounted there"), (Path::new("/proc"), "proc is mounted")]
    {
        let other = text(&umount(dir).stderr);
        let says = other.contains("not a volume that ironmap has mounted") && other.contains(what);
        assert!(says, "{other}");
    }
}

/// If a volume is still mounted at another directory, umount does not wait for the end of the server.
#[test]
fn umount_does_not_wait_where_the_volume_stays_mounted() {
    require_mounts!("umount_does_not_wait_where_the_volume_stays_mounted");
    if !rustix::process::geteuid().is_root() {
        return skip("umount_does_not_wait_where_the_volume_stays_mounted", "needs root");
    }
    let bench = volume();
    let (dir, second) = (bench.path("mounted"), bench.path("second"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&second).unwrap();
    bench.succeed(["mount", "-q", "image", "mounted"]);
    succeed(tool("mount").arg("--bind").arg(&dir).arg(&second));
    let output = bench.run(["umount", "second"]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("still mounted at "), "{said}");
    fs::write(dir.join("file"), "content").unwrap();
    assert!(when_not_busy(|| bench.run(["umount", "mounted"])));
    check(&bench.image());
}

/// umount does not wait for a daemon that was killed. It reports that the volume was not closed and that written data may be lost. If the
/// volume was mounted read-only, umount succeeds.
#[test]
fn umount_says_that_the_daemon_was_killed() {
    require_mounts!("umount_says_that_the_daemon_was_killed");
    let bench = volume();
    let (image, dir) = (bench.image(), bench.path("with space"));
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink("with space", bench.path("link")).unwrap();
    for (options, name, code, says) in [
        ("rw", "with space", 4, "with space: the server ended without closing the volume"),
        ("ro", "with space", 0, ""),
        ("rw", "link/", 4, "link/: the server ended without closing the volume"),
        ("rw", "link", 4, "link: the server ended without closing the volume"),
    ] {
        let mut ours = Ours::mount(&image, &dir, options);
        kill_process(ours.id(), Signal::KILL).unwrap();
        ours.wait();
        // A child process of another test may have a copy of a descriptor. The volume is then in use for a short time.
        let synced = bench.run(["sync", name]);
        let said = text(&synced.stderr);
        assert_eq!(synced.status.code(), Some(code), "{options}: {said}");
        assert!(said.contains(says) && said.lines().count() == says.lines().count(), "{said}");
        let umount = || bench.run(["umount", name]);
        let busy = |output: &Output| text(&output.stderr).contains("busy");
        let output = (0..500).map(|_| umount()).find(|output| !busy(output)).unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{options}: {said}");
        assert!(said.contains(says) && said.lines().count() == says.lines().count(), "{said}");
        assert!(fs::read_dir(&dir).unwrap().next().is_none(), "it is mounted still");
    }
}

/// `/proc/mounts` contains the absolute path of the image. mount(8) and findmnt expect this.
#[test]
fn mounts_are_named_by_absolute_paths() {
    require_mounts!("mounts_are_named_by_absolute_paths");
    let bench = volume();
    let dir = bench.path("mounted");
    fs::create_dir(&dir).unwrap();
    bench.succeed(["mount", "-q", "./image", "mounted"]);
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == dir.to_str()).unwrap();
    let source = line.split(' ').next().unwrap().to_owned();
    assert!(when_not_busy(|| bench.run(["umount", "mounted"])));
    assert_eq!(Path::new(&source), bench.image().canonicalize().unwrap());
}

/// A daemon is killed under the load of sqlite3 and PostgreSQL. All committed transactions exist, and the checks of the databases succeed.
#[test]
fn databases_survive_a_killed_daemon() {
    require_mounts!("databases_survive_a_killed_daemon");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/killed.sh");
    let out = Command::new("bash").arg(script).arg(ironmap()).arg("short").output().unwrap();
    let told = text(&out.stdout);
    for line in told.lines().filter(|line| line.starts_with("SKIP ")) {
        skip("databases_survive_a_killed_daemon", &line["SKIP ".len()..]);
    }
    assert!(out.status.success(), "{told}{}", text(&out.stderr));
}
