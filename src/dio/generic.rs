//! The generic path for lent memory: the mapping loop over holes, unwritten extents, and as many extents as there are.

use std::io::IoSliceMut;

use smallvec::SmallVec;

use super::{DioFlags, RETRIES, State, Target, bounce, zero_tail};
use crate::bio::BioFlags;
use crate::device::{DeviceQueue, LentPart};
use crate::error::{Errno, Result};
use crate::iomap::{IomapFlags, IomapType, MapFile, Mappings};
use crate::units::{DevOffset, FilePos};

/// How many parts are in flight together for one request.
const PARTS: usize = 64;

/// Parts of a request, without an allocation where they are few.
type Parts<'a> = SmallVec<[LentPart<'a>; 2]>;

/// Reads any range into lent memory.
#[inline(always)]
pub(super) fn read_now<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    bufs: &mut [IoSliceMut<'_>],
    pos: FilePos,
    flags: DioFlags,
) -> Result<usize> {
    if let [buf] = bufs
        && let Some(result) = read_whole(queue, state, target, buf, pos, flags)
    {
        return result;
    }
    read_any(queue, state, target, bufs, pos, flags)
}

/// Reads a range that is one piece of the device, as most are; `None` for any other.
#[inline(always)]
fn read_whole<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    buf: &mut [u8],
    pos: FilePos,
    flags: DioFlags,
) -> Option<Result<usize>> {
    let aligned =
        target.geometry.is_aligned(pos, std::iter::once((buf.as_ptr().addr(), buf.len())));
    if !aligned || buf.is_empty() || pos.0 >= target.size || flags.contains(DioFlags::BOUNCE) {
        return None;
    }
    let span = target.span(pos, buf.len());
    let at = match one_piece(target, pos, span.device, flags) {
        Ok(at) => at?,
        Err(error) => return Some(Err(error)),
    };
    match queue.read_now(target.dev, &mut buf[..span.device], at, flags.for_bio()) {
        Ok(count) if count == span.device => {
            buf[span.count..span.device].fill(0);
            Some(Ok(span.count))
        }
        // What was short, or refused for the moment, is done again where transfers are continued.
        Ok(_) => None,
        Err(Errno::EAGAIN) if !flags.contains(DioFlags::NOWAIT) => None,
        Err(errno) => Some(Err(state.failed(errno, target.inode, pos, span.device))),
    }
}

