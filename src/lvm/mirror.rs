//! The log of a mirror. It has one bit for each region, which is set if the region is equal on all legs. All numbers are little-endian.

use super::text::corrupt;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::partition::{u32_at, u64_at};
use crate::units::DevOffset;

/// The magic number `MiRr`.
const MAGIC: u32 = 0x4D69_5272;
const VERSION: u32 = 2;
/// The length of the log's header in bytes. The bits follow the header.
const HEADER: u64 = 1024;
/// The largest number of regions: 128 MiB of bits.
const REGIONS: u64 = 1 << 30;
/// The number of bytes of the bit set that are read in one step.
const PART: u64 = 64 << 10;

/// Checks that all regions are equal on all legs according to the log. `len` is the length of the mirror, and `region` is the length of a
/// region, both in bytes.
///
/// # Errors
/// `Unsupported` if a region is not equal on all legs; `Corrupt` for a damaged log; `Io`.
pub(super) fn check(log: &dyn Device, len: u64, region: u64) -> Result<()> {
    let wrong = |what: &str| corrupt(format!("the log of the mirror {what}"));
    let mut header = vec![0; 16];
    if log.size() < HEADER {
        return Err(wrong("is too short"));
    }
    log.read_exact_at(&mut header, DevOffset(0))?;
    if (u32_at(&header, 0), u32_at(&header, 4)) != (MAGIC, VERSION) {
        return Err(wrong("has no header of version 2"));
    }
    let regions = if region == 0 { u64::MAX } else { len.div_ceil(region) };
    if regions > REGIONS || u64_at(&header, 8) != regions {
        return Err(wrong("has a wrong number of regions"));
    }
    let bytes = regions.div_ceil(8);
    if bytes > log.size() - HEADER {
        return Err(wrong("is too short"));
    }
    for at in (0..bytes).step_by(PART as usize) {
        let mut part = vec![0; (bytes - at).min(PART) as usize];
        log.read_exact_at(&mut part, DevOffset(HEADER + at))?;
        // In the last byte, the bits after the last region have no meaning.
        let unused = (bytes * 8 - regions) as u32;
        if let Some(last) = part.last_mut().filter(|_| at + PART >= bytes) {
            *last |= !(0xFF_u8 >> unused);
        }
        if part.iter().any(|byte| *byte != 0xFF) {
            return Err(Error::unsupported(
                "the first leg of the mirror is missing, and the log says that the other legs differ from the first leg",
            ));
        }
    }
    Ok(())
}
