//! Changes to a qcow2 image.
//!
//! Tables are changed in memory. A [commit](Qcow2::commit) writes them in an order that ensures that every pointer on disk points to
//! durable data and tables:
//!
//! 1. the data, the increased refcounts, and new L2 tables;
//! 2. the pointers to new refcount blocks, if there are any;
//! 3. the L2 tables that existed before, and the pointers to new L2 tables;
//! 4. the decreased refcounts of the clusters that are no longer in use.
//!
//! The space for a table is reserved when the table is changed in memory. Therefore, if the host's file system is full, the write fails
//! instead of the commit.
//!
//! Each step except the last one ends with `fdatasync`. So the image is consistent after a power cut: each cluster has its old or new
//! content, but some unused clusters may still have a refcount other than 0.

use std::collections::HashMap;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::{SmallVec, smallvec};

use super::super::file::ImageFile;
use super::entry::{COPIED, Entry, OFFSET};
use super::header::{AUTOCLEAR, BITMAPS, Header};
use super::refcounts::{MAX_GAP, Refcounts};
use super::{Qcow2, State, bitmaps, metadata, packed, tables};
use crate::error::{Errno, Error, Place, Result};
use crate::units::FsBlock;

/// The maximum memory for changed L2 tables in bytes, and the maximum number of freed clusters, before a commit is made.
const MOST_TABLES: u64 = 16 << 20;
const MOST_FREED: usize = 1 << 20;
/// The maximum number of bytes that one step of a write allocates.
const STEP: u64 = 1 << 20;

/// The state of an image that is open for writing.
#[derive(Debug)]
pub(super) struct Writer {
    changed: HashMap<u64, Changed>,
    refcounts: Refcounts,
    /// The clusters that the next commit releases.
    freed: Vec<u64>,
    /// Whether the next change of the content must first clear feature bits in the header, or mark bitmaps as in use.
    has_autoclear: bool,
    /// The flags of the bitmaps that must still be marked as in use. `None` if the image has no bitmaps.
    bitmaps: Option<Vec<(u64, u32)>>,
    /// The unused rest of the cluster to which the last compressed data were written. The next compressed data begin there.
    rest: Range<u64>,
    /// Whether a write of a table or a flush has failed. The kernel reports a failure only once, so all later writes must fail.
    is_broken: AtomicBool,
}

/// An L2 table that differs from the table on the disk.
#[derive(Debug)]
struct Changed {
    words: Vec<u64>,
    is_new: bool,
}

impl Writer {
    /// Prepares an image for writing, and checks its tables. `l1` contains the entries of the L1 table.
    pub(super) fn open(file: &ImageFile, header: &Header, l1: &[u64]) -> Result<Self> {
        let bitmaps = header.bitmaps.map(|directory| directory.flags(file, header)).transpose()?;
        Ok(Self {
            changed: HashMap::new(),
            refcounts: metadata::check(file, header, l1)?,
            freed: Vec::new(),
            has_autoclear: header.autoclear != 0,
            bitmaps,
            rest: 0..0,
            is_broken: AtomicBool::new(false),
        })
    }

    /// Returns the L2 table number `index` if it differs from the table on disk.
    pub(super) fn changed(&self, index: u64) -> Option<&[u64]> {
        // Usually, no table has changed, so this check is fast.
        if self.changed.is_empty() {
            return None;
        }
        self.changed.get(&index).map(|table| &*table.words)
    }

    fn check(&self) -> Result<()> {
        if self.is_broken.load(Ordering::Acquire) {
            let what = "a write to the image's tables or a flush has failed, so all later writes are refused";
            return Err(Error::io(Errno::EIO, what));
        }
        Ok(())
    }

    /// Marks the image as broken after a failed write of a table or a failed flush. All later writes then fail.
    fn must<T>(&self, result: Result<T, Errno>) -> Result<T> {
        result.map_err(|errno| {
            self.is_broken.store(true, Ordering::Release);
            Error::io(errno, "write to the image's tables")
        })
    }

