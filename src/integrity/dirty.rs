//! The dirty map records the regions that are being written. After a crash, only the sectors of these regions are read and get new tags.
//!
//! The bit of a region is set durably before the first write to the region begins. The bit is cleared only if no write to the region is in
//! flight and the data and tags of all earlier writes are durable.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::area::Area;
use super::disk::{BLOCK_LEN, SEALED};
use super::geometry::{GENERATIONS_PER_BLOCK, Info, REGIONS_PER_MAP_BLOCK};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A flag in a region's state: the region's bit in the map is durably set.
const DIRTY: u64 = 1 << 31;
/// A flag in a region's state: at least one sector has a tag with the region's generation.
const TRACE: u64 = 1 << 30;
/// A mask: the lower bits of a region's state contain the number of writes in flight.
const FLYING: u64 = TRACE - 1;
/// An increment: the upper bits of a region's state count the writes that have begun. Each write adds this value to the state.
const BEGUN: u64 = 1 << 32;

#[derive(Debug)]
pub(super) struct Regions {
    area: Area,
    map_at: u64,
    generations_at: u64,
    shift: u32,
    states: Box<[AtomicU64]>,
    /// The generation of each region. The list is empty if generations are not tracked. Only a thread that holds the lock of `map` writes
    /// generations.
    generations: Box<[AtomicU32]>,
    dirty: AtomicU32,
    /// The regions that threads wait for, because the bits of these regions are not set yet. One flush sets the bits of all these regions.
    wanted: Mutex<Vec<u32>>,
    map: Mutex<Map>,
}

/// The content of the map's blocks.
#[derive(Debug)]
struct Map {
    blocks: Vec<[u8; SEALED]>,
    generations: Vec<[u8; SEALED]>,
    /// Regions that are not dirty, but whose bits may be set on the device because a write of the map failed.
    doubtful: BTreeSet<u32>,
    /// Whether the device was closed. In a closed device, no bit can be set.
    closed: bool,
}

/// The content of the map when the device was opened.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) regions: Regions,
    /// The regions whose bits are set: they were being written when a crash occurred.
    pub(super) dirty: Vec<u32>,
    /// The number of blocks of the map that did not match their checksums.
    pub(super) bad_blocks: u64,
}

impl Map {
    fn is_set(&self, region: u32) -> bool {
        let (block, byte, bit) = place(region);
        self.blocks[block][byte] >> bit & 1 != 0
    }

    /// Sets or clears a bit. Returns the index of the block that contains the bit.
    fn set(&mut self, region: u32, dirty: bool) -> usize {
        let (block, byte, bit) = place(region);
        let byte = &mut self.blocks[block][byte];
        *byte = *byte & !(1 << bit) | u8::from(dirty) << bit;
        block
    }

    /// Sets a region's generation. Returns the index of the block that contains the generation.
    fn set_generation(&mut self, region: u32, generation: u16) -> usize {
        let (block, at) = generation_place(region);
        self.generations[block][at..at + 2].copy_from_slice(&generation.to_le_bytes());
        block
    }
}

fn place(region: u32) -> (usize, usize, u32) {
    let (block, bit) = (region as usize / (SEALED * 8), region as usize % (SEALED * 8));
    (block, bit / 8, bit as u32 % 8)
}

fn generation_place(region: u32) -> (usize, usize) {
    let per_block = GENERATIONS_PER_BLOCK as usize;
    (region as usize / per_block, region as usize % per_block * 2)
}

