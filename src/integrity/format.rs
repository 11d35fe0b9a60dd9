//! Creates an integrity device. Every sector gets a tag that matches its content.

use std::io::IoSlice;
use std::sync::Arc;

use super::area::{Area, CHUNK, Superblock, random_uuid};
use super::dirty::Regions;
use super::disk::{BLOCK, BLOCK_LEN};
use super::geometry::{Info, MOST_REGIONS, Mode, SMALLEST_JOURNAL, default_region};
use super::journal::Journal;
use super::tagging::Tagging;
use crate::bio::Buffer;
use crate::device::{Device, Finer};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::protection::TupleKind;
use crate::setters::setters;
use crate::units::DevOffset;

/// The kind of data that may be lost when the tags are stored in the tail of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TailLoss {
    /// No data: no known format was found on the device.
    #[default]
    Nothing,
    /// Data whose length is unknown, for example other file systems or partition tables.
    Unknown,
    /// A file system of a known format whose superblock is damaged. A repair would need the data in the tail.
    DamagedVolume,
}

/// The options for the creation of an integrity device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FormatOptions {
    /// The number of bytes that one tuple protects: 512 or 4096. If the data device has larger blocks, a write of less than a block first
    /// reads the whole block.
    pub interval: u32,
    /// The kind of the tuple.
    pub kind: TupleKind,
    /// How the device keeps data and tags consistent after a crash.
    pub mode: Mode,
    /// Whether the application tag is the generation of the sector's region. A scrub can then find writes whose data and tags were both
    /// lost. This is possible only in bitmap mode.
    pub generations: bool,
    /// The length of a region in bytes, a power of two. Each region has one bit in the dirty map. By default, the map fits into one block,
    /// and a region has at least 1 MiB.
    pub region: Option<u64>,
    /// The application tag, if it does not contain a generation.
    pub application: u16,
    /// The length of the journal in bytes. The default is 16 MiB.
    pub journal: Option<u64>,
    /// The identity of the data device, or zeros if the device has no identity.
    pub data_uuid: [u8; 16],
    /// Whether an existing integrity device is replaced.
    pub force: bool,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            interval: 4096,
            kind: TupleKind::T10,
            mode: Mode::Bitmap,
            generations: false,
            region: None,
            application: 0,
            journal: None,
            data_uuid: [0; 16],
            force: false,
        }
    }
}

