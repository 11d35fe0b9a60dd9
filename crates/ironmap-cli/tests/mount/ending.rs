//! Tests the end of a mount, and the state of its volume after the end.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};

use crate::sides::{Ours, check, ironmap, require_mounts, skip};
use crate::support::{Bench, succeed, text, tool};

fn volume() -> Bench {
    let bench = Bench::empty();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("64M"));
    bench
}

/// A mounted file system in memory. Dropping the value unmounts it.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(dir: &Path) -> Self {
        fs::create_dir(dir).unwrap();
        succeed(tool("mount").args(["-t", "tmpfs", "none"]).arg(dir));
        Self(dir.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = tool("umount").arg("-l").arg(&self.0).output();
    }
}

/// Mounts a volume whose device becomes full (a sparse image on a full tmpfs), in the foreground and in the background. Messages to the
/// system's log go to the test.
const FULL: &str = r#"
mkdir store mounted dev
mount -t tmpfs none dev
mknod -m 666 dev/null c 1 3; mknod -m 666 dev/fuse c 10 229
ln -s "$PWD/log" dev/log
mount --move dev /dev
make() {
    mount -t tmpfs -o size=8M none store
    truncate -s 32M store/image
    mke2fs -qF -t ext4 store/image
}
fill() {
    until grep -q "$PWD/mounted" /proc/mounts; do :; done
    yes | dd of=store/filler bs=4k 2>/dev/null
}
make; "$0" mount -f store/image mounted & server=$!
fill
mkdir mounted/lost; umount mounted
wait $server; echo "foreground: $?"
umount store
make; "$0" mount store/image mounted
fill
mkdir mounted/lost; sync mounted/lost 2>/dev/null
mkdir mounted/a 2>/dev/null; mkdir mounted/b 2>/dev/null
"$0" umount mounted; echo "umount: $?"
umount store
"#;

/// A failure of the last commit is reported, although no program waits for this commit. A mount in the foreground prints one line, and its
/// exit code reports the failure. A mount in the background writes the failure to the system's log once, when the mount ends. `ironmap
/// umount` also reports the failure.
#[test]
fn a_last_commit_that_fails_is_reported() {
    require_mounts!("a_last_commit_that_fails_is_reported");
    let bench = Bench::empty();
    let log = UnixDatagram::bind(bench.path("log")).unwrap();
    log.set_nonblocking(true).unwrap();
    let mut shell = tool("unshare");
    shell.args(["--mount", "sh", "-c", FULL]).arg(ironmap()).current_dir(bench.dir.path());
    let output = succeed(&mut shell);
    assert_eq!(text(&output.stdout), "foreground: 4\numount: 4\n");
    let said = text(&output.stderr);
    let lost = "store/image: closed with an error; changes that were not synced may be lost: ";
    let is_lost = |line: &str| line.starts_with(&format!("ironmap: {lost}"));
    // Each mount begins with a note about syncfs(2).
    let lines: Vec<_> = said.lines().filter(|line| !line.starts_with("ironmap: note: ")).collect();
    assert!(lines.iter().all(|line| is_lost(line)) && lines.len() == 2, "{said}");
    let mut told = Vec::new();
    let mut line = [0; 1000];
    while let Ok(len) = log.recv(&mut line) {
        told.push(text(&line[..len]));
    }
    let [aborted, at_end] = &told[..] else { panic!("{told:?}") };
    assert!(aborted.starts_with("<27>ironmap[") && aborted.contains("made the volume read-only"));
    assert!(at_end.contains(lost), "{at_end}");
}

/// The end of a mount removes only this mount. Another mount beneath it, at the same directory, stays.
#[test]
fn a_mount_beneath_stays() {
    require_mounts!("a_mount_beneath_stays");
    let bench = volume();
    let dir = bench.path("mounted");
    let _beneath = Tmpfs::mount(&dir);
    fs::write(dir.join("beneath"), "").unwrap();
    let is_beneath = || dir.join("beneath").exists();
    let ours = Ours::mount(&bench.image(), &dir, "rw");
    assert!(!is_beneath());
    ours.unmount();
    assert!(is_beneath(), "after an umount");
    let mut ours = Ours::mount(&bench.image(), &dir, "rw");
    kill_process(ours.id(), Signal::TERM).unwrap();
    assert!(ours.wait().success());
    assert!(is_beneath(), "after a signal");
    check(&bench.image());
}

/// Another mount at the same directory, on top of this mount, is not removed. If the kernel allows it, this mount still ends.
#[test]
fn a_mount_above_stays() {
    require_mounts!("a_mount_above_stays");
    let bench = volume();
    let dir = bench.path("mounted");
    let mut ours = Ours::mount(&bench.image(), &dir, "rw");
    fs::write(dir.join("file"), "content").unwrap();
    succeed(tool("mount").args(["-t", "tmpfs", "none"]).arg(&dir));
    let above = Tmpfs(dir.clone());
    fs::write(dir.join("above"), "").unwrap();
    kill_process(ours.id(), Signal::TERM).unwrap();
    ours.wait();
    assert!(dir.join("above").exists());
    drop(above);
}

