//! The generic path for reads into borrowed memory. It processes each mapping of the range: holes, unwritten extents, and any number of
//! written extents.

use std::io::IoSliceMut;

use smallvec::SmallVec;

use super::transfer::Parts;
use super::{Io, Request, State, Target, parts, plan};
use crate::bio::BioFlags;
use crate::device::{DeviceQueue, LentPart};
use crate::error::{Errno, Result};
use crate::iomap::{IomapFlags, IomapType, MapFile, Mappings};
use crate::units::{DevOffset, FilePos};

/// The largest number of parts of one request that are in flight at the same time.
const PARTS: usize = 64;

/// Reads any range into borrowed memory.
#[inline(always)]
pub(super) fn read_now<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    bufs: &mut [IoSliceMut<'_>],
    request: &Request,
) -> Result<usize> {
    if let [buf] = bufs
        && let Some(result) = read_whole(queue, state, target, buf, request)
    {
        return result;
    }
    let request = *request;
    Io { queue, state }.read_any(target, bufs, &request)
}

/// Reads a range that is contiguous on the device, as most ranges are. Returns `None` if the general loop must read the range.
#[inline(always)]
fn read_whole<Q: DeviceQueue, M: MapFile>(
    queue: &mut Q,
    state: &mut State,
    target: &Target<'_, M>,
    buf: &mut [u8],
    request: &Request,
) -> Option<Result<usize>> {
    let copied = target.geometry.copied.reads;
    let address = std::iter::once((buf.as_ptr().addr(), buf.len()));
    let direct = target.geometry.is_direct(copied, request, address);
    if !direct || buf.is_empty() || request.pos.0 >= target.size {
        return None;
    }
    let span = target.span(request);
    let at = match one_piece(target, request.pos, span.device, request.is_nowait()) {
        Ok(at) => at?,
        Err(error) => return Some(Err(error)),
    };
    match queue.read_now(target.dev, &mut buf[..span.device], at, request.flags.for_bio()) {
        Ok(count) if count == span.device => {
            if span.count < count {
                buf[span.count..count].fill(0);
            }
            Some(Ok(span.count))
        }
        // After a short transfer or EAGAIN, the general loop reads the whole range.
        Ok(_) => None,
        Err(Errno::EAGAIN) if !request.is_nowait() => None,
        Err(Errno::EILSEQ) if target.geometry.rereads() => {
            let request = *request;
            Some(Io { queue, state }.reread_whole(target, buf, &request))
        }
        Err(errno) => {
            let device = Request { len: span.device, ..*request };
            Some(Err(state.failed(errno, target.inode, &device)))
        }
    }
}

