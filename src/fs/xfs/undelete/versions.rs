//! Old states of inodes: the last state before each deletion, from the log, and the remains of deleted files in free inodes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use zerocopy::FromBytes;

use crate::error::Place;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileType;
use crate::fs::xfs::Xfs;
use crate::fs::xfs::disk::attr::SYMLINK;
use crate::fs::xfs::disk::btree::{MAP, MAP_V5, RawExtent, RawHeader};
use crate::fs::xfs::disk::dir::{BLOCK, BLOCK_V5, DATA, DATA_V5};
use crate::fs::xfs::disk::inode::{
    CRC_OFFSET, FORKS_V2, FORKS_V3, MAGIC, RawInode, RawInodeV3, format,
};
use crate::fs::xfs::header::{array, crc_of};
use crate::fs::xfs::inode::XfsInode;
use crate::fs::xfs::log::history::{InodeChange, Past};
use crate::units::InodeNo;

/// The maximum number of deleted files in memory, and the maximum number of logged inodes in memory. With inodes of 512 bytes, each limit
/// allows 140 MiB.
const MOST: usize = 256 << 10;
/// The value of `di_mode` for a regular file that only the owner can read and write.
const REGULAR: u16 = 0o100_600;
const PLACE: Place = Place::new("deleted inode");

/// The transaction number of a deletion that the log does not contain.
pub(super) const NOT_IN_LOG: u64 = u64::MAX;

/// The last state of an inode before it was deleted.
pub(super) struct Version {
    pub(super) number: InodeNo,
    /// The inode in its form on disk.
    pub(super) bytes: Vec<u8>,
    /// The number of the transaction that deleted the file, or [`NOT_IN_LOG`].
    pub(super) order: u64,
    /// The time of the deletion in seconds since 1970.
    pub(super) deleted: Option<u32>,
    /// A description of the part of the inode that is lost.
    pub(super) problem: Option<&'static str>,
}

impl Version {
    /// If the log does not contain the map of the file, copies the map from the inode on the volume. The inode must still be free: Linux
    /// increments the generation once when it frees an inode.
    pub(super) fn complete(&mut self, fs: &Arc<Xfs>) {
        if self.problem.is_none() {
            return;
        }
        let start = if fs.superblock.is_v5() { FORKS_V3 } else { FORKS_V2 };
        if let Some(now) = free_inode(fs, self.number)
            && fields(&now).2 == fields(&self.bytes).2.wrapping_add(1)
        {
            self.bytes[start..].copy_from_slice(&now[start..]);
            self.problem = None;
        }
    }

    pub(super) fn decode(&self, fs: &Arc<Xfs>) -> Result<XfsInode> {
        let place = PLACE.inode(self.number);
        let v3 = RawInodeV3::ref_from_prefix(self.bytes.get(CRC_OFFSET..).unwrap_or_default());
        let (Ok((raw, _)), Ok((v3, _))) = (RawInode::ref_from_prefix(&self.bytes), v3) else {
            return Err(place.corrupt("the inode is truncated"));
        };
        fs.decode(self.number, &self.bytes, raw, fs.superblock.is_v5().then_some(v3), place)
    }
}

/// The state of an inode at a point of the log.
struct State {
    bytes: Vec<u8>,
    /// Whether the data fork in `bytes` is complete. This is true if the log contained the data fork.
    has_map: bool,
}

fn fields(bytes: &[u8]) -> (u16, u32, u32) {
    let mode = u16::from_be_bytes(array(bytes, 2));
    (mode, u32::from_be_bytes(array(bytes, 16)), u32::from_be_bytes(array(bytes, 92)))
}

/// The deleted files and directories whose deletion is in the log, in the order of their deletion.
pub(super) fn in_log(fs: &Arc<Xfs>) -> Result<Vec<Version>> {
    let (mut states, mut versions) = (HashMap::new(), Vec::new());
    fs.for_each_past(|order, past| match past {
        Past::Inode(change) => apply(fs, &mut states, &mut versions, order, &change),
        Past::Buffer(..) => Ok(()),
    })?;
    Ok(versions)
}

