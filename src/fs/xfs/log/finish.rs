//! Unfinished intents in the log. The kernel's recovery finishes these intents on the device.
//!
//! Recovery in memory finishes only changes of attributes and of file maps, because readers see these changes. All other intents change the
//! free-space, reverse-mapping or reference-count trees. Recovery only counts them.

use std::collections::BTreeMap;

use zerocopy::FromBytes;

use super::attr_intent::add_attributes;
use crate::error::{Place, Result};
use crate::fs::xfs::Superblock;
use crate::fs::xfs::attr::AttributeChanges;
use crate::fs::xfs::disk::log::{
    RawExchange, RawMapping, RawMappingIntent, exchange, item, mapping,
};
use crate::fs::xfs::map_changes::{Exchange, MapChange, MapChanges, Side};
use crate::iomap::ExtentState;
use crate::sorting::Sorting;
use crate::units::{FileBlock, InodeNo};

/// For each kind of intent: the type of its intent item, the type of its done item, and the name of the operation.
const INTENTS: [(u16, u16, &str); 9] = [
    (item::EFI, item::EFD, "extents to free"),
    (item::RUI, item::RUD, "reverse mappings to update"),
    (item::CUI, item::CUD, "reference counts to update"),
    (item::BUI, item::BUD, "mappings of files to update"),
    (item::ATTRI, item::ATTRD, "attributes to change"),
    (item::XMI, item::XMD, "mappings to exchange"),
    (item::EFI_RT, item::EFD_RT, "realtime extents to free"),
    (item::RUI_RT, item::RUD_RT, "reverse mappings of realtime extents to update"),
    (item::CUI_RT, item::CUD_RT, "reference counts of realtime extents to update"),
];

/// The unfinished intents so far, by item type and intent id.
#[derive(Default)]
pub(super) struct Intents {
    open: BTreeMap<(u16, u64), Intent>,
    /// The number of intents that were read so far.
    count: u64,
}

struct Intent {
    what: &'static str,
    /// The intent's index in log order. Recovery finishes intents in this order.
    order: u64,
    regions: Vec<Vec<u8>>,
}

impl Intent {
    fn first(&self) -> &[u8] {
        self.regions.first().map_or(&[], |region| region)
    }
}

/// The result of the recovery of all intents.
pub(super) struct Ended {
    pub(super) changes: MapChanges,
    pub(super) attributes: AttributeChanges,
    /// The number of changes that were finished.
    pub(super) finished: u64,
    /// The number of finished changes that are attribute changes.
    pub(super) finished_attributes: u64,
    /// The number of unfinished intents of each kind.
    pub(super) unfinished: Vec<(&'static str, u64)>,
}

impl Intents {
    /// Processes an intent item or a done item. Returns false for an item of another type. In both kinds of item, the intent's id begins at
    /// byte 8.
    pub(super) fn take(&mut self, code: u16, number: u64, regions: &[Vec<u8>]) -> bool {
        for (intent, done, what) in INTENTS {
            if code == intent {
                self.count += 1;
                let entry = Intent { what, order: self.count, regions: regions.to_vec() };
                self.open.insert((intent, number), entry);
                return true;
            }
            if code == done {
                self.open.remove(&(intent, number));
                return true;
            }
        }
        false
    }

