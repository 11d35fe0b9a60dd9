//! Files of mounted file systems: the devices beneath them, opened once, and the keeper of their leases.

mod handle;
mod kernel;
mod lanes;
mod report;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub use self::report::{DeviceReport, HostReport};

pub(crate) use self::handle::HostHandle;
pub(crate) use self::lanes::Lanes;

use crate::device::door::{self, Door};
use crate::device::{BlockFile, Device, Engine, QueueOptions, open_queue};
use crate::error::Result;
use crate::events::Events;
use crate::file::{File, FileOptions};
use crate::fs::host::{Beneath, HostFile, Keeper, Keeping, Refusal};
use crate::queue::{Owner, Queue};

/// How host files are read.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// How requests for file data reach the device. [`Engine::Auto`] takes io_uring where the kernel has it; files of devices
    /// that do not know NOWAIT are read at once by it.
    pub engine: Engine,
}

/// Reads files of mounted ext4 and XFS file systems around the kernel, each while a lease stands that keeps writers out; through the
/// kernel otherwise. Cheap to clone; shared by threads.
///
/// One stands for any number of files: it opens each device once, and has one thread that answers when leases are broken. A device
/// stays open until the host is gone with its files and queues. That keeps no file system from being unmounted, but a device from
/// being taken down (`losetup -d`, `dmsetup remove`).
///
/// Who opens one of its files for writing waits until the lease is let go: while this process is stopped, as long as
/// `/proc/sys/fs/lease-break-time` says. The signal SIGRTMAX-2 is the host's own.
#[derive(Clone)]
pub struct Host {
    shared: Arc<Shared>,
}

/// What the files and the queues of a host have in common.
pub(crate) struct Shared {
    keeping: Keeping,
    engine: Engine,
    /// Reads go here whatever device is beneath the files.
    own: Option<Arc<dyn Device>>,
    devices: Mutex<Vec<Arc<HostDevice>>>,
    events: Arc<Events>,
    owner: Owner,
}

/// A device with a mounted file system, and the door to it.
pub(crate) struct HostDevice {
    /// Its place among the host's devices.
    index: u32,
    doors: Vec<Door>,
    /// The doors that were tried, and why the one was chosen, in one line.
    choice: String,
    door: Result<OpenDoor, Refusal>,
}

/// The door that is used.
pub(crate) struct OpenDoor {
    file: Arc<BlockFile>,
    door: Door,
    beneath: Beneath,
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
            open_queue(engine, &QueueOptions { depth: 1 })?;
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
    /// `Io` as from `open(2)`; `IsADirectory`, `WrongFileType`.
    pub fn open(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File> {
        let mut device = None;
        let keeper = self.shared.keeping.keeper();
        let file =
            HostFile::open(path.as_ref(), options.assume_no_dedupe, keeper, |major, minor| {
                let found = self.shared.device(major, minor)?;
                let beneath = found.door.as_ref().map(|opened| opened.beneath);
                device = Some(Arc::clone(&found));
                beneath.map_err(Clone::clone)
            })?;
        Ok(HostHandle::new(file, device, Arc::clone(&self.shared), options).into())
    }

    /// A queue for the calling thread. It serves all files of this host.
    ///
    /// # Errors
    /// `Io` where the kernel refuses.
    pub fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let shared = &self.shared;
        let device = match &shared.own {
            Some(device) => device.queue(options)?,
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

impl Shared {
    /// The device of a number, with its door open if it can be opened at all.
    fn device(&self, major: u32, minor: u32) -> Result<Arc<HostDevice>, Refusal> {
        let doors =
            door::doors((major, minor)).map_err(|error| Refusal::Device(error.to_string()))?;
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        // A number may have come to another device, or a partition to another place.
        if let Some(known) = devices.iter().find(|known| known.doors == doors) {
            return Ok(Arc::clone(known));
        }
        let device = Arc::new(self.open_door(devices.len() as u32, doors));
        devices.push(Arc::clone(&device));
        Ok(device)
    }

    fn open_door(&self, index: u32, doors: Vec<Door>) -> HostDevice {
        let mut choice = door::choose(doors.clone(), Door::open);
        let text = choice.to_string();
        let door = match choice.chosen.take() {
            Some(chosen) => {
                let door = choice.candidates.swap_remove(chosen.index).door;
                let limits = self.own.as_ref().map_or(*chosen.device.limits(), |own| *own.limits());
                let beneath = Beneath { size: door.size, limits };
                Ok(OpenDoor { file: Arc::new(chosen.device), door, beneath })
            }
            None => Err(Refusal::Device(text.clone())),
        };
        HostDevice { index, doors, choice: text, door }
    }
}
