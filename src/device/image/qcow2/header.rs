//! Reads and checks the header of a qcow2 image.
//!
//! Source: `docs/interop/qcow2.txt` of QEMU.

use std::path::Path;

use super::super::file::ImageFile;
use super::bitmaps::{Directory, EXTENSION};
use crate::error::{Error, ErrorKind, Place, Result};

/// The first four bytes of a qcow2 image: `QFI\xfb`.
pub(super) const MAGIC: &[u8; 4] = b"QFI\xFB";
/// The length of a header of version 2, and the shortest length of a header of version 3.
const V2_LEN: usize = 72;
pub(super) const V3_LEN: usize = 104;
/// The length of a header of version 3 with the compression type.
const LEN: usize = V3_LEN + 8;
/// The largest number of entries of an L1 table, and the largest number of bytes of a refcount table. Both are QEMU's limits.
const MAX_L1: u64 = 4 << 20;
const MAX_REFCOUNT_TABLE: u64 = 8 << 20;
/// The largest number of entries of an L1 table if the image is opened for writing. ironmap then keeps the positions of all L2 tables in
/// memory, so that no write of data overwrites a table.
pub(super) const MAX_WRITTEN_L1: u64 = 1 << 20;
/// The longest name of a backing file.
const MAX_NAME: u32 = 1023;
/// The types of header extensions.
const BACKING_FORMAT: u32 = 0xE279_2ACA;
const DATA_FILE_NAME: u32 = 0x4441_5441;
const BITMAPS_DIRECTORY: u32 = 0x2385_2875;

/// The offsets of the header fields that change when the image is written.
pub(super) const REFCOUNTS: u64 = 48;
pub(super) const AUTOCLEAR: u64 = 88;

/// The feature bit that declares the bitmaps up to date. A program that does not support bitmaps clears this bit, and the clusters of the
/// bitmaps are then leaked.
pub(super) const BITMAPS: u64 = 1;

/// The incompatible features. An implementation must refuse an image with an unknown incompatible feature.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
pub(super) const COMPRESSION: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

/// The fields of a header. The format permits their values, and the tables are within the file.
#[derive(Clone, Debug)]
pub(in crate::device::image) struct Header {
    pub(in crate::device::image) version: u32,
    /// The size of the disk in bytes.
    pub(in crate::device::image) size: u64,
    pub(super) cluster_bits: u32,
    pub(super) l1_at: u64,
    pub(super) l1_entries: u64,
    pub(super) refcounts_at: u64,
    pub(super) refcounts_len: u64,
    /// The number of internal snapshots, and the position of their table.
    pub(super) snapshots: u32,
    pub(super) snapshots_at: u64,
    incompatible: u64,
    pub(super) autoclear: u64,
    /// Whether the clusters are compressed with zstd. Otherwise, they are compressed with deflate.
    pub(super) is_zstd: bool,
    /// The base-2 logarithm of the number of bits in a refcount.
    pub(super) refcount_order: u32,
    /// The name of the backing file, and the format of the backing file if the header states it.
    pub(super) backing: Option<(Vec<u8>, Option<String>)>,
    /// The name of the file with the data, if the image contains only the tables.
    pub(super) data_file: Option<Vec<u8>>,
    /// The directory of the persistent bitmaps, if the image has any.
    pub(super) bitmaps: Option<Directory>,
}

/// The header extensions that ironmap uses.
#[derive(Default)]
struct Extensions {
    backing_format: Option<String>,
    data_file: Option<Vec<u8>>,
    bitmaps: Option<Directory>,
}

