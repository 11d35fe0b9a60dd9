//! The plan of a request that does not take the simple path: the mappings of the request's range. The plan determines the flags of the
//! bios, the completion work, and whether memory is copied.

use super::bounce;
use super::{DioFlags, Request, State, Target};
use crate::bio::{BioFlags, BioOp, CompletionWork};
use crate::device::DeviceQueue;
use crate::error::{Errno, Error, Result};
use crate::iomap::{Iomap, IomapType, MapFile, Mappings};
use crate::units::FilePos;

/// Returns the mappings of a range. Each mapping is cut so that one bio can transfer it. For a write, every mapping must have blocks.
pub(super) fn plan<M: MapFile>(
    state: &mut State,
    target: &Target<'_, M>,
    request: &Request,
) -> Result<Vec<Iomap>> {
    let max = u64::from(target.geometry.limits.max_transfer);
    let mut plan = std::mem::take(&mut state.spare_plan);
    plan.clear();
    let mappings = target.mappings(request.pos, request.len, request.is_nowait());
    for iomap in mappings.to_write(request.op == BioOp::Write) {
        let iomap = iomap?;
        let mut from = iomap.pos;
        while from < iomap.end() {
            let to = FilePos(from.0.saturating_add(max)).min(iomap.end());
            plan.push(iomap.cut(from, to));
            from = to;
        }
    }
    if request.op == BioOp::Write {
        check_blocks(&plan, request)?;
    }
    Ok(plan)
}

fn check_blocks(plan: &[Iomap], request: &Request) -> Result<()> {
    if !plan.iter().all(|iomap| iomap.completion_work().is_some()) {
        return Err(Error::invalid("the file has no blocks in the range of the write"));
    }
    if request.flags.contains(DioFlags::ATOMIC)
        && !matches!(plan, [one] if one.kind == IomapType::Mapped)
    {
        let what = "an atomic write must be within one written extent";
        return Err(Error::io(Errno::EOPNOTSUPP, what));
    }
    Ok(())
}

/// Whether the request's memory needs no copy. The device must accept the caller's buffers, and also the parts into which the mappings cut
/// these buffers. `copied` contains the address bits that require a copy.
pub(super) fn is_direct<M: MapFile>(
    target: &Target<'_, M>,
    copied: usize,
    request: &Request,
    bufs: impl ExactSizeIterator<Item = (usize, usize)> + Clone,
) -> bool {
    let geometry = target.geometry;
    if !geometry.is_direct(copied, request, bufs.clone()) {
        return false;
    }
    if !geometry.cuts_can_be_misaligned() {
        return true;
    }
    // A part can begin in the middle of any buffer. The offset of the part in this buffer depends on the lengths of all earlier buffers.
    let whole =
        bufs.len() == 1 || bufs.into_iter().all(|(_, len)| geometry.takes_distance(len as u64));
    let len = target.span(request).device;
    let mappings = target.mappings(request.pos, len, request.is_nowait());
    let mut mappings = mappings.to_write(request.op == BioOp::Write);
    // The code ignores an error here, because the transfer gets the same error and reports it.
    let Some(Ok(first)) = mappings.next() else { return true };
    if first.end().0 >= request.pos.0 + len as u64 {
        return whole || len <= geometry.limits.max_transfer as usize;
    }
    let is_misaligned = |iomap: Result<Iomap>| {
        iomap.is_ok_and(|iomap| !geometry.takes_distance(iomap.pos.0 - request.pos.0))
    };
    whole && !mappings.any(is_misaligned)
}

impl<M: MapFile> Target<'_, M> {
    /// Returns the number of bytes, at most `len`, that one bounce buffer can contain. The mappings of the range cut the buffer, and the
    /// device must accept the address of each cut. If the device accepts every possible cut, the result is `len`; otherwise, it is the
    /// length of the first mapping.
    pub(super) fn uncut(&self, pos: FilePos, len: usize, resident: bool) -> usize {
        if !self.geometry.cuts_can_be_misaligned() {
            return len;
        }
        // The code ignores an error here, because the transfer gets the same error and reports it.
        match self.mappings(pos, len, resident).next() {
            Some(Ok(first)) => (first.end().0 - pos.0) as usize,
            _ => len,
        }
    }
}

/// Whether a range of this kind must be transferred. A write transfers data to an unwritten extent, which is converted to a written extent
/// afterwards. A read of an unwritten extent needs no transfer: it returns zeros.
pub(super) fn is_transferred(op: BioOp, kind: IomapType) -> bool {
    match kind {
        IomapType::Mapped => true,
        IomapType::Unwritten => op == BioOp::Write,
        IomapType::Hole | IomapType::Inline => false,
    }
}

/// Fails if the request has NOWAIT and its plan needs more slots or bounce buffers than are free. If `direct` is true, the plan needs no
/// bounce buffers.
pub(super) fn check_room(
    queue: &dyn DeviceQueue,
    state: &State,
    plan: &[Iomap],
    request: &Request,
    direct: bool,
) -> Result<()> {
    if !request.is_nowait() {
        return Ok(());
    }
    let transferred = plan.iter().filter(|iomap| is_transferred(request.op, iomap.kind));
    let lens = transferred.map(|iomap| iomap.len as usize);
    let (bios, bytes) = if direct {
        (lens.count(), 0)
    } else {
        lens.fold((0, 0), |(bios, bytes), len| {
            (bios + len.div_ceil(bounce::PIECE), bytes + bounce::room_for(len))
        })
    };
    let (room, free) = (queue.room(), state.pool.free());
    if bios > room || bytes > free {
        return Err(Error::would_block(format!(
            "the request needs {bios} slots and {bytes} bytes of bounce buffers, but only {room} slots and {free} bytes are free"
        )));
    }
    Ok(())
}

/// Returns the flags of a plan's bios. If there are several bios, HIPRI is cleared, because none of them is polled. For a write of several
/// bios, NOWAIT is cleared too, because the device could write one bio and refuse another.
pub(super) fn bio_flags<M>(
    target: &Target<'_, M>,
    plan: &[Iomap],
    request: &Request,
    direct: bool,
) -> BioFlags {
    if request.op == BioOp::Read {
        let flags = target.geometry.for_read(request.flags);
        return if plan.len() > 1 { flags - BioFlags::HIPRI } else { flags };
    }
    let (flags, piece) = (request.for_write(), bounce::PIECE as u64);
    let several = plan.len() > 1 || !direct && plan.iter().any(|iomap| iomap.len > piece);
    if several { flags - (BioFlags::HIPRI | BioFlags::NOWAIT) } else { flags }
}

/// Returns the work that must be done when a write with these mappings completes, for example the conversion of unwritten extents.
pub(super) fn left_by(plan: &[Iomap]) -> CompletionWork {
    plan.iter().filter_map(Iomap::completion_work).collect()
}

/// Whether all blocks of a range are written. Returns `Some(false)` if a block is unwritten, and `None` if a block is missing.
pub(crate) fn blocks_of<M: MapFile>(
    map: &M,
    pos: FilePos,
    len: usize,
    resident: bool,
) -> Result<Option<bool>> {
    let mut written = true;
    for iomap in
        Mappings::new(map, pos, FilePos(pos.0 + len as u64)).resident(resident).to_write(true)
    {
        match iomap?.completion_work() {
            Some(work) => written &= work.is_empty(),
            None => return Ok(None),
        }
    }
    Ok(Some(written))
}
