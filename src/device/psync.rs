//! One system call per request: `pread`, `preadv2`, `pwrite`, `pwritev2`.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use rustix::io::{Errno as OsErrno, ReadWriteFlags};

use super::files::{FileRanges, Files, OnFiles};
use super::through_file::through_file;
use super::{
    AnyQueue, BlockFile, Device, DeviceProtection, Immediate, InRange, Limits, QueueOptions,
    ThroughFlushes, Transfer, Transfers,
};
use crate::bio::{BioFlags, Dev};
use crate::error::{Errno, Result};
use crate::sys::nvme;
use crate::units::DevOffset;

/// A block device or image. Each read or write is one system call.
#[derive(Debug)]
pub struct Psync {
    file: Arc<BlockFile>,
    limits: Limits,
}

impl Psync {
    /// Creates the device over an open file.
    #[must_use]
    pub fn new(file: Arc<BlockFile>) -> Self {
        let mut limits = *file.limits();
        if limits.through_flushes == ThroughFlushes::OfCalls {
            // `OfCalls` means that the kernel may flush the device during a write-through system call, but not during a write-through
            // request of io_uring. This device makes a system call for a queued request too, so the kernel may flush during every
            // write-through request.
            limits.through_flushes = ThroughFlushes::Always;
        }
        Self { file, limits }
    }
}

impl Device for Psync {
    through_file!();

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn protection(&self) -> Option<&DeviceProtection> {
        self.file.protection()
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        let files = PsyncFiles::new(Some(Arc::clone(&self.file)));
        Ok(AnyQueue::Psync(Immediate::new(files, options.slots())))
    }
}

/// The files to which a queue sends its requests.
#[derive(Debug)]
pub struct PsyncFiles(Files<()>);

impl PsyncFiles {
    pub(super) fn new(own: Option<Arc<BlockFile>>) -> Self {
        Self(Files::new(own.map(|file| (file, ()))))
    }

    /// The file that is the queue's own device.
    pub(super) fn own(&self) -> Option<&Arc<BlockFile>> {
        self.0.own()
    }

    /// Replaces the queue's own device by ranges of files, of which that device is the first.
    pub(super) fn divide(&mut self, ranges: FileRanges) {
        self.0.divide(ranges, std::iter::repeat(()));
    }
}

impl Transfers for PsyncFiles {
    type One<'a> = OnFiles<'a, ()>;

    #[inline(always)]
    fn device(&mut self, dev: Dev) -> OnFiles<'_, ()> {
        self.0.on(dev)
    }

    fn attach(&mut self, file: &Arc<BlockFile>, _lasting: bool) -> Result<Dev, Errno> {
        Ok(self.0.attach(file, ()))
    }

    fn detach(&mut self, dev: Dev) {
        self.0.detach(dev);
    }
}

/// The system calls for one file. For an NVMe namespace, a read is one `ioctl` that contains a command, and therefore also one system call.
/// Requests with flags use the namespace's block device.
#[derive(Debug)]
pub(super) struct OneFile<'a>(pub(super) &'a BlockFile);

const RWF_ATOMIC: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x40);

/// Returns the flags of `preadv2` and `pwritev2`. HIPRI needs poll queues (`polls`). Without poll queues, the flag is cleared, so that the
/// request does not fail.
pub(super) fn rw_flags(flags: BioFlags, polls: bool) -> ReadWriteFlags {
    let mut result = ReadWriteFlags::empty();
    result.set(ReadWriteFlags::NOWAIT, flags.contains(BioFlags::NOWAIT));
    result.set(ReadWriteFlags::HIPRI, flags.contains(BioFlags::HIPRI) && polls);
    result.set(ReadWriteFlags::DSYNC, flags.contains(BioFlags::DSYNC));
    result.set(RWF_ATOMIC, flags.contains(BioFlags::ATOMIC));
    result
}

/// Repeats a call that a signal interrupted before any transfer. This is a macro, because returning from a function soon after a system
/// call is slow: see `dio::write::overwrite_now`.
macro_rules! uninterrupted {
    ($call:expr) => {
        loop {
            match $call {
                Ok(value) => break Ok(value),
                Err(OsErrno::INTR) => {}
                Err(errno) => break Err(Errno::from(errno)),
            }
        }
    };
}

/// Returns the result of a request with NOWAIT. If the device does not support NOWAIT, the system call fails with EOPNOTSUPP, and the
/// result is EAGAIN instead.
fn unpromised(result: Result<usize, Errno>, flags: BioFlags) -> Result<usize, Errno> {
    match result {
        Err(Errno::EOPNOTSUPP)
            if flags.contains(BioFlags::NOWAIT) && !flags.contains(BioFlags::ATOMIC) =>
        {
            Err(Errno::EAGAIN)
        }
        result => result,
    }
}

impl Transfer for OneFile<'_> {
    #[inline(always)]
    fn read(&mut self, buf: &mut [u8], at: DevOffset, flags: BioFlags) -> Result<usize, Errno> {
        if flags.concern_device() {
            return self.read_vectored(&mut [IoSliceMut::new(buf)], at, flags);
        }
        let (fd, at) = (self.0.fd(), self.0.absolute(at));
        if let Some(namespace) = self.0.namespace()
            && namespace.carries(at, buf.len(), 1)
        {
            return nvme::read_now(namespace.fd(), namespace.id(), buf, at);
        }
        // `pread` is faster than `preadv2` for one buffer, because the kernel need not copy an iovec.
        uninterrupted!(rustix::io::pread(fd, &mut *buf, at))
    }

    fn read_vectored(
        &mut self,
        bufs: &mut [IoSliceMut<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        if let ([one], false) = (&mut *bufs, flags.concern_device()) {
            return self.read(one, at, flags);
        }
        let (fd, at, rw_flags) =
            (self.0.fd(), self.0.absolute(at), rw_flags(flags, self.0.limits().poll));
        unpromised(uninterrupted!(rustix::io::preadv2(fd, bufs, at, rw_flags)), flags)
    }

    #[inline(always)]
    fn write(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let (fd, at) = (self.0.fd(), self.0.absolute(at));
        if let [one] = bufs
            && flags.is_empty()
        {
            return uninterrupted!(rustix::io::pwrite(fd, one, at));
        }
        let rw_flags = rw_flags(flags, self.0.limits().poll);
        unpromised(uninterrupted!(rustix::io::pwritev2(fd, bufs, at, rw_flags)), flags)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        uninterrupted!(rustix::fs::fdatasync(self.0.fd()))
    }
}
