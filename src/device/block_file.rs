//! An open block device or image file, with its size and its limits. Every device that is backed by a file contains this type.

use std::fs::File;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::{Errno as OsErrno, ReadWriteFlags};

use super::hold::Hold;
use super::holders;
use super::identity::FileId;
use super::measured::{device_limits, file_limits, queue_of};
use super::nvme::Namespace;
use super::owner;
use super::space::Part;
use super::{Device, DeviceProtection, Limits, Psync, qemu_locks};
use crate::error::{Context, Errno, Error, Result};
use crate::sys::{Buffer, is_read_only};
use crate::units::DevOffset;

/// The size of a page. Every image file is expected to accept page-aligned requests.
pub(super) const PAGE: u32 = 4096;
/// The maximum number of buffers in one request on Linux (`IOV_MAX`). The kernel refuses a request with more buffers.
const MAX_SEGMENTS: usize = 1024;
/// The smallest block size that a volume can have.
const SHORTEST: usize = 512;
/// The length of the bounce buffer for a misaligned read.
const BOUNCE: usize = 256 << 10;

/// The options for opening a device.
#[derive(Clone, Debug)]
pub struct OpenMode {
    /// Requests bypass the page cache (`O_DIRECT`). If the file system of an image refuses direct I/O, requests use the page cache, and
    /// [`BlockFile::notice`] returns a line for the user.
    pub direct: bool,
    /// The open fails if another program has mounted, attached or locked the device. A benchmark clears this field to measure the raw
    /// device beneath an open volume.
    pub exclusive: bool,
    /// The device is opened for reading and writing.
    pub write: bool,
    /// The offset and the length of the part to use, such as a partition of an image. `None` means the whole device.
    pub window: Option<(u64, u64)>,
}

impl Default for OpenMode {
    fn default() -> Self {
        Self { direct: true, exclusive: true, write: false, window: None }
    }
}

/// An open block device or image, with its size and its limits.
#[derive(Debug)]
pub struct BlockFile {
    file: File,
    /// The same image, opened without `O_DIRECT` for metadata and small writes.
    cached: Option<File>,
    path: PathBuf,
    pub(super) id: FileId,
    base: u64,
    size: u64,
    writable: bool,
    is_device: bool,
    /// The locks. This field is declared after `file`, so that the file is closed before the locks are released.
    hold: Arc<Hold>,
    limits: Limits,
    notice: Option<String>,
    protection: Option<DeviceProtection>,
    namespace: Option<Namespace>,
}

