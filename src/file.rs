//! A file of a volume, open for direct I/O.

use std::io::IoSliceMut;
use std::sync::Arc;

use crate::bio::{Dev, Memory};
use crate::device::{Limits, with_queue};
use crate::dio::{self, DioFlags, Geometry, Rejected, Target};
use crate::error::{Error, Result};
use crate::fs::ext4::Inode;
use crate::iomap::{self, Iomap, MapFile, Mappings};
use crate::queue::Queue;
use crate::units::FilePos;

/// How to open a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Take only what `O_DIRECT` takes: position and length in logical blocks, aligned memory. Otherwise what the device cannot
    /// take goes through bounce buffers.
    pub strict: bool,
}

/// A file open for direct I/O. It is shared by threads; each brings its own [`Queue`].
#[derive(Clone)]
pub struct File {
    inode: Arc<Inode>,
    options: FileOptions,
    volume: u32,
    geometry: Geometry,
}

impl File {
    pub(crate) fn new(inode: Inode, options: FileOptions, volume: u32, limits: &Limits) -> Self {
        let geometry = Geometry::new(limits, inode.block_size().bytes() as u64);
        Self { inode: Arc::new(inode), options, volume, geometry }
    }

    /// Its inode.
    #[must_use]
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.inode.size()
    }

    /// Reads at a position and waits. Gives the bytes read: fewer than `buf` holds only at the end of the file, 0 behind it.
    ///
    /// # Errors
    /// `InvalidInput` where a strict handle is given something that `O_DIRECT` refuses, or the queue is another volume's;
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
        self.check(queue)?;
        let target = self.target();
        with_queue!(&mut queue.device, device => dio::read_now(device, &mut queue.state, &target, buf, pos, flags))
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
        self.check(queue)?;
        let target = self.target();
        with_queue!(&mut queue.device, device => {
            dio::read_vectored_now(device, &mut queue.state, &target, bufs, pos, flags)
        })
    }

    /// Starts a read into memory that moves down with it and comes back with the completion that carries `token`. It may wait
    /// for a free slot, unless the flags say NOWAIT.
    ///
    /// # Errors
    /// Gives the memory back with the reason; as [`read_at_with`](Self::read_at_with). Errors of the device come with the
    /// completion.
    #[inline(always)]
    #[allow(
        clippy::result_large_err,
        reason = "the memory moves back whole, without an allocation"
    )]
    pub fn submit_read(
        &self,
        queue: &mut Queue,
        memory: impl Into<Memory>,
        pos: FilePos,
        flags: DioFlags,
        token: u64,
    ) -> Result<(), Rejected> {
        let memory = memory.into();
        if let Err(error) = self.check(queue) {
            return Err(Rejected { error, memory });
        }
        let target = self.target();
        with_queue!(&mut queue.device, device => {
            dio::submit_read(device, &mut queue.state, &target, memory, pos, flags, token)
        })
    }

    /// The mapping at a position, at least one byte of it.
    ///
    /// # Errors
    /// What reading and checking the metadata gives.
    pub fn map(&self, pos: FilePos, len: u64) -> Result<Iomap> {
        self.inode.map(pos, len)
    }

    /// All mappings from the start to the size, holes among them.
    pub fn mappings(&self) -> impl Iterator<Item = Result<Iomap>> {
        Mappings::new(&*self.inode, FilePos(0), FilePos(self.size()))
    }

    /// The first position from `pos` on that holds data (`SEEK_DATA`), or `None`.
    ///
    /// # Errors
    /// What reading the map gives.
    pub fn seek_data(&self, pos: FilePos) -> Result<Option<FilePos>> {
        iomap::seek_data(&*self.inode, pos, self.size())
    }

    /// The first position from `pos` on that is a hole (`SEEK_HOLE`): the size at the latest, `None` at or behind it.
    ///
    /// # Errors
    /// What reading the map gives.
    pub fn seek_hole(&self, pos: FilePos) -> Result<Option<FilePos>> {
        iomap::seek_hole(&*self.inode, pos, self.size())
    }

    #[inline(always)]
    fn target(&self) -> Target<'_, Inode> {
        Target {
            map: &*self.inode,
            dev: Dev::OWN,
            geometry: &self.geometry,
            inode: self.inode.number(),
            size: self.inode.size(),
            strict: self.options.strict,
        }
    }

    #[inline(always)]
    fn check(&self, queue: &Queue) -> Result<()> {
        if queue.volume == self.volume { Ok(()) } else { Err(foreign_queue()) }
    }
}

#[cold]
fn foreign_queue() -> Error {
    Error::invalid("the queue belongs to another volume")
}