    /// Finishes the intents that remain after the last transaction.
    pub(super) fn end(self, superblock: &Superblock) -> Result<Ended> {
        let mut open: Vec<_> = self.open.into_iter().collect();
        open.order_by_key(|(_, intent)| intent.order);
        let (mut changes, mut finished) = (MapChanges::default(), 0);
        let (mut attributes, mut finished_attributes) = (AttributeChanges::default(), 0);
        let mut unfinished = BTreeMap::new();
        for ((code, _), intent) in open {
            let is_finished = match code {
                item::BUI => add_mappings(intent.first(), superblock, &mut changes)?,
                item::XMI => add_exchange(intent.first(), superblock, &mut changes)?,
                item::ATTRI => {
                    let allowed = superblock.logs_attributes();
                    add_attributes(&intent.regions, allowed, &mut attributes)?;
                    finished_attributes += 1;
                    true
                }
                _ => false,
            };
            if is_finished {
                finished += 1;
            } else {
                *unfinished.entry(intent.what).or_default() += 1;
            }
        }
        Ok(Ended {
            changes,
            attributes,
            finished,
            finished_attributes,
            unfinished: unfinished.into_iter().collect(),
        })
    }
}

/// Adds the map changes of an intent. Returns false if a change affects an attribute fork.
fn add_mappings(region: &[u8], superblock: &Superblock, into: &mut MapChanges) -> Result<bool> {
    let place = Place::new("intent of a mapping");
    let Ok((raw, rest)) = RawMappingIntent::ref_from_prefix(region) else {
        return Err(place.corrupt("the item is truncated"));
    };
    let count = raw.bui_nextents.get() as usize;
    let Ok((mappings, _)) = <[RawMapping]>::ref_from_prefix_with_elems(rest, count) else {
        return Err(place.field("bui_nextents").corrupt(format!("{count} mappings")));
    };
    if mappings.iter().any(|raw| raw.me_flags.get() & mapping::ATTR != 0) {
        return Ok(false);
    }
    for raw in mappings {
        let (flags, len) = (raw.me_flags.get(), raw.me_len.get());
        let place = place.inode(InodeNo(raw.me_owner.get()));
        let first = raw.me_startoff.get();
        let end = first.checked_add(len.into());
        if len == 0 || end.is_none_or(|end| end > superblock.max_file_block()) {
            let what = format!(
                "the range of {len} blocks that starts at block {first} of the file is not valid"
            );
            return Err(place.field("me_startoff").corrupt(what));
        }
        let (number, is_realtime) = (raw.me_startblock.get(), flags & mapping::REALTIME != 0);
        if !is_realtime {
            let place = place.field("me_startblock");
            superblock.geometry.extent(number, len.into(), place)?;
        }
        let state = match flags & mapping::UNWRITTEN {
            0 => ExtentState::Written,
            _ => ExtentState::Unwritten,
        };
        let to = match flags & mapping::TYPE {
            mapping::MAP => Some((number, state)),
            mapping::UNMAP => None,
            other => {
                return Err(place
                    .field("me_flags")
                    .corrupt(format!("the type {other} of the change is not valid")));
            }
        };
        let change = MapChange { first: FileBlock(first), len, is_realtime, to };
        into.add(InodeNo(raw.me_owner.get()), change);
    }
    Ok(true)
}

/// Adds an exchange of mappings. Returns false if the exchange affects attribute forks.
fn add_exchange(region: &[u8], superblock: &Superblock, into: &mut MapChanges) -> Result<bool> {
    let place = Place::new("intent of an exchange");
    let Ok((raw, _)) = RawExchange::ref_from_prefix(region) else {
        return Err(place.corrupt("the item is truncated"));
    };
    let (flags, len) = (raw.xmi_flags.get(), raw.xmi_blockcount.get());
    if flags & exchange::ATTR != 0 {
        return Ok(false);
    }
    let side = |at: usize| {
        let (inode, first) = (InodeNo(raw.xmi_inodes[at].get()), raw.xmi_startoffs[at].get());
        let end = first.checked_add(len);
        if end.is_none_or(|end| end > superblock.max_file_block()) {
            let what = format!(
                "the range of {len} blocks that starts at block {first} of the file is not valid"
            );
            return Err(place.inode(inode).field("xmi_startoff").corrupt(what));
        }
        let generation = raw.xmi_generations[at].get();
        Ok(Side { inode, generation, first: FileBlock(first) })
    };
    let sides = [side(0)?, side(1)?];
    let only_written = flags & exchange::WRITTEN != 0;
    // Linux ignores the sizes in the intent and uses the sizes that the inodes have at recovery. If an intent has 0 blocks, its exchange is
    // already complete.
    let sizes = flags & exchange::SIZES != 0 && len > 0;
    Ok(into.exchange(Exchange { sides, len, only_written, sizes }))
}