fn corrupt(field: &'static str, what: impl Into<String>) -> Error {
    Place::new("qcow2 header").field(field).corrupt(what.into())
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

impl Header {
    /// Reads and checks the header of an image.
    pub(super) fn read(file: &ImageFile) -> Result<Self> {
        let mut bytes = [0; LEN];
        file.read_at(&mut bytes, 0)?;
        if &bytes[..4] != MAGIC {
            return Err(Error::new(ErrorKind::UnknownFormat, "this is not a qcow2 image"));
        }
        let version = u32_at(&bytes, 4);
        if !(2..=3).contains(&version) {
            return Err(Error::unsupported(format!("version {version} of qcow2 is not supported")));
        }
        let cluster_bits = u32_at(&bytes, 20);
        if !(9..=21).contains(&cluster_bits) {
            return Err(corrupt(
                "cluster_bits",
                format!("the value is {cluster_bits}, but must be from 9 to 21"),
            ));
        }
        let v3 = |value: u64, default| if version == 3 { value } else { default };
        let header_len = v3(u32_at(&bytes, 100).into(), V2_LEN as u64);
        let is_aligned = header_len.is_multiple_of(8) && header_len <= 1 << cluster_bits;
        if version == 3 && (header_len < V3_LEN as u64 || !is_aligned) {
            return Err(corrupt("header_length", format!("{header_len} bytes")));
        }
        let refcount_order = v3(u32_at(&bytes, 96).into(), 4) as u32;
        if refcount_order > 6 {
            return Err(corrupt("refcount_order", format!("{refcount_order} exceeds 6")));
        }
        let mut header = Self {
            version,
            size: u64_at(&bytes, 24),
            cluster_bits,
            l1_at: u64_at(&bytes, 40),
            l1_entries: u32_at(&bytes, 36).into(),
            refcounts_at: u64_at(&bytes, 48),
            refcounts_len: u64::from(u32_at(&bytes, 56)) << cluster_bits,
            snapshots: u32_at(&bytes, 60),
            snapshots_at: u64_at(&bytes, 64),
            incompatible: v3(u64_at(&bytes, 72), 0),
            autoclear: v3(u64_at(&bytes, AUTOCLEAR as usize), 0),
            is_zstd: false,
            refcount_order,
            backing: None,
            data_file: None,
            bitmaps: None,
        };
        let compression = if header_len > V3_LEN as u64 { bytes[V3_LEN] } else { 0 };
        header.check_features(u32_at(&bytes, 32), compression)?;
        header.is_zstd = compression == 1;
        header.check_tables(file.len())?;
        let extensions = header.read_extensions(file, header_len)?;
        header.backing = header.read_backing(file, &bytes, extensions.backing_format)?;
        // If the feature bit is not set, the directory of the bitmaps is not valid.
        header.bitmaps = extensions.bitmaps.filter(|_| header.autoclear & BITMAPS != 0);
        // If the feature bit is not set, the data are in the image itself, and the name is ignored.
        header.data_file = extensions.data_file.filter(|_| header.has_data_file());
        if header.has_data_file() && header.data_file.is_none() {
            return Err(corrupt("extensions", "the name of the data file is missing"));
        }
        Ok(header)
    }

    pub(in crate::device::image) fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Returns the number of words in an entry of an L2 table.
    pub(super) fn words(&self) -> usize {
        if self.has_subclusters() { 2 } else { 1 }
    }

    /// Returns the number of clusters of the disk that an L2 table maps.
    pub(super) fn mapped(&self) -> u64 {
        self.cluster() / 8 / self.words() as u64
    }

    pub(super) fn has_subclusters(&self) -> bool {
        self.incompatible & EXTENDED_L2 != 0
    }

    pub(super) fn has_data_file(&self) -> bool {
        self.incompatible & DATA_FILE != 0
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.incompatible & DIRTY != 0
    }

    pub(super) fn is_corrupt(&self) -> bool {
        self.incompatible & CORRUPT != 0
    }

    /// Returns the reason why the image at this path cannot be written, if its features or its current state make writes unsafe.
    pub(in crate::device::image) fn refuse_writing(&self, path: &Path) -> Option<String> {
        let repair = format!("qemu-img check -r all {} repairs it", path.display());
        if self.is_corrupt() {
            return Some(format!("the image is marked as corrupt: {repair}"));
        }
        if self.is_dirty() {
            return Some(format!("the image was not closed after it was written: {repair}"));
        }
        if self.version < 3 {
            let what = "an image of qcow2 version 2 can be read but not written: qemu-img amend -o compat=v3 converts it";
            return Some(what.to_owned());
        }
        if self.snapshots > 0 {
            return Some(format!(
                "the image can be read but not written, because it has {} internal snapshots: qemu-img snapshot -d removes a snapshot",
                self.snapshots
            ));
        }
        if self.has_subclusters() {
            return Some(
                "an image with subclusters (extended_l2) can be read but not written".to_owned(),
            );
        }
        if self.has_data_file() {
            return Some(
                "an image with a separate data file can be read but not written".to_owned(),
            );
        }
        let entries = self.l1_entries;
        (entries > MAX_WRITTEN_L1).then(|| {
            format!(
                "the image has {entries} L2 tables, more than ironmap can write: an image with larger clusters has fewer tables"
            )
        })
    }

    fn check_features(&self, encryption: u32, compression: u8) -> Result<()> {
        if encryption != 0 {
            let what = match encryption {
                1 => "the image is encrypted with AES",
                2 => "the image is encrypted with LUKS",
                _ => "the image is encrypted with an unknown method",
            };
            return Err(Error::new(ErrorKind::Encrypted, what));
        }
        let known = DIRTY | CORRUPT | DATA_FILE | COMPRESSION | EXTENDED_L2;
        let unknown = self.incompatible & !known;
        if unknown != 0 {
            let what = format!("the image has unknown incompatible features ({unknown:#x})");
            return Err(Error::unsupported(what));
        }
        let is_stated = self.incompatible & COMPRESSION != 0;
        if compression > 1 || (compression == 1) != is_stated {
            return Err(Error::unsupported(format!(
                "the image is compressed with an unknown method (compression_type {compression})"
            )));
        }
        // A subcluster has at least 512 bytes.
        if self.has_subclusters() && self.cluster_bits < 14 {
            return Err(corrupt("cluster_bits", "clusters are too small for subclusters"));
        }
        Ok(())
    }

    /// Checks that the tables are within the file, and that the L1 table covers the disk.
    pub(super) fn check_tables(&self, file_len: u64) -> Result<()> {
        // The file may end within its last cluster, so its length is rounded up to whole clusters.
        let end = file_len.checked_next_multiple_of(self.cluster()).unwrap_or(u64::MAX);
        let lies_in = |at: u64, len: u64| {
            at.is_multiple_of(self.cluster()) && at.checked_add(len).is_some_and(|stop| stop <= end)
        };
        let needed = self.size.div_ceil(self.mapped() << self.cluster_bits);
        if self.l1_entries < needed || self.l1_entries > MAX_L1 || self.size > i64::MAX as u64 {
            let what = format!(
                "{} L1 entries are too few or too many for a disk of {} bytes",
                self.l1_entries, self.size
            );
            return Err(corrupt("l1_size", what));
        }
        if self.l1_entries > 0 && (!lies_in(self.l1_at, self.l1_entries * 8) || self.l1_at == 0) {
            return Err(corrupt(
                "l1_table_offset",
                format!("offset {} is 0, unaligned or past the end of the file", self.l1_at),
            ));
        }
        let sound = lies_in(self.refcounts_at, self.refcounts_len) && self.refcounts_at != 0;
        if self.refcounts_len > MAX_REFCOUNT_TABLE || !sound {
            let what = format!(
                "the refcount table, {} bytes at {}, is too large, unaligned or past the end of the file",
                self.refcounts_len, self.refcounts_at
            );
            return Err(corrupt("refcount_table_offset", what));
        }
        Ok(())
    }

    fn read_backing(
        &self,
        file: &ImageFile,
        bytes: &[u8],
        format: Option<String>,
    ) -> Result<Option<(Vec<u8>, Option<String>)>> {
        let (at, len) = (u64_at(bytes, 8), u32_at(bytes, 16));
        if at == 0 {
            return Ok(None);
        }
        let fits = at.checked_add(len.into()).is_some_and(|end| end <= self.cluster());
        if len == 0 || len > MAX_NAME || !fits {
            return Err(corrupt(
                "backing_file_offset",
                format!(
                    "a length of {len} bytes at byte {at} is too long, or the range ends past the first cluster"
                ),
            ));
        }
        let mut name = vec![0; len as usize];
        file.read_at(&mut name, at)?;
        if name.contains(&0) {
            return Err(corrupt(
                "backing_file_offset",
                "the name of the backing file contains a NUL",
            ));
        }
        Ok(Some((name, format)))
    }

    /// Reads the extensions of the header. They end within the first cluster.
    fn read_extensions(&self, file: &ImageFile, header_len: u64) -> Result<Extensions> {
        let (mut at, mut found) = (header_len, Extensions::default());
        while at + 8 <= self.cluster() {
            let mut head = [0; 8];
            file.read_at(&mut head, at)?;
            let (kind, len) = (u32_at(&head, 0), u32_at(&head, 4));
            let end = at + 8 + u64::from(len);
            if kind == 0 {
                break;
            }
            if end > self.cluster() {
                return Err(corrupt(
                    "extensions",
                    format!(
                        "a length of {len} bytes at byte {at} is too long, or the range ends past the first cluster"
                    ),
                ));
            }
            if kind == BACKING_FORMAT || kind == DATA_FILE_NAME {
                let mut text = vec![0; len.min(MAX_NAME) as usize];
                file.read_at(&mut text, at + 8)?;
                match kind {
                    DATA_FILE_NAME => found.data_file = Some(text),
                    _ => found.backing_format = Some(String::from_utf8_lossy(&text).into_owned()),
                }
            }
            if kind == BITMAPS_DIRECTORY && len as usize >= EXTENSION {
                let mut directory = [0; EXTENSION];
                file.read_at(&mut directory, at + 8)?;
                found.bitmaps = Some(Directory::parse(&directory));
            }
            at = end.next_multiple_of(8);
        }
        Ok(found)
    }
}
