//! A file of a volume that is open for writing: its inode changes. Readers take no lock for that: they read by the inode as it last was, and
//! what a file loses is nobody else's as long as it is open.

use std::io::IoSliceMut;
use std::sync::Arc;

use parking_lot::Mutex;

use super::VolumeFile;
use crate::bio::Memory;
use crate::dio::{DioFlags, Rejected};
use crate::error::Result;
use crate::fs::ext4::Held;
use crate::queue::Queue;
use crate::units::{FilePos, InodeNo};

/// An open file that can change.
#[derive(Clone)]
pub(crate) struct LiveFile(Arc<Live>);

struct Live {
    held: Held,
    /// As it was last read, and at which of its changes.
    last: Mutex<(u64, VolumeFile)>,
}

impl LiveFile {
    /// `file` may have been read before the inode was held.
    pub(crate) fn new(held: Held, file: VolumeFile) -> Self {
        Self(Arc::new(Live { held, last: Mutex::new((u64::MAX, file)) }))
    }

    pub(super) fn number(&self) -> InodeNo {
        self.0.held.number()
    }

    /// The file as it is now.
    pub(super) fn now(&self) -> Result<VolumeFile> {
        let changes = self.0.held.changes();
        let mut last = self.0.last.lock();
        if last.0 != changes {
            let file = last.1.of(self.0.held.inode()?);
            *last = (changes, file);
        }
        Ok(last.1.clone())
    }

    #[inline(never)]
    pub(super) fn read_at(
        &self,
        queue: &mut Queue,
        buf: &mut [u8],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        self.now()?.read_at(queue, buf, pos, flags)
    }

    pub(super) fn read_vectored_at(
        &self,
        queue: &mut Queue,
        bufs: &mut [IoSliceMut<'_>],
        pos: FilePos,
        flags: DioFlags,
    ) -> Result<usize> {
        self.now()?.read_vectored_at(queue, bufs, pos, flags)
    }

    #[inline(never)]
    pub(super) fn submit_read(
        &self,
        queue: &mut Queue,
        memory: Memory,
        pos: FilePos,
        flags: DioFlags,
        token: u64,
    ) -> Result<(), Box<Rejected>> {
        match self.now() {
            Ok(file) => file.submit_read(queue, memory, pos, flags, token),
            Err(error) => Err(Rejected::boxed(error, memory)),
        }
    }
}
