//! Checks the htrees of directories: the nodes, the order of entries, and the hash range of each block.

use std::ops::Range;

use zerocopy::FromBytes;

use super::Checker;
use super::found::Found;
use super::map::Data;
use super::reader::Bytes;
use crate::error::Place;
use crate::fs::InodeFlags;
use crate::fs::check::Kind;
use crate::fs::ext4::casefold::Wanted;
use crate::fs::ext4::checksum::crc32c_raw;
use crate::fs::ext4::disk::dir::{
    DX_BLOCK_MASK, DX_NODE_COUNT_OFFSET, DX_ROOT_COUNT_OFFSET, DX_ROOT_INFO_OFFSET, RawDxCount,
    RawDxEntry, RawDxRootInfo, RawDxTail,
};
use crate::fs::ext4::hash::{HashVersion, NameHash};
use crate::fs::ext4::{Ext4, Incompat};
use crate::units::FsBlock;

const PLACE: Place = Place::new("htree node");
const ENTRY: usize = size_of::<RawDxEntry>();
/// The `hash_version` of encrypted names. This hash needs a key. The checker cannot compute it.
const SIPHASH: u8 = 6;

/// The role of a directory block in the tree.
#[derive(Clone, Copy, Debug, Default)]
enum Role {
    #[default]
    Unknown,
    Node,
    /// A leaf. The hashes of its names begin at the first number and end before the second number. If the lowest bit of the second number
    /// is set, names with a hash equal to the second number are also allowed.
    Leaf(u32, u32),
}

/// The htree of a directory.
pub(super) struct Tree {
    roles: Vec<Role>,
    /// The hash function, if it is known.
    hash: Option<NameHash>,
    folded: Option<std::sync::Arc<Ext4>>,
}

/// A block that is a node of the tree.
struct Node<'a> {
    bytes: &'a [u8],
    /// The offset of the node's entries.
    entries: usize,
    /// The number of levels of nodes below this node.
    levels: u8,
    /// The range of hashes below this node.
    hashes: Range<u32>,
    place: Place,
}

impl Tree {
    pub(super) fn is_node(&self, block: u64) -> bool {
        matches!(self.roles.get(block as usize), Some(Role::Node))
    }

    /// Checks that the hash of a name is in the range of this block. Returns the hash if it is outside the range.
    pub(super) fn misplaced(&self, block: u64, name: &[u8]) -> Option<u32> {
        let Some(Role::Leaf(first, end)) = self.roles.get(block as usize) else { return None };
        let wanted = match &self.folded {
            Some(fs) => Wanted::folded(name, fs).ok()?,
            None => Wanted::exact(name),
        };
        // The name is skipped: the kernel may use another version of Unicode and compute another hash for it.
        if wanted.depends_on_tables() {
            return None;
        }
        let hash = self.hash.as_ref()?.of(wanted.hashed_bytes());
        let continued = end & 1 == 1 && hash == end & !1;
        let within = hash >= first & !1 && (hash < *end & !1 || continued);
        (!within).then_some(hash)
    }
}

