//! A volume as a file system of the kernel's, through FUSE: `ironmap mount`.
//!
//! A request of the kernel's comes to the thread of [`session`], goes by [`adapter`], which knows fuser's types, to one of the rooms beside
//! it, and from there to the library; a request that would keep others waiting goes to a thread of the [`pool`]. The kernel resolves paths, checks permissions, and keeps a directory's changes apart;
//! the library knows the state of files.

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
    /// Where it is told how the mount has ended.
    ending: String,
    /// Tells the kernel what it cannot know; there from the first request on.
    notifier: Arc<OnceLock<fuser::Notifier>>,
    /// The kernel's number of the file system, once it is mounted.
    device: Arc<OnceLock<(u32, u32)>>,
    /// Reads leave no times: the mount is read-only.
    no_times: AtomicBool,
}

/// The caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    uid: u32,
}

impl Mount {
    fn new(volume: Volume, options: Options, ending: String) -> ironmap::Result<Self> {
        let nodes = Nodes::default();
        // The kernel knows it without a notification.
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

    /// The errno of a failed request, whose cause is told.
    fn told(&self, fail: &Fail) -> fuser::Errno {
        self.log.told(fail)
    }

    fn fs(&self) -> &Arc<dyn FileSystem> {
        self.volume.fs()
    }

    /// The inode of a number of the protocol's. No name leads to an inode whose own number is that of the protocol's root.
    fn inode_of(&self, node: fuser::INodeNo) -> InodeNo {
        if node.0 == PROTOCOL_ROOT { self.fs().root() } else { InodeNo(node.0) }
    }

    /// Makes the kernel ask for an inode's attributes again: they have changed without its knowledge. Its pages stay.
    fn forget_attributes(&self, inode: InodeNo) {
        if let Some(notifier) = self.notifier.get() {
            // It may have forgotten the inode already.
            let _ = notifier.inval_inode(fuser::INodeNo(inode.0), -1, 0);
        }
    }

    /// Makes the kernel read a range again: an operation has failed there that may have changed a part of it.
    ///
    /// It waits for pages that others are reading, which a thread that serves must not. Errors are rare: each has a thread of its own.
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

    /// Waits until what the kernel has of a file's pages, from a position on, is sent and answered: before it drops a page it writes it, and
    /// waits for that. None of the threads that serve may wait for it.
    fn wait_for_pages(&self, inode: InodeNo, from: i64) {
        if let Some(notifier) = self.notifier.get() {
            let _ = notifier.inval_inode(fuser::INodeNo(inode.0), from.max(0), 0);
        }
    }

    /// The same of all files that are open: the kernel has nothing of others that it has not sent.
    fn wait_for_all_pages(&self) {
        for inode in self.open_for_writing() {
            self.wait_for_pages(inode, 0);
        }
    }

    /// After each change of these inodes: the next read of one updates its access time, and the change is durable at once if the mount or one of
    /// them is synchronous.
    fn changed(&self, inodes: &[InodeNo]) -> Result<()> {
        let mut sync = self.options.sync;
        for inode in inodes {
            let node = self.nodes.get(*inode);
            node.changed();
            sync |= node.manner().sync;
            // The next read of a link leaves a time, so the kernel must not answer it from its cache.
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
