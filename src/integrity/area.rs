//! A tag area: the part of a device in which an integrity device stores the tags (checksums) of its sectors. The area also contains
//! superblocks and sealed blocks. A sealed block ends with a checksum of the block.

use std::io::{IoSlice, Read};
use std::sync::Arc;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::disk::{
    BLOCK, BLOCK_LEN, GENERATIONS, KIND_NVME64, KIND_T10, KNOWN_FEATURES, MAGIC, MODE_BITMAP,
    MODE_JOURNAL, RawSealed, RawSuperblock, SEALED, STATE_CLEAN, STATE_OPEN, VERSION,
};
use super::geometry::{Info, Mode};
use crate::bio::Buffer;
use crate::device::{Device, Durability};
use crate::error::{Context, Error, ErrorKind, Place, Result};
use crate::protection::TupleKind;
use crate::units::{DevOffset, FsBlock};

const STRUCTURE: &str = "integrity superblock";

/// The number of bytes that are read in one step.
pub(super) const CHUNK: u64 = 1 << 20;

/// The fields of a superblock.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    pub(super) info: Info,
    pub(super) area_len: u64,
    pub(super) sequence: u64,
    /// Whether the device was closed and needs no recovery.
    pub(super) clean: bool,
}

/// A block of memory with the alignment that devices require.
pub(super) fn block() -> Result<Buffer> {
    Buffer::aligned(BLOCK)
}

/// Writes one block.
pub(super) fn write_block(device: &dyn Device, bytes: &[u8], at: u64, fua: bool) -> Result<()> {
    let mut buffer = Buffer::aligned(bytes.len())?;
    buffer.copy_from_slice(bytes);
    device.write_all_at(&[IoSlice::new(&buffer)], DevOffset(at), fua)
}

/// Generates the identity of a new integrity device.
pub(super) fn random_uuid() -> Result<[u8; 16]> {
    let mut uuid = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut uuid));
    read.map_err(|error| {
        Error::invalid("cannot read a random UUID from /dev/urandom").source(error)
    })?;
    // The identity is a random UUID (version 4, variant 1).
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    Ok(uuid)
}

