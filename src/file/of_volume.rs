//! A file of a volume that is only read: the map is the inode's, and nothing stands between it and the device.

use std::io::IoSliceMut;
use std::sync::Arc;

use crate::bio::{Dev, Memory};
use crate::device::{Limits, with_queue};
use crate::dio::{self, DioFlags, Geometry, Rejected, Target};
use crate::error::Result;
use crate::file::FileOptions;
use crate::fs::ext4::Inode;
use crate::queue::{Owner, Queue};
use crate::units::FilePos;

/// A file of a volume that is open for reading only.
#[derive(Clone)]
pub(crate) struct VolumeFile {
    inode: Arc<Inode>,
    strict: bool,
    volume: Owner,
    geometry: Geometry,
}

impl VolumeFile {
    pub(crate) fn new(inode: Inode, options: FileOptions, volume: Owner, limits: &Limits) -> Self {
        let geometry =
            Geometry::new(limits, inode.block_size().bytes() as u64).with(options.stable_pages);
        Self { inode: Arc::new(inode), strict: options.strict, volume, geometry }
    }

    pub(super) fn inode(&self) -> &Inode {
        &self.inode
    }

    #[inline(always)]
    pub(super) fn read_at(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        queue.check(self.volume)?;
        let target = self.target();
        with_queue!(&mut queue.device, device => dio::read_now(device, &mut queue.state, &target, buf, pos, flags))
    }

    pub(super) fn read_vectored_at(
        &self,
        queue: &mut Queue,
        bufs: &mut [IoSliceMut<'_>],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        queue.check(self.volume)?;
        let target = self.target();
        with_queue!(&mut queue.device, device => {
            dio::read_vectored_now(device, &mut queue.state, &target, bufs, pos, flags)
        })
    }

    #[inline(always)]
    pub(super) fn submit_read(
        &self,
        queue: &mut Queue,
        memory: Memory,
        pos: FilePos,
        flags: DioFlags,
        token: u64,
    ) -> Result<(), Box<Rejected>> {
        if let Err(error) = queue.check(self.volume) {
            return Err(Rejected::boxed(error, memory));
        }
        let target = self.target();
        with_queue!(&mut queue.device, device => {
            dio::submit_read(device, &mut queue.state, &target, memory, pos, flags, token)
        })
    }

    #[inline(always)]
    fn target(&self) -> Target<'_, Inode> {
        Target {
            map: &*self.inode,
            dev: Dev::OWN,
            geometry: &self.geometry,
            inode: self.inode.number(),
            size: self.inode.size(),
            strict: self.strict,
            live: None,
        }
    }
}
