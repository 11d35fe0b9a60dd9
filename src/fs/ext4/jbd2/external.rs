//! An external journal (`mke2fs -O journal_dev`). The code checks that the device contains the journal that the volume's superblock names.
//!
//! The device begins with an ext4 superblock, of which only the UUID is used. The next block contains the journal's superblock. Block
//! numbers of the log are counted from the start of the device.

use std::sync::Arc;

use zerocopy::FromBytes;

use super::log::Log;
use super::superblock::JournalSuperblock;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::ext4::disk::journal::RawJournalSuperblock;
use crate::fs::ext4::disk::superblock::{MAGIC, OFFSET, RawSuperblock};
use crate::fs::ext4::superblock::superblock_checksum;
use crate::fs::ext4::{Ext4, Incompat, RoCompat};
use crate::fs::{DeviceRange, uuid_text};
use crate::units::{DevOffset, FsBlock};

const PLACE: Place = Place::new("journal device superblock");
const JOURNAL_PLACE: Place = Place::new("journal superblock");
const UUID_LEN: usize = 16;

/// Opens the journal on an external device. ironmap combines the volume's device and the journal's device. `range` is the journal's part of
/// the combined device.
pub(super) fn open(fs: &Arc<Ext4>, range: DeviceRange) -> Result<Log> {
    let sb = &fs.superblock;
    let size = sb.block_size;
    let available = range.len >> size.shift();
    let number = OFFSET / size.bytes() as u64 + 1;
    if available <= number {
        let what = format!("a device of {} bytes is too small for a journal", range.len);
        return Err(Error::new(ErrorKind::UnknownFormat, what));
    }
    check_device(fs, range)?;
    let first = FsBlock(range.start >> size.shift());
    let content = fs.blocks.read_device(FsBlock(first.0 + number))?;
    let block = FsBlock(number);
    let superblock = JournalSuperblock::parse(&content, block, size, available)?;
    if u64::from(superblock.log.start) <= number {
        let start = superblock.log.start;
        return Err(JOURNAL_PLACE.block(block).field("s_first").corrupt(format!("block {start}")));
    }
    check_users(fs, &content, JOURNAL_PLACE.block(block))?;
    Ok(Log::on_device(fs, first, superblock))
}

/// Checks that the volume's superblock names this device.
fn check_device(fs: &Ext4, range: DeviceRange) -> Result<()> {
    let sb = &fs.superblock;
    let mut bytes = [0; size_of::<RawSuperblock>()];
    fs.blocks.device().read_exact_at(&mut bytes, DevOffset(range.start + OFFSET))?;
    let raw: &RawSuperblock = zerocopy::transmute_ref!(&bytes);
    if raw.s_magic.get() != MAGIC {
        let what =
            format!("the device has no journal superblock: s_magic is {:#x}", raw.s_magic.get());
        return Err(Error::new(ErrorKind::UnknownFormat, what));
    }
    let incompat = Incompat::from_bits_retain(raw.s_feature_incompat.get());
    if !incompat.contains(Incompat::JOURNAL_DEV) {
        return Err(Error::invalid("the device contains a file system, not an external journal"));
    }
    let ro_compat = RoCompat::from_bits_retain(raw.s_feature_ro_compat.get());
    if ro_compat.contains(RoCompat::METADATA_CSUM) {
        let (stored, computed) = (raw.s_checksum.get(), superblock_checksum(&bytes));
        if stored != computed {
            return Err(PLACE.field("s_checksum").bad_checksum(stored, computed));
        }
    }
    if raw.s_uuid != sb.journal_uuid {
        let (found, named) = (uuid_text(&raw.s_uuid), uuid_text(&sb.journal_uuid));
        return Err(Error::invalid(format!(
            "the device contains the journal {found}, but the volume uses the journal {named}"
        )));
    }
    let log = raw.s_log_block_size.get();
    if log != u32::from(sb.block_size.shift()) - 10 {
        let what = format!(
            "the journal device has blocks of 2^{log} KiB, but the volume has another block size"
        );
        return Err(PLACE.field("s_log_block_size").corrupt(what));
    }
    Ok(())
}

/// Checks that only this volume uses the journal. If several volumes shared the journal, the volume of a copied block would be unknown,
/// because tags do not name it. Linux cannot find out the volume either.
fn check_users(fs: &Ext4, content: &[u8], place: Place) -> Result<()> {
    let sb = &fs.superblock;
    let Ok((raw, _)) = RawJournalSuperblock::ref_from_prefix(content) else {
        return Err(place.corrupt("the journal superblock is truncated"));
    };
    if raw.s_uuid != sb.journal_uuid {
        let what = format!(
            "the journal's UUID {} differs from s_journal_uuid of the volume",
            uuid_text(&raw.s_uuid)
        );
        return Err(place.field("s_uuid").corrupt(what));
    }
    let count = raw.s_nr_users.get();
    if count > 1 {
        return Err(Error::unsupported(format!(
            "{count} volumes share the journal, which is not supported"
        )));
    }
    let user = raw.s_users.first_chunk::<UUID_LEN>().filter(|_| count == 1);
    if user != Some(&sb.uuid) {
        let user = user.map_or_else(|| "no volume".to_owned(), uuid_text);
        return Err(Error::invalid(format!(
            "the journal belongs to the volume {user} (s_users), but the UUID of this volume is {}",
            uuid_text(&sb.uuid)
        )));
    }
    Ok(())
}
