//! The table of the files that a queue can send requests to.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use super::psync::OneFile;
use super::segmented::{Found, Map};
use super::{BlockFile, Transfer};
use crate::bio::{BioFlags, BioOp, Dev};
use crate::error::Errno;
use crate::units::DevOffset;

/// A table of open files. Each entry also stores the queue's state for the file. Free entries are reused.
#[derive(Debug)]
pub(super) struct Files<T> {
    entries: Vec<Option<Entry<T>>>,
    /// The ranges of files that form the queue's own device. The entry [`Dev::OWN`] is then empty, and the numbers of the files in
    /// the map are the indices of their entries. So a device that is one file needs no test.
    ranges: Option<FileRanges>,
}

pub(super) type Entry<T> = (Arc<BlockFile>, T);

impl<T> Files<T> {
    /// Creates a table. If the queue has its own device, this device gets the first entry, [`Dev::OWN`].
    pub(super) fn new(own: Option<Entry<T>>) -> Self {
        Self { entries: vec![own], ranges: None }
    }

    /// The file that is the queue's own device. `None` if the device consists of ranges of files.
    pub(super) fn own(&self) -> Option<&Arc<BlockFile>> {
        self.entries.first()?.as_ref().map(|(file, _)| file)
    }

    /// Replaces the queue's own device by ranges of files. The file that was the device is the first file of the ranges, and keeps its state.
    /// `kept` is the state of each other file.
    pub(super) fn divide(&mut self, ranges: FileRanges, kept: impl IntoIterator<Item = T>) {
        let own = self.entries.first_mut().and_then(Option::take);
        let others = ranges.files.iter().skip(1).cloned().zip(kept).map(Some);
        self.entries.splice(1..1, std::iter::once(own).chain(others));
        self.ranges = Some(ranges);
    }

    /// The file with this number.
    #[inline(always)]
    pub(super) fn get(&self, dev: Dev) -> Result<&Entry<T>, Errno> {
        match self.entries.get(dev.0 as usize) {
            Some(Some(entry)) => Ok(entry),
            _ => Err(Errno::EBADF),
        }
    }

    /// The file that contains the whole range of a request, and the position in this file. `None` if there is no such file, or if the device
    /// refuses the operation.
    #[inline(always)]
    pub(super) fn place(
        &self,
        dev: Dev,
        op: BioOp,
        at: DevOffset,
        len: usize,
    ) -> Option<(&Entry<T>, DevOffset)> {
        match self.get(dev) {
            Ok(entry) => Some((entry, at)),
            Err(_) => self.place_in_range(dev, op, at, len),
        }
    }

    /// As [`place`](Self::place), for a device that consists of ranges of files.
    #[inline(always)]
    pub(super) fn place_in_range(
        &self,
        dev: Dev,
        op: BioOp,
        at: DevOffset,
        len: usize,
    ) -> Option<(&Entry<T>, DevOffset)> {
        let ranges = self.ranges.as_ref().filter(|_| dev == Dev::OWN)?;
        if op != BioOp::Read && !ranges.accept(op) {
            return None;
        }
        let (file, at) = ranges.map.place(at, len)?;
        Some((self.entries.get(file.get())?.as_ref()?, at))
    }

    /// The device with this number, for requests that complete within the call.
    #[inline(always)]
    pub(super) fn on(&self, dev: Dev) -> OnFiles<'_, T> {
        OnFiles { files: self, dev }
    }

    /// The ranges of files that form the queue's own device.
    fn ranges(&self, dev: Dev) -> Result<&FileRanges, Errno> {
        self.ranges.as_ref().filter(|_| dev == Dev::OWN).ok_or(Errno::EBADF)
    }

    /// Handles a read for which no file contains the whole range, or whose transfer has failed with this errno. Reads several ranges one after
    /// another. Repeats a failed read, if there is an alternative way to read its range.
    #[cold]
    #[inline(never)]
    pub(super) fn failed_read(
        &self,
        dev: Dev,
        bufs: &mut [IoSliceMut<'_>],
        at: DevOffset,
        flags: BioFlags,
        errno: Errno,
    ) -> Result<usize, Errno> {
        let Ok(mut ranges) = self.ranges(dev) else { return Err(errno) };
        let len = bufs.iter().map(|buf| buf.len()).sum();
        match ranges.place(at, len) {
            Some(_) => ranges.map.read_again(bufs, at, flags, errno),
            None => ranges.read_vectored(bufs, at, flags),
        }
    }

    /// Adds a file with its state.
    pub(super) fn attach(&mut self, file: &Arc<BlockFile>, kept: T) -> Dev {
        let free = self.entries.iter().skip(1).position(Option::is_none);
        let place = free.map_or(self.entries.len(), |place| place + 1);
        if place == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[place] = Some((Arc::clone(file), kept));
        Dev(place as u32)
    }

    /// Keeps all files open until the process ends, because requests to these files may still be in flight.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.entries));
        std::mem::forget(self.ranges.take());
    }

    /// Removes a file, unless it is the queue's own device.
    pub(super) fn detach(&mut self, dev: Dev) -> Option<Entry<T>> {
        if dev == Dev::OWN { None } else { self.entries.get_mut(dev.0 as usize)?.take() }
    }
}

