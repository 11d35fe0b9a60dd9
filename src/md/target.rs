//! Arrays of the device mapper's target `raid`, which LVM uses for RAID volumes. The layouts are the MD layouts. Each leg has a metadata
//! device with a superblock of another format than MD, without a checksum. All numbers are little-endian.

use std::sync::Arc;

use super::superblock::{FAULTY, SECTOR, Superblock, bytes, corrupt};
use super::{Array, Found, assemble_found};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::partition::{u32_at, u64_at};
use crate::units::DevOffset;

/// The magic number `DmRd`, little-endian.
const MAGIC: u32 = 0x6452_6D44;
/// The length of a superblock with all fields, in bytes.
const LEN: usize = 512;
/// The flag of a superblock that contains the fields for a reshape.
const EXTENDED: u32 = 1;
/// The flags of an array that is being reshaped, in either direction.
const RESHAPED: u32 = 3;
const RESHAPE: &str = "it is being reshaped: lvchange -ay continues the reshape";
/// The largest number of legs.
const LEGS: usize = 253;

/// A leg of an array.
pub(crate) struct Leg {
    /// The name in messages.
    pub(crate) name: String,
    /// The device with the superblock of the leg (a leg is a member of the array). `None` for RAID level 0, whose legs have no superblocks.
    pub(crate) metadata: Option<Arc<dyn Device>>,
    pub(crate) data: Arc<dyn Device>,
}

/// Assembles an array from its legs (member devices), which are given in order. `stripe` is the length of a stripe in bytes; only RAID
/// level 0 uses it. If a leg is an `Err`, the array is assembled without this leg, and the error states why the leg is missing.
///
/// # Errors
/// The errors of [`assemble`](super::assemble).
pub(crate) fn assemble_legs(
    name: &str,
    level: u32,
    stripe: u64,
    legs: Vec<Result<Leg, String>>,
) -> Result<Array> {
    let (mut faults, mut found) = (Vec::new(), Vec::new());
    let disks = legs.len();
    if disks > LEGS {
        return Err(Error::new(ErrorKind::Corrupt, format!("{disks} legs are not valid")));
    }
    let present = legs.iter().filter_map(|leg| leg.as_ref().ok());
    let size = present.map(|leg| leg.data.size()).min().unwrap_or(0);
    for (index, leg) in legs.into_iter().enumerate() {
        let leg = match leg {
            Ok(leg) => leg,
            Err(reason) => {
                faults.push(reason);
                continue;
            }
        };
        let base = Superblock {
            version: "of the device mapper",
            uuid: String::new(),
            name: name.to_owned(),
            created: 0,
            level: 0,
            layout: None,
            size,
            chunk: stripe,
            disks,
            events: 0,
            updated: 0,
            dirty: false,
            refusal: None,
            roles: (0..disks as u16).collect(),
            number: index,
            device: Vec::new(),
            start: 0,
            len: leg.data.size(),
            synced: u64::MAX,
            replacement: false,
            bad: Vec::new(),
        };
        let read = match leg.metadata.as_deref().filter(|_| level != 0) {
            None if level != 0 => Err(corrupt("there is no metadata device")),
            None => Ok(base),
            Some(metadata) => read(metadata, base, level),
        };
        match read {
            Ok(superblock) => found.push(Found { name: leg.name, device: leg.data, superblock }),
            Err(error) => faults.push(format!("{} is left out: {error}", leg.name)),
        }
    }
    assemble_found(found, faults)
}

/// Reads the superblock of a leg. The superblock of the dm-raid target does not store all fields: `base` contains the values of the others.
fn read(device: &dyn Device, base: Superblock, level: u32) -> Result<Superblock> {
    let mut block = vec![0; LEN];
    if device.size() < LEN as u64 {
        return Err(corrupt("the metadata device is too short"));
    }
    device.read_exact_at(&mut block, DevOffset(0))?;
    if u32_at(&block, 0) != MAGIC {
        return Err(corrupt("the leg was never in use"));
    }
    let (disks, position) = (u32_at(&block, 8) as usize, u32_at(&block, 12) as usize);
    if (disks, position) != (base.disks, base.number) {
        return Err(corrupt(format_args!("it describes leg {position} of {disks}")));
    }
    let (found, parity) = (u32_at(&block, 48), 4..=6);
    if found != level && !(parity.contains(&found) && parity.contains(&level)) {
        return Err(corrupt(format_args!("it describes an array of level {found}")));
    }
    let mut failed = vec![u64_at(&block, 24)];
    let mut refusal = None;
    if u32_at(&block, 4) & EXTENDED != 0 {
        failed.extend([120, 128, 136].map(|at| u64_at(&block, at)));
        let (features, offset) = (u32_at(&block, 144), u64_at(&block, 96));
        let is_reshaped = u32_at(&block, 60) & RESHAPED != 0 || u32_at(&block, 84) != 0;
        refusal = match () {
            () if features != 0 => Some(format!("it has unknown features (0x{features:x})")),
            () if is_reshaped => Some(RESHAPE.to_owned()),
            () if offset != 0 => Some(format!("its data begin at sector {offset} of each leg")),
            () => None,
        };
    }
    let has_failed =
        |leg: usize| failed.get(leg / 64).is_some_and(|bits| bits >> (leg % 64) & 1 == 1);
    let roles = (0..disks).map(|leg| if has_failed(leg) { FAULTY } else { leg as u16 }).collect();
    Ok(Superblock {
        level: found.cast_signed(),
        layout: Some(u32_at(&block, 52)),
        chunk: bytes(u64::from(u32_at(&block, 56)), SECTOR)?,
        events: u64_at(&block, 16),
        dirty: u64_at(&block, 40) != u64::MAX,
        refusal,
        roles,
        synced: u64_at(&block, 32).saturating_mul(SECTOR),
        ..base
    })
}
