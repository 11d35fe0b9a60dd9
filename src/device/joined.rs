//! A volume's device with the device of its journal past its end: blocks that a recovery finds in the journal are read as those of the volume are.

use std::io::IoSlice;
use std::sync::Arc;

use super::{AnyQueue, Device, Immediate, Limits, OtherQueue, QueueOptions, Transfer};
use crate::bio::BioFlags;
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::units::DevOffset;

/// Two devices to read as one. The size is that of the first.
#[derive(Debug)]
pub struct Joined {
    parts: Arc<Parts>,
    limits: Limits,
}

#[derive(Debug)]
struct Parts {
    first: Arc<dyn Device>,
    second: Arc<dyn Device>,
}

impl Joined {
    /// The byte from which the second device is seen. No device is as long, and a block number of ext4 has 48 bits, which reach beyond it
    /// with the smallest blocks.
    pub const SECOND: u64 = 1 << 57;

    /// The two devices; a request takes what both can.
    #[must_use]
    pub fn new(first: Arc<dyn Device>, second: Arc<dyn Device>) -> Self {
        let (one, other) = (*first.limits(), *second.limits());
        let logical_block = one.logical_block.max(other.logical_block);
        let limits = Limits {
            read_only: one.read_only || other.read_only,
            logical_block,
            physical_block: one.physical_block.max(other.physical_block),
            dma_align: one.dma_align.max(other.dma_align),
            max_transfer: one.max_transfer.min(other.max_transfer).max(logical_block),
            nowait: false,
            poll: false,
            direct: one.direct && other.direct,
            rereads: one.rereads && other.rereads,
            ..one
        };
        Self { parts: Arc::new(Parts { first, second }), limits }
    }
}

impl Parts {
    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        match at.0.checked_sub(Joined::SECOND) {
            Some(at) => self.second.read_exact_at(buf, DevOffset(at)),
            None => self.first.read_exact_at(buf, at),
        }
    }
}

fn only_read() -> Error {
    Error::read_only("a volume with its journal on another device is only read")
}

impl Device for Joined {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.parts.first.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        self.parts.read(buf, at)
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn write_all_at(&self, _bufs: &[IoSlice<'_>], _at: DevOffset, _fua: bool) -> Result<()> {
        Err(only_read())
    }

    fn flush(&self) -> Result<()> {
        Err(only_read())
    }

    fn queue(&self, options: &QueueOptions) -> Result<AnyQueue> {
        let transfer = JoinedTransfer(Arc::clone(&self.parts));
        Ok(AnyQueue::Other(OtherQueue::new(Immediate::new(transfer, options.slots()))))
    }
}

/// The reads of a queue.
#[derive(Debug)]
struct JoinedTransfer(Arc<Parts>);

impl Transfer for JoinedTransfer {
    fn read(&mut self, buf: &mut [u8], at: DevOffset, _flags: BioFlags) -> Result<usize, Errno> {
        match self.0.read(buf, at).map_err(|error| error.kind()) {
            Ok(()) => Ok(buf.len()),
            Err(ErrorKind::Io(errno)) => Err(errno),
            Err(_) => Err(Errno::EINVAL),
        }
    }

    fn write(
        &mut self,
        _bufs: &[IoSlice<'_>],
        _at: DevOffset,
        _flags: BioFlags,
    ) -> Result<usize, Errno> {
        Err(Errno::EROFS)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Ram;

    /// A read reaches the device that it names, and never crosses from one to the other.
    #[test]
    fn each_device_is_read_at_its_place() {
        let (first, second) = (Ram::from_image(&[1; 4096]), Ram::from_image(&[2; 8192]));
        let joined = Joined::new(Arc::new(first), Arc::new(second));
        let read = |at: u64| {
            let mut byte = [0];
            joined.read_exact_at(&mut byte, DevOffset(at)).map(|()| byte[0])
        };
        assert_eq!(read(4095).unwrap(), 1);
        assert_eq!(read(Joined::SECOND).unwrap(), 2);
        assert_eq!(read(Joined::SECOND + 8191).unwrap(), 2);
        assert!(read(4096).is_err() && read(Joined::SECOND - 1).is_err());
        assert!(read(Joined::SECOND + 8192).is_err());
        assert!(!joined.is_writable() && joined.size() == 4096);
        assert!(joined.write_all_at(&[IoSlice::new(&[0; 512])], DevOffset(0), true).is_err());
    }
}