/// A device of a queue: a file, or the ranges of files that form the queue's own device.
#[derive(Debug)]
pub struct OnFiles<'a, T> {
    files: &'a Files<T>,
    dev: Dev,
}

impl<T> Transfer for OnFiles<'_, T> {
    #[inline(always)]
    fn read(&mut self, buf: &mut [u8], at: DevOffset, flags: BioFlags) -> Result<usize, Errno> {
        let Self { files, dev } = *self;
        let result = match files.place(dev, BioOp::Read, at, buf.len()) {
            Some(((file, _), below)) => OneFile(file).read(buf, below, flags),
            None => {
                return files.failed_read(
                    dev,
                    &mut [IoSliceMut::new(buf)],
                    at,
                    flags,
                    Errno::EBADF,
                );
            }
        };
        match result {
            Err(errno) => files.failed_read(dev, &mut [IoSliceMut::new(buf)], at, flags, errno),
            result => result,
        }
    }

    fn read_vectored(
        &mut self,
        bufs: &mut [IoSliceMut<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        match self.files.get(self.dev) {
            Ok((file, _)) => OneFile(file).read_vectored(bufs, at, flags),
            Err(_) => self.files.ranges(self.dev)?.read_vectored(bufs, at, flags),
        }
    }

    #[inline(always)]
    fn write(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        match self.files.get(self.dev) {
            Ok((file, _)) => OneFile(file).write(bufs, at, flags),
            Err(_) => self.files.ranges(self.dev)?.write(bufs, at, flags),
        }
    }

    fn flush(&mut self) -> Result<(), Errno> {
        match self.files.get(self.dev) {
            Ok((file, _)) => OneFile(file).flush(),
            Err(_) => self.files.ranges(self.dev)?.flush(),
        }
    }
}

/// Ranges of files that form one device: a logical volume, an array, or a volume with a journal on another device.
#[derive(Debug)]
pub(super) struct FileRanges {
    map: Arc<Map>,
    files: Box<[Arc<BlockFile>]>,
    writable: bool,
}

impl FileRanges {
    /// The order of `files` is the order of their numbers in `map`.
    pub(super) fn new(map: &Arc<Map>, files: Vec<Arc<BlockFile>>, writable: bool) -> Self {
        Self { map: Arc::clone(map), files: files.into(), writable }
    }

    pub(super) fn files(&self) -> &[Arc<BlockFile>] {
        &self.files
    }

    /// Whether one request to one file can carry out the operation.
    fn accept(&self, op: BioOp) -> bool {
        match op {
            BioOp::Read => true,
            BioOp::Write => self.writable,
            BioOp::Flush => self.writable && self.files.len() == 1,
        }
    }

    /// The file that contains the whole range, and the position in this file.
    fn place(&self, at: DevOffset, len: usize) -> Option<(OneFile<'_>, DevOffset)> {
        let (file, at) = self.map.place(at, len)?;
        Some((OneFile(self.files.get(file.index())?), at))
    }

    fn file(&self, found: &Found) -> Result<OneFile<'_>, Errno> {
        self.files.get(found.device.index()).map(|file| OneFile(file)).ok_or(Errno::EINVAL)
    }
}

/// The functions are not inlined, so that a device that is one file needs no more instructions.
impl Transfer for &FileRanges {
    fn read(&mut self, buf: &mut [u8], at: DevOffset, flags: BioFlags) -> Result<usize, Errno> {
        self.read_vectored(&mut [IoSliceMut::new(buf)], at, flags)
    }

    #[inline(never)]
    fn read_vectored(
        &mut self,
        bufs: &mut [IoSliceMut<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        let Some((mut file, below)) = self.place(at, len) else {
            return self.map.read(bufs, at, flags, |found, mut bufs| {
                self.file(found)?.read_vectored(&mut bufs, found.at, flags)
            });
        };
        match file.read_vectored(bufs, below, flags) {
            Err(errno) => self.map.read_again(bufs, at, flags, errno),
            result => result,
        }
    }

    #[inline(never)]
    fn write(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        flags: BioFlags,
    ) -> Result<usize, Errno> {
        if !self.writable {
            return Err(Errno::EROFS);
        }
        match self.place(at, bufs.iter().map(|buf| buf.len()).sum()) {
            Some((mut file, below)) => file.write(bufs, below, flags),
            None => self
                .map
                .write(bufs, at, |found, bufs| self.file(found)?.write(&bufs, found.at, flags)),
        }
    }

    /// Flushes all files, even if the flush of one file fails.
    fn flush(&mut self) -> Result<(), Errno> {
        if !self.writable {
            return Err(Errno::EROFS);
        }
        self.files.iter().map(|file| OneFile(file).flush()).fold(Ok(()), Result::and)
    }
}
