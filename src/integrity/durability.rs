//! Flushes of the data device and the tag device. A failed flush may have lost earlier writes. Therefore, every later flush of the
//! integrity device fails, and the device is not marked as closed.

use std::sync::Arc;

use crate::device::{self, Device};
use crate::error::{Context, Result};

/// The flush states of both devices. If the tags are in the tail of the data device, both fields refer to this device. Two devices may
/// share a cache, for example if they are partitions of one disk.
#[derive(Clone, Debug)]
pub(super) struct Durability {
    pub(super) data: Arc<device::Durability>,
    pub(super) tags: Arc<device::Durability>,
}

impl Durability {
    /// Creates the flush states. If `tail` is set, the tags are on the data device.
    pub(super) fn new(data: &dyn Device, tags: &dyn Device, tail: bool) -> Self {
        let both = device::Durability::pair([data.limits(), tags.limits()]);
        let [data, tags] = both.map(Arc::new);
        let tags = if tail { Arc::clone(&data) } else { tags };
        Self { data, tags }
    }

    /// # Errors
    /// `Io` if a flush of the device fails or has failed before.
    pub(super) fn flush_data(&self, device: &dyn Device) -> Result<()> {
        self.data.flush(device).context(|| "flush the data")
    }

    /// # Errors
    /// `Io` if a flush of the device fails or has failed before.
    pub(super) fn flush_tags(&self, device: &dyn Device) -> Result<()> {
        self.tags.flush(device).context(|| "flush the tags")
    }

    /// # Errors
    /// `Io` after a failed flush of either device.
    pub(super) fn check(&self) -> Result<()> {
        self.data
            .check()
            .context(|| "writes fail until the integrity device is opened again and recovered")
    }
}
