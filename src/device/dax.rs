//! An image in mapped memory: a file in a RAM file system or in persistent memory. Transfers are loads and stores without a system call.

use std::fs::File;
use std::io::IoSlice;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::hold::Hold;
use super::space::Part;
use super::{
    AnyQueue, BlockFile, Device, Immediate, InRange, Limits, QueueOptions, ThroughFlushes, Transfer,
};
use crate::bio::BioFlags;
use crate::error::{Context, Errno, Error, Result};
use crate::sys::Mapping;
use crate::units::DevOffset;

/// A mapped image. A read copies from the mapping to the caller's memory.
///
/// If an image is opened for writing, space is first allocated for all of its holes, because a store to a page without space would raise
/// SIGBUS instead of returning an error. If an image is opened for reading, pages of zeros replace the holes, because tmpfs would allocate
/// a page for each read of a hole. On tmpfs, ramfs, ext4 and XFS, later stores need no more space. On all other file systems, a store may
/// need more space, so writes are system calls.
///
/// If the image is truncated while it is mapped, the next access ends the program with SIGBUS. The lock on the image keeps out other
/// programs that also lock the image. SIGBUS also ends the program if the image's disk fails to read a page.
#[derive(Debug)]
pub struct Dax {
    mapped: Arc<Mapped>,
    limits: Limits,
    size: u64,
}

/// The notice for an image whose writes do not use the mapping.
const SYSTEM_CALLS: &str =
    "a store to the mapping could fail for lack of space, so writes use system calls";

#[derive(Debug)]
struct Mapped {
    mapping: Mapping,
    /// The distance in bytes from the start of the mapping to the first byte of the part in use.
    skip: usize,
    /// The file that all writes go through. `None` if writes use the mapping.
    writer: Option<Writer>,
    /// The locks. This field is declared after `mapping`, so that the mapping, which keeps the image open, is removed first.
    _hold: Arc<Hold>,
}

/// The file of an image that is written through the page cache. The mapping shares the same pages.
#[derive(Debug)]
struct Writer {
    file: File,
    start: u64,
    size: u64,
}

impl Dax {
    /// Maps an open file.
    ///
    /// # Errors
    /// `Io` if the file cannot be mapped. ENOSPC: the file system has too little space to fill the holes of an image that is opened for
    /// writing. ENOMEM: the image exceeds the address space. `LimitExceeded`: the image has too many holes.
    pub fn new(file: &BlockFile) -> Result<Self> {
        let page = rustix::param::page_size() as u64;
        let start = file.absolute(DevOffset(0));
        let skip = start % page;
        let size = file.size();
        let path = || file.path().display();
        let part = file.image_part();
        let failed = |errno| Error::io(errno, "map").at(path());
        let mut writable = file.is_writable();
        let mut writer = None;
        if let Some(part) = part.as_ref().filter(|_| writable) {
            writable = part.reserve().at(path)?;
            if !writable {
                writer = Some(Writer::new(part).map_err(failed)?);
            }
        }
        let mut mapping = usize::try_from(size + skip)
            .map_err(|_| Errno::ENOMEM)
            .and_then(|len| Mapping::new(file.fd(), start - skip, len, writable))
            .map_err(failed)?;
        if let Some(part) = part.as_ref().filter(|_| !file.is_writable()) {
            for (from, to) in part.holes().at(path)? {
                // A page of the mapping is replaced by a page of zeros if all of the page's bytes that belong to the part in use are in the
                // hole.
                let from = if from == start { start - skip } else { from.next_multiple_of(page) };
                let to = if to == start + size { to } else { to - to % page };
                if from < to {
                    let at = (from - (start - skip)) as usize;
                    mapping.cover(at, (to - from) as usize).map_err(failed)?;
                }
            }
        }
        // A transfer is a memory copy, so it can have any position, length and address.
        let limits = Limits {
            logical_block: 1,
            dma_align: 1,
            // A flush syncs the whole mapping. A durable write ends with such a flush, so it also flushes all earlier writes.
            through_flushes: ThroughFlushes::Always,
            nowait: true,
            poll: false,
            ..*file.limits()
        };
        let (skip, _hold) = (skip as usize, file.hold());
        Ok(Self { mapped: Arc::new(Mapped { mapping, skip, writer, _hold }), limits, size })
    }

