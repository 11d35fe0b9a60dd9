//! Blocks and records of the log.

use std::sync::Arc;

use zerocopy::FromBytes;

use super::LogRange;
use crate::device::Device;
use crate::error::{Context, Error, Place, Result};
use crate::fs::uuid_text;
use crate::fs::xfs::Superblock;
use crate::fs::xfs::disk::log::{
    BLOCK, CHECKED_EXTENSION, CHECKED_HEADER, CRC_AT, CYCLES_AT, CYCLES_PER_HEADER,
    EXTENSION_CYCLES_AT, FORMAT_LITTLE_ENDIAN, MAGIC, RawOperation, RawRecord, operation,
};
use crate::fs::xfs::header::{array, crc_of};
use crate::units::DevOffset;

/// The maximum number of data bytes in a record: the size of the kernel's largest log buffer.
const MAX_RECORD: usize = 256 << 10;
/// The maximum size of a log: 2 GiB.
const MAX_BLOCKS: u32 = 1 << 22;
/// The number of data bytes of a record for each header block. A header block saves the first word of each data block.
const BYTES_PER_HEADER: usize = CYCLES_PER_HEADER * BLOCK;
const PLACE: Place = Place::new("log record");

/// A position in the log: a block and a cycle. The cycle is incremented each time that the log restarts at block 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) cycle: u32,
    pub(super) block: u32,
}

impl Position {
    pub(super) fn of_lsn(lsn: u64) -> Self {
        Self { cycle: (lsn >> 32) as u32, block: lsn as u32 }
    }
}

/// The log's blocks on its device.
pub(super) struct LogBlocks<'a> {
    device: &'a Arc<dyn Device>,
    range: LogRange,
    pub(super) count: u32,
}

/// A log record. In the log, each block begins with the cycle number. In this structure, each block begins with its own first word. The
/// record's header saves these words.
pub(super) struct Record {
    pub(super) lsn: u64,
    pub(super) operations: u32,
    pub(super) data: Vec<u8>,
    /// The start of the next record.
    pub(super) next: Position,
    pub(super) place: Place,
}

/// Fields of a record's header, read without checks. An unmount record that a machine of another architecture wrote would fail the checks.
pub(super) struct Outline {
    pub(super) tail: Position,
    /// The maximum number of blocks of a record, as set by the mount that wrote this record.
    pub(super) most_blocks: u32,
    /// The number of the block after the record.
    end: u32,
    /// Whether the record is an unmount record.
    pub(super) is_unmount: bool,
}

impl Outline {
    pub(super) fn ends_at(&self, end: Position) -> bool {
        self.end == end.block
    }
}

impl<'a> LogBlocks<'a> {
    pub(super) fn new(device: &'a Arc<dyn Device>, range: LogRange) -> Result<Self> {
        let count = u32::try_from(range.len / BLOCK as u64)
            .ok()
            .filter(|count| (1..=MAX_BLOCKS).contains(count));
        let count = count.ok_or_else(|| {
            Place::new("superblock").field("sb_logblocks").corrupt(format!("{} bytes", range.len))
        })?;
        Ok(Self { device, range, count })
    }

