//! A block device or an image file, opened and measured: what the devices of this layer have in common.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno as OsErrno;

use super::Limits;
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::sys::Buffer;
use crate::units::DevOffset;

/// What an image file is taken to accept where the kernel says nothing: pages.
const PAGE: u32 = 4096;
/// The largest single request to an image file.
const FILE_MAX_TRANSFER: u32 = 1 << 20;
/// Where the pieces of a misaligned read are gathered.
const BOUNCE: usize = 256 << 10;

/// How to open a device.
#[derive(Clone, Debug)]
pub struct OpenMode {
    /// Go around the page cache. Falls back to the page cache, with [`BlockFile::notice`], where the file system below an
    /// image refuses.
    pub direct: bool,
    /// Refuse when someone else has it mounted, attached or locked. Off for raw measurements beside a volume.
    pub exclusive: bool,
    /// Open for writing too.
    pub write: bool,
    /// First byte and length of the part to use: a partition of an image. `None` is the whole.
    pub window: Option<(u64, u64)>,
}

impl Default for OpenMode {
    fn default() -> Self {
        Self { direct: true, exclusive: true, write: false, window: None }
    }
}

/// An open block device or image, its size and its limits.
#[derive(Debug)]
pub struct BlockFile {
    file: File,
    path: PathBuf,
    base: u64,
    size: u64,
    writable: bool,
    limits: Limits,
    notice: Option<String>,
}

impl BlockFile {
    /// Opens and measures a block device or an image file.
    ///
    /// # Errors
    /// `Io` with the path; `Busy` where someone else owns it; `InvalidInput` for anything but a block device or a regular file.
    pub fn open(path: &Path, mode: &OpenMode) -> Result<Self> {
        let stat =
            rustix::fs::stat(path).map_err(|errno| Error::io(errno, path.display().to_string()))?;
        let is_device = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::BlockDevice => true,
            rustix::fs::FileType::RegularFile => false,
            _ => {
                return Err(Error::invalid(format!(
                    "{}: neither a block device nor an image file",
                    path.display()
                )));
            }
        };
        let (file, direct) = open_file(path, mode, is_device)?;
        if mode.exclusive && !is_device {
            lock_image(path, &file, mode.write, &stat)?;
        }
        let io = |errno| Error::io(errno, path.display().to_string());
        let whole = if is_device {
            rustix::fs::seek(&file, SeekFrom::End(0)).map_err(io)?
        } else {
            stat.st_size as u64
        };
        let limits = if is_device {
            device_limits(&file, stat.st_rdev, direct)
        } else {
            file_limits(&file, direct)
        };

        let (base, size) = mode.window.unwrap_or((0, whole));
        if base.checked_add(size).is_none_or(|end| end > whole) {
            let end = base.saturating_add(size);
            return Err(Error::invalid(format!(
                "{}: the part {base}..{end} exceeds its {whole} bytes",
                path.display()
            )));
        }
        let block = u64::from(limits.logical_block);
        let mut notice = None;
        if mode.direct && !direct {
            notice = Some(
                "the file system below refuses O_DIRECT: reads go through the page cache"
                    .to_owned(),
            );
        } else if direct && base % block != 0 {
            // Every request would be misaligned for the device.
            let buffered = OpenMode { direct: false, ..mode.clone() };
            let mut opened = Self::open(path, &buffered)?;
            opened.notice = Some(format!(
                "offset {base} is no multiple of {block} bytes: reads go through the page cache"
            ));
            return Ok(opened);
        }
        Ok(Self { file, path: path.to_owned(), base, size, writable: mode.write, limits, notice })
    }

    /// Its path, as given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What did not go as asked, in one line for the user.
    #[must_use]
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// What it can take.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Its size in bytes, or that of the part in use.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The offset in the file of an offset in the part in use.
    #[inline]
    pub(super) fn absolute(&self, at: DevOffset) -> u64 {
        self.base + at.0
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Fills `buf` from `at`, at any alignment.
    pub(super) fn read_exact_at(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        let end = at.0.checked_add(buf.len() as u64).filter(|end| *end <= self.size);
        if end.is_none() {
            let (len, size) = (buf.len(), self.size);
            return Err(Error::invalid(format!(
                "read of {len} bytes at {at} behind the device's end at {size}"
            )));
        }
        let unit = u64::from(self.limits.logical_block);
        let aligned = |value: u64| value.is_multiple_of(unit);
        let memory = buf.as_ptr().addr().is_multiple_of(self.limits.dma_align as usize);
        if !self.limits.direct || (memory && aligned(at.0) && aligned(buf.len() as u64)) {
            return self.fill(buf, at);
        }
        let mut bounce = Buffer::aligned(
            BOUNCE.min((buf.len() + 2 * unit as usize).next_multiple_of(unit as usize)),
        )?;
        let mut done = 0;
        while done < buf.len() {
            let pos = at.0 + done as u64;
            let skip = (pos % unit) as usize;
            let start = pos - skip as u64;
            // The last block of an image may be cut short by the image's end.
            let want = (skip + buf.len() - done).next_multiple_of(unit as usize).min(bounce.len());
            let want = want.min((self.size - start) as usize);
            self.fill(&mut bounce[..want], DevOffset(start))?;
            let count = (want - skip).min(buf.len() - done);
            buf[done..done + count].copy_from_slice(&bounce[skip..skip + count]);
            done += count;
        }
        Ok(())
    }

    fn fill(&self, mut buf: &mut [u8], at: DevOffset) -> Result<()> {
        let mut at = self.absolute(at);
        let fail = |errno: Errno, at: u64| {
            Error::io(errno, format!("{}: read at {at}", self.path.display()))
        };
        while !buf.is_empty() {
            match rustix::io::pread(&self.file, &mut *buf, at) {
                Ok(0) => return Err(fail(Errno::EIO, at).context("the device ended early")),
                Ok(count) => {
                    buf = &mut buf[count..];
                    at += count as u64;
                }
                Err(OsErrno::INTR) => {}
                Err(errno) => return Err(fail(errno.into(), at)),
            }
        }
        Ok(())
    }
}

