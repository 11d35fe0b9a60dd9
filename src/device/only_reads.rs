//! A queue that reads ranges of devices synchronously: no request stays in flight.

use std::sync::Arc;

use super::{AnyQueue, Immediate, QueueOptions, Ranges, Transfer};
use crate::bio::BioFlags;
use crate::error::{Errno, ErrorKind};
use crate::units::DevOffset;

/// A queue of reads. Each read completes before the next read begins.
#[derive(Debug)]
pub(crate) struct OnlyReads(Arc<dyn Ranges>);

impl OnlyReads {
    /// Creates a queue that reads these ranges.
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
        _bufs: &[std::io::IoSlice<'_>],
        _at: DevOffset,
        _flags: BioFlags,
    ) -> Result<usize, Errno> {
        Err(Errno::EROFS)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
}
