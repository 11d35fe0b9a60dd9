//! Inode items in the log: the inode's fields in the byte order of the processor that wrote them, and the changed forks.

use zerocopy::FromBytes;

use super::replay::Replay;
use super::transactions::Item;
use crate::error::{Place, Result};
use crate::fs::xfs::Superblock;
use crate::fs::xfs::disk::btree::{HEADER, HEADER_V5, RawHeader, RawRoot};
use crate::fs::xfs::disk::inode::{
    CRC_OFFSET, FORKS_V2, FORKS_V3, MAGIC, flags2, format, metatype,
};
use crate::fs::xfs::disk::log::{RawInodeItem, inode as fields};
use crate::fs::xfs::disk::tree::{RawOwner, RawShared};
use crate::fs::xfs::header::{array, crc_of};
use crate::units::InodeNo;

/// Offset and length of each inode field with a fixed layout and more than one byte. The layout of other fields depends on the inode's
/// flags. `decode` converts these other fields (times and some extent counters) separately.
const FIELDS: [(usize, usize); 16] = [
    (0, 2),  // di_magic
    (2, 2),  // di_mode
    (8, 4),  // di_uid
    (12, 4), // di_gid
    (16, 4), // di_nlink
    (20, 2), // di_projid_lo
    (22, 2), // di_projid_hi
    (56, 8), // di_size
    (64, 8), // di_nblocks
    (72, 4), // di_extsize
    (76, 4), // di_nextents; with 64-bit counters, the extent count of the attribute fork
    (84, 4), // di_dmevmask
    (88, 2), // di_dmstate
    (90, 2), // di_flags
    (92, 4), // di_gen
    (6, 2),  // di_onlink, or the type of a metadata file
];
/// Offset and length of each field that version 3 adds.
const FIELDS_V3: [(usize, usize); 4] = [
    (104, 8), // di_changecount
    (120, 8), // di_flags2
    (128, 4), // di_cowextsize
    (152, 8), // di_ino
];
/// Offsets of the times: access, modification and change. `CREATION` is the offset of the creation time.
const TIMES: [usize; 3] = [32, 40, 48];
const CREATION: usize = 144;
const BIG_NEXTENTS: usize = 24;
const MODE: usize = 2;
/// Offset of the kind of a metadata file.
const KIND: usize = 6;
const DATA_FORMAT: usize = 5;
const ATTR_FORMAT: usize = 83;
const FLUSH_ITERATION: usize = 30;
const ANEXTENTS: usize = 80;
const FORK_OFFSET: usize = 82;
const LSN: usize = 112;
const FLAGS2: usize = 120;
const UUID: usize = 160;
/// The number of field bytes that the log contains for an inode of version 1 or 2.
const LOGGED_V2: usize = 96;
/// The length of an inode item's first region if a 32-bit machine wrote the item.
const NARROW: usize = 52;

