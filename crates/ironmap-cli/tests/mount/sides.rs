//! Two equal images: ironmap mounts the first, and the kernel mounts the second. Both are unmounted and removed, even after a failure.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::support::{Bench, IRONMAP, succeed, text, tool};

/// The reason why the tests cannot run on this machine, or `None` if they can run.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("needs /dev/fuse".to_owned());
    }
    let has = |name: &str| {
        let found = tool("sh").args(["-c", &format!("command -v {name}")]).output();
        found.is_ok_and(|out| out.status.success())
    };
    ["setpriv", "setfacl", "setfattr", "debugfs", "losetup"]
        .into_iter()
        .find(|name| !has(name))
        .map(|name| format!("needs the program {name}"))
}

/// Prints a note and returns from a test that cannot run on this machine.
macro_rules! require_mounts {
    ($name:literal) => {
        if let Some(why) = crate::sides::missing() {
            crate::sides::skip($name, &why);
            return;
        }
    };
}
pub(crate) use require_mounts;

pub(crate) fn skip(name: &str, why: &str) {
    use std::io::Write;
    let line = format!("SKIP mount::{name}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(log) = std::env::var_os("IRONMAP_SKIP_LOG") {
        let log = fs::File::options().append(true).create(true).open(log);
        let _ = log.and_then(|mut log| log.write_all(line.as_bytes()));
    }
}

/// Whether `./x mount` runs this test. If so, long tests are allowed.
pub(crate) fn long() -> bool {
    std::env::var_os("IRONMAP_MOUNT_LONG").is_some()
}

/// The path of the program. The environment variable `IRONMAP_BIN` can replace this path.
pub(crate) fn ironmap() -> OsString {
    std::env::var_os("IRONMAP_BIN").unwrap_or(IRONMAP.into())
}

/// A volume that ironmap serves.
pub(crate) struct Ours {
    pub(crate) dir: PathBuf,
    daemon: Child,
}

impl Ours {
    pub(crate) fn mount(image: &Path, dir: &Path, options: &str) -> Self {
        Self::mount_in(image, dir, options, &[])
    }

    /// Mounts an image by a daemon with these environment variables.
    pub(crate) fn mount_in(
        image: &Path,
        dir: &Path,
        options: &str,
        environment: &[(&str, &OsStr)],
    ) -> Self {
        fs::create_dir_all(dir).unwrap();
        let mut daemon = Command::new(ironmap())
            .args(["mount", "-fq", "--tell", "-o", options])
            .args([image, dir])
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut told).unwrap();
        let ours = Self { dir: dir.to_owned(), daemon };
        assert_eq!(told, "mounted\n");
        ours
    }

    /// Unmounts as `fusermount3 -u` does, and waits until the volume is closed.
    pub(crate) fn unmount(mut self) {
        assert!(unmount(&self.dir), "{} stays mounted", self.dir.display());
        assert!(self.daemon.wait().unwrap().success());
    }

    pub(crate) fn id(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.daemon)
    }

    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        self.daemon.wait().unwrap()
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        match self.daemon.try_wait() {
            // The daemon has ended without an error. The directory must not be unmounted, because another file system may be mounted there.
            Ok(Some(status)) if status.success() => return,
            Ok(None) => {
                let _ = self.daemon.kill();
                let _ = self.daemon.wait();
            }
            _ => {}
        }
        // The mount outlives a killed daemon, so it is unmounted here.
        let _ = tool("umount").arg("-l").arg(&self.dir).output();
    }
}

/// A volume that the kernel has mounted on a loop device. The loop device is removed after the unmount.
pub(crate) struct Kernels {
    pub(crate) dir: PathBuf,
}

impl Kernels {
    pub(crate) fn mount(image: &Path, dir: &Path, options: &str) -> Self {
        fs::create_dir_all(dir).unwrap();
        succeed(
            tool("mount").args(["-t", "ext4", "-o", &format!("loop,{options}")]).args([image, dir]),
        );
        Self { dir: dir.to_owned() }
    }

