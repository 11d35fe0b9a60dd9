//! Finds the programs that have locked a file, and the users of a block device. The error for a busy file or device names them.
//!
//! Sources: `proc_locks(5)`, `proc_pid_mountinfo(5)`, `proc_swaps(5)`, `proc_pid_fd(5)`, Linux's Documentation/ABI/stable/sysfs-block
//! ("holders").

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::owner::{self, busy};
use crate::error::Error;
use crate::sorting::Sorting;

/// Returns the error for a file that another program has locked. The error names the program. If the program has mounted the file as a file
/// system, the error also names the mount point. The error cannot name programs in other PID namespaces, or other users' programs if /proc
/// is mounted with `hidepid`, because these programs are not visible.
pub(super) fn locked(path: &Path, file: BorrowedFd<'_>) -> Error {
    let holders: Vec<_> = pids(file).into_iter().map(program).collect();
    let by = match &holders[..] {
        [] => "its process is not visible in /proc".to_owned(),
        holders => holders.join(", "),
    };
    let mounted = mounted_on(path).map(|dir| format!(", mounted by ironmap on {}", dir.display()));
    busy(path, &format!("locked by another program: {by}{}", mounted.unwrap_or_default()))
}

/// The largest number of users of a device that the error names.
const NAMED: usize = 8;

/// Returns the error for a block device that cannot be opened exclusively. The error names the directories where the device, its disk or
/// one of its partitions is mounted, and the devices that are built on the device (RAID, device mapper). If there are none, the error names
/// the programs that have the device open. Mounts in another mount namespace and the open files of other users' programs are not visible.
pub(super) fn in_use(path: &Path) -> Error {
    let devices = rustix::fs::stat(path).map(|stat| owner::sharing(&stat)).unwrap_or_default();
    let mut users = mounts_of(&devices);
    users.extend(devices.iter().flat_map(|device| made_of(*device)));
    users.extend(swaps_of(&devices));
    if users.is_empty() {
        users = openers_of(&devices);
    }
    if let Some(dir) = mounted_on(path) {
        users.push(format!("mounted by ironmap on {}", dir.display()));
    }
    let more = users.len().saturating_sub(NAMED);
    users.truncate(NAMED);
    if more > 0 {
        users.push(format!("and {more} more"));
    }
    let users = match &users[..] {
        [] => "mounted in another namespace, or opened by a program that is not visible in /proc"
            .to_owned(),
        users => users.join(", "),
    };
    busy(path, &format!("in use: {users}"))
}

/// Returns the directories where devices are mounted, in this mount namespace.
fn mounts_of(devices: &[u64]) -> Vec<String> {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let number = |field: &[u8]| {
        let (major, minor) = str::from_utf8(field).ok()?.split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    };
    let place = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let device = number(fields.next()?)?;
        let place = unescaped(fields.nth(1)?);
        devices.contains(&device).then(|| format!("mounted on {}", String::from_utf8_lossy(&place)))
    };
    mounts.split(|byte| *byte == b'\n').filter_map(place).collect()
}

/// Returns the devices that are built on a device: devices of device mapper, RAID and other drivers.
fn made_of(device: u64) -> Vec<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let dir = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/holders"));
    let shown = |entry: std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        match std::fs::read_to_string(entry.path().join("dm/name")) {
            Ok(mapped) => format!("held by /dev/mapper/{} ({name})", mapped.trim()),
            Err(_) => format!("held by /dev/{name}"),
        }
    };
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(shown).collect()
}

fn swaps_of(devices: &[u64]) -> Vec<String> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    // The first line of the table contains headings, so the code skips it.
    let swap = |line: &str| {
        let node = unescaped(line.split_whitespace().next()?.as_bytes());
        let stat = rustix::fs::stat(Path::new(OsStr::from_bytes(&node))).ok()?;
        devices.contains(&stat.st_rdev).then(|| "used as swap space".to_owned())
    };
    swaps.lines().skip(1).filter_map(swap).collect()
}

/// Returns the programs that have any of these devices open.
fn openers_of(devices: &[u64]) -> Vec<String> {
    // The code skips files outside of /dev, because a `stat` of a file on an unreachable file system would block.
    let is_one = |file: std::fs::DirEntry| {
        let node = std::fs::read_link(file.path()).ok().filter(|node| node.starts_with("/dev"));
        let stat = node.and_then(|node| rustix::fs::stat(&node).ok());
        stat.is_some_and(|stat| {
            let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
            is_device && devices.contains(&stat.st_rdev)
        })
    };
    let has_one = |pid: u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.into_iter().any(is_one)
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut pids: Vec<_> = pids.filter(|pid| has_one(*pid)).collect();
    pids.order();
    pids.into_iter().map(|pid| format!("opened by {}", program(pid))).collect()
}

/// The processes that have locked this file.
fn pids(file: BorrowedFd<'_>) -> Vec<u32> {
    let (Ok(stat), Ok(locks)) = (rustix::fs::fstat(file), std::fs::read_to_string("/proc/locks"))
    else {
        return Vec::new();
    };
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let name = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    // The format is `1: FLOCK ADVISORY WRITE PID DEVICE:INODE START END`. A waiting lock has `->` after its number. An OFD lock has the PID
    // -1.
    let holder = |line: &str| {
        let mut fields = line.split_whitespace().skip(4);
        let pid = fields.next()?.parse().ok();
        pid.filter(|_| fields.next() == Some(&*name))
    };
    let mut pids: Vec<_> = locks.lines().filter_map(holder).collect();
    pids.order();
    pids.dedup();
    pids
}

/// The name and the process number of a program: `qemu-img (pid 77)`.
fn program(pid: u32) -> String {
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("{} (pid {pid})", name.trim()),
        Err(_) => format!("pid {pid} (its name is hidden in /proc)"),
    }
}

/// Returns the directory where ironmap has mounted a device or image, or a part of it.
fn mounted_on(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    mounts.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<_> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let (place, kind, source) = (fields.get(4)?, fields.get(dash + 1)?, fields.get(dash + 2)?);
        let source = unescaped(source);
        let rest = source.strip_prefix(path.as_os_str().as_bytes())?;
        let ours = *kind == b"fuse.ironmap" && (rest.is_empty() || rest.starts_with(b"@"));
        ours.then(|| PathBuf::from(OsStr::from_bytes(&unescaped(place))))
    })
}

/// Decodes a field of `/proc/self/mountinfo` or `/proc/swaps`, in which blanks and backslashes are written as `\ooo` in octal.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| *first == b'\\');
        let octal =
            digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        text.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    text
}