impl Replay<'_> {
    /// Applies an inode item. If the inode on disk is newer than the item, the inode is not changed.
    pub(super) fn inode(&mut self, item: &Item, lsn: u64) -> Result<()> {
        let first = wide(item.region(0, self.place)?);
        let Ok((raw, _)) = RawInodeItem::ref_from_prefix(&first) else {
            return Err(self.place.corrupt("the inode item is truncated"));
        };
        let place = Place::new("inode's item").inode(InodeNo(raw.ilf_ino.get()));
        let (sector, count) = (raw.ilf_blkno.get(), u64::from(raw.ilf_len.get()));
        if self.cancelled.has(sector, count) {
            return Ok(());
        }
        let (at, mut bytes) = self.read(sector, count)?;
        let (from, size) = (raw.ilf_boffset.get() as usize, self.superblock.geometry.inode);
        let len = bytes.len();
        if !from.is_multiple_of(size) {
            return Err(place
                .field("ilf_boffset")
                .corrupt(format!("no inode begins at byte {from} of the buffer")));
        }
        let Some(inode) = bytes.get_mut(from..).and_then(|rest| rest.get_mut(..size)) else {
            let what = format!("the inode at byte {from} ends past the buffer of {len} bytes");
            return Err(place.field("ilf_boffset").corrupt(what));
        };
        if u16::from_be_bytes(array(inode, 0)) != MAGIC {
            return Err(place
                .field("di_magic")
                .corrupt("the magic number at the inode's position does not match an inode"));
        }
        let core = item.region(1, self.place)?;
        if u16::from_le_bytes(array(core, 0)) != MAGIC {
            return Err(place
                .field("di_magic")
                .corrupt("the fields in the log do not match an inode"));
        }
        let is_v3 = core.get(4) == Some(&3);
        if is_v3 != self.superblock.is_v5() || core.len() < if is_v3 { FORKS_V3 } else { LOGGED_V2 }
        {
            return Err(place.field("di_version").corrupt(
                "the inode's fields in the log are truncated, or have the wrong version",
            ));
        }
        if !is_newer(inode, core, is_v3, lsn) {
            decode(core, inode, is_v3, lsn);
            forks(self.superblock, item, raw, inode, place)?;
            if is_v3 {
                seal(inode);
            }
        }
        let inode = inode.to_vec();
        self.put_part(at, &bytes, from..from + size);
        self.owners(raw, &inode, place)
    }

    /// Records this inode as the owner of map blocks that another inode owned before. The map blocks on disk can be older than the log. So
    /// this step is necessary even if the inode on disk is newer.
    fn owners(&mut self, raw: &RawInodeItem, inode: &[u8], place: Place) -> Result<()> {
        let changed = raw.ilf_fields.get();
        let is_used = array(inode, MODE) != [0; 2];
        if changed & (fields::DATA_OWNER | fields::ATTR_OWNER) == 0 || !is_used {
            return Ok(());
        }
        if !self.superblock.is_v5() {
            return Err(place.field("ilf_fields").corrupt(
                "the owner is logged, but on a volume of XFS version 4 blocks have no owners",
            ));
        }
        let literal = &inode[FORKS_V3..];
        let offset = usize::from(inode[FORK_OFFSET]) * 8;
        let (data, attributes) =
            literal.split_at(if offset == 0 { literal.len() } else { offset.min(literal.len()) });
        let owner = InodeNo(raw.ilf_ino.get());
        for (bit, at, fork) in
            [(fields::DATA_OWNER, DATA_FORMAT, data), (fields::ATTR_OWNER, ATTR_FORMAT, attributes)]
        {
            if changed & bit != 0 && inode[at] == format::BTREE {
                self.change_owner(fork, owner)?;
            }
        }
        Ok(())
    }
}

/// Copies the logged forks into the inode.
fn forks(
    superblock: &Superblock,
    item: &Item,
    raw: &RawInodeItem,
    inode: &mut [u8],
    place: Place,
) -> Result<()> {
    let changed = raw.ilf_fields.get();
    let start = if superblock.is_v5() { FORKS_V3 } else { FORKS_V2 };
    let literal = &mut inode[..];
    let offset = usize::from(literal[FORK_OFFSET]) * 8;
    let kind = u16::from_be_bytes(array(literal, KIND));
    let of_data = Root::new(literal[DATA_FORMAT], kind);
    let literal = &mut literal[start..];
    if offset >= literal.len() {
        return Err(place.field("di_forkoff").corrupt(format!("byte {offset}")));
    }
    let (data, attributes) = literal.split_at_mut(if offset == 0 { literal.len() } else { offset });
    let header = if superblock.is_v5() { HEADER_V5 } else { HEADER };
    let mut number = 2;
    if changed & fields::DEVICE != 0 {
        let device = u32::from_le_bytes(array(&raw.ilf_u, 0));
        data[..4].copy_from_slice(&device.to_be_bytes());
    }
    let kinds = [
        (fields::DATA_LOCAL | fields::DATA_EXTENTS, fields::DATA_ROOT, data, of_data),
        (fields::ATTR_LOCAL | fields::ATTR_EXTENTS, fields::ATTR_ROOT, attributes, Root::MAP),
    ];
    for (as_it_is, root, fork, layout) in kinds {
        if changed & (as_it_is | root) == 0 {
            continue;
        }
        let content = item.region(number, place)?;
        number += 1;
        if changed & root != 0 {
            copy_root(content, header, fork, layout, place)?;
        } else {
            let room = fork.len();
            let Some(fork) = fork.get_mut(..content.len()) else {
                let what = format!(
                    "the fork in the log has {} bytes, but the inode has {room}",
                    content.len()
                );
                return Err(place.field("ilf_dsize").corrupt(what));
            };
            fork.copy_from_slice(content);
        }
    }
    Ok(())
}

