//! A device that completes requests for file data immediately, without a transfer. It serves to measure the time that the library itself
//! takes.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use super::{
    AnyQueue, Device, Immediate, InRange, Limits, QueueOptions, ThroughFlushes, Transfer,
    WrongTuple,
};
use crate::bio::BioFlags;
use crate::error::{Errno, Result};
use crate::units::DevOffset;

/// A device whose queues complete every request immediately, without accessing the memory. If a device below exists, metadata are read from
/// it, so that a real volume can be measured without the time of its device.
#[derive(Debug)]
pub struct Null {
    limits: Limits,
    size: u64,
    metadata: Option<Arc<dyn Device>>,
}

impl Null {
    /// Creates a device of `size` bytes without a device below. Metadata reads return zeros.
    #[must_use]
    pub fn new(size: u64) -> Self {
        let limits = Limits {
            read_only: false,
            logical_block: 512,
            physical_block: 4096,
            dma_align: 512,
            max_transfer: 1 << 20,
            fua: true,
            through_flushes: ThroughFlushes::Never,
            volatile_cache: false,
            stable_writes: false,
            nowait: true,
            poll: false,
            direct: true,
            rereads: false,
            atomic_write: 0,
        };
        Self { limits, size, metadata: None }
    }

    /// Creates a device that reads its metadata from another device.
    #[must_use]
    pub fn over(device: Arc<dyn Device>) -> Self {
        Self { limits: *device.limits(), size: device.size(), metadata: Some(device) }
    }
}

impl Device for Null {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn take_wrong_tuples(&self) -> (Vec<WrongTuple>, u64) {
        self.metadata.as_ref().map(|device| device.take_wrong_tuples()).unwrap_or_default()
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        match &self.metadata {
            Some(device) => device.read_exact_at(buf, at),
            None => {
                buf.fill(0);
                Ok(())
            }
        }
    }

    fn is_writable(&self) -> bool {
        self.metadata.as_ref().is_some_and(|device| device.is_writable())
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        _: InRange,
    ) -> Result<()> {
        match &self.metadata {
            Some(device) => device.write_all_at(bufs, at, fua),
            None => Ok(()),
        }
    }

    fn flush(&self) -> Result<()> {
        self.metadata.as_ref().map_or(Ok(()), |device| device.flush())
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Ok(AnyQueue::Null(Immediate::new(NullTransfer, options.slots())))
    }
}

/// Transfers nothing and reports success.
#[derive(Debug)]
pub struct NullTransfer;

impl Transfer for NullTransfer {
    #[inline]
    fn read(&mut self, buf: &mut [u8], at: DevOffset, _flags: BioFlags) -> Result<usize, Errno> {
        // A real device needs the address, so the address must be computed here too. `black_box` prevents the optimizer from removing the
        // computation.
        std::hint::black_box(at);
        Ok(buf.len())
    }

    fn read_vectored(
        &mut self,
        bufs: &mut [IoSliceMut<'_>],
        _at: DevOffset,
        _flags: BioFlags,
    ) -> Result<usize, Errno> {
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }

    #[inline]
    fn write(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        _flags: BioFlags,
    ) -> Result<usize, Errno> {
        // A real device needs the address, so the address must be computed here too. `black_box` prevents the optimizer from removing the
        // computation.
        std::hint::black_box(at);
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }

    fn flush(&mut self) -> Result<(), Errno> {
        Ok(())
    }
}