impl Regions {
    /// Reads the map. If a block does not match its checksum, all regions of the block count as dirty. If the device refuses to read a
    /// block, calls `refused`. If `refused` returns `Ok`, all regions of this block count as dirty too. If the device was `clean`, the map
    /// is ignored, and no region is dirty.
    pub(super) fn read(
        area: &Area,
        info: &Info,
        clean: bool,
        refused: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<Found> {
        let count = info.regions() as u32;
        let (mut blocks, mut bad_blocks) = (Vec::new(), 0);
        let mut read = |at: u64, what: &'static str| match area.read_sealed(at) {
            Ok(block) => {
                bad_blocks += u64::from(block.is_none());
                Ok(block)
            }
            Err(error) => refused(error.context(what)).map(|()| None),
        };
        for number in 0..info.regions().div_ceil(REGIONS_PER_MAP_BLOCK) {
            let block = read(info.map_at() + number * BLOCK_LEN, "read the dirty map")?;
            blocks.push(if clean { [0; SEALED] } else { block.unwrap_or([0xFF; SEALED]) });
        }
        let (mut generations, mut counters) = (Vec::new(), Vec::new());
        if info.generations {
            for number in 0..info.regions().div_ceil(GENERATIONS_PER_BLOCK) {
                let block =
                    read(info.generations_at() + number * BLOCK_LEN, "read the generations")?;
                // The generation 0 means that the region was never written, or that its generation is unknown. A scrub does not search for
                // sectors with the generation 0.
                generations.push(block.unwrap_or([0; SEALED]));
            }
            let counter =
                |bytes: &[u8]| AtomicU32::new(u16::from_le_bytes([bytes[0], bytes[1]]).into());
            counters
                .extend(generations.iter().flat_map(|block| block.chunks_exact(2)).map(counter));
        }
        let map = Map { blocks, generations, doubtful: BTreeSet::new(), closed: false };
        let dirty: Vec<_> = (0..count).filter(|region| map.is_set(*region)).collect();
        let regions = Self {
            area: area.clone(),
            map_at: info.map_at(),
            generations_at: info.generations_at(),
            shift: info.region.trailing_zeros(),
            states: (0..count)
                .map(|region| AtomicU64::new(if map.is_set(region) { DIRTY } else { 0 }))
                .collect(),
            generations: counters.into(),
            dirty: AtomicU32::new(dirty.len() as u32),
            wanted: Mutex::default(),
            map: Mutex::new(map),
        };
        Ok(Found { regions, dirty, bad_blocks })
    }

    /// Writes a map without dirty regions to the device. Does not flush the device.
    pub(super) fn format(area: &Area, info: &Info) -> Result<()> {
        for number in 0..(info.tags_at() - info.map_at()) / BLOCK_LEN {
            area.write_sealed(&[0; SEALED], info.map_at() + number * BLOCK_LEN, false)?;
        }
        Ok(())
    }

    /// Returns the region that contains the byte at `at`.
    #[inline]
    pub(super) fn region_of(&self, at: u64) -> u32 {
        (at >> self.shift) as u32
    }

    fn of(&self, at: u64, len: u64) -> RangeInclusive<u32> {
        self.region_of(at)..=self.region_of(at + len - 1)
    }

    /// Begins a write. When this function returns, the regions of the write are durably marked as dirty. They stay dirty until
    /// [`end`](Self::end). If `nowait` is set and a region is not dirty, the function fails with EAGAIN.
    ///
    /// # Errors
    /// The errors of the tag device. After an error, the write has not begun.
    #[inline]
    pub(super) fn begin(&self, at: u64, len: u64, nowait: bool) -> Result<()> {
        let mut dirty = true;
        for region in self.of(at, len) {
            let before = self.states[region as usize].fetch_add(BEGUN + 1, Ordering::AcqRel);
            dirty &= before & DIRTY != 0;
        }
        if dirty {
            return Ok(());
        }
        let dirtied = if nowait {
            Err(Error::would_block("the region would first have to be marked as dirty"))
        } else {
            self.dirty_now(self.of(at, len))
        };
        if dirtied.is_err() {
            self.end(at, len, false);
        }
        dirtied
    }