    /// A line for the user about settings that could not be applied as requested.
    #[must_use]
    pub fn notice(&self) -> Option<&'static str> {
        self.mapped.writer.is_some().then_some(SYSTEM_CALLS)
    }
}

impl Device for Dax {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        self.mapped.read(buf, at).map_err(|errno| Error::io(errno, format!("read at {at}")))
    }

    fn is_writable(&self) -> bool {
        self.mapped.mapping.is_writable() || self.mapped.writer.is_some()
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        _: InRange,
    ) -> Result<()> {
        let flags = if fua { BioFlags::DSYNC } else { BioFlags::empty() };
        let mut transfer = DaxTransfer { mapped: Arc::clone(&self.mapped) };
        let written = transfer.write(bufs, at, flags);
        written.map(drop).map_err(|errno| Error::io(errno, format!("write at {at}")))
    }

    fn flush(&self) -> Result<()> {
        self.mapped.mapping.flush().map_err(|errno| Error::io(errno, "flush"))
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Ok(AnyQueue::Dax(Immediate::new(
            DaxTransfer { mapped: Arc::clone(&self.mapped) },
            options.slots(),
        )))
    }
}

impl Mapped {
    #[inline]
    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<(), Errno> {
        self.mapping.read(buf, self.index(at)?)
    }

    #[inline(always)]
    fn write(&self, buf: &[u8], at: DevOffset) -> Result<(), Errno> {
        match self.mapping.write(buf, self.index(at)?) {
            Err(Errno::EBADF) => self.write_by_call(buf, at),
            done => done,
        }
    }

    #[cold]
    fn write_by_call(&self, buf: &[u8], at: DevOffset) -> Result<(), Errno> {
        self.writer.as_ref().ok_or(Errno::EBADF)?.write(buf, at)
    }

    #[inline]
    fn index(&self, at: DevOffset) -> Result<usize, Errno> {
        usize::try_from(at.0).ok().and_then(|at| at.checked_add(self.skip)).ok_or(Errno::EINVAL)
    }
}

impl Writer {
    fn new(part: &Part<'_>) -> Result<Self, Errno> {
        let file = part
            .file
            .try_clone()
            .map_err(|error| Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)))?;
        // Without O_DIRECT, writes through the file can have any alignment, and they change the mapped pages. Therefore, this code clears
        // the flag. No other code writes through this open file.
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags - OFlags::DIRECT)?;
        Ok(Self { file, start: part.start, size: part.len })
    }

    fn write(&self, mut buf: &[u8], at: DevOffset) -> Result<(), Errno> {
        if at.0.checked_add(buf.len() as u64).is_none_or(|end| end > self.size) {
            return Err(Errno::EINVAL);
        }
        let mut pos = self.start + at.0;
        while !buf.is_empty() {
            match rustix::io::pwrite(&self.file, buf, pos) {
                Ok(0) => return Err(Errno::EIO),
                Ok(count) => (buf, pos) = (&buf[count..], pos + count as u64),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// Copies data to and from the mapping.
#[derive(Debug)]
pub struct DaxTransfer {
    mapped: Arc<Mapped>,
}

impl Transfer for DaxTransfer {
    #[inline]
    fn read(&mut self, buf: &mut [u8], at: DevOffset, _flags: BioFlags) -> Result<usize, Errno> {
        self.mapped.read(buf, at)?;
        Ok(buf.len())
    }

    #[inline(always)]
    fn write(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        for buf in bufs {
            self.mapped.write(buf, DevOffset(at.0 + done as u64))?;
            done += buf.len();
        }
        if flags.contains(BioFlags::DSYNC) {
            self.flush()?;
        }
        Ok(done)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        self.mapped.mapping.flush()
    }
}
