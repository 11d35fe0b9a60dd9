//! How a mount ends, and what it leaves.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, kill_process};

use crate::sides::{Ours, check, require_mounts};
use crate::support::{Bench, succeed, tool};

fn volume() -> Bench {
    let bench = Bench::empty();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("64M"));
    bench
}

/// A file system in memory, until it is dropped.
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

/// The end of a mount takes away that mount, and nothing beneath it.
#[test]
fn what_is_mounted_beneath_stays() {
    require_mounts!("what_is_mounted_beneath_stays");
    let bench = volume();
    let dir = bench.path("mounted");
    let _beneath = Tmpfs::mount(&dir);
    fs::write(dir.join("beneath"), "").unwrap();
    let is_beneath = || dir.join("beneath").exists();
    let ours = Ours::mount(&bench.image(), &dir, "rw");
    assert!(!is_beneath());
    ours.unmount();
    assert!(is_beneath(), "behind an umount");
    let mut ours = Ours::mount(&bench.image(), &dir, "rw");
    kill_process(ours.id(), Signal::TERM).unwrap();
    assert!(ours.wait().success());
    assert!(is_beneath(), "behind a signal");
    check(&bench.image());
}

/// What is mounted above it is not taken for it, and it ends all the same where the kernel lets it.
#[test]
fn what_is_mounted_above_stays() {
    require_mounts!("what_is_mounted_above_stays");
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

/// A signal amid changes leaves a volume that is closed, in which nothing contradicts the counts: who goes on hears that it is over.
#[test]
fn a_signal_under_load_leaves_a_clean_volume() {
    require_mounts!("a_signal_under_load_leaves_a_clean_volume");
    for _ in 0..3 {
        let bench = volume();
        let dir = bench.path("mounted");
        let mut ours = Ours::mount(&bench.image(), &dir, "rw");
        // It stays with the mount when the directory is free.
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