    /// Reads consecutive blocks of the log. The block after the last block is block 0.
    pub(super) fn read(&self, first: u32, count: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count as usize * BLOCK];
        let before_end = (self.count - first).min(count) as usize * BLOCK;
        let (here, wrapped) = bytes.split_at_mut(before_end);
        self.read_at(first, here)?;
        if !wrapped.is_empty() {
            self.read_at(0, wrapped)?;
        }
        Ok(bytes)
    }

    /// Reads log blocks. The requests cover whole sectors of the device, because a sector can be larger than a log block.
    fn read_at(&self, first: u32, bytes: &mut [u8]) -> Result<()> {
        let unit = u64::from(self.device.limits().logical_block);
        let at = self.range.start + u64::from(first) * BLOCK as u64;
        let (from, to) = (at / unit * unit, (at + bytes.len() as u64).next_multiple_of(unit));
        let mut sectors = vec![0; (to - from) as usize];
        let read = self.device.read_exact_at(&mut sectors, DevOffset(from));
        read.context(|| format!("read of block {first} of the log"))?;
        let skipped = (at - from) as usize;
        bytes.copy_from_slice(&sectors[skipped..skipped + bytes.len()]);
        Ok(())
    }

    /// The cycle in which a block was last written, or 0 if the block was never written.
    pub(super) fn cycle(&self, block: u32) -> Result<u32> {
        Ok(cycle_of(&self.read(block, 1)?))
    }

    /// The location of a record for error messages. If the log is internal, the location names a block of the volume.
    pub(super) fn place(&self, block: u32) -> Place {
        let byte = self.range.start + u64::from(block) * BLOCK as u64;
        PLACE.block(self.range.block.fs_block_of(DevOffset(byte)))
    }

    /// Reads some fields of the record at a position, without checks.
    pub(super) fn outline(&self, at: Position) -> Result<Outline> {
        let first = self.read(at.block, 1)?;
        let Ok((raw, _)) = RawRecord::ref_from_prefix(&first) else {
            return Err(self.place(at.block).corrupt("the log record is truncated"));
        };
        let headers = headers_of(raw) as u64;
        let wrapped = |blocks: u64| ((u64::from(at.block) + blocks) % u64::from(self.count)) as u32;
        let end = wrapped(headers + u64::from(raw.h_len.get()).div_ceil(BLOCK as u64));
        let operation = self.read(wrapped(headers), 1)?;
        let is_unmount = raw.h_num_logops.get() == 1
            && RawOperation::ref_from_prefix(&operation)
                .is_ok_and(|(raw, _)| raw.oh_flags & operation::UNMOUNT != 0);
        let most_blocks = raw.h_size.get() / BLOCK as u32;
        let tail = Position::of_lsn(raw.h_tail_lsn.get());
        Ok(Outline { tail, most_blocks, end, is_unmount })
    }

    /// Reads and checks the record at a position.
    pub(super) fn record(&self, at: Position, superblock: &Superblock) -> Result<Record> {
        let place = self.place(at.block);
        let wrong = |field: &'static str, what: String| {
            place.field(field).corrupt(format!("{what}, in block {} of the log", at.block))
        };
        if at.block >= self.count {
            return Err(wrong("h_lsn", format!("the log has {} blocks", self.count)));
        }
        let first = self.read(at.block, 1)?;
        let Ok((raw, _)) = RawRecord::ref_from_prefix(&first) else {
            return Err(wrong("h_magicno", "the log record is truncated".to_owned()));
        };
        if raw.h_magicno.get() != MAGIC {
            return Err(wrong("h_magicno", format!("{:#010x}", raw.h_magicno)));
        }
        if raw.h_cycle.get() != at.cycle || Position::of_lsn(raw.h_lsn.get()) != at {
            return Err(wrong(
                "h_lsn",
                format!(
                    "the LSN {:#x} does not match the position in cycle {}",
                    raw.h_lsn, at.cycle
                ),
            ));
        }
        let version = raw.h_version.get();
        if version != 1 && version != 2 {
            return Err(wrong("h_version", format!("version {version}")));
        }
        let (len, size) = (raw.h_len.get() as usize, raw.h_size.get() as usize);
        let headers = headers_of(raw);
        if size > MAX_RECORD && version == 2 || len == 0 || len > headers * BYTES_PER_HEADER {
            return Err(wrong("h_len", format!("{len} bytes")));
        }
        let blocks = headers + len.div_ceil(BLOCK);
        if blocks >= self.count as usize {
            return Err(wrong(
                "h_len",
                format!("a record of {len} bytes is too long for a log of {} blocks", self.count),
            ));
        }
        let bytes = self.read(at.block, blocks as u32)?;
        let (header, data) = bytes.split_at(headers * BLOCK);
        let (stored, computed) = (u32::from_le_bytes(raw.h_crc), crc(header, &data[..len]));
        // In version 4, the checksum is optional: a stored value of 0 means that there is none.
        if stored != computed && (stored != 0 || superblock.is_v5()) {
            return Err(place.field("h_crc").bad_checksum(stored, computed));
        }
        let mut data = data.to_vec();
        for (number, block) in data.chunks_exact_mut(BLOCK).enumerate() {
            if cycle_of(block) != at.cycle && !self.is_wrapped(at, headers + number, block) {
                let what = format!(
                    "block {number} of the record has the wrong cycle number {}",
                    cycle_of(block)
                );
                return Err(wrong("h_cycle", what));
            }
            let (header_block, word) = (number / CYCLES_PER_HEADER, number % CYCLES_PER_HEADER);
            let words = if header_block == 0 { CYCLES_AT } else { EXTENSION_CYCLES_AT };
            let from = header_block * BLOCK + words + word * 4;
            block[..4].copy_from_slice(&header[from..from + 4]);
        }
        data.truncate(len);
        if raw.h_fmt.get() != FORMAT_LITTLE_ENDIAN {
            let what =
                format!("the log was written with another byte order (format {})", raw.h_fmt);
            return Err(Error::unsupported(what));
        }
        let (lsn, operations) = (raw.h_lsn.get(), raw.h_num_logops.get());
        Ok(Record { lsn, operations, data, next: self.after(at, blocks as u32), place })
    }

    /// Returns the position that is `blocks` blocks after `at`. `blocks` must be less than the number of blocks of the log.
    fn after(&self, at: Position, blocks: u32) -> Position {
        let next = at.block + blocks;
        match next.checked_sub(self.count) {
            Some(block) => Position { cycle: at.cycle.wrapping_add(1), block },
            None => Position { cycle: at.cycle, block: next },
        }
    }

    /// Whether a block of a record is stored after the log restarts at block 0. The cycle number of such a block is one higher than the
    /// record's.
    fn is_wrapped(&self, at: Position, number: usize, block: &[u8]) -> bool {
        at.block as usize + number >= self.count as usize
            && cycle_of(block) == at.cycle.wrapping_add(1)
    }

    /// Checks that a record belongs to the volume.
    pub(super) fn check_uuid(&self, at: Position, superblock: &Superblock) -> Result<()> {
        let (found, own) = (array(&self.read(at.block, 1)?, 304), superblock.uuid);
        // The earliest version of the log has no UUID. Linux accepts a log without a UUID only if the log is clean.
        if found == own || found == [0; 16] && self.outline(at)?.is_unmount {
            return Ok(());
        }
        let (found, own) = (uuid_text(&found), uuid_text(&own));
        let what = format!("the log belongs to volume {found}, not to this volume {own}");
        Err(self.place(at.block).field("h_fs_uuid").corrupt(what))
    }
}

