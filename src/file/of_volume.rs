//! A volume's file: the map is the inode's, and nothing stands between it and the device.
//!
//! On a volume that is open for writing the inode changes. Readers take no lock for that: they read by the inode as it last was, and what a
//! file loses is nobody else's as long as it is open.

use std::io::IoSliceMut;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::bio::{Dev, Memory};
use crate::device::{Limits, with_queue};
use crate::dio::{self, DioFlags, Geometry, Rejected, Target};
use crate::error::Result;
use crate::file::FileOptions;
use crate::fs::ext4::{Held, Inode};
use crate::queue::{Owner, Queue};
use crate::units::{FilePos, InodeNo};

/// A file of a volume.
#[derive(Clone)]
pub(crate) struct VolumeFile {
    /// As it was when the file was opened.
    inode: Arc<Inode>,
    /// Where it can change.
    live: Option<Arc<Live>>,
    strict: bool,
    volume: Owner,
    geometry: Geometry,
}

/// A file that can change: what was last read of its inode, and at which of its changes.
struct Live {
    held: Held,
    last: Mutex<(u64, Arc<Inode>)>,
}

impl Live {
    /// The inode as it is now.
    fn inode(&self) -> Result<Arc<Inode>> {
        let changes = self.held.changes();
        let mut last = self.last.lock();
        if last.0 != changes {
            *last = (changes, Arc::new(self.held.inode()?));
        }
        Ok(Arc::clone(&last.1))
    }
}

impl VolumeFile {
    /// `held` is the inode's, where the volume is open for writing.
    pub(crate) fn new(
        inode: Inode,
        held: Option<Held>,
        options: FileOptions,
        volume: Owner,
        limits: &Limits,
    ) -> Self {
        let geometry = Geometry::new(limits, inode.block_size().bytes() as u64);
        let inode = Arc::new(inode);
        let live = held.map(|held| {
            // Whatever the number is: the inode was read before it was held.
            let last = Mutex::new((u64::MAX, Arc::clone(&inode)));
            Arc::new(Live { held, last })
        });
        Self { inode, live, strict: options.strict, volume, geometry }
    }

    pub(super) fn number(&self) -> InodeNo {
        self.inode.number()
    }

    /// The inode as it is now.
    pub(super) fn inode(&self) -> Result<Arc<Inode>> {
        self.live.as_ref().map_or_else(|| Ok(Arc::clone(&self.inode)), |live| live.inode())
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
        let now;
        let inode = match &self.live {
            None => &*self.inode,
            Some(live) => {
                now = live.inode()?;
                &*now
            }
        };
        let target = self.target(inode);
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
        let inode = self.inode()?;
        let target = self.target(&inode);
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
        let now;
        let inode = match &self.live {
            None => &*self.inode,
            Some(live) => match live.inode() {
                Ok(inode) => {
                    now = inode;
                    &*now
                }
                Err(error) => return Err(Rejected::boxed(error, memory)),
            },
        };
        let target = self.target(inode);
        with_queue!(&mut queue.device, device => {
            dio::submit_read(device, &mut queue.state, &target, memory, pos, flags, token)
        })
    }

    #[inline(always)]
    fn target<'a>(&'a self, inode: &'a Inode) -> Target<'a, Inode> {
        Target {
            map: inode,
            dev: Dev::OWN,
            geometry: &self.geometry,
            inode: inode.number(),
            size: inode.size(),
            strict: self.strict,
        }
    }
}
