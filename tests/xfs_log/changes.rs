//! Changes a volume, so that the kernel writes log items of all kinds. After the volume is shut down, every system call fails. The changing
//! threads ignore these errors.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, RenameFlags, Timespec, Timestamps, Uid, XattrFlags,
};

use crate::common::command::output;
use crate::common::rng::Rng;

/// The number of directories of a thread, and the number of names in each directory.
const DIRECTORIES: u64 = 5;
const NAMES: u64 = 60;
/// The maximum size of a large file.
const REACH: u64 = 1 << 20;

/// A thread that changes the volume, mainly in its own directory.
pub(crate) struct Changes<'a> {
    rng: Rng,
    root: PathBuf,
    /// The directory of another thread. This thread moves names between its own directory and the directory of the other thread.
    other: PathBuf,
    done: &'a AtomicU64,
    /// The program xfs_io, which exchanges ranges of two files. The volume must support exchanges. `None` if this thread makes no
    /// exchanges.
    exchanges: Option<&'a str>,
}

impl<'a> Changes<'a> {
    pub(crate) fn new(dir: &Path, thread: u64, seed: u64, done: &'a AtomicU64) -> Self {
        let of = |thread: u64| dir.join(format!("thread-{thread}"));
        let rng = Rng::new(seed ^ thread << 32);
        Self { rng, root: of(thread), other: of(thread ^ 1), done, exchanges: None }
    }

    /// If a program is given, the thread also exchanges ranges of files with this program.
    pub(crate) fn exchanging(mut self, xfs_io: Option<&'a str>) -> Self {
        self.exchanges = xfs_io;
        self
    }

    /// Changes the volume until `stop` is set.
    pub(crate) fn run(mut self, stop: &AtomicBool) {
        for dir in 0..DIRECTORIES {
            let _ = std::fs::create_dir_all(self.root.join(format!("d{dir}")));
        }
        while !stop.load(Relaxed) {
            let _ = self.step();
            self.done.fetch_add(1, Relaxed);
        }
    }