/// A program that has stored data through a mapping of a file, and keeps the mapping.
pub(crate) struct Mapped(Child);

impl Mapped {
    /// Stores `len` bytes `a` through a mapping, and then makes the file `stored`. This file must not exist before.
    pub(crate) fn store(file: &Path, len: u64, stored: &Path) -> Self {
        let program = tool("xfs_io").arg("-f").arg(file).stdin(Stdio::piped()).spawn();
        let mapped = Self(program.unwrap());
        let commands = format!(
            "truncate {len}\nmmap -rw 0 {len}\nmwrite -S 0x61 0 {len}\nopen -f {}\n",
            stored.display()
        );
        mapped.0.stdin.as_ref().unwrap().write_all(commands.as_bytes()).unwrap();
        while !stored.exists() {
            std::thread::yield_now();
        }
        mapped
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Data that were written before a signal are on the volume, although files are still open. The data are in a writeback cache, or were
/// stored through a mapping.
#[test]
fn a_signal_loses_nothing_that_was_written() {
    const LEN: usize = 24 << 20;
    require_mounts!("a_signal_loses_nothing_that_was_written");
    if tool("xfs_io").arg("-V").output().is_err() {
        return skip("a_signal_loses_nothing_that_was_written", "needs the program xfs_io");
    }
    for options in ["rw", "writeback_cache"] {
        let bench = volume();
        let dir = bench.path("mounted");
        let mut ours = Ours::mount(&bench.image(), &dir, options);
        let mapped = Mapped::store(&dir.join("mapped"), LEN as u64, &bench.path("stored"));
        let (mut written, content) = (File::create(dir.join("written")).unwrap(), vec![b'b'; LEN]);
        written.write_all(&content).unwrap();
        kill_process(ours.id(), Signal::TERM).unwrap();
        assert!(ours.wait().success());
        drop((mapped, written));
        check(&bench.image());
        let on_volume = |name| bench.succeed(["cat", &bench.target(name)]);
        assert!(on_volume("/written") == content, "{options}: written");
        assert!(on_volume("/mapped") == vec![b'a'; LEN], "{options}: mapped");
    }
}

/// After a signal during changes, the volume is closed and sound, and further operations fail.
#[test]
fn a_signal_under_load_leaves_a_clean_volume() {
    require_mounts!("a_signal_under_load_leaves_a_clean_volume");
    for _ in 0..3 {
        let bench = volume();
        let dir = bench.path("mounted");
        let mut ours = Ours::mount(&bench.image(), &dir, "rw");
        // The open descriptor keeps the mount in use after it is detached from the directory.
        let mounted = File::open(&dir).unwrap();
        let load = std::thread::spawn(move || {
            for number in 0_u64.. {
                let flags = OFlags::CREATE | OFlags::WRONLY;
                let new = rustix::fs::openat(&mounted, format!("{number}"), flags, Mode::RWXU);
                let Ok(new) = new else { return };
                let _ = File::from(new).write_all(&[number as u8; 3000]);
                if number % 3 == 2 {
                    let _ = rustix::fs::unlinkat(
                        &mounted,
                        format!("{}", number - 2),
                        rustix::fs::AtFlags::empty(),
                    );
                }
            }
        });
        while !dir.join("100").exists() {
            std::thread::yield_now();
        }
        kill_process(ours.id(), Signal::TERM).unwrap();
        assert!(ours.wait().success());
        load.join().unwrap();
        check(&bench.image());
    }
}

/// If the mount also exists in another mount namespace, `umount` names the processes in that namespace and waits. A signal ends the wait.
#[test]
fn copies_of_a_mount_in_other_namespaces_are_named() {
    require_mounts!("copies_of_a_mount_in_other_namespaces_are_named");
    for signal in [Signal::INT, Signal::TERM] {
        let bench = volume();
        let dir = bench.path("mounted");
        let mut ours = Ours::mount(&bench.image(), &dir, "rw");
        let mut unshare = tool("unshare");
        unshare.args(["--mount", "sh", "-c", "echo ready; exec cat"]);
        let mut holder = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        holder.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        // If the test runs in the background of a shell, it ignores SIGINT, and a child process would inherit this. `env` restores the
        // default effect of the signals.
        let mut umount = tool("env");
        umount.arg("--default-signal=INT,TERM").arg(ironmap()).arg("umount").arg(&dir);
        let mut umount = umount.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(umount.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains(&format!("{} (cat)", holder.id())), "{said}");
        kill_process(Pid::from_child(&umount), signal).unwrap();
        assert_eq!(umount.wait().unwrap().signal(), Some(signal.as_raw()));
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().success());
        assert!(ours.wait().success());
        check(&bench.image());
    }
}