/// An inode item of an old transaction.
pub(in crate::fs::xfs) struct InodeChange {
    pub(in crate::fs::xfs) number: InodeNo,
    item: Item,
    raw: RawInodeItem,
}

impl InodeChange {
    /// Decodes an inode item. `None` if the item is not valid.
    pub(super) fn new(superblock: &Superblock, item: Item) -> Option<Self> {
        let first = wide(item.regions.first()?);
        let (raw, _) = RawInodeItem::read_from_prefix(&first).ok()?;
        let core = item.regions.get(1)?;
        let is_v3 = superblock.is_v5();
        let least = if is_v3 { FORKS_V3 } else { LOGGED_V2 };
        let fits = core.len() >= least && (core[4] == 3) == is_v3;
        let is_inode = fits && u16::from_le_bytes(array(core, 0)) == MAGIC;
        is_inode.then(|| Self { number: InodeNo(raw.ilf_ino.get()), item, raw })
    }

    /// Applies the item to an inode in its state before the transaction. Returns whether the item contains the complete data fork.
    pub(in crate::fs::xfs) fn apply(
        &self,
        superblock: &Superblock,
        inode: &mut [u8],
    ) -> Result<bool> {
        let place = Place::new("inode's item").inode(self.number);
        let core = self.item.region(1, place)?;
        decode(core, inode, superblock.is_v5(), 0);
        forks(superblock, &self.item, &self.raw, inode, place)?;
        let data = fields::DATA_LOCAL | fields::DATA_EXTENTS | fields::DATA_ROOT;
        Ok(self.raw.ilf_fields.get() & data != 0)
    }
}

