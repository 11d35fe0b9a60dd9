//! A file that is open for direct I/O: in a volume, or in a file system that the kernel has mounted.

mod live;
mod of_host;
mod of_volume;
mod options;

use std::io::{IoSlice, IoSliceMut};

pub(crate) use self::live::LiveFile;
pub(crate) use self::of_host::HostHandle;
pub(crate) use self::of_volume::VolumeFile;
pub use self::options::FileOptions;

use crate::bio::{BioOp, Buffer, Memory};
use crate::dio::{DioFlags, Rejected, Request, Source};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::host::HostReport;
use crate::iomap::{self, Iomap, MapFile, Mappings, WriteAt};
use crate::queue::Queue;
use crate::units::{FilePos, InodeNo};

/// The length of the pieces in which a whole file is read.
const READ_PIECE: u64 = 1 << 20;

/// A file that is open for direct I/O. Threads can share it; each uses its own [`Queue`]. It is cheap to clone.
#[derive(Clone)]
pub struct File {
    backing: Backing,
}

/// The owner of the file's metadata. A request matches it once at the top. The tag is a separate byte: reading it from the niche of a field
/// would cost each request four more instructions.
#[derive(Clone)]
#[repr(u8)]
enum Backing {
    Volume(VolumeFile),
    /// A file of a volume that is open for writing.
    Live(LiveFile),
    Host(HostHandle),
}

impl From<VolumeFile> for File {
    fn from(file: VolumeFile) -> Self {
        Self { backing: Backing::Volume(file) }
    }
}

impl From<LiveFile> for File {
    fn from(file: LiveFile) -> Self {
        Self { backing: Backing::Live(file) }
    }
}

impl From<HostHandle> for File {
    fn from(file: HostHandle) -> Self {
        Self { backing: Backing::Host(file) }
    }
}

impl File {
    /// The inode number.
    #[must_use]
    pub fn inode(&self) -> InodeNo {
        match &self.backing {
            Backing::Volume(file) => file.inode().number(),
            Backing::Live(file) => file.number(),
            Backing::Host(file) => file.inode(),
        }
    }

    /// The size in bytes. The size of a host file can change while the kernel serves it; it is 0 if the kernel does not report it.
    #[must_use]
    pub fn size(&self) -> u64 {
        match &self.backing {
            Backing::Volume(file) => file.inode().size(),
            Backing::Live(file) => file.size(),
            Backing::Host(file) => file.size(),
        }
    }

    /// Whether every write by this handle goes to the end of the file.
    #[must_use]
    pub fn appends(&self) -> bool {
        matches!(&self.backing, Backing::Live(file) if file.appends())
    }

    /// The server of a host file with the reason, and the devices beneath it; `None` for a volume's file.
    #[must_use]
    pub fn host(&self) -> Option<HostReport> {
        match &self.backing {
            Backing::Volume(_) | Backing::Live(_) => None,
            Backing::Host(file) => Some(file.report()),
        }
    }

    /// Reads at a position and waits. Returns the number of bytes read: fewer than the length of `buf` only at the end of the file, and 0
    /// past the end.
    ///
    /// # Errors
    /// `InvalidInput` if a strict handle gets a request that `O_DIRECT` refuses, or the queue belongs to another volume or host; `Io` with
    /// the device's errno; `Corrupt` from the file's map.
    #[inline(always)]
    pub fn read_at(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        pos: impl Into<FilePos>,
    ) -> Result<usize> {
        self.read_at_with(queue, buf, pos, DioFlags::empty())
    }

    /// Reads at a position with flags and waits.
    ///
    /// # Errors
    /// The errors of [`read_at`](Self::read_at), and `WouldBlock` with [`DioFlags::NOWAIT`].
    #[inline(always)]
    pub fn read_at_with(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        pos: impl Into<FilePos>,
        flags: DioFlags,
    ) -> Result<usize> {
        let request = Request::read(pos.into(), buf.len(), flags);
        match &self.backing {
            Backing::Volume(file) => file.read_at(queue, buf, request),
            Backing::Live(file) => file.read_at(queue, buf, request),
            Backing::Host(file) => file.read_at(queue, buf, request),
        }
    }

