//! An open image as a device, and its queue.

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use super::describe::ONLY_READ;
use super::driver::Driver;
use super::qcow2::Qcow2;
use super::vhdx::Vhdx;
use super::vmdk::Vmdk;
use super::{Address, ImageFormat, ImageOptions};
use crate::bio::BioFlags;
use crate::device::{
    AnyQueue, Device, Immediate, InRange, Limits, QueueOptions, ThroughFlushes, Transfer,
};
use crate::error::{Context, Errno, Error, ErrorKind, Result};
use crate::units::DevOffset;

/// The length of a logical block of the device, in bytes.
const SECTOR: u64 = 512;

/// An image of a virtual machine, or a part of an image.
pub struct Image {
    address: Address,
    disk: Disk,
    limits: Limits,
    is_writable: bool,
    notices: Vec<String>,
}

/// Opens an image, and restricts it to the part that the function `part` finds in it. Also returns the notices for the user.
pub(crate) fn open(
    address: &Address,
    how: ImageOptions,
    part: impl FnOnce(&dyn Device) -> Result<Option<(u64, u64)>>,
) -> Result<(Arc<dyn Device>, Vec<String>)> {
    let mut image = Image::open_with(address, how)?;
    if let Some((start, len)) = part(&image).at(|| address)? {
        image = image.part(start, len)?;
    }
    let notices = image.notices();
    Ok((Arc::new(image), notices))
}

/// Opens an image without locks, to read its partitions.
pub(crate) fn look(address: &Address) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(Image::open_as(address, ImageOptions::default(), false)?))
}

/// The part in use of an image.
#[derive(Clone, Debug)]
struct Disk {
    driver: Arc<dyn Driver>,
    base: u64,
    size: u64,
}

const LIMITS: Limits = Limits {
    read_only: false,
    logical_block: SECTOR as u32,
    physical_block: 4096,
    dma_align: 4,
    max_transfer: 1 << 20,
    fua: false,
    through_flushes: ThroughFlushes::Always,
    volatile_cache: true,
    stable_writes: false,
    nowait: false,
    poll: false,
    direct: true,
    rereads: false,
    atomic_write: 0,
};

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Image {
    /// Opens an image. Locks the image and its backing files against other programs.
    ///
    /// # Errors
    /// `Busy` if another program has locked one of the files for writing, or, if the image is opened for writing, for reading; `ReadOnly` if
    /// the image is opened for writing but its format does not support writing; `Unsupported` for features that are refused; `Encrypted`;
    /// `Corrupt` for values that contradict the format; `Io`.
    pub fn open(address: &Address, write: bool) -> Result<Self> {
        Self::open_with(address, ImageOptions { write, compress: false })
    }

    /// Opens an image as [`open`](Self::open) does, with more options.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_with(address: &Address, how: ImageOptions) -> Result<Self> {
        Self::open_as(address, how, true)
    }

    fn open_as(address: &Address, how: ImageOptions, locked: bool) -> Result<Self> {
        let ImageOptions { write, compress } = how;
        if write && address.format != ImageFormat::Qcow2 {
            return Err(Error::new(ErrorKind::ReadOnly, ONLY_READ).at(address));
        }
        let path = &address.path;
        let snapshot = address.snapshot.as_deref();
        if write && snapshot.is_some() {
            return Err(
                Error::read_only("an internal snapshot can be read but not written").at(address)
            );
        }
        let (driver, notices): (Arc<dyn Driver>, _) = match address.format {
            ImageFormat::Qcow2 => {
                let (mut image, notices) = Qcow2::open(path, snapshot, write, locked)?;
                image.compress(compress);
                (Arc::new(image), notices)
            }
            ImageFormat::Vmdk => (Arc::new(Vmdk::open(path, locked)?), Vec::new()),
            ImageFormat::Vhdx => (Arc::new(Vhdx::open(path, locked)?), Vec::new()),
        };
        let size = driver.size() / SECTOR * SECTOR;
        let disk = Disk { driver, base: 0, size };
        let limits = Limits { read_only: disk.driver.is_read_only(), ..LIMITS };
        Ok(Self { address: address.clone(), disk, limits, is_writable: write, notices })
    }

    /// Restricts the image to the part of `size` bytes that begins at byte `base`.
    ///
    /// # Errors
    /// `InvalidInput` for a part that is not within the image, or that does not begin at a sector boundary.
    pub fn part(mut self, base: u64, size: u64) -> Result<Self> {
        let is_within = base.checked_add(size).is_some_and(|end| end <= self.disk.size);
        if !is_within || !base.is_multiple_of(SECTOR) {
            let what = format!(
                "the range of {size} bytes at {base} ends past the image or begins within a sector"
            );
            return Err(Error::invalid(what).at(&self.address));
        }
        self.disk.base += base;
        self.disk.size = size;
        Ok(self)
    }

    /// The notices for the user, one line each.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        self.notices.clone()
    }

    fn context<T>(&self, result: Result<T>, what: &str, at: DevOffset, len: u64) -> Result<T> {
        result.context(|| format!("{what} of {len} bytes at {}", at.0)).at(|| &self.address)
    }
}