    /// Adds the clusters that an entry used to the list of freed clusters.
    fn free(&mut self, old: Entry, header: &Header) -> Result<()> {
        let Range { start, end } = old.used(header);
        if start == end {
            return Ok(());
        }
        for cluster in start / header.cluster()..end.div_ceil(header.cluster()) {
            self.check_data(cluster, header)?;
            self.freed.push(cluster);
        }
        Ok(())
    }

    /// Fails if a cluster that is to contain data contains a table.
    fn check_data(&self, cluster: u64, header: &Header) -> Result<()> {
        if self.refcounts.tables.contains(&cluster) {
            let what =
                format!("an entry leads to the table at byte {}", cluster * header.cluster());
            return Err(Place::new("qcow2 L2 table").corrupt(what));
        }
        Ok(())
    }
}

impl State {
    fn writer(&mut self) -> Result<&mut Writer> {
        self.writer.as_mut().ok_or_else(|| Error::read_only("the image is open for reading"))
    }
}

impl Qcow2 {
    /// Runs `run`, which changes the image. The first call also clears the features that a change invalidates, and marks the bitmaps as in
    /// use.
    pub(super) fn change(&self, run: impl FnOnce(&Self, &mut State) -> Result<()>) -> Result<()> {
        let mut state = self.state.write();
        let writer = state.writer()?;
        writer.check()?;
        if writer.has_autoclear {
            let kept = if writer.bitmaps.is_some() { BITMAPS } else { 0 };
            let done = bitmaps::mark(&self.file, writer.bitmaps.as_deref().unwrap_or_default())
                .and_then(|()| self.file.write(&[IoSlice::new(&kept.to_be_bytes())], AUTOCLEAR))
                .and_then(|()| self.file.sync());
            writer.must(done)?;
            writer.has_autoclear = false;
        }
        run(self, &mut state)
    }

