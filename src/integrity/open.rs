//! Opens an integrity device, and recovers it if it was not closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::area::{Area, Superblock};
use super::checked::{Checked, Laziness};
use super::dirty::{Found, Regions};
use super::disk::BLOCK;
use super::durability::Durability;
use super::geometry::{Info, Mode};
use super::journal::{Home, Journal, needs_replay};
use super::recover::{GIVE_UP, Recovered, Replay, retag};
use super::report::Report;
use super::tagging::Tagging;
use super::tags::Tags;
use crate::device::{Device, Finer, Limits, ThroughFlushes};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::setters::setters;
use crate::sync::Mutex;

/// The options for opening an integrity device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IntegrityOptions {
    /// The number of bytes of tags that are kept in memory.
    pub cache: u64,
    /// A flush clears the dirty map if at least this time has passed since the map was last cleared.
    pub clean_after: Duration,
    /// A flush also clears the map if more than this number of regions are dirty.
    pub most_dirty: u32,
    /// The identity of the data device, or zeros if the device has no identity. If the tags were created for another identity, the open
    /// fails.
    pub data_uuid: [u8; 16],
    /// Accepts a data device with another identity. After the open, the tags belong to this device. With this option, the following errors do
    /// not end a recovery:
    ///
    /// - the replay of the journal cannot write a sector;
    /// - the tags of a dirty region cannot be read;
    /// - a block of the dirty map cannot be read. All regions of this block then count as dirty.
    pub force: bool,
}

impl Default for IntegrityOptions {
    fn default() -> Self {
        Self {
            cache: 64 << 20,
            clean_after: Duration::from_secs(10),
            most_dirty: 4096,
            data_uuid: [0; 16],
            force: false,
        }
    }
}

