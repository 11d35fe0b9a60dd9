//! A file open for direct I/O: of a volume, or of a file system that the kernel has mounted.

mod live;
mod of_volume;

use std::io::IoSliceMut;

pub(crate) use self::live::LiveFile;
pub(crate) use self::of_volume::VolumeFile;

use crate::bio::Memory;
use crate::dio::{DioFlags, Rejected};
use crate::error::{Error, Result};
use crate::host::{HostHandle, HostReport};
use crate::iomap::{self, Iomap, MapFile, Mappings};
use crate::queue::Queue;
use crate::units::{FilePos, InodeNo};

/// How to open a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Take only what `O_DIRECT` takes: position and length in logical blocks, aligned memory. Otherwise what the device cannot
    /// take goes through bounce buffers, or through the kernel's page cache where the kernel serves the file.
    pub strict: bool,
    /// For host files on XFS with reflink: nobody dedupes this file while it is open. Dedupe can move data without opening the file
    /// for writing, of which no lease tells; so without this promise, or the immutable flag, the kernel serves such files.
    pub assume_no_dedupe: bool,
}

/// A file open for direct I/O. It is shared by threads; each brings its own [`Queue`]. Cheap to clone.
#[derive(Clone)]
pub struct File {
    backing: Backing,
}

/// Who owns the file's metadata: one match at the top of a request.
#[derive(Clone)]
enum Backing {
    Volume(VolumeFile),
    /// Of a volume that is open for writing.
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
    /// Its inode number.
    #[must_use]
    pub fn inode(&self) -> InodeNo {
        match &self.backing {
            Backing::Volume(file) => file.inode().number(),
            Backing::Live(file) => file.number(),
            Backing::Host(file) => file.inode(),
        }
    }

    /// Its size in bytes. That of a host file can change while the kernel serves it; where the kernel does not say, 0.
    #[must_use]
    pub fn size(&self) -> u64 {
        match &self.backing {
            Backing::Volume(file) => file.inode().size(),
            Backing::Live(file) => file.now().map_or(0, |file| file.inode().size()),
            Backing::Host(file) => file.size(),
        }
    }

    /// Who serves a host file and why, and what lies beneath it; `None` for a volume's file.
    #[must_use]
    pub fn host(&self) -> Option<HostReport> {
        match &self.backing {
            Backing::Volume(_) | Backing::Live(_) => None,
            Backing::Host(file) => Some(file.report()),
        }
    }

    /// Reads at a position and waits. Gives the bytes read: fewer than `buf` holds only at the end of the file, 0 behind it.
    ///
    /// # Errors
    /// `InvalidInput` where a strict handle is given something that `O_DIRECT` refuses, or the queue is another's;
    /// `Io` with the device's errno; `Corrupt` from the file's map.
    #[inline(always)]
    pub fn read_at(&self, queue: &mut Queue, buf: &mut [u8], pos: FilePos) -> Result<usize> {
        self.read_at_with(queue, buf, pos, DioFlags::empty())
    }

    /// The same with flags.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at), and `WouldBlock` with [`DioFlags::NOWAIT`].
    #[inline(always)]
    pub fn read_at_with(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        match &self.backing {
            Backing::Volume(file) => file.read_at(queue, buf, pos, flags),
            Backing::Live(file) => file.read_at(queue, buf, pos, flags),
            Backing::Host(file) => file.read_at(queue, buf, pos, flags),
        }
    }

    /// The same into several buffers, filled one after the other.
    ///
    /// # Errors
    /// As [`read_at_with`](Self::read_at_with).
    pub fn read_vectored_at(
        &self,
        queue: &mut Queue,
        bufs: &mut [IoSliceMut<'_>],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        match &self.backing {
            Backing::Volume(file) => file.read_vectored_at(queue, bufs, pos, flags),
            Backing::Live(file) => file.read_vectored_at(queue, bufs, pos, flags),
            Backing::Host(file) => file.read_vectored_at(queue, bufs, pos, flags),
        }
    }

    /// Starts a read into memory that moves down with it and comes back with the completion that carries `token`. It may wait
    /// for a free slot, unless the flags say NOWAIT.
    ///
    /// # Errors
    /// Gives the memory back with the reason; as [`read_at_with`](Self::read_at_with). Errors of the device come with the
    /// completion.
    #[inline(always)]
    pub fn submit_read(
        &self,
        queue: &mut Queue,
        memory: impl Into<Memory>,
        pos: FilePos,
        flags: DioFlags,
        token: u64,
    ) -> Result<(), Box<Rejected>> {
        let memory = memory.into();
        match &self.backing {
            Backing::Volume(file) => file.submit_read(queue, memory, pos, flags, token),
            Backing::Live(file) => file.submit_read(queue, memory, pos, flags, token),
            Backing::Host(file) => file.submit_read(queue, memory, pos, flags, token),
        }
    }

    /// The mapping at a position, at least one byte of it. That of a host file can be had while it is read raw.
    ///
    /// # Errors
    /// What reading and checking the metadata gives; `Unsupported`, with the reason, where the kernel serves a host file.
    pub fn map(&self, pos: FilePos, len: u64) -> Result<Iomap> {
        match &self.backing {
            Backing::Volume(file) => file.inode().map(pos, len),
            Backing::Live(file) => file.now()?.inode().map(pos, len),
            Backing::Host(file) => file.map()?.map(pos, len),
        }
    }

    /// All mappings from the start to the size, holes among them.
    pub fn mappings(&self) -> impl Iterator<Item = Result<Iomap>> {
        Mappings::new(self, FilePos(0), FilePos(self.size()))
    }

    /// The first position from `pos` on that holds data (`SEEK_DATA`), or `None`.
    ///
    /// # Errors
    /// What reading the map gives.
    pub fn seek_data(&self, pos: FilePos) -> Result<Option<FilePos>> {
        iomap::seek_data(self, pos, self.size())
    }

    /// The first position from `pos` on that is a hole (`SEEK_HOLE`): the size at the latest, `None` at or behind it.
    ///
    /// # Errors
    /// What reading the map gives.
    pub fn seek_hole(&self, pos: FilePos) -> Result<Option<FilePos>> {
        iomap::seek_hole(self, pos, self.size())
    }
}

impl MapFile for File {
    fn map(&self, pos: FilePos, len: u64) -> Result<Iomap> {
        Self::map(self, pos, len)
    }

    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        match &self.backing {
            Backing::Volume(file) => file.inode().map_resident(pos),
            Backing::Live(file) => file.now().ok()?.inode().map_resident(pos),
            Backing::Host(file) => file.map().ok()?.map_resident(pos),
        }
    }

    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        match &self.backing {
            Backing::Volume(file) => file.inode().read_inline(buf, pos),
            Backing::Live(file) => file.now()?.inode().read_inline(buf, pos),
            Backing::Host(_) => Err(Error::invalid("a host file has no inline data")),
        }
    }
}
