//! What a fixture puts beneath its volume: an integrity device, named `integrity:DATA,TAGS`.

use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use ironmap::device::{BlockFile, Device, OpenMode, Opened, open_engine};
use ironmap::fs::ext4::Clock;
use ironmap::integrity::{FormatOptions, Integrity, Mode, format};
use ironmap::{Engine, Error, Location, OpenOptions, Result, Volume};

/// What stands between the volume and the fixture's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Beneath {
    /// An integrity device with a map of dirty regions.
    Integrity,
    /// The same with a journal: writes are not torn.
    IntegrityJournal,
}

/// How the name of a volume over an integrity device begins.
pub(super) const PREFIX: &str = "integrity:";

/// The smallest sector that has a tag of its own, and the usual one.
const SECTORS: (u64, u64) = (512, 4096);

impl Beneath {
    /// Tags what is on a device, for requests of so many bytes; the name of what can be opened then.
    pub(super) fn format(self, data: &Path, tags: &Path, block: u64) -> Result<String> {
        let mode = match self {
            Self::Integrity => Mode::Bitmap,
            Self::IntegrityJournal => Mode::Journal,
        };
        let (least, usual) = SECTORS;
        let interval = if block.is_multiple_of(usual) { usual } else { least } as u32;
        let options = FormatOptions { interval, mode, force: true, ..FormatOptions::default() };
        let (data_device, tag_device) = (open(data, Engine::Psync)?, open(tags, Engine::Psync)?);
        let mut progress = |_, _| {};
        format(&data_device.device, Some(&tag_device.device), &options, &mut progress)?;
        Ok(format!("{PREFIX}{},{}", data.display(), tags.display()))
    }
}

fn open(path: &Path, engine: Engine) -> Result<Opened> {
    let mode = OpenMode { write: true, ..OpenMode::default() };
    open_engine(BlockFile::open(path, &mode)?, engine)
}

/// A volume, and the engine and the notices of the device that its requests go to in the end.
pub(super) fn open_volume(
    name: &str,
    engine: Engine,
    write: bool,
) -> Result<(Volume, Engine, Vec<String>)> {
    let Some(devices) = name.strip_prefix(PREFIX) else {
        let options = OpenOptions { engine, write, ..OpenOptions::default() };
        let volume = Volume::open(&name.parse::<Location>()?, &options)?;
        let (engine, notices) = (volume.engine(), volume.notices().to_vec());
        return Ok((volume, engine, notices));
    };
    let (data, tags) = devices
        .split_once(',')
        .ok_or_else(|| Error::invalid(format!("{name}: want {PREFIX}DATA,TAGS")))?;
    let Opened { device, engine, notices } = open(data.as_ref(), engine)?;
    let tags = open(tags.as_ref(), Engine::Psync)?.device;
    let device: Arc<dyn Device> = Arc::new(Integrity::open(device, Some(tags))?.device);
    let volume =
        if write { Volume::writable_on(device, Clock::default()) } else { Volume::on(device) }?;
    Ok((volume, engine, notices))
}
