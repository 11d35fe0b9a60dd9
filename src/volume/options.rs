//! Options for opening a volume.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Volume;
use crate::device::{CutShort, Device, Engine, FileId, Segmented};
use crate::error::{Context, Error, Result};
use crate::fs::{Clock, DeviceRange, FORMATS, Format, How, Rescue, uuid_text};
use crate::location::{Location, LocationOptions, Site, refuse_to_write};
use crate::setters::options;

/// Options for opening a volume. By default, a volume is opened only for reading. [`Volume::open`] uses the defaults.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    pub(super) engine: Engine,
    pub(super) write: bool,
    pub(super) clock: Clock,
    pub(super) no_load: bool,
    pub(super) superblock: Option<u64>,
    pub(super) truncated: bool,
    pub(super) cached: bool,
    pub(super) journal: Option<Location>,
    pub(super) realtime: Option<Location>,
    pub(super) commit: Duration,
    held: Option<FileId>,
}

impl VolumeOptions {
    /// Creates options for reading, with the best engine for the device.
    #[must_use]
    pub fn new() -> Self {
        Self {
            engine: Engine::default(),
            write: false,
            clock: Clock::default(),
            no_load: false,
            superblock: None,
            truncated: false,
            cached: false,
            journal: None,
            realtime: None,
            commit: Duration::from_secs(5),
            held: None,
        }
    }

    /// The value of [`LocationOptions::held`].
    #[doc(hidden)]
    #[must_use]
    pub fn held(mut self, held: Option<FileId>) -> Self {
        self.held = held;
        self
    }

    /// For volumes that are opened only for reading: selects a backup of the superblock. On ext4, `block` is the block of the file system
    /// that contains the backup, as in `e2fsck -b`. On XFS, it is the number of an allocation group. If the superblock is present but
    /// damaged, a backup is found without this option too.
    #[must_use]
    pub fn superblock(mut self, block: impl Into<Option<u64>>) -> Self {
        self.superblock = block.into();
        self
    }

    /// For volumes that are opened only for reading: the separate device of the journal, for a recovery of the journal in memory. Without
    /// this option, the device is found by its UUID in `/dev/disk/by-uuid`.
    #[must_use]
    pub fn journal(mut self, device: impl Into<Option<Location>>) -> Self {
        self.journal = device.into();
        self
    }

    /// For volumes that are opened only for reading: the device of the realtime files of an XFS volume. Without this device, realtime files
    /// are listed, but their data cannot be read.
    #[must_use]
    pub fn realtime(mut self, device: impl Into<Option<Location>>) -> Self {
        self.realtime = device.into();
        self
    }

    /// Opens the volume at a location. The location is a path, a text in the syntax of [`Location::parse`], or a [`Location`].
    ///
    /// # Errors
    /// `Busy` if another program uses the volume; `UnknownFormat`; `Unsupported` with the name of the feature; `Corrupt` with the block and
    /// the field; `InvalidInput` for an impossible location, or if the volume is opened for writing without its journal.
    pub fn open<L>(&self, location: L) -> Result<Volume>
    where
        L: TryInto<Location>,
        Error: From<L::Error>,
    {
        Volume::open_at(&location.try_into()?, self)
    }

