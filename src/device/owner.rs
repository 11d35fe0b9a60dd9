//! Checks that no other program uses a block device or an image.
//!
//! ironmap opens a device with `O_EXCL`. This open conflicts with mounts and other exclusive opens of the same disk, in any mount
//! namespace. ironmap locks an image, which keeps out other programs that also lock the image. A loop device neither opens its file
//! exclusively nor locks it, so ironmap searches all loop devices for the file. The file of a loop device is the file that the device
//! reports (`LOOP_GET_STATUS64`), or the file at the path in sysfs. If the loop device was created in another mount namespace, this path
//! may be missing or may name another file. Leases show whether any program has an image open.
//!
//! Sources: `fcntl(2)`, `loop(4)`, Linux's Documentation/ABI/testing/sysfs-block-loop.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno as OsErrno;

use super::holders;
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::sys::{lease, loop_backing};

/// The number of attempts to open a file exclusively or to lock it, and the pause between the attempts. Another process may be using the
/// file only briefly.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

// Values of `f_type` in `statfs`, from Linux's include/uapi/linux/magic.h. On these file systems, EAGAIN does not prove that a program has
// the file open.
const NFS: u32 = 0x6969;
const CIFS: u32 = 0xFF53_4D42;
const SMB2: u32 = 0xFE53_4D42;

pub(super) fn busy(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::Busy, what.to_owned()).at(path.display())
}

/// Repeats an attempt while it fails because the file or lock is in use. The attempts last longer than two kinds of short use: a process
/// that has ended still uses its files until the kernel has removed its io_uring rings, and a child of this process has all files of this
/// process open until the child executes another program.
pub(super) fn patiently<T>(mut attempt: impl FnMut() -> T, in_use: impl Fn(&T) -> bool) -> T {
    for _ in 1..ATTEMPTS {
        let result = attempt();
        if !in_use(&result) {
            return result;
        }
        std::thread::park_timeout(PAUSE);
    }
    attempt()
}

/// The images that this process has open for writing. ironmap tests no lease on these images, because the kernel would refuse the lease:
/// this process itself has the image open.
static OURS: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// The record that this process has an image open for writing. The drop removes the record.
#[derive(Debug)]
pub(super) struct Written(u64, u64);

impl Written {
    pub(super) fn new(stat: &Stat) -> Self {
        OURS.lock().push((stat.st_dev, stat.st_ino));
        Self(stat.st_dev, stat.st_ino)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let mut ours = OURS.lock();
        if let Some(at) = ours.iter().position(|one| *one == (self.0, self.1)) {
            ours.swap_remove(at);
        }
    }
}

/// Refuses an image that a program has open or mapped for writing, if a lease can detect this. The caller must call this function before it
/// opens the image for writing, because the caller's own open would make the kernel refuse the lease.
pub(super) fn refuse_writers(path: &Path, stat: &Stat) -> Result<()> {
    if OURS.lock().contains(&(stat.st_dev, stat.st_ino)) {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| Error::io(errno, path.display().to_string()))?;
    refuse_another(path, stat, file.as_fd())?;
    let asked = patiently(|| lease::has_writers(file.as_fd()), |asked| *asked == Ok(true));
    if asked != Ok(true) || !tells(file.as_fd()) {
        return Ok(());
    }
    // If the program that has the image open has also locked it, the function returns the error for a locked image, because that error
    // contains more details.
    Err(match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(OsErrno::AGAIN) => holders::locked(path, file.as_fd()),
        _ => busy(path, "open for writing by another program"),
    })
}

/// Whether a refused lease (EAGAIN) on this file system proves that a process has the file open.
fn tells(file: BorrowedFd<'_>) -> bool {
    let magic = rustix::fs::fstatfs(file).map(|stat| stat.f_type as u32);
    magic.is_ok_and(|magic| ![NFS, CIFS, SMB2].contains(&magic))
}

/// Refuses a file that is not the file that `stat` describes. The path may have been replaced after `stat` was read.
pub(super) fn refuse_another(path: &Path, stat: &Stat, file: BorrowedFd<'_>) -> Result<()> {
    let opened =
        rustix::fs::fstat(file).map_err(|errno| Error::io(errno, path.display().to_string()))?;
    if (opened.st_dev, opened.st_ino) != (stat.st_dev, stat.st_ino) {
        return Err(busy(path, "the file was replaced while ironmap opened it"));
    }
    Ok(())
}

