//! Workloads run by the kernel's ext4 on a device that is recorded: what it leaves behind is recovered as it would do it, and
//! the rules that are held against ironmap hold for Linux.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ironmap::device::{Log, Ram, Record};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};

use crate::common::command::{failure, output, run};
use crate::common::image::{scratch, scratch_in};
use crate::common::mounted::unmount;
use crate::history::{History, Op, Space, written};
use crate::seen::{Seen, Tree};
use crate::watched::Watched;

/// A file that holds a volume, mounted by the kernel on a loop device.
struct Mount {
    dir: PathBuf,
    node: String,
    mounted: bool,
}

impl Mount {
    /// At a directory that is made for it.
    ///
    /// # Errors
    /// What mount(8) says where the kernel refuses.
    fn new(file: &Path, dir: PathBuf, options: &str) -> Result<Self, String> {
        std::fs::create_dir_all(&dir).expect("a mount point");
        let node = run("losetup", &["--find".as_ref(), "--show".as_ref(), file.as_os_str()]);
        let node = String::from_utf8(node).expect("a name").trim().to_owned();
        let mut mount = Self { dir, node, mounted: false };
        let dir = mount.dir.to_str().expect("a plain path");
        let args = ["-t", "ext4", "-o", options, &mount.node, dir];
        let result = output("mount", &args);
        mount.mounted = result.status.success();
        if mount.mounted { Ok(mount) } else { Err(failure("mount", &args, &result)) }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            unmount(&self.dir);
        }
        output("losetup", &["--detach", &self.node]);
    }
}

/// What the kernel shows of a volume, which it recovers.
pub(crate) fn look(image: &Ram) -> Result<Tree, String> {
    let scratch = scratch_in(Path::new("/dev/shm"));
    let path = scratch.path().join("image");
    image.store(&File::create(&path).expect("a file")).expect("store the image");
    let mount = Mount::new(&path, scratch.path().join("mnt"), "defaults")?;
    let mut tree = Tree::new();
    walk(&mount.dir, "", &mut tree).map_err(|error| error.to_string())?;
    tree.remove("lost+found");
    Ok(tree)
}

fn walk(dir: &Path, path: &str, tree: &mut Tree) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let at = entry?.path();
        let name = at.file_name().unwrap_or_default().to_string_lossy();
        let path = if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") };
        let about = std::fs::symlink_metadata(&at)?;
        let seen = if about.is_dir() {
            walk(&at, &path, tree)?;
            Seen::Directory
        } else if about.is_symlink() {
            Seen::Symlink(std::fs::read_link(&at)?.into_os_string().into_encoded_bytes())
        } else {
            let (inode, links) = (about.ino(), about.nlink() as u32);
            Seen::File { inode, links, content: std::fs::read(&at)? }
        };
        tree.insert(path, seen);
    }
    Ok(())
}

/// What the kernel does to a device that holds `base` when it mounts it, runs the operations and unmounts it.
pub(crate) fn record(base: &Ram, history: &History, options: &str) -> Log {
    let dir = scratch();
    let record = Arc::new(Record::new(Arc::new(base.snapshot())));
    let file = Watched::new(record.clone(), &dir.path().join("device"));
    let mount = Mount::new(file.path(), dir.path().join("mnt"), options);
    let mount = mount.unwrap_or_else(|refusal| panic!("{refusal}"));
    let mut open = Vec::new();
    for (number, op) in (1..).zip(&history.ops) {
        carry_out(op, number, &mount.dir, &mut open)
            .unwrap_or_else(|error| panic!("{op:?}: {error}"));
        record.mark(number as u64);
    }
    drop(open);
    drop(mount);
    drop(file);
    record.log()
}

fn carry_out(op: &Op, number: usize, root: &Path, open: &mut Vec<File>) -> std::io::Result<()> {
    let at = |path: &String| root.join(path);
    match op {
        Op::Create(path) => File::create_new(at(path)).map(drop),
        Op::Mkdir(path) => std::fs::create_dir(at(path)),
        Op::Symlink { path, target } => symlink(target, at(path)),
        Op::Link { path, to } => std::fs::hard_link(at(path), at(to)),
        Op::Unlink { path, open: false } => std::fs::remove_file(at(path)),
        Op::Unlink { path, open: true } => {
            // What is no file cannot be held.
            let is_file = std::fs::symlink_metadata(at(path))?.is_file();
            open.extend(is_file.then(|| File::open(at(path))).transpose()?);
            std::fs::remove_file(at(path))
        }
        Op::Rmdir(path) => std::fs::remove_dir(at(path)),
        Op::Rename { from, to } => std::fs::rename(at(from), at(to)),
        Op::Exchange { one, other } => {
            Ok(renameat_with(CWD, at(one), CWD, at(other), RenameFlags::EXCHANGE)?)
        }
        Op::Write { path, pos, len } => {
            let data: Vec<_> = (*pos..pos + len).map(|pos| written(number, pos)).collect();
            OpenOptions::new().write(true).open(at(path))?.write_all_at(&data, *pos as u64)
        }
        Op::Truncate { path, size } => {
            OpenOptions::new().write(true).open(at(path))?.set_len(*size as u64)
        }
        Op::Space { path, how, pos, len } => {
            let keep = |keep_size| {
                if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() }
            };
            let flags = match how {
                Space::Allocate { keep_size } => keep(*keep_size),
                Space::Zero { keep_size } => FallocateFlags::ZERO_RANGE | keep(*keep_size),
                Space::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                Space::Collapse => FallocateFlags::COLLAPSE_RANGE,
                Space::Insert => FallocateFlags::INSERT_RANGE,
            };
            let file = OpenOptions::new().write(true).open(at(path))?;
            Ok(fallocate(file, flags, *pos as u64, *len as u64)?)
        }
        Op::Fsync(path) => File::open(at(path))?.sync_all(),
        Op::Sync => Ok(rustix::fs::syncfs(File::open(root)?)?),
    }
}