impl Checker<'_> {
    /// Checks the nodes from the root on. Returns `None` if the root is too damaged to locate the other nodes.
    pub(super) fn check_tree(&mut self, inode: &Found, blocks: &[Data]) -> Option<Tree> {
        let count = blocks.last().map_or(0, |data| data.first + data.count);
        // The tree of a directory with holes is not checked, because a hole may have any size. Another check reports the holes.
        if count == 0 || blocks.iter().map(|data| data.count).sum::<u64>() != count {
            return None;
        }
        let mut tree = Tree { roles: Vec::new(), hash: None, folded: None };
        tree.roles.resize(usize::try_from(count).ok()?, Role::Unknown);
        let place = Place::new("htree root").inode(inode.number);
        let (root, place) = self.tree_block(blocks, 0, place)?;
        let info = root.get(DX_ROOT_INFO_OFFSET..)?;
        let (info, _) = RawDxRootInfo::ref_from_prefix(info).ok()?;
        let sb = &self.fs.superblock;
        let deepest = if sb.incompat.contains(Incompat::LARGEDIR) { 2 } else { 1 };
        let known = info.hash_version <= 2 || info.hash_version == SIPHASH;
        for (field, stored, right) in [
            ("reserved_zero", info.reserved_zero.get(), info.reserved_zero.get() == 0),
            ("hash_version", u32::from(info.hash_version), known),
            ("info_length", u32::from(info.info_length), info.info_length == 8),
            ("indirect_levels", u32::from(info.indirect_levels), info.indirect_levels <= deepest),
            ("unused_flags", u32::from(info.unused_flags), info.unused_flags & 1 == 0),
        ] {
            if !right {
                let (stored, rule) =
                    (u64::from(stored), "the value is not valid in the root of a hash tree");
                self.findings.add(place.field(field), Kind::Invalid { stored, rule });
                return None;
            }
        }
        let version = match info.hash_version {
            0 => Some(HashVersion::Legacy),
            1 => Some(HashVersion::HalfMd4),
            2 => Some(HashVersion::Tea),
            _ => None,
        };
        let (unsigned, seed) = (sb.hash_unsigned, sb.hash_seed);
        tree.hash = version.map(|version| NameHash { version, unsigned, seed });
        let folded = inode.flags().contains(InodeFlags::CASEFOLD);
        tree.folded = folded.then(|| std::sync::Arc::clone(self.fs));
        tree.roles[0] = Role::Node;
        let node = Node {
            bytes: &root,
            entries: DX_ROOT_COUNT_OFFSET,
            levels: info.indirect_levels,
            hashes: 0..u32::MAX,
            place,
        };
        self.check_node(inode, blocks, &mut tree, &node);
        let unknown = tree.roles.iter().enumerate().find(|(_, role)| matches!(role, Role::Unknown));
        if let Some((block, _)) = unknown {
            let what = format!("block {block} of the directory is not in the hash tree");
            self.findings.add(place, Kind::Damaged { what });
        }
        Some(tree)
    }

    fn tree_block(&mut self, blocks: &[Data], block: u64, place: Place) -> Option<(Bytes, Place)> {
        let after = blocks.partition_point(|data| data.first <= block);
        let data = blocks[..after].last().filter(|data| block < data.first + data.count);
        let Some(data) = data else {
            let what = format!("the entry points to block {block}, which is a hole");
            self.findings.add(place, Kind::Damaged { what });
            return None;
        };
        let at = FsBlock(data.start + (block - data.first));
        match self.reader.block(at, place) {
            Ok(content) => Some((content, place.block(at))),
            Err(error) => {
                self.findings.error(place, &error);
                None
            }
        }
    }

    /// Checks a node and the subtree below it. The level decreases at each step, and each block has only one role. The recursion therefore
    /// ends.
    fn check_node(&mut self, inode: &Found, blocks: &[Data], tree: &mut Tree, node: &Node<'_>) {
        let Some(count) = self.check_capacity(inode, node) else { return };
        let &Node { bytes, entries, levels, ref hashes, place } = node;
        let entries = &bytes[entries..entries + count * ENTRY];
        let Ok(entries) = <[RawDxEntry]>::ref_from_bytes(entries) else { return };
        let mut first = hashes.start;
        for (index, entry) in entries.iter().enumerate() {
            // The first entry has no hash; its bytes contain the node's capacity.
            if index > 0 {
                let hash = entry.hash.get();
                if hash < first || hash >= hashes.end {
                    let (stored, rule) = (
                        u64::from(hash),
                        "the hash is out of order, or outside the hash range of the node",
                    );
                    self.findings.add(place.field("hash"), Kind::Invalid { stored, rule });
                    return;
                }
                first = hash;
            }
            let end = entries.get(index + 1).map_or(hashes.end, |next| next.hash.get());
            let block = u64::from(entry.block.get() & DX_BLOCK_MASK);
            let Some(role) = tree.roles.get_mut(block as usize) else {
                let (stored, rule) = (block, "the block is outside the directory");
                self.findings.add(place.field("block"), Kind::Invalid { stored, rule });
                continue;
            };
            if !matches!(role, Role::Unknown) {
                let (stored, rule) = (block, "the block is in the hash tree more than once");
                self.findings.add(place.field("block"), Kind::Invalid { stored, rule });
                continue;
            }
            let Some(levels) = levels.checked_sub(1) else {
                *role = Role::Leaf(first, end);
                continue;
            };
            *role = Role::Node;
            let below = PLACE.inode(inode.number);
            let Some((content, place)) = self.tree_block(blocks, block, below) else { continue };
            let (entries, hashes) = (DX_NODE_COUNT_OFFSET, first..end);
            let below = Node { bytes: &content, entries, levels, hashes, place };
            self.check_node(inode, blocks, tree, &below);
        }
    }

    /// Returns the number of entries of a node, or `None` if the node's capacity or checksum is invalid.
    fn check_capacity(&mut self, inode: &Found, node: &Node<'_>) -> Option<usize> {
        let &Node { bytes, entries, place, .. } = node;
        let seed = inode.seed(self.fs);
        let (header, _) = RawDxCount::ref_from_prefix(bytes.get(entries..)?).ok()?;
        let (limit, count) = (usize::from(header.limit.get()), usize::from(header.count.get()));
        let tail = if seed.is_some() { size_of::<RawDxTail>() } else { 0 };
        let room = (bytes.len() - entries - tail) / ENTRY;
        if !self.findings.expect(place.field("limit"), limit as u64, room as u64) {
            return None;
        }
        if count == 0 || count > limit {
            let (stored, rule) =
                (count as u64, "the number of entries is 0 or exceeds the limit of the node");
            self.findings.add(place.field("count"), Kind::Invalid { stored, rule });
            return None;
        }
        if let Some(seed) = seed {
            let at = entries + limit * ENTRY;
            let (tail, _) = RawDxTail::ref_from_prefix(bytes.get(at..)?).ok()?;
            let mut computed = crc32c_raw(seed, &bytes[..entries + count * ENTRY]);
            computed = crc32c_raw(computed, &tail.dt_reserved.to_bytes());
            computed = crc32c_raw(computed, &[0; 4]);
            let stored = tail.dt_checksum.get();
            self.findings.checksum(place.field("dt_checksum"), stored, computed);
        }
        Some(count)
    }
}
