//! A volume's device, joined with the other devices of the volume. The other devices begin at positions past the end of the volume's
//! device. So blocks of an external journal or of realtime files are read like blocks of the volume.

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

use super::{AnyQueue, Device, Immediate, InRange, Limits, QueueOptions, Transfer};
use crate::bio::BioFlags;
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::sorting::Sorting;
use crate::units::DevOffset;

/// Several devices that are read as one device. The reported size is the size of the first device.
#[derive(Debug)]
pub struct Joined {
    parts: Arc<Parts>,
    limits: Limits,
    size: u64,
}

#[derive(Debug)]
struct Parts {
    first: Arc<dyn Device>,
    /// The other devices, with their positions in the joined device. The positions are in ascending order.
    others: Vec<(u64, Arc<dyn Device>)>,
}

impl Joined {
    /// The position of a journal's device. No device is that long. A block number of ext4 (48 bits) can express this position, even with
    /// the smallest block size.
    pub const JOURNAL: u64 = 1 << 57;

    /// The position of the device of realtime files.
    pub const REALTIME: u64 = 1 << 58;

    /// Joins a device and other devices, each with its position. A request within the limits of the joined device is valid on every device.
    #[must_use]
    pub fn new(first: Arc<dyn Device>, mut others: Vec<(u64, Arc<dyn Device>)>) -> Self {
        others.order_by_key(|(start, _)| *start);
        let limits =
            others.iter().fold(*first.limits(), |all, (_, device)| all.joined(*device.limits()));
        let size = first.size();
        Self { parts: Arc::new(Parts { first, others }), limits, size }
    }

    /// Joins disks that follow each other without gaps. The size is the sum of their sizes. A request must not cross the end of a disk.
    ///
    /// # Errors
    /// `InvalidInput` if there is no disk, or if the sum exceeds 64 bits.
    #[cfg(feature = "lvm")]
    pub(crate) fn concat(disks: Vec<Arc<dyn Device>>) -> Result<Self> {
        let mut disks = disks.into_iter();
        let first = disks.next().ok_or_else(|| Error::invalid("there is no disk"))?;
        let (mut end, mut others) = (first.size(), Vec::new());
        for disk in disks {
            let size = disk.size();
            others.push((end, disk));
            end = end.checked_add(size).ok_or_else(|| Error::invalid("the disks are too large"))?;
        }
        Ok(Self { size: end, ..Self::new(first, others) })
    }
}

impl Parts {
    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        match self.others.iter().rfind(|(start, _)| *start <= at.0) {
            Some((start, device)) => device.read_exact_at(buf, DevOffset(at.0 - start)),
            None => self.first.read_exact_at(buf, at),
        }
    }
}

fn only_read() -> Error {
    Error::read_only("a volume on several devices can only be read")
}

impl Device for Joined {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn end(&self) -> DevOffset {
        let ends = self.parts.others.iter().map(|(start, device)| start + device.size());
        DevOffset(ends.fold(self.size(), u64::max))
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        self.parts.read(buf, at)
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn write_within(
        &self,
        _bufs: &[IoSlice<'_>],
        _at: DevOffset,
        _fua: bool,
        _: InRange,
    ) -> Result<()> {
        Err(only_read())
    }

    fn flush(&self) -> Result<()> {
        Err(only_read())
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Ok(OnlyReads::queue(Arc::clone(&self.parts) as Arc<dyn Ranges>, options))
    }
}

/// Ranges of devices that are read as one device.
pub(crate) trait Ranges: fmt::Debug + Send + Sync {
    /// Fills `buf` from a position.
    ///
    /// # Errors
    /// The errors of [`Device::read_exact_at`].
    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<()>;
}

impl Ranges for Parts {
    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        self.read(buf, at)
    }
}

/// A queue of reads. Each read completes before the next read begins.
#[derive(Debug)]
pub(crate) struct OnlyReads(Arc<dyn Ranges>);

impl OnlyReads {
    /// A queue that reads these ranges.
    pub(crate) fn queue(ranges: Arc<dyn Ranges>, options: &QueueOptions) -> AnyQueue {
        AnyQueue::other(Immediate::new(Self(ranges), options.slots()))
    }
}

impl Transfer for OnlyReads {
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

    /// Sends a read to the device at its position. A read that begins on one device and ends on another fails.
    #[test]
    fn each_device_is_read_at_its_place() {
        let ram = |byte, len| -> Arc<dyn Device> { Arc::new(Ram::from_image(&vec![byte; len])) };
        let others = vec![(Joined::REALTIME, ram(3, 4096)), (Joined::JOURNAL, ram(2, 8192))];
        let joined = Joined::new(ram(1, 4096), others);
        let read = |at: u64| {
            let mut byte = [0];
            joined.read_exact_at(&mut byte, DevOffset(at)).map(|()| byte[0])
        };
        assert_eq!(read(4095).unwrap(), 1);
        assert_eq!(read(Joined::JOURNAL).unwrap(), 2);
        assert_eq!(read(Joined::JOURNAL + 8191).unwrap(), 2);
        assert_eq!(read(Joined::REALTIME).unwrap(), 3);
        assert_eq!(read(Joined::REALTIME + 4095).unwrap(), 3);
        assert!(read(4096).is_err() && read(Joined::JOURNAL - 1).is_err());
        assert!(read(Joined::JOURNAL + 8192).is_err() && read(Joined::REALTIME - 1).is_err());
        assert!(read(Joined::REALTIME + 4096).is_err());
        assert!(!joined.is_writable() && joined.size() == 4096);
        assert!(joined.write_all_at(&[IoSlice::new(&[0; 512])], DevOffset(0), true).is_err());
    }
}
