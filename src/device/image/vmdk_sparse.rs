//! A sparse extent of a VMDK image. A directory points to tables, and each table points to grains (the allocation units). Grains may be
//! compressed.
//!
//! Source: VMware's technical note "Virtual Disk Format 1.1".

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use parking_lot::Mutex;

use super::bytes::{u16_le, u32_le, u64_le};
use super::file::ImageFile;
use super::vmdk::SECTOR;
use crate::error::{Error, Place, Result};
use crate::units::FsBlock;

pub(super) const MAGIC: &[u8; 4] = b"KDMV";
/// The value of the header field for the directory's position if the extent was written as a stream. The footer then contains the position.
const AT_END: u64 = u64::MAX;
/// The distance in bytes from the footer to the end of the file. Only the end marker follows the footer.
const FOOTER: u64 = 1024;
/// The permitted lengths of a grain in sectors, and the largest number of entries of a table.
const GRAINS: std::ops::RangeInclusive<u64> = 8..=4096;
const MAX_ENTRIES: u64 = 512;

const ZERO_GRAINS: u32 = 1 << 2;
const COMPRESSED: u32 = 1 << 16;
const DEFLATE: u16 = 1;

/// An open sparse extent.
#[derive(Debug)]
pub(super) struct Sparse {
    file: ImageFile,
    size: u64,
    grain: u64,
    /// The number of entries in each table. `directory` is the position of the directory in the file.
    entries: u64,
    directory: u64,
    has_zero_grains: bool,
    is_compressed: bool,
    /// The most recently decompressed grain.
    last: Mutex<Option<(u64, Vec<u8>)>>,
}

fn corrupt(field: &'static str, what: impl Into<String>) -> Error {
    Place::new("VMDK sparse header").field(field).corrupt(what.into())
}

