//! Puts an integrity device between a fixture's device and the volume. The name of the integrity device is `integrity:DATA,TAGS`.

use std::path::Path;

use clap::ValueEnum;
use ironmap::device::{BlockFile, OpenMode, OpenedEngine, open_engine};
use ironmap::integrity::{FormatOptions, Mode, format};
use ironmap::location::INTEGRITY;
use ironmap::{Engine, Result};

/// The layer between the volume and the fixture's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Beneath {
    /// An integrity device with a map of dirty regions.
    Integrity,
    /// An integrity device with a journal. The journal makes each write atomic.
    IntegrityJournal,
}

/// The smallest protection interval and the default protection interval, in bytes. Each protection interval has its own guard tag.
const SECTORS: (u64, u64) = (512, 4096);

impl Beneath {
    /// Makes an integrity device from `data` and `tags`. `block` is the length of the bench's requests in bytes. Returns the name of the
    /// integrity device.
    pub(super) fn format(self, data: &Path, tags: &Path, block: u64) -> Result<String> {
        let mode = match self {
            Self::Integrity => Mode::Bitmap,
            Self::IntegrityJournal => Mode::Journal,
        };
        let (least, usual) = SECTORS;
        let interval = if block.is_multiple_of(usual) { usual } else { least } as u32;
        let options = FormatOptions::new().interval(interval).mode(mode).force(true);
        let (data_device, tag_device) = (open(data)?, open(tags)?);
        let mut progress = |_, _| {};
        format(&data_device.device, Some(&tag_device.device), &options, &mut progress)?;
        Ok(format!("{INTEGRITY}{},{}", data.display(), tags.display()))
    }
}

fn open(path: &Path) -> Result<OpenedEngine> {
    let mode = OpenMode { write: true, ..OpenMode::default() };
    open_engine(BlockFile::open(path, &mode)?, Engine::Psync)
}
