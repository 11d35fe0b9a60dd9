//! Flushes of the two devices. One that fails is told once by the kernel, and the next one gives nothing away: so it is remembered here, and
//! from then on nothing says that the device need not be recovered.

use crate::device::Device;
use crate::error::{Context, Errno, Error, Result};
use crate::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Default)]
pub(super) struct Durability {
    /// What was written before may be lost, and nobody knows what.
    lost: AtomicBool,
}

impl Durability {
    /// Makes durable what a device was given.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn flush(&self, device: &dyn Device, what: &'static str) -> Result<()> {
        let flushed = device.flush().context(|| what);
        self.note(flushed.is_ok());
        flushed
    }

    /// Notes how a flush has ended that went another way.
    #[inline]
    pub(super) fn note(&self, flushed: bool) {
        if !flushed {
            self.lost.store(true, Ordering::Release);
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// # Errors
    /// `Io` where a flush has failed: what is to be recovered stays so.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_lost() {
            let what = "a flush has failed, and what is durable is not known: the integrity device is recovered when it is opened again";
            return Err(Error::io(Errno::EIO, what));
        }
        Ok(())
    }
}
