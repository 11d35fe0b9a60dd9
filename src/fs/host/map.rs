//! The map of a host file: the result of FIEMAP under the lease.

use std::os::fd::BorrowedFd;

use super::Refusal;
use crate::device::Limits;
use crate::error::{Errno, Error, Result};
use crate::iomap::{Extent, ExtentMap, ExtentState, Iomap, MapFile};
use crate::sys::{FiemapExtent, FiemapFlags, fiemap};
use crate::units::{BlockSize, FileBlock, FilePos, FsBlock};

/// The maximum number of extents of a map. This number of extents needs 96 MiB of memory, and the index of the extents needs 80 MiB.
const MOST_EXTENTS: usize = 4 << 20;

/// The location of a host file's data on its device. The map is read under a lease, and is valid until this lease ends.
#[derive(Debug)]
pub struct HostMap {
    extents: ExtentMap,
    size: u64,
    shared: bool,
}

/// The properties of a host file's device that are needed to check the file's map.
#[derive(Clone, Copy, Debug)]
pub struct Beneath {
    /// Size of the file system's device in bytes.
    pub size: u64,
    /// The limits of requests to the device.
    pub limits: Limits,
}

impl HostMap {
    /// Writes the file's data back and reads its map. `size` is the file's size. A lease must exclude writers during the call.
    pub(super) fn read(
        file: BorrowedFd<'_>,
        size: u64,
        block: BlockSize,
        beneath: &Beneath,
    ) -> Result<Self, Refusal> {
        let end = size.next_multiple_of(block.bytes() as u64);
        let found = fiemap(file, end, MOST_EXTENTS).map_err(|errno| match errno {
            Errno::EFBIG => Refusal::TooManyExtents,
            errno => Refusal::Failed("FIEMAP", errno),
        })?;
        let mut extents = Vec::with_capacity(found.len());
        let mut shared = false;
        // Preallocated extents past the file's end may have no position on the device. They are skipped, because they are never read.
        for extent in found.iter().filter(|extent| extent.logical < end) {
            refuse(extent)?;
            shared |= extent.flags.contains(FiemapFlags::SHARED);
            push(extent, block, beneath, &mut extents)?;
        }
        let extents = ExtentMap::new(extents, block).map_err(|_| Refusal::Unaligned)?;
        Ok(Self { extents, size, shared })
    }

    /// The file's size in bytes. The size cannot change while the lease is held.
    #[must_use]
    #[inline(always)]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The extents in order. Adjacent extents are merged.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        self.extents.extents()
    }

    /// Whether some of the blocks are shared with another file.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared
    }
}

/// Refuses an extent whose data cannot be returned by a raw read.
fn refuse(extent: &FiemapExtent) -> Result<(), Refusal> {
    let of = |flags| extent.flags.intersects(flags);
    if of(FiemapFlags::ENCRYPTED) {
        Err(Refusal::Encrypted)
    } else if of(FiemapFlags::INLINE | FiemapFlags::TAIL) {
        Err(Refusal::Inline)
    } else if of(FiemapFlags::DELALLOC | FiemapFlags::UNKNOWN) {
        Err(Refusal::NotAllocated)
    } else if of(FiemapFlags::ENCODED) {
        Err(Refusal::Encoded)
    } else if of(FiemapFlags::NOT_ALIGNED) {
        Err(Refusal::Unaligned)
    } else {
        Ok(())
    }
}

/// Adds an extent. An extent that is too long for an entry of the map is split.
fn push(
    extent: &FiemapExtent,
    block: BlockSize,
    beneath: &Beneath,
    into: &mut Vec<Extent>,
) -> Result<(), Refusal> {
    let aligned =
        (extent.logical | extent.physical | extent.length) & (block.bytes() as u64 - 1) == 0;
    if !aligned || block.bytes() < beneath.limits.logical_block as usize {
        return Err(Refusal::Unaligned);
    }
    let end = extent.physical.checked_add(extent.length).filter(|end| *end <= beneath.size);
    if end.is_none() || extent.logical.checked_add(extent.length).is_none() {
        return Err(Refusal::OutsideDevice);
    }
    let state = if extent.flags.contains(FiemapFlags::UNWRITTEN) {
        ExtentState::Unwritten
    } else {
        ExtentState::Written
    };
    let shift = block.shift();
    let (mut first, mut start) = (extent.logical >> shift, extent.physical >> shift);
    let mut left = extent.length >> shift;
    while left > 0 {
        let len = left.min(u64::from(u32::MAX)) as u32;
        into.push(Extent { first: FileBlock(first), start: FsBlock(start), len, state });
        first += u64::from(len);
        start += u64::from(len);
        left -= u64::from(len);
    }
    Ok(())
}

impl MapFile for HostMap {
    #[inline(always)]
    fn map(&self, pos: FilePos, _len: u64) -> Result<Iomap> {
        Ok(self.extents.lookup(pos))
    }

    #[inline(always)]
    fn map_resident(&self, pos: FilePos) -> Option<Iomap> {
        Some(self.extents.lookup(pos))
    }

    fn read_inline(&self, _buf: &mut [u8], _pos: FilePos) -> Result<()> {
        // FIEMAP extents with inline data are refused.
        Err(Error::invalid("a file of a mounted file system has no inline data"))
    }
}
