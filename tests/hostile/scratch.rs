//! A volume that a test damages, reads and restores repeatedly. It is a file in memory. Each round changes only a few parts of it.

use std::path::PathBuf;
use std::sync::Arc;

use ironmap::device::{BlockFile, Device, OpenMode, Psync};
use ironmap::{Result, Volume};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::MemfdFlags;

use super::mutate::Change;
use super::repair::repair;
use super::spots::Target;
use super::volume::Base;

/// A copy of an undamaged volume (the base), which tests damage and restore.
pub(crate) struct Scratch {
    base: Base,
    block_size: usize,
    bytes: Vec<u8>,
    /// The ranges of the copy that differ from the undamaged volume.
    dirty: Vec<(usize, usize)>,
    file: OwnedFd,
    device: Arc<dyn Device>,
}

impl Scratch {
    pub(crate) fn new(base: Base) -> Self {
        let file = rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let page = 4096;
        rustix::fs::ftruncate(&file, base.bytes.len() as u64).unwrap();
        for (number, content) in base.bytes.chunks(page).enumerate() {
            if content.iter().any(|byte| *byte != 0) {
                rustix::io::pwrite(&file, content, (number * page) as u64).unwrap();
            }
        }
        let mode = OpenMode { direct: false, exclusive: false, ..OpenMode::default() };
        let device: Arc<dyn Device> =
            Arc::new(Psync::new(Arc::new(BlockFile::open(&path, &mode).unwrap())));
        Self {
            block_size: base.block_size(),
            bytes: base.bytes.clone(),
            base,
            dirty: Vec::new(),
            file,
            device,
        }
    }

    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    pub(crate) fn block_size(&self) -> usize {
        self.block_size
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The positions and lengths of the ranges that differ from the undamaged volume.
    pub(crate) fn dirty(&self) -> &[(usize, usize)] {
        &self.dirty
    }

    /// Writes bytes to the copy. If the bytes differ from the undamaged volume, records the range.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        let place = &mut self.bytes[at..at + bytes.len()];
        if place != bytes {
            place.copy_from_slice(bytes);
            self.dirty.push((at, bytes.len()));
        }
    }

    /// Damages the volume, repairs its checksums, and opens it.
    pub(crate) fn damaged(&mut self, changes: &[Change], target: Option<Target>) -> Result<Volume> {
        self.restore();
        for change in changes {
            change.apply(self, target);
        }
        self.repaired()
    }

    /// Repairs the checksums of the parts that were written, and opens the volume.
    pub(crate) fn repaired(&mut self) -> Result<Volume> {
        let spots = std::mem::take(&mut self.base.spots);
        repair(self, &spots);
        self.base.spots = spots;
        for (at, len) in self.dirty() {
            rustix::io::pwrite(&self.file, &self.bytes[*at..*at + *len], *at as u64).unwrap();
        }
        Volume::on(Arc::clone(&self.device))
    }

    pub(crate) fn restore(&mut self) {
        for (at, len) in self.dirty.drain(..) {
            let sound = &self.base.bytes[at..at + len];
            self.bytes[at..at + len].copy_from_slice(sound);
            rustix::io::pwrite(&self.file, sound, at as u64).unwrap();
        }
    }
}
