//! A device that fails on request. The device is a file in a file system that this process serves. The content of this file is stored in an
//! image file.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};

use crate::rng::Rng;
use crate::sides::unmount;

const NAME: &str = "volume";
const FILE: INodeNo = INodeNo(2);

/// The rates of failures. With a rate of N, one of N requests fails. With 0, no request fails.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) reads: AtomicU64,
    /// The failure rate of writes and flushes.
    pub(super) writes: AtomicU64,
    requests: AtomicU64,
    /// The number of writes and flushes up to the next failure. With 0 or a negative number, no request fails.
    next: AtomicI64,
}

impl Faults {
    /// Makes the next write or flush with this number fail, counted from 1. With 0, no request fails.
    pub(super) fn fail_write(&self, number: i64) {
        self.next.store(number, Ordering::Relaxed);
    }

    /// Whether this write or flush has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.next.load(Ordering::Relaxed) <= 0
    }

    fn hits_write(&self) -> bool {
        self.next.fetch_sub(1, Ordering::Relaxed) == 1 || self.hits(&self.writes)
    }

    fn hits(&self, one_in: &AtomicU64) -> bool {
        let (one_in, number) =
            (one_in.load(Ordering::Relaxed), self.requests.fetch_add(1, Ordering::Relaxed));
        one_in > 0 && Rng::new(number).below(one_in) == 0
    }
}

pub(super) struct Device {
    dir: PathBuf,
    pub(super) faults: Arc<Faults>,
    session: Option<BackgroundSession>,
}

impl Device {
    pub(super) fn new(image: &Path, dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        let image = File::options().read(true).write(true).open(image).unwrap();
        let faults = Arc::<Faults>::default();
        let server = Server { image, faults: Arc::clone(&faults) };
        let mut config = fuser::Config::default();
        config.mount_options = vec![MountOption::FSName("faulty".to_owned())];
        config.n_threads = Some(2);
        let session = Session::new(server, dir, &config).unwrap().spawn().unwrap();
        Self { dir: dir.to_owned(), faults, session: Some(session) }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(NAME)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // When another test starts a process, the new process has copies of all descriptors for a short time. Therefore the unmount is
        // retried.
        let unmounted = unmount(&self.dir);
        let ended = self.session.take().filter(|_| unmounted).map(BackgroundSession::join);
        if !std::thread::panicking() {
            ended.expect("unmounted").unwrap();
        }
    }
}

struct Server {
    image: File,
    faults: Arc<Faults>,
}

impl Server {
    fn attr(&self, node: INodeNo) -> FileAttr {
        let file = node == FILE;
        let size = if file { self.image.metadata().unwrap().len() } else { 0 };
        let time = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino: node,
            size,
            blocks: size / 512,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: if file { FileType::RegularFile } else { FileType::Directory },
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&Duration::from_secs(3600), &self.attr(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::from_secs(3600), &self.attr(node));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(1), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        match self.image.read_at(&mut bytes, offset) {
            Ok(count) if !self.faults.hits(&self.faults.reads) => reply.data(&bytes[..count]),
            _ => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.faults.hits_write() {
            return reply.error(Errno::EIO);
        }
        match self.image.write_at(data, offset) {
            Ok(count) => reply.written(count as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if self.faults.hits_write() { reply.error(Errno::EIO) } else { reply.ok() }
    }
}
