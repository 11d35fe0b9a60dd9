//! Makes images of a directory with mke2fs, and runs the program on them.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use rustix::fs::{Timespec, Timestamps, XattrFlags};
use tempfile::TempDir;

/// The directories of system programs.
const PROGRAMS: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

pub const IRONMAP: &str = env!("CARGO_BIN_EXE_ironmap");

/// A directory with a source tree and an image of this tree. Dropping the value removes the directory.
pub struct Bench {
    pub dir: TempDir,
}

impl Bench {
    /// Makes a directory without an image. The name of the directory contains the process ID, for `./x clean-up`.
    pub fn empty() -> Self {
        let prefix = format!("ironmap-test-{}-", std::process::id());
        Self { dir: tempfile::Builder::new().prefix(&prefix).tempdir().unwrap() }
    }

    /// An ext4 image of the tree of [`fill`].
    pub fn new() -> Self {
        Self::with(&["-t", "ext4", "-b", "4096"])
    }

    pub fn with(options: &[&str]) -> Self {
        let bench = Self::empty();
        fill(&bench.source());
        let mut mke2fs = tool("mke2fs");
        mke2fs.arg("-qF").args(options).arg("-d").arg(bench.source()).arg(bench.image()).arg("64M");
        succeed(&mut mke2fs);
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn source(&self) -> PathBuf {
        self.path("source")
    }

    pub fn image(&self) -> PathBuf {
        self.path("image")
    }

    /// The location `IMAGE:/PATH` of a file in the image.
    pub fn target(&self, path: &str) -> String {
        format!("{}:{path}", self.image().display())
    }

    /// Changes the image with debugfs.
    pub fn debugfs(&self, request: &str) {
        succeed(tool("debugfs").args(["-w", "-R", request]).arg(self.image()));
    }

    /// Queries the image with debugfs.
    pub fn ask(&self, request: &str) -> String {
        text(&succeed(tool("debugfs").args(["-R", request]).arg(self.image())).stdout)
    }

    /// Runs the program in this directory.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.command().args(args).output().unwrap()
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(IRONMAP);
        command.current_dir(self.dir.path()).env("TZ", "UTC0");
        command
    }

    /// The program as a command. Signals that end the program have their default effect, even if the test process ignores them (as in the
    /// background of a shell).
    pub fn hearing_command(&self) -> Command {
        let mut command = tool("env");
        command.arg("--default-signal=INT,TERM,HUP").arg(IRONMAP);
        command.current_dir(self.dir.path()).env("TZ", "UTC0");
        command
    }

    /// Runs the program, which must succeed and print no messages.
    pub fn succeed<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Vec<u8> {
        succeed(self.command().args(args)).stdout
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_slice(&self.succeed(args)).unwrap()
    }
}

/// A command whose program may be in /sbin or /usr/sbin. The program has its whole path, because std forks for a program that it must find in
/// a changed PATH, and a fork copies the page tables of all images in memory.
pub fn tool(name: &str) -> Command {
    let found = env::split_paths(PROGRAMS).map(|dir| dir.join(name)).find(|path| path.is_file());
    let mut command = Command::new(found.unwrap_or_else(|| name.into()));
    command.arg0(name).env("PATH", PROGRAMS).env("LC_ALL", "C").env("TZ", "UTC0");
    command
}

pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    if command.get_program() == IRONMAP {
        assert_eq!(text(&output.stderr), "", "{command:?}");
    }
    output
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Pseudo-random bytes. They differ in each block and for each seed. With the same seed, a shorter pattern is a prefix of a longer pattern.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub fn raw_name() -> &'static OsStr {
    OsStr::from_bytes(b"not utf-8 \xff%")
}

/// Creates a tree with one file of each kind. Every command is tested on this tree.
fn fill(root: &Path) {
    fs::create_dir_all(root.join("dir/empty")).unwrap();
    fs::write(root.join("small"), "small\n").unwrap();
    fs::write(root.join("nothing"), "").unwrap();
    fs::write(root.join("dir/large"), pattern(3 << 20 | 77, 1)).unwrap();
    fs::write(root.join("dir/.hidden"), "hidden").unwrap();
    fs::write(root.join(raw_name()), "raw").unwrap();
    fs::write(root.join("line\nbreak"), "lines").unwrap();
    fs::hard_link(root.join("small"), root.join("dir/again")).unwrap();
    symlink("../small", root.join("dir/link")).unwrap();
    symlink("l".repeat(200), root.join("dangling")).unwrap();
    symlink("loop-b", root.join("loop-a")).unwrap();
    symlink("loop-a", root.join("loop-b")).unwrap();

    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &pattern(4096, 2), 1 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &pattern(8192, 3), 5 << 20).unwrap();

    fs::set_permissions(root.join("dir/large"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(root.join("dir/empty"), fs::Permissions::from_mode(0o1555)).unwrap();
    for (name, seconds) in
        [("small", -86_400), ("dir/large", 1_234_567_890), ("dir/empty", 2_000_000_000)]
    {
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        let flags = rustix::fs::AtFlags::empty();
        rustix::fs::utimensat(rustix::fs::CWD, root.join(name), &times, flags).unwrap();
    }
    // If the file system does not support attributes in user.*, the attribute is missing. The tests accept this, because they compare with
    // the source.
    let _ =
        rustix::fs::setxattr(root.join("small"), "user.colour", b"gr\xfcn", XattrFlags::empty());
}

/// The value of an extended attribute of the host.
pub fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}
