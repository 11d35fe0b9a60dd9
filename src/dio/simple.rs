//! The simple path's gates: a read of at most one block, of one written extent, that needs nothing but one bio.
//!
//! Everything that is asked of a request stands in [`gate`], in the order of its cost. After it there is one bio: no
//! allocation, no lock, no shared counter; the completion runs where it is reaped. Source of the gates: the review of
//! "iomap: add simple dio path for small direct I/O" on linux-fsdevel.

use super::stats::NotSimple;
use super::{DioFlags, State, Target};
use crate::iomap::{IomapFlags, IomapType, MapFile};
use crate::units::{DevOffset, FilePos};

/// What the simple path does not do.
const REFUSED: DioFlags = DioFlags::FORCE_WAIT.union(DioFlags::PARTIAL).union(DioFlags::BOUNCE);

/// Where on the device a read goes that may take the simple path, or why it may not.
///
/// That the request is a read, that it carries no residue of an earlier part and that the file is not encrypted hold for
/// whoever calls: there is no other way here.
#[inline(always)]
pub(super) fn gate<M: MapFile>(
    state: &State,
    target: &Target<'_, M>,
    pos: FilePos,
    len: usize,
    address: usize,
    flags: DioFlags,
) -> Result<DevOffset, NotSimple> {
    if !state.simple {
        return Err(NotSimple::Disabled);
    }
    if flags.intersects(REFUSED) {
        return Err(NotSimple::Flags);
    }
    let length = len as u64;
    // A length of 0 is beyond every block here.
    if length.wrapping_sub(1) >= target.geometry.block {
        return Err(NotSimple::Length);
    }
    // The size is below 2^63 and the length at most a block, so neither side overflows.
    if pos.0 >= target.size || length > target.size - pos.0 {
        return Err(NotSimple::PastSize);
    }
    if (pos.0 | length) & target.geometry.sector_mask != 0
        || address & target.geometry.dma_mask != 0
    {
        return Err(NotSimple::Misaligned);
    }
    let Some(iomap) = target.map.map_resident(pos) else {
        return Err(NotSimple::NotResident);
    };
    if iomap.kind != IomapType::Mapped {
        return Err(NotSimple::NotMapped);
    }
    // The mapping holds the position.
    if iomap.len - (pos.0 - iomap.pos.0) < length {
        return Err(NotSimple::SeveralExtents);
    }
    if iomap.flags.contains(IomapFlags::INTEGRITY) {
        return Err(NotSimple::Integrity);
    }
    Ok(iomap.addr_of(pos))
}
