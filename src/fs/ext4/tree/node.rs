//! Changes the bytes of a node, and converts its entries.

use std::ops::Range;

use smallvec::SmallVec;
use zerocopy::{FromBytes, transmute};

use crate::error::{Place, Result};
use crate::fs::ext4::disk::extent::{
    INIT_MAX_LEN, MAGIC, RawEntry, RawExtent, RawExtentHeader, RawExtentIndex,
};
use crate::iomap::{Extent, ExtentState};
use crate::units::FsBlock;

/// The entries that replace other entries in a node.
pub(super) type Entries = SmallVec<[RawEntry; 4]>;

/// The maximum number of entries in a node's block. The remaining bytes have space for the checksum.
pub(super) fn capacity(block_bytes: usize) -> usize {
    (block_bytes - size_of::<RawExtentHeader>()) / size_of::<RawEntry>()
}

/// A node: its header, and all its slots for entries, used and unused.
pub(super) struct NodeMut<'a> {
    header: &'a mut RawExtentHeader,
    slots: &'a mut [RawEntry],
}

impl<'a> NodeMut<'a> {
    /// Checks the header of the node in these bytes.
    pub(super) fn of(bytes: &'a mut [u8], place: Place) -> Result<Self> {
        let cut = || place.corrupt("the node is truncated");
        let (header, rest) = RawExtentHeader::mut_from_prefix(bytes).map_err(|_| cut())?;
        let max = usize::from(header.eh_max.get());
        let slots = <[RawEntry]>::mut_from_prefix_with_elems(rest, max);
        let (slots, _) = slots.map_err(|_| cut())?;
        if usize::from(header.eh_entries.get()) > max {
            return Err(place
                .field("eh_entries")
                .corrupt("the number of entries is larger than eh_max"));
        }
        Ok(Self { header, slots })
    }

    /// Initialises a node in zeroed bytes.
    pub(super) fn init(bytes: &mut [u8], depth: u16, entries: &[RawEntry]) {
        let max = capacity(bytes.len());
        if let Ok((header, rest)) = RawExtentHeader::mut_from_prefix(bytes)
            && let Ok((slots, _)) = <[RawEntry]>::mut_from_prefix_with_elems(rest, entries.len())
        {
            header.eh_magic.set(MAGIC);
            header.eh_entries.set(entries.len() as u16);
            header.eh_max.set(max as u16);
            header.eh_depth.set(depth);
            slots.copy_from_slice(entries);
        }
    }

    pub(super) fn entries(&self) -> &[RawEntry] {
        &self.slots[..usize::from(self.header.eh_entries.get())]
    }

    pub(super) fn depth(&self) -> u16 {
        self.header.eh_depth.get()
    }

    pub(super) fn set_depth(&mut self, depth: u16) {
        self.header.eh_depth.set(depth);
    }

    pub(super) fn max(&self) -> usize {
        self.slots.len()
    }

    /// Replaces the entries in `range` by `with`. The node must have enough space.
    pub(super) fn splice(&mut self, range: Range<usize>, with: &[RawEntry]) {
        let len = self.entries().len();
        let behind = range.start + with.len();
        self.slots.copy_within(range.end..len, behind);
        self.slots[range.start..behind].copy_from_slice(with);
        self.header.eh_entries.set((len - range.len() + with.len()) as u16);
    }
}

/// An entry of an inner node.
pub(super) fn index(key: u64, child: FsBlock) -> RawEntry {
    transmute!(RawExtentIndex {
        ei_block: (key as u32).into(),
        ei_leaf_lo: (child.0 as u32).into(),
        ei_leaf_hi: ((child.0 >> 32) as u16).into(),
        ei_unused: 0.into(),
    })
}

/// An entry of a leaf. The extent must have at most [`longest`] blocks.
pub(super) fn leaf_entry(extent: &Extent) -> RawEntry {
    let mark = if extent.state == ExtentState::Unwritten { INIT_MAX_LEN } else { 0 };
    transmute!(RawExtent {
        ee_block: (extent.first.0 as u32).into(),
        ee_len: (extent.len as u16 + mark).into(),
        ee_start_hi: ((extent.start.0 >> 32) as u16).into(),
        ee_start_lo: (extent.start.0 as u32).into(),
    })
}

/// The maximum length of an extent in this state.
pub(super) fn longest(state: ExtentState) -> u32 {
    let written = u32::from(INIT_MAX_LEN);
    if state == ExtentState::Unwritten { written - 1 } else { written }
}