    /// Writes and syncs one file, together with other threads, until `stop` is set. Several threads then wait for the same log record.
    /// Their next transactions begin in one record and change the same inode.
    pub(crate) fn share(mut self, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            let _ = self.step_of_sharing();
        }
    }

    /// Until `stop` is set, copies files so that they share blocks, and writes to the copies.
    pub(crate) fn copy_on_write(mut self, stop: &AtomicBool) {
        let _ = std::fs::create_dir_all(&self.root);
        while !stop.load(Relaxed) {
            let _ = self.step_of_copies();
            self.done.fetch_add(1, Relaxed);
        }
    }

    /// Until `stop` is set, fragments files, and lets `xfs_fsr` replace their maps.
    pub(crate) fn defragment(mut self, stop: &AtomicBool) {
        let _ = std::fs::create_dir_all(&self.root);
        while !stop.load(Relaxed) {
            let _ = self.step_of_fragments();
            self.done.fetch_add(1, Relaxed);
        }
    }

    fn step_of_fragments(&mut self) -> std::io::Result<()> {
        let path = self.root.join(format!("pieces{}", self.rng.below(3)));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        // The blocks are written from the last to the first, with a sync after each. So the map gets many extents and becomes a B+tree. The
        // new map that `xfs_fsr` makes may be a B+tree too.
        let gap = 1 + self.rng.below(2);
        for block in (0..200).rev() {
            file.write_all_at(&self.rng.bytes(4096), (gap * block) << 12)?;
            file.sync_data()?;
        }
        drop(file);
        let _ = std::process::Command::new("xfs_fsr").arg(&path).output();
        let file = OpenOptions::new().write(true).open(path)?;
        file.write_all_at(&self.rng.bytes(4096), self.rng.below(200) << 12)?;
        file.sync_all()
    }

    fn step_of_copies(&mut self) -> std::io::Result<()> {
        let original = self.root.join("original");
        if !original.exists() {
            std::fs::write(&original, self.rng.bytes(64 << 12))?;
        }
        let copy = self.root.join(format!("copy{}", self.rng.below(4)));
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(copy)?;
        rustix::fs::ioctl_ficlone(&file, File::open(original)?)?;
        for _ in 0..self.rng.below(6) {
            // Each block is written by a separate change.
            for _ in 0..1 + self.rng.below(12) {
                file.write_all_at(&self.rng.bytes(4096), self.rng.below(64) << 12)?;
            }
            file.sync_all()?;
        }
        Ok(())
    }

    fn step_of_sharing(&mut self) -> std::io::Result<()> {
        let dir = self.root.parent().unwrap_or(&self.root);
        let path = dir.join(format!("shared{}", self.rng.below(2)));
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        for _ in 0..self.rng.below(8) {
            let mode = Mode::from_raw_mode(0o600 | self.rng.below(0o100) as u32);
            rustix::fs::fchmod(&file, mode)?;
            file.write_all_at(&self.rng.bytes(100), self.rng.below(REACH))?;
            file.sync_all()?;
        }
        Ok(())
    }

    fn path(&mut self) -> PathBuf {
        let root = if self.rng.below(20) == 0 { &self.other } else { &self.root };
        let dir = root.join(format!("d{}", self.rng.below(DIRECTORIES)));
        let number = self.rng.below(NAMES);
        // Some names are long. A few of them fill a directory block.
        let long = if number.is_multiple_of(7) { "-long".repeat(40) } else { String::new() };
        dir.join(format!("n{number}{long}"))
    }

    fn open(&mut self) -> std::io::Result<File> {
        let path = self.path();
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
    }

    fn step(&mut self) -> std::io::Result<()> {
        match self.rng.below(32) {
            0..=3 => {
                let file = self.open()?;
                let len = 1 << self.rng.below(17);
                file.write_all_at(&self.rng.bytes(len), self.rng.below(REACH))?;
            }
            4..=7 => std::fs::remove_file(self.path())?,
            8..=9 => std::fs::rename(self.path(), self.path())?,
            10 => {
                let flags =
                    [RenameFlags::EXCHANGE, RenameFlags::WHITEOUT][self.rng.below(2) as usize];
                rustix::fs::renameat_with(CWD, self.path(), CWD, self.path(), flags)?;
            }
            11 => self.tree()?,
            12 => self.crowd()?,
            13..=14 => self.set_xattr()?,
            15 => self.remove_xattrs()?,
            16 => self.open()?.set_len(self.rng.below(REACH))?,
            17..=18 => self.fallocate()?,
            19 => rustix::fs::ioctl_ficlone(self.open()?, self.open()?)?,
            20 => {
                let length = 1 + self.rng.below(1000) as usize;
                std::os::unix::fs::symlink("t".repeat(length), self.path())?;
            }
            21 => {
                let mode = Mode::from_raw_mode(self.rng.below(0o10000) as u32);
                rustix::fs::chmod(self.path(), mode)?;
            }
            22 => {
                let (uid, gid) = (self.rng.below(1 << 31) as u32, self.rng.below(1 << 31) as u32);
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                rustix::fs::chownat(CWD, self.path(), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            23 => {
                let mut time = || Timespec {
                    tv_sec: self.rng.below(1 << 33) as i64 - (1 << 31),
                    tv_nsec: self.rng.below(1_000_000_000) as i64,
                };
                let times = Timestamps { last_access: time(), last_modification: time() };
                rustix::fs::utimensat(CWD, self.path(), &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            24 => std::fs::hard_link(self.path(), self.path())?,
            25..=26 => self.small_commits()?,
            27 => self.pieces()?,
            28 => File::create(self.path())?.set_len(0)?,
            29 => {
                // The file is removed while it is open. It stays open until the threads stop to change the volume, or until shortly before
                // that.
                let file = self.open()?;
                let _ = std::fs::remove_file(self.path());
                file.write_all_at(&self.rng.bytes(5000), 0)?;
            }
            30 => {
                let kind = rustix::fs::FileType::CharacterDevice;
                let device = rustix::fs::makedev(self.rng.below(500) as u32, 7);
                let mode = Mode::from_raw_mode(0o600);
                rustix::fs::mknodat(CWD, self.path(), kind, mode, device)?;
            }
            31 if self.exchanges.is_some() => self.exchange()?,
            _ if self.rng.below(6) == 0 => rustix::fs::syncfs(File::open(&self.root)?)?,
            _ => {}
        }
        Ok(())
    }

    fn fallocate(&mut self) -> std::io::Result<()> {
        let flags = [
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::KEEP_SIZE,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::COLLAPSE_RANGE,
            FallocateFlags::INSERT_RANGE,
            FallocateFlags::empty(),
        ][self.rng.below(6) as usize];
        let (pos, len) = (self.rng.below(64) << 12, (1 + self.rng.below(16)) << 12);
        rustix::fs::fallocate(self.open()?, flags, pos, len)?;
        Ok(())
    }

    /// Makes small commits in quick succession. Several of them begin in the same log record.
    fn small_commits(&mut self) -> std::io::Result<()> {
        let file = self.open()?;
        for _ in 0..1 + self.rng.below(4) {
            file.write_all_at(&self.rng.bytes(100), self.rng.below(REACH))?;
            file.sync_all()?;
        }
        Ok(())
    }

    /// Makes or removes a tree of files, so that XFS allocates and frees inode chunks.
    fn tree(&mut self) -> std::io::Result<()> {
        let top = self.root.join(format!("tree{}", self.rng.below(3)));
        if std::fs::remove_dir_all(&top).is_ok() {
            return Ok(());
        }
        for dir in 0..1 + self.rng.below(4) {
            let dir = top.join(format!("{dir}"));
            std::fs::create_dir_all(&dir)?;
            for name in 0..self.rng.below(60) {
                std::fs::write(dir.join(format!("{name}")), "content")?;
            }
        }
        Ok(())
    }

    /// Makes or removes hundreds of names in one directory. The directory then changes its format.
    fn crowd(&mut self) -> std::io::Result<()> {
        let dir = self.root.join("crowd");
        let _ = std::fs::create_dir(&dir);
        let original = self.root.join("crowd-of-one");
        File::create(&original)?;
        let (from, count) = (self.rng.below(600), self.rng.below(150));
        let is_made = self.rng.below(2) == 0;
        for number in from..from + count {
            let name = dir.join(format!("{number:0width$}", width = 4 + number as usize % 80));
            // A name may exist already or be missing, so errors are ignored.
            let _ = if is_made {
                std::fs::hard_link(&original, name)
            } else {
                std::fs::remove_file(name)
            };
        }
        Ok(())
    }

    /// Exchanges either a range at the beginning of two files, or their entire content. The maps of the files may be B+trees.
    fn exchange(&mut self) -> std::io::Result<()> {
        let Some(xfs_io) = self.exchanges else { return Ok(()) };
        let (one, other) = (self.path(), self.path());
        let len = match self.rng.below(2) {
            0 => String::new(),
            _ => format!("-s 0 -d 0 -l {}", (1 + self.rng.below(64)) << 12),
        };
        let command = format!("exchangerange {len} {}", other.display());
        output(xfs_io, &["-c".as_ref(), command.as_ref(), one.as_os_str()]);
        Ok(())
    }

    fn set_xattr(&mut self) -> std::io::Result<()> {
        let path = self.path();
        for _ in 0..1 + self.rng.below(4) {
            let name = format!("user.a{}", self.rng.below(24));
            let most = 1 << self.rng.below(17);
            let length = self.rng.below(most);
            let value = self.rng.bytes(length as usize);
            rustix::fs::lsetxattr(&path, name, &value, XattrFlags::empty())?;
        }
        Ok(())
    }

    fn remove_xattrs(&mut self) -> std::io::Result<()> {
        let path = self.path();
        for number in 0..24 {
            if self.rng.below(3) != 0 {
                let _ = rustix::fs::lremovexattr(&path, format!("user.a{number}"));
            }
        }
        Ok(())
    }

    /// Makes a file with so many extents that its map becomes a B+tree.
    fn pieces(&mut self) -> std::io::Result<()> {
        let file = self.open()?;
        let step = 8192 << self.rng.below(3);
        for _ in 0..self.rng.below(60) {
            file.write_all_at(b"piece", self.rng.below(200) * step)?;
        }
        file.sync_data()
    }
}
