//! Reads and checks the header of a qcow2 image. The crate imago receives only checked fields, and no names from the image.
//!
//! Source: `docs/interop/qcow2.txt` of QEMU.

use std::path::Path;

use super::file::ImageFile;
use crate::error::{Error, ErrorKind, Place, Result};

/// The first four bytes of a qcow2 image: `QFI\xfb`.
pub(super) const MAGIC: &[u8; 4] = b"QFI\xFB";
/// The length of a header of version 2, and the shortest length of a header of version 3.
pub(super) const V2_LEN: usize = 72;
const V3_LEN: usize = 104;
/// The length of the header that imago receives: a header of version 3, followed by an empty list of extensions.
pub(super) const SEEN_LEN: usize = V3_LEN + 8;
/// The largest number of entries of an L1 table, and the largest number of bytes of a refcount table. Both are QEMU's limits.
const MAX_L1: u64 = 4 << 20;
const MAX_REFCOUNT_TABLE: u64 = 8 << 20;
/// The largest number of entries of an L1 table, if the image is opened for writing. The positions of all L2 tables are then kept in
/// memory, so that no write of data overwrites a table.
const MAX_WRITTEN_L1: u64 = 1 << 20;
/// The longest name of a backing file.
const MAX_NAME: u32 = 1023;
const BACKING_FORMAT: u32 = 0xE279_2ACA;

/// The positions of the header fields that a write to the image may change.
pub(super) const REFCOUNTS: std::ops::Range<usize> = 48..60;
pub(super) const INCOMPATIBLE: usize = 72;
pub(super) const AUTOCLEAR: usize = 88;

/// The incompatible features. An implementation must refuse an image with an unknown incompatible feature.
pub(super) const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

/// The fields of a header, after the check that the format permits their values and that the tables lie in the file.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    /// The size of the disk in bytes.
    pub(super) size: u64,
    pub(super) cluster_bits: u32,
    pub(super) l1_at: u64,
    pub(super) l1_entries: u64,
    pub(super) refcounts_at: u64,
    pub(super) refcounts_len: u64,
    pub(super) snapshots: u32,
    pub(super) incompatible: u64,
    pub(super) autoclear: u64,
    /// The number of bits of a refcount, as a logarithm to base two.
    pub(super) refcount_order: u32,
    /// The name of the backing file, and the format of the backing file if the header states it.
    pub(super) backing: Option<(Vec<u8>, Option<String>)>,
}