impl Sparse {
    /// Opens an extent. Also returns the position and the length of the descriptor in the extent's file.
    pub(super) fn open(file: ImageFile) -> Result<(Self, (u64, u64))> {
        let mut header = [0; SECTOR as usize];
        file.read_at(&mut header, 0)?;
        let descriptor = (u64_le(&header, 28), u64_le(&header, 36));
        if u64_le(&header, 56) == AT_END {
            let at = file.len().checked_sub(FOOTER);
            file.read_at(
                &mut header,
                at.ok_or_else(|| {
                    corrupt("", "the value of gdOffset means that the file has a footer, but the file is too short")
                })?,
            )?;
        }
        let version = u32_le(&header, 4);
        if &header[..4] != MAGIC || !(1..=3).contains(&version) {
            return Err(Error::unsupported(format!(
                "the sparse extent has a wrong magic number or the unsupported version {version}"
            )));
        }
        let flags = u32_le(&header, 8);
        let (capacity, grain, entries) =
            (u64_le(&header, 12), u64_le(&header, 20), u64::from(u32_le(&header, 44)));
        if !GRAINS.contains(&grain) || !grain.is_power_of_two() {
            return Err(corrupt("grainSize", format!("{grain} sectors")));
        }
        if entries == 0 || entries > MAX_ENTRIES {
            return Err(corrupt("numGTEsPerGT", entries.to_string()));
        }
        let size = capacity.checked_mul(SECTOR).filter(|size| i64::try_from(*size).is_ok());
        let size = size.ok_or_else(|| corrupt("capacity", format!("{capacity} sectors")))?;
        let directory = u64_le(&header, 56);
        let tables = capacity.div_ceil(grain * entries);
        let bytes = directory.checked_mul(SECTOR).filter(|at| {
            let end = tables.checked_mul(4).and_then(|len| at.checked_add(len));
            end.is_some_and(|end| *at > 0 && end <= file.len())
        });
        let directory = bytes.ok_or_else(|| {
            corrupt(
                "gdOffset",
                format!("the grain directory at sector {directory} is not in the file"),
            )
        })?;
        let is_compressed = flags & COMPRESSED != 0;
        if is_compressed && u16_le(&header, 77) != DEFLATE {
            return Err(Error::unsupported(
                "the grains are compressed with a method other than deflate",
            ));
        }
        let place = |sectors: u64| {
            sectors
                .checked_mul(SECTOR)
                .ok_or_else(|| corrupt("descriptorOffset", "the sector number is too large"))
        };
        let descriptor = (place(descriptor.0)?, place(descriptor.1)?);
        let sparse = Self {
            size,
            grain: grain * SECTOR,
            entries,
            directory,
            has_zero_grains: flags & ZERO_GRAINS != 0,
            is_compressed,
            last: Mutex::new(None),
            file,
        };
        Ok((sparse, descriptor))
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn grain(&self) -> u64 {
        self.grain
    }

    pub(super) fn file(&self) -> &ImageFile {
        &self.file
    }

    pub(super) fn read(&self, mut buf: &mut [u8], mut at: u64) -> Result<()> {
        while !buf.is_empty() {
            let left = self.grain - at % self.grain;
            let (part, rest) = buf.split_at_mut(left.min(buf.len() as u64) as usize);
            self.read_grain(part, at / self.grain, at % self.grain)?;
            at += part.len() as u64;
            buf = rest;
        }
        Ok(())
    }

    fn entry(&self, at: u64) -> Result<u64> {
        let mut entry = [0; 4];
        self.file.read_at(&mut entry, at)?;
        Ok(u32_le(&entry, 0).into())
    }

    fn read_grain(&self, buf: &mut [u8], grain: u64, skip: u64) -> Result<()> {
        let table = self.entry(self.directory + grain / self.entries * 4)?;
        let place = Place::new("VMDK grain table").block(FsBlock(grain));
        let in_file = |at: u64, len: u64| {
            if at + len <= self.file.len().next_multiple_of(SECTOR) {
                return Ok(());
            }
            Err(place.corrupt(format!("the {len} bytes at {at} are not in the file")))
        };
        let sector = match table {
            0 => 0,
            table => {
                let at = table * SECTOR + grain % self.entries * 4;
                in_file(at, 4)?;
                self.entry(at)?
            }
        };
        match sector {
            0 => buf.fill(0),
            1 if self.has_zero_grains => buf.fill(0),
            sector if self.is_compressed => {
                in_file(sector * SECTOR, 12)?;
                self.read_compressed(buf, sector * SECTOR, skip, place)?;
            }
            sector => {
                in_file(sector * SECTOR, self.grain)?;
                self.file.read_at(buf, sector * SECTOR + skip)?;
            }
        }
        Ok(())
    }

    /// Reads a part of a compressed grain. If the last grain of the disk is shorter than the others, zeros are appended.
    fn read_compressed(&self, buf: &mut [u8], at: u64, skip: u64, place: Place) -> Result<()> {
        let mut last = self.last.lock();
        let known = last.as_ref().filter(|(of, _)| *of == at);
        if known.is_none() {
            let mut marker = [0; 12];
            self.file.read_at(&mut marker, at)?;
            let len = u64::from(u32_le(&marker, 8));
            let fits = len <= 2 * self.grain && at + 12 + len <= self.file.len();
            if !fits {
                return Err(place.corrupt(format!("a compressed grain of {len} bytes at {at} is too long or past the end of the file")));
            }
            let mut packed = vec![0; len as usize];
            self.file.read_at(&mut packed, at + 12)?;
            let bytes = decompress_to_vec_zlib_with_limit(&packed, self.grain as usize);
            let mut bytes = bytes.map_err(|error| {
                place.corrupt(format!("cannot decompress the grain at {at}: {error}"))
            })?;
            bytes.resize(self.grain as usize, 0);
            *last = Some((at, bytes));
        }
        if let Some((_, bytes)) = &*last {
            let skip = skip as usize;
            buf.copy_from_slice(&bytes[skip..skip + buf.len()]);
        }
        Ok(())
    }
}
