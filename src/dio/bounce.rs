//! Bounce buffers: what the device cannot take is read into memory that it can, and copied.

use std::io::IoSliceMut;

use smallvec::SmallVec;

use super::{DioFlags, Geometry, State, Target, generic};
use crate::bio::Buffer;
use crate::device::DeviceQueue;
use crate::error::Result;
use crate::iomap::MapFile;
use crate::units::FilePos;

/// Size of a bounce buffer; larger requests are read piece by piece.
const SIZE: usize = 256 << 10;
/// How many are kept for the next request.
const KEPT: usize = 4;

impl State {
    pub(super) fn take_bounce(&mut self) -> Result<Buffer> {
        self.spare.pop().map_or_else(|| Buffer::aligned(SIZE), Ok)
    }

    pub(super) fn keep_bounce(&mut self, buffer: Buffer) {
        if self.spare.len() < KEPT {
            self.spare.push(buffer);
        }
    }
}

impl Geometry {
    /// The aligned range that holds `len` bytes at `pos`: its start, its length, and the distance of `pos` from the start.
    pub(crate) fn widen(&self, pos: FilePos, len: usize) -> (FilePos, usize, usize) {
        let start = pos.0 & !self.sector_mask;
        let skip = (pos.0 - start) as usize;
        let widened = (skip + len).next_multiple_of(self.sector());
        (FilePos(start), widened, skip)
    }
}

/// Reads any range at any address. The position lies before the file's end.
pub(super) fn read_now<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    bufs: &mut [IoSliceMut<'_>],
    pos: FilePos,
    flags: DioFlags,
) -> Result<usize> {
    state.stats.bounced += 1;
    let mut bounce = state.take_bounce()?;
    let result = copy_through(queue, state, target, bufs, pos, flags, &mut bounce);
    state.keep_bounce(bounce);
    result
}

fn copy_through<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    bufs: &mut [IoSliceMut<'_>],
    pos: FilePos,
    flags: DioFlags,
    bounce: &mut Buffer,
) -> Result<usize> {
    let len: usize = bufs.iter().map(|buf| buf.len()).sum();
    let want = target.size.saturating_sub(pos.0).min(len as u64) as usize;
    // The caller's own slices stay as they are: it may read into them again.
    let mut slices: SmallVec<[_; 2]> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
    let mut left = &mut slices[..];
    let mut done = 0;
    while done < want {
        let here = FilePos(pos.0 + done as u64);
        let (start, widened, skip) = target.geometry.widen(here, want - done);
        let piece = &mut bounce[..widened.min(SIZE)];
        let count = generic::read_aligned(
            queue,
            state,
            target,
            &mut [IoSliceMut::new(piece)],
            start,
            flags,
        )?;
        let data = &bounce[skip..count.min(skip + want - done)];
        copy_out(data, &mut left);
        done += data.len();
    }
    Ok(done)
}

/// Copies to the front of several buffers and takes what is full off them.
fn copy_out(mut data: &[u8], bufs: &mut &mut [IoSliceMut<'_>]) {
    while let Some(first) = bufs.first_mut() {
        let count = data.len().min(first.len());
        first[..count].copy_from_slice(&data[..count]);
        data = &data[count..];
        IoSliceMut::advance_slices(bufs, count);
        if data.is_empty() {
            break;
        }
    }
}
