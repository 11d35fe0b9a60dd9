//! The label of a physical volume. It contains the positions of the metadata areas.
//!
//! The format is described by libvslvm ("Logical Volume Manager (LVM) format"). All numbers are little-endian. In this format, a sector
//! always has 512 bytes.

use super::text::corrupt;
use crate::device::Device;
use crate::error::Result;
use crate::partition::{u32_at, u64_at};
use crate::units::DevOffset;

const SECTOR: usize = 512;
/// The number of sectors at the start of the physical volume that may contain the label.
const PLACES: u64 = 4;
/// The length of a label's header in bytes. The header of the physical volume follows it.
const LABEL: usize = 32;
/// The checksum of a label covers its sector from this offset to the end of the sector.
const CHECKED: usize = 20;
/// The length in bytes of a metadata area's header: one sector. The rest of the area is a ring buffer of metadata texts.
const AREA: u64 = 512;
const AREA_MAGIC: &[u8; 16] = b" LVM2 x[5A%r0N*>";
/// The maximum length of a metadata text in bytes. A text for 40,000 logical volumes has this length. The limit restricts the memory for
/// hostile metadata to about 300 MB.
const LONGEST: u64 = 16 << 20;
/// The largest number of metadata areas of a physical volume.
const AREAS: usize = 2;
/// The flag of a metadata text that the LVM tools ignore.
const IGNORED: u32 = 1;

/// CRC-32 with LVM's own initial value, and without the final inversion.
const CRC: crc::Crc<u32> = {
    const LVM: crc::Algorithm<u32> = crc::Algorithm {
        init: 0xF597_A6CF_u32.reverse_bits(),
        xorout: 0,
        // The values `check` and `residue` for these parameters are unknown. The crate `crc` does not use them.
        check: 0,
        residue: 0,
        ..crc::CRC_32_ISO_HDLC
    };
    crc::Crc::<u32>::new(&LVM)
};

/// The identity of a physical volume: 32 letters and digits.
pub(super) type Id = [u8; 32];

/// The text of a metadata area.
pub(super) struct Text {
    pub(super) bytes: Vec<u8>,
    pub(super) checksum: u32,
}

/// The label of a physical volume.
#[derive(Debug)]
pub(super) struct Label {
    /// The identity.
    pub(super) id: Id,
    /// The position of each metadata area in the physical volume, and the length of the area.
    areas: Vec<(u64, u64)>,
}

/// The range of a device in which a physical volume is searched for.
#[derive(Clone, Copy)]
pub(super) struct Range<'a> {
    pub(super) device: &'a dyn Device,
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Range<'_> {
    fn read(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(corrupt(format!(
                "bytes {at} to {} are past the end of the physical volume",
                at.saturating_add(len)
            )));
        }
        let mut bytes = vec![0; len as usize];
        self.device.read_exact_at(&mut bytes, DevOffset(self.start + at))?;
        Ok(bytes)
    }
}

impl Label {
    /// Reads the label of a physical volume. Returns `None` if there is no label.
    ///
    /// # Errors
    /// `Corrupt` for a damaged label; `Io`.
    pub(super) fn read(range: Range<'_>) -> Result<Option<Self>> {
        if range.len < PLACES * SECTOR as u64 {
            return Ok(None);
        }
        let sectors = range.read(0, PLACES * SECTOR as u64)?;
        let is_label = |(number, sector): &(u64, &[u8])| {
            sector.starts_with(b"LABELONE")
                && &sector[24..32] == b"LVM2 001"
                && u64_at(sector, 8) == *number
        };
        let label = (0..).zip(sectors.chunks(SECTOR)).find(is_label);
        label.map(|(_, sector)| Self::parse(sector)).transpose()
    }

    fn parse(sector: &[u8]) -> Result<Self> {
        let (stored, computed) = (u32_at(sector, 16), CRC.checksum(&sector[CHECKED..]));
        if stored != computed {
            return Err(corrupt(format!(
                "the checksum of the label is {stored:#x}, not {computed:#x}"
            )));
        }
        let header = u32_at(sector, 20) as usize;
        // In the header of the physical volume, two fields precede the lists: the identity, and the size of the device.
        let lists = header.saturating_add(40);
        if header < LABEL || lists > SECTOR {
            return Err(corrupt(format!(
                "the header of the physical volume cannot begin at byte {header} of the label's sector"
            )));
        }
        let id = sector[header..header + 32].try_into().unwrap_or_default();
        // The header contains two lists of pairs: the data areas, and the metadata areas. A pair of zeros ends each list.
        let mut pairs =
            sector[lists..].chunks_exact(16).map(|pair| (u64_at(pair, 0), u64_at(pair, 8)));
        let is_end = |pair: &(u64, u64)| pair.0 == 0;
        if !pairs.by_ref().any(|pair| is_end(&pair)) {
            return Err(corrupt("the list of data areas has no end mark"));
        }
        let areas = pairs.take_while(|pair| !is_end(pair)).take(AREAS).collect();
        Ok(Self { id, areas })
    }

    /// The first byte and the length of each range that contains the label or a metadata area.
    pub(super) fn metadata(&self) -> Vec<(u64, u64)> {
        [(0, PLACES * SECTOR as u64)].into_iter().chain(self.areas.iter().copied()).collect()
    }

    /// Reads the text of each metadata area, one after the other. Areas without a text are skipped. For an area that cannot be read, the
    /// iterator returns an error.
    pub(super) fn texts(&self, range: Range<'_>) -> impl Iterator<Item = Result<Text>> {
        self.areas.iter().filter_map(move |area| text(range, *area).transpose())
    }
}

/// Returns the text of a metadata area. `None` if the area contains no text, or if the text has the flag [`IGNORED`].
fn text(range: Range<'_>, (start, len): (u64, u64)) -> Result<Option<Text>> {
    let header = range.read(start, AREA)?;
    let (stored, computed) = (u32_at(&header, 0), CRC.checksum(&header[4..]));
    if stored != computed {
        return Err(corrupt(format!(
            "the checksum of the metadata area at byte {start} is {stored:#x}, not {computed:#x}"
        )));
    }
    let version = u32_at(&header, 20);
    if &header[4..20] != AREA_MAGIC || version != 1 || u64_at(&header, 24) != start {
        return Err(corrupt(format!("there is no metadata area of version 1 at byte {start}")));
    }
    let (at, size) = (u64_at(&header, 40), u64_at(&header, 48));
    let (checksum, flags) = (u32_at(&header, 56), u32_at(&header, 60));
    if at == 0 || flags & IGNORED != 0 {
        return Ok(None);
    }
    if len < AREA || at < AREA || at >= len || size > (len - AREA).min(LONGEST) {
        return Err(corrupt(format!(
            "the metadata text of {size} bytes at byte {at} is outside the metadata area"
        )));
    }
    // A text that reaches the end of the area continues after the header of the area.
    let first = size.min(len - at);
    let place =
        |at: u64| start.checked_add(at).ok_or_else(|| corrupt("a position exceeds 64 bits"));
    let mut text = range.read(place(at)?, first)?;
    text.extend(range.read(place(AREA)?, size - first)?);
    let computed = CRC.checksum(&text);
    if checksum != computed {
        return Err(corrupt(format!(
            "the checksum of the text is {checksum:#x}, not {computed:#x}"
        )));
    }
    Ok(Some(Text { bytes: text, checksum }))
}
