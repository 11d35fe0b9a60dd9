//! The generic path for lent memory: the mapping loop over holes, unwritten extents, and as many extents as there are.

use std::collections::VecDeque;
use std::io::IoSliceMut;

use super::{DioFlags, State, Target, bounce, misaligned};
use crate::bio::BioFlags;
use crate::device::{DeviceQueue, LentPart};
use crate::error::{Errno, Result};
use crate::iomap::{Iomap, IomapType, MapFile, Mappings};
use crate::units::{DevOffset, FilePos};

/// How many parts are in flight together for one request.
const PARTS: usize = 64;

/// A part of the request on the device, and its memory.
struct Part<'a> {
    bufs: Vec<IoSliceMut<'a>>,
    at: DevOffset,
    pos: FilePos,
}

/// Reads any range into lent memory.
pub(super) fn read_now<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    bufs: &mut [IoSliceMut<'_>],
    pos: FilePos,
    flags: DioFlags,
) -> Result<usize> {
    let len: usize = bufs.iter().map(|buf| buf.len()).sum();
    let aligned = state.is_aligned(pos, bufs.iter().map(|buf| (buf.as_ptr().addr(), buf.len())));
    if !aligned && target.strict {
        return Err(misaligned(&state.limits, pos, len));
    }
    if len == 0 || pos.0 >= target.size {
        return Ok(0);
    }
    if !aligned || flags.contains(DioFlags::BOUNCE) {
        return bounce::read_now(queue, state, target, bufs, pos, flags);
    }
    read_aligned(queue, state, target, bufs, pos, flags)
}

/// Reads a range that the device can take. The position lies before the file's end.
pub(super) fn read_aligned<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    bufs: &mut [IoSliceMut<'_>],
    pos: FilePos,
    flags: DioFlags,
) -> Result<usize> {
    let len = bufs.iter().map(|buf| buf.len()).sum();
    let span = state.span(target.size, pos, len);
    let end = FilePos(pos.0 + span.device as u64);
    let mut rest: VecDeque<&mut [u8]> = bufs.iter_mut().map(|buf| &mut **buf).collect();
    let mut parts = Vec::new();
    let mut bio_flags = flags.for_bio();
    for iomap in Mappings::new(target.map, pos, end).resident(flags.contains(DioFlags::NOWAIT)) {
        let iomap = iomap?;
        if iomap.len < span.device as u64 {
            bio_flags -= BioFlags::HIPRI;
        }
        let mut iomap = iomap;
        while iomap.len > 0 {
            let count = iomap.len.min(u64::from(state.limits.max_transfer));
            let mut bufs = take(&mut rest, count as usize);
            match iomap.kind {
                IomapType::Mapped => parts.push(Part { bufs, at: iomap.addr, pos: iomap.pos }),
                IomapType::Hole | IomapType::Unwritten => {
                    bufs.iter_mut().for_each(|buf| buf.fill(0))
                }
                IomapType::Inline => read_inline(target, &mut bufs, iomap.pos)?,
            }
            iomap = Iomap {
                pos: FilePos(iomap.pos.0 + count),
                len: iomap.len - count,
                addr: DevOffset(iomap.addr.0.saturating_add(count)),
                ..iomap
            };
            if parts.len() == PARTS {
                read_parts(queue, state, target, std::mem::take(&mut parts), bio_flags)?;
            }
        }
    }
    read_parts(queue, state, target, parts, bio_flags)?;
    zero_tail(bufs, span.count, span.device);
    Ok(span.count)
}

/// Takes the first `count` bytes off the memory that is left.
fn take<'a>(rest: &mut VecDeque<&'a mut [u8]>, count: usize) -> Vec<IoSliceMut<'a>> {
    let mut taken = Vec::with_capacity(1);
    let mut left = count;
    while left > 0 {
        let Some(first) = rest.pop_front() else { break };
        let (head, tail) = first.split_at_mut(left.min(first.len()));
        left -= head.len();
        if !tail.is_empty() {
            rest.push_front(tail);
        }
        if !head.is_empty() {
            taken.push(IoSliceMut::new(head));
        }
    }
    taken
}

fn read_inline<M: MapFile>(
    target: &Target<'_, M>,
    bufs: &mut [IoSliceMut<'_>],
    pos: FilePos,
) -> Result<()> {
    let mut pos = pos;
    for buf in bufs {
        target.map.read_inline(buf, pos)?;
        pos = FilePos(pos.0 + buf.len() as u64);
    }
    Ok(())
}

/// Reads all parts; a short one is continued. The first error wins.
fn read_parts<Q: DeviceQueue, M>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    mut parts: Vec<Part<'_>>,
    flags: BioFlags,
) -> Result<()> {
    while !parts.is_empty() {
        let mut lent: Vec<LentPart<'_, '_>> =
            parts.iter_mut().map(|part| (&mut part.bufs[..], part.at)).collect();
        let results = queue.read_parts_now(&mut lent, flags);
        drop(lent);
        let mut again = Vec::new();
        for (part, result) in parts.into_iter().zip(results) {
            let len: usize = part.bufs.iter().map(|buf| buf.len()).sum();
            let errno = match result {
                Ok(count) if count == len => continue,
                // Only whole logical blocks count, since the rest must be aligned again.
                Ok(count) => match count & !(state.sector_mask as usize) {
                    0 => Errno::EIO,
                    whole => {
                        state.stats.short += 1;
                        again.push(part.skip(whole));
                        continue;
                    }
                },
                Err(errno) => errno,
            };
            return Err(state.failed(errno, target.inode, part.pos, len));
        }
        parts = again;
    }
    Ok(())
}

impl Part<'_> {
    fn skip(mut self, count: usize) -> Self {
        let mut bufs = &mut self.bufs[..];
        IoSliceMut::advance_slices(&mut bufs, count);
        let left = bufs.len();
        let gone = self.bufs.len() - left;
        self.bufs.drain(..gone);
        Self {
            bufs: self.bufs,
            at: DevOffset(self.at.0 + count as u64),
            pos: FilePos(self.pos.0 + count as u64),
        }
    }
}

/// What the device holds behind the file's end is nobody's to see.
fn zero_tail(bufs: &mut [IoSliceMut<'_>], from: usize, to: usize) {
    let mut start = 0;
    for buf in bufs {
        let (low, high) =
            (from.clamp(start, start + buf.len()), to.clamp(start, start + buf.len()));
        buf[low - start..high - start].fill(0);
        start += buf.len();
    }
}
