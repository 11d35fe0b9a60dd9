//! The positions of all parts of a tag area. They are computed from the parameters of the device, which the superblock stores.

use super::disk::{BLOCK, BLOCK_LEN, SEALED};
use crate::error::{Error, Result};
use crate::protection::TupleKind;

/// How data and tags are kept consistent after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A map records the regions that are being written. After a crash, the sectors of these regions are read and get new tags. As on any
    /// disk, a crash can tear a write.
    #[default]
    Bitmap,
    /// Data and tags are first written to a journal. After a crash, a write and its tags are either completely present or completely
    /// absent.
    Journal,
}

/// The parameters of an integrity device. All sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The identity of the integrity device.
    pub uuid: [u8; 16],
    /// The identity of the data device, or zeros if the identity was not given.
    pub data_uuid: [u8; 16],
    /// The size of the data.
    pub data_size: u64,
    /// The number of bytes that one tuple protects: 512 or 4096.
    pub interval: u32,
    /// The kind of the tuple.
    pub kind: TupleKind,
    /// How the device keeps data and tags consistent after a crash.
    pub mode: Mode,
    /// The number of bytes of a region. Each region has one bit in the dirty map.
    pub region: u64,
    /// Whether the application tag contains the generation of the sector's region.
    pub generations: bool,
    /// The application tag, if it does not contain a generation.
    pub application: u16,
    /// The length of the journal in bytes; 0 in bitmap mode.
    pub journal: u64,
    /// The position of the tag area on its device, in bytes. In the tail of the data device, the area begins after the data. On a separate
    /// device, the position is 0.
    pub area_start: u64,
}

/// The largest number of regions, which limits the memory of an open device.
pub(super) const MOST_REGIONS: u64 = 1 << 26;
/// The shortest length of a journal.
pub(super) const SMALLEST_JOURNAL: u64 = 64 << 10;

impl Info {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let sound = [
            (matches!(self.interval, 512 | 4096), "interval"),
            (self.data_size > 0 && self.data_size < 1 << 60, "data_size"),
            (self.data_size.is_multiple_of(u64::from(self.interval.max(1))), "data_size"),
            (self.region.is_power_of_two() && self.region >= BLOCK_LEN, "region"),
            (
                self.region < 1 << 60
                    && self.data_size.div_ceil(self.region.max(1)) <= MOST_REGIONS,
                "region",
            ),
            (self.journal.is_multiple_of(BLOCK_LEN) && self.journal < 1 << 40, "journal_len"),
            (self.mode != Mode::Bitmap || self.journal == 0, "journal_len"),
            (self.mode != Mode::Journal || self.journal >= SMALLEST_JOURNAL, "journal_len"),
            (self.area_start == 0 || self.area_start >= self.data_size, "area_start"),
            (self.area_start.is_multiple_of(BLOCK_LEN) && self.area_start < 1 << 60, "area_start"),
        ];
        sound.into_iter().find(|(sound, _)| !sound).map_or(Ok(()), |(_, field)| Err(field))
    }

    /// The number of sectors of data.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.data_size / u64::from(self.interval)
    }

    /// The number of regions of the dirty map.
    #[must_use]
    pub fn regions(&self) -> u64 {
        self.data_size.div_ceil(self.region)
    }

    /// The number of tuples in a block.
    pub(super) fn tuples_per_block(&self) -> u64 {
        (BLOCK / self.kind.bytes()) as u64
    }

    /// Returns the largest number of sectors in one step of a discard. The tag blocks of these sectors stay in memory during the step.
    pub(super) fn most_discarded(&self) -> u64 {
        64 * self.tuples_per_block()
    }

    fn map_blocks(&self) -> u64 {
        self.regions().div_ceil(REGIONS_PER_MAP_BLOCK)
    }

    fn generation_blocks(&self) -> u64 {
        if self.generations { self.regions().div_ceil(GENERATIONS_PER_BLOCK) } else { 0 }
    }

    /// The number of blocks of tags.
    pub(super) fn tag_blocks(&self) -> u64 {
        self.sectors().div_ceil(self.tuples_per_block())
    }

    /// The start of the dirty map on the tag device.
    pub(super) fn map_at(&self) -> u64 {
        self.area_start + BLOCK_LEN
    }

    pub(super) fn generations_at(&self) -> u64 {
        self.map_at() + self.map_blocks() * BLOCK_LEN
    }

    pub(super) fn tags_at(&self) -> u64 {
        self.generations_at() + self.generation_blocks() * BLOCK_LEN
    }

    pub(super) fn journal_at(&self) -> u64 {
        self.tags_at() + self.tag_blocks() * BLOCK_LEN
    }

    /// The position of the last copy of the superblock. The area has `area_len` bytes.
    pub(super) fn last_at(&self, area_len: u64) -> u64 {
        self.area_start + area_len - BLOCK_LEN
    }

    /// The number of bytes that the area needs.
    #[must_use]
    pub fn area_len(&self) -> u64 {
        self.journal_at() + self.journal + BLOCK_LEN - self.area_start
    }

    /// Sets `data_size` to the largest size for which data and area fit on one device of `size` bytes. Returns the number of bytes after
    /// the data.
    pub(super) fn fit(&mut self, size: u64) -> Result<u64> {
        // At first, data and area together exceed the device. Each iteration shortens the data by the excess. Shorter data never need a
        // longer area, so the excess decreases to 0.
        let usable = size / BLOCK_LEN * BLOCK_LEN;
        self.data_size = usable;
        for _ in 0..64 {
            self.area_start = self.data_size;
            let over = (self.data_size + self.area_len()).saturating_sub(usable);
            if over == 0 {
                return Ok(usable - self.data_size);
            }
            match self.data_size.checked_sub(over.next_multiple_of(BLOCK_LEN)) {
                Some(left) if left > 0 => self.data_size = left,
                _ => break,
            }
        }
        Err(Error::invalid(format!(
            "a device of {size} bytes is too small for data and their tags"
        )))
    }
}

/// The number of bits in a block of the map.
pub(super) const REGIONS_PER_MAP_BLOCK: u64 = SEALED as u64 * 8;
/// The number of counters in a block of the generations.
pub(super) const GENERATIONS_PER_BLOCK: u64 = SEALED as u64 / 2;

/// Returns the default size of a region, at least 1 MiB. With this size, the map fits into one block.
pub(super) fn default_region(data_size: u64) -> u64 {
    data_size.div_ceil(REGIONS_PER_MAP_BLOCK).next_power_of_two().max(1 << 20)
}
