//! The gates of the simple path. A gate is a function that checks whether one bio can carry out a request without further steps. The
//! following requests can pass:
//!
//! - a read of at most one file-system block, within one written extent;
//! - a write of at most one bio, within one extent, which may be unwritten.
//!
//! [`gate_request`] checks the conditions that do not depend on the mapping, cheapest first. [`gate`] and [`gate_write`] also check the
//! mapping. A request that passes needs no allocation, no lock and no shared counter. The gates for reads follow the review of "iomap: add
//! simple dio path for small direct I/O" on linux-fsdevel.

use super::stats::NotSimple;
use super::{DioFlags, Request, State, Target};
use crate::bio::CompletionWork;
use crate::iomap::{Iomap, IomapFlags, IomapType, MapFile};
use crate::units::{DevOffset, FilePos};

/// The device offset of a write on the simple path, and the work that must be done when the write completes.
pub(crate) type Passed = (DevOffset, CompletionWork);

/// The flags that the simple path does not support.
const REFUSED: DioFlags = DioFlags::FORCE_WAIT.union(DioFlags::BOUNCE);

/// Checks whether a read can take the simple path. Returns the device offset, or the reason why the read cannot take this path.
///
/// All callers ensure three conditions: the request is a read, it does not continue an earlier part of a request, and the file is not
/// encrypted.
#[inline(always)]
pub(super) fn gate<M: MapFile>(
    state: &State,
    target: &Target<'_, M>,
    request: &Request,
    address: usize,
) -> Result<DevOffset, NotSimple> {
    let copied = target.geometry.copied.reads;
    gate_read(state, target, request, address, copied, target.geometry.block)
}

/// Checks whether one bio can carry out a read whose data are copied through a bounce buffer. The length of the read is at most one bio.
#[inline(always)]
pub(super) fn gate_copied<M: MapFile>(
    state: &State,
    target: &Target<'_, M>,
    request: &Request,
    address: usize,
) -> Result<DevOffset, NotSimple> {
    let aligned = target.geometry.copied.ours;
    let most = u64::from(target.geometry.limits.max_transfer);
    gate_read(state, target, request, address, aligned, most)
}

/// Checks whether one bio can carry out a read directly into lent memory, without a copy. The length of the read is at most one bio.
#[inline(always)]
pub(super) fn gate_lent<M: MapFile>(
    state: &State,
    target: &Target<'_, M>,
    request: &Request,
    address: usize,
) -> Result<DevOffset, NotSimple> {
    let most = u64::from(target.geometry.limits.max_transfer);
    gate_read(state, target, request, address, target.geometry.copied.reads, most)
}

#[inline(always)]
fn gate_read<M: MapFile>(
    state: &State,
    target: &Target<'_, M>,
    request: &Request,
    address: usize,
    copied: usize,
    most: u64,
) -> Result<DevOffset, NotSimple> {
    gate_request(state, target, request, address, copied, most)?;
    let Request { pos, len, .. } = *request;
    match target.map.map_recorded(pos) {
        Some(iomap) if iomap.kind == IomapType::Mapped => at::<false>(&iomap, pos, len),
        _ => written_since(target.map, pos, len),
    }
}

/// Checks a range that is unwritten or unmapped in the recorded metadata. If a write has filled the range since the metadata were recorded,
/// returns the device offset of the range.
#[cold]
#[inline(never)]
fn written_since<M: MapFile>(map: &M, pos: FilePos, len: usize) -> Result<DevOffset, NotSimple> {
    match map.map_resident(pos) {
        Some(iomap) if iomap.kind == IomapType::Mapped => at::<false>(&iomap, pos, len),
        Some(_) => Err(NotSimple::NotMapped),
        None => Err(NotSimple::NotResident),
    }
}

/// Checks whether a write can take the simple path. `copied` contains the address bits that require a copy. A write from memory whose
/// address contains one of these bits cannot take this path. The length of the write is at most one bio. If the extent is unwritten, it
/// must be converted after the write.
#[inline(always)]
pub(super) fn gate_write<M: MapFile>(
    state: &State,
    target: &Target<'_, M>,
    request: &Request,
    address: usize,
    copied: usize,
) -> Result<Passed, NotSimple> {
    let most = u64::from(target.geometry.limits.max_transfer);
    gate_request(state, target, request, address, copied, most)?;
    let Some(iomap) = target.map.map_recorded(request.pos) else {
        return Err(rare(NotSimple::NotResident));
    };
    let Some(left) = iomap.plain_completion_work() else {
        return Err(rare(NotSimple::NotMapped));
    };
    Ok((at::<true>(&iomap, request.pos, request.len)?, left))
}

/// Checks the conditions that do not depend on the mapping.
#[inline(always)]
fn gate_request<M>(
    state: &State,
    target: &Target<'_, M>,
    request: &Request,
    address: usize,
    copied: usize,
    most: u64,
) -> Result<(), NotSimple> {
    if !state.simple {
        return Err(rare(NotSimple::Disabled));
    }
    let Request { pos, len, flags, .. } = *request;
    if flags.intersects(REFUSED) {
        return Err(rare(NotSimple::Flags));
    }
    let length = len as u64;
    // This test also refuses the length 0: the subtraction wraps around, and the result exceeds every limit.
    if length.wrapping_sub(1) >= most {
        return Err(rare(NotSimple::Length));
    }
    // The subtraction is made only if the position is less than the size, so it does not underflow.
    if pos.0 >= target.size || length > target.size - pos.0 {
        return Err(rare(NotSimple::PastSize));
    }
    if (pos.0 | length) & target.geometry.sector_mask != 0 || address & copied != 0 {
        return Err(target.geometry.why_copied(pos, len, address));
    }
    Ok(())
}

/// Returns its argument. The function is not inlined, so that the code for refused requests stays away from the code for requests that
/// pass.
#[cold]
#[inline(never)]
fn rare(reason: NotSimple) -> NotSimple {
    std::hint::black_box(reason)
}

/// Returns the device offset of a range. The mapping must contain the whole range, and the data must need no verification. A write (`WRITES`)
/// must not change shared blocks.
#[inline(always)]
fn at<const WRITES: bool>(iomap: &Iomap, pos: FilePos, len: usize) -> Result<DevOffset, NotSimple> {
    if iomap.len - (pos.0 - iomap.pos.0) < len as u64 {
        return Err(rare(NotSimple::SeveralExtents));
    }
    let shared = if WRITES { IomapFlags::SHARED } else { IomapFlags::empty() };
    if iomap.flags.intersects(IomapFlags::INTEGRITY.union(shared)) {
        let is_shared = iomap.flags.contains(IomapFlags::SHARED);
        return Err(rare(if is_shared { NotSimple::Shared } else { NotSimple::Integrity }));
    }
    Ok(iomap.addr_of(pos))
}
