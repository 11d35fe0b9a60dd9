//! A device that keeps changes in memory. A volume change is first tried on this device, and then made on the real device.

use std::collections::{BTreeMap, HashMap};
use std::io::IoSlice;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{AnyQueue, Device, InRange, Limits, QueueOptions};
use crate::error::{Error, Result};
use crate::units::{BlockSize, DevOffset};

/// A device over another device. It reads from the device below, and never writes to it. It keeps written metadata in memory. If a resize
/// copies a range of file data to another position, this device records only the two positions: about 64 bytes for each range.
pub(crate) struct Dry {
    base: Arc<dyn Device>,
    size: BlockSize,
    changes: Mutex<Changes>,
}

#[derive(Default)]
struct Changes {
    /// The blocks that were written.
    written: HashMap<u64, Box<[u8]>>,
    /// The copied ranges, keyed by their start on this device. The value contains the length of the range and the position of the data on
    /// the device below.
    copied: BTreeMap<u64, (u64, u64)>,
}

/// Where the content of a block is stored.
enum Content<'a> {
    Written(&'a [u8]),
    /// The content is on the device below. The fields are the number of the first block there and the number of contiguous blocks.
    Below(u64, u64),
}

impl Dry {
    pub(crate) fn over(base: Arc<dyn Device>, size: BlockSize) -> Self {
        Self { base, size, changes: Mutex::default() }
    }

    /// Copies blocks. Blocks whose content is only on the device below are not read: the copy refers to them.
    pub(crate) fn copy(&self, from: u64, to: u64, count: u64) {
        let mut changes = self.changes.lock();
        let (mut blocks, mut ranges) = (Vec::new(), Vec::new());
        let mut done = 0;
        while done < count {
            done += match changes.content(from + done, count - done) {
                Content::Written(content) => {
                    blocks.push((to + done, Box::from(content)));
                    1
                }
                Content::Below(source, len) => {
                    ranges.push((to + done, (len, source)));
                    len
                }
            };
        }
        changes.forget(to, count);
        changes.written.extend(blocks);
        changes.copied.extend(ranges);
    }

    fn read(&self, changes: &Changes, mut buf: &mut [u8], at: DevOffset) -> Result<()> {
        let (size, shift) = (self.size.bytes(), self.size.shift());
        let mut at = at.0;
        while !buf.is_empty() {
            let (block, skip) = (at >> shift, at as usize & (size - 1));
            let most = (skip + buf.len()).div_ceil(size) as u64;
            let content = changes.content(block, most);
            let count = if let Content::Below(_, count) = content { count as usize } else { 1 };
            let (part, rest) = buf.split_at_mut((count * size - skip).min(buf.len()));
            match content {
                Content::Written(content) => {
                    part.copy_from_slice(&content[skip..skip + part.len()]);
                }
                Content::Below(source, _) => {
                    let source = DevOffset((source << shift) + skip as u64);
                    self.base.read_exact_at(part, source)?;
                }
            }
            at += part.len() as u64;
            buf = rest;
        }
        Ok(())
    }

    fn write(&self, changes: &mut Changes, mut buf: &[u8], at: DevOffset) -> Result<()> {
        let (size, shift) = (self.size.bytes(), self.size.shift());
        let mut at = at.0;
        while !buf.is_empty() {
            let (block, skip) = (at >> shift, at as usize & (size - 1));
            let (part, rest) = buf.split_at((size - skip).min(buf.len()));
            let mut content = vec![0; size].into_boxed_slice();
            if part.len() < size {
                self.read(changes, &mut content, DevOffset(block << shift))?;
            }
            content[skip..skip + part.len()].copy_from_slice(part);
            changes.written.insert(block, content);
            at += part.len() as u64;
            buf = rest;
        }
        Ok(())
    }
}