#[cold]
#[inline(never)]
fn past(at: DevOffset, len: u64) -> Error {
    Error::invalid(format!(
        "the range of {len} bytes at {} extends beyond the end of the disk",
        at.0
    ))
}

impl Disk {
    /// Converts the position of a range in the part to its position in the image.
    #[inline]
    fn place(&self, at: DevOffset, len: u64) -> Result<u64> {
        if at.0.checked_add(len).is_some_and(|end| end <= self.size) {
            return Ok(self.base + at.0);
        }
        Err(past(at, len))
    }

    #[inline]
    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        self.driver.read(buf, self.place(at, buf.len() as u64)?)
    }

    fn write(&self, bufs: &[IoSlice<'_>], at: DevOffset, durable: bool) -> Result<usize> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        self.driver.write(bufs, self.place(at, len as u64)?)?;
        if durable {
            self.driver.flush()?;
        }
        Ok(len)
    }
}

impl Device for Image {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.disk.size
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        let len = buf.len() as u64;
        self.context(self.disk.read(buf, at), "read", at, len)
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
        _: InRange,
    ) -> Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.context(self.disk.write(bufs, at, fua), "write", at, len).map(drop)
    }

    fn flush(&self) -> Result<()> {
        self.disk.driver.flush().context(|| "flush").at(|| &self.address)
    }

    fn discard_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        let done = self.disk.place(at, len).and_then(|at| self.disk.driver.discard(at, len));
        self.context(done, "discard", at, len)
    }

    fn zero_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        let done = self.disk.place(at, len).and_then(|at| self.disk.driver.write_zeroes(at, len));
        self.context(done, "zeros", at, len)
    }

    fn data_within(&self, at: DevOffset, _: InRange) -> Result<Range<DevOffset>> {
        let Disk { driver, base, size } = &self.disk;
        let place = self.disk.place(at, 0)?;
        let found = driver.data_from(place, base + size);
        let found = self.context(found, "search for data", at, size - at.0)?;
        Ok(DevOffset(found.start - base)..DevOffset(found.end - base))
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        let transfer = ImageTransfer(self.disk.clone());
        Ok(AnyQueue::other(Immediate::new(transfer, options.slots())))
    }
}

#[cold]
#[inline(never)]
fn errno(error: &Error) -> Errno {
    error.errno()
}

/// Transfers data between an image and memory, for the queue of the image.
#[derive(Debug)]
struct ImageTransfer(Disk);

impl Transfer for ImageTransfer {
    #[inline]
    fn read(&mut self, buf: &mut [u8], at: DevOffset, _flags: BioFlags) -> Result<usize, Errno> {
        match self.0.read(buf, at) {
            Ok(()) => Ok(buf.len()),
            Err(error) => Err(errno(&error)),
        }
    }

    fn write(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let durable = flags.contains(BioFlags::DSYNC);
        self.0.write(bufs, at, durable).map_err(|error| error.errno())
    }

    fn flush(&mut self) -> Result<(), Errno> {
        self.0.driver.flush().map_err(|error| error.errno())
    }
}
