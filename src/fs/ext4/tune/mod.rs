//! Changes a volume's superblock, as tune2fs does. Changes that also require a change of other metadata are refused.
//!
//! All decisions are made before the first write. The backups are written first, and then the primary superblock. After a power failure
//! between these writes, the volume is valid and has newer backups. All backups become copies of the primary superblock, as with tune2fs.
//! There is one exception to the order: if the revision is raised from 0 to 1, the primary superblock is written before the backups. If the
//! backups were written first, a power failure could leave a primary superblock of revision 0 and a backup of revision 1. An open treats
//! this combination as damage.

mod options;
mod switches;

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use zerocopy::{FromBytes, IntoBytes};

use self::options::{mounts, put, time};
use super::disk::superblock::{REV_DYNAMIC, RawSuperblock, STATE_VALID};
use super::mkfs::{random, random_uuid};
use super::mmp_hold::MmpHold;
use super::superblock::{Superblock, seal_superblock, set_time};
use super::{Compat, Ext4, Incompat, RoCompat, jbd2, mmp};
use crate::device::Device;
use crate::error::{Context, Error, ErrorKind, Place, Result};
use crate::events::Events;
use crate::fs::Clock;

pub use self::options::{HashAlgorithm, NewUuid, Reserved, TuneOptions};

const PLACE: Place = Place::new("superblock");
/// The value of `s_max_mnt_count` on a volume for which the number of mounts never causes a check.
const NEVER: u16 = u16::MAX;

/// Changes the superblock and all its backups on a device that is open for writing. Returns the new superblock. If the volume needs
/// recovery, it is recovered first. The recovery increments the volume's mount count. The time of `clock` is stored as the time of the last
/// write.
///
/// # Errors
/// `InvalidInput` for invalid values; `Unsupported` with the name of the option and an alternative; the errors of
/// [`Ext4::open_for_writing`]. Only the recovery may have written to the device before one of these errors.
pub(crate) fn tune(
    device: &Arc<dyn Device>,
    options: &TuneOptions,
    clock: Clock,
) -> Result<Superblock> {
    let events = Arc::new(Events::of(device));
    if !device.is_writable() {
        return Err(Error::read_only("the device was opened read-only"));
    }
    let mut sb = Ext4::read_superblock(&**device)?;
    check_known(&sb)?;
    // Values are checked first. An invalid value is thus refused before a recovery changes the device.
    changed(&read(device)?, options, clock)?;
    if sb.incompat.contains(Incompat::RECOVER) {
        Ext4::open_for_writing(Arc::clone(device), &events, clock)?.end_writing()?;
        sb = Ext4::read_superblock(&**device)?;
    }
    mmp::check(&**device, &sb, mmp::Purpose::Write)?;
    let held = MmpHold::take(device, &sb, &events, clock)?;
    if held.is_some() {
        // The superblock is read again. Another computer may have written to the volume before it noticed that this computer has claimed
        // the volume (multiple mount protection).
        sb = Ext4::read_superblock(&**device)?;
        check_known(&sb)?;
        if sb.incompat.contains(Incompat::RECOVER) {
            return Err(Error::new(
                ErrorKind::Busy,
                "another node has just used the volume: try again",
            ));
        }
    }
    let raw = changed(&read(device)?, options, clock)?;
    let new = Superblock::parse(raw.as_bytes(), device.size())?;
    let raised = sb.revision < REV_DYNAMIC && new.revision >= REV_DYNAMIC;
    let switched = new.compat - sb.compat;
    let fs = Arc::new(Ext4::assemble(Arc::clone(device), sb, &events));
    if switched.contains(Compat::FAST_COMMIT) {
        jbd2::check_room(&fs, new.compat).context(|| "fast_commit")?;
    }
    if raised {
        // An open treats a volume as damaged if the primary superblock has revision 0 and a backup has revision 1. The primary superblock
        // is therefore written first.
        fs.write_superblock(|old| *old = raw.clone())?;
    }
    write_backups(&fs, &raw).context(|| "backup superblock")?;
    if let Some(held) = &held {
        held.check()?;
    }
    fs.write_superblock(|old| *old = raw)?;
    Ok(new)
}

/// Refuses a volume with unknown features, because unknown features may change the positions of the backups.
fn check_known(sb: &Superblock) -> Result<()> {
    let unknown = sb.ro_compat - RoCompat::WRITABLE - RoCompat::READONLY;
    if unknown.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = unknown.names().collect();
    Err(Error::read_only(format!("volumes with {} can only be read", names.join(", "))))
}

fn read(device: &Arc<dyn Device>) -> Result<RawSuperblock> {
    let (at, len) = Superblock::RANGE;
    let mut bytes = vec![0; len];
    device.read_exact_at(&mut bytes, at)?;
    RawSuperblock::read_from_bytes(&bytes).map_err(|_| PLACE.corrupt("the superblock is truncated"))
}

/// Returns the superblock with all changes and with its new checksum.
fn changed(old: &RawSuperblock, options: &TuneOptions, clock: Clock) -> Result<RawSuperblock> {
    let mut raw = old.clone();
    // The features are changed before the UUID. A newly enabled metadata_csum_seed must store the checksum seed that is derived from the
    // old UUID.
    options.features.iter().try_for_each(|word| switches::feature(&mut raw, word))?;
    options.mount_options.iter().try_for_each(|word| switches::mount_option(&mut raw, word))?;
    name(&mut raw, options, clock)?;
    policy(&mut raw, options)?;
    set_time(&mut raw.s_wtime, &mut raw.s_wtime_hi, clock.now());
    seal_superblock(&mut raw);
    Ok(raw)
}

