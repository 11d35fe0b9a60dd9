//! The generic path for lent memory: the mapping loop over holes, unwritten extents, and as many extents as there are.

use std::io::IoSliceMut;

use smallvec::SmallVec;

use super::transfer::{self, Parts};
use super::{DioFlags, State, Target, bounce, parts};
use crate::bio::BioFlags;
use crate::device::{DeviceQueue, LentPart};
use crate::error::{Errno, Result};
use crate::iomap::{IomapFlags, IomapType, MapFile, Mappings};
use crate::units::{DevOffset, FilePos};

/// How many parts are in flight together for one request.
const PARTS: usize = 64;

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
    let copied = target.geometry.copied.reads;
    let address = std::iter::once((buf.as_ptr().addr(), buf.len()));
    let direct = target.geometry.is_direct(copied, pos, address, flags);
    if !direct || buf.is_empty() || pos.0 >= target.size {
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
        Err(Errno::EILSEQ) if target.geometry.rereads() => {
            Some(reread_whole(queue, state, target, buf, pos, flags))
        }
        Err(errno) => Some(Err(state.failed(errno, target.inode, pos, span.device))),
    }
}

/// Reads once more what is one piece of the device and did not match its checksums.
#[cold]
pub(super) fn reread_whole<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    buf: &mut [u8],
    pos: FilePos,
    flags: DioFlags,
) -> Result<usize> {
    let span = target.span(pos, buf.len());
    let Some(at) = one_piece(target, pos, span.device, flags)? else {
        return read_any(queue, state, target, &mut [IoSliceMut::new(buf)], pos, flags);
    };
    let (way, part) = (target.way(flags.for_bio()), &mut buf[..span.device]);
    bounce::read_again(queue, state, way, at, &mut [part])
        .map_err(|errno| state.failed(errno, target.inode, pos, span.device))?;
    buf[span.count..span.device].fill(0);
    Ok(span.count)
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
    let geometry = target.geometry;
    let addresses = bufs.iter().map(|buf| (buf.as_ptr().addr(), buf.len()));
    if target.strict && !geometry.is_aligned(pos, addresses.clone()) {
        return Err(geometry.misaligned(pos, len));
    }
    if !geometry.is_direct(geometry.copied.reads, pos, addresses, flags) {
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
    let mut bio_flags = target.geometry.for_read(flags);
    let failed = |state: &State, errno| state.failed(errno, target.inode, pos, span.device);
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
                let full = std::mem::take(&mut parts);
                transfer::read_parts(queue, state, target.way(bio_flags), full)
                    .map_err(|errno| failed(state, errno))?;
            }
        }
    }
    transfer::read_parts(queue, state, target.way(bio_flags), parts)
        .map_err(|errno| failed(state, errno))?;
    parts::zero(bufs, span.count..span.device);
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
