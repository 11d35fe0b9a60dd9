//! A file of a volume that is open only for reading. A request looks up its range in the inode's map. Then it goes directly to the device.

use std::io::IoSliceMut;
use std::sync::{Arc, OnceLock};

use super::read_many::{Placed, Proof};
use crate::bio::{Dev, Memory};
use crate::device::with_queue;
use crate::dio::{self, Geometry, Rejected, Request, State, Target};
use crate::error::Result;
use crate::file::FileOptions;
use crate::fs::Inode;
use crate::iomap::{ExtentMap, Iomap, MapFile};
use crate::open_file::Owner;
use crate::queue::Queue;
use crate::units::{FilePos, InodeNo};

/// A file of a volume that is open only for reading.
#[derive(Clone)]
pub(crate) struct VolumeFile {
    file: Arc<ReadFile>,
    strict: bool,
    volume: Owner,
    geometry: Geometry,
}

/// A file: its inode, and its map if the whole map is in memory. A request that uses the map in memory does not call the file system.
pub(super) struct ReadFile {
    inode: Inode,
    number: InodeNo,
    size: u64,
    map: OnceLock<Arc<ExtentMap>>,
}

impl ReadFile {
    pub(super) fn inode(&self) -> &Inode {
        &self.inode
    }

    /// The map, if the whole map is in memory.
    #[inline(always)]
    fn resident(&self) -> Option<&ExtentMap> {
        match self.map.get() {
            Some(map) => Some(map),
            None => self.find_map(),
        }
    }

    #[cold]
    fn find_map(&self) -> Option<&ExtentMap> {
        let map = self.inode.resident_map()?;
        Some(self.map.get_or_init(|| Arc::clone(map)))
    }
}

impl MapFile for ReadFile {
    fn map(&self, pos: FilePos, len: u64) -> Result<Iomap> {
        self.inode.map(pos, len)
    }

    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        self.map_recorded(pos).or_else(|| self.inode.map_resident(pos))
    }

    #[inline(always)]
    fn map_recorded(&self, pos: FilePos) -> Option<Iomap> {
        Some(self.resident()?.lookup(pos))
    }

    fn read_inline(&self, buf: &mut [u8], pos: FilePos) -> Result<()> {
        self.inode.read_inline(buf, pos)
    }
}

impl VolumeFile {
    pub(crate) fn new(
        inode: Inode,
        options: FileOptions,
        volume: Owner,
        geometry: Geometry,
    ) -> Self {
        let (number, size) = (inode.number(), inode.size());
        let file = ReadFile { inode, number, size, map: OnceLock::new() };
        Self { file: Arc::new(file), strict: options.direct, volume, geometry }
    }

    pub(super) fn inode(&self) -> &Inode {
        self.file.inode()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn read_at(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        request: Request,
    ) -> Result<usize> {
        queue.check(self.volume)?;
        let target = self.target();
        with_queue!(&mut queue.device, device => dio::read_now(device, &mut queue.state, &target, buf, &request))
    }

    pub(super) fn read_vectored_at(
        &self,
        queue: &mut Queue,
        bufs: &mut [IoSliceMut<'_>],
        request: Request,
    ) -> Result<usize> {
        queue.check(self.volume)?;
        let target = self.target();
        let device = &mut queue.device.through_table();
        dio::read_vectored_now(device, &mut queue.state, &target, bufs, &request)
    }

    /// Returns the device offset of one read of a batch. Returns `None` if the read must be carried out separately.
    #[inline(always)]
    pub(super) fn place(
        &self,
        owner: Owner,
        state: &mut State,
        request: &Request,
        address: usize,
    ) -> Option<Placed<'static>> {
        let target = self.target();
        let at = dio::place_lent(state, &target, request, address)?;
        let most = self.geometry.longest();
        (owner == self.volume).then_some(Placed { dev: target.dev, at, most, proof: Proof::Always })
    }

    /// Starts a read. Each path converts the memory to its own type separately. If the paths shared one conversion, the most frequent path
    /// would move the value once more.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn submit_read(
        &self,
        queue: &mut Queue,
        memory: impl Into<Memory>,
        request: Request,
    ) -> Result<(), Box<Rejected>> {
        if let Err(error) = queue.check(self.volume) {
            return Err(Rejected::boxed(error, memory.into()));
        }
        let target = self.target();
        with_queue!(&mut queue.device, device => {
            dio::submit_read(device, &mut queue.state, &target, memory.into(), &request)
        })
    }

    #[inline(always)]
    fn target(&self) -> Target<'_, ReadFile> {
        Target {
            map: &*self.file,
            dev: Dev::OWN,
            geometry: &self.geometry,
            inode: self.file.number,
            size: self.file.size,
            strict: &self.strict,
            live: None,
        }
    }
}
