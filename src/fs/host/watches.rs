//! Permission events of fanotify. Some programs scan files or fill them on demand. Through fanotify, such a program can make the kernel
//! wait for its permission before each read. A raw read, directly from the block device, would bypass such a program.
//!
//! No system call reports whether a file is marked. The `fdinfo` of a fanotify descriptor lists its marks. So ironmap reads the `fdinfo` of
//! all processes that it may inspect. The result is cached. The slower the read of the marks was, the longer the result is cached.
//!
//! Sources: `fanotify_mark(2)`, Linux's Documentation/filesystems/proc.rst (3.8).

use std::ffi::CStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, Statx, StatxFlags};

use super::Refusal;

/// The minimum time for which a result is cached, and a factor. After a slow read of the marks, the result is cached for the time of the
/// read multiplied by the factor.
const KEPT: (Duration, u32) = (Duration::from_secs(1), 20);
/// The maximum length that is read from the `fdinfo` of a descriptor. Each mark is a line of about a hundred bytes.
const LONGEST: u64 = 64 << 20;

/// The permission events before data are read: `FAN_ACCESS_PERM` and `FAN_PRE_ACCESS`. Permission events for opens are not checked here,
/// because the kernel sent them when this process opened the file.
const BEFORE_READS: u64 = 0x0002_0000 | 0x0010_0000;
/// This flag extends a mark on a directory to the entries of the directory (`FAN_EVENT_ON_CHILD`).
const ON_CHILD: u64 = 0x0800_0000;

/// The marks, and the time at which they were read.
#[derive(Debug, Default)]
pub(super) struct Watches(Mutex<Option<Seen>>);

#[derive(Debug)]
struct Seen {
    at: Instant,
    took: Duration,
    marks: Arc<[Mark]>,
}

/// An object with a mark that has permission events for reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// An inode, with the device number of its file system.
    Inode(u64, u64),
    /// A mount.
    Mount(u64),
    /// A file system, by its device number. The mark is on the file system, or on a directory in it.
    FileSystem(u64),
    /// Any object, because there are more marks than were read.
    Any,
}

impl Watches {
    /// Refuses a file if the kernel asks a program for permission before reads of the file.
    pub(super) fn refuse(&self, file: &Statx) -> Result<(), Refusal> {
        // The kernel's device numbers consist of a major number (12 bits) and a minor number (20 bits).
        let device = u64::from(file.stx_dev_major) << 20 | u64::from(file.stx_dev_minor);
        let mount = (file.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(file.stx_mnt_id);
        let counts = |mark: &Mark| match *mark {
            Mark::Inode(inode, on) => (inode, on) == (file.stx_ino, device),
            // Before Linux 5.8, `statx` does not report the mount of a file. In that case, a mark on any mount counts.
            Mark::Mount(id) => mount.is_none_or(|mount| mount == id),
            Mark::FileSystem(on) => on == device,
            Mark::Any => true,
        };
        if self.seen().iter().any(counts) { Err(Refusal::Watched) } else { Ok(()) }
    }

    fn seen(&self) -> Arc<[Mark]> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |seen: &&Seen| seen.at.elapsed() < KEPT.0.max(seen.took.saturating_mul(KEPT.1));
        if let Some(seen) = seen.as_ref().filter(fresh) {
            return Arc::clone(&seen.marks);
        }
        let begun = Instant::now();
        let marks: Arc<[Mark]> = look().into();
        *seen = Some(Seen { at: begun, took: begun.elapsed(), marks: Arc::clone(&marks) });
        marks
    }
}

/// The marks of all processes that this process may inspect.
fn look() -> Vec<Mark> {
    let mut marks = Vec::new();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &[u8]| name.first().is_some_and(u8::is_ascii_digit);
    for process in processes.filter(|entry| is_process(entry.file_name().as_encoded_bytes())) {
        // Errors are ignored: the process may belong to another user, or may have just ended.
        let _ = look_into(&process.path(), &mut marks);
    }
    marks
}

