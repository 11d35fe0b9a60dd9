//! A range of a device, presented as a separate device. The search for superblocks and for labels of member devices uses it.

use super::{AnyQueue, Device, InRange, Limits, QueueOptions};
use crate::error::{Error, Result};
use crate::units::DevOffset;

/// A range of a device. The range can be read but not written.
pub(crate) struct Within<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Device for Within<'_> {
    fn limits(&self) -> &Limits {
        self.device.limits()
    }

    fn size(&self) -> u64 {
        self.len
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        self.device.read_exact_at(buf, DevOffset(self.start.saturating_add(at.0)))
    }

    fn queue_within(&self, _: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Err(Error::read_only("the range of the device is open for reading only"))
    }
}
