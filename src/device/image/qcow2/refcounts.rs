//! The refcounts of an image's clusters, and the allocation of clusters.
//!
//! A refcount on disk is never too small: it is increased before a pointer to the cluster is written, and decreased after the pointer is
//! removed. So after a crash, a cluster may be leaked until `qemu-img check` finds it, but no cluster is used twice.

use std::collections::{BTreeMap, HashSet};
use std::io::IoSlice;

use super::super::file::ImageFile;
use super::header::{Header, REFCOUNTS};
use crate::error::{Errno, Error, Place, Result};
use crate::units::FsBlock;

/// The largest distance in bytes from the end of the file to a new cluster. If the first free cluster is farther away, the refcounts are
/// wrong.
pub(super) const MAX_GAP: u64 = 64 << 20;
/// The largest length of the refcount table in bytes. This is QEMU's limit.
pub(super) const MAX_TABLE: u64 = 8 << 20;
/// The size in bytes of the refcount blocks that an image keeps in memory.
const MEMORY: usize = 32 << 20;

/// The refcounts of an image that is open for writing.
#[derive(Debug)]
pub(super) struct Refcounts {
    cluster: u64,
    bits: u64,
    /// The position of the refcount table in the file. `table` contains the positions of the refcount blocks.
    at: u64,
    table: Vec<u64>,
    /// The entries of the table that have changed since the last write. `Moved` if the whole table is new.
    changed: Changed,
    blocks: BTreeMap<usize, Block>,
    /// The first cluster that may be free. All clusters before it are in use.
    first_free: u64,
    /// The clusters of the header and of all tables. An allocation never returns one of them.
    pub(super) tables: HashSet<u64>,
}

#[derive(Debug)]
enum Changed {
    Entries(Vec<usize>),
    /// The table was replaced. These are the clusters of the old table.
    Moved(Vec<u64>),
}

#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    is_changed: bool,
}

