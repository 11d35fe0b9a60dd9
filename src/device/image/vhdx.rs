//! A VHDX image, for reading. Fixed and dynamic images are supported if they have no parent and an empty log.
//!
//! Source: Microsoft's open specification MS-VHDX.

use std::path::Path;

use super::bytes::{u32_le, u64_le};
use super::driver::Driver;
use super::file::ImageFile;
use crate::error::{Context, Error, ErrorKind, Place, Result};
use crate::units::FsBlock;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The positions of the two headers, and of the two region tables.
const HEADERS: [u64; 2] = [64 * KIB, 128 * KIB];
const REGIONS: [u64; 2] = [192 * KIB, 256 * KIB];
const REGIONS_LEN: usize = 64 << 10;
/// The largest disk size that the format supports.
const MAX_SIZE: u64 = 64 << 40;

// The GUIDs of the format, in the form in which the file contains them: the first three fields of a GUID are little-endian.
const BAT: [u8; 16] = guid(0x2DC2_7766, 0xF623, 0x4200, 0x9D64_115E_9BFD_4A08);
const METADATA: [u8; 16] = guid(0x8B7C_A206, 0x4790, 0x4B9A, 0xB8FE_575F_050F_886E);
const PARAMETERS: [u8; 16] = guid(0xCAA1_6737, 0xFA36, 0x4D43, 0xB3B6_33F0_AA44_E76B);
const DISK_SIZE: [u8; 16] = guid(0x2FA5_4224, 0xCD1B, 0x4876, 0xB211_5DBE_D83B_F4B8);
const SECTOR_SIZE: [u8; 16] = guid(0x8141_BF1D, 0xA96F, 0x4709, 0xBA47_F233_A8FA_AB5F);
const PHYSICAL_SIZE: [u8; 16] = guid(0xCDA3_48C7, 0x445D, 0x4471, 0x9CC9_E988_5251_C556);
const DISK_ID: [u8; 16] = guid(0xBECA_12AB, 0xB2E6, 0x4523, 0x93EF_C309_E000_C746);

const fn guid(one: u32, two: u16, three: u16, rest: u64) -> [u8; 16] {
    let (a, b, c, d) =
        (one.to_le_bytes(), two.to_le_bytes(), three.to_le_bytes(), rest.to_be_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]
}

/// An open VHDX image.
#[derive(Debug)]
pub(super) struct Vhdx {
    file: ImageFile,
    size: u64,
    pub(super) block: u64,
    /// The position of the block allocation table (BAT). `chunk` is the number of block entries between two bitmap entries of the BAT.
    bat: u64,
    chunk: u64,
}

fn corrupt(structure: &'static str, what: impl Into<String>) -> Error {
    Place::new(structure).corrupt(what.into())
}

impl Vhdx {
    pub(super) fn open(path: &Path, locked: bool) -> Result<Self> {
        let file = ImageFile::open(path, false, locked)?;
        Self::over(file).at(|| path.display())
    }

    fn over(file: ImageFile) -> Result<Self> {
        let mut magic = [0; 8];
        file.read_at(&mut magic, 0)?;
        if &magic != b"vhdxfile" {
            return Err(Error::new(ErrorKind::UnknownFormat, "this is not a VHDX image"));
        }
        check_header(&file)?;
        let (bat, bat_len, metadata, metadata_len) = regions(&file)?;
        let Items { block, size, sector } = items(&file, metadata, metadata_len)?;
        // In the block allocation table, one bitmap entry follows each group of block entries. The bitmap describes the 2^23 sectors of
        // these blocks.
        let chunk = (sector << 23) / block;
        let blocks = size.div_ceil(block);
        let entries = blocks + blocks.saturating_sub(1) / chunk;
        let end = bat.checked_add(bat_len).filter(|end| *end <= file.len());
        if end.is_none() || entries * 8 > bat_len {
            let what = format!(
                "the table of {bat_len} bytes at {bat} is too small for a disk of {size} bytes, or past the end of the file"
            );
            return Err(corrupt("VHDX block allocation table", what));
        }
        Ok(Self { file, size, block, bat, chunk })
    }

    /// Reads a range within one block.
    fn read_block(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let (block, skip) = (at / self.block, at % self.block);
        let mut entry = [0; 8];
        self.file.read_at(&mut entry, self.bat + 8 * (block + block / self.chunk))?;
        let entry = u64_le(&entry, 0);
        let place = Place::new("VHDX block allocation table").block(FsBlock(block));
        match entry & 7 {
            // In these states, the file contains no data for the block: the block is not present, undefined, zero or unmapped. The block
            // reads as zeros.
            0..=3 => {
                buf.fill(0);
                Ok(())
            }
            6 => {
                let start = entry >> 20 << 20;
                let end = start.checked_add(self.block).filter(|end| *end <= self.file.len());
                if end.is_none() || start < MIB {
                    return Err(
                        place.corrupt(format!("the block at byte {start} is not in the file"))
                    );
                }
                self.file.read_at(buf, start + skip)
            }
            state => Err(place.corrupt(format!("state {state}"))),
        }
    }
}

/// Finds the current header. Refuses the image if the log contains entries, because the image was then not closed.
fn check_header(file: &ImageFile) -> Result<()> {
    let mut newest: Option<(u64, Vec<u8>)> = None;
    for at in HEADERS {
        let mut header = vec![0; 4096];
        file.read_at(&mut header, at)?;
        let sound = &header[..4] == b"head" && has_checksum(&mut header.clone());
        let sequence = u64_le(&header, 8);
        if sound && newest.as_ref().is_none_or(|(newest, _)| *newest < sequence) {
            newest = Some((sequence, header));
        }
    }
    let Some((_, header)) = newest else {
        return Err(corrupt("VHDX header", "the checksums of both headers are wrong"));
    };
    let version = u32_le(&header, 64) >> 16;
    if version != 1 {
        return Err(Error::unsupported(format!("version {version} of VHDX is not supported")));
    }
    if header[48..64] != [0; 16] {
        let what = "the image was not closed and its log must be replayed: qemu-img check -r all replays it";
        return Err(Error::unsupported(what));
    }
    Ok(())
}

