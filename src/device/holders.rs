//! Which program holds the lock of a file, for the error that says so.
//!
//! Sources: `proc_locks(5)`, `proc_pid_mountinfo(5)`.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::owner::busy;
use crate::error::Error;

/// The error for a file that another program has locked: names the program, and where it serves the file as a mounted file system. The kernel
/// lists no lock of a program in another PID namespace, and a /proc with `hidepid` hides the names of other users' programs.
pub(super) fn locked(path: &Path, file: BorrowedFd<'_>) -> Error {
    let holders: Vec<_> = pids(file).into_iter().map(program).collect();
    let by = match &holders[..] {
        [] => "which cannot be seen from here".to_owned(),
        holders => holders.join(", "),
    };
    let mounted = mounted_on(path).map(|dir| format!(", mounted by ironmap on {}", dir.display()));
    busy(path, &format!("locked by another program: {by}{}", mounted.unwrap_or_default()))
}

/// The processes that hold a lock of this file.
fn pids(file: BorrowedFd<'_>) -> Vec<u32> {
    let (Ok(stat), Ok(locks)) = (rustix::fs::fstat(file), std::fs::read_to_string("/proc/locks"))
    else {
        return Vec::new();
    };
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let name = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    // `1: FLOCK ADVISORY WRITE PID DEVICE:INODE START END`; one that waits has `->` after its number. An OFD lock has no process: -1.
    let holder = |line: &str| {
        let mut fields = line.split_whitespace().skip(4);
        let pid = fields.next()?.parse().ok();
        pid.filter(|_| fields.next() == Some(&*name))
    };
    let mut pids: Vec<_> = locks.lines().filter_map(holder).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// `qemu-img (pid 77)`.
fn program(pid: u32) -> String {
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("{} (pid {pid})", name.trim()),
        Err(_) => format!("pid {pid}, whose name /proc hides"),
    }
}

/// Where ironmap serves a device or image, or a part of it, as a mounted file system.
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

/// A field of the table, in which blanks and backslashes are `\ooo` in octal.
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