    pub(super) fn write_one(&self, data: &[u8], at: u64) -> Result<()> {
        let state = self.state.read();
        if let Some((to, len)) = self.in_place(&state, at, data.len() as u64)?
            && len == data.len() as u64
        {
            return self.put(data, to);
        }
        drop(state);
        if !self.compresses {
            return self.change(|image, state| image.write_in(state, data, at));
        }
        let size = self.header.cluster();
        let before = (at.next_multiple_of(size) - at).min(data.len() as u64);
        let (before, rest) = data.split_at(before as usize);
        let (whole, after) = rest.split_at(rest.len() / size as usize * size as usize);
        let mut at = at;
        for part in [before, whole, after].into_iter().filter(|part| !part.is_empty()) {
            if part.len() as u64 >= size {
                self.write_compressed(part, at)?;
            } else {
                self.change(|image, state| image.write_in(state, part, at))?;
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Writes whole clusters. A cluster that is not yet in the file is compressed if this makes it smaller.
    fn write_compressed(&self, data: &[u8], at: u64) -> Result<()> {
        let clusters = data.chunks_exact(self.header.cluster() as usize);
        // The data are compressed before the image is locked, so that several threads can compress at the same time.
        let packed: Vec<_> =
            clusters.map(|cluster| (cluster, packed::pack(cluster, self.header.is_zstd))).collect();
        self.change(|image, state| {
            for (number, (cluster, packed)) in (at / image.header.cluster()..).zip(&packed) {
                let is_new = image.entry(state, number)?.used(&image.header).is_empty();
                if is_new && packed.len() < cluster.len() {
                    image.write_packed(state, packed, number)?;
                } else {
                    image.write_in(state, cluster, number * image.header.cluster())?;
                }
            }
            Ok(())
        })
    }

    fn put(&self, data: &[u8], at: u64) -> Result<()> {
        let written = self.file.write(&[IoSlice::new(data)], at);
        written.map_err(|errno| Error::io(errno, format!("write to the image file at {at}")))
    }

    /// If a write may overwrite the bytes starting at `at` in place, returns their position in the file and their number, at most `most`.
    fn in_place(&self, state: &State, at: u64, most: u64) -> Result<Option<(u64, u64)>> {
        let Some(writer) = state.writer.as_ref().filter(|writer| !writer.has_autoclear) else {
            return Ok(None);
        };
        writer.check()?;
        let size = self.header.cluster();
        let (first, skip) = (at / size, at % size);
        let (mut begin, mut len) = (0, 0);
        while len < skip + most {
            let number = first + len / size;
            let entry = self.entry(state, number)?;
            let start = entry.word & OFFSET;
            if !entry.is_in_place() || len > 0 && start != begin + len {
                break;
            }
            if !start.is_multiple_of(size) {
                let place = Place::new("qcow2 L2 entry").block(FsBlock(number));
                return Err(
                    place.corrupt("the position of the data is not a multiple of the cluster size")
                );
            }
            writer.check_data(start / size, &self.header)?;
            if start > self.file.len().saturating_add(MAX_GAP) {
                let place = Place::new("qcow2 L2 entry").block(FsBlock(number));
                return Err(place.corrupt("the data are too far past the end of the file"));
            }
            if len == 0 {
                begin = start;
            }
            len += size;
        }
        Ok((len > 0).then(|| (begin + skip, (len - skip).min(most))))
    }

    /// Writes data to the disk.
    pub(super) fn write_in(&self, state: &mut State, mut data: &[u8], mut at: u64) -> Result<()> {
        while !data.is_empty() {
            let len = match self.in_place(state, at, data.len() as u64)? {
                Some((to, len)) => {
                    self.put(&data[..len as usize], to)?;
                    len
                }
                None => self.write_new(state, data, at)?,
            };
            data = &data[len as usize..];
            at += len;
        }
        Ok(())
    }

    /// Allocates clusters, and writes the beginning of the data to them. Returns the number of bytes written.
    fn write_new(&self, state: &mut State, data: &[u8], at: u64) -> Result<u64> {
        let size = self.header.cluster();
        let (first, skip) = (at / size, at % size);
        let index = first / self.header.mapped();
        self.add_table(state, index)?;
        // A step ends where the L2 table ends, so that it changes only one L2 table.
        let end = (at + data.len() as u64).div_ceil(size).min((index + 1) * self.header.mapped());
        let most = (end - first).min((STEP / size).max(1));
        let mut wanted = 1;
        while wanted < most && !self.entry(state, first + wanted)?.is_in_place() {
            wanted += 1;
        }
        let (cluster, count) = state.writer()?.refcounts.allocate(&self.file, wanted)?;
        let len = (count * size - skip).min(data.len() as u64);
        if let Err(error) = self.fill(state, cluster * size, at, &data[..len as usize]) {
            let refcounts = &mut state.writer()?.refcounts;
            (cluster..cluster + count).try_for_each(|one| refcounts.release(&self.file, one))?;
            return Err(error);
        }
        for number in 0..count {
            self.map(state, first + number, Entry::of((cluster + number) * size))?;
        }
        self.bound(state)?;
        Ok(len)
    }

    /// Fills new clusters. The bytes before and after the data get the current content of the disk.
    fn fill(&self, state: &State, to: u64, at: u64, data: &[u8]) -> Result<()> {
        let size = self.header.cluster();
        let (skip, len) = ((at % size) as usize, data.len());
        let whole = (skip + len).next_multiple_of(size as usize);
        if whole == len {
            return self.put(data, to);
        }
        let mut bytes = vec![0; whole];
        self.read_in(state, &mut bytes[..skip], at - skip as u64)?;
        bytes[skip..skip + len].copy_from_slice(data);
        self.read_in(state, &mut bytes[skip + len..], at + len as u64)?;
        self.put(&bytes, to)
    }

    /// Copies the L2 table number `index` to the changed tables, or creates it if the image has no such table.
    fn add_table(&self, state: &mut State, index: u64) -> Result<()> {
        if state.writer()?.changed.contains_key(&index) {
            return Ok(());
        }
        let (words, is_new) = match self.load(state, index)? {
            Some(table) => {
                let at = state.l1.get(index as usize).copied().unwrap_or(0) & OFFSET;
                self.file.reserve_table(at, self.header.cluster())?;
                (table.to_vec(), false)
            }
            None => {
                self.file.reserve_table(self.header.l1_at + index * 8, 8)?;
                let refcounts = &mut state.writer()?.refcounts;
                let (cluster, _) = refcounts.allocate(&self.file, 1)?;
                let size = self.header.cluster();
                if let Err(error) = self.file.reserve_new(cluster * size, size) {
                    refcounts.release(&self.file, cluster)?;
                    return Err(error);
                }
                refcounts.tables.insert(cluster);
                let l1 = state.l1.get_mut(index as usize);
                *l1.ok_or_else(|| tables::place(index).corrupt("the table is too short"))? =
                    (cluster * self.header.cluster()) | COPIED;
                (vec![0; self.header.cluster() as usize / 8], true)
            }
        };
        state.writer()?.changed.insert(index, Changed { words, is_new });
        Ok(())
    }

    /// Replaces the entry of a cluster. The L2 table of this entry must be among the changed tables. The clusters of the old entry are
    /// freed.
    fn map(&self, state: &mut State, cluster: u64, entry: Entry) -> Result<()> {
        let (index, within) = (cluster / self.header.mapped(), cluster % self.header.mapped());
        let writer = state.writer()?;
        let table = writer.changed.get_mut(&index);
        let table = table.ok_or_else(|| tables::place(index).corrupt("the table is unchanged"))?;
        let word = std::mem::replace(&mut table.words[within as usize], entry.word);
        writer.free(Entry { word, bitmap: 0 }, &self.header)
    }

    /// Frees these clusters of the disk. They read as zeros afterwards.
    pub(super) fn free(&self, state: &mut State, clusters: Range<u64>) -> Result<()> {
        let zeros = if self.below.is_some() { Entry::ZEROED } else { Entry::default() };
        let mut next = clusters.start;
        while next < clusters.end {
            let index = next / self.header.mapped();
            let end = ((index + 1) * self.header.mapped()).min(clusters.end);
            let is_absent = state.l1.get(index as usize).is_none_or(|l1| l1 & OFFSET == 0);
            if !(is_absent && self.below.is_none()) {
                self.add_table(state, index)?;
                for cluster in next..end {
                    let old = self.entry(state, cluster)?;
                    let is_zero = old == zeros || old == Entry::ZEROED;
                    if !is_zero {
                        self.map(state, cluster, zeros)?;
                    }
                }
                self.bound(state)?;
            }
            next = end;
        }
        Ok(())
    }

    /// Writes a compressed cluster of the disk.
    fn write_packed(&self, state: &mut State, packed: &[u8], cluster: u64) -> Result<()> {
        self.add_table(state, cluster / self.header.mapped())?;
        let (to, used) = self.place_packed(state, packed.len() as u64)?;
        if let Err(error) = self.put(packed, to) {
            let writer = state.writer()?;
            writer.rest = 0..0;
            used.into_iter().try_for_each(|one| writer.refcounts.release(&self.file, one))?;
            return Err(error);
        }
        self.map(state, cluster, Entry::of_packed(to, packed.len() as u64, &self.header))?;
        self.bound(state)
    }

    /// Finds space for compressed data. The space begins in a cluster that may contain other compressed data, and may extend into the next
    /// cluster. Also returns the clusters whose refcounts were increased.
    fn place_packed(&self, state: &mut State, len: u64) -> Result<(u64, SmallVec<[u64; 2]>)> {
        let size = self.header.cluster();
        let writer = state.writer()?;
        let Range { start, end } = writer.rest.clone();
        let last = start / size;
        let fits = start < end && len <= end - start;
        let (to, stop, used) = if fits && writer.refcounts.share(&self.file, last)? {
            (start, end, smallvec![last])
        } else {
            let (next, _) = writer.refcounts.allocate(&self.file, 1)?;
            let is_adjacent = start < end && !fits && next * size == end;
            let both = match is_adjacent {
                true => writer.refcounts.share(&self.file, last),
                false => Ok(false),
            };
            if both.is_err() {
                writer.refcounts.release(&self.file, next)?;
            }
            if both? {
                (start, end + size, smallvec![last, next])
            } else {
                (next * size, (next + 1) * size, smallvec![next])
            }
        };
        writer.rest = to + len..stop;
        Ok((to, used))
    }

    /// Commits the changes if they need much memory, or if the refcount table was replaced.
    fn bound(&self, state: &mut State) -> Result<()> {
        let State { l1, writer } = state;
        let Some(writer) = writer else { return Ok(()) };
        let most = (MOST_TABLES / self.header.cluster()).max(8);
        let is_large = writer.changed.len() as u64 > most || writer.freed.len() > MOST_FREED;
        if is_large || writer.refcounts.is_large() || writer.refcounts.has_moved() {
            return self.commit(l1, writer);
        }
        Ok(())
    }

    /// Makes all changes durable. The module documentation describes the order of the writes.
    pub(super) fn commit(&self, l1: &[u64], writer: &mut Writer) -> Result<()> {
        writer.check()?;
        let done = self.write_new_tables(l1, writer);
        writer.must(done)?;
        let replaced = writer.refcounts.write_pointers(&self.file);
        let (has_pointers, replaced) = writer.must(replaced)?;
        if has_pointers {
            writer.must(self.file.sync())?;
        }
        writer.freed.extend(replaced);
        if !writer.changed.is_empty() {
            let done = self.write_changed_tables(l1, writer);
            writer.must(done)?;
        }
        for (index, table) in writer.changed.drain() {
            self.cache.put(index, Arc::from(table.words));
        }
        if writer.freed.is_empty() {
            return Ok(());
        }
        // `rest` is the unused part of a cluster with compressed data. This cluster may be among the freed clusters and may then be
        // allocated for another purpose, so `rest` must be emptied.
        writer.rest = 0..0;
        *self.last.lock() = None;
        let mut freed = std::mem::take(&mut writer.freed);
        freed.sort_unstable();
        for cluster in freed {
            writer.refcounts.release(&self.file, cluster)?;
            if writer.refcounts.is_large() {
                let done = writer.refcounts.write_blocks(&self.file);
                writer.must(done)?;
            }
        }
        let done = writer.refcounts.write_blocks(&self.file);
        writer.must(done)
    }

    fn write_new_tables(&self, l1: &[u64], writer: &mut Writer) -> Result<(), Errno> {
        writer.refcounts.write_blocks(&self.file)?;
        for (index, table) in writer.changed.iter().filter(|(_, table)| table.is_new) {
            self.write_table(l1, *index, table)?;
        }
        self.file.sync()
    }

    fn write_changed_tables(&self, l1: &[u64], writer: &Writer) -> Result<(), Errno> {
        for (index, table) in &writer.changed {
            if table.is_new {
                let pointer = l1[*index as usize].to_be_bytes();
                self.file.write(&[IoSlice::new(&pointer)], self.header.l1_at + index * 8)?;
            } else {
                self.write_table(l1, *index, table)?;
            }
        }
        self.file.sync()
    }

    fn write_table(&self, l1: &[u64], index: u64, table: &Changed) -> Result<(), Errno> {
        let bytes: Vec<u8> = table.words.iter().flat_map(|word| word.to_be_bytes()).collect();
        self.file.write(&[IoSlice::new(&bytes)], l1[index as usize] & OFFSET)
    }
}