#[inline(never)]
fn read_any<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    bufs: &mut [IoSliceMut<'_>],
    pos: FilePos,
    flags: DioFlags,
) -> Result<usize> {
    let len: usize = bufs.iter().map(|buf| buf.len()).sum();
    if len == 0 || pos.0 >= target.size {
        return Ok(0);
    }
    let aligned =
        target.geometry.is_aligned(pos, bufs.iter().map(|buf| (buf.as_ptr().addr(), buf.len())));
    if !aligned && target.strict {
        return Err(target.geometry.misaligned(pos, len));
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
    let span = target.span(pos, len);
    let end = FilePos(pos.0 + span.device as u64);
    let mut rest = Rest { current: &mut [], more: bufs.iter_mut() };
    let mut parts = Parts::new();
    let mut bio_flags = flags.for_bio();
    for iomap in Mappings::new(target.map, pos, end).resident(flags.contains(DioFlags::NOWAIT)) {
        let mut iomap = iomap?;
        if iomap.len < span.device as u64 {
            bio_flags -= BioFlags::HIPRI;
        }
        while iomap.len > 0 {
            let count = iomap.len.min(u64::from(target.geometry.limits.max_transfer));
            let mut bufs = rest.take(count as usize);
            match iomap.kind {
                IomapType::Mapped => parts.push(LentPart::new(bufs, iomap.addr)),
                IomapType::Hole | IomapType::Unwritten => {
                    bufs.iter_mut().for_each(|buf| buf.fill(0));
                }
                IomapType::Inline => read_inline(target, &mut bufs, iomap.pos)?,
            }
            iomap = iomap.skip(count);
            if parts.len() == PARTS {
                read_parts(
                    queue,
                    state,
                    target,
                    (pos, span.device),
                    std::mem::take(&mut parts),
                    bio_flags,
                )?;
            }
        }
    }
    read_parts(queue, state, target, (pos, span.device), parts, bio_flags)?;
    zero_tail(bufs, span.count, span.device);
    Ok(span.count)
}

/// Where on the device a range lies that is one piece and one transfer, with nothing to be verified: what most requests are.
pub(super) fn one_piece<M: MapFile>(
    target: &Target<'_, M>,
    pos: FilePos,
    len: usize,
    flags: DioFlags,
) -> Result<Option<DevOffset>> {
    let end = FilePos(pos.0 + len as u64);
    let mut mappings =
        Mappings::new(target.map, pos, end).resident(flags.contains(DioFlags::NOWAIT));
    let Some(iomap) = mappings.next().transpose()? else { return Ok(None) };
    let plain = iomap.kind == IomapType::Mapped && !iomap.flags.contains(IomapFlags::INTEGRITY);
    let whole = plain && iomap.end() == end;
    Ok((whole && len <= target.geometry.limits.max_transfer as usize).then_some(iomap.addr))
}

/// The memory that is left of a request.
struct Rest<'s, 'a> {
    current: &'s mut [u8],
    more: std::slice::IterMut<'s, IoSliceMut<'a>>,
}

impl<'s> Rest<'s, '_> {
    /// Takes the first `count` bytes off.
    fn take(&mut self, count: usize) -> SmallVec<[IoSliceMut<'s>; 2]> {
        let mut taken = SmallVec::new();
        let mut left = count;
        while left > 0 {
            if self.current.is_empty() {
                let Some(next) = self.more.next() else { break };
                self.current = next;
                continue;
            }
            let current = std::mem::take(&mut self.current);
            let (head, tail) = current.split_at_mut(left.min(current.len()));
            self.current = tail;
            left -= head.len();
            taken.push(IoSliceMut::new(head));
        }
        taken
    }
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

/// Reads all parts; a short one is continued, one that was refused for the moment is asked for again. The first error wins.
fn read_parts<Q: DeviceQueue, M>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    (pos, asked): (FilePos, usize),
    mut parts: Parts<'_>,
    flags: BioFlags,
) -> Result<()> {
    let mut retries = RETRIES;
    while !parts.is_empty() {
        queue.read_parts_now(target.dev, &mut parts, flags);
        let mut again = Parts::new();
        for part in parts {
            let errno = match part.result {
                Ok(count) if count == part.len() => continue,
                // Only whole logical blocks count, since the rest must be aligned again.
                Ok(count) => match count & !(target.geometry.sector_mask as usize) {
                    0 => Errno::EIO,
                    whole => {
                        state.stats.short += 1;
                        again.push(skip(part, whole));
                        continue;
                    }
                },
                Err(Errno::EAGAIN) if !flags.contains(BioFlags::NOWAIT) => match retries {
                    0 => Errno::EIO,
                    _ => {
                        retries -= 1;
                        again.push(skip(part, 0));
                        continue;
                    }
                },
                Err(errno) => errno,
            };
            return Err(state.failed(errno, target.inode, pos, asked));
        }
        parts = again;
    }
    Ok(())
}

/// What is left of a part behind its first `count` bytes.
fn skip(mut part: LentPart<'_>, count: usize) -> LentPart<'_> {
    let mut bufs = &mut part.bufs[..];
    IoSliceMut::advance_slices(&mut bufs, count);
    let left = bufs.len();
    let gone = part.bufs.len() - left;
    part.bufs.drain(..gone);
    LentPart::new(part.bufs, DevOffset(part.at.0 + count as u64))
}
