//! Workloads that the kernel's ext4 runs on a recorded device. For each crash state, ironmap and the kernel must recover the same tree.
//! Linux must satisfy the same rules as ironmap.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ironmap::device::{Log, Ram, Record};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, RenameFlags, Timespec, Timestamps,
    UTIME_OMIT, XattrFlags, fallocate, mknodat, renameat_with, utimensat,
};

use crate::common::command::{failure, output};
use crate::common::image::{scratch, scratch_in};
use crate::common::loop_device::LoopDevice;
use crate::common::mounted::unmount;
use crate::common::watched::Watched;
use crate::crash::history::History;
use crate::crash::op::{ACL, Op, Renaming, Set, Space, Special, acl};
use crate::crash::seen::{Body, NO_DUMP, Seen, Tree};

/// A kernel mount of a volume in a file, on a loop device.
struct Mount {
    dir: PathBuf,
    device: LoopDevice,
    mounted: bool,
}

impl Mount {
    /// Mounts the volume in a file at a new directory.
    ///
    /// # Errors
    /// The message of mount(8), if the kernel refuses the mount.
    fn new(file: &Path, dir: PathBuf, options: &str) -> Result<Self, String> {
        std::fs::create_dir_all(&dir).expect("a mount point");
        let mut mount = Self { dir, device: LoopDevice::new(file), mounted: false };
        let dir = mount.dir.to_str().expect("a plain path");
        let args = ["-t", "ext4", "-o", options, mount.device.node(), dir];
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
    }
}

/// The tree that the kernel shows after it has recovered the volume.
pub(crate) fn look(image: &Ram) -> Result<Tree, String> {
    let scratch = scratch_in(Path::new("/dev/shm"));
    let path = scratch.path().join("image");
    image.store(&File::create(&path).expect("a file")).expect("store the image");
    let mount = Mount::new(&path, scratch.path().join("mnt"), "noatime")?;
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
        let kind = about.file_type();
        let flags = if kind.is_file() || kind.is_dir() {
            rustix::fs::ioctl_getflags(File::open(&at)?)?.bits() & NO_DUMP
        } else {
            0
        };
        let seen = Seen {
            inode: about.ino(),
            links: about.nlink() as u32,
            mode: about.mode(),
            uid: about.uid(),
            accessed: about.atime(),
            flags,
            xattrs: xattrs(&at)?,
            body: body(&at, &about, &path, tree)?,
        };
        tree.insert(path, seen);
    }
    Ok(())
}

/// Reads the content of a file. If it is a directory, adds its entries to the tree recursively.
fn body(at: &Path, about: &Metadata, path: &str, tree: &mut Tree) -> std::io::Result<Body> {
    let kind = about.file_type();
    Ok(if kind.is_dir() {
        walk(at, path, tree)?;
        Body::Directory
    } else if kind.is_symlink() {
        Body::Symlink(std::fs::read_link(at)?.into_os_string().into_encoded_bytes())
    } else if kind.is_file() {
        Body::File(std::fs::read(at)?)
    } else if kind.is_fifo() {
        Body::Fifo
    } else if kind.is_char_device() {
        Body::Device(rustix::fs::major(about.rdev()), rustix::fs::minor(about.rdev()))
    } else {
        Body::Other
    })
}

fn xattrs(at: &Path) -> std::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(at, &mut names[..])?;
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut xattrs = BTreeMap::new();
    for name in names {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::lgetxattr(at, name, &mut value[..])?;
        value.truncate(len);
        xattrs.insert(name.to_vec(), value);
    }
    Ok(xattrs)
}

/// Records the kernel's requests to a device with the content `base`. The kernel mounts the device, runs the operations, and unmounts the
/// device.
pub(crate) fn record(base: &Ram, history: &History, options: &str) -> Log {
    let dir = scratch();
    let record = Arc::new(Record::new(Arc::new(base.snapshot())));
    let file = Watched::new(record.clone(), &dir.path().join("device"));
    let mount = Mount::new(file.path(), dir.path().join("mnt"), options);
    let mount = mount.unwrap_or_else(|refusal| panic!("{refusal}"));
    let mut run = Run { root: &mount.dir, history, open: VecDeque::new() };
    for (number, op) in (1..).zip(&history.ops) {
        run.carry_out(op, number).unwrap_or_else(|error| panic!("{op:?}: {error}"));
        record.mark(number as u64);
    }
    drop(run);
    drop(mount);
    drop(file);
    record.log()
}