fn corrupt(field: &'static str, what: impl Into<String>) -> Error {
    Place::new("qcow2 header").field(field).corrupt(what.into())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

impl Header {
    /// Reads and checks the header of an image.
    pub(super) fn read(file: &ImageFile) -> Result<Self> {
        let mut bytes = [0; V3_LEN];
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
            incompatible: v3(u64_at(&bytes, INCOMPATIBLE), 0),
            autoclear: v3(u64_at(&bytes, AUTOCLEAR), 0),
            refcount_order,
            backing: None,
        };
        header.check_features(u32_at(&bytes, 32))?;
        header.check_tables(file.len())?;
        header.backing = header.read_backing(file, &bytes, header_len)?;
        Ok(header)
    }

    pub(super) fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.incompatible & DIRTY != 0
    }

    pub(super) fn is_corrupt(&self) -> bool {
        self.incompatible & CORRUPT != 0
    }

    /// The reason why the image at this path cannot be written, if its features or its present state make writes unsafe.
    pub(super) fn refuse_writing(&self, path: &Path) -> Option<String> {
        let repair = format!("qemu-img check -r all {} repairs it", path.display());
        if self.is_corrupt() {
            return Some(format!("the image is marked as corrupt: {repair}"));
        }
        if self.is_dirty() {
            return Some(format!("the image was not closed after it was written: {repair}"));
        }
        if self.version < 3 {
            let what = "an image of qcow2 version 2 can only be read: qemu-img amend -o compat=v3 converts it";
            return Some(what.to_owned());
        }
        if self.snapshots > 0 {
            return Some(format!(
                "the image can only be read, because it has {} internal snapshots: qemu-img snapshot -d removes a snapshot",
                self.snapshots
            ));
        }
        let entries = self.l1_entries;
        (entries > MAX_WRITTEN_L1).then(|| {
            format!(
                "the image has {entries} L2 tables, more than ironmap can write: an image with larger clusters has fewer tables"
            )
        })
    }

    fn check_features(&self, encryption: u32) -> Result<()> {
        let unsupported = |what: &str| Err(Error::unsupported(what.to_owned()));
        if encryption != 0 {
            let what = match encryption {
                1 => "the image is encrypted with AES",
                2 => "the image is encrypted with LUKS",
                _ => "the image is encrypted with an unknown method",
            };
            return Err(Error::new(ErrorKind::Encrypted, what));
        }
        match self.incompatible & !(DIRTY | CORRUPT) {
            0 => Ok(()),
            bits if bits & DATA_FILE != 0 => {
                unsupported("the image has its data in another file (data_file)")
            }
            bits if bits & EXTENDED_L2 != 0 => {
                unsupported("the image has subclusters (extended_l2)")
            }
            bits if bits & COMPRESSION != 0 => {
                unsupported("the image is compressed with zstd (compression_type)")
            }
            bits => {
                unsupported(&format!("the image has unknown incompatible features ({bits:#x})"))
            }
        }
    }

    /// Checks that the tables lie in the file, and that the L1 table covers the disk.
    fn check_tables(&self, file_len: u64) -> Result<()> {
        // The file may end within its last cluster, so its length is rounded up to whole clusters.
        let end = file_len.checked_next_multiple_of(self.cluster()).unwrap_or(u64::MAX);
        let lies_in = |at: u64, len: u64| {
            at.is_multiple_of(self.cluster()) && at.checked_add(len).is_some_and(|stop| stop <= end)
        };
        let covered_bits = 2 * self.cluster_bits - 3;
        let needed = self.size.div_ceil(1 << covered_bits);
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
        header_len: u64,
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
        Ok(Some((name, self.read_backing_format(file, header_len)?)))
    }

    /// The format of the backing file, if an extension of the header states it.
    fn read_backing_format(&self, file: &ImageFile, header_len: u64) -> Result<Option<String>> {
        let mut at = header_len;
        loop {
            let mut head = [0; 8];
            if at + 8 > self.cluster() {
                return Ok(None);
            }
            file.read_at(&mut head, at)?;
            let (kind, len) = (u32_at(&head, 0), u32_at(&head, 4));
            let end = at + 8 + u64::from(len);
            if kind == 0 {
                return Ok(None);
            }
            if end > self.cluster() {
                return Err(corrupt(
                    "extensions",
                    format!(
                        "a length of {len} bytes at byte {at} is too long, or the range ends past the first cluster"
                    ),
                ));
            }
            if kind == BACKING_FORMAT {
                let mut name = vec![0; len.min(64) as usize];
                file.read_at(&mut name, at + 8)?;
                return Ok(Some(String::from_utf8_lossy(&name).into_owned()));
            }
            at = end.next_multiple_of(8);
        }
    }

    /// The position of the refcount table in the file. `bytes` is a header that imago writes.
    pub(super) fn refcounts_of(bytes: &[u8]) -> Option<std::ops::Range<u64>> {
        let bytes = bytes.get(..V2_LEN)?;
        let (at, clusters) = (u64_at(bytes, 48), u64::from(u32_at(bytes, 56)));
        let len =
            clusters.checked_shl(u32_at(bytes, 20)).filter(|len| *len <= MAX_REFCOUNT_TABLE)?;
        Some(at..at.checked_add(len)?)
    }

    /// The header that imago receives. It contains the fields that imago needs, and no names, snapshots or features.
    pub(super) fn seen(&self) -> [u8; SEEN_LEN] {
        let mut bytes = [0; SEEN_LEN];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, MAGIC);
        put(4, &3_u32.to_be_bytes());
        put(20, &self.cluster_bits.to_be_bytes());
        put(24, &self.size.to_be_bytes());
        put(36, &(self.l1_entries as u32).to_be_bytes());
        put(40, &self.l1_at.to_be_bytes());
        put(48, &self.refcounts_at.to_be_bytes());
        put(56, &((self.refcounts_len >> self.cluster_bits) as u32).to_be_bytes());
        put(96, &self.refcount_order.to_be_bytes());
        put(100, &(V3_LEN as u32).to_be_bytes());
        bytes
    }
}
