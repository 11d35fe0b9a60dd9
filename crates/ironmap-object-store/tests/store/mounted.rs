//! A mounted file system on a loop device.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

pub(crate) struct Mounted {
    _dir: TempDir,
    path: PathBuf,
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output();
    match output.map_err(|error| format!("{program}: {error}"))? {
        output if output.status.success() => Ok(()),
        output => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl Mounted {
    /// Mounts an empty ext4. Returns `None` if this machine cannot mount an ext4.
    pub(crate) fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let (image, path) = (dir.path().join("image"), dir.path().join("mounted"));
        File::create(&image).unwrap().set_len(128 << 20).unwrap();
        std::fs::create_dir(&path).unwrap();
        let (from, to) = (image.to_str().unwrap(), path.to_str().unwrap());
        let made = run("mkfs.ext4", &["-q", from]);
        if let Err(reason) = made.and_then(|()| run("mount", &["-o", "loop", from, to])) {
            eprintln!("SKIP a mounted file system: {reason}");
            return None;
        }
        Some(Self { _dir: dir, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The stores may still have files open. Therefore the unmount is lazy: the directory is detached at once, and the file system is
        // freed after the files are closed.
        let _ = run("umount", &["--lazy", self.path.to_str().unwrap_or_default()]);
    }
}
