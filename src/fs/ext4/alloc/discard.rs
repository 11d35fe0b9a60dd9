//! Discards free space: the device may drop the content of discarded blocks.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::Allocator;
use super::bitmap::Bits;
use super::summary::get;
use crate::error::{Errno, ErrorKind, Result};
use crate::fs::ext4::Ext4;
use crate::sorting::Sorting;
use crate::units::FsBlock;

impl Ext4 {
    /// Turns online discard on or off. Freed blocks are discarded after the commit that frees them.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(crate) fn discard_freed(&self, on: bool) -> Result<()> {
        self.allocator()?.discard.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Discards all free runs of at least `min_len` bytes on the device. Returns the number of discarded bytes, which is 0 if the device
    /// does not support discard. Other operations can run at the same time.
    ///
    /// # Errors
    /// `ReadOnly`; `Io`; `Corrupt` for a bitmap.
    pub(crate) fn discard_free_space(&self, min_len: u64) -> Result<u64> {
        self.watch(|| {
            let (sb, allocator) = (&self.superblock, self.allocator()?);
            let cluster = sb.cluster_blocks as usize * sb.block_size.bytes();
            let least = u32::try_from(min_len.div_ceil(cluster as u64)).unwrap_or(u32::MAX).max(1);
            let mut bytes = 0;
            for group in 0..sb.groups {
                let mut from = 0;
                while let Some(run) = allocator.keep_back_run(self, group, from, least)? {
                    from = run.end;
                    let blocks = u64::from(run.end - run.start) * u64::from(sb.cluster_blocks);
                    let discarded = self.discard(sb.cluster_start(group, run.start), blocks);
                    allocator.end_keeping(group, run);
                    match discarded {
                        Err(error) if has_no_use(error.kind()) => return Ok(bytes),
                        other => other?,
                    }
                    bytes += blocks << sb.block_size.shift();
                }
            }
            Ok(bytes)
        })
    }

    fn discard(&self, start: FsBlock, count: u64) -> Result<()> {
        let size = self.superblock.block_size;
        self.blocks.device().discard(size.offset_of(start), count << size.shift())
    }
}

impl Allocator {
    /// Finds the next long enough free run in a group, and keeps the run back. No allocation can use the run during the discard.
    fn keep_back_run(
        &self,
        fs: &Ext4,
        number: u32,
        from: u32,
        least: u32,
    ) -> Result<Option<Range<u32>>> {
        if get(&self.group(number).available) < least {
            return Ok(None);
        }
        let mut group = self.lock_group(fs, number)?;
        let content = group.block_bitmap()?;
        let locked = &mut *group.state;
        let bits = Bits::new(&content, locked.kept_back());
        let long = |run: &Range<u32>| run.end - run.start >= least;
        let run = bits.runs(from..fs.superblock.clusters_in(number)).find(long);
        let Some(run) = run else { return Ok(None) };
        self.take_clusters(number, locked, &run);
        self.keep_back(locked, run.clone(), content.len());
        Ok(Some(run))
    }

    /// Discards the blocks that a transaction has freed, before these blocks become available. Adjoining runs are discarded in one request.
    /// An error of the device is ignored.
    pub(super) fn discard_freed(&self, fs: &Ext4, freed: &[(FsBlock, u64)]) {
        let mut freed = freed.to_vec();
        freed.order();
        for run in freed.chunk_by(|(start, count), (next, _)| start.0 + count == next.0) {
            let count = run.iter().map(|(_, count)| count).sum();
            match fs.discard(run[0].0, count) {
                Err(error) if has_no_use(error.kind()) => {
                    return self.discard.store(false, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }
}

/// Whether an error means that the device does not support discard.
fn has_no_use(kind: ErrorKind) -> bool {
    kind == ErrorKind::Io(Errno::EOPNOTSUPP)
}