fn open_file(path: &Path, mode: &OpenMode, is_device: bool) -> Result<(File, bool)> {
    let mut flags = OFlags::CLOEXEC | if mode.write { OFlags::RDWR } else { OFlags::RDONLY };
    if is_device && mode.exclusive {
        flags |= OFlags::EXCL;
    }
    let open = |flags| open_patiently(path, flags);
    let failed = |errno| match errno {
        OsErrno::BUSY => Error::new(
            ErrorKind::Busy,
            format!("{}: in use: mounted, or opened by another program", path.display()),
        ),
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

/// Opens; where that needs the device for itself, gives a program that has just died a moment to let go of it: the kernel
/// takes the rings of a dead process down after its end.
fn open_patiently(path: &Path, flags: OFlags) -> Result<File, OsErrno> {
    const ATTEMPTS: u32 = 20;
    for _ in 1..ATTEMPTS {
        match rustix::fs::open(path, flags, Mode::empty()) {
            Err(OsErrno::BUSY) if flags.contains(OFlags::EXCL) => {
                std::thread::park_timeout(Duration::from_millis(10));
            }
            result => return result.map(File::from),
        }
    }
    rustix::fs::open(path, flags, Mode::empty()).map(File::from)
}

/// Locks an image against other openers, and refuses one that a loop device serves.
fn lock_image(path: &Path, file: &File, write: bool, stat: &rustix::fs::Stat) -> Result<()> {
    let busy =
        |what: String| Err(Error::new(ErrorKind::Busy, format!("{}: {what}", path.display())));
    let operation = if write {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => {}
        Err(OsErrno::AGAIN) => return busy("locked by another program".to_owned()),
        Err(errno) => return Err(Error::io(errno, format!("{}: lock", path.display()))),
    }
    for entry in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let Ok(backing) = std::fs::read_to_string(entry.path().join("loop/backing_file")) else {
            continue;
        };
        let Ok(other) = rustix::fs::stat(backing.trim_end_matches('\n')) else { continue };
        if (other.st_dev, other.st_ino) == (stat.st_dev, stat.st_ino) {
            return busy(format!("attached to /dev/{}", entry.file_name().to_string_lossy()));
        }
    }
    Ok(())
}

fn device_limits(file: &File, rdev: u64, direct: bool) -> Limits {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let own = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/queue"));
    let queue =
        if own.exists() { own } else { format!("/sys/dev/block/{major}:{minor}/../queue").into() };
    let text = |name: &str| std::fs::read_to_string(queue.join(name)).unwrap_or_default();
    let number = |name: &str| text(name).trim().parse::<u32>().ok();
    let logical_block = number("logical_block_size").unwrap_or(512);
    Limits {
        logical_block,
        physical_block: number("physical_block_size").unwrap_or(logical_block),
        // sysfs gives the mask of the address bits that must be zero.
        dma_align: number("dma_alignment").map_or(logical_block, |mask| mask + 1),
        max_transfer: number("max_sectors_kb")
            .map_or(FILE_MAX_TRANSFER, |kib| kib.saturating_mul(1024))
            .max(PAGE),
        fua: number("fua") == Some(1),
        volatile_cache: text("write_cache").trim() == "write back",
        stable_writes: number("stable_writes") == Some(1),
        nowait: knows_nowait(file, logical_block),
        poll: number("io_poll") == Some(1),
        direct,
    }
}

fn file_limits(file: &File, direct: bool) -> Limits {
    let (mut logical_block, mut dma_align) = if direct { (PAGE, PAGE) } else { (1, 1) };
    if direct
        && let Ok(statx) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && statx.stx_dio_offset_align != 0
    {
        logical_block = statx.stx_dio_offset_align;
        dma_align = statx.stx_dio_mem_align;
    }
    Limits {
        logical_block,
        physical_block: PAGE,
        dma_align,
        max_transfer: FILE_MAX_TRANSFER,
        fua: false,
        volatile_cache: true,
        stable_writes: false,
        nowait: knows_nowait(file, logical_block),
        poll: false,
        direct,
    }
}

/// Asks with a read of one block: a device or file system without NOWAIT says EOPNOTSUPP.
fn knows_nowait(file: &File, logical_block: u32) -> bool {
    let Ok(mut probe) = Buffer::aligned(logical_block as usize) else { return false };
    let mut slices = [std::io::IoSliceMut::new(&mut probe)];
    let result = rustix::io::preadv2(file, &mut slices, 0, rustix::io::ReadWriteFlags::NOWAIT);
    !matches!(result, Err(OsErrno::OPNOTSUPP))
}
