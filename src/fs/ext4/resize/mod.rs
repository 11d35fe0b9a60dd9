//! Growing and shrinking an unmounted volume, as resize2fs does.
//!
//! All decisions are made in memory before the first write: first the numbers of the new volume ([`shape`]), then every changed block
//! ([`edits`]). Then the blocks are written, in an order that a power failure may interrupt at any point ([`commit`]). A volume shrinks
//! in steps. All steps are first made on a device that keeps its changes in memory ([`Dry`]), and the result is checked there.
//!
//! The writes of a step:
//!
//! 1. Write blocks that are free in the old volume: new bitmaps and tables, and copies of blocks that move.
//! 2. Write blocks that are in use in both volumes. If the volume has a journal with enough room, they are written in one transaction.
//!    Otherwise they are written in the order of their [ranks](edits::Rank), while the superblock marks the volume as unchecked.
//! 3. Write the superblock, and then the backups. The superblock's single sector decides whether this is the old or the new volume.

mod bitmaps;
mod commit;
mod edits;
mod grow;
mod inodes;
mod moves;
mod names;
mod numbers;
mod plan;
mod resize_inode;
mod scan;
mod shape;
mod shrink;

use std::cmp::Ordering;
use std::sync::Arc;

use zerocopy::FromBytes;

use self::shape::Shape;
use super::disk::superblock::{RawSuperblock, STATE_VALID};
use super::mmp_hold::MmpHold;
use super::passed_over::PassedOver;
use super::superblock::Superblock;
use super::{Compat, Ext4, Incompat, RoCompat, mmp};
use crate::device::{Device, Dry};
use crate::error::{Error, Place, Result};
use crate::events::Events;
use crate::fs::Clock;
use crate::setters::setters;

const PLACE: Place = Place::new("superblock");
/// A size that is derived from the device's size is rounded down to whole pages, as in mke2fs, because a page cache cannot access bytes past the last
/// whole page.
const PAGE: u64 = 4096;

/// The new size of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NewSize {
    /// The size of the whole device.
    #[default]
    Device,
    /// This number of bytes, rounded down to whole blocks.
    Bytes(u64),
    /// The smallest size that holds all data.
    Minimum,
}

/// The options of a resize.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ResizeOptions {
    /// The new size.
    pub size: NewSize,
    /// The first byte from which the device reads as zeros, like a newly extended image. Nothing is zeroed from there on.
    pub zeros_from: Option<u64>,
}

impl ResizeOptions {
    /// A resize to the size of the device.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

setters!(ResizeOptions { size: NewSize, zeros_from: u64 });

/// The sizes of a volume before and after a resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resized {
    /// The block size in bytes.
    pub block_size: u32,
    /// The number of blocks before the resize.
    pub before: u64,
    /// The number of blocks after the resize.
    pub blocks: u64,
}

/// Resizes the volume on a device that is open for writing. A volume that needs recovery is recovered first, which counts as a mount.
///
/// A last group that is hardly larger than its metadata is omitted, so the new size may be smaller than requested.
///
/// # Errors
/// `InvalidInput` for invalid sizes; `Unsupported` with the name of the feature; `NoSpace` with the smallest possible size; `Corrupt` for a volume
/// that needs e2fsck first; the errors of [`Ext4::open_for_writing`]. Until the first write the device is unchanged, except for a recovery.
pub(crate) fn resize(
    device: &Arc<dyn Device>,
    options: &ResizeOptions,
    clock: Clock,
) -> Result<Resized> {
    let volume = Volume::open(device, clock)?;
    let sb = &volume.found.superblock;
    let (shift, before) = (sb.block_size.shift(), sb.blocks_count);
    let blocks = match options.size {
        NewSize::Device => (device.size() / PAGE * PAGE) >> shift,
        NewSize::Bytes(bytes) => bytes >> shift,
        NewSize::Minimum => {
            let blocks = shrink::to_minimum(volume)?;
            return Ok(Resized { block_size: 1 << shift, before, blocks });
        }
    };
    if blocks > device.size() >> shift {
        let has = device.size();
        return Err(Error::invalid(format!(
            "a volume of {} bytes does not fit on a device that has {has}",
            blocks << shift
        )));
    }
    let shape = Shape::new(&volume.raw, sb, blocks, clock)?;
    let blocks = shape.sb.blocks_count;
    match blocks.cmp(&before) {
        Ordering::Equal => {}
        Ordering::Greater => {
            volume.check_sound()?;
            grow::grow(&volume, shape, options.zeros_from)?;
        }
        Ordering::Less => shrink::shrink(volume, &shape)?,
    }
    Ok(Resized { block_size: 1 << shift, before, blocks })
}

/// The smallest size in blocks that [`resize`] can give the volume, as with [`NewSize::Minimum`]. Nothing is written.
///
/// # Errors
/// The errors of [`resize`].
pub(crate) fn minimum(device: &Arc<dyn Device>) -> Result<Resized> {
    let sb = Ext4::read_superblock(&**device)?;
    check_features(&sb)?;
    let (block_size, before) = (sb.block_size, sb.blocks_count);
    let volume = Volume::dry(Dry::over(Arc::clone(device), block_size), Clock::System)?;
    let blocks = shrink::least(volume)?;
    Ok(Resized { block_size: 1 << block_size.shift(), before, blocks })
}