fn look_into(process: &Path, marks: &mut Vec<Mark>) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fds = rustix::fs::openat(CWD, process.join("fd"), flags, Mode::empty())?;
    let mut target = Vec::with_capacity(256);
    for fd in rustix::fs::Dir::read_from(&fds)? {
        let fd = fd?;
        let Ok(link) = rustix::fs::readlinkat(&fds, fd.file_name(), target) else {
            target = Vec::with_capacity(256);
            continue;
        };
        let is_group = link.as_bytes() == b"anon_inode:[fanotify]";
        target = link.into_bytes();
        if is_group {
            let info = process.join("fdinfo").join(fd_name(fd.file_name()));
            if let Ok(info) = File::open(info) {
                read(info, marks);
            }
        }
    }
    Ok(())
}

fn fd_name(name: &CStr) -> &str {
    name.to_str().unwrap_or_default()
}

/// Reads the marks from the `fdinfo` of a descriptor.
fn read(info: impl Read, marks: &mut Vec<Mark>) {
    let mut info = BufReader::new(info.take(LONGEST));
    let mut line = String::new();
    let mut len = 0;
    while let Ok(count) = info.read_line(&mut line) {
        if count == 0 {
            break;
        }
        len += count as u64;
        if let Some(mark) = mark(&line)
            && !marks.contains(&mark)
        {
            marks.push(mark);
        }
        line.clear();
    }
    if len >= LONGEST {
        marks.push(Mark::Any);
    }
}

/// Returns the mark in a line. Marks without permission events before reads are skipped. An example of a line is `fanotify ino:7
/// sdev:800013 mflags:0 mask:20000 ...`. A line can also contain only `mnt_id:` or `sdev:`. All numbers are hexadecimal.
fn mark(line: &str) -> Option<Mark> {
    let words = || line.strip_prefix("fanotify ").into_iter().flat_map(str::split_whitespace);
    let field = |name: &str| {
        let value = words().find_map(|word| word.strip_prefix(name)?.strip_prefix(':'))?;
        u64::from_str_radix(value, 16).ok()
    };
    let mask = field("mask")?;
    if mask & BEFORE_READS == 0 {
        return None;
    }
    match (field("ino"), field("mnt_id"), field("sdev")) {
        // It is not known which directory contains a file. So a mark that covers the entries of a directory counts for the file system.
        (Some(_), _, Some(device)) if mask & ON_CHILD != 0 => Some(Mark::FileSystem(device)),
        (Some(inode), _, Some(device)) => Some(Mark::Inode(inode, device)),
        (None, Some(mount), _) => Some(Mark::Mount(mount)),
        (None, None, Some(device)) => Some(Mark::FileSystem(device)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only marks with permission events before reads count. The lines have the format of Linux 6.18.
    #[test]
    fn marks_are_those_that_are_asked_before_a_read() {
        let info = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t2063\nfanotify flags:5 event-flags:80000\n\
            fanotify ino:c sdev:700005 mflags:0 mask:20000 ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:0c0000000e6dd6d0\n\
            fanotify ino:2 sdev:700005 mflags:0 mask:8020000 ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:02\n\
            fanotify mnt_id:1f mflags:0 mask:130000 ignored_mask:0\n\
            fanotify sdev:800013 mflags:0 mask:100000 ignored_mask:0\n\
            fanotify sdev:800013 mflags:0 mask:100000 ignored_mask:0\n\
            fanotify ino:d sdev:700005 mflags:0 mask:50000 ignored_mask:20000 fhandle-bytes:8\n\
            fanotify mnt_id:20 mflags:0 mask:1 ignored_mask:0\n";
        let mut marks = Vec::new();
        read(info.as_bytes(), &mut marks);
        let expected = [
            Mark::Inode(0xc, 0x70_0005),
            Mark::FileSystem(0x70_0005),
            Mark::Mount(0x1f),
            Mark::FileSystem(0x80_0013),
        ];
        assert_eq!(marks, expected);
    }
}
