//! Carries out the operations of the model on a volume of ironmap.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::sync::Arc;

use ironmap::device::Ram;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{
    Clock, Credentials, Fallocate, FileSystem, FileType, Follow, Inode, NewFile, RenameFlags,
    SetAttributes, SetXattr, Timestamp,
};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Error, FileOptions, QueueOptions, Volume};
use tempfile::TempDir;

use crate::common::beneath::over;
use crate::common::command::{output, run};
use crate::common::image::{scratch_in, words};
use crate::op::{Op, Path, Renaming, Space, target};
use crate::{Answer, Seen, Target, Tree, difference};

const WHO: Credentials = Credentials::new(0, 0, 0);
const SIZE: u64 = 128 << 20;

pub(crate) struct Ours {
    ram: Arc<Ram>,
    volume: Volume,
    dir: TempDir,
    options: String,
}

fn open(ram: &Arc<Ram>) -> Volume {
    let clock = Clock::Fixed(Timestamp { seconds: 1_700_000_000, nanoseconds: 1 });
    Volume::writable_on(over(Arc::clone(ram) as _), clock).unwrap()
}

impl Ours {
    pub(crate) fn new(options: &str) -> Self {
        let dir = scratch_in(std::path::Path::new("/dev/shm"));
        let image = dir.path().join("image");
        let (path, size) = (image.to_str().unwrap(), format!("{}k", SIZE >> 10));
        run("mke2fs", &[&["-Fq"], &words(options)[..], &[path, &size]].concat());
        let ram = Arc::new(Ram::from_image(&std::fs::read(&image).unwrap()));
        Self { volume: open(&ram), ram, dir, options: options.to_owned() }
    }

    /// Closes the volume, checks that it has no fault, and opens it again.
    pub(crate) fn reopen(&mut self) {
        self.volume.close().unwrap();
        self.fsck();
        self.volume = open(&self.ram);
    }

    /// Simulates a crash after a sync. Later changes are lost.
    pub(crate) fn crash(&mut self) {
        self.volume.fs().sync().unwrap();
        if self.options.contains("^has_journal") {
            // Without a journal, a volume is not recovered after a crash, and its counters on the device are wrong. So the test simulates
            // no crash.
            return;
        }
        let left = Arc::new(self.ram.snapshot());
        self.volume = open(&left);
        self.ram = left;
    }