    /// Reads all of `buf` at a position and waits.
    ///
    /// # Errors
    /// The errors of [`read_at`](Self::read_at); `Io` with ENODATA if the file ends before the last byte.
    pub fn read_exact_at(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        pos: impl Into<FilePos>,
    ) -> Result<()> {
        let pos = pos.into();
        let count = self.read_at(queue, buf, pos)?;
        if count == buf.len() {
            return Ok(());
        }
        let what = format!("the file ends after {count} of {} bytes at {pos}", buf.len());
        Err(Error::io(Errno::ENODATA, what))
    }

    /// Reads all of the file.
    ///
    /// # Errors
    /// The errors of [`read_at`](Self::read_at); `LimitExceeded` if memory does not suffice.
    pub fn read_all(&self, queue: &mut Queue) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        let no_memory = |len: u64| {
            Error::new(
                ErrorKind::LimitExceeded,
                format!("cannot allocate {len} bytes for the content"),
            )
        };
        // All memory is allocated first, so that a file larger than memory is refused before it is read.
        usize::try_from(self.size())
            .ok()
            .and_then(|size| content.try_reserve_exact(size.saturating_add(1)).ok())
            .ok_or_else(|| no_memory(self.size()))?;
        loop {
            // Reading one more byte than the size shows whether the file has grown.
            let left = self.size().saturating_sub(content.len() as u64).saturating_add(1);
            let piece = left.min(READ_PIECE) as usize;
            let at = content.len();
            let room = content.try_reserve(piece);
            room.map_err(|error| no_memory((at + piece) as u64).source(error))?;
            content.resize(at + piece, 0);
            let count = self.read_at(queue, &mut content[at..], at as u64)?;
            content.truncate(at + count);
            if count < piece {
                return Ok(content);
            }
        }
    }

    /// Reads like [`read_at_with`](Self::read_at_with), into several buffers, which are filled one after the other.
    ///
    /// # Errors
    /// The errors of [`read_at_with`](Self::read_at_with).
    pub fn read_vectored_at(
        &self,
        queue: &mut Queue,
        bufs: &mut [IoSliceMut<'_>],
        pos: impl Into<FilePos>,
        flags: DioFlags,
    ) -> Result<usize> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        let request = Request::read(pos.into(), len, flags);
        match &self.backing {
            Backing::Volume(file) => file.read_vectored_at(queue, bufs, request),
            Backing::Live(file) => file.read_vectored_at(queue, bufs, request),
            Backing::Host(file) => file.read_vectored_at(queue, bufs, request),
        }
    }

    /// Starts a read into memory that moves into the queue and comes back with the completion, which contains `token`. The call may wait
    /// for a free slot, unless the flags contain NOWAIT.
    ///
    /// # Errors
    /// The errors of [`read_at_with`](Self::read_at_with), with the memory. Errors of the device come with the completion.
    #[inline(always)]
    pub fn submit_read(
        &self,
        queue: &mut Queue,
        memory: impl Into<Memory>,
        pos: impl Into<FilePos>,
        flags: DioFlags,
        token: u64,
    ) -> Result<(), Box<Rejected>> {
        let pos = pos.into();
        // Each use makes its own request, because a request that is lent to a function must be in memory on all paths.
        let request = || Request::queued(BioOp::Read, pos, flags, token);
        match &self.backing {
            Backing::Volume(file) => file.submit_read(queue, memory, request()),
            Backing::Live(file) => file.submit_read(queue, memory.into(), request()),
            Backing::Host(file) => file.submit_read(queue, memory.into(), request()),
        }
    }

    /// Writes at a position and waits. Returns the number of bytes written: fewer than the length of `buf` only if there was no more space.
    /// With [`DioFlags::WHOLE`] a lack of space is an error.
    ///
    /// Acknowledged data are durable after the next [`sync`](Self::sync), or with [`DioFlags::DSYNC`] when the write returns.
    ///
    /// # Errors
    /// The errors of [`read_at`](Self::read_at); `NoSpace`, `Quota`, `FileTooLarge`, `NotPermitted` (immutable, or append-only and not at
    /// the end), `ReadOnly` for host files and volumes that are not open for writing. A part may have been written.
    #[inline(always)]
    pub fn write_at(
        &self,
        queue: &mut Queue,
        buf: &[u8],
        pos: impl Into<FilePos>,
    ) -> Result<usize> {
        self.write_at_with(queue, buf, pos, DioFlags::empty())
    }

    /// Writes at a position with flags and waits.
    ///
    /// # Errors
    /// The errors of [`write_at`](Self::write_at), and `WouldBlock` with [`DioFlags::NOWAIT`]: the write has had no effect then.
    #[inline(always)]
    pub fn write_at_with(
        &self,
        queue: &mut Queue,
        buf: &[u8],
        pos: impl Into<FilePos>,
        flags: DioFlags,
    ) -> Result<usize> {
        let request = Request::write(pos.into(), buf.len(), flags);
        match &self.backing {
            Backing::Live(file) => file.write_at(queue, buf, request),
            _ => Err(self.read_only()),
        }
    }

    /// Writes a [`Buffer`] at a position with flags and waits. Safe code cannot change the buffer during the call, so a device that
    /// computes over the data needs no copy ([`StablePages::Owned`](crate::StablePages::Owned)), as it does for lent bytes.
    ///
    /// # Errors
    /// The errors of [`write_at_with`](Self::write_at_with).
    #[inline(always)]
    pub fn write_buffer_at(
        &self,
        queue: &mut Queue,
        buffer: &Buffer,
        pos: impl Into<FilePos>,
        flags: DioFlags,
    ) -> Result<usize> {
        let request = Request::write(pos.into(), buffer.len(), flags);
        match &self.backing {
            Backing::Live(file) => {
                file.write_at(queue, buffer, Request { source: Source::Buffer, ..request })
            }
            _ => Err(self.read_only()),
        }
    }

    /// Writes all of `buf` at a position and waits. Acknowledged data are durable after the next [`sync`](Self::sync).
    ///
    /// # Errors
    /// The errors of [`write_at`](Self::write_at); `NoSpace` if only a part was written.
    pub fn write_all_at(
        &self,
        queue: &mut Queue,
        buf: &[u8],
        pos: impl Into<FilePos>,
    ) -> Result<()> {
        let count = self.write_at(queue, buf, pos)?;
        if count == buf.len() {
            return Ok(());
        }
        let what = format!("only {count} of {} bytes were written", buf.len());
        Err(Error::new(ErrorKind::NoSpace, what))
    }

    /// Writes like [`write_at_with`](Self::write_at_with), from several buffers in order.
    ///
    /// # Errors
    /// The errors of [`write_at_with`](Self::write_at_with).
    pub fn write_vectored_at(
        &self,
        queue: &mut Queue,
        bufs: &[IoSlice<'_>],
        pos: impl Into<FilePos>,
        flags: DioFlags,
    ) -> Result<usize> {
        match &self.backing {
            Backing::Live(file) => file.write_lent(queue, bufs, pos.into(), (flags, Source::Lent)),
            _ => Err(self.read_only()),
        }
    }

    /// Writes all of `buf` at the end of the file, and returns the position. Concurrent appends get consecutive positions.
    ///
    /// # Errors
    /// The errors of [`write_at_with`](Self::write_at_with). If a part was written, the file has grown by that part.
    pub fn append(&self, queue: &mut Queue, buf: &[u8], flags: DioFlags) -> Result<FilePos> {
        match &self.backing {
            Backing::Live(file) => file.append(queue, &[IoSlice::new(buf)], flags),
            _ => Err(self.read_only()),
        }
    }

    /// Starts a write of memory that moves into the queue and comes back with the completion, which contains `token`. The call first makes
    /// the changes of metadata that the write needs, and may wait for them.
    ///
    /// # Errors
    /// The errors of [`write_at_with`](Self::write_at_with), with the memory. Errors of the device come with the completion.
    #[inline(always)]
    pub fn submit_write(
        &self,
        queue: &mut Queue,
        memory: impl Into<Memory>,
        pos: impl Into<FilePos>,
        flags: DioFlags,
        token: u64,
    ) -> Result<(), Box<Rejected>> {
        let memory = memory.into();
        let request = Request::queued(BioOp::Write, pos.into(), flags, token);
        match &self.backing {
            Backing::Live(file) => file.submit_write(queue, memory, request),
            _ => Err(Rejected::boxed(self.read_only(), memory)),
        }
    }

    /// Starts an append; returns its position. The size changes when the append is complete. If a later append completes first, the range
    /// of the earlier append reads as zeros until that is complete.
    ///
    /// # Errors
    /// The errors of [`submit_write`](Self::submit_write).
    pub fn submit_append(
        &self,
        queue: &mut Queue,
        memory: impl Into<Memory>,
        flags: DioFlags,
        token: u64,
    ) -> Result<FilePos, Box<Rejected>> {
        let memory = memory.into();
        let request = Request::write(FilePos(0), memory.len(), flags).token(token);
        match &self.backing {
            Backing::Live(file) => file.submit_somewhere(queue, memory, WriteAt::End, request),
            _ => Err(Rejected::boxed(self.read_only(), memory)),
        }
    }

    /// Makes the file's completed writes and its metadata durable (`fsync`). Threads that sync at the same time share a commit.
    ///
    /// # Errors
    /// `Io`; `NoSpace` if an extent must be split; `ReadOnly` after an earlier error.
    pub fn sync(&self, queue: &mut Queue) -> Result<()> {
        match &self.backing {
            Backing::Live(file) => file.sync(queue, false),
            _ => Ok(()),
        }
    }

    /// Makes the file's completed writes durable, with only the metadata that are needed to read them (`fdatasync`).
    ///
    /// # Errors
    /// The errors of [`sync`](Self::sync).
    pub fn sync_data(&self, queue: &mut Queue) -> Result<()> {
        match &self.backing {
            Backing::Live(file) => file.sync(queue, true),
            _ => Ok(()),
        }
    }

    #[cold]
    fn read_only(&self) -> Error {
        match &self.backing {
            Backing::Host(_) => Error::read_only("host files can only be read"),
            _ => Error::read_only("the volume was opened read-only"),
        }
    }

    /// The mapping at a position, of at least one byte. A host file has a mapping only while it is read raw.
    ///
    /// # Errors
    /// The errors of reading and checking the metadata; `Unsupported`, with the reason, if the kernel serves a host file.
    pub fn map(&self, pos: impl Into<FilePos>, len: u64) -> Result<Iomap> {
        match &self.backing {
            Backing::Volume(file) => file.inode().map(pos.into(), len),
            Backing::Live(file) => file.map(pos.into()),
            Backing::Host(file) => file.map()?.map(pos.into(), len),
        }
    }

    /// All mappings from the start to the size, including holes.
    pub fn mappings(&self) -> impl Iterator<Item = Result<Iomap>> {
        Mappings::new(self, FilePos(0), FilePos(self.size()))
    }

    /// The first position from `pos` on that contains data (`SEEK_DATA`), or `None`.
    ///
    /// # Errors
    /// The errors of reading the map.
    pub fn seek_data(&self, pos: impl Into<FilePos>) -> Result<Option<FilePos>> {
        iomap::seek_data(self, pos.into(), self.size())
    }

    /// The first position from `pos` on that is a hole (`SEEK_HOLE`): at most the size, and `None` at or beyond the size.
    ///
    /// # Errors
    /// The errors of reading the map.
    pub fn seek_hole(&self, pos: impl Into<FilePos>) -> Result<Option<FilePos>> {
        iomap::seek_hole(self, pos.into(), self.size())
    }
}

impl MapFile for File {
    fn map(&self, pos: FilePos, len: u64) -> Result<Iomap> {
        Self::map(self, pos, len)
    }

    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        match &self.backing {
            Backing::Volume(file) => file.inode().map_resident(pos),
            Backing::Live(_) => None,
            Backing::Host(file) => file.map().ok()?.map_resident(pos),
        }
    }

    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        match &self.backing {
            Backing::Volume(file) => file.inode().read_inline(buf, pos),
            Backing::Live(file) => file.read_inline(buf, pos),
            Backing::Host(_) => {
                Err(Error::invalid("a file of a mounted file system has no inline data"))
            }
        }
    }
}
