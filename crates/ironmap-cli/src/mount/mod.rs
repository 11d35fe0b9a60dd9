//! A volume mounted through FUSE: `ironmap mount`.
//!
//! The thread of [`session`] reads the requests of the kernel. The module [`adapter`] uses fuser's types, and passes each request to
//! another module. That module calls the library. A request that would delay others is passed to a thread of the [`pool`]. The kernel
//! resolves paths, checks permissions, and serialises the changes of a directory. The library contains the state of files.

mod adapter;
mod attributes;
mod daemon;
mod directories;
mod end;
mod ext4_options;
mod fail;
mod files;
mod handles;
mod ioctls;
mod lane;
mod names;
mod nodes;
mod options;
#[cfg(test)]
mod other_format;
mod pool;
mod remount;
mod replies;
mod session;
mod unmount;
mod xattrs;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::thread;

use ironmap::Volume;
use ironmap::fs::FileSystem;
use ironmap::units::InodeNo;

use self::fail::{Fail, Log, Result};
use self::handles::{Handles, OpenDirectory, OpenFile};
use self::nodes::{Nodes, PROTOCOL_ROOT};
pub(crate) use self::options::as_mount_helper;
use self::options::{Atime, Options};
pub(crate) use self::remount::{is_mounted, sync};
pub(crate) use self::session::{Args, run};
pub(crate) use self::unmount::{Args as UnmountArgs, run as unmount};

/// A mounted volume.
pub(super) struct Mount {
    volume: Volume,
    log: Arc<Log>,
    options: Options,
    nodes: Nodes,
    files: Handles<OpenFile>,
    directories: Handles<OpenDirectory>,
    /// The value of an attribute of the mount. `ironmap umount` uses it to find the pipe that reports the end of the mount.
    ending: String,
    /// The channel for notifications to the kernel, set before the first request.
    notifier: Arc<OnceLock<fuser::Notifier>>,
    /// The kernel's device number of the file system, once the volume is mounted.
    device: Arc<OnceLock<(u32, u32)>>,
    /// Whether the mount is read-only. Reads then do not update access times.
    no_times: AtomicBool,
}

/// The program that made a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    uid: u32,
}

impl Mount {
    fn new(volume: Volume, options: Options, ending: String) -> ironmap::Result<Self> {
        let nodes = Nodes::default();
        // The kernel uses the root without a lookup. One lookup of the root is counted here.
        let root = volume.fs().root();
        nodes.remember(root, volume.fs().inspect(root, |root| Ok(options.manner(root)))?);
        let (files, directories) = (Handles::default(), Handles::default());
        let (notifier, device) = (Arc::default(), Arc::default());
        let no_times = AtomicBool::new(options.is_read_only());
        let log = Arc::new(Log::new(volume.clone()));
        Ok(Self {
            volume,
            log,
            options,
            nodes,
            files,
            directories,
            ending,
            notifier,
            device,
            no_times,
        })
    }

    /// Returns the errno of a failed request, and reports its cause.
    fn report(&self, fail: &Fail) -> fuser::Errno {
        self.log.report(fail)
    }

    fn fs(&self) -> &Arc<dyn FileSystem> {
        self.volume.fs()
    }

    /// Returns the inode number for a node number of the FUSE protocol. Node number 1 is the root. No other inode has this node number,
    /// because inode 1 has no name.
    fn inode_of(&self, node: fuser::INodeNo) -> InodeNo {
        if node.0 == PROTOCOL_ROOT { self.fs().root() } else { InodeNo(node.0) }
    }

    /// Makes the kernel read an inode's attributes again. The kernel keeps the cached pages of the inode.
    fn forget_attributes(&self, inode: InodeNo) {
        if let Some(notifier) = self.notifier.get() {
            // The kernel may have forgotten the inode already. Therefore an error is ignored.
            let _ = notifier.inval_inode(fuser::INodeNo(inode.0), -1, 0);
        }
    }

    /// Drops the cached pages of a range after a failed operation that may have changed a part of the range.
    ///
    /// If the kernel is reading pages of the range, the notification waits for the end of these reads. Therefore a thread that serves
    /// requests must not send the notification. Failures are rare, so a separate thread is started for each notification.
    fn forget_pages(&self, inode: InodeNo, pos: u64, len: u64) {
        let notifier = Arc::clone(&self.notifier);
        let (pos, len) = (pos.min(i64::MAX as u64), len.min(i64::MAX as u64));
        let forget = move || {
            if let Some(notifier) = notifier.get() {
                let _ = notifier.inval_inode(fuser::INodeNo(inode.0), pos as i64, len as i64);
            }
        };
        let _ = thread::Builder::new().spawn(forget);
    }

    /// Waits until the kernel has written its dirty pages of a file, from a position on. The function sends the kernel a notification to
    /// drop these pages. The kernel writes a dirty page before it drops the page. A thread that serves requests must not call this
    /// function, because these writes are requests, too.
    fn wait_for_pages(&self, inode: InodeNo, from: i64) {
        if let Some(notifier) = self.notifier.get() {
            let _ = notifier.inval_inode(fuser::INodeNo(inode.0), from.max(0), 0);
        }
    }

    /// Waits for the dirty pages of all files that are open for writing. Only these files can have dirty pages.
    fn wait_for_all_pages(&self) {
        for inode in self.open_for_writing() {
            self.wait_for_pages(inode, 0);
        }
    }

    /// Records a change of these inodes. The next read of each inode updates its access time. If the mount or one of the inodes is
    /// synchronous, the change is made durable at once.
    fn changed(&self, inodes: &[InodeNo]) -> Result<()> {
        let mut sync = self.options.sync;
        for inode in inodes {
            let node = self.nodes.get(*inode);
            node.changed();
            sync |= node.manner().sync;
            // The next read of the symbolic link updates its access time. Therefore the kernel must not follow the link from its cache.
            if self.options.atime == Atime::Relative && node.take_link_read() {
                self.forget_pages(*inode, 0, u64::MAX);
            }
        }
        if sync {
            self.fs().sync()?;
        }
        Ok(())
    }
}
