//! A device in memory. The device is sparse, and its snapshots share memory, so thousands of devices with similar contents need little
//! memory.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError, RwLock};

use super::{AnyQueue, Device, Immediate, InRange, Limits, QueueOptions, ThroughFlushes, Transfer};
use crate::bio::BioFlags;
use crate::error::{Errno, Error, Result};
use crate::units::DevOffset;

/// The unit of allocated memory. [Snapshots](Ram::snapshot) share memory in these units.
const CHUNK: usize = 4096;

type Chunk = Arc<[u8; CHUNK]>;

/// A device in memory. Ranges that were never written are zeros and use no memory.
///
/// Like a block device, a `Ram` refuses requests that violate its [`Limits`]: a write or a queued read with an unaligned position, length
/// or address.
#[derive(Debug)]
pub struct Ram {
    content: Arc<Content>,
}

#[derive(Debug)]
struct Content {
    limits: Limits,
    size: u64,
    chunks: RwLock<Vec<Option<Chunk>>>,
}

impl Ram {
    /// The limits of an NVMe device with a volatile cache.
    pub const LIMITS: Limits = Limits {
        read_only: false,
        logical_block: 512,
        physical_block: 512,
        dma_align: 4,
        max_transfer: 1 << 20,
        fua: true,
        through_flushes: ThroughFlushes::Never,
        volatile_cache: true,
        stable_writes: false,
        nowait: true,
        poll: false,
        direct: true,
        rereads: false,
        atomic_write: 0,
    };

    /// Creates a device of `size` bytes with [`LIMITS`](Self::LIMITS), all zeros.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self::of(Self::LIMITS, size, vec![None; size.div_ceil(CHUNK as u64) as usize])
    }

    /// Creates a device with the size and content of an image.
    #[must_use]
    pub fn from_image(image: &[u8]) -> Self {
        let chunk = |bytes: &[u8]| {
            bytes.iter().any(|byte| *byte != 0).then(|| {
                let mut chunk = [0; CHUNK];
                chunk[..bytes.len()].copy_from_slice(bytes);
                Arc::new(chunk)
            })
        };
        Self::of(Self::LIMITS, image.len() as u64, image.chunks(CHUNK).map(chunk).collect())
    }

    fn of(limits: Limits, size: u64, chunks: Vec<Option<Chunk>>) -> Self {
        Self { content: Arc::new(Content { limits, size, chunks: RwLock::new(chunks) }) }
    }

    /// Creates an independent device with the same content and other limits.
    #[must_use]
    pub fn with_limits(&self, limits: Limits) -> Self {
        Self::of(limits, self.content.size, self.content.read_chunks().clone())
    }

    /// Creates an independent device with the current content. The two devices share memory until one of them is written.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        self.with_limits(self.content.limits)
    }

    /// Creates an independent device of `size` bytes with the same content. If the new device is longer, its last part is zeros. The two
    /// devices share memory, as after a [snapshot](Self::snapshot).
    #[must_use]
    pub fn resized(&self, size: u64) -> Self {
        let mut chunks = self.content.read_chunks().clone();
        chunks.resize(size.div_ceil(CHUNK as u64) as usize, None);
        // In the last chunk, the bytes past the end of the new device must be zeroed.
        let cut = (size % CHUNK as u64) as usize;
        if let (true, Some(Some(last))) = (cut > 0 && size < self.content.size, chunks.last_mut()) {
            Arc::make_mut(last)[cut..].fill(0);
        }
        Self::of(self.content.limits, size, chunks)
    }

    /// Writes bytes at any position. Unlike a request, this write need not be aligned.
    pub(super) fn put(&self, bytes: &[u8], at: DevOffset) -> Result<(), Errno> {
        self.content.put(bytes, at)
    }

    /// Writes the device's content to a file, and sets the file's length to the device's size.
    ///
    /// # Errors
    /// The errors of the file's system calls.
    pub fn store(&self, file: &File) -> io::Result<()> {
        file.set_len(0)?;
        file.set_len(self.content.size)?;
        let chunks = self.content.read_chunks();
        // Many chunks may be adjacent, so this code joins them into one write.
        let mut run: Vec<u8> = Vec::new();
        for (index, chunk) in chunks.iter().map(Option::as_ref).chain([None]).enumerate() {
            if let Some(chunk) = chunk {
                run.extend_from_slice(&**chunk);
            } else if !run.is_empty() {
                let start = (index * CHUNK - run.len()) as u64;
                let len = run.len().min((self.content.size - start) as usize);
                file.write_all_at(&run[..len], start)?;
                run.clear();
            }
        }
        Ok(())
    }
}

