//! Opens files of mounted file systems, and gives out their queues: as [`Volume`](crate::Volume) does for those that nobody has mounted.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::device::{Device, Engine, InRange, QueueOptions, open_queue};
use crate::error::{Error, Result};
use crate::events::Events;
use crate::file::{File, FileOptions, HostHandle};
use crate::files::Files;
use crate::fs::host::{HostFile, Keeper};
use crate::host::{Lanes, OpenFile, Shared};
use crate::open_file::Owner;
use crate::queue::Queue;

/// How host files are read.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    engine: Engine,
}

impl HostOptions {
    /// By the engine that the kernel serves best.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How requests for file data reach the device. [`Engine::Auto`] takes io_uring where the kernel has it; files of devices that do not know
    /// NOWAIT are read at once by it.
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }
}

/// Reads files of mounted ext4 and XFS file systems around the kernel, each while a lease stands that keeps writers out; through the
/// kernel otherwise. Cheap to clone; shared by threads.
///
/// One stands for any number of files: it opens each device once, and has one thread that answers when leases are broken. A device
/// stays open until the host is gone with its files and queues. That keeps no file system from being unmounted, but a device from
/// being taken down (`losetup -d`, `dmsetup remove`).
///
/// A program that opens one of its files for writing waits until the lease is let go: while this process is stopped, as long as
/// `/proc/sys/fs/lease-break-time` says. The signal SIGRTMAX-2 is the host's own.
#[derive(Clone)]
pub struct Host {
    shared: Arc<Shared>,
}

impl Host {
    /// Starts the thread that keeps the leases.
    ///
    /// # Errors
    /// `Io` where there can be no more threads, or no io_uring though it was asked for; `InvalidInput` for the
    /// engine dax.
    pub fn new(options: &HostOptions) -> Result<Self> {
        Self::start(options.engine, None)
    }

    /// The same, but all data is read from a device that the caller has made over the one beneath the files: one that injects faults,
    /// for instance.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn on(device: Arc<dyn Device>) -> Result<Self> {
        Self::start(Engine::Auto, Some(device))
    }

    fn start(engine: Engine, own: Option<Arc<dyn Device>>) -> Result<Self> {
        if own.is_none() {
            // Better known now than at the first queue.
            open_queue(engine, &QueueOptions::new().depth(1))?;
        }
        let keeping = Keeper::start()?;
        let (devices, events, owner) = (Mutex::default(), Arc::default(), Owner::unique());
        let shared = Shared { keeping, engine, own, devices, events, owner };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Opens a regular file for reading. That it cannot be read around the kernel is no error: then the kernel serves it, and
    /// [`File::host`] says why.
    ///
    /// # Errors
    /// `Io` as from `open(2)`; `IsADirectory`, `WrongFileType`; `ReadOnly` for writing.
    pub fn open(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File> {
        if options.writes() || options.create || options.create_new || options.truncate {
            let error = Error::read_only("host files are only read");
            return Err(error.context(path.as_ref().display()));
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

    /// A queue for the calling thread. It serves all files of this host.
    ///
    /// # Errors
    /// `Io` where the kernel refuses.
    pub fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let shared = &self.shared;
        let device = match &shared.own {
            Some(device) => device.queue_within(options, InRange::BY_THE_MAP)?,
            None => open_queue(shared.engine, options)?,
        };
        let lanes = Box::new(Lanes::new(Arc::clone(shared)));
        let events = Arc::clone(&shared.events);
        Ok(Queue::new(device, options, shared.owner, Some(lanes), events))
    }

    /// The I/O errors that the files of this host have met.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.shared.events
    }
}

impl Files for Host {
    fn open(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File> {
        Self::open(self, path, options)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        Self::queue(self, options)
    }
}