impl BlockFile {
    /// Opens and measures a block device, an image file, or an NVMe namespace through its character device (`/dev/ngXnY`).
    ///
    /// # Errors
    /// `Io` with the path; `Busy` if another program owns the device; `ReadOnly` if the device refuses writes and `mode.write` is set;
    /// `InvalidInput` for any other kind of file.
    pub fn open(path: &Path, mode: &OpenMode) -> Result<Self> {
        let stat =
            rustix::fs::stat(path).map_err(|errno| Error::io(errno, path.display().to_string()))?;
        let is_device = match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => true,
            FileType::RegularFile => false,
            FileType::CharacterDevice => return Self::open_namespace(path, mode),
            _ => {
                return Err(Error::invalid(format!(
                    "{}: the path must name a block device or an image file",
                    path.display()
                )));
            }
        };
        if mode.exclusive && mode.write && !is_device {
            owner::refuse_writers(path, &stat)?;
        }
        let (file, direct) = open_file(path, mode, is_device)?;
        owner::refuse_another(path, &stat, file.as_fd())?;
        // Linux opens a read-only device for writing without an error, and refuses each write later (EPERM).
        if is_device && mode.write && is_read_only(file.as_fd()) == Ok(true) {
            return Err(read_only(path));
        }
        let hold = Arc::new(Hold::take(path, &stat, &file, mode.write, mode.exclusive)?);
        if mode.exclusive {
            qemu_locks::refuse_writers_elsewhere(path, &stat)?;
            owner::refuse_attached(path, &stat, file.as_fd(), mode.write)?;
        }
        let whole = if is_device {
            let end = rustix::fs::seek(&file, SeekFrom::End(0));
            end.map_err(|errno| Error::io(errno, path.display().to_string()))?
        } else {
            // Another program may have extended the file before this process got the lock, so this code reads the size again.
            let locked = rustix::fs::fstat(&file);
            locked.map_err(|errno| Error::io(errno, path.display().to_string()))?.st_size as u64
        };
        let (limits, protection) = measure(&file, &stat, direct);
        let (base, size) = window(path, mode, whole)?;
        let block = u64::from(limits.logical_block);
        let mut notice = None;
        if mode.direct && !direct {
            notice = Some(
                "the file system that contains the image refuses O_DIRECT: reads go through the page cache"
                    .to_owned(),
            );
        } else if direct && base % block != 0 {
            // Every direct request would be misaligned, so this code opens the device again without direct I/O. It closes the file first,
            // because a process cannot open a device exclusively twice.
            drop((file, hold));
            let why = format!(
                "offset {base} is not a multiple of the device's block size of {block} bytes"
            );
            return Self::open_buffered(path, mode, &why);
        }
        Ok(Self {
            file,
            cached: None,
            path: path.to_owned(),
            id: FileId::of(&stat),
            base,
            size,
            writable: mode.write,
            is_device,
            hold,
            limits,
            notice,
            protection,
            namespace: None,
        })
    }

    /// Opens the device for requests of any alignment. These requests use the page cache. `why` is the reason that the user's notice gives.
    fn open_buffered(path: &Path, mode: &OpenMode, why: &str) -> Result<Self> {
        let mut opened = Self::open(path, &OpenMode { direct: false, ..mode.clone() })?;
        opened.notice = Some(format!("{why}: reads and writes go through the page cache"));
        Ok(opened)
    }

    /// Opens the device for a volume. The function `block` returns the volume's block size in bytes, or `None` if the device contains no
    /// known volume. If the smallest direct request is larger than a block, all requests use the page cache. If `cached` is set, metadata
    /// and small writes of an image use the page cache. `cached` has no effect on a volume whose blocks are smaller than a page.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub(crate) fn for_blocks(
        path: &Path,
        mode: &OpenMode,
        cached: bool,
        block: impl FnOnce(&dyn Device) -> Option<usize>,
    ) -> Result<Arc<Self>> {
        let mut file = Arc::new(Self::open(path, mode)?);
        let unit = file.limits.logical_block as usize;
        let cached = cached && !file.is_device && mode.window.is_none();
        if !file.limits.direct || file.namespace.is_some() || (unit <= SHORTEST && !cached) {
            return Ok(file);
        }
        let block = block(&Psync::new(Arc::clone(&file)));
        // One page of the page cache may contain both a metadata block and a data block. A direct write changes the data block only on the
        // device. A later writeback of the page would overwrite the new data with old data.
        if cached
            && block.is_some_and(|block| block >= rustix::param::page_size())
            && let Some(file) = Arc::get_mut(&mut file)
        {
            file.cached = file.opened_again();
        }
        let Some(block) = block.filter(|block| *block < unit) else { return Ok(file) };
        // The file is closed before the device is opened again, because a process cannot open a device exclusively twice.
        drop(file);
        let why = format!(
            "the file system's blocks have {block} bytes, but a direct request must have at least {unit}"
        );
        Self::open_buffered(path, mode, &why).map(Arc::new)
    }

    /// Opens the same image without `O_DIRECT`. Returns `None` if the image's path now names another file or no file.
    fn opened_again(&self) -> Option<File> {
        let access = if self.writable { OFlags::RDWR } else { OFlags::RDONLY };
        let again = rustix::fs::open(&self.path, access | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let (one, other) = (rustix::fs::fstat(&self.file).ok()?, rustix::fs::fstat(&again).ok()?);
        let is_same = (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
        is_same.then(|| File::from(again))
    }

    /// Returns the file for metadata and small writes.
    fn metadata_file(&self) -> &File {
        self.cached.as_ref().unwrap_or(&self.file)
    }

    /// Opens an NVMe namespace through its character device. The returned value contains the namespace's block device, but sends requests
    /// as NVMe commands.
    fn open_namespace(path: &Path, mode: &OpenMode) -> Result<Self> {
        let namespace = Namespace::open(path)?;
        let block = Self::open(namespace.block(), mode)?;
        if !block.limits.direct {
            // NVMe commands bypass the page cache, so a buffered open uses the block device.
            return Ok(block);
        }
        namespace.check_metadata(block.protection.as_ref())?;
        let limits = namespace.limits(&block.limits);
        Ok(Self { path: path.to_owned(), limits, namespace: Some(namespace), ..block })
    }

    /// Returns the NVMe namespace if it was opened through its character device and its blocks have no metadata. Its commands transfer no
    /// protection tuples.
    pub(super) fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref().filter(|namespace| namespace.id().metadata == 0)
    }

    /// Returns the NVMe namespace if it was opened through its character device and its blocks have metadata. Its commands transfer
    /// protection tuples.
    pub(super) fn protected_namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref().filter(|namespace| namespace.id().metadata != 0)
    }

    /// The device's own protection information.
    pub(super) fn protection(&self) -> Option<&DeviceProtection> {
        self.protection.as_ref()
    }

    /// The path with which the device was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A line for the user if a requested setting could not be applied.
    #[must_use]
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// The limits of the device.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The size in bytes of the device or of the part in use.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Converts an offset in the part in use to an offset in the file.
    #[inline]
    pub(super) fn absolute(&self, at: DevOffset) -> u64 {
        // If the sum exceeds 64 bits, the function returns the largest offset. The kernel refuses a request at this offset.
        self.base.saturating_add(at.0)
    }

    /// Calls `preadv2` once, at an offset of the file.
    pub(crate) fn read_once(
        &self,
        bufs: &mut [std::io::IoSliceMut<'_>],
        at: u64,
        flags: ReadWriteFlags,
    ) -> rustix::io::Result<usize> {
        rustix::io::preadv2(&self.file, bufs, at, flags)
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the locks on the file, and the record that this process has the image open for writing. A device that outlives this
    /// `BlockFile` keeps a reference to them.
    pub(super) fn hold(&self) -> Arc<Hold> {
        Arc::clone(&self.hold)
    }

    /// Returns the part in use of an image, or `None` for a block device.
    pub(super) fn image_part(&self) -> Option<Part<'_>> {
        let part = Part { file: &self.file, start: self.base, len: self.size };
        (!self.is_device).then_some(part)
    }

    /// Fills `buf` from `at`, with any alignment.
    pub(super) fn read_exact_at(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        let unit = u64::from(self.limits.logical_block);
        let aligned = |value: u64| value.is_multiple_of(unit);
        let memory = buf.as_ptr().addr().is_multiple_of(self.limits.dma_align as usize);
        if self.cached.is_some()
            || !self.limits.direct
            || (memory && aligned(at.0) && aligned(buf.len() as u64))
        {
            let len = buf.len();
            return self.fill(buf, at, len);
        }
        let mut bounce = Buffer::aligned(
            BOUNCE.min((buf.len() + 2 * unit as usize).next_multiple_of(unit as usize)),
        )?;
        let mut done = 0;
        while done < buf.len() {
            let pos = at.0 + done as u64;
            let skip = (pos % unit) as usize;
            let start = pos - skip as u64;
            let want = (skip + buf.len() - done).next_multiple_of(unit as usize).min(bounce.len());
            let count = (want - skip).min(buf.len() - done);
            // The image may end within its last block. A direct read must request the whole block, and is then short.
            self.fill(&mut bounce[..want], DevOffset(start), skip + count)?;
            buf[done..done + count].copy_from_slice(&bounce[skip..skip + count]);
            done += count;
        }
        Ok(())
    }

    /// Writes all of `bufs`, starting at `at`. The caller aligns position, lengths and memory as the limits require.
    pub(super) fn write_all_at(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        fua: bool,
    ) -> Result<()> {
        let flags = if fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let mut pos = self.absolute(at);
        for bufs in bufs.chunks(MAX_SEGMENTS) {
            let mut slices = bufs.to_vec();
            let mut left = &mut slices[..];
            while !left.is_empty() {
                match rustix::io::pwritev2(self.metadata_file(), left, pos, flags) {
                    Ok(0) => return Err(self.failed("write", Errno::EIO, pos)),
                    Ok(count) => {
                        IoSlice::advance_slices(&mut left, count);
                        pos += count as u64;
                    }
                    Err(OsErrno::INTR) => {}
                    Err(errno) => return Err(self.failed("write", errno.into(), pos)),
                }
            }
        }
        Ok(())
    }

    /// Makes all writes durable.
    pub(super) fn flush(&self) -> Result<()> {
        loop {
            match rustix::fs::fdatasync(self.metadata_file()) {
                Err(OsErrno::INTR) => {}
                result => return result.map_err(|errno| self.failed("flush", errno.into(), 0)),
            }
        }
    }

    /// Frees the space of a range. On a block device, the kernel discards the range. In an image, the range becomes a hole.
    pub(super) fn discard(&self, at: DevOffset, len: u64) -> Result<()> {
        let pos = self.absolute(at);
        let result = if self.is_device {
            crate::sys::discard(self.fd(), pos, len)
        } else {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.file, how, pos, len).map_err(Errno::from)
        };
        result.map_err(|errno| self.failed("discard", errno, pos))
    }

    /// Zeroes a range. On a block device, the kernel or the device writes the zeros. In an image, the range becomes a hole.
    pub(super) fn write_zeroes(&self, at: DevOffset, len: u64) -> Result<()> {
        const SECTOR: u64 = 512;
        if !self.is_device {
            return self.discard(at, len);
        }
        let pos = self.absolute(at);
        let zeroed = if pos.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR) {
            crate::sys::zero_out(self.fd(), pos, len)
        } else {
            Err(Errno::EOPNOTSUPP)
        };
        // The kernel refuses a range that begins or ends within a sector of the device. EOPNOTSUPP makes the caller write zeros.
        let zeroed = zeroed.map_err(|errno| match errno {
            Errno::EINVAL => Errno::EOPNOTSUPP,
            errno => errno,
        });
        zeroed.map_err(|errno| self.failed("zeros", errno, pos))
    }

    /// Returns the first range at or after `at` that is not a hole of the image. On a block device, returns the range from `at` to the end.
    pub(super) fn data_from(&self, at: DevOffset) -> Result<Range<DevOffset>> {
        let end = DevOffset(self.size);
        if self.is_device || at == end {
            return Ok(at..end);
        }
        let part = Part { file: &self.file, start: self.base, len: self.size };
        let data = part.data_from(self.absolute(at)).at(|| self.path.display())?;
        Ok(DevOffset(data.start - self.base)..DevOffset(data.end - self.base))
    }

    #[cold]
    fn failed(&self, what: &str, errno: Errno, at: u64) -> Error {
        let path = self.path.display();
        match self.longer_requests().filter(|_| errno == Errno::EINVAL) {
            Some(unit) => {
                let opened = self.limits.logical_block;
                let why = format!(
                    "the smallest direct request has changed from {opened} to {unit} bytes: open the device again"
                );
                Error::io(errno, format!("{what} at {at}: {why}")).at(path)
            }
            None => Error::io(errno, format!("{what} at {at}")).at(path),
        }
    }

    /// Returns the current size of the smallest direct request, if it has grown since the device was opened.
    fn longer_requests(&self) -> Option<u32> {
        let stat = rustix::fs::fstat(&self.file).ok().filter(|_| self.limits.direct)?;
        let limits = match self.is_device {
            true => device_limits(&self.file, &queue_of(stat.st_rdev), true),
            false => file_limits(&self.file, true),
        };
        Some(limits.logical_block).filter(|unit| *unit > self.limits.logical_block)
    }

    /// Reads until at least the first `least` bytes of `buf` are filled. Fails if the file ends before that.
    fn fill(&self, buf: &mut [u8], at: DevOffset, least: usize) -> Result<()> {
        let at = self.absolute(at);
        let fail = |errno, at| self.failed("read", errno, at);
        let mut done = 0;
        while done < least {
            let at = at + done as u64;
            match rustix::io::pread(self.metadata_file(), &mut buf[done..], at) {
                Ok(0) => {
                    return Err(
                        fail(Errno::EIO, at).context("the device has shrunk since it was opened")
                    );
                }
                Ok(count) => done += count,
                Err(OsErrno::INTR) => {}
                Err(errno) => return Err(fail(errno.into(), at)),
            }
        }
        Ok(())
    }
}

