//! The L2 tables of an image in memory.

use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

use super::super::file::ImageFile;
use super::entry::{Entry, OFFSET};
use super::header::Header;
use crate::error::{Place, Result};
use crate::units::FsBlock;

/// The memory for L2 tables in bytes, and the minimum and maximum number of tables in memory.
const BYTES: u64 = 32 << 20;
const TABLES: std::ops::RangeInclusive<u64> = 16..=4096;

/// The L2 tables in memory.
#[derive(Debug)]
pub(super) enum Cache {
    /// All tables of an image that is only read. The tables never change, so a look-up acquires no lock.
    Whole(Box<[OnceLock<Arc<[u64]>>]>),
    /// Some tables. The number of a table determines its slot, so a look-up needs no search.
    Mapped(Box<[RwLock<Option<Table>>]>),
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    index: u64,
    words: Arc<[u64]>,
}

impl Cache {
    pub(super) fn new(header: &Header, write: bool) -> Self {
        let count = (BYTES / header.cluster()).clamp(*TABLES.start(), *TABLES.end());
        let all = header.l1_entries.max(1).next_power_of_two();
        if all <= count && !write {
            return Self::Whole((0..all).map(|_| OnceLock::new()).collect());
        }
        Self::Mapped((0..count.min(all)).map(|_| RwLock::new(None)).collect())
    }

    /// Returns the entry with the index `within` from the table number `index`, if the cache contains this table. Each table entry has
    /// `words` words.
    #[inline(always)]
    pub(super) fn entry(&self, index: u64, within: usize, words: usize) -> Option<Entry> {
        match self {
            Self::Whole(tables) => {
                let table = tables.get(index as usize)?.get()?;
                Some(entry(table, within, words))
            }
            Self::Mapped(slots) => mapped(slots, index, |table| entry(table, within, words)),
        }
    }

    pub(super) fn put(&self, index: u64, words: Arc<[u64]>) {
        match self {
            // If another thread has stored the table, that copy stays.
            Self::Whole(tables) => drop(tables.get(index as usize).map(|slot| slot.set(words))),
            Self::Mapped(slots) => *slot(slots, index).write() = Some(Table { index, words }),
        }
    }

    /// Returns the whole table with the number `index`, if the cache contains this table.
    pub(super) fn table(&self, index: u64) -> Option<Arc<[u64]>> {
        match self {
            Self::Whole(tables) => tables.get(index as usize)?.get().cloned(),
            Self::Mapped(slots) => mapped(slots, index, Arc::clone),
        }
    }
}

fn slot(slots: &[RwLock<Option<Table>>], index: u64) -> &RwLock<Option<Table>> {
    // The number of slots is a power of two, so the mask is equivalent to a modulo operation.
    &slots[index as usize & (slots.len() - 1)]
}

/// Calls `look` with the table with the number `index`, if its slot contains this table.
#[inline(never)]
fn mapped<R>(
    slots: &[RwLock<Option<Table>>],
    index: u64,
    look: impl FnOnce(&Arc<[u64]>) -> R,
) -> Option<R> {
    let slot = slot(slots, index).read();
    slot.as_ref().filter(|table| table.index == index).map(|table| look(&table.words))
}

/// Returns the entry with the index `within`. Each table entry has `words` words.
#[inline]
pub(super) fn entry(table: &[u64], within: usize, words: usize) -> Entry {
    let at = within * words;
    Entry { word: table[at], bitmap: if words == 2 { table[at + 1] } else { 0 } }
}

/// Reads the L2 table to which an entry of the L1 table points. `granule` has the meaning that it has in [`ImageFile::read_data`].
pub(super) fn read(
    file: &ImageFile,
    header: &Header,
    index: u64,
    l1: u64,
    granule: u64,
) -> Result<Arc<[u64]>> {
    let at = l1 & OFFSET;
    if !at.is_multiple_of(header.cluster()) {
        return Err(place(index).corrupt(format!("byte {at} does not begin a cluster")));
    }
    let mut bytes = vec![0; header.cluster() as usize];
    file.read_data(&mut bytes, at, granule)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(words.iter().map(|word| u64::from_be_bytes(*word)).collect())
}

/// Returns the place of an L1 table entry, for an error.
pub(super) fn place(index: u64) -> Place {
    Place::new("qcow2 L1 table").block(FsBlock(index))
}
