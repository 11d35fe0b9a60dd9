//! Writes into a range of a device.

use std::io::IoSlice;

use ironmap::device::Device;
use ironmap::units::DevOffset;
use ironmap::{Buffer, Result};

/// The maximum length of a write.
const CHUNK: usize = 1 << 20;
/// The length of the pieces that are compared with zeros, in bytes.
const PIECE: usize = 4096;

/// A range of a device that is being filled.
pub(super) struct Out<'a> {
    device: &'a dyn Device,
    start: u64,
    /// Whether the range already reads as zeros. Zeros are then not written, so that a new image file keeps its holes.
    is_zeroed: bool,
    buffer: Buffer,
}

impl<'a> Out<'a> {
    pub(super) fn new(device: &'a dyn Device, start: u64, is_zeroed: bool) -> Result<Self> {
        Ok(Self { device, start, is_zeroed, buffer: Buffer::aligned(CHUNK)? })
    }

    /// Writes bytes at a position of the range. Position and length are multiples of the sector size.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let mut at = self.start + at;
        for chunk in bytes.chunks(CHUNK) {
            self.buffer[..chunk.len()].copy_from_slice(chunk);
            let is_kept = |piece: &[u8]| !self.is_zeroed || piece.iter().any(|byte| *byte != 0);
            let mut from = 0;
            while from < chunk.len() {
                let end = |from: usize| chunk.len().min(from + PIECE);
                let keep = is_kept(&chunk[from..end(from)]);
                let mut to = end(from);
                while to < chunk.len() && is_kept(&chunk[to..end(to)]) == keep {
                    to = end(to);
                }
                if keep {
                    let part = IoSlice::new(&self.buffer[from..to]);
                    self.device.write_all_at(&[part], DevOffset(at + from as u64), false)?;
                }
                from = to;
            }
            at += chunk.len() as u64;
        }
        Ok(())
    }

    /// Makes a part of the range read as zeros.
    pub(super) fn zero(&mut self, mut at: u64, len: u64) -> Result<()> {
        if self.is_zeroed {
            return Ok(());
        }
        let end = at + len;
        self.buffer.fill(0);
        while at < end {
            let len = (end - at).min(CHUNK as u64);
            let zeros = IoSlice::new(&self.buffer[..len as usize]);
            self.device.write_all_at(&[zeros], DevOffset(self.start + at), false)?;
            at += len;
        }
        Ok(())
    }
}
