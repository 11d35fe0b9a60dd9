//! A program can control reads of a file by fanotify permission events. Then ironmap reads the file through the kernel, because a read
//! directly from the device would bypass the permission.

use crate::require;
use std::fs::OpenOptions as OsOptions;
use std::io::ErrorKind as OsErrorKind;
use std::path::Path;

use crate::common::calls::Both;
use crate::common::command::run;
use crate::common::image::scratch;
use crate::common::mounted::{Mounted, unmount};
use crate::common::process::until;
use crate::common::rng::Rng;
use crate::common::skip::{Need, note_part};
use crate::sys::Watch;
use ironmap::units::FilePos;
use ironmap::{FileOptions, Host, HostOptions, QueueOptions};
use libc::{
    FAN_ACCESS, FAN_ACCESS_PERM, FAN_CLASS_CONTENT, FAN_CLASS_NOTIF, FAN_CLASS_PRE_CONTENT,
    FAN_EVENT_ON_CHILD, FAN_MARK_FILESYSTEM, FAN_MARK_INODE, FAN_MARK_MOUNT, FAN_OPEN_EXEC_PERM,
    FAN_OPEN_PERM,
};

const SEED: u64 = 0xfa_0711;
const ROUNDS: usize = 20;
const SIZE: usize = 300_001;
/// Linux supports `FAN_PRE_ACCESS` since version 6.14.
const FAN_PRE_ACCESS: u64 = 0x0010_0000;

/// Opens the file with a new host (a reader of files of mounted file systems). Returns whether its reads go to the device or through the
/// kernel.
fn served(path: &Path) -> &'static str {
    let host = Host::new(&HostOptions::default()).unwrap();
    Both::open(&host, path).served()
}

/// Sets a fanotify mark with these permission events. If the kernel does not support the events, records a skipped part and returns `None`.
fn watch(test: &str, what: u32, events: u64, path: &Path) -> Option<Watch> {
    let class =
        if events & FAN_PRE_ACCESS != 0 { FAN_CLASS_PRE_CONTENT } else { FAN_CLASS_CONTENT };
    match Watch::new(class, what, events, path) {
        Ok(watch) => Some(watch),
        Err(error) if error.kind() == OsErrorKind::InvalidInput => {
            let part = format!("events {events:x}");
            note_part(test, &part, "the kernel has no such permission events");
            None
        }
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// If a program has requested permission events for reads of a file, ironmap reads the file through the kernel. The fanotify mark may be on
/// the file, its directory, its mount, or its file system.
#[test]
fn a_file_whose_reads_are_asked_for_is_served_by_the_kernel() {
    const TEST: &str = "a_file_whose_reads_are_asked_for_is_served_by_the_kernel";
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs")]);
    for mounted in [Mounted::ext4(), Mounted::xfs()] {
        let content = Rng::new(SEED).bytes(SIZE);
        let (path, other) = (mounted.write("file", &content), mounted.write("other", &content));
        let on_children = FAN_ACCESS_PERM | FAN_EVENT_ON_CHILD;
        let marks = [
            (FAN_MARK_INODE, FAN_ACCESS_PERM, &*path, "raw"),
            (FAN_MARK_INODE, FAN_PRE_ACCESS, &*path, "raw"),
            (FAN_MARK_INODE, on_children, mounted.dir(), "watched"),
            (FAN_MARK_MOUNT, FAN_ACCESS_PERM, mounted.dir(), "watched"),
            (FAN_MARK_FILESYSTEM, FAN_ACCESS_PERM, mounted.dir(), "watched"),
            (FAN_MARK_FILESYSTEM, FAN_PRE_ACCESS, mounted.dir(), "watched"),
        ];
        for (what, events, marked, neighbour) in marks {
            let Some(watch) = watch(TEST, what, events, marked) else { continue };
            let host = Host::new(&HostOptions::default()).unwrap();
            let mut queue = host.queue(&QueueOptions::default()).unwrap();
            let both = Both::open(&host, &path);
            assert_eq!(both.served(), "watched", "mark {what:x} {events:x}");
            both.check(&mut queue, &content, SEED, ROUNDS);
            assert!(watch.asked() > 0, "the kernel asks for a read: mark {what:x} {events:x}");
            assert!(queue.stats().kernel_served > 0);
            assert_eq!(served(&other), neighbour, "beside it: mark {what:x} {events:x}");
            drop((both, watch));
            assert_eq!(served(&path), "raw", "nobody asks any more: mark {what:x} {events:x}");
        }
    }
}

/// Other fanotify marks do not prevent reads from the device:
///
/// - permission events for opens, because they also apply to ironmap's open;
/// - notifications, which need no reply;
/// - marks on another mount.
#[test]
fn other_marks_are_in_no_way() {
    const TEST: &str = "other_marks_are_in_no_way";
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let path = mounted.write("file", &Rng::new(SEED).bytes(SIZE));
    if let Some(watch) =
        watch(TEST, FAN_MARK_MOUNT, FAN_OPEN_PERM | FAN_OPEN_EXEC_PERM, mounted.dir())
    {
        assert_eq!(served(&path), "raw");
        assert!(watch.asked() > 0, "the open itself");
    }
    let told = Watch::new(FAN_CLASS_NOTIF, FAN_MARK_FILESYSTEM, FAN_ACCESS, mounted.dir()).unwrap();
    assert_eq!(served(&path), "raw");
    drop(told);
    let bound = scratch();
    run("mount", &["--bind", mounted.dir().to_str().unwrap(), bound.path().to_str().unwrap()]);
    let watch = watch(TEST, FAN_MARK_MOUNT, FAN_ACCESS_PERM, bound.path());
    let found = (served(&path), served(&bound.path().join("file")));
    let expected = if watch.is_some() { "watched" } else { "raw" };
    drop(watch);
    unmount(bound.path());
    assert_eq!(found, ("raw", expected));
}

/// If a fanotify mark is set while a file is open, ironmap respects the mark when it acquires the next lease.
#[test]
fn a_lease_is_not_taken_again_under_a_mark() {
    const TEST: &str = "a_lease_is_not_taken_again_under_a_mark";
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let path = mounted.write("file", &Rng::new(SEED).bytes(SIZE));
    let host = Host::new(&HostOptions::default()).unwrap();
    let mut queue = host.queue(&QueueOptions::default()).unwrap();
    let file = host.open_with(&path, FileOptions::default()).unwrap();
    let name = || file.host().unwrap().refusal.map_or("raw", |why| why.name());
    assert_eq!(name(), "raw");
    let Some(_watch) = watch(TEST, FAN_MARK_INODE, FAN_ACCESS_PERM, &path) else { return };
    let mut buffer = [0; 100];
    until("the mark is seen", || {
        drop(OsOptions::new().write(true).open(&path).unwrap());
        assert_eq!(file.read_at(&mut queue, &mut buffer, FilePos(0)).unwrap(), buffer.len());
        name() == "watched"
    });
}
