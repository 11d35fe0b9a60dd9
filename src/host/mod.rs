//! The state of a [`Host`](crate::Host) that its files and queues use: the devices of the mounted file systems, and the threads that handle
//! leases (the keeper). Each device is opened once.

mod kernel;
mod lanes;
mod open;
mod report;

use std::sync::{Arc, Mutex, PoisonError};

pub use self::report::{DeviceReport, HostReport};

pub(crate) use self::kernel::Straight;
pub(crate) use self::lanes::Lanes;
pub(crate) use self::open::OpenFile;

use crate::device::path::{self, DevicePath};
use crate::device::{BlockFile, Device, Engine, NoIoUring};
use crate::events::Events;
use crate::fs::host::{Beneath, Keeping, Refusal};
use crate::open_file::Owner;

/// The state that the files and the queues of a host share.
pub(crate) struct Shared {
    pub(crate) keeping: Keeping,
    /// The I/O engine that the options of the host select.
    pub(crate) requested: Engine,
    /// The engine of the first queue. [`Engine::Auto`] means that the caller has provided a device.
    pub(crate) engine: Engine,
    pub(crate) no_io_uring: Option<NoIoUring>,
    /// A device that the caller has given. If it is set, it serves all reads instead of the devices of the file systems.
    pub(crate) own: Option<Arc<dyn Device>>,
    pub(crate) devices: Mutex<Vec<Arc<HostDevice>>>,
    pub(crate) events: Arc<Events>,
    pub(crate) owner: Owner,
}

/// The device of a mounted file system, and the device path (the node in `/dev`) through which it is read.
pub(crate) struct HostDevice {
    /// The index of the device among the host's devices.
    pub(crate) index: u32,
    pub(crate) device_paths: Vec<DevicePath>,
    /// A line of text with the device paths that were tried, and the reason for the choice.
    pub(crate) choice: String,
    pub(crate) device_path: Result<OpenDevicePath, Refusal>,
}

/// The chosen device path.
pub(crate) struct OpenDevicePath {
    pub(crate) file: Arc<BlockFile>,
    pub(crate) device_path: DevicePath,
    pub(crate) beneath: Beneath,
}

impl Shared {
    /// Returns the device with these numbers. Opens its device path, if any path can be opened.
    pub(crate) fn device(&self, major: u32, minor: u32) -> Result<Arc<HostDevice>, Refusal> {
        let device_paths = path::device_paths((major, minor))
            .map_err(|error| Refusal::Device(error.to_string()))?;
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        // A known device is found by comparison of its device paths. A comparison of the device numbers is not enough: the numbers may
        // belong to another device by this time, or a partition may have moved.
        if let Some(known) = devices.iter().find(|known| known.device_paths == device_paths) {
            return Ok(Arc::clone(known));
        }
        let device = Arc::new(self.open_device_path(devices.len() as u32, device_paths));
        devices.push(Arc::clone(&device));
        Ok(device)
    }

    fn open_device_path(&self, index: u32, device_paths: Vec<DevicePath>) -> HostDevice {
        let mut choice = path::choose(device_paths.clone(), DevicePath::open);
        let text = choice.to_string();
        let device_path = match choice.chosen.take() {
            Some(chosen) => {
                let device_path = choice.candidates.swap_remove(chosen.index).device_path;
                let limits = self.own.as_ref().map_or(*chosen.device.limits(), |own| *own.limits());
                let beneath = Beneath { size: device_path.size, limits };
                Ok(OpenDevicePath { file: Arc::new(chosen.device), device_path, beneath })
            }
            None => Err(Refusal::Device(text.clone())),
        };
        HostDevice { index, device_paths, choice: text, device_path }
    }
}
