//! The B-trees of the device mapper's library `persistent-data`. A node is one block. An inner node contains the first key of each child. A
//! leaf contains values. All numbers are little-endian.

use std::fmt;
use std::sync::Arc;

use super::BLOCK;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::partition::{u32_at, u64_at};
use crate::sync::Mutex;
use crate::units::DevOffset;

/// The CRC of a node is combined with this value by exclusive or.
const NODE_SALT: u32 = 121_107;
/// Three lengths in bytes: the header of a node, a key, and a pointer to a child.
const HEADER: usize = 32;
const KEY: usize = 8;
const POINTER: usize = 8;
/// The flags in a node's header: inner node or leaf.
const INNER: u32 = 1;
const LEAF: u32 = 2;
/// The maximum depth of a tree. A tree of this depth whose nodes are a third full would have more keys than 64 bits can express.
const DEPTH: usize = 12;
/// The number of nodes in the cache. With 4 KiB each, the cache has at most 1 MiB.
const CACHED: usize = 256;

/// The error for pool metadata that are damaged or contradictory.
pub(super) fn corrupt(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("thin pool metadata: {what}"))
}

/// The checksum of a block. It is stored in the first four bytes of the block, and covers all other bytes.
pub(super) fn checksum(block: &[u8], salt: u32) -> u32 {
    !crc32c::crc32c(&block[4..]) ^ salt
}

/// A verified node. It has an equal number of keys and values, and the keys are in ascending order.
#[derive(Debug)]
pub(super) struct Node {
    block: u64,
    is_leaf: bool,
    /// The length of a value on the disk, in bytes.
    value: usize,
    pub(super) keys: Vec<u64>,
    /// The first eight bytes of each value.
    pub(super) values: Vec<u64>,
}

impl Node {
    fn parse(bytes: &[u8], block: u64) -> Result<Self> {
        let wrong = |what: &str| Err(corrupt(format_args!("the node in block {block} {what}")));
        if checksum(bytes, NODE_SALT) != u32_at(bytes, 0) {
            return wrong("has a wrong checksum");
        }
        if u64_at(bytes, 8) != block {
            return wrong("belongs to another block");
        }
        let is_leaf = match u32_at(bytes, 4) {
            INNER => false,
            LEAF => true,
            _ => return wrong("is neither an inner node nor a leaf"),
        };
        let [count, most, value] = [16, 20, 24].map(|at| u32_at(bytes, at) as usize);
        let room = (BLOCK as usize - HEADER) / KEY;
        if count > most || most > room || value < POINTER || (!is_leaf && value != POINTER) {
            return wrong("has wrong numbers of entries");
        }
        let values = HEADER + most * KEY;
        if value > BLOCK as usize || values + most * value > BLOCK as usize {
            return wrong("has more entries than fit into a block");
        }
        let keys: Vec<u64> = (0..count).map(|index| u64_at(bytes, HEADER + index * KEY)).collect();
        if !keys.is_sorted_by(|one, next| one < next) || (!is_leaf && count == 0) {
            return wrong("has keys in a wrong order");
        }
        let values = (0..count).map(|index| u64_at(bytes, values + index * value)).collect();
        Ok(Self { block, is_leaf, value, keys, values })
    }
}

/// The position of a key in a leaf.
pub(super) struct Spot {
    pub(super) leaf: Arc<Node>,
    /// `Ok` with the index of the key, or `Err` with the index of the first greater key.
    pub(super) index: Result<usize, usize>,
    /// The upper limit of the leaf: all keys of the tree from the searched key up to this limit (exclusive) are in the leaf.
    pub(super) end: u64,
}

/// The metadata device of a pool, with verified nodes in a cache.
pub(super) struct Nodes {
    device: Arc<dyn Device>,
    /// The number of blocks of the metadata device.
    blocks: u64,
    /// The cache of nodes. The index of a node is its block number modulo `CACHED`.
    cache: Box<[Mutex<Option<Arc<Node>>>]>,
}

impl Nodes {
    pub(super) fn new(device: Arc<dyn Device>, blocks: u64) -> Self {
        let cache = (0..CACHED).map(|_| Mutex::new(None)).collect();
        Self { device, blocks, cache }
    }

    fn read(&self, block: u64) -> Result<Arc<Node>> {
        if block == 0 || block >= self.blocks {
            return Err(corrupt(format_args!("a node cannot be in block {block}")));
        }
        let place = &self.cache[(block % CACHED as u64) as usize];
        if let Some(node) = place.lock().as_ref().filter(|node| node.block == block) {
            return Ok(Arc::clone(node));
        }
        let mut bytes = vec![0; BLOCK as usize];
        self.device.read_exact_at(&mut bytes, DevOffset(block * BLOCK))?;
        let node = Arc::new(Node::parse(&bytes, block)?);
        *place.lock() = Some(Arc::clone(&node));
        Ok(node)
    }

    /// Finds the position of a key in the tree with this root. `value` is the length of a value in bytes.
    ///
    /// # Errors
    /// `Corrupt` for a tree whose nodes contradict each other; `Io`.
    pub(super) fn find(&self, root: u64, key: u64, value: usize) -> Result<Spot> {
        // The limits for the keys of the node in `block`. The upper limit is exclusive.
        let (mut block, mut least, mut end) = (root, 0, u64::MAX);
        for _ in 0..DEPTH {
            let leaf = self.read(block)?;
            let is_within = leaf.keys.first().is_none_or(|first| *first >= least)
                && leaf.keys.last().is_none_or(|last| *last < end);
            if !is_within {
                return Err(corrupt(format_args!(
                    "the keys in block {block} are outside the range of the parent node"
                )));
            }
            if leaf.is_leaf {
                if leaf.value != value {
                    return Err(corrupt(format_args!(
                        "the values in block {block} have {} bytes, not {value}",
                        leaf.value
                    )));
                }
                let index = leaf.keys.binary_search(&key);
                return Ok(Spot { leaf, index, end });
            }
            let after = leaf.keys.partition_point(|first| *first <= key);
            end = leaf.keys.get(after).copied().unwrap_or(end);
            // If the key is less than the first key of the node, the tree does not contain the key.
            let Some(child) = after.checked_sub(1) else {
                return Ok(Spot { leaf, index: Err(0), end });
            };
            (block, least) = (leaf.values[child], leaf.keys[child]);
        }
        Err(corrupt(format_args!("the tree with the root {root} has more than {DEPTH} levels")))
    }

    /// The value of a key. `None` if the tree does not contain the key.
    ///
    /// # Errors
    /// The errors of [`find`](Self::find).
    pub(super) fn get(&self, root: u64, key: u64, value: usize) -> Result<Option<u64>> {
        let spot = self.find(root, key, value)?;
        Ok(spot.index.ok().map(|index| spot.leaf.values[index]))
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}