struct Run<'m> {
    root: &'m Path,
    history: &'m History,
    open: VecDeque<File>,
}

impl Run<'_> {
    fn carry_out(&mut self, op: &Op, number: usize) -> std::io::Result<()> {
        let at = |path: &String| self.root.join(path);
        let to_write = |path| OpenOptions::new().write(true).open(at(path));
        match op {
            Op::Create(path) => {
                let mut new = OpenOptions::new();
                new.write(true).create_new(true).mode(0o755).open(at(path)).map(drop)
            }
            Op::Mkdir(path) => DirBuilder::new().mode(0o755).create(at(path)),
            Op::Mknod { path, what } => {
                let (kind, device) = match what {
                    Special::Fifo => (FileType::Fifo, 0),
                    Special::Device(major, minor) => {
                        (FileType::CharacterDevice, rustix::fs::makedev(*major, *minor))
                    }
                };
                Ok(mknodat(CWD, at(path), kind, Mode::from_raw_mode(0o755), device)?)
            }
            Op::Symlink { path, target } => symlink(target, at(path)),
            Op::Link { path, to } => std::fs::hard_link(at(path), at(to)),
            Op::Unlink { path, open } => {
                if *open {
                    let file = File::open(at(path))?;
                    self.open.push_back(file);
                }
                std::fs::remove_file(self.root.join(path))
            }
            Op::LetGo => {
                drop(self.open.pop_front());
                Ok(())
            }
            Op::Rmdir(path) => std::fs::remove_dir(at(path)),
            Op::Rename { from, to, how } => {
                let flags = match how {
                    Renaming::Plain => RenameFlags::empty(),
                    Renaming::NoReplace => RenameFlags::NOREPLACE,
                    Renaming::Exchange => RenameFlags::EXCHANGE,
                    Renaming::Whiteout => RenameFlags::WHITEOUT,
                };
                Ok(renameat_with(CWD, at(from), CWD, at(to), flags)?)
            }
            Op::Write { path, pos, len } => {
                let written = |pos| self.history.written(number, pos);
                let data: Vec<_> = (*pos..pos + len).map(written).collect();
                to_write(path)?.write_all_at(&data, *pos as u64)
            }
            Op::Truncate { path, size } => to_write(path)?.set_len(*size as u64),
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
                Ok(fallocate(to_write(path)?, flags, *pos as u64, *len as u64)?)
            }
            Op::Set { path, what } => self.set(&at(path), what, number),
            Op::Fsync(path) => File::open(at(path))?.sync_all(),
            Op::Sync => Ok(rustix::fs::syncfs(File::open(self.root)?)?),
        }
    }

    fn set(&self, path: &Path, what: &Set, number: usize) -> std::io::Result<()> {
        let setxattr = |name: &str, value: &[u8]| {
            Ok(rustix::fs::setxattr(path, name, value, XattrFlags::empty())?)
        };
        match what {
            Set::Permissions(mode) => std::fs::set_permissions(path, Permissions::from_mode(*mode)),
            Set::Owner(uid) => std::os::unix::fs::chown(path, Some(*uid), None),
            Set::Accessed(seconds) => {
                let last_access = Timespec { tv_sec: *seconds, tv_nsec: 0 };
                let last_modification = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
                let times = Timestamps { last_access, last_modification };
                Ok(utimensat(CWD, path, &times, AtFlags::empty())?)
            }
            Set::NoDump(on) => {
                let file = File::open(path)?;
                let mut flags = rustix::fs::ioctl_getflags(&file)?;
                flags.set(IFlags::NODUMP, *on);
                Ok(rustix::fs::ioctl_setflags(&file, flags)?)
            }
            Set::Xattr { name, len } => setxattr(name, &self.history.value(number, *len)),
            Set::RemoveXattr(name) => Ok(rustix::fs::removexattr(path, *name)?),
            Set::Acl(permissions) => setxattr(ACL, &acl(*permissions)),
        }
    }
}