    /// Ends a write. The tags in memory already match the written sectors. `written` is true if these tags contain the region's generation.
    #[inline]
    pub(super) fn end(&self, at: u64, len: u64, written: bool) {
        for region in self.of(at, len) {
            if written && !self.generations.is_empty() {
                self.traced(region);
            }
            self.states[region as usize].fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Records that a sector of a dirty region has a tag with the region's generation.
    pub(super) fn traced(&self, region: u32) {
        self.states[region as usize].fetch_or(TRACE, Ordering::AcqRel);
    }

    /// Whether the region must contain a sector with a tag of the region's generation. This is false if the region became dirty and no
    /// write to it has stored such a tag.
    pub(super) fn has_trace(&self, region: u32) -> bool {
        let state = self.states[region as usize].load(Ordering::Acquire);
        self.generations.is_empty() || state & DIRTY == 0 || state & TRACE != 0
    }

    /// Returns the dirty regions that may contain no tag with the region's generation.
    pub(super) fn without_trace(&self) -> Vec<u32> {
        (0..self.states.len() as u32).filter(|region| !self.has_trace(*region)).collect()
    }

    #[cold]
    fn dirty_now(&self, regions: RangeInclusive<u32>) -> Result<()> {
        let clean = || regions.clone().filter(|region| !self.is_dirty(*region));
        self.wanted.lock().extend(clean());
        let mut map = self.map.lock();
        if clean().next().is_none() {
            // Another thread has already set the bits of all these regions.
            return Ok(());
        }
        if map.closed {
            return Err(closed());
        }
        let mut wanted = std::mem::take(&mut *self.wanted.lock());
        wanted.extend(clean());
        wanted.sort_unstable();
        wanted.dedup();
        // Another thread may already have set the bits of some of the wanted regions.
        wanted.retain(|region| !self.is_dirty(*region) && self.stillness(*region).is_none());
        let written = self.write_dirty(&mut map, &wanted);
        if let Err(error) = written {
            // In memory, the map keeps these bits set, but the regions do not count as dirty. Each thread that waits for one of these
            // regions then tries again to write the bits.
            map.doubtful.extend(wanted);
            return Err(error.context("set bits of the dirty map"));
        }
        for region in &wanted {
            self.states[*region as usize].fetch_or(DIRTY, Ordering::AcqRel);
        }
        self.dirty.fetch_add(wanted.len() as u32, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the bits of regions durably, and increases the regions' generations. The bits are written before the generations. In the
    /// reverse order, a crash could leave a clean region whose new generation is in no tag.
    fn write_dirty(&self, map: &mut Map, regions: &[u32]) -> Result<()> {
        let blocks = regions.iter().map(|region| map.set(*region, true)).collect();
        self.write_blocks(&map.blocks, self.map_at, blocks, true)?;
        if self.generations.is_empty() {
            return Ok(());
        }
        let counter = |region: &u32| &self.generations[*region as usize];
        let now = |region: &u32| counter(region).load(Ordering::Acquire) as u16;
        // The generation 0 is skipped, because it means that the region was never written.
        let next = |region: &u32| now(region).wrapping_add(1).max(1);
        let blocks = regions.iter().map(|region| map.set_generation(*region, next(region)));
        let blocks = blocks.collect();
        let written = self.write_blocks(&map.generations, self.generations_at, blocks, true);
        for region in regions {
            match written {
                Ok(()) => counter(region).store(next(region).into(), Ordering::Release),
                Err(_) => _ = map.set_generation(*region, now(region)),
            }
        }
        written
    }

    /// Writes those blocks of the map, or of the generations, that have the given numbers. The numbers are in ascending order.
    fn write_blocks(
        &self,
        blocks: &[[u8; SEALED]],
        start: u64,
        mut numbers: Vec<usize>,
        fua: bool,
    ) -> Result<()> {
        numbers.dedup();
        for number in numbers {
            let at = start + number as u64 * BLOCK_LEN;
            self.area.write_sealed(&blocks[number], at, fua)?;
        }
        Ok(())
    }

    /// Returns the generation of the region that contains the byte at `at`, or 0 if generations are not tracked. The generation does not
    /// change while a write is in flight.
    #[inline]
    pub(super) fn generation(&self, at: u64) -> u16 {
        let region = self.region_of(at) as usize;
        self.generations.get(region).map_or(0, |counter| counter.load(Ordering::Acquire) as u16)
    }

    pub(super) fn is_dirty(&self, region: u32) -> bool {
        self.states[region as usize].load(Ordering::Acquire) & DIRTY != 0
    }

    /// Returns a number that changes when a write to the region begins. Returns `None` while a write to the region is in flight.
    pub(super) fn stillness(&self, region: u32) -> Option<u64> {
        let state = self.states[region as usize].load(Ordering::Acquire);
        (state & FLYING == 0).then_some(state)
    }

    /// The number of dirty regions.
    pub(super) fn dirty_count(&self) -> u32 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Closes the map and writes it to the device. In a closed map, no region can become dirty. If a region is dirty, returns false and
    /// changes nothing.
    ///
    /// # Errors
    /// The errors of the tag device. After an error, the map is not closed.
    pub(super) fn close(&self) -> Result<bool> {
        let mut map = self.map.lock();
        if self.dirty_count() == 0 {
            self.resolve(&mut map).context(|| "clear bits of the dirty map")?;
            map.closed = true;
        }
        Ok(map.closed)
    }

    /// Writes the correct bits and generations of the doubtful regions to the device. (Doubtful regions are not dirty, but their bits may
    /// be set on the device.) The generations are written before the bits are cleared, because a clean region must have a tag with its
    /// generation.
    fn resolve(&self, map: &mut Map) -> Result<()> {
        let regions: Vec<_> = map.doubtful.iter().copied().collect();
        if !self.generations.is_empty() {
            let blocks = regions.iter().map(|region| generation_place(*region).0).collect();
            self.write_blocks(&map.generations, self.generations_at, blocks, true)?;
        }
        let blocks = regions.iter().map(|region| map.set(*region, false)).collect();
        self.write_blocks(&map.blocks, self.map_at, blocks, false)?;
        map.doubtful.clear();
        Ok(())
    }

    /// Returns the dirty regions that have no write in flight, and their states, for a call of [`clear`](Self::clear). Omits a region if it
    /// may contain no tag with its generation.
    pub(super) fn idle(&self) -> Vec<(u32, u64)> {
        let needed = if self.generations.is_empty() { DIRTY } else { DIRTY | TRACE };
        let idle = |(region, state): (usize, &AtomicU64)| {
            let state = state.load(Ordering::Acquire);
            (state & needed == needed && state & FLYING == 0).then_some((region as u32, state))
        };
        self.states.iter().enumerate().filter_map(idle).collect()
    }

    /// Clears the bits of these regions. A region to which a write has begun since [`idle`](Self::idle) keeps its bit. Data and tags of all
    /// earlier writes must be durable. The cleared bits need not be durable: if a crash restores them, the recovery only reads more regions
    /// than necessary.
    pub(super) fn clear(&self, idle: &[(u32, u64)]) -> Result<()> {
        let mut map = self.map.lock();
        let (mut blocks, mut cleared) = (Vec::new(), Vec::new());
        for (region, state) in idle {
            let clean = state & !(DIRTY | TRACE);
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            let exchanged =
                self.states[*region as usize].compare_exchange(*state, clean, order.0, order.1);
            if exchanged.is_ok() {
                blocks.push(map.set(*region, false));
                cleared.push(*region);
            }
        }
        self.dirty.fetch_sub(cleared.len() as u32, Ordering::Relaxed);
        let written = self.write_blocks(&map.blocks, self.map_at, blocks, false);
        if written.is_err() {
            map.doubtful.extend(cleared);
        }
        written.context(|| "clear bits of the dirty map")
    }
}

/// Returns the error for a write after the device was closed.
#[cold]
pub(super) fn closed() -> Error {
    Error::new(ErrorKind::ReadOnly, "the integrity device is closed")
}
