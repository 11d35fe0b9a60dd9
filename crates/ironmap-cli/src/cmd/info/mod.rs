//! `ironmap info`: shows a volume and the device below it.

mod device;
mod ext4;
mod once;
mod stack;
mod xfs;

use std::io::{self, Write};

use ironmap::Location;
use ironmap::device::image::describe;
use ironmap::location::Medium;
use ironmap_image::source::Source;
use ironmap_image::{Failure, Report};

use self::stack::Disk;
use crate::target;
use crate::terminal::one_line;

/// Shows a volume's features, geometry and state, and its device's capabilities; or the layers of a disk
///
/// For a disk with partitions or logical volumes, shows each of them with its content and with the VOLUME to type for it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap info /dev/sdb1
  ironmap info disk.img
  ironmap info --json disk.img@p1 | jq .features")]
pub(crate) struct Args {
    /// Write one JSON object
    #[arg(long)]
    json: bool,
    /// The volume
    #[arg(value_name = "VOLUME", value_parser = target::volume())]
    volume: Location,
}

impl Args {
    /// Returns arguments for showing a volume as text. Another command uses them after it has changed the volume.
    pub(crate) fn of(volume: &Location) -> Self {
        Self { json: false, volume: volume.clone() }
    }
}

pub(crate) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    let layers = |disk: Disk| disk.layers(report);
    // The disk is closed before the volume is opened, because an open disk is locked.
    let disk = Disk::open(&args.volume, report).filter(|disk| !disk.has_volume());
    if let Some(layers) = disk.and_then(layers) {
        return layers.print(args.json);
    }
    let source = match Source::open(&args.volume, report.context()) {
        Ok(source) => source,
        Err(failure) => {
            let layers = Disk::open(&args.volume, report).and_then(layers).ok_or(failure)?;
            return layers.print(args.json);
        }
    };
    match source.volume.xfs() {
        Some(fs) => xfs::run(args, &source, fs),
        None => ext4::run(args, &source, source.ext4()?),
    }
}

/// The reason why the device or image below a volume cannot be written. `None` if it can be written.
fn refused(source: &Source, location: &Location) -> Option<String> {
    let image = match &location.data().medium {
        Medium::Image(address) => describe(address).ok().and_then(|image| image.read_only),
        _ => None,
    };
    let any = || "the device is read-only".to_owned();
    source.volume.device().limits().read_only.then(|| image.unwrap_or_else(any))
}

/// Writes a labelled line of the text output.
fn line(out: &mut impl Write, label: &str, text: &str) -> io::Result<()> {
    writeln!(out, "{:<16}{}", format!("{label}:"), one_line(text))
}