impl IntegrityOptions {
    /// Creates options with 64 MiB of memory for tags, and ten seconds between two clears of the dirty map.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

setters!(IntegrityOptions {
    cache: u64,
    clean_after: Duration,
    most_dirty: u32,
    data_uuid: [u8; 16],
    force: bool,
});

pub(super) fn open(
    data: Arc<dyn Device>,
    tag_device: Option<Arc<dyn Device>>,
    options: &IntegrityOptions,
) -> Result<(Checked, Recovered)> {
    let tail = tag_device.is_none();
    let tag_device = tag_device.unwrap_or_else(|| Arc::clone(&data));
    let mut superblock = Superblock::read(&*tag_device, tail).context(|| "open the tag device")?;
    let writable = data.is_writable() && tag_device.is_writable();
    let adopted = adopt(&mut superblock.info, options)? && writable;
    let info = superblock.info;
    check(&*data, &info)?;
    let (data, _) = Finer::for_blocks(data, |_| Some(info.interval as usize));
    // If the tags are in the tail, one block of the device may contain both data and tags. A write of a part of a block reads and writes
    // the whole block, and no other write to the block may run at the same time. Therefore, data and tags must be written through one
    // common `Finer` layer, which ensures this.
    let tag_device = match tail {
        true => Arc::clone(&data),
        false => Finer::for_blocks(tag_device, |_| Some(BLOCK)).0,
    };
    let durability = Durability::new(&*data, &*tag_device, tail);
    let area = Area { device: Arc::clone(&tag_device), durability: Arc::clone(&durability.tags) };
    let crashed = !superblock.clean;
    let found = read_map(&area, &info, crashed, options.force)?;
    let mut recovered = Recovered {
        crashed,
        bad_map_blocks: found.bad_blocks,
        regions: found.dirty.len() as u64,
        ..Recovered::default()
    };
    let tags = Tags::new(area.clone(), &info, options.cache);
    if adopted || writable && superblock.clean {
        superblock = Superblock { clean: false, sequence: superblock.sequence + 1, ..superblock };
        superblock.write(&*tag_device, &durability.tags)?;
    }
    let journal = match info.mode {
        Mode::Bitmap => None,
        Mode::Journal => {
            let home = Home { data: &*data, tags: &tags, durability: &durability };
            let (regions, force) = (&found.regions, options.force);
            let replay =
                Replay { data: home.data, tags: home.tags, info: &info, regions, force, lost: 0 };
            Some(open_journal(&area, replay, home, writable, &mut recovered)?)
        }
    };
    let unverified = !writable && !found.dirty.is_empty();
    let mut checked = Checked {
        limits: limits(&*data, &info),
        tagging: Tagging::new(&info),
        data,
        tag_device,
        info,
        tags,
        regions: found.regions,
        journal,
        durability,
        report: Report::default(),
        // A device that is dropped during its recovery must not be marked as closed.
        writable: false,
        unverified,
        laziness: Laziness { after: options.clean_after, most: options.most_dirty },
        cleaned: Mutex::new(Instant::now()),
        superblock: Mutex::new(superblock),
    };
    if writable && !found.dirty.is_empty() {
        retag_all(&checked, &found.dirty, options.force, &mut recovered)?;
    }
    checked.writable = writable;
    Ok((checked, recovered))
}

/// Reads the dirty map. Blocks that cannot be read are counted among the bad blocks.
fn read_map(area: &Area, info: &Info, crashed: bool, force: bool) -> Result<Found> {
    let mut refused = 0;
    let mut found = Regions::read(area, info, !crashed, &mut |error| {
        refused += 1;
        // A closed device does not need its map, so unreadable blocks of the map are accepted.
        if crashed && !force { Err(error.context(GIVE_UP)) } else { Ok(()) }
    })?;
    found.bad_blocks += refused;
    Ok(found)
}

/// Gives the sectors of dirty regions tags that match their data, and then clears the dirty map.
fn retag_all(
    checked: &Checked,
    dirty: &[u32],
    force: bool,
    recovered: &mut Recovered,
) -> Result<()> {
    for region in dirty {
        retag(checked, *region, force, recovered).context(|| "recover a dirty region")?;
    }
    checked.clean().context(|| "recover the dirty regions")
}

/// Opens the journal. The replay writes the data and tags of its records.
fn open_journal(
    area: &Area,
    mut replay: Replay<'_>,
    home: Home<'_>,
    writable: bool,
    recovered: &mut Recovered,
) -> Result<Journal> {
    let opened = Journal::open(area, replay.info, |extents, tuples, content| {
        if writable { replay.record(extents, tuples, content) } else { Err(needs_replay()) }
    });
    let (journal, replayed) = opened.context(|| "replay the integrity journal")?;
    (recovered.records, recovered.replayed) = (replayed.records, replayed.sectors);
    recovered.lost = replay.lost;
    if writable {
        journal.empty(home)?;
    }
    Ok(journal)
}

/// Compares the identity of the data device with the identity in the superblock. Returns true if the identities differ and the options
/// accept this.
fn adopt(info: &mut Info, options: &IntegrityOptions) -> Result<bool> {
    let (made_for, now) = (info.data_uuid, options.data_uuid);
    if now == [0; 16] || made_for == now {
        return Ok(false);
    }
    if options.force {
        info.data_uuid = now;
        return Ok(true);
    }
    if made_for == [0; 16] {
        return Ok(false);
    }
    Err(Error::invalid(
        "the tags were made for another data device: if this data device is a copy of that device, use ironmap integrity open --force",
    ))
}

fn check(data: &dyn Device, info: &Info) -> Result<()> {
    let size = data.size();
    if size < info.data_size {
        let corrupt = ErrorKind::Corrupt;
        return Err(Error::new(
            corrupt,
            format!(
                "the tags are for {} bytes of data, but the data device has {size}",
                info.data_size
            ),
        ));
    }
    Ok(())
}

fn limits(data: &dyn Device, info: &Info) -> Limits {
    let below = *data.limits();
    let interval = info.interval;
    let limits = Limits {
        logical_block: interval.max(below.logical_block),
        physical_block: interval.max(below.physical_block),
        max_transfer: (below.max_transfer / interval * interval).max(interval),
        stable_writes: true,
        rereads: true,
        poll: false,
        ..below
    };
    if info.mode == Mode::Bitmap {
        return limits;
    }
    let most = limits.max_transfer.min(Journal::most(info) as u32);
    // The journal contains a durable record of each completed write, so the write itself is durable.
    Limits {
        max_transfer: most,
        fua: true,
        through_flushes: ThroughFlushes::Never,
        volatile_cache: false,
        atomic_write: most,
        ..limits
    }
}