    fn fsck(&self) {
        let image = self.dir.path().join("image");
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&image);
        self.ram.store(&file.unwrap()).unwrap();
        let out = output("e2fsck", &["-fn", image.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{}: {text}", self.options);
    }

    /// Closes the volume, opens it read-only, and compares it once more.
    pub(crate) fn finish(mut self, expected: &Tree) {
        self.reopen();
        self.volume.close().unwrap();
        let volume = Volume::on(over(Arc::clone(&self.ram) as _)).unwrap();
        if let Some(difference) = difference(expected, &tree(&volume)) {
            panic!("model / volume read again: {difference}: {}", self.options);
        }
    }

    fn fs(&self) -> &Arc<dyn FileSystem> {
        self.volume.fs()
    }

    fn text(path: &[&str]) -> Vec<u8> {
        path.join("/").into_bytes()
    }

    fn parent(&self, path: &Path) -> Result<InodeNo, Error> {
        let parent = Self::text(&path[..path.len() - 1]);
        Ok(self.fs().resolve(&[&parent[..], b"/"].concat(), Follow::All)?.number())
    }

    fn find(&self, path: &Path) -> Result<Inode, Error> {
        self.fs().lookup(self.parent(path)?, path[path.len() - 1].as_bytes())
    }

    /// Finds the file to open. If its type is not permitted, the operation returns an error.
    fn open(&self, path: &Path) -> Result<InodeNo, i32> {
        let inode = self.find(path).map_err(|error| errno(&error))?;
        if inode.file_type() == FileType::Symlink { Err(40) } else { Ok(inode.number()) }
    }

    fn make(&self, path: &Path, file: NewFile<'_>, mode: u32) -> Answer {
        let parent = self.parent(path).map_err(|error| errno(&error))?;
        let name = path[path.len() - 1].as_bytes();
        let made = self.fs().writable().unwrap().create(parent, name, file, mode, &WHO);
        made.map(drop).map_err(|error| errno(&error))
    }

    fn fallocate(&self, path: &Path, how: Space, pos: u64, len: u64) -> Answer {
        let inode = self.open(path)?;
        match self.find(path).map(|inode| inode.file_type()) {
            Ok(FileType::Regular) => {}
            Ok(FileType::Directory) => return Err(21),
            // The system call itself returns these errors, before it calls the file system.
            Ok(FileType::Fifo) => return Err(29),
            _ => return Err(19),
        }
        let how = match how {
            Space::Allocate => Fallocate::Allocate { keep_size: false },
            Space::KeepSize => Fallocate::Allocate { keep_size: true },
            Space::Punch => Fallocate::Punch,
            Space::Zero => Fallocate::Zero { keep_size: true },
            Space::Collapse => Fallocate::Collapse,
            Space::Insert => Fallocate::Insert,
        };
        self.fs()
            .writable()
            .unwrap()
            .fallocate(inode, how, FilePos(pos), len)
            .map_err(|error| errno(&error))
    }
}

fn errno(error: &Error) -> i32 {
    error.errno().0
}

impl Target for Ours {
    fn apply(&mut self, op: &Op) -> Answer {
        let fs = Arc::clone(self.fs());
        let writer = fs.writable().unwrap();
        let fail = |error: Error| errno(&error);
        let last = |path: &Path| path[path.len() - 1].as_bytes();
        match op {
            Op::Create(path, mode) => self.make(path, NewFile::Regular, *mode),
            Op::Mkdir(path, mode) => self.make(path, NewFile::Directory, *mode),
            Op::Symlink(path, len) => self.make(path, NewFile::Symlink(&target(*len)), 0o777),
            Op::Fifo(path) => self.make(path, NewFile::Fifo, 0o600),
            Op::Unlink(path) => {
                writer.unlink(self.parent(path).map_err(fail)?, last(path)).map_err(fail)
            }
            Op::Rmdir(path) => {
                writer.rmdir(self.parent(path).map_err(fail)?, last(path)).map_err(fail)
            }
            Op::Link(from, to) => {
                let inode = self.find(from).map_err(fail)?.number();
                writer.link(inode, self.parent(to).map_err(fail)?, last(to)).map_err(fail)
            }
            Op::Rename(from, to, how) => {
                let flags = match how {
                    Renaming::Plain => RenameFlags::empty(),
                    Renaming::NoReplace => RenameFlags::NOREPLACE,
                    Renaming::Exchange => RenameFlags::EXCHANGE,
                };
                let dirs = (self.parent(from).map_err(fail)?, self.parent(to).map_err(fail)?);
                let (from, to) = ((dirs.0, last(from)), (dirs.1, last(to)));
                writer.rename(from, to, flags, &Credentials::default()).map_err(fail)
            }
            Op::Write(path, pos, len, byte) => {
                let written = writer.write(self.open(path)?, FilePos(*pos), &vec![*byte; *len]);
                written.map(drop).map_err(fail)
            }
            Op::Truncate(path, size) => writer.truncate(self.open(path)?, *size).map_err(fail),
            Op::Fallocate(path, how, pos, len) => self.fallocate(path, *how, *pos, *len),
            Op::Chmod(path, mode) => {
                let set = SetAttributes::new().permissions(*mode);
                writer.set_attributes(self.open(path)?, &set).map_err(fail)
            }
            Op::Chown(path, uid, gid) => {
                let (uid, gid) = (Some(*uid), Some(*gid));
                let set = SetAttributes::new().uid(uid).gid(gid);
                let inode = self.find(path).map_err(fail)?.number();
                writer.set_attributes(inode, &set).map_err(fail)
            }
            Op::SetXattr(path, name, len, byte) => {
                let inode = self.find(path).map_err(fail)?.number();
                let value = vec![*byte; *len];
                writer.setxattr(inode, name.as_bytes(), &value, SetXattr::Any).map_err(fail)
            }
            Op::RemoveXattr(path, name) => {
                let inode = self.find(path).map_err(fail)?.number();
                writer.removexattr(inode, name.as_bytes()).map_err(fail)
            }
        }
    }

    fn tree(&self) -> Tree {
        tree(&self.volume)
    }
}

fn tree(volume: &Volume) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((path, dir)) = todo.pop() {
        let dir = volume.fs().inode(dir).unwrap();
        for entry in dir.read_dir().unwrap() {
            let entry = entry.unwrap();
            let name = String::from_utf8(entry.name).unwrap();
            if matches!(&name[..], "." | ".." | "lost+found") {
                continue;
            }
            let (path, inode) = (format!("{path}/{name}"), volume.fs().inode(entry.inode).unwrap());
            if inode.file_type() == FileType::Directory {
                todo.push((path.clone(), entry.inode));
            }
            tree.insert(path, seen(volume, inode));
        }
    }
    tree
}

fn seen(volume: &Volume, inode: Inode) -> Seen {
    let stat = inode.stat().clone();
    let xattrs: BTreeMap<_, _> =
        inode.xattrs().unwrap().into_iter().map(|xattr| (xattr.name, xattr.value)).collect();
    let content = match inode.file_type() {
        FileType::Regular => {
            let file = volume
                .open_inode(inode, FileOptions::new().write(volume.fs().is_writable()))
                .unwrap();
            let mut content = vec![0; stat.size as usize];
            let mut queue = volume.queue(&QueueOptions::new().depth(4)).unwrap();
            assert_eq!(file.read_at(&mut queue, &mut content, FilePos(0)).unwrap(), content.len());
            content
        }
        FileType::Symlink => inode.read_link().unwrap(),
        _ => Vec::new(),
    };
    Seen { mode: stat.mode, links: stat.links, uid: stat.uid, gid: stat.gid, content, xattrs }
}