impl FormatOptions {
    /// Creates options for T10 tuples, sectors of 4096 bytes and bitmap mode.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

setters!(FormatOptions {
    interval: u32,
    kind: TupleKind,
    mode: Mode,
    generations: bool,
    region: impl Into<Option<u64>>,
    application: u16,
    journal: impl Into<Option<u64>>,
    data_uuid: [u8; 16],
    force: bool,
});

/// Creates an integrity device with tags on another device or in the tail of the data device. The data stay unchanged, and get tags. The
/// previous content of the tag area is lost. `progress` is called with the number of processed bytes and the total number of bytes.
///
/// # Errors
/// `InvalidInput` for options that do not suit the devices; `Exists` if there is already an integrity device; `Io`.
pub fn format(
    data: &Arc<dyn Device>,
    tags: Option<&Arc<dyn Device>>,
    options: &FormatOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Info> {
    let (info, area_len) = lay_out(&**data, tags.map(|tags| &**tags), options)?;
    // Only tags are written, so only the tag device must accept requests of one block.
    let (device, _) = Finer::for_blocks(Arc::clone(tags.unwrap_or(data)), |_| Some(BLOCK));
    let device = &device;
    if !options.force
        && !matches!(Superblock::read(&**device, tags.is_none()), Err(error) if error.kind() == ErrorKind::UnknownFormat)
    {
        return Err(Error::new(
            ErrorKind::Exists,
            "the device already has an integrity superblock: the option force overwrites it",
        ));
    }
    let area = Area { device: Arc::clone(device), durability: Arc::default() };
    // The superblocks of an old area may be at other positions than the new ones, so this code first overwrites the old and the new
    // positions with zeros. If the format is then interrupted, an open finds no tag area.
    let zeros = Buffer::aligned(BLOCK)?;
    let mut places = Vec::new();
    for old in Superblock::copies(&**device, tags.is_none())?.into_iter().flatten() {
        places.extend([old.info.area_start, old.info.last_at(old.area_len)]);
    }
    places.extend([info.area_start, info.last_at(area_len)]);
    for at in places {
        device.write_all_at(&[IoSlice::new(&zeros)], DevOffset(at), true)?;
    }
    Regions::format(&area, &info)?;
    if info.mode == Mode::Journal {
        Journal::format(&area, &info)?;
    }
    tag_all(&**data, &**device, &info, progress)?;
    device.flush()?;
    Superblock { info, area_len, sequence: 1, clean: true }.write(&**device, &area.durability)?;
    device.flush()?;
    Ok(info)
}

/// Returns the parameters of the device that [`format()`] would create. Does not access the content of the devices.
///
/// # Errors
/// `InvalidInput` for options that do not suit the devices; `ReadOnly`.
pub fn plan(data: &dyn Device, tags: Option<&dyn Device>, options: &FormatOptions) -> Result<Info> {
    lay_out(data, tags, options).map(|(info, _)| info)
}

fn lay_out(
    data: &dyn Device,
    tags: Option<&dyn Device>,
    options: &FormatOptions,
) -> Result<(Info, u64)> {
    let device = tags.unwrap_or(data);
    // Only the device that gets the tags must be writable. If it is a separate device, the data device is only read.
    if !device.is_writable() {
        return Err(Error::new(ErrorKind::ReadOnly, "the tag device is not writable"));
    }
    // The size is rounded down to whole sectors. The bytes after the last whole sector get no tag.
    let unit = if tags.is_some() { u64::from(options.interval.max(1)) } else { BLOCK_LEN };
    let size = data.size() / unit * unit;
    let journal = match options.mode {
        Mode::Bitmap => 0,
        Mode::Journal => options.journal.unwrap_or(16 << 20),
    };
    let mut info = Info {
        uuid: random_uuid()?,
        data_uuid: options.data_uuid,
        data_size: size.max(unit),
        interval: options.interval,
        kind: options.kind,
        mode: options.mode,
        region: options.region.unwrap_or_else(|| default_region(size)),
        generations: options.generations,
        application: options.application,
        journal,
        area_start: 0,
    };
    if info.generations && info.mode == Mode::Journal {
        return Err(Error::invalid(
            "generations are tracked only in bitmap mode, not with a journal",
        ));
    }
    let smallest = size.div_ceil(MOST_REGIONS).next_power_of_two().max(BLOCK_LEN);
    if info.region >= BLOCK_LEN && info.region < smallest {
        return Err(Error::invalid(format!(
            "regions of {} bytes are too small for {size} bytes of data: the minimum is {smallest}",
            info.region
        )));
    }
    // The caller's values are checked before the code below uses one of them as a divisor.
    info.check().map_err(|field| {
        Error::invalid(match field {
            "interval" => format!("the interval is {} bytes, but it must be 512 or 4096", info.interval),
            "region" => format!("the size of a region is {} bytes, but it must be a power of two and at least 4096", info.region),
            "journal_len" => format!(
                "a journal size of {journal} bytes is not possible: it must be a multiple of 4096, at least {SMALLEST_JOURNAL} and below 1 TiB"
            ),
            field => format!("the value of {field} is not valid for an integrity device"),
        })
    })?;
    let area_len = match tags {
        Some(tags) => tags.size() / BLOCK_LEN * BLOCK_LEN,
        None => info.fit(data.size())?,
    };
    if area_len < info.area_len() {
        return Err(Error::invalid(format!(
            "the tag device has {area_len} bytes, but {} are needed",
            info.area_len()
        )));
    }
    Ok((info, area_len))
}

/// Gives every sector of the device a tag that matches its current content.
fn tag_all(
    data: &dyn Device,
    tags: &dyn Device,
    info: &Info,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let (tagging, size) = (Tagging::new(info), info.kind.bytes());
    // The length of a chunk is chosen so that the tuples of its sectors fill whole blocks.
    let chunk = CHUNK.max(info.tuples_per_block() * u64::from(info.interval));
    let mut content = Buffer::aligned(chunk as usize)?;
    let most = (chunk / u64::from(info.interval)) as usize * size;
    let mut out = Buffer::aligned(most.next_multiple_of(BLOCK))?;
    let mut at = 0;
    while at < info.data_size {
        let len = chunk.min(info.data_size - at);
        let content = &mut content[..len as usize];
        data.read_exact_at(content, DevOffset(at)).context(|| "read the data")?;
        let first = at / u64::from(info.interval);
        out.fill(0);
        let count = len as usize / tagging.interval() * size;
        tagging.encode(first, content, 0, &mut out[..count]);
        let bufs = [IoSlice::new(&out[..count.next_multiple_of(BLOCK)])];
        let place = info.tags_at() + first * size as u64;
        tags.write_all_at(&bufs, DevOffset(place), false).context(|| "write tags")?;
        at += len;
        progress(at, info.data_size);
    }
    Ok(())
}