impl Changes {
    /// Returns where the content of `block` is stored. If the content is on the device below, also returns the number of blocks, starting
    /// at `block` and at most `most`, whose contents are contiguous there.
    fn content(&self, block: u64, most: u64) -> Content<'_> {
        if let Some(content) = self.written.get(&block) {
            return Content::Written(content);
        }
        let (source, end) = match self.copied.range(..=block).next_back() {
            Some((start, (len, source))) if block < start + len => {
                (source + (block - start), start + len)
            }
            _ => {
                let next = self.copied.range(block..).next();
                (block, next.map_or(u64::MAX, |(start, _)| *start))
            }
        };
        let end = end.min(block.saturating_add(most));
        let written = (block + 1..end).find(|next| self.written.contains_key(next));
        Content::Below(source, written.unwrap_or(end) - block)
    }

    /// Forgets the content of a range, because the caller stores new content for it.
    fn forget(&mut self, start: u64, count: u64) {
        let end = start + count;
        if self.written.len() as u64 > count {
            (start..end).for_each(|block| drop(self.written.remove(&block)));
        } else {
            self.written.retain(|block, _| !(start..end).contains(block));
        }
        let before = self.copied.range(..start).next_back().map(|(at, _)| *at);
        let within = self.copied.range(start..end).map(|(at, _)| *at);
        for at in before.into_iter().chain(within).collect::<Vec<_>>() {
            let Some((len, source)) = self.copied.remove(&at) else { continue };
            if at < start {
                self.copied.insert(at, (len.min(start - at), source));
            }
            if at + len > end {
                self.copied.insert(end, (at + len - end, source + (end - at)));
            }
        }
    }
}

impl Device for Dry {
    fn limits(&self) -> &Limits {
        self.base.limits()
    }

    fn size(&self) -> u64 {
        self.base.size()
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        self.read(&self.changes.lock(), buf, at)
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
        let (mut changes, mut at) = (self.changes.lock(), at);
        for buf in bufs {
            self.write(&mut changes, buf, at)?;
            at.0 += buf.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn queue_within(&self, _options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Err(Error::unsupported("a device whose changes stay in memory has no request queue"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Ram;

    /// After random writes and copies, the device has the same content as a vector with the same changes. The device below never changes.
    #[test]
    fn copies_and_writes_are_seen_and_the_device_is_not_changed() {
        const BLOCK: usize = 1024;
        const BLOCKS: usize = 64;
        let image: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / 7 * 31) as u8).collect();
        let base: Arc<dyn Device> = Arc::new(Ram::from_image(&image));
        let dry = Dry::over(Arc::clone(&base), BlockSize::from_shift(10).unwrap());
        let mut model = image.clone();
        let mut seed = 0x0031_4159_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        for step in 0..3000 {
            let (from, to) = (random(BLOCKS), random(BLOCKS));
            let count = 1 + random(BLOCKS - from.max(to)).min(9);
            if step % 3 == 0 {
                let (at, len) = (to * BLOCK + random(700), 1 + random(count * BLOCK - 700 + 1));
                let bytes: Vec<u8> = (0..len).map(|at| (at + step) as u8).collect();
                let half = len / 2;
                let parts = [IoSlice::new(&bytes[..half]), IoSlice::new(&bytes[half..])];
                let len = len.min(model.len() - at);
                dry.write_all_at(&parts, DevOffset(at as u64), false).unwrap();
                model[at..at + len].copy_from_slice(&bytes[..len]);
            } else if from.abs_diff(to) >= count {
                dry.copy(from as u64, to as u64, count as u64);
                model.copy_within(from * BLOCK..(from + count) * BLOCK, to * BLOCK);
            }
            let mut seen = vec![0; model.len()];
            dry.read_exact_at(&mut seen, DevOffset(0)).unwrap();
            assert!(seen == model, "step {step}");
        }
        let mut below = vec![0; image.len()];
        base.read_exact_at(&mut below, DevOffset(0)).unwrap();
        assert!(below == image);
    }
}