/// Stores an inode's checksum.
pub(super) fn seal(inode: &mut [u8]) {
    let sum = crc_of(inode, CRC_OFFSET);
    inode[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Whether an inode's checksum is correct.
pub(super) fn is_sealed(inode: &[u8]) -> bool {
    u32::from_le_bytes(array(inode, CRC_OFFSET)) == crc_of(inode, CRC_OFFSET)
}

/// Converts an inode item's first region to the layout that 64-bit machines write.
fn wide(region: &[u8]) -> Vec<u8> {
    let mut bytes = region.to_vec();
    if region.len() == NARROW {
        bytes.splice(12..12, [0; 4]);
    }
    bytes
}

/// Whether the inode on disk already contains the change of this item.
fn is_newer(inode: &[u8], core: &[u8], is_v3: bool, lsn: u64) -> bool {
    if is_v3 {
        // Several transactions can begin in one record. These transactions have the same position (LSN). Therefore an inode with the same
        // position need not contain the change.
        let newest = u64::from_be_bytes(array(inode, LSN));
        return newest != 0 && newest != u64::MAX && newest > lsn;
    }
    let on_disk = u16::from_be_bytes(array(inode, FLUSH_ITERATION));
    let logged = u16::from_le_bytes(array(core, FLUSH_ITERATION));
    // The change counter wraps after its largest value.
    let wraps = on_disk == u16::MAX && logged < u16::MAX / 2;
    logged < on_disk && !wraps
}

/// Writes the logged fields into an inode, in big-endian order. `di_next_unlinked` is not written, because the log contains this field in
/// buffer items.
fn decode(core: &[u8], inode: &mut [u8], is_v3: bool, lsn: u64) {
    let mut swap = |at: usize, len: usize| {
        for byte in 0..len {
            inode[at + byte] = core[at + len - 1 - byte];
        }
    };
    FIELDS.iter().for_each(|(at, len)| swap(*at, *len));
    let flags2 = if is_v3 { u64::from_le_bytes(array(core, FLAGS2)) } else { 0 };
    let times = TIMES.iter().chain(is_v3.then_some(&CREATION));
    for at in times {
        if flags2 & flags2::BIGTIME != 0 {
            swap(*at, 8);
        } else {
            swap(*at, 4);
            swap(*at + 4, 4);
        }
    }
    if is_v3 {
        FIELDS_V3.iter().for_each(|(at, len)| swap(*at, *len));
    }
    if flags2 & flags2::NREXT64 != 0 {
        swap(BIG_NEXTENTS, 8);
        inode[ANEXTENTS..ANEXTENTS + 2].fill(0);
    } else {
        swap(ANEXTENTS, 2);
        inode[BIG_NEXTENTS..BIG_NEXTENTS + 8].fill(0);
        if !is_v3 {
            inode[FLUSH_ITERATION] = core[FLUSH_ITERATION + 1];
            inode[FLUSH_ITERATION + 1] = core[FLUSH_ITERATION];
        }
    }
    for at in [4, 5, FORK_OFFSET, FORK_OFFSET + 1] {
        inode[at] = core[at];
    }
    if is_v3 {
        inode[LSN..LSN + 8].copy_from_slice(&lsn.to_be_bytes());
        inode[UUID..UUID + 16].copy_from_slice(&core[UUID..UUID + 16]);
    }
}

/// The length of a key in a B+tree of block owners. A node contains two keys for each child.
const OWNER_KEY: usize = 20;

/// The layout of a B+tree's root in an inode.
#[derive(Clone, Copy)]
struct Root {
    /// The length of a child's keys. A child's pointer has 8 bytes.
    keys: usize,
    /// The length of a record, if the root can also be a leaf.
    record: Option<usize>,
}

impl Root {
    const MAP: Self = Self { keys: 8, record: None };

    /// The layout of the root in an inode with this fork format. For a metadata file, `kind` is the kind of the file.
    fn new(format: u8, kind: u16) -> Self {
        match (format, kind) {
            (format::META_BTREE, metatype::REALTIME_OWNERS) => {
                Self { keys: 2 * OWNER_KEY, record: Some(size_of::<RawOwner>()) }
            }
            (format::META_BTREE, _) => {
                Self { keys: size_of::<u32>(), record: Some(size_of::<RawShared>()) }
            }
            _ => Self::MAP,
        }
    }
}

/// Copies a logged B+tree root into a fork. In the log, the root has the kernel's in-memory form: it begins with the header of a full
/// block.
fn copy_root(
    content: &[u8],
    header: usize,
    fork: &mut [u8],
    root: Root,
    place: Place,
) -> Result<()> {
    let place = place.field("ilf_dsize");
    let (Ok((raw, _)), Some(content)) =
        (RawHeader::ref_from_prefix(content), content.get(header..))
    else {
        return Err(place.corrupt("the root of the tree is truncated"));
    };
    let (level, count) = (raw.bb_level.get(), usize::from(raw.bb_numrecs.get()));
    // A root at level 0 contains only records. A root at a higher level contains keys and pointers.
    let (first, second) = match root.record.filter(|_| level == 0) {
        Some(record) => (record, 0),
        None => (root.keys, size_of::<u64>()),
    };
    let [room_in_log, room] =
        [content.len(), fork.len().saturating_sub(4)].map(|len| len / (first + second));
    if count > room || count > room_in_log || fork.len() < size_of::<RawRoot>() {
        return Err(place.corrupt(format!("the root has {count} records, but space for {room}")));
    }
    fork[..2].copy_from_slice(&raw.bb_level.get().to_be_bytes());
    fork[2..4].copy_from_slice(&raw.bb_numrecs.get().to_be_bytes());
    fork[4..4 + count * first].copy_from_slice(&content[..count * first]);
    let (from, to) = (room_in_log * first, 4 + room * first);
    fork[to..to + count * second].copy_from_slice(&content[from..from + count * second]);
    Ok(())
}
