//! The operations that fill the journal of a volume.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use crate::common::rng::Rng;

/// A seeded sequence of operations on a tree. Some files are synced and others are not, so the journal contains only some of the changes.
pub(crate) struct Workload {
    root: PathBuf,
    rng: Rng,
    files: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
    made: u32,
    /// Whether the workload omits operations that Linux does not record in fast commits.
    plain: bool,
}

impl Workload {
    pub(crate) fn new(root: &Path, seed: u64, plain: bool) -> Self {
        let (root, dirs) = (root.to_owned(), vec![root.to_owned()]);
        Self { root, rng: Rng::new(seed), files: Vec::new(), dirs, made: 0, plain }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    fn fresh(&mut self) -> PathBuf {
        self.made += 1;
        let dir = self.below(self.dirs.len());
        let pad = self.below(30);
        self.dirs[dir].join(format!("n{}{}", self.made, "x".repeat(pad)))
    }

    fn write(&mut self, path: &Path) {
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(path).unwrap();
        for _ in 0..1 + self.below(4) {
            let at = self.below(150_000) as u64;
            let mut bytes = vec![self.below(256) as u8; 1 + self.below(40_000)];
            if self.below(6) == 0 {
                // A data block that begins with the journal's magic number must be escaped in the journal.
                for block in bytes.chunks_mut(1024).filter(|block| block.len() >= 4) {
                    block[..4].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98]);
                }
                file.write_all_at(&bytes, at / 4096 * 4096).unwrap();
            } else {
                file.write_all_at(&bytes, at).unwrap();
            }
        }
        if self.below(3) > 0 {
            file.sync_all().unwrap();
        }
    }

    fn pick(&mut self) -> Option<usize> {
        (!self.files.is_empty()).then(|| self.below(self.files.len()))
    }

    fn step(&mut self) {
        let Some(at) = self.pick() else {
            let path = self.fresh();
            self.write(&path);
            return self.files.push(path);
        };
        let path = self.files[at].clone();
        match self.below(if self.plain { 11 } else { 15 }) {
            0..=3 => {
                let path = self.fresh();
                self.write(&path);
                self.files.push(path);
            }
            4 | 5 => self.write(&path),
            6 => {
                fs::remove_file(&path).unwrap();
                self.files.swap_remove(at);
            }
            7 => {
                let to = self.fresh();
                fs::rename(&path, &to).unwrap();
                File::open(&to).unwrap().sync_all().unwrap();
                self.files[at] = to;
            }
            8 => {
                let to = self.fresh();
                fs::hard_link(&path, &to).unwrap();
                self.files.push(to);
            }
            9 => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(self.below(100_000) as u64).unwrap();
                file.sync_all().unwrap();
            }
            10 => {
                let dir = self.fresh();
                fs::create_dir(&dir).unwrap();
                self.dirs.push(dir);
            }
            11 => symlink("a".repeat(1 + self.below(100)), self.fresh()).unwrap(),
            12 => {
                // Renames this file over another file, which is replaced.
                let other = self.below(self.files.len());
                if other != at {
                    let to = self.files[other].clone();
                    fs::rename(&path, &to).unwrap();
                    self.files.swap_remove(at);
                }
            }
            13 => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                let flags =
                    rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                let at = self.below(90_000) as u64;
                rustix::fs::fallocate(&file, flags, at, 1 + self.below(60_000) as u64).unwrap();
            }
            _ => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                let at = self.below(300_000) as u64;
                let len = 1 + self.below(100_000) as u64;
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, len).unwrap();
            }
        }
    }

    pub(crate) fn steps(&mut self, count: u32) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Makes a directory of several blocks. After the directory is in the journal, removes it, so that the journal revokes its blocks.
    pub(crate) fn revoke(&mut self) {
        let dir = self.root.join("revoked");
        fs::create_dir(&dir).unwrap();
        let names: Vec<_> = (0..150).map(|index| dir.join(format!("{index:0100}"))).collect();
        names.iter().for_each(|name| fs::write(name, "").unwrap());
        File::open(&dir).unwrap().sync_all().unwrap();
        names.iter().for_each(|name| fs::remove_file(name).unwrap());
        fs::remove_dir(&dir).unwrap();
    }

    /// Writes and syncs a last file, so that the workload ends with a durable change.
    pub(crate) fn sync_last(&mut self) {
        let path = self.root.join("last");
        let file = File::create(path).unwrap();
        file.write_all_at(b"last", 0).unwrap();
        file.sync_all().unwrap();
    }
}