/// Sets the fields that identify the volume.
fn name(raw: &mut RawSuperblock, options: &TuneOptions, clock: Clock) -> Result<()> {
    if let Some(label) = &options.label {
        put(&mut raw.s_volume_name, label, 16, "label")?;
    }
    if let Some(dir) = &options.last_mounted {
        put(&mut raw.s_last_mounted, dir, 64, "directory")?;
    }
    if let Some(text) = &options.mount_options_text {
        put(&mut raw.s_mount_opts, text, 63, "string of mount options")?;
    }
    let Some(new) = options.uuid else { return Ok(()) };
    let new = match new {
        NewUuid::Random => random_uuid()?,
        NewUuid::Time => time_uuid(clock)?,
        NewUuid::Clear => [0; 16],
        NewUuid::Is(uuid) => uuid,
    };
    if new != raw.s_uuid {
        switches::check_uuid(raw)?;
        raw.s_uuid = new;
    }
    Ok(())
}

/// A UUID of version 1, variant 1 of RFC 9562, with a random node.
fn time_uuid(clock: Clock) -> Result<[u8; 16]> {
    /// The time from 1582-10-15 to 1970, in units of 100 ns.
    const BEFORE_1970: u64 = 0x01B2_1DD2_1381_4000;
    let ticks = match clock {
        Clock::Fixed(at) => (at.seconds as u64)
            .wrapping_mul(10_000_000)
            .wrapping_add(u64::from(at.nanoseconds / 100)),
        Clock::System => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            (now.as_nanos() / 100) as u64
        }
    };
    let ticks = ticks.wrapping_add(BEFORE_1970);
    let mut uuid = random()?;
    uuid[..4].copy_from_slice(&(ticks as u32).to_be_bytes());
    uuid[4..6].copy_from_slice(&((ticks >> 32) as u16).to_be_bytes());
    uuid[6..8].copy_from_slice(&((ticks >> 48) as u16 & 0x0FFF | 0x1000).to_be_bytes());
    uuid[8] = uuid[8] & 0x3F | 0x80;
    // The multicast bit marks the node as random. Without this bit, the node would be the address of a network card.
    uuid[10] |= 1;
    Ok(uuid)
}

/// Sets the fields that control how the volume is used, such as the reserved blocks and the intervals of checks.
fn policy(raw: &mut RawSuperblock, options: &TuneOptions) -> Result<()> {
    if let Some(on_error) = options.on_error {
        raw.s_errors.set(on_error.to_raw());
    }
    if let Some(reserved) = options.reserved {
        let blocks = u64::from(raw.s_blocks_count_lo.get());
        let wide = Incompat::from_bits_retain(raw.s_feature_incompat.get())
            .contains(Incompat::SIXTY_FOUR_BIT);
        let high = if wide { u64::from(raw.s_blocks_count_hi.get()) << 32 } else { 0 };
        let reserved = reserved.of(blocks | high)?;
        raw.s_r_blocks_count_lo.set(reserved as u32);
        raw.s_r_blocks_count_hi.set((reserved >> 32) as u32);
    }
    if let Some(uid) = options.reserved_uid {
        raw.s_def_resuid.set(uid);
    }
    if let Some(gid) = options.reserved_gid {
        raw.s_def_resgid.set(gid);
    }
    if let Some(count) = options.max_mount_count {
        raw.s_max_mnt_count.set(if count == 0 { NEVER } else { mounts(count)? });
    }
    if let Some(count) = options.mount_count {
        raw.s_mnt_count.set(mounts(count)?);
    }
    if let Some(seconds) = options.check_interval {
        raw.s_checkinterval.set(seconds);
    }
    if let Some(seconds) = options.last_checked {
        let (low, high) = time(seconds)?;
        raw.s_lastcheck.set(low);
        raw.s_lastcheck_hi = high;
    }
    if let Some(hash) = options.hash {
        raw.s_def_hash_version = hash.to_raw();
    }
    if let Some(blocks) = options.stride {
        raw.s_raid_stride.set(blocks);
    }
    if let Some(blocks) = options.stripe_width {
        raw.s_raid_stripe_width.set(blocks);
    }
    Ok(())
}

/// Writes the superblock `raw` to all backups. When the function returns, the backups are durable.
fn write_backups(fs: &Ext4, raw: &RawSuperblock) -> Result<()> {
    let sb = &fs.superblock;
    let mut copy = raw.clone();
    copy.s_state.set(raw.s_state.get() & !STATE_VALID);
    for group in (1..sb.groups).filter(|group| sb.group_has_backup(*group)) {
        let block = sb.group_start(group);
        copy.s_block_group_nr.set(group as u16);
        seal_superblock(&mut copy);
        let mut content = fs.blocks.read_device(block)?;
        content.for_change()?[..size_of::<RawSuperblock>()].copy_from_slice(copy.as_bytes());
        fs.blocks.write_device(block, &[IoSlice::new(&content)], false)?;
    }
    fs.blocks.flush()
}