impl Superblock {
    fn parse(bytes: &[u8; BLOCK], at: u64) -> Result<Self> {
        let place = Place::new(STRUCTURE).block(FsBlock(at / BLOCK_LEN));
        let raw = Self::verified(bytes, at, place)?;
        let bad = |field: &'static str, value: u64| {
            Err(place.field(field).corrupt(format!("the value {value:#x} is not valid")))
        };
        let kind = match raw.kind {
            KIND_T10 => TupleKind::T10,
            KIND_NVME64 => TupleKind::Nvme64,
            other => return bad("kind", other.into()),
        };
        let mode = match raw.mode {
            MODE_BITMAP => Mode::Bitmap,
            MODE_JOURNAL => Mode::Journal,
            other => return bad("mode", other.into()),
        };
        let clean = match raw.state {
            STATE_CLEAN => true,
            STATE_OPEN => false,
            other => return bad("state", other.into()),
        };
        let info = Info {
            uuid: raw.uuid,
            data_uuid: raw.data_uuid,
            data_size: raw.data_size.get(),
            interval: raw.interval.get(),
            kind,
            mode,
            region: raw.region.get(),
            generations: raw.features.get() & GENERATIONS != 0,
            application: raw.application.get(),
            journal: raw.journal_len.get(),
            area_start: raw.area_start.get(),
        };
        info.check().map_err(|field| place.field(field).corrupt("the value is not valid"))?;
        let area_len = raw.area_len.get();
        if area_len < info.area_len() || area_len >= 1 << 60 || !area_len.is_multiple_of(BLOCK_LEN)
        {
            return bad("area_len", area_len);
        }
        let sequence = raw.sequence.get();
        if sequence > u64::MAX / 2 {
            // Each change of the superblock increments its sequence number. A number above this limit is refused, because an increment
            // could overflow.
            return bad("sequence", sequence);
        }
        Ok(Self { info, area_len, sequence, clean })
    }

    /// Parses the superblock. Fails for an unknown version, a wrong checksum, or unknown features.
    fn verified(bytes: &[u8; BLOCK], at: u64, place: Place) -> Result<&RawSuperblock> {
        let raw = RawSuperblock::ref_from_bytes(bytes).map_err(|_| {
            Error::invalid("the integrity superblock does not have the size of a block")
        })?;
        if raw.magic != MAGIC {
            return Err(Error::new(
                ErrorKind::UnknownFormat,
                format!("there is no integrity superblock at byte {at}"),
            ));
        }
        let sum = crc32c::crc32c(&bytes[..BLOCK - 4]);
        if raw.checksum.get() != sum {
            return Err(place.field("checksum").bad_checksum(raw.checksum.get(), sum));
        }
        if raw.version.get() != VERSION {
            return Err(Error::unsupported(format!(
                "version {} of the integrity format is not supported",
                raw.version
            )));
        }
        let unknown = raw.features.get() & !KNOWN_FEATURES;
        if unknown != 0 {
            return Err(Error::unsupported(format!(
                "the integrity device has unknown features ({unknown:#x})"
            )));
        }
        Ok(raw)
    }

    fn to_bytes(&self) -> Result<Buffer> {
        let info = &self.info;
        let mut raw = RawSuperblock::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.features = if info.generations { GENERATIONS } else { 0 }.into();
        raw.uuid = info.uuid;
        raw.data_uuid = info.data_uuid;
        raw.data_size = info.data_size.into();
        raw.area_start = info.area_start.into();
        raw.area_len = self.area_len.into();
        raw.sequence = self.sequence.into();
        raw.region = info.region.into();
        raw.journal_len = info.journal.into();
        raw.interval = info.interval.into();
        raw.application = info.application.into();
        raw.kind = match info.kind {
            TupleKind::T10 => KIND_T10,
            TupleKind::Nvme64 => KIND_NVME64,
        };
        raw.mode = match info.mode {
            Mode::Bitmap => MODE_BITMAP,
            Mode::Journal => MODE_JOURNAL,
        };
        raw.state = if self.clean { STATE_CLEAN } else { STATE_OPEN };
        raw.checksum = crc32c::crc32c(&raw.as_bytes()[..BLOCK - 4]).into();
        let mut buffer = block()?;
        buffer.copy_from_slice(raw.as_bytes());
        Ok(buffer)
    }

    /// Reads the superblock of the tag area on a device. If `tail` is set, the area is at the end of the device.
    pub(super) fn read(device: &dyn Device, tail: bool) -> Result<Self> {
        match Self::copies(device, tail)? {
            // The copies differ only in the identity of the data device. A crash may have interrupted a change of this identity, so that
            // one copy contains the new identity and the other the old one.
            [Ok(one), Ok(two)]
                if one.info == (Info { data_uuid: one.info.data_uuid, ..two.info }) =>
            {
                Ok(if one.sequence > two.sequence { one } else { two })
            }
            // The two copies belong to different integrity devices: a format of an existing integrity device was interrupted after it had
            // written one copy. The sequence numbers of different devices cannot be compared.
            [Ok(_), Ok(_)] => Err(Place::new(STRUCTURE)
                .field("uuid")
                .corrupt("the two copies of the superblock belong to different devices")),
            [Ok(one), Err(_)] => Ok(one),
            [Err(_), Ok(two)] => Ok(two),
            // Neither copy can be used. The error of the copy that the code reads first is more useful.
            [Err(first), Err(last)] => Err(if tail { last } else { first }),
        }
    }

    /// Reads the first and the last copy. Each copy contains the positions of both copies.
    pub(super) fn copies(device: &dyn Device, tail: bool) -> Result<[Result<Self>; 2]> {
        let last = (device.size() / BLOCK_LEN * BLOCK_LEN).checked_sub(BLOCK_LEN);
        let Some(last) = last else {
            return Err(Error::new(
                ErrorKind::UnknownFormat,
                "the device is too small for an integrity superblock",
            ));
        };
        let read = |at: u64| {
            let mut bytes = [0; BLOCK];
            device.read_exact_at(&mut bytes, DevOffset(at))?;
            let found = Self::parse(&bytes, at)?;
            let (start, len) = (found.info.area_start, found.area_len);
            let place = Place::new(STRUCTURE).block(FsBlock(at / BLOCK_LEN));
            if start + len > device.size() || (start > 0) != tail {
                return Err(place.field("area_start").corrupt(format!(
                    "the tag area of {len} bytes at {start} is not within this device of {} bytes",
                    device.size()
                )));
            }
            if at != start && at != found.info.last_at(len) {
                return Err(place
                    .field("area_start")
                    .corrupt("the position of the superblock does not match its fields"));
            }
            Ok(found)
        };
        Ok(if tail {
            // The last copy contains the position of the first copy. If the last copy is torn, this code must search for the first copy.
            match read(last) {
                Ok(found) => [read(found.info.area_start), Ok(found)],
                Err(error) => [find_first(device, &error, read), Err(error)],
            }
        } else {
            match read(0) {
                Ok(found) => {
                    let last = read(found.info.last_at(found.area_len));
                    [Ok(found), last]
                }
                Err(error) => [Err(error), read(last)],
            }
        })
    }

    /// Writes the two copies one after another, so that at least one copy is intact at every moment.
    pub(super) fn write(&self, device: &dyn Device, durability: &Durability) -> Result<()> {
        let bytes = self.to_bytes()?;
        for at in [self.info.area_start, self.info.last_at(self.area_len)] {
            let bufs = [IoSlice::new(&bytes)];
            let write = |through| device.write_all_at(&bufs, DevOffset(at), through);
            durability.write_durable(device, write).context(|| format!("write the {STRUCTURE}"))?;
        }
        Ok(())
    }
}