impl Content {
    fn read_chunks(&self) -> std::sync::RwLockReadGuard<'_, Vec<Option<Chunk>>> {
        self.chunks.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<(), Errno> {
        self.check_range(at, buf.len() as u64)?;
        let chunks = self.read_chunks();
        for (chunk, skip, piece) in pieces(at, buf.len()) {
            let piece = &mut buf[piece];
            match &chunks[chunk] {
                Some(chunk) => piece.copy_from_slice(&chunk[skip..skip + piece.len()]),
                None => piece.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, bufs: &[IoSlice<'_>], at: DevOffset) -> Result<usize, Errno> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        self.check_range(at, total as u64)?;
        self.check_alignment(at, bufs.iter().map(|buf| &**buf))?;
        let mut pos = at;
        for buf in bufs {
            self.put(buf, pos)?;
            pos.0 += buf.len() as u64;
        }
        Ok(total)
    }

    fn put(&self, bytes: &[u8], at: DevOffset) -> Result<(), Errno> {
        self.check_range(at, bytes.len() as u64)?;
        let mut chunks = self.chunks.write().unwrap_or_else(PoisonError::into_inner);
        for (chunk, skip, piece) in pieces(at, bytes.len()) {
            let chunk = chunks[chunk].get_or_insert_with(|| Arc::new([0; CHUNK]));
            Arc::make_mut(chunk)[skip..skip + piece.len()].copy_from_slice(&bytes[piece]);
        }
        Ok(())
    }

    /// Discards a range. The range reads as zeros, and its whole chunks are freed.
    fn discard(&self, at: DevOffset, len: u64) -> Result<(), Errno> {
        self.check_range(at, len)?;
        let mut chunks = self.chunks.write().unwrap_or_else(PoisonError::into_inner);
        for (chunk, skip, piece) in pieces(at, len as usize) {
            let place = &mut chunks[chunk];
            if piece.len() == CHUNK {
                *place = None;
            } else if let Some(chunk) = place {
                Arc::make_mut(chunk)[skip..skip + piece.len()].fill(0);
            }
        }
        Ok(())
    }

    fn check_range(&self, at: DevOffset, len: u64) -> Result<(), Errno> {
        let fits = at.checked_add(len).is_some_and(|end| end.0 <= self.size);
        if fits { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn check_alignment<'b>(
        &self,
        at: DevOffset,
        bufs: impl IntoIterator<Item = &'b [u8]>,
    ) -> Result<(), Errno> {
        let (unit, align) = (self.limits.logical_block as usize, self.limits.dma_align as usize);
        let buf_fits = |buf: &[u8]| {
            buf.is_empty()
                || buf.len().is_multiple_of(unit) && buf.as_ptr().addr().is_multiple_of(align)
        };
        let fits = at.0.is_multiple_of(unit as u64) && bufs.into_iter().all(buf_fits);
        if fits { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// Splits a range into parts that are each in one chunk. For each part, returns the index of the chunk, the start of the part in the chunk,
/// and the positions of the part in the range.
fn pieces(
    at: DevOffset,
    len: usize,
) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let pos = at.0 as usize + done;
        let skip = pos % CHUNK;
        let count = (CHUNK - skip).min(len - done);
        let piece = done..done + count;
        done += count;
        (count > 0).then_some((pos / CHUNK, skip, piece))
    })
}

impl Device for Ram {
    fn limits(&self) -> &Limits {
        &self.content.limits
    }

    fn size(&self) -> u64 {
        self.content.size
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        let len = buf.len();
        self.content.read(buf, at).map_err(|_| outside("read", at, len as u64))
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_within(
        &self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        _fua: bool,
        _: InRange,
    ) -> Result<()> {
        let written = self.content.write(bufs, at);
        let len = || bufs.iter().map(|buf| buf.len() as u64).sum();
        written.map(drop).map_err(|_| outside("write", at, len()))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        self.content.discard(at, len).map_err(|_| outside("discard", at, len))
    }

    fn zero_within(&self, at: DevOffset, len: u64, _: InRange) -> Result<()> {
        self.discard(at, len)
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        let transfer = RamTransfer(Arc::clone(&self.content));
        Ok(AnyQueue::other(Immediate::new(transfer, options.slots())))
    }
}

fn outside(what: &str, at: DevOffset, len: u64) -> Error {
    Error::invalid(format!(
        "{what} of {len} bytes at {at}: the range is unaligned, or ends past the device's end"
    ))
}

/// Copies data to and from the chunks.
#[derive(Debug)]
pub(super) struct RamTransfer(Arc<Content>);

impl Transfer for RamTransfer {
    fn read(&mut self, buf: &mut [u8], at: DevOffset, _flags: BioFlags) -> Result<usize, Errno> {
        self.0.check_alignment(at, [&*buf])?;
        self.0.read(buf, at)?;
        Ok(buf.len())
    }

    fn write(
        &mut self,
        bufs: &[IoSlice<'_>],
        at: DevOffset,
        _flags: BioFlags,
    ) -> Result<usize, Errno> {
        self.0.write(bufs, at)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn content(ram: &Ram) -> Vec<u8> {
        let mut bytes = vec![0; ram.size() as usize];
        ram.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
        bytes
    }

    fn write(ram: &Ram, at: u64, fill: u8, len: usize) -> Result<()> {
        ram.write_all_at(&[IoSlice::new(&vec![fill; len])], DevOffset(at), false)
    }

    /// Writes, discards and snapshots have the same results as on a plain vector. A write to one device never changes another device, even
    /// if the two devices share chunks.
    #[test]
    fn it_holds_what_was_written_and_a_snapshot_what_stood_then() {
        let size = 3 * CHUNK + 512;
        let ram = Ram::new(size as u64);
        let mut model = vec![0; size];
        let mut snapshots = Vec::new();
        for step in 0..200_u64 {
            let random = super::super::sim::mix(0x4a, step);
            let sectors = size as u64 / 512;
            let at = random % sectors;
            let len = ((random >> 16) % (sectors - at + 1) * 512) as usize;
            let (at, fill) = (at as usize * 512, step as u8 | 1);
            if step % 5 == 4 {
                ram.discard(DevOffset(at as u64), len as u64).unwrap();
                model[at..at + len].fill(0);
            } else {
                write(&ram, at as u64, fill, len).unwrap();
                model[at..at + len].fill(fill);
            }
            snapshots.push((ram.snapshot(), model.clone()));
        }
        for (snapshot, model) in &snapshots {
            assert!(content(snapshot) == *model);
            assert!(content(&Ram::from_image(model)) == *model);
        }
    }

    #[test]
    fn a_file_that_it_is_stored_to_holds_nothing_else() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 4 * CHUNK], 0).unwrap();
        let ram = Ram::new(2 * CHUNK as u64 + 512);
        write(&ram, CHUNK as u64 + 512, 3, CHUNK).unwrap();
        ram.store(&file).unwrap();
        let mut stored = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut stored, 0).unwrap();
        assert!(stored == content(&ram));
    }

    #[test]
    fn requests_that_a_block_device_refuses_are_refused() {
        let limits = Limits { logical_block: 4096, dma_align: 512, ..Ram::LIMITS };
        let ram = Ram::new(8192).with_limits(limits);
        for (at, len) in [(512, 4096), (0, 512), (8192, 4096), (u64::MAX - 4095, 4096)] {
            assert_eq!(write(&ram, at, 1, len).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        let buffer = crate::sys::Buffer::aligned(8192).unwrap();
        let odd = IoSlice::new(&buffer[4..4100]);
        assert!(ram.write_all_at(&[odd], DevOffset(0), false).is_err());
        assert!(ram.read_exact_at(&mut [0; 2], DevOffset(8191)).is_err());
        ram.read_exact_at(&mut [0; 1], DevOffset(8191)).unwrap();
    }
}