fn apply(
    fs: &Arc<Xfs>,
    states: &mut HashMap<InodeNo, State>,
    versions: &mut Vec<Version>,
    order: u64,
    change: &InodeChange,
) -> Result<()> {
    check_count(states.len().max(versions.len()))?;
    let size = fs.superblock.geometry.inode;
    let new = || State { bytes: vec![0; size], has_map: false };
    let state = states.entry(change.number).or_insert_with(new);
    let mut next = state.bytes.clone();
    // An inode item that is damaged is skipped.
    let Ok(has_fork) = change.apply(&fs.superblock, &mut next) else { return Ok(()) };
    let ((mode, links, generation), (_, new_links, new_generation)) =
        (fields(&state.bytes), fields(&next));
    let file_type = FileType::from_mode(mode.into());
    let is_kept = matches!(file_type, Some(FileType::Regular | FileType::Directory));
    if is_kept && links > 0 && new_links == 0 {
        versions.push(Version {
            number: change.number,
            bytes: state.bytes.clone(),
            order,
            deleted: changed(fs, change.number, &next),
            problem: (!state.has_map).then_some("the log does not contain the map"),
        });
    }
    if generation != new_generation || mode == 0 {
        state.has_map = false;
    }
    let is_empty = next[5] == format::EXTENTS
        && RawInode::ref_from_prefix(&next).is_ok_and(|(raw, _)| raw.di_nblocks.get() == 0);
    state.has_map |= has_fork || is_empty;
    state.bytes = next;
    Ok(())
}

/// Returns an error if `count` inodes exceed the limit for memory.
pub(super) fn check_count(count: usize) -> Result<()> {
    if count > MOST {
        let what = format!("the volume has more than {MOST} deleted files, or the log more inodes");
        return Err(Error::new(ErrorKind::LimitExceeded, what));
    }
    Ok(())
}

/// The time of an inode's last change.
fn changed(fs: &Arc<Xfs>, number: InodeNo, bytes: &[u8]) -> Option<u32> {
    let mut bytes = bytes.to_vec();
    bytes[2..4].copy_from_slice(&REGULAR.to_be_bytes());
    bytes[5] = format::EXTENTS;
    bytes[82] = 0;
    let version = Version { number, bytes, order: 0, deleted: None, problem: None };
    let inode = version.decode(fs).ok()?;
    u32::try_from(inode.stat.changed.seconds).ok()
}

/// Calls `each` with all free inodes that contain remains of a file. Groups whose inode tree is damaged are left out, and `faults` gets
/// their errors.
pub(super) fn free_inodes(
    fs: &Arc<Xfs>,
    faults: &mut Vec<Error>,
    mut each: impl FnMut(Version) -> Result<()>,
) -> Result<()> {
    for number in 0..fs.superblock.geometry.groups {
        let (chunks, fault) = fs.chunks(number);
        faults.extend(fault);
        for chunk in chunks {
            for index in (0..64).filter(|index| chunk.ir_free.get() >> index & 1 == 1) {
                let within = u64::from(chunk.ir_startino.get()) + index;
                let geometry = &fs.superblock.geometry;
                let bits = geometry.group_blocks_log + geometry.inodes_per_block_log;
                let number = InodeNo(u64::from(number) << bits | within);
                if let Some(version) = remains(fs, number) {
                    each(version)?;
                }
            }
        }
    }
    Ok(())
}

/// The bytes of a free inode. `None` if the inode is damaged or in use.
pub(super) fn free_inode(fs: &Arc<Xfs>, number: InodeNo) -> Option<Vec<u8>> {
    let place = fs.superblock.geometry.inode_place(number).ok()?;
    let size = fs.superblock.geometry.inode;
    let (content, start) = fs.metadata.inodes(place.block).ok()?;
    let start = start + place.index * size;
    let bytes = content.get(start..start + size)?;
    let is_inode = bytes.starts_with(&MAGIC.to_be_bytes()) && fields(bytes).0 == 0;
    let is_sound = !fs.superblock.is_v5()
        || u32::from_le_bytes(array(bytes, CRC_OFFSET)) == crc_of(bytes, CRC_OFFSET)
            && u64::from_be_bytes(array(bytes, 152)) == number.0;
    (is_inode && is_sound).then(|| bytes.to_vec())
}

