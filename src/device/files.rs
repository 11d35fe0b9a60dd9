//! The table of the files to which a queue can send requests.

use std::sync::Arc;

use super::BlockFile;
use crate::bio::Dev;
use crate::error::Errno;

/// A table of open files. Each entry also stores the queue's state for the file. Free entries are reused.
#[derive(Debug)]
pub(super) struct Files<T>(Vec<Option<(Arc<BlockFile>, T)>>);

impl<T> Files<T> {
    /// Creates a table. If the queue has its own device, this device gets the first entry, [`Dev::OWN`].
    pub(super) fn new(own: Option<(Arc<BlockFile>, T)>) -> Self {
        Self(vec![own])
    }

    /// The file with this number.
    #[inline(always)]
    pub(super) fn get(&self, dev: Dev) -> Result<&(Arc<BlockFile>, T), Errno> {
        match self.0.get(dev.0 as usize) {
            Some(Some(entry)) => Ok(entry),
            _ => Err(Errno::EBADF),
        }
    }

    /// Adds a file with its state.
    pub(super) fn attach(&mut self, file: &Arc<BlockFile>, kept: T) -> Dev {
        let free = self.0.iter().skip(1).position(Option::is_none);
        let place = free.map_or(self.0.len(), |place| place + 1);
        if place == self.0.len() {
            self.0.push(None);
        }
        self.0[place] = Some((Arc::clone(file), kept));
        Dev(place as u32)
    }

    /// Leaves all files open until the process ends, because requests to these files may still be in flight.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.0));
    }

    /// Removes a file, except the queue's own device.
    pub(super) fn detach(&mut self, dev: Dev) -> Option<(Arc<BlockFile>, T)> {
        if dev == Dev::OWN { None } else { self.0.get_mut(dev.0 as usize)?.take() }
    }
}