    /// Makes the kernel split unwritten extents exactly around written blocks. By default, the kernel writes zeros to a short unwritten
    /// extent instead of a split.
    fn without_zeroing(self) -> Self {
        let device = fs::metadata(&self.dir).unwrap().dev();
        let path = format!("/sys/fs/ext4/loop{}/extent_max_zeroout_kb", rustix::fs::minor(device));
        fs::write(path, "0").unwrap();
        self
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if !unmount(&self.dir) {
            let _ = tool("umount").arg("-l").arg(&self.dir).output();
            assert!(std::thread::panicking(), "{} stays mounted", self.dir.display());
        }
    }
}

/// Unmounts a directory that may be in use for a short time.
pub(crate) fn unmount(dir: &Path) -> bool {
    when_not_busy(|| tool("umount").arg(dir).output().unwrap())
}

/// Repeats an unmount while the mount is in use. A child process of another test has copies of all descriptors until its exec, and such a
/// copy keeps the mount in use.
pub(crate) fn when_not_busy(unmount: impl Fn() -> Output) -> bool {
    // Each try starts a process, which takes a millisecond.
    (0..500).any(|_| unmount().status.success())
}

/// The two mounts that a test compares: ironmap's mount and the kernel's mount.
pub(crate) struct Sides {
    pub(crate) ours: Ours,
    pub(crate) kernels: Kernels,
    bench: Bench,
    options: String,
}

impl Sides {
    /// Makes the mounts of ironmap and of the kernel, each with an image of 64 MiB. mke2fs makes the images with the options `mke2fs`, and
    /// debugfs then runs `requests` on them.
    pub(crate) fn new(mke2fs: &[&str], requests: &[&str]) -> Self {
        Self::with(mke2fs, requests, "allow_other,noatime")
    }

    /// Makes the mounts of ironmap and of the kernel. `options` are the mount options of ironmap.
    pub(crate) fn with(mke2fs: &[&str], requests: &[&str], options: &str) -> Self {
        let bench = Bench::empty();
        // Other users must have access to the mounts.
        succeed(tool("chmod").arg("755").arg(bench.dir.path()));
        let image = bench.image();
        // Both images are copies of one volume, so that the random values of new files and directories are equal.
        succeed(tool("mke2fs").arg("-qF").args(mke2fs).arg(&image).arg("64M"));
        for request in requests {
            bench.debugfs(request);
        }
        let other = bench.path("image.kernel");
        fs::copy(&image, &other).unwrap();
        Self::of(bench, options)
    }

    fn of(bench: Bench, options: &str) -> Self {
        let (image, other) = (bench.image(), bench.path("image.kernel"));
        let kernels = Kernels::mount(&other, &bench.path("kernel"), "noatime").without_zeroing();
        let ours = Ours::mount(&image, &bench.path("mounted"), options);
        Self { ours, kernels, bench, options: options.to_owned() }
    }

    /// Unmounts both volumes, checks the volume of ironmap, and mounts both volumes again.
    pub(crate) fn again(self) -> Self {
        let Self { ours, kernels, bench, options } = self;
        ours.unmount();
        drop(kernels);
        check(&bench.image());
        Self::of(bench, &options)
    }

    pub(crate) fn dirs(&self) -> [&Path; 2] {
        [&self.ours.dir, &self.kernels.dir]
    }

    /// A directory on another file system.
    pub(crate) fn outside(&self) -> &Path {
        self.bench.dir.path()
    }

    /// Unmounts ironmap's volume. The volume must then be sound, and the kernel must be able to mount it.
    pub(crate) fn end(self) {
        let Self { ours, kernels, bench, .. } = self;
        ours.unmount();
        drop(kernels);
        check(&bench.image());
        drop(Kernels::mount(&bench.image(), &bench.path("kernel"), "ro"));
    }
}

/// Asserts that e2fsck finds no fault, and that the journal needs no recovery.
pub(crate) fn check(image: &Path) {
    let out = tool("e2fsck").args(["-fn"]).arg(image).output().unwrap();
    let said = format!("{}{}", text(&out.stdout), text(&out.stderr));
    // If the journal needs recovery, e2fsck -n prints a message and succeeds.
    let clean = out.status.success() && !said.contains("journal recovery");
    assert!(clean, "e2fsck: {said}");
}
