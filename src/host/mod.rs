//! The layer below a queue for files of mounted file systems: the devices beneath them, opened once, the keeper of their leases, and the ways
//! of a queue to their data.

mod kernel;
mod lanes;
mod open;
mod report;

use std::sync::{Arc, Mutex, PoisonError};

pub use self::report::{DeviceReport, HostReport};

pub(crate) use self::kernel::Straight;
pub(crate) use self::lanes::Lanes;
pub(crate) use self::open::OpenFile;

use crate::device::door::{self, Door};
use crate::device::{BlockFile, Device, Engine};
use crate::events::Events;
use crate::fs::host::{Beneath, Keeping, Refusal};
use crate::open_file::Owner;

/// The state that the files and the queues of a host share.
pub(crate) struct Shared {
    pub(crate) keeping: Keeping,
    pub(crate) engine: Engine,
    /// Reads go here whatever device is beneath the files.
    pub(crate) own: Option<Arc<dyn Device>>,
    pub(crate) devices: Mutex<Vec<Arc<HostDevice>>>,
    pub(crate) events: Arc<Events>,
    pub(crate) owner: Owner,
}

/// A device with a mounted file system, and the door to it.
pub(crate) struct HostDevice {
    /// Its place among the host's devices.
    pub(crate) index: u32,
    pub(crate) doors: Vec<Door>,
    /// The doors that were tried, and why the one was chosen, in one line.
    pub(crate) choice: String,
    pub(crate) door: Result<OpenDoor, Refusal>,
}

/// The door that is used.
pub(crate) struct OpenDoor {
    pub(crate) file: Arc<BlockFile>,
    pub(crate) door: Door,
    pub(crate) beneath: Beneath,
}

impl Shared {
    /// The device of a number, with its door open if it can be opened at all.
    pub(crate) fn device(&self, major: u32, minor: u32) -> Result<Arc<HostDevice>, Refusal> {
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
