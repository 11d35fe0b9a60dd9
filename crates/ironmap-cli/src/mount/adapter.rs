//! Converts between fuser's types for the FUSE protocol and the types of the other modules. Each request is passed to the module that
//! serves it, and the result becomes the reply.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use ironmap::fs::{Credentials, NewFile};

use super::attributes::Changes;
use super::files::Opened;
use super::lane::MOST;
use super::names::Entry;
use super::pool::Pool;
use super::remount::Syncs;
use super::replies::{reply_attr, reply_empty, reply_entry, reply_open, reply_value, send_value};
use super::{Asker, Atime, Mount, remount};

impl From<&Request> for Asker {
    fn from(request: &Request) -> Self {
        Self { uid: request.uid() }
    }
}

/// The identity of the process that creates a file.
fn credentials(request: &Request, umask: u32) -> Credentials {
    Credentials::new(request.uid(), request.gid(), umask)
}

/// The server of a mount. fuser calls it for each request.
pub(super) struct Server {
    mount: Arc<Mount>,
    pool: Pool,
    syncs: Arc<Syncs>,
}

impl Server {
    pub(super) fn new(mount: Mount, threads: usize) -> Self {
        Self { mount: Arc::new(mount), pool: Pool::new(threads), syncs: Arc::default() }
    }

    /// The mount. The weak reference is valid until fuser drops the server.
    pub(super) fn mount(&self) -> Weak<Mount> {
        Arc::downgrade(&self.mount)
    }

    pub(super) fn connection(&self) -> Arc<OnceLock<OwnedFd>> {
        self.pool.connection()
    }

    /// Passes work that may wait for the device to a thread of the pool.
    fn give(&self, work: impl FnOnce(&Mount) + Send + 'static) {
        let mount = Arc::clone(&self.mount);
        self.pool.give(move || work(&mount));
    }
}

impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = vec![
            // The kernel must not apply the umask. If the directory has no default ACL, the library applies the umask.
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            // The kernel looks up "." and ".." to open a file handle whose inode it has forgotten.
            InitFlags::FUSE_EXPORT_SUPPORT,
        ];
        // With strictatime, the kernel must not cache symbolic links. The kernel follows a cached link without a request. The server could
        // then not update the access time.
        if self.mount.options.atime != Atime::Strict {
            wanted.push(InitFlags::FUSE_CACHE_SYMLINKS);
        }
        if self.mount.options.writeback {
            wanted.push(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        for capability in wanted {
            // An older kernel lacks some capabilities, and the mount works without them.
            let _ = config.add_capabilities(capability);
        }
        let _ = config.set_max_write(MOST as u32);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn destroy(&mut self) {
        self.pool.end();
        self.mount.files.clear();
        self.mount.directories.clear();
        self.mount.nodes.clear();
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply_entry(
            &self.mount,
            self.mount.lookup(self.mount.inode_of(parent), name.as_bytes()),
            reply,
        );
    }

    fn forget(&self, _request: &Request, node: INodeNo, times: u64) {
        self.mount.nodes.forget(self.mount.inode_of(node), times);
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply_attr(&self.mount, self.mount.getattr(self.mount.inode_of(node)), reply);
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes { mode, uid, gid, size, accessed, modified, changed };
        reply_attr(
            &self.mount,
            self.mount.setattr(self.mount.inode_of(node), &changes, request.into()),
            reply,
        );
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        match self.mount.read_link(self.mount.inode_of(node)) {
            Ok(target) => reply.data(&target),
            Err(fail) => reply.error(self.mount.report(&fail)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (dir, name) = (self.mount.inode_of(parent), name.as_bytes());
        let who = credentials(request, umask);
        reply_entry(&self.mount, self.mount.mknod(dir, name, mode, device, &who), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (dir, name, file) = (self.mount.inode_of(parent), name.as_bytes(), NewFile::Directory);
        let who = credentials(request, umask);
        reply_entry(&self.mount, self.mount.make(dir, name, file, mode, &who), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let file = NewFile::Symlink(target.as_os_str().as_bytes());
        let (dir, name) = (self.mount.inode_of(parent), name.as_bytes());
        let who = credentials(request, 0);
        reply_entry(&self.mount, self.mount.make(dir, name, file, 0o777, &who), reply);
    }

    fn link(
        &self,
        _request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (inode, dir) = (self.mount.inode_of(node), self.mount.inode_of(new_parent));
        reply_entry(&self.mount, self.mount.link(inode, dir, new_name.as_bytes()), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(
            &self.mount,
            self.mount.unlink(self.mount.inode_of(parent), name.as_bytes()),
            reply,
        );
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(
            &self.mount,
            self.mount.rmdir(self.mount.inode_of(parent), name.as_bytes()),
            reply,
        );
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = (self.mount.inode_of(parent), self.mount.inode_of(new_parent));
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        let who = credentials(request, 0);
        reply_empty(
            &self.mount,
            self.mount.rename((from, name), (to, new_name), flags.bits(), &who),
            reply,
        );
    }

    fn open(&self, _request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        reply_open(&self.mount, self.mount.open(self.mount.inode_of(node), flags.0), reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (dir, name, file) = (self.mount.inode_of(parent), name.as_bytes(), NewFile::Regular);
        let made = self.mount.make(dir, name, file, mode, &credentials(request, umask));
        let opened = made.and_then(|entry| {
            match self.mount.open(self.mount.inode_of(entry.attr.ino), flags) {
                Ok(opened) => Ok((entry, opened)),
                Err(fail) => {
                    self.mount.nodes.forget(self.mount.inode_of(entry.attr.ino), 1);
                    Err(fail)
                }
            }
        });
        match opened {
            Ok((Entry { attr, generation, valid }, opened)) => {
                reply.created(&valid, &attr, generation, opened.handle, opened.flags());
            }
            Err(fail) => reply.error(self.mount.report(&fail)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let work = move |mount: &Mount| {
            let mut reply = Some(reply);
            let read = mount.read(handle, offset, size as usize, flags.0, |bytes| {
                if let Some(reply) = reply.take() {
                    reply.data(bytes);
                }
            });
            if let (Err(fail), Some(reply)) = (read, reply) {
                reply.error(mount.report(&fail));
            }
        };
        if self.pool.is_alone() { work(&self.mount) } else { self.give(work) }
    }

    fn write(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let work = move |mount: &Mount, data: &[u8]| match mount.write(
            handle,
            offset,
            data,
            flags.0,
            write_flags,
        ) {
            Ok(count) => reply.written(count as u32),
            Err(fail) => reply.error(mount.report(&fail)),
        };
        if self.pool.is_alone() {
            return work(&self.mount, data);
        }
        let data = data.to_vec();
        self.give(move |mount| work(mount, &data));
    }

    /// The kernel sends this request when a program closes a descriptor. Every write already has its reply, so there is no work to do.
    /// After ENOSYS, the kernel sends no further `FLUSH` requests.
    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.mount.files.remove(handle);
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.give(move |mount| reply_empty(mount, mount.sync_file(handle, data_only), reply));
    }

    fn opendir(&self, _request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.mount.open_directory(self.mount.inode_of(node), flags.0);
        reply_open(&self.mount, opened.map(|handle| Opened { handle, direct: false }), reply);
    }

    fn readdir(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        match self.mount.read_directory(handle, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(fail) => reply.error(self.mount.report(&fail)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        match self.mount.read_directory_plus(handle, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(fail) => reply.error(self.mount.report(&fail)),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.mount.directories.remove(handle);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.give(move |mount| reply_empty(mount, mount.sync_directory(), reply));
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        self.mount.statfs(reply);
    }

    fn setxattr(
        &self,
        _request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply_empty(
            &self.mount,
            self.mount.setxattr(self.mount.inode_of(node), name.as_bytes(), value, flags),
            reply,
        );
    }

    fn getxattr(
        &self,
        _request: &Request,
        node: INodeNo,
        name: &OsStr,
        room: u32,
        reply: ReplyXattr,
    ) {
        let (inode, name) = (self.mount.inode_of(node), name.as_bytes());
        if !remount::is_sync(&self.mount, inode, name) {
            return reply_value(&self.mount, self.mount.getxattr(inode, name), room, reply);
        }
        let answer = move |synced: Result<(), Errno>| match synced {
            // The value of the attribute is empty. A program reads this attribute only to request a sync.
            Ok(()) => send_value(&[], room, reply),
            Err(errno) => reply.error(errno),
        };
        self.syncs.ask(&self.mount, Box::new(answer));
    }

    fn listxattr(&self, request: &Request, node: INodeNo, room: u32, reply: ReplyXattr) {
        reply_value(
            &self.mount,
            self.mount.listxattr(self.mount.inode_of(node), request.into()),
            room,
            reply,
        );
    }

    fn removexattr(&self, _request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(
            &self.mount,
            self.mount.removexattr(self.mount.inode_of(node), name.as_bytes()),
            reply,
        );
    }

    fn fallocate(
        &self,
        request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let asker = request.into();
        self.give(move |mount| {
            reply_empty(mount, mount.fallocate(handle, offset, length, mode, asker), reply);
        });
    }

    fn ioctl(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        data: &[u8],
        _room: u32,
        reply: ReplyIoctl,
    ) {
        let (asker, data) = (request.into(), data.to_vec());
        let inode = self.mount.inode_of(node);
        self.give(move |mount| match mount.ioctl(inode, command, &data, asker) {
            Ok(answer) => reply.ioctl(0, &answer),
            Err(fail) => reply.error(mount.report(&fail)),
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let work = move |mount: &Mount| match mount.seek(handle, offset, whence) {
            Ok(found) => reply.offset(found),
            Err(fail) => reply.error(mount.report(&fail)),
        };
        let inode = self.mount.inode_of(node);
        if !self.mount.is_open_for_writing(inode) {
            return work(&self.mount);
        }
        // Data in the kernel's cache must not be reported as a hole. Therefore this work waits until the kernel has sent its dirty pages.
        // The work runs in a separate thread. A thread of the pool must not wait for writes that the pool serves.
        let mount = Arc::clone(&self.mount);
        let _ = thread::Builder::new().spawn(move || {
            mount.wait_for_pages(inode, offset);
            work(&mount);
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _node_in: INodeNo,
        handle_in: FileHandle,
        offset_in: u64,
        _node_out: INodeNo,
        handle_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((handle_in, offset_in), (handle_out, offset_out));
        let asker = request.into();
        self.give(move |mount| match mount.copy_range(from, to, len, asker) {
            Ok(count) => reply.written(count as u32),
            Err(fail) => reply.error(mount.report(&fail)),
        });
    }
}