/// Whether the checksum at offset 4 matches the content.
fn has_checksum(bytes: &mut [u8]) -> bool {
    let stored = u32_le(bytes, 4);
    bytes[4..8].fill(0);
    crc32c::crc32c(bytes) == stored
}

/// Returns the positions and lengths of the block allocation table and of the metadata.
fn regions(file: &ImageFile) -> Result<(u64, u64, u64, u64)> {
    const PLACE: &str = "VHDX region table";
    for at in REGIONS {
        let mut table = vec![0; REGIONS_LEN];
        file.read_at(&mut table, at)?;
        if &table[..4] != b"regi" || !has_checksum(&mut table.clone()) {
            continue;
        }
        let count = u32_le(&table, 8);
        if count > 2047 {
            return Err(corrupt(PLACE, format!("{count} entries")));
        }
        let (mut bat, mut metadata) = (None, None);
        for entry in table[16..].chunks_exact(32).take(count as usize) {
            let place = (u64_le(entry, 16), u64::from(u32_le(entry, 24)));
            let required = u32_le(entry, 28) & 1 != 0;
            if entry[..16] == BAT {
                bat = Some(place);
            } else if entry[..16] == METADATA {
                metadata = Some(place);
            } else if required {
                return Err(Error::unsupported(
                    "the image has an unknown region with the flag Required",
                ));
            }
        }
        let (Some((bat, bat_len)), Some((metadata, metadata_len))) = (bat, metadata) else {
            return Err(corrupt(
                PLACE,
                "the region of the block allocation table or of the metadata is missing",
            ));
        };
        return Ok((bat, bat_len, metadata, metadata_len));
    }
    Err(corrupt(PLACE, "the checksums of both region tables are wrong"))
}

/// The values of the metadata items.
struct Items {
    block: u64,
    size: u64,
    sector: u64,
}

fn items(file: &ImageFile, at: u64, len: u64) -> Result<Items> {
    const PLACE: &str = "VHDX metadata";
    let end = at.checked_add(len).filter(|end| *end <= file.len());
    if end.is_none() || len < REGIONS_LEN as u64 {
        return Err(corrupt(
            PLACE,
            format!("the region of {len} bytes at {at} is too small or past the end of the file"),
        ));
    }
    let mut table = vec![0; REGIONS_LEN];
    file.read_at(&mut table, at)?;
    let count = u32_le(&table, 8) >> 16;
    if &table[..8] != b"metadata" || count > 2047 {
        return Err(corrupt(
            PLACE,
            "the metadata table has a wrong signature or more than 2047 entries",
        ));
    }
    let (mut parameters, mut size, mut sector) = (None, None, None);
    for entry in table[32..].chunks_exact(32).take(count as usize) {
        let (offset, item_len) = (u64::from(u32_le(entry, 16)), u32_le(entry, 20));
        let mut value = [0; 8];
        let is_known = [PARAMETERS, DISK_SIZE, SECTOR_SIZE].iter().any(|id| entry[..16] == *id);
        if is_known {
            if offset + 8 > len || !(4..=8).contains(&item_len) {
                return Err(corrupt(
                    PLACE,
                    format!(
                        "the item of {item_len} bytes at {offset} has a wrong length or ends past the region"
                    ),
                ));
            }
            file.read_at(&mut value[..item_len as usize], at + offset)?;
        }
        let flags = u32_le(entry, 24);
        if entry[..16] == PARAMETERS {
            parameters = Some((u64::from(u32_le(&value, 0)), u32_le(&value, 4)));
        } else if entry[..16] == DISK_SIZE {
            size = Some(u64_le(&value, 0));
        } else if entry[..16] == SECTOR_SIZE {
            sector = Some(u64::from(u32_le(&value, 0)));
        } else if flags & 4 != 0 && ![PHYSICAL_SIZE, DISK_ID].iter().any(|id| entry[..16] == *id) {
            return Err(Error::unsupported(
                "the image has an unknown metadata item with the flag Required",
            ));
        }
    }
    let (Some((block, flags)), Some(size), Some(sector)) = (parameters, size, sector) else {
        return Err(corrupt(
            PLACE,
            "the item for the block size, the disk size or the sector size is missing",
        ));
    };
    if flags & 2 != 0 {
        return Err(Error::unsupported("the image has a parent (a differencing disk)"));
    }
    let is_block = block.is_power_of_two() && (MIB..=256 * MIB).contains(&block);
    if !is_block || ![512, 4096].contains(&sector) || size == 0 || size > MAX_SIZE {
        let what = format!(
            "a block size of {block}, a sector size of {sector} or a disk size of {size} bytes is not valid"
        );
        return Err(corrupt(PLACE, what));
    }
    Ok(Items { block, size, sector })
}

impl Driver for Vhdx {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, mut buf: &mut [u8], mut at: u64) -> Result<()> {
        while !buf.is_empty() {
            let left = self.block - at % self.block;
            let (part, rest) = buf.split_at_mut(left.min(buf.len() as u64) as usize);
            self.read_block(part, at)?;
            at += part.len() as u64;
            buf = rest;
        }
        Ok(())
    }
}