impl Io<'_> {
    /// Repeats the read of a contiguous range whose data did not match their checksums.
    #[cold]
    pub(super) fn reread_whole<M: MapFile>(
        &mut self,
        target: &Target<'_, M>,
        buf: &mut [u8],
        request: &Request,
    ) -> Result<usize> {
        let span = target.span(request);
        let device = Request { len: span.device, ..*request };
        let Some(at) = one_piece(target, request.pos, span.device, request.is_nowait())? else {
            return self.read_any(target, &mut [IoSliceMut::new(buf)], request);
        };
        let (to, part) = (target.transfer_to(request.flags.for_bio()), &mut buf[..span.device]);
        self.reread(to, at, &mut [part])
            .map_err(|errno| self.state.failed(errno, target.inode, &device))?;
        buf[span.count..span.device].fill(0);
        Ok(span.count)
    }

    #[inline(never)]
    fn read_any<M: MapFile>(
        &mut self,
        target: &Target<'_, M>,
        bufs: &mut [IoSliceMut<'_>],
        request: &Request,
    ) -> Result<usize> {
        if request.len == 0 || request.pos.0 >= target.size {
            return Ok(0);
        }
        let geometry = target.geometry;
        let addresses = bufs.iter().map(|buf| (buf.as_ptr().addr(), buf.len()));
        if *target.strict && !geometry.is_aligned(request.pos, addresses.clone()) {
            return Err(geometry.misaligned(request.pos, request.len));
        }
        if !plan::is_direct(target, geometry.copied.reads, request, addresses) {
            return self.read_bounced(target, bufs, request);
        }
        self.read_aligned(target, bufs, request)
    }

    /// Reads a range whose alignment the device accepts. The caller has checked that the position is before the end of the file.
    pub(super) fn read_aligned<M: MapFile>(
        &mut self,
        target: &Target<'_, M>,
        bufs: &mut [IoSliceMut<'_>],
        request: &Request,
    ) -> Result<usize> {
        let span = target.span(request);
        let device = Request { len: span.device, ..*request };
        let mut rest = Rest { current: &mut [], more: bufs.iter_mut() };
        let mut parts = Parts::new();
        let mut flags = target.geometry.for_read(request.flags);
        let failed = |state: &State, errno| state.failed(errno, target.inode, &device);
        for iomap in target.mappings(request.pos, span.device, request.is_nowait()) {
            let mut iomap = iomap?;
            if iomap.len < span.device as u64 {
                flags -= BioFlags::HIPRI;
            }
            while iomap.len > 0 {
                let count = iomap.len.min(u64::from(target.geometry.limits.max_transfer));
                let mut bufs = rest.take(count as usize);
                if iomap.kind == IomapType::Mapped {
                    parts.push(LentPart::new(bufs, iomap.addr));
                } else {
                    let bufs = bufs.iter_mut().map(|buf| &mut **buf);
                    target.read_unmapped(iomap.kind, iomap.pos, bufs)?;
                }
                iomap = iomap.skip(count);
                if parts.len() == PARTS {
                    self.read_parts(target.transfer_to(flags), std::mem::take(&mut parts))
                        .map_err(|errno| failed(self.state, errno))?;
                }
            }
        }
        self.read_parts(target.transfer_to(flags), parts)
            .map_err(|errno| failed(self.state, errno))?;
        parts::zero(bufs, span.count..span.device);
        Ok(span.count)
    }
}

/// Returns the device offset of a range. Most ranges have a single device offset. Returns `None` if one transfer cannot read the range, or
/// if the data must be verified.
pub(super) fn one_piece<M: MapFile>(
    target: &Target<'_, M>,
    pos: FilePos,
    len: usize,
    resident: bool,
) -> Result<Option<DevOffset>> {
    let mut mappings = target.mappings(pos, len, resident);
    let Some(iomap) = mappings.next().transpose()? else { return Ok(None) };
    let plain = iomap.kind == IomapType::Mapped && !iomap.flags.contains(IomapFlags::INTEGRITY);
    let whole = plain && iomap.end().0 == pos.0 + len as u64;
    Ok((whole && len <= target.geometry.limits.max_transfer as usize).then_some(iomap.addr))
}

/// The part of a request's memory that is not yet filled.
struct Rest<'s, 'a> {
    current: &'s mut [u8],
    more: std::slice::IterMut<'s, IoSliceMut<'a>>,
}

impl<'s> Rest<'s, '_> {
    /// Removes the first `count` bytes, and returns them.
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

impl<M: MapFile> Target<'_, M> {
    /// Returns the mappings of a range.
    pub(super) fn mappings(&self, pos: FilePos, len: usize, resident: bool) -> Mappings<'_, M> {
        Mappings::new(self.map, pos, FilePos(pos.0 + len as u64)).resident(resident)
    }

    /// Fills buffers without the device: with zeros, or with inline data from the metadata.
    pub(super) fn read_unmapped<'b>(
        &self,
        kind: IomapType,
        mut pos: FilePos,
        bufs: impl Iterator<Item = &'b mut [u8]>,
    ) -> Result<()> {
        for buf in bufs {
            if kind == IomapType::Inline {
                self.map.read_inline(buf, pos)?;
            } else {
                buf.fill(0);
            }
            pos = FilePos(pos.0 + buf.len() as u64);
        }
        Ok(())
    }
}