/// Reads a refcount from a refcount block. If refcounts are shorter than a byte, the first refcount of a byte occupies its lowest bits.
/// Longer refcounts are big-endian.
pub(super) fn refcount(block: &[u8], index: u64, bits: u64) -> u64 {
    let at = (index * bits / 8) as usize;
    if bits < 8 {
        let shift = index * bits % 8;
        return u64::from(block[at]) >> shift & ((1 << bits) - 1);
    }
    let bytes = &block[at..at + (bits / 8) as usize];
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn set_refcount(block: &mut [u8], index: u64, bits: u64, value: u64) {
    let at = (index * bits / 8) as usize;
    if bits < 8 {
        let shift = index * bits % 8;
        let mask = ((1_u64 << bits) - 1) << shift;
        block[at] = (u64::from(block[at]) & !mask | value << shift) as u8;
        return;
    }
    let len = (bits / 8) as usize;
    block[at..at + len].copy_from_slice(&value.to_be_bytes()[8 - len..]);
}

impl Refcounts {
    /// The refcounts of an image. `table` contains the entries of its refcount table, and `tables` the clusters of all tables.
    pub(super) fn new(header: &Header, table: Vec<u64>, tables: HashSet<u64>) -> Self {
        Self {
            cluster: header.cluster(),
            bits: 1 << header.refcount_order,
            at: header.refcounts_at,
            table,
            changed: Changed::Entries(Vec::new()),
            blocks: BTreeMap::new(),
            first_free: 0,
            tables,
        }
    }

    /// Returns the number of clusters whose refcounts are in one block.
    fn per_block(&self) -> u64 {
        self.cluster * 8 / self.bits
    }

    /// Returns the number of clusters that the table can describe.
    fn covered(&self) -> u64 {
        self.table.len() as u64 * self.per_block()
    }

    fn place(index: usize) -> Place {
        Place::new("qcow2 refcount table").block(FsBlock(index as u64))
    }

    /// Returns the block number `index`, which must exist.
    fn block(&mut self, file: &ImageFile, index: usize) -> Result<&mut Block> {
        if !self.blocks.contains_key(&index) {
            if self.blocks.len() * self.cluster as usize > MEMORY {
                self.blocks.retain(|_, block| block.is_changed);
            }
            let mut bytes = vec![0; self.cluster as usize];
            file.read_at(&mut bytes, self.table[index])?;
            self.blocks.insert(index, Block { bytes, is_changed: false });
        }
        self.blocks.get_mut(&index).ok_or_else(|| Self::place(index).corrupt("no such block"))
    }

    /// Returns the refcount of a cluster. If the refcount block is missing, the refcount is 0.
    fn get(&mut self, file: &ImageFile, cluster: u64) -> Result<u64> {
        let (index, within) = (cluster / self.per_block(), cluster % self.per_block());
        let (bits, index) = (self.bits, index as usize);
        match self.table.get(index) {
            None | Some(0) => Ok(0),
            Some(_) => Ok(refcount(&self.block(file, index)?.bytes, within, bits)),
        }
    }

    /// Sets the refcount of a cluster. The refcount block must exist.
    fn set(&mut self, file: &ImageFile, cluster: u64, value: u64) -> Result<()> {
        let (index, within) = (cluster / self.per_block(), cluster % self.per_block());
        let bits = self.bits;
        let block = self.block(file, index as usize)?;
        set_refcount(&mut block.bytes, within, bits, value);
        block.is_changed = true;
        Ok(())
    }

    /// Increases the refcount of a cluster. First reserves space in the file for the refcount block, which must exist.
    fn increase(&mut self, file: &ImageFile, cluster: u64, value: u64) -> Result<()> {
        let index = (cluster / self.per_block()) as usize;
        if !self.block(file, index)?.is_changed {
            file.reserve_table(self.table[index], self.cluster)?;
        }
        self.set(file, cluster, value)
    }

    /// Allocates up to `wanted` adjacent clusters, at least one. Returns the number of the first cluster, and the number of clusters.
    ///
    /// # Errors
    /// `Corrupt` if a table has the refcount 0, or if no cluster up to `MAX_GAP` bytes past the end of the file has the refcount 0; `Io`
    /// with EFBIG if the image is too large.
    pub(super) fn allocate(&mut self, file: &ImageFile, wanted: u64) -> Result<(u64, u64)> {
        let mut first = self.first_free;
        loop {
            if first >= self.covered() {
                self.grow(file)?;
            }
            self.add_block(file, first)?;
            if self.get(file, first)? == 0 {
                break;
            }
            first += 1;
        }
        let mut count = 0;
        // The next refcount block may not exist yet, so the refcounts of all allocated clusters must be in one block.
        let end = (first / self.per_block() + 1) * self.per_block();
        while count < wanted && first + count < end && self.get(file, first + count)? == 0 {
            self.check_new(file, first + count)?;
            self.increase(file, first + count, 1)?;
            count += 1;
        }
        self.first_free = first + count;
        Ok((first, count))
    }

    /// Checks that a cluster with the refcount 0 may be allocated.
    fn check_new(&self, file: &ImageFile, cluster: u64) -> Result<()> {
        let place = Place::new("qcow2 refcount block");
        let at = cluster.checked_mul(self.cluster).ok_or(Error::io(Errno::EFBIG, "qcow2 image"))?;
        if self.tables.contains(&cluster) {
            return Err(place.corrupt(format!("the table at byte {at} is free")));
        }
        if at > file.len().saturating_add(MAX_GAP) {
            return Err(place.corrupt(format!(
                "the clusters up to byte {at} are in use, but the file has {} bytes",
                file.len()
            )));
        }
        Ok(())
    }

    /// Adds the refcount block for a cluster if the block is missing. The new block occupies the first cluster whose refcount it contains.
    fn add_block(&mut self, file: &ImageFile, cluster: u64) -> Result<()> {
        let index = (cluster / self.per_block()) as usize;
        if self.table[index] != 0 {
            return Ok(());
        }
        let first = index as u64 * self.per_block();
        self.check_new(file, first)?;
        file.reserve_new(first * self.cluster, self.cluster)?;
        if !self.has_moved() {
            file.reserve_table(self.at + index as u64 * 8, 8)?;
        }
        self.insert_block(index, first);
        self.set(file, first, 1)
    }

    fn insert_block(&mut self, index: usize, cluster: u64) {
        self.table[index] = cluster * self.cluster;
        self.tables.insert(cluster);
        let bytes = vec![0; self.cluster as usize];
        self.blocks.insert(index, Block { bytes, is_changed: true });
        if let Changed::Entries(entries) = &mut self.changed {
            entries.push(index);
        }
    }

    /// Replaces the table with a table of twice the length. The new table is placed after all clusters that the old table describes. The
    /// blocks for the new table follow it.
    fn grow(&mut self, file: &ImageFile) -> Result<()> {
        if let Changed::Moved(_) = self.changed {
            // Only one old table can wait for its release. Its clusters are released after the next write of the tables.
            return Err(Error::io(Errno::EFBIG, "the refcount table must be written first"));
        }
        let clusters = (self.table.len() as u64 * 8).div_ceil(self.cluster) * 2;
        let len = clusters * self.cluster;
        if len > MAX_TABLE {
            return Err(Error::io(Errno::EFBIG, "the refcount table of the image is too large"));
        }
        let start = self.covered();
        let mut blocks = 1;
        while (clusters + blocks).div_ceil(self.per_block()) > blocks {
            blocks += 1;
        }
        for cluster in start..start + clusters + blocks {
            self.check_new(file, cluster)?;
        }
        file.reserve_new(start * self.cluster, (clusters + blocks) * self.cluster)?;
        let old = self.at / self.cluster;
        let old: Vec<u64> = (old..old + clusters / 2).collect();
        let first = self.table.len();
        self.table.resize((len / 8) as usize, 0);
        for number in 0..blocks {
            self.insert_block(first + number as usize, start + clusters + number);
        }
        for cluster in start..start + clusters + blocks {
            self.tables.insert(cluster);
            self.set(file, cluster, 1)?;
        }
        self.at = start * self.cluster;
        self.changed = Changed::Moved(old);
        Ok(())
    }

    /// Whether the changed refcount blocks exceed the memory limit.
    pub(super) fn is_large(&self) -> bool {
        let most = MEMORY / self.cluster as usize;
        self.blocks.len() > most
            && self.blocks.values().filter(|block| block.is_changed).count() > most
    }

    /// Whether the table was replaced. The new table must be written before the next allocation.
    pub(super) fn has_moved(&self) -> bool {
        matches!(self.changed, Changed::Moved(_))
    }

    /// Decreases the refcount of a cluster. If the refcount becomes 0, the cluster can be allocated again.
    ///
    /// # Errors
    /// `Corrupt` if the refcount is already 0; `Io`.
    pub(super) fn release(&mut self, file: &ImageFile, cluster: u64) -> Result<()> {
        match self.get(file, cluster)? {
            0 => Err(Place::new("qcow2 refcount block").corrupt(format!(
                "the cluster at byte {} is in use, but has the refcount 0",
                cluster.saturating_mul(self.cluster)
            ))),
            count => {
                self.set(file, cluster, count - 1)?;
                self.first_free = self.first_free.min(cluster);
                Ok(())
            }
        }
    }

    /// Increases the refcount of a cluster that is shared by several compressed clusters. Returns false if the refcount is at its maximum.
    pub(super) fn share(&mut self, file: &ImageFile, cluster: u64) -> Result<bool> {
        let most = if self.bits == 64 { u64::MAX } else { (1 << self.bits) - 1 };
        let count = self.get(file, cluster)?;
        if count == most {
            return Ok(false);
        }
        self.increase(file, cluster, count + 1)?;
        Ok(true)
    }

    /// Writes the changed refcount blocks, and the refcount table if it is new. The header does not point to the new table yet.
    pub(super) fn write_blocks(&mut self, file: &ImageFile) -> Result<(), Errno> {
        for (index, block) in self.blocks.iter_mut().filter(|(_, block)| block.is_changed) {
            file.write(&[IoSlice::new(&block.bytes)], self.table[*index])?;
            block.is_changed = false;
        }
        if self.has_moved() {
            let bytes: Vec<u8> = self.table.iter().flat_map(|at| at.to_be_bytes()).collect();
            file.write(&[IoSlice::new(&bytes)], self.at)?;
        }
        Ok(())
    }

    /// Writes the pointers to new refcount blocks and to a new refcount table. The blocks and the table must already be durable. Returns
    /// whether a pointer was written, and the clusters of the replaced table. These clusters may be released once the pointers are durable.
    pub(super) fn write_pointers(&mut self, file: &ImageFile) -> Result<(bool, Vec<u64>), Errno> {
        match std::mem::replace(&mut self.changed, Changed::Entries(Vec::new())) {
            Changed::Entries(entries) => {
                for index in &entries {
                    let bytes = self.table[*index].to_be_bytes();
                    file.write(&[IoSlice::new(&bytes)], self.at + *index as u64 * 8)?;
                }
                Ok((!entries.is_empty(), Vec::new()))
            }
            Changed::Moved(old) => {
                let clusters = (self.table.len() as u64 * 8 / self.cluster) as u32;
                let mut bytes = [0; 12];
                bytes[..8].copy_from_slice(&self.at.to_be_bytes());
                bytes[8..].copy_from_slice(&clusters.to_be_bytes());
                file.write(&[IoSlice::new(&bytes)], REFCOUNTS)?;
                old.iter().for_each(|cluster| {
                    self.tables.remove(cluster);
                });
                Ok((true, old))
            }
        }
    }
}