    /// Opens the volume on a device that the caller has created, for example a device that injects faults. The volume uses the engine of
    /// this device.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_on(&self, device: Arc<dyn Device>) -> Result<Volume> {
        if self.no_load {
            refuse_to_write(self.write)?;
        }
        if self.write && (self.superblock.is_some() || self.truncated) {
            let what = "with --superblock or --truncated, a volume can be read but not written";
            return Err(Error::invalid(what));
        }
        if self.journal.is_some() && (self.write || self.no_load) {
            let what = "with a journal device, a volume can be read but not written, and --noload cannot be given";
            return Err(Error::invalid(what));
        }
        if self.realtime.is_some() && self.write {
            return Err(Error::invalid(
                "with a realtime device, a volume can be read but not written",
            ));
        }
        let mut others: Vec<(u64, Arc<dyn Device>)> = Vec::new();
        let mut faults = Vec::new();
        let mut join = |place: Option<Location>, start, name| -> Result<Option<DeviceRange>> {
            let Some(place) = place else { return Ok(None) };
            let opened = place.open(&LocationOptions::default()).context(|| name)?;
            let range = DeviceRange { start, len: opened.device.size() };
            others.push((start, opened.device));
            faults.extend(opened.faults.iter().map(|fault| format!("{name} {place}: {fault}")));
            Ok(Some(range))
        };
        let journal = join(self.journal_of(&*device), Segmented::JOURNAL, "journal device")?;
        let realtime = join(self.realtime.clone(), Segmented::REALTIME, "realtime device")?;
        let device = if self.truncated { Arc::new(CutShort::new(device)) } else { device };
        let device: Arc<dyn Device> = match others.is_empty() {
            true => device,
            false => Arc::new(Segmented::joined(device, others)),
        };
        let (superblock, no_journal) = (self.superblock, self.no_load);
        let how = match self.write {
            true => How::Write(self.clock),
            false => How::Rescue(Rescue { superblock, no_journal, journal, realtime }),
        };
        let mut volume = Volume::open_on(device, how)?;
        volume.faults.extend(faults);
        // The timer commits changes, so a file system that was opened only for reading gets no timer.
        if let (true, false, Some(writer)) = (self.write, self.commit.is_zero(), volume.fs.writer())
        {
            volume.timer = Some(writer.commit_in_time(self.commit)?);
        }
        Ok(volume)
    }

    /// Returns the device of the volume's journal. If the options name a device, returns this device. Otherwise, if the volume is opened
    /// only for reading, finds the device by its UUID. Returns `None` if no separate device is needed or found.
    fn journal_of(&self, volume: &dyn Device) -> Option<Location> {
        match &self.journal {
            Some(named) => Some(named.clone()),
            None if self.write || self.no_load => None,
            None => wanted_journal(volume),
        }
    }

    /// The options with which the volume's device is opened.
    #[doc(hidden)] // This function is public for programs that open the device themselves.
    #[must_use]
    pub fn location_options(&self) -> LocationOptions {
        let Self { engine, write, truncated, cached, held, .. } = *self;
        LocationOptions { engine, write, truncated, cached, held, ..LocationOptions::default() }
    }
}

options!(VolumeOptions {
    /// Whether the volume is opened for reading and writing. If its journal is recovered, the recovery is written to the device.
    write: bool,
    /// The engine that transfers file data.
    engine: Engine,
    /// The clock for the time stamps of changed files.
    clock: Clock,
    /// For volumes that are opened only for reading: whether the journal is ignored in every state. A [`Location::NoLoad`] has the same
    /// effect.
    no_load: bool,
    /// For volumes that are opened only for reading: whether the device may be shorter than the volume. Reads past the end of the device
    /// are I/O errors. Without this option, such a device is refused.
    truncated: bool,
    /// Whether metadata and small writes of an image file use the page cache: see [`LocationOptions::cached`].
    cached: bool,
    /// The time after which changes are committed without a sync. The default is five seconds. Zero means that only a sync commits.
    commit: Duration,
});

/// Returns the device of the journal that the volume needs for its recovery, or `None` if udev has not created a link to this device.
fn wanted_journal(volume: &dyn Device) -> Option<Location> {
    // The code ignores an error of reading the journal's UUID, because the open of the volume gets and reports the same error.
    let wanted = |format: &Format| format.wanted_journal?(volume).ok().flatten();
    let uuid = FORMATS.iter().find_map(wanted)?;
    let path = Path::new("/dev/disk/by-uuid").join(uuid_text(&uuid));
    path.exists().then(|| Location::Plain(Site::file(path)))
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self::new()
    }
}
