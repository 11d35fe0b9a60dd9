//! Writes complete blocks to the device, from aligned buffers.

use std::io::IoSlice;
use std::ops::Range;

use crate::device::Device;
use crate::error::{Errno, Result};
use crate::sorting::Sorting;
use crate::sys::Buffer;
use crate::units::{BlockSize, DevOffset, FsBlock};

/// The maximum length of a single write of zeros.
const ZEROS: usize = 1 << 20;

/// The device to which a new volume's blocks are written.
pub(in crate::fs::ext4) struct Output<'a> {
    device: &'a dyn Device,
    size: BlockSize,
    zeros: Buffer,
}

impl<'a> Output<'a> {
    pub(in crate::fs::ext4) fn new(device: &'a dyn Device, size: BlockSize) -> Result<Self> {
        Ok(Self { device, size, zeros: Buffer::aligned(ZEROS)? })
    }

    /// Writes complete blocks from `block` on.
    pub(in crate::fs::ext4) fn write(&self, block: u64, content: &[u8]) -> Result<()> {
        let at = self.size.offset_of(FsBlock(block));
        self.device.write_all_at(&[IoSlice::new(content)], at, false)
    }

    /// Writes blocks. Adjoining blocks are written in one request.
    pub(in crate::fs::ext4) fn write_all(&self, mut blocks: Vec<(u64, Buffer)>) -> Result<()> {
        blocks.order_by_key(|(block, _)| *block);
        for run in blocks.chunk_by(|(one, content), (next, _)| {
            *next == one + (content.len() as u64 >> self.size.shift())
        }) {
            let slices: Vec<_> = run.iter().map(|(_, content)| IoSlice::new(content)).collect();
            let at = self.size.offset_of(FsBlock(run[0].0));
            self.device.write_all_at(&slices, at, false)?;
        }
        Ok(())
    }

    /// Zeros blocks. Uses a write-zeroes request if the device supports it, and writes of zeros otherwise.
    pub(in crate::fs::ext4) fn zero(&self, blocks: Range<u64>) -> Result<()> {
        let (mut at, end) = (blocks.start << self.size.shift(), blocks.end << self.size.shift());
        if at >= end {
            return Ok(());
        }
        match self.device.write_zeroes(DevOffset(at), end - at) {
            Err(error) if error.errno() == Errno::EOPNOTSUPP => {}
            result => return result,
        }
        while at < end {
            let len = (end - at).min(ZEROS as u64) as usize;
            let zeros = [IoSlice::new(&self.zeros[..len])];
            self.device.write_all_at(&zeros, DevOffset(at), false)?;
            at += len as u64;
        }
        Ok(())
    }

    /// Makes all writes durable.
    pub(in crate::fs::ext4) fn flush(&self) -> Result<()> {
        self.device.flush()
    }
}
