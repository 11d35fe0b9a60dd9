//! Splits the leaves of a hash tree, and converts a linear directory of one block to a hash tree.

use zerocopy::IntoBytes;

use super::super::dir_block::Area;
use super::super::disk::dir::{DX_ROOT_COUNT_OFFSET, DX_ROOT_INFO_OFFSET, RawDxRootInfo};
use super::super::hash::HashVersion;
use super::super::jbd2::Handle;
use super::entries::{Entries, Target, length};
use super::hashed::{Path, put_entry, set_count};
use super::{Addition, Directory, PLACE};
use crate::error::{Place, Result};
use crate::fs::InodeFlags;
use crate::units::FileBlock;

/// An entry of a leaf, with the hash of its name.
struct Hashed<'a> {
    hash: u32,
    name: &'a [u8],
    target: Target,
}

/// The offsets and names of the entries `.` and `..` in the root of a hash tree.
const DOTS: [(usize, &[u8]); 2] = [(0, b"."), (12, b"..")];

impl Directory<'_> {
    /// Splits a full leaf into two leaves and adds a name to one of them. The new leaf contains the higher hashes. In the parent, the new
    /// leaf's entry follows the old leaf's entry. The parent must not be full.
    pub(super) fn split_leaf(
        &self,
        h: &mut Handle<'_>,
        path: &Path,
        addition: &Addition<'_>,
    ) -> Result<()> {
        let leaf = &path.leaf;
        let mut all = self.by_hash(path, addition)?;
        all.sort_by_key(|entry| entry.hash);
        let middle = median(&all);
        let (lower, upper) = all.split_at(middle);
        let (Some(last), Some(first)) = (lower.last(), upper.first()) else {
            return Err(leaf
                .place
                .corrupt("the leaf cannot be split, because a single entry fills the leaf"));
        };
        // The entry of a leaf in the parent contains the lowest hash of the leaf. The lowest bit of this hash marks that the previous leaf
        // also contains names with the hash.
        let hash = first.hash | u32::from(first.hash == last.hash);
        if !path.parent().takes(hash) {
            return Err(leaf.place.corrupt("the leaf contains names that belong to another leaf"));
        }
        let pack = |mut entries: Entries<'_>, half: &[Hashed<'_>]| {
            entries.pack(half.iter().map(|entry| (entry.name, entry.target)));
        };
        let new = self.append_leaf(h, |entries| pack(entries, upper))?;
        self.change_entries(h, leaf.home, |entries| pack(entries, lower))?;
        self.insert_after(h, path.parent(), hash, new)
    }

    fn by_hash<'a>(&self, path: &'a Path, addition: &'a Addition<'_>) -> Result<Vec<Hashed<'a>>> {
        let there = path.leaf.used_entries(0, &self.fs)?.into_iter();
        let added = (addition.wanted.name, addition.target);
        let hashed = |(name, target)| {
            let hash = path.hash.of(self.wanted(name)?.hashed_bytes());
            Ok(Hashed { hash, name, target })
        };
        there.chain(std::iter::once(added)).map(hashed).collect()
    }

    /// Converts a directory of one block to a hash tree. The block becomes the root, and all names move to one new leaf.
    pub(super) fn make_hashed(&self, h: &mut Handle<'_>) -> Result<()> {
        let sb = &self.fs.superblock;
        if HashVersion::from_raw(sb.hash_version).is_none() {
            let place = Place::new("superblock").field("s_def_hash_version");
            return Err(place.corrupt(format!("{}", sb.hash_version)));
        }
        let Some(area) = self.dir_block(FileBlock(0))? else {
            return Err(PLACE
                .inode(self.number)
                .corrupt("the first block of the directory is a hole"));
        };
        let behind_dots = self.check_dots(&area)?;
        let entries = area.used_entries(behind_dots, &self.fs)?;
        let leaf = self.append_leaf(h, |mut leaf| leaf.pack(entries.iter().copied()))?;
        let Some(root) = self.fs_block(FileBlock(0))? else { return Ok(()) };
        h.update(root, PLACE.inode(self.number), |bytes| {
            let [_, (dotdot, _)] = DOTS;
            let end = bytes.len();
            bytes[DX_ROOT_INFO_OFFSET..].fill(0);
            Entries(bytes).set_length(dotdot, end - dotdot);
            let info = RawDxRootInfo {
                reserved_zero: 0.into(),
                hash_version: sb.hash_version,
                info_length: size_of::<RawDxRootInfo>() as u8,
                indirect_levels: 0,
                unused_flags: 0,
            };
            bytes[DX_ROOT_INFO_OFFSET..DX_ROOT_COUNT_OFFSET].copy_from_slice(info.as_bytes());
            put_entry(bytes, DX_ROOT_COUNT_OFFSET, 0, leaf);
            set_count(bytes, DX_ROOT_COUNT_OFFSET, sb, 1);
            self.seal_node(FileBlock(0), bytes);
            Ok(())
        })?;
        h.update_inode(self.0, |inode| {
            let flags = inode.flags()?;
            inode.set_flags(flags | InodeFlags::INDEX)
        })
    }

    /// Checks that the entries `.` and `..` are at the offsets that the root of a hash tree requires. Returns the offset after these
    /// entries.
    fn check_dots(&self, area: &Area) -> Result<usize> {
        let mut behind = 0;
        for (at, name) in DOTS {
            let entry = area.entry(at, &self.fs)?;
            if behind != at || entry.name != name {
                return Err(area.place.corrupt(format!(
                    "the entry {} is not at byte {at}",
                    String::from_utf8_lossy(name)
                )));
            }
            behind = entry.next;
        }
        Ok(behind)
    }
}

/// The number of entries that stay in the lower leaf after a split. These entries have about half of the bytes. At least one entry stays.
/// The entries of each half fit into a block, because the longest entry needs less than a third of the smallest block.
fn median(entries: &[Hashed<'_>]) -> usize {
    let half = entries.iter().map(|entry| length(entry.name)).sum::<usize>() / 2;
    let mut before = 0;
    let fits = |entry: &&Hashed<'_>| {
        before += length(entry.name);
        before <= half
    };
    entries.iter().take_while(fits).count().max(1)
}
