//! Opens files of mounted file systems, and creates queues for these files. [`Volume`](crate::Volume) has the same functions for unmounted
//! file systems.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::device::{Device, Engine, InRange, NoIoUring, QueueOptions, open_queue};
use crate::error::{Error, Result};
use crate::events::Events;
use crate::file::{File, FileOptions, HostHandle};
use crate::files::Files;
use crate::fs::Stat;
use crate::fs::host::{self, HostFile, Keeper};
use crate::host::{Lanes, OpenFile, Shared};
use crate::open_file::Owner;
use crate::queue::Queue;

/// Options for reading files of mounted file systems (host files).
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    engine: Engine,
}

impl HostOptions {
    /// Creates options with the engine that is best for the running kernel.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects the engine that transfers file data. [`Engine::Auto`] selects io_uring if the kernel supports it. If the device does not
    /// support NOWAIT, each read through io_uring completes before the call that submits the read returns.
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }
}

/// Reads files of mounted ext2, ext3, ext4 and XFS file systems. While a lease on a file excludes writers, the file is read directly from
/// the device. At all other times, the kernel reads the file. A clone of a host is cheap. Threads can share a host.
///
/// One host serves any number of files. It opens each device once, and one thread handles broken leases. A device stays open until the host
/// and all its files and queues are dropped. While a device is open, its file system can be unmounted, but the device cannot be removed
/// (`losetup -d`, `dmsetup remove`).
///
/// A program that opens one of the files for writing waits until the lease is released. If the process of the host is stopped, the program
/// waits for the time in `/proc/sys/fs/lease-break-time`. The host uses the signal SIGRTMAX-2.
#[derive(Clone)]
pub struct Host {
    shared: Arc<Shared>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("engine", &self.shared.engine).finish_non_exhaustive()
    }
}

impl Host {
    /// Creates a host, and starts the thread that handles the leases.
    ///
    /// # Errors
    /// `Io` if the thread cannot be started, or if io_uring was requested but is not available; `InvalidInput` for the engine dax.
    pub fn new(options: &HostOptions) -> Result<Self> {
        Self::start(options.engine, None)
    }

    /// Creates a host that reads all data from a device that the caller provides. This device must be a layer over the device of the file
    /// system, for example a layer that injects faults.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn on(device: Arc<dyn Device>) -> Result<Self> {
        Self::start(Engine::Auto, Some(device))
    }

    fn start(engine: Engine, own: Option<Arc<dyn Device>>) -> Result<Self> {
        // This code opens a queue as a test before it creates the host, so that an unavailable engine causes an error here instead of at
        // the first use of the host.
        let test = |engine| open_queue(engine, &QueueOptions::new().depth(1));
        let (served, no_io_uring) = match (&own, engine) {
            (Some(_), _) => (engine, None),
            (None, Engine::Auto) => match test(Engine::IoUring) {
                Ok(queue) => (queue.engine(), None),
                Err(error) => (Engine::Psync, Some(NoIoUring::Refused(error.errno()))),
            },
            (None, _) => (test(engine)?.engine(), None),
        };
        let keeping = Keeper::start()?;
        let (devices, events, owner) = (Mutex::default(), Arc::default(), Owner::unique());
        let (requested, engine) = (engine, served);
        let shared =
            Shared { keeping, requested, engine, no_io_uring, own, devices, events, owner };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Opens a regular file for reading. If the file cannot be read directly from the device, the kernel serves it, and the call still
    /// succeeds. [`File::host`] returns the reason.
    ///
    /// # Errors
    /// The `Io` errors of `open(2)`; `IsADirectory`, `WrongFileType`.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, FileOptions::new())
    }

    /// Opens a regular file for reading, as [`open`](Self::open) does, with options.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open); `ReadOnly` if the options open the file for writing.
    pub fn open_with(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File> {
        if options.writes() || options.create || options.create_new || options.truncate {
            let error = Error::read_only("host files can be read but not written");
            return Err(error.at(path.as_ref().display()));
        }
        let mut device = None;
        let keeper = self.shared.keeping.keeper();
        let file =
            HostFile::open(path.as_ref(), options.assume_no_dedupe, keeper, |major, minor| {
                let found = self.shared.device(major, minor)?;
                let beneath = found.device_path.as_ref().map(|opened| opened.beneath);
                device = Some(Arc::clone(&found));
                beneath.map_err(Clone::clone)
            })?;
        let open = OpenFile::new(file, device, Arc::clone(&self.shared), options.stable_pages);
        Ok(HostHandle::new(open, options.direct).into())
    }

    /// Returns the attributes of a file, as `stat` does, and the generation of the inode (`FS_IOC_GETVERSION`). Follows symbolic links. The
    /// fields `flags` and `project` are not set.
    ///
    /// If an inode number is reused for another file, the two files have different generations. The generation is 0 if the file system has
    /// no generations, or if the caller may not read the file.
    ///
    /// # Errors
    /// The `Io` errors of `stat(2)`.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Stat> {
        host::metadata(path.as_ref())
    }

    /// Creates a queue for the calling thread. The queue serves all files of this host.
    ///
    /// # Errors
    /// `Io` if the kernel refuses to create the queue.
    pub fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let shared = &self.shared;
        let device = match &shared.own {
            Some(device) => device.queue_within(options, InRange::BY_THE_MAP)?,
            None => open_queue(shared.requested, options)?,
        };
        let lanes = Box::new(Lanes::new(Arc::clone(shared)));
        let events = Arc::clone(&shared.events);
        Ok(Queue::new(device, options, shared.owner, Some(lanes), events))
    }

    /// The I/O errors that were recorded for requests to files of this host.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.shared.events
    }
}

impl Files for Host {
    fn open_with(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File> {
        Self::open_with(self, path, options)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        Self::queue(self, options)
    }

    fn engine(&self) -> Engine {
        self.shared.engine
    }

    fn no_io_uring(&self) -> Option<NoIoUring> {
        self.shared.no_io_uring
    }
}