/// The number of unreadable blocks after which the search for the first copy ends.
const MOST_REFUSED: u32 = 64;

/// Searches for the first copy of the superblock, from the end of the device to its start. The caller has found that the last copy cannot
/// be used. If the last block is a torn or unreadable superblock, a first copy exists. The search then covers the whole device, because the
/// journal may have any length. If the last block contains other data, there is most likely no tag area. The search then covers only the
/// last 1/16 of the device plus 1 GiB, which is sufficient for tags: they need at most 1/32 of the device.
fn find_first(
    device: &dyn Device,
    last: &Error,
    read: impl Fn(u64) -> Result<Superblock>,
) -> Result<Superblock> {
    let end = device.size() / BLOCK_LEN;
    let bound = match last.kind() {
        ErrorKind::UnknownFormat => (end / 16 + (1 << 18)).min(end),
        _ => end,
    };
    let mut chunk = Buffer::aligned(CHUNK as usize)?;
    let (mut until, mut refused) = (end, 0);
    while until > end - bound {
        let from = until.saturating_sub(CHUNK / BLOCK_LEN).max(end - bound);
        let chunk = &mut chunk[..((until - from) * BLOCK_LEN) as usize];
        let whole = device.read_exact_at(chunk, DevOffset(from * BLOCK_LEN)).is_ok();
        for (block, content) in (from..until).rev().zip(chunk.chunks_exact_mut(BLOCK).rev()) {
            // If the whole range cannot be read, this code reads the blocks one by one.
            let at = block * BLOCK_LEN;
            if !whole && let Err(error) = device.read_exact_at(content, DevOffset(at)) {
                refused += 1;
                if refused > MOST_REFUSED {
                    return Err(error);
                }
                continue;
            }
            if content.starts_with(&MAGIC)
                && let Ok(found) = read(at)
            {
                return Ok(found);
            }
        }
        until = from;
    }
    Err(Error::new(ErrorKind::UnknownFormat, "there is no integrity superblock on this device"))
}

/// Whether the first or the last block of a device is a superblock. If so, the device contains a tag area, either for its own data or for
/// another device.
pub(crate) fn holds_tags(device: &dyn Device) -> bool {
    let last = (device.size() / BLOCK_LEN).checked_sub(1).map(|block| block * BLOCK_LEN);
    let mut magic = [0; MAGIC.len()];
    let mut is_at = |at| device.read_exact_at(&mut magic, DevOffset(at)).is_ok() && magic == MAGIC;
    is_at(0) || last.is_some_and(is_at)
}

/// The device that contains a tag area.
#[derive(Clone, Debug)]
pub(super) struct Area {
    pub(super) device: Arc<dyn Device>,
    pub(super) durability: Arc<Durability>,
}

impl Area {
    /// Reads a block that ends with its checksum. Returns `None` if the checksum does not match.
    pub(super) fn read_sealed(&self, at: u64) -> Result<Option<[u8; SEALED]>> {
        let mut bytes = [0; BLOCK];
        self.device.read_exact_at(&mut bytes, DevOffset(at))?;
        let Ok(raw) = RawSealed::ref_from_bytes(&bytes) else { return Ok(None) };
        let whole = raw.checksum.get() == seal(at, &raw.content);
        Ok(whole.then_some(raw.content))
    }

    /// Writes a block, and its checksum at the end of the block.
    pub(super) fn write_sealed(&self, content: &[u8; SEALED], at: u64, fua: bool) -> Result<()> {
        let raw = RawSealed { content: *content, checksum: seal(at, content).into() };
        let write = |through| write_block(&*self.device, raw.as_bytes(), at, through);
        if fua { self.durability.write_durable(&*self.device, write) } else { write(false) }
    }
}

fn seal(at: u64, content: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&(at / BLOCK_LEN).to_le_bytes()), content)
}