/// A volume during a resize. It is in its original state, and its journal is empty.
struct Volume {
    found: Arc<Ext4>,
    raw: RawSuperblock,
    /// The multiple mount protection, while this node holds it.
    held: Option<MmpHold>,
    /// The device that keeps changes of the volume in memory, for a rehearsal.
    dry: Option<Arc<Dry>>,
    clock: Clock,
}

impl Volume {
    /// Opens the volume on a device that keeps changes in memory, and recovers it there.
    fn dry(dry: Dry, clock: Clock) -> Result<Self> {
        let dry = Arc::new(dry);
        let device: Arc<dyn Device> = dry.clone();
        let events = Arc::new(Events::of(&device));
        recover(&device, &events, clock)?;
        check_state(&device)?;
        let sb = Ext4::read_superblock(&*device)?;
        let found = Ext4::open_held(Arc::clone(&device), sb, &events, PassedOver::default(), None)?;
        found.check_writable()?;
        Ok(Self { found, raw: read(&device)?, held: None, dry: Some(dry), clock })
    }

    /// Opens the volume a second time, with changes that stay in memory.
    fn rehearsal(&self) -> Result<Self> {
        let size = self.found.superblock.block_size;
        Self::dry(Dry::over(Arc::clone(self.device()), size), self.clock)
    }

    fn open(device: &Arc<dyn Device>, clock: Clock) -> Result<Self> {
        let events = Arc::new(Events::of(device));
        if !device.is_writable() {
            return Err(Error::read_only("the device was opened read-only"));
        }
        let sb = Ext4::read_superblock(&**device)?;
        check_features(&sb)?;
        recover(device, &events, clock)?;
        mmp::check(&**device, &sb, mmp::Purpose::Write)?;
        // Another node may have changed the volume during the wait for it.
        check_state(device)?;
        let held = MmpHold::take(device, &Ext4::read_superblock(&**device)?, &events, clock)?;
        // Another node may have written until it detected this node.
        check_state(device)?;
        let sb = Ext4::read_superblock(&**device)?;
        check_features(&sb)?;
        let found = Ext4::open_held(Arc::clone(device), sb, &events, PassedOver::default(), None)?;
        found.check_writable()?;
        Ok(Self { found, raw: read(device)?, held, dry: None, clock })
    }

    /// Reads the volume again.
    fn reopen(self) -> Result<Self> {
        let device = Arc::clone(self.device());
        let events = Arc::new(Events::of(&device));
        let sb = Ext4::read_superblock(&*device)?;
        let found = Ext4::open_held(Arc::clone(&device), sb, &events, PassedOver::default(), None)?;
        Ok(Self { found, raw: read(&device)?, ..self })
    }

    fn device(&self) -> &Arc<dyn Device> {
        self.found.blocks.device()
    }

    /// Whether this node still holds the volume.
    fn check_held(&self) -> Result<()> {
        self.held.as_ref().map_or(Ok(()), MmpHold::check)
    }
}

fn read(device: &Arc<dyn Device>) -> Result<RawSuperblock> {
    let (at, len) = Superblock::RANGE;
    let mut bytes = vec![0; len];
    device.read_exact_at(&mut bytes, at)?;
    RawSuperblock::read_from_bytes(&bytes).map_err(|_| PLACE.corrupt("it is cut short"))
}

/// Recovers a volume if needed, and frees its orphans.
fn recover(device: &Arc<dyn Device>, events: &Arc<Events>, clock: Clock) -> Result<()> {
    let sb = Ext4::read_superblock(&**device)?;
    let orphans =
        read(device)?.s_last_orphan.get() != 0 || sb.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
    if sb.incompat.contains(Incompat::RECOVER) || orphans {
        Ext4::open_for_writing(Arc::clone(device), events, clock)?.end_writing()?;
    }
    Ok(())
}

/// Refuses a volume that e2fsck must check first.
fn check_state(device: &Arc<dyn Device>) -> Result<()> {
    let sb = Ext4::read_superblock(&**device)?;
    if sb.errors.detected {
        return Err(PLACE.field("s_state").corrupt("errors are recorded: run e2fsck -f first"));
    }
    if sb.incompat.contains(Incompat::RECOVER) || read(device)?.s_state.get() & STATE_VALID == 0 {
        let what = "the volume was not unmounted, or a resize did not end: run e2fsck -f first";
        return Err(PLACE.field("s_state").corrupt(what));
    }
    Ok(())
}

/// Refuses layouts for which the positions of metadata are not supported.
fn check_features(sb: &Superblock) -> Result<()> {
    if sb.compat.contains(Compat::RESIZE_INODE) {
        if sb.incompat.contains(Incompat::META_BG) {
            return Err(Error::unsupported("resize_inode together with meta_bg: use resize2fs"));
        }
        if sb.cluster_blocks > 1 && sb.block_size.bytes() == 1024 {
            let what = "resize_inode on a volume with bigalloc and blocks of 1 KiB: use resize2fs";
            return Err(Error::unsupported(what));
        }
    }
    if sb.compat.contains(Compat::SPARSE_SUPER2) && sb.incompat.contains(Incompat::META_BG) {
        // If a group got a backup, its descriptors would have to move by one block.
        return Err(Error::unsupported("sparse_super2 together with meta_bg: use resize2fs"));
    }
    Ok(())
}
