//! Images made by mke2fs, changed by debugfs and e2fsck, and mounted by the kernel where the test runs as root.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use ironmap::fs::ext4::Ext4;
use ironmap::{Location, OpenOptions, Volume};

/// An image in a directory of its own, gone with it.
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Image {
    /// mke2fs with these options and size.
    pub(crate) fn new(options: &str, size: &str) -> Self {
        Self::of_tree(options, size, None)
    }

    /// The same, with a directory tree copied in.
    pub(crate) fn of_tree(options: &str, size: &str, tree: Option<&Path>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut command = Command::new("mke2fs");
        command.args(["-q", "-F"]).args(options.split_whitespace());
        if let Some(tree) = tree {
            command.arg("-d").arg(tree);
        }
        run(command.arg(&path).arg(size));
        Self { path, _dir: dir }
    }

    /// The image as it is now, also while it is mounted.
    pub(crate) fn copy(&self) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::copy(&self.path, &path).unwrap();
        Self { path, _dir: dir }
    }

    /// Runs debugfs commands, one a line, and gives what they print.
    pub(crate) fn debugfs(&self, commands: &str) -> String {
        let mut child = Command::new("debugfs")
            .args(["-w", "-f", "-"])
            .arg(&self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let commands = commands.to_owned();
        let writer = std::thread::spawn(move || input.write_all(commands.as_bytes()).unwrap());
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        assert!(output.status.success(), "debugfs: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// e2fsck -D: makes hashed directories of all that exceed a block.
    pub(crate) fn index_directories(&self) {
        let status = Command::new("e2fsck")
            .args(["-f", "-y", "-D"])
            .arg(&self.path)
            .output()
            .unwrap()
            .status;
        assert!(status.code().is_some_and(|code| code <= 1), "e2fsck -D: {status}");
    }

    /// e2fsck finds nothing wrong.
    pub(crate) fn assert_sound(&self) {
        run(Command::new("e2fsck").args(["-f", "-n"]).arg(&self.path));
    }

    pub(crate) fn tune(&self, options: &str) {
        run(Command::new("tune2fs").args(options.split_whitespace()).arg(&self.path));
    }

    pub(crate) fn open(&self) -> Arc<Ext4> {
        let location = Location { path: self.path.clone(), part: ironmap::location::Part::Whole };
        let volume = Volume::open(&location, &OpenOptions::default()).unwrap();
        Arc::clone(volume.fs())
    }

    /// Overwrites bytes of a file's or directory's block in the image; the block is one of the file.
    pub(crate) fn poke(&self, path: &str, block: u64, offset: u64, bytes: &[u8]) {
        let output = self.debugfs(&format!("bmap {path} {block}\n"));
        let physical = output.lines().last().unwrap().trim().parse().unwrap();
        self.poke_block(physical, offset, bytes);
    }

    /// Overwrites bytes of a block of the volume.
    pub(crate) fn poke_block(&self, block: u64, offset: u64, bytes: &[u8]) {
        use std::os::unix::fs::FileExt;
        let block_size = self.open().superblock().block_size.bytes() as u64;
        let file = std::fs::File::options().write(true).open(&self.path).unwrap();
        file.write_all_at(bytes, block * block_size + offset).unwrap();
    }

    /// Mounts the image; `None`, said by name, where that takes rights that this process has not.
    pub(crate) fn mount(&self, test: &str) -> Option<Mount> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED {test}: a loop mount needs root");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        run(Command::new("mount").args(["-o", "loop"]).arg(&self.path).arg(dir.path()));
        Some(Mount { dir: Some(dir) })
    }
}

/// A mounted image, unmounted when dropped.
pub(crate) struct Mount {
    dir: Option<tempfile::TempDir>,
}

impl Mount {
    pub(crate) fn path(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(dir) = self.dir.take() else { return };
        let done = Command::new("umount").arg(dir.path()).status();
        if !done.is_ok_and(|status| status.success()) {
            // Never let the removal of the directory reach into a volume that is still mounted.
            let path = dir.keep();
            eprintln!("{} is still mounted", path.display());
        }
    }
}

pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
