//! Growing and shrinking an unmounted volume, as resize2fs does.
//!
//! All decisions are made in memory before the first write. [`shape`] computes the geometry of the new volume, and [`edits`] the new
//! content of every changed block. Then [`commit`] writes the blocks. The order of the writes ensures that a power failure at any point
//! does no damage. A volume shrinks in several steps. All steps are first made on a device that stores its changes in memory ([`Dry`]). The
//! result of these steps is checked before the steps are made on the real device.
//!
//! The writes of a step:
//!
//! 1. Write blocks that are free in the old volume: new bitmaps and inode tables, and copies of blocks that move.
//! 2. Write blocks that are in use in the old and in the new volume. If the volume has a journal with enough space, these blocks are
//!    written in one transaction. Otherwise they are written in the order of their [ranks](edits::Rank), while the superblock marks the
//!    volume as not clean.
//! 3. Write the superblock, and then its backups. The device contains the old volume before the write of the superblock's sector, and the
//!    new volume after that write.

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
/// The page size, in bytes. If the volume gets the size of the device, this size is rounded down to complete pages, as in mke2fs. A page
/// cache could not access an incomplete page at the end of the volume.
const PAGE: u64 = 4096;

/// The new size of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NewSize {
    /// The size of the device.
    #[default]
    Device,
    /// The given number of bytes, rounded down to a multiple of the block size.
    Bytes(u64),
    /// The smallest size into which all data fit.
    Minimum,
}

/// The options of a resize.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ResizeOptions {
    /// The new size.
    pub size: NewSize,
    /// The byte from which the device reads as zeros, for example in an image that was extended. Nothing is zeroed from this byte on.
    pub zeros_from: Option<u64>,
}

impl ResizeOptions {
    /// Options for a resize to the size of the device.
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

/// Resizes the volume on a device that is open for writing. If the volume needs recovery, it is recovered first. The recovery increments
/// the volume's mount count.
///
/// The last group is omitted if its own metadata would leave hardly any space for files. The new size may therefore be smaller than
/// requested.
///
/// # Errors
/// `InvalidInput` for invalid sizes; `Unsupported` with the name of the feature; `NoSpace` with the smallest possible size; `Corrupt` for a
/// volume that e2fsck must repair first; the errors of [`Ext4::open_for_writing`]. Only the recovery may have written to the device before
/// one of these errors.
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
            "a volume of {} bytes does not fit on a device of {has} bytes",
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

/// The smallest size to which [`resize`] can shrink the volume with [`NewSize::Minimum`]. Nothing is written to the device.
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

/// A volume in its state before the resize. The journal is empty.
struct Volume {
    found: Arc<Ext4>,
    raw: RawSuperblock,
    /// The claim of this computer on a volume with multiple mount protection: while the claim is valid, no other computer uses the volume.
    /// `None` in a rehearsal, and on a volume without this protection.
    held: Option<MmpHold>,
    /// The device that stores changes in memory, if the resize of this volume is a rehearsal.
    dry: Option<Arc<Dry>>,
    clock: Clock,
}

impl Volume {
    /// Opens the volume on a device that stores changes in memory, and recovers the volume there.
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

    /// Opens the volume a second time. Changes of the second volume stay in memory.
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
        // Another computer may have changed the volume while `mmp::check` waited. The state is therefore checked again.
        check_state(device)?;
        let held = MmpHold::take(device, &Ext4::read_superblock(&**device)?, &events, clock)?;
        // Another computer may have written to the volume before it noticed that this computer has claimed the volume. The state is
        // therefore checked again.
        check_state(device)?;
        let sb = Ext4::read_superblock(&**device)?;
        check_features(&sb)?;
        let found = Ext4::open_held(Arc::clone(device), sb, &events, PassedOver::default(), None)?;
        found.check_writable()?;
        Ok(Self { found, raw: read(device)?, held, dry: None, clock })
    }

    /// Opens the volume again, after changes on the device.
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

    /// Checks that the claim of this computer on the volume is still valid, if the volume has multiple mount protection.
    fn check_held(&self) -> Result<()> {
        self.held.as_ref().map_or(Ok(()), MmpHold::check)
    }
}

fn read(device: &Arc<dyn Device>) -> Result<RawSuperblock> {
    let (at, len) = Superblock::RANGE;
    let mut bytes = vec![0; len];
    device.read_exact_at(&mut bytes, at)?;
    RawSuperblock::read_from_bytes(&bytes).map_err(|_| PLACE.corrupt("the superblock is truncated"))
}

/// Recovers a volume if its journal needs recovery, and frees its orphans.
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
        return Err(PLACE
            .field("s_state")
            .corrupt("the superblock records errors: run e2fsck -f first"));
    }
    if sb.incompat.contains(Incompat::RECOVER) || read(device)?.s_state.get() & STATE_VALID == 0 {
        let what = "the volume was not unmounted, or a resize was interrupted: run e2fsck -f first";
        return Err(PLACE.field("s_state").corrupt(what));
    }
    Ok(())
}

/// Refuses layouts for which the positions of metadata are not supported.
fn check_features(sb: &Superblock) -> Result<()> {
    if sb.compat.contains(Compat::RESIZE_INODE) {
        if sb.incompat.contains(Incompat::META_BG) {
            return Err(Error::unsupported(
                "resize_inode together with meta_bg is not supported: use resize2fs",
            ));
        }
        if sb.cluster_blocks > 1 && sb.block_size.bytes() == 1024 {
            let what = "resize_inode together with bigalloc and blocks of 1 KiB is not supported: use resize2fs";
            return Err(Error::unsupported(what));
        }
    }
    if sb.compat.contains(Compat::SPARSE_SUPER2) && sb.incompat.contains(Incompat::META_BG) {
        // With sparse_super2, a group gets a backup when it becomes the last group. If the volume also has meta_bg, the backup would use
        // the position of the group's descriptor block, which would have to move by one block.
        return Err(Error::unsupported(
            "sparse_super2 together with meta_bg is not supported: use resize2fs",
        ));
    }
    Ok(())
}
