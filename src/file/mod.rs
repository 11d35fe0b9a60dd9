//! A file that is open for direct I/O. The file is in a volume, or in a file system that the kernel has mounted.

mod live;
mod of_host;
mod of_volume;
mod options;
mod read_many;

use std::io::{IoSlice, IoSliceMut};

pub(crate) use self::live::LiveFile;
pub(crate) use self::of_host::HostHandle;
pub(crate) use self::of_volume::VolumeFile;
pub use self::options::FileOptions;
pub use self::read_many::ReadAt;

use crate::bio::{BioOp, Buffer, Memory};
use crate::dio::{DioFlags, Rejected, Request, Source};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::host::HostReport;
use crate::iomap::{self, Iomap, MapFile, Mappings, WriteAt};
use crate::queue::Queue;
use crate::units::{FilePos, InodeNo};

/// The number of bytes that [`File::read_all`] reads in one step.
const READ_PIECE: u64 = 1 << 20;

/// A file that is open for direct I/O. Several threads can use one file. Each thread needs its own [`Queue`]. A clone costs little.
#[derive(Clone)]
pub struct File {
    backing: Backing,
}

/// The kind of the file. Each request examines the kind only once, at its start. `repr(u8)` makes the discriminant a separate byte. Without
/// it, the compiler would store the discriminant in unused bits of a field, and each request would need four more instructions.
#[derive(Clone)]
#[repr(u8)]
enum Backing {
    Volume(VolumeFile),
    /// A file of a volume that is open for writing.
    Live(LiveFile),
    Host(HostHandle),
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let backing = match &self.backing {
            Backing::Volume(_) => "Volume",
            Backing::Live(_) => "Live",
            Backing::Host(_) => "Host",
        };
        f.debug_struct("File").field("backing", &backing).field("inode", &self.inode().0).finish()
    }
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

    /// The number of kinds of files.
    #[doc(hidden)] // For bindings of other languages.
    pub const KINDS: usize = 3;

    /// The kind of the file: a number less than [`KINDS`](Self::KINDS). It never changes. See also `Queue::for_kind`.
    #[doc(hidden)] // For bindings of other languages.
    #[inline(always)]
    #[must_use]
    pub fn kind(&self) -> usize {
        match &self.backing {
            Backing::Volume(_) => 0,
            Backing::Live(_) => 1,
            Backing::Host(_) => 2,
        }
    }

    /// The size in bytes. The size of a host file can change while the kernel serves the file. If the kernel does not report the size, the
    /// result is 0.
    #[must_use]
    pub fn size(&self) -> u64 {
        match &self.backing {
            Backing::Volume(file) => file.inode().size(),
            Backing::Live(file) => file.size(),
            Backing::Host(file) => file.size(),
        }
    }

    /// Whether every write through this handle is an append (`O_APPEND`).
    #[must_use]
    pub fn appends(&self) -> bool {
        matches!(&self.backing, Backing::Live(file) if file.appends())
    }

    /// Reports whether the device or the kernel serves the reads of a host file. The report contains the reason and the devices below the
    /// file. `None` for a file of a volume.
    #[must_use]
    pub fn host(&self) -> Option<HostReport> {
        match &self.backing {
            Backing::Volume(_) | Backing::Live(_) => None,
            Backing::Host(file) => Some(file.report()),
        }
    }

    /// Reads at a position and waits. Returns the number of bytes read. A read is shorter than `buf` only at the end of the file. A read
    /// past the end of the file returns 0.
    ///
    /// # Errors
    /// `InvalidInput` if the handle is [direct](FileOptions::direct) and the request is misaligned, or if the queue belongs to another
    /// volume or host; `Io` with the device's errno; `Corrupt` if the file's map is damaged.
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
    /// The errors of [`read_at`](Self::read_at); `WouldBlock` if the request has [`DioFlags::NOWAIT`] and would have to wait.
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
    /// The errors of [`read_at`](Self::read_at); `Io` with ENODATA if the file ends before `buf` is full.
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
    /// The errors of [`read_at`](Self::read_at); `LimitExceeded` if there is not enough memory for the content.
    pub fn read_all(&self, queue: &mut Queue) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        let no_memory = |len: u64| {
            Error::new(
                ErrorKind::LimitExceeded,
                format!("cannot allocate {len} bytes for the content"),
            )
        };
        // The memory is allocated before the first read. If there is too little memory, the call fails at once.
        usize::try_from(self.size())
            .ok()
            .and_then(|size| content.try_reserve_exact(size.saturating_add(1)).ok())
            .ok_or_else(|| no_memory(self.size()))?;
        loop {
            // The read requests one byte more than the size, to detect that the file has grown.
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

    /// Reads into several buffers, which are filled in order. The rules of [`read_at_with`](Self::read_at_with) apply.
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

    /// Starts a read. The memory moves into the queue. The completion returns the memory together with `token`. If no slot is free, the
    /// call waits for a slot. With [`DioFlags::NOWAIT`] the call fails instead.
    ///
    /// # Errors
    /// The errors of [`read_at_with`](Self::read_at_with). The error contains the memory. Errors of the device are in the completion.
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
        // Each arm creates its own request. If the arms passed a reference to a shared request, the compiler would store the request in
        // memory in every arm.
        let request = || Request::queued(BioOp::Read, pos, flags, token);
        match &self.backing {
            Backing::Volume(file) => file.submit_read(queue, memory, request()),
            Backing::Live(file) => file.submit_read(queue, memory.into(), request()),
            Backing::Host(file) => file.submit_read(queue, memory.into(), request()),
        }
    }

    /// Writes at a position and waits. Returns the number of bytes written. A write is shorter than `buf` only if there was not enough
    /// space. With [`DioFlags::WHOLE`] a lack of space is an error.
    ///
    /// The data are durable after the next [`sync`](Self::sync). With [`DioFlags::DSYNC`] they are durable when the call returns.
    ///
    /// # Errors
    /// The errors of [`read_at`](Self::read_at); `NoSpace`, `Quota`, `FileTooLarge`; `NotPermitted` if the file is immutable, or if the
    /// file is append-only and the write does not begin at its end; `ReadOnly` for host files, and for a volume or handle that is not open
    /// for writing. After an error, a part of the data may have been written.
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
    /// The errors of [`write_at`](Self::write_at); `WouldBlock` if the request has [`DioFlags::NOWAIT`] and would have to wait. A write
    /// that fails with `WouldBlock` has had no effect.
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

    /// Writes a [`Buffer`] at a position with flags and waits. Safe code cannot change the buffer during the call. Therefore a device that
    /// computes checksums does not need a copy of the buffer ([`StablePages::Owned`](crate::StablePages::Owned)). It would need a copy of
    /// borrowed bytes.
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

    /// Writes all of `buf` at a position and waits. The data are durable after the next [`sync`](Self::sync).
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

    /// Writes several buffers in order. The rules of [`write_at_with`](Self::write_at_with) apply.
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

    /// Writes all of `buf` at the end of the file, and returns the position of its first byte. Concurrent appends get consecutive
    /// positions.
    ///
    /// # Errors
    /// The errors of [`write_at_with`](Self::write_at_with). If a part was written, the file has grown by that part.
    pub fn append(&self, queue: &mut Queue, buf: &[u8], flags: DioFlags) -> Result<FilePos> {
        match &self.backing {
            Backing::Live(file) => file.append(queue, &[IoSlice::new(buf)], flags),
            _ => Err(self.read_only()),
        }
    }

    /// Starts a write. The memory moves into the queue. The completion returns the memory together with `token`. If the write needs changes
    /// of metadata, for example new blocks, the call makes these changes first. It may wait for them.
    ///
    /// # Errors
    /// The errors of [`write_at_with`](Self::write_at_with). The error contains the memory. Errors of the device are in the completion.
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

    /// Starts an append, and returns its position. The size of the file grows when the append completes. A later append may complete first.
    /// The range of the earlier append then reads as zeros until the earlier append completes.
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

    /// Makes the file's metadata and the data of completed writes durable (`fsync`). Concurrent syncs share one commit of the journal.
    ///
    /// # Errors
    /// `Io`; `NoSpace` if an unwritten extent must be split, and the file's map has no space for one more extent; `ReadOnly` after an
    /// earlier error.
    pub fn sync(&self, queue: &mut Queue) -> Result<()> {
        match &self.backing {
            Backing::Live(file) => file.sync(queue, false),
            _ => Ok(()),
        }
    }

    /// Makes the data of completed writes durable (`fdatasync`). Metadata become durable only as far as a read of the data needs them.
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
            Backing::Host(_) => Error::read_only("host files can be read but not written"),
            _ => Error::read_only("the volume was opened read-only"),
        }
    }

    /// Returns the mapping that contains `pos`. The mapping can be shorter or longer than `len`. A host file has a mapping only while it is
    /// read from the device.
    ///
    /// # Errors
    /// The errors of reading and checking the metadata; `Unsupported`, with the reason, for a host file whose reads the kernel serves.
    pub fn map(&self, pos: impl Into<FilePos>, len: u64) -> Result<Iomap> {
        match &self.backing {
            Backing::Volume(file) => file.inode().map(pos.into(), len),
            Backing::Live(file) => file.map(pos.into()),
            Backing::Host(file) => file.map()?.map(pos.into(), len),
        }
    }

    /// Returns all mappings from the start of the file to its size. Holes are also mappings.
    pub fn mappings(&self) -> impl Iterator<Item = Result<Iomap>> {
        Mappings::new(self, FilePos(0), FilePos(self.size()))
    }

    /// Returns the first position at or after `pos` that contains data (`SEEK_DATA`). `None` if no data follow.
    ///
    /// # Errors
    /// The errors of reading the map.
    pub fn seek_data(&self, pos: impl Into<FilePos>) -> Result<Option<FilePos>> {
        iomap::seek_data(self, pos.into(), self.size())
    }

    /// Returns the first position at or after `pos` that is in a hole (`SEEK_HOLE`). The end of the file counts as a hole. Returns `None`
    /// if `pos` is at or past the end of the file.
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