/// Locks an image against other programs.
pub(super) fn lock_image(path: &Path, file: &File, write: bool) -> Result<()> {
    let operation = if write {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match patiently(|| rustix::fs::flock(file, operation), |done| *done == Err(OsErrno::AGAIN)) {
        Ok(()) => Ok(()),
        Err(OsErrno::AGAIN) => Err(holders::locked(path, file.as_fd())),
        Err(errno) => Err(Error::io(errno, "lock").at(path.display())),
    }
}

/// Refuses a file or device that a loop device uses. Neither the lock of an image nor `O_EXCL` on a device detects a loop device. `file` is
/// the file that `stat` describes, opened in any mode.
pub(super) fn refuse_attached(
    path: &Path,
    stat: &Stat,
    file: BorrowedFd<'_>,
    write: bool,
) -> Result<()> {
    let ours = Claim::of(stat);
    let devices = match std::fs::read_dir("/sys/block") {
        Ok(devices) => devices,
        Err(_) if !write || is_free(file, write) => return Ok(()),
        Err(error) => {
            let why = format!(
                "cannot read /sys/block to determine whether a loop device uses the file: {error}"
            );
            return Err(busy(path, &why));
        }
    };
    for entry in devices.flatten() {
        let (dir, name) = (entry.path(), entry.file_name());
        let shown = name.to_string_lossy();
        match served_by(&dir, &name) {
            Served::Known(file) if ours.meets(&file) => {
                return Err(busy(path, &format!("attached to /dev/{shown}")));
            }
            Served::Hidden if ours.may_be_behind(&dir) && !is_free(file, write) => {
                let what = "the backing file of the loop device is not visible";
                return Err(busy(path, &format!("may be attached to /dev/{shown}: {what}")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether leases prove that no loop device uses an open file. A loop device has its file open, so the kernel refuses a lease on this file.
/// A file that ironmap only reads counts as unused in two more cases: no program has the file open for writing, or the user has no
/// permission for leases.
fn is_free(file: BorrowedFd<'_>, write: bool) -> bool {
    match lease::is_alone(file) {
        Ok(true) => true,
        Ok(false) => !write && lease::has_writers(file) != Ok(true),
        Err(_) => !write,
    }
}

/// The identity of a file, from `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    File {
        dev: u64,
        inode: u64,
    },
    /// The device number of a block device. All nodes of the device have the same number.
    Device(u64),
}

impl Identity {
    fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => Self::Device(stat.st_rdev),
            _ => Self::File { dev: stat.st_dev, inode: stat.st_ino },
        }
    }
}

/// The file that a loop device uses.
enum Served {
    Nothing,
    Known(Identity),
    /// An unknown file. The query of the loop device fails, and the path does not name the file.
    Hidden,
}

/// Finds the file of a loop device by the device's directory in sysfs.
fn served_by(dir: &Path, name: &OsStr) -> Served {
    // Only the error "does not exist" proves that the loop device uses no file.
    let path = match backing_file(dir) {
        Ok(path) if path.as_os_str().is_empty() => return Served::Nothing,
        Ok(path) => Some(path),
        Err(error) => match error.raw_os_error().map(Errno) {
            Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ENODEV) => return Served::Nothing,
            _ => None,
        },
    };
    match ask(dir, name) {
        Ok(identity) => return Served::Known(identity),
        Err(Errno::ENXIO) => return Served::Nothing,
        Err(_) => {}
    }
    let stat = path.and_then(|path| rustix::fs::stat(&path).ok());
    stat.map_or(Served::Hidden, |stat| Served::Known(Identity::of(&stat)))
}

/// Returns the path of a loop device's file, from the loop device's directory in sysfs. The path consists of bytes, because it need not be
/// valid text.
fn backing_file(dir: &Path) -> std::io::Result<PathBuf> {
    let path = std::fs::read(dir.join("loop/backing_file"))?;
    Ok(OsStr::from_bytes(path.strip_suffix(b"\n").unwrap_or(&path)).into())
}

/// Queries a loop device. The query needs the device's node and the permission to open it.
fn ask(dir: &Path, name: &OsStr) -> Result<Identity, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let node = rustix::fs::open(Path::new("/dev").join(name), flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&node)?;
    if number(&dir.join("dev")) != Some(stat.st_rdev) {
        return Err(Errno::ENODEV);
    }
    let (dev, inode, device) = loop_backing(node.as_fd())?;
    Ok(if device == 0 { Identity::File { dev, inode } } else { Identity::Device(device) })
}

/// The image or the block devices that an open would use. A partition includes its disk, and a disk includes its partitions, because disk
/// and partitions contain the same bytes.
enum Claim {
    Image(Identity),
    /// The device number and the length in sectors of each block device.
    Devices(Vec<(u64, Option<u64>)>),
}

impl Claim {
    fn of(stat: &Stat) -> Self {
        let Identity::Device(own) = Identity::of(stat) else {
            return Self::Image(Identity::of(stat));
        };
        let (major, minor) = (rustix::fs::major(own), rustix::fs::minor(own));
        let dir = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
        let mut devices = vec![(own, sectors(&dir))];
        let mut add =
            |dir: &Path| devices.extend(number(&dir.join("dev")).map(|n| (n, sectors(dir))));
        if dir.join("partition").exists() {
            add(&dir.join(".."));
        } else {
            let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
            let dirs = entries.map(|entry| entry.path());
            dirs.filter(|dir| dir.join("partition").exists()).for_each(|dir| add(&dir));
        }
        Self::Devices(devices)
    }

    fn meets(&self, served: &Identity) -> bool {
        match (self, served) {
            (Self::Image(own), served) => own == served,
            (Self::Devices(own), Identity::Device(served)) => {
                own.iter().any(|(own, _)| own == served)
            }
            (Self::Devices(_), Identity::File { .. }) => false,
        }
    }

    /// Whether a loop device of this length could use this image or device. For an image, the answer is always true, because the image's
    /// length may have changed since the loop device was created.
    fn may_be_behind(&self, dir: &Path) -> bool {
        let Self::Devices(own) = self else { return true };
        let bytes = |name: &str| text(&dir.join("loop").join(name))?.parse::<u64>().ok();
        let (Some(len), Some(offset), Some(limit)) =
            (sectors(dir), bytes("offset"), bytes("sizelimit"))
        else {
            return true;
        };
        let end = len.saturating_add(offset / 512);
        // A loop device that begins within a sector of its file is one sector shorter than the file.
        let fits = |own: u64| end <= own && (limit != 0 || own - end <= 1);
        own.iter().any(|(_, own)| own.is_none_or(fits))
    }
}

/// Returns the numbers of a block device and of the devices that contain the same bytes. If an exclusive open fails, one of these devices
/// is in use.
pub(super) fn sharing(stat: &Stat) -> Vec<u64> {
    match Claim::of(stat) {
        Claim::Image(_) => Vec::new(),
        Claim::Devices(devices) => devices.into_iter().map(|(device, _)| device).collect(),
    }
}

/// Returns other device nodes with the bytes of a block device: the nodes of its disk and of its partitions. If the block device is a loop
/// device over another block device, the result includes the node of that device.
pub(super) fn other_nodes(stat: &Stat) -> Vec<PathBuf> {
    let Claim::Devices(devices) = Claim::of(stat) else { return Vec::new() };
    let mut nodes = Vec::new();
    for (device, _) in devices {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let link = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
        let Ok(dir) = link.canonicalize() else { continue };
        let Some(name) = dir.file_name() else { continue };
        if device != stat.st_rdev {
            nodes.push(Path::new("/dev").join(name));
        }
        nodes.extend(backing_file(&dir));
    }
    nodes
}

/// Returns the length of a block device in units of 512 bytes, from its directory in sysfs.
fn sectors(dir: &Path) -> Option<u64> {
    text(&dir.join("size"))?.parse().ok()
}

/// Returns the device number that a file in sysfs contains.
fn number(path: &Path) -> Option<u64> {
    let text = text(path)?;
    let (major, minor) = text.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
