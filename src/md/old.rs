//! The superblock of version 0.90. It consists of 1024 words of 32 bits, in the byte order of the computer that wrote it. It begins between
//! 64 and 128 KiB before the end of the device.

use super::superblock::{
    FAULTY, LONGEST, MAGIC, SPARE, Superblock, block as block_at, bytes, corrupt, folded, grouped,
};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::partition::u32_at;

/// The superblock begins at the last multiple of this number of bytes that has at least this number of bytes after it.
const UNIT: u64 = 64 << 10;
/// The number of members that a superblock can describe.
const MEMBERS: usize = 27;

/// The indexes of words in the superblock.
mod word {
    pub(super) const CHECKSUM: usize = 38;
    /// The first word of the first member's description. Each description has 32 words.
    pub(super) const MEMBERS: usize = 128;
    /// The first word of the description of the member that contains this superblock.
    pub(super) const OWN: usize = 992;
}

pub(super) const RESHAPED: &str = "it is being reshaped: let mdadm complete the reshape first";

/// Reads the superblock's bytes from a device. Returns the position and the bytes, or `None` if the device is too small.
pub(super) fn block(device: &dyn Device) -> Result<Option<(u64, Vec<u8>)>> {
    let Some(at) = (device.size() / UNIT * UNIT).checked_sub(UNIT) else { return Ok(None) };
    Ok(block_at(device, at)?.map(|block| (at, block)))
}

/// Decodes a superblock at the position `at`. Returns `None` if the bytes are not a superblock of this version.
pub(super) fn parse(block: &[u8], at: u64) -> Option<Result<Superblock>> {
    let word = |index: usize| u32_at(block, index * 4);
    match word(0) {
        MAGIC if word(1) == 0 => Some(parse_checked(&word, at)),
        magic if magic == MAGIC.swap_bytes() && word(1) == 0 => Some(Err(Error::unsupported(
            "an MD superblock of version 0.90 with big-endian numbers is not supported",
        ))),
        _ => None,
    }
}

fn parse_checked(word: &dyn Fn(usize) -> u32, at: u64) -> Result<Superblock> {
    let sum: u64 = (0..LONGEST / 4).map(|index| u64::from(word(index))).sum();
    let sum = folded(sum - u64::from(word(word::CHECKSUM)));
    // Old kernels stored another checksum. The two checksums are equal modulo 65535.
    if sum % 0xFFFF != word(word::CHECKSUM) % 0xFFFF {
        return Err(corrupt("the checksum of the superblock (version 0.90) is wrong"));
    }
    let minor = word(2);
    let (level, chunk) = (word(7).cast_signed(), u64::from(word(65)));
    let role = |member: usize| {
        let member = word::MEMBERS + member * 32;
        // The three low bits of a member's state: failed (1), active (2), in sync (4).
        match word(member + 4) & 7 {
            state if state & 1 != 0 => FAULTY,
            state if state & 4 != 0 => word(member + 3).try_into().unwrap_or(SPARE),
            _ => SPARE,
        }
    };
    let uuid: Vec<u8> = [5, 13, 14, 15].iter().flat_map(|at| word(*at).to_be_bytes()).collect();
    Ok(Superblock {
        version: "0.90",
        uuid: grouped(&uuid),
        name: String::new(),
        created: u64::from(word(6)),
        level,
        layout: (level != 0).then(|| word(64)),
        size: bytes(u64::from(word(8)), 1024)?,
        chunk,
        disks: word(10) as usize,
        events: u64::from(word(40)) << 32 | u64::from(word(39)),
        updated: u64::from(word(32)),
        dirty: word(33) & 1 == 0,
        refusal: match minor {
            90 => None,
            91 => Some(RESHAPED.to_owned()),
            minor => Some(format!("its superblock has the version 0.{minor}")),
        },
        roles: (0..MEMBERS).map(role).collect(),
        number: word(word::OWN) as usize,
        device: Vec::new(),
        start: 0,
        len: at,
        synced: u64::MAX,
        replacement: false,
        bad: Vec::new(),
    })
}