/// The remains of a file in a free inode: times, owner and the data fork. The mode, the size and the length of the extent list are lost.
fn remains(fs: &Arc<Xfs>, number: InodeNo) -> Option<Version> {
    let mut bytes = free_inode(fs, number)?;
    let start = if fs.superblock.is_v5() { FORKS_V3 } else { FORKS_V2 };
    let extents = extent_list(fs, bytes.get(start..)?);
    let is_tree = extents == 0;
    if is_tree {
        let offset = root_room(fs, number, &bytes[start..])?;
        bytes[82] = offset;
    } else if is_metadata(fs, &bytes[start..]) {
        return None;
    }
    let deleted = changed(fs, number, &bytes);
    bytes[2..4].copy_from_slice(&REGULAR.to_be_bytes());
    bytes[5] = if is_tree { format::BTREE } else { format::EXTENTS };
    bytes[83] = format::EXTENTS;
    bytes[16..20].copy_from_slice(&1_u32.to_be_bytes());
    // The flag for large extent counters determines where the inode stores its extent count.
    let flags2 = if fs.superblock.is_v5() { u64::from_be_bytes(array(&bytes, 120)) } else { 0 };
    if flags2 & crate::fs::xfs::disk::inode::flags2::NREXT64 != 0 {
        bytes[24..32].copy_from_slice(&(extents as u64).to_be_bytes());
        bytes[76..80].fill(0);
    } else {
        bytes[76..80].copy_from_slice(&(extents as u32).to_be_bytes());
    }
    let problem = Some("the size is lost: the copy ends at the end of the last known block");
    Some(Version { number, bytes, order: NOT_IN_LOG, deleted, problem })
}

/// The number of valid extents at the start of a fork.
fn extent_list(fs: &Xfs, area: &[u8]) -> usize {
    let (raws, _) =
        <[RawExtent]>::ref_from_prefix_with_elems(area, area.len() / 16).unwrap_or((&[], &[]));
    let (mut count, mut end) = (0, 0);
    for raw in raws {
        let (first, len) = (raw.file_block(), u64::from(raw.count()));
        let after = first.saturating_add(len);
        let is_valid = len > 0
            && first >= end
            && after < fs.superblock.max_file_block()
            && fs.superblock.geometry.extent(raw.fs_block(), len, PLACE).is_ok();
        if !is_valid {
            break;
        }
        (count, end) = (count + 1, after);
    }
    count
}

/// Whether the first extent contains blocks of a directory or of a symbolic link.
fn is_metadata(fs: &Xfs, area: &[u8]) -> bool {
    let Ok((raw, _)) = RawExtent::ref_from_prefix(area) else { return false };
    let geometry = &fs.superblock.geometry;
    let block = geometry.extent(raw.fs_block(), 1, PLACE).and_then(|at| fs.metadata.block(at));
    let magic = block.map_or(0, |block| u32::from_be_bytes(array(&block, 0)));
    [BLOCK, BLOCK_V5, DATA, DATA_V5, SYMLINK].contains(&magic)
}

/// Finds the `di_forkoff` for which the fork is a valid root of an extent tree; `None` if there is no such value. Freeing an inode erases
/// the length of the fork, which determines the positions of the pointers in the root.
fn root_room(fs: &Xfs, number: InodeNo, area: &[u8]) -> Option<u8> {
    let (level, records) = (u16::from_be_bytes(array(area, 0)), u16::from_be_bytes(array(area, 2)));
    let most = (area.len() - 4) / 16;
    if !(1..=8).contains(&level) || records == 0 || usize::from(records) > most {
        return None;
    }
    (usize::from(records)..=most).rev().find_map(|room| {
        let pointer = u64::from_be_bytes(array(area, 4 + room * 8));
        let block = fs.superblock.geometry.fs_block(pointer, 1, PLACE).ok()?;
        let content = fs.metadata.block(block).ok()?;
        let (raw, _) = RawHeader::ref_from_prefix(&content).ok()?;
        let is_v5 = fs.superblock.is_v5();
        let magic = u32::from_be_bytes(raw.bb_magic);
        let is_own = !is_v5 || u64::from_be_bytes(array(&content, 56)) == number.0;
        let is_map = magic == if is_v5 { MAP_V5 } else { MAP };
        let offset = if room == most { 0 } else { 2 * room as u8 + 1 };
        (is_map && is_own && raw.bb_level.get() + 1 == level).then_some(offset)
    })
}

/// The inode numbers of these old states of inodes.
pub(super) fn known(versions: &[Version]) -> HashSet<InodeNo> {
    versions.iter().map(|version| version.number).collect()
}
