//! The protection information of a device, as the kernel describes it.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::protection::{Interval, Mismatch, Protection, TupleKind};
use crate::sys::metadata_size;

/// A sector that does not match its tuple. This type will never get additional fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongTuple {
    /// The number of the sector, counted from the start of the device. A sector has the size of one protection interval.
    pub sector: u64,
    /// The field that does not match. `None` if the device itself has found the mismatch, because a device does not report the field.
    pub mismatch: Option<Mismatch>,
}

impl fmt::Display for WrongTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.mismatch {
            Some(mismatch) => mismatch.fmt(f),
            None => {
                write!(f, "sector {}: the device refused the protection information", self.sector)
            }
        }
    }
}

/// The protection information of a device. The device stores a tuple with each sector, and uses it to check the sector.
///
/// If a read does not ask for the tuples, the kernel's block layer verifies them. If a write contains no tuples, the block layer computes
/// them from the caller's memory, so this memory must not change during the write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProtection {
    /// The format as the kernel names it: `T10-DIF-TYPE1-CRC`.
    pub format: String,
    /// The number of data bytes that one tuple protects.
    pub interval: u32,
    /// The number of metadata bytes that the device stores with each interval. The metadata include the tuple.
    pub metadata: u32,
    /// Whether the kernel computes the tuples of a write if the request contains none (`write_generate`).
    pub generated: bool,
    /// Whether the kernel verifies the tuples of a read if the request does not ask for them (`read_verify`).
    pub verified: bool,
    /// The tuples, if this crate can compute tuples of their form.
    pub tuples: Option<Protection>,
    /// Whether ironmap itself computes and verifies the tuples of requests. If not, the kernel does this, and the tuples do not protect the
    /// data between kernel and caller.
    pub carried: bool,
}

impl DeviceProtection {
    /// Reads the kernel's description of an open block device. Returns `None` if the device has no protection information.
    pub(super) fn of(device: BorrowedFd<'_>, queue: &Path) -> Option<Self> {
        let said = Self::read(&queue.with_file_name("integrity"))?;
        // Since Linux 6.17, the kernel reports the position of the tuple within the metadata. On older kernels, this code assumes that the
        // metadata consist of the tuple alone.
        let metadata = metadata_size(device).unwrap_or(said.metadata);
        let alone = said.tuples.filter(|tuples| tuples.kind.bytes() == metadata as usize);
        Some(Self { metadata, tuples: alone, ..said })
    }

    /// Reads the attributes in a directory of sysfs.
    fn read(integrity: &Path) -> Option<Self> {
        let text = |name: &str| std::fs::read_to_string(integrity.join(name)).unwrap_or_default();
        let number = |name: &str| text(name).trim().parse::<u32>().unwrap_or(0);
        let format = text("format").trim().to_owned();
        if matches!(format.as_str(), "" | "none" | "nop") {
            return None;
        }
        // Formats of type 3 are excluded because type 3 does not define reference tags. Formats with IP guards are excluded because an IP
        // guard is not a CRC.
        let kind = match format.as_str() {
            "T10-DIF-TYPE1-CRC" => Some(TupleKind::T10),
            "EXT-DIF-TYPE1-CRC64" => Some(TupleKind::Nvme64),
            _ => None,
        };
        let interval = number("protection_interval_bytes");
        let tuples = kind.and_then(|kind| {
            let interval = Interval::from_bytes(interval.into())?;
            Some(Protection { kind, interval, generation: false })
        });
        Some(Self {
            metadata: tuples.map_or(0, |tuples| tuples.kind.bytes() as u32),
            generated: number("write_generate") == 1,
            verified: number("read_verify") == 1,
            carried: false,
            format,
            interval,
            tuples,
        })
    }
}

impl fmt::Display for DeviceProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { format, interval, metadata, .. } = self;
        write!(f, "{format}, {metadata} bytes for each {interval} bytes of data, ")?;
        f.write_str(match (self.carried, self.generated, self.verified) {
            (true, ..) => "computed and verified by ironmap for each request",
            (_, true, true) => "computed and verified by the kernel",
            (_, true, false) => "computed but not verified by the kernel",
            (_, false, true) => "verified but not computed by the kernel",
            (_, false, false) => {
                "computed and verified by the device only, because they are disabled in the kernel"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Option<DeviceProtection> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), format!("{text}\n")).unwrap();
        }
        DeviceProtection::read(dir.path())
    }

    #[test]
    fn a_device_without_a_format_has_no_protection() {
        assert_eq!(read(&[]), None);
        for format in ["none", "nop"] {
            assert_eq!(read(&[("format", format), ("protection_interval_bytes", "512")]), None);
        }
    }

    #[test]
    fn the_formats_of_type_1_with_a_crc_can_be_computed() {
        let of = |format, interval| {
            let files =
                [("format", format), ("protection_interval_bytes", interval), ("read_verify", "1")];
            read(&files).unwrap()
        };
        let t10 = of("T10-DIF-TYPE1-CRC", "512");
        let expected =
            Protection { kind: TupleKind::T10, interval: Interval::B512, generation: false };
        assert_eq!((t10.tuples, t10.metadata), (Some(expected), 8));
        assert_eq!(
            t10.to_string(),
            "T10-DIF-TYPE1-CRC, 8 bytes for each 512 bytes of data, verified but not computed by the kernel"
        );
        let nvme = of("EXT-DIF-TYPE1-CRC64", "4096");
        assert_eq!(nvme.tuples.map(|tuples| tuples.kind), Some(TupleKind::Nvme64));
        for (format, interval) in [
            ("T10-DIF-TYPE3-CRC", "512"),
            ("T10-DIF-TYPE1-IP", "512"),
            ("T10-DIF-TYPE1-CRC", "520"),
        ] {
            assert_eq!(of(format, interval).tuples, None, "{format} {interval}");
        }
    }
}