/// Returns the limits of an open device or image, and the device's own protection information.
fn measure(file: &File, stat: &Stat, direct: bool) -> (Limits, Option<DeviceProtection>) {
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return (file_limits(file, direct), None);
    }
    let queue = queue_of(stat.st_rdev);
    let protection = DeviceProtection::of(file.as_fd(), &queue);
    let limits = device_limits(file, &queue, direct);
    // If the device has protection information, the kernel computes tuples from the caller's memory, so this memory must not change during
    // a write. `stable_writes` in sysfs does not cover this case.
    let stable_writes = limits.stable_writes || protection.is_some();
    (Limits { stable_writes, ..limits }, protection)
}

/// Returns the start and the length of the part that `mode` selects. Without a selection, the part is the whole file of `whole` bytes.
fn window(path: &Path, mode: &OpenMode, whole: u64) -> Result<(u64, u64)> {
    let (base, size) = mode.window.unwrap_or((0, whole));
    if base.checked_add(size).is_none_or(|end| end > whole) {
        let end = base.saturating_add(size);
        return Err(Error::invalid(format!(
            "{}: the byte range {base}..{end} ends past the device's size of {whole} bytes",
            path.display()
        )));
    }
    Ok((base, size))
}

fn open_file(path: &Path, mode: &OpenMode, is_device: bool) -> Result<(File, bool)> {
    let mut flags = OFlags::CLOEXEC | if mode.write { OFlags::RDWR } else { OFlags::RDONLY };
    if is_device && mode.exclusive {
        flags |= OFlags::EXCL;
    }
    let open = |flags| open_patiently(path, flags);
    let failed = |errno| match errno {
        OsErrno::BUSY => holders::in_use(path),
        OsErrno::ROFS if is_device => read_only(path),
        errno => Error::io(errno, path.display().to_string()),
    };
    if mode.direct {
        match open(flags | OFlags::DIRECT) {
            Ok(file) => return Ok((file, true)),
            Err(OsErrno::INVAL) if !is_device => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    open(flags).map(|file| (file, false)).map_err(failed)
}

/// Opens a file. An exclusive open is retried for a short time, because the kernel removes the io_uring rings of a process some time after
/// the process has ended. Until then, the ended process still holds the device open.
fn open_patiently(path: &Path, flags: OFlags) -> Result<File, OsErrno> {
    let open = || rustix::fs::open(path, flags, Mode::empty());
    let in_use = |opened: &Result<_, _>| {
        flags.contains(OFlags::EXCL) && matches!(opened, Err(OsErrno::BUSY))
    };
    owner::patiently(open, in_use).map(File::from)
}

fn read_only(path: &Path) -> Error {
    Error::read_only("the device is read-only").at(path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates an image in a temporary directory. The value of each byte depends on its position.
    fn image(len: usize) -> (tempfile::TempDir, PathBuf, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let content: Vec<u8> = (0..len).map(|at| (at / 7) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        (dir, path, content)
    }

    #[test]
    fn a_part_that_begins_within_a_sector_is_opened_through_the_page_cache() {
        let (_dir, path, content) = image(20000);
        for write in [false, true] {
            let window = Some((100, 10000));
            let file = BlockFile::open(&path, &OpenMode { write, window, ..OpenMode::default() });
            let file = file.unwrap_or_else(|error| panic!("write {write}: {error}"));
            assert!(file.notice().is_some() || !file.limits().direct);
            let mut bytes = [0; 5000];
            file.read_exact_at(&mut bytes, DevOffset(5000)).unwrap();
            assert_eq!(bytes, content[5100..10100]);
        }
    }

    #[test]
    fn an_image_of_a_memory_file_system_may_have_small_blocks() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
        let path = dir.path().join("image");
        std::fs::write(&path, [7; 8192]).unwrap();
        let file = BlockFile::open(&path, &OpenMode::default()).unwrap();
        assert!(file.limits().logical_block <= 1024, "{:?}", file.limits());
        let mut bytes = [0; 1024];
        file.read_exact_at(&mut bytes, DevOffset(1024)).unwrap();
        assert_eq!(bytes, [7; 1024]);
    }

    #[test]
    fn the_end_of_an_image_within_a_sector_can_be_read() {
        let (_dir, path, content) = image(10001);
        let file = BlockFile::open(&path, &OpenMode::default()).unwrap();
        for start in [0, 5, 9000, 9999, 10000] {
            let mut bytes = vec![0; 10001 - start];
            file.read_exact_at(&mut bytes, DevOffset(start as u64)).unwrap();
            assert_eq!(bytes, content[start..], "from {start}");
        }
    }
}