/// The number of header blocks of a record: one for each 32 KiB of the maximum record size (`h_size`). The actual size of the record does
/// not matter.
fn headers_of(raw: &RawRecord) -> usize {
    let size = raw.h_size.get() as usize;
    if raw.h_version.get() == 2 { size.div_ceil(BYTES_PER_HEADER).max(1) } else { 1 }
}

/// The cycle of a block: its first word, or its second word if the block is a record header.
pub(super) fn cycle_of(block: &[u8]) -> u32 {
    let word = |at| u32::from_be_bytes(array(block, at));
    if word(0) == MAGIC { word(4) } else { word(0) }
}

/// The checksum of a record as stored in the log, with the cycle numbers in its blocks.
fn crc(header: &[u8], data: &[u8]) -> u32 {
    let mut sum = crc_of(&header[..CHECKED_HEADER], CRC_AT);
    // The checksum covers only the header blocks that this record's data need. A record can have more header blocks, because their number
    // depends on the maximum record size.
    let used = data.len().div_ceil(BYTES_PER_HEADER);
    for extension in header.chunks_exact(BLOCK).take(used).skip(1) {
        sum = crc32c::crc32c_append(sum, &extension[..CHECKED_EXTENSION]);
    }
    crc32c::crc32c_append(sum, data)
}
