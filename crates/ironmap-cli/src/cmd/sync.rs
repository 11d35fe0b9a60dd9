//! `ironmap sync`: what a journal holds goes to its place.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, TypedValueParser};
use ironmap::Location;

use crate::failure::{Failure, Report};
use crate::target;
use crate::volumes::Volumes;

/// Recovers a volume that was not unmounted cleanly, and leaves it clean
///
/// Every command that changes a volume commits before it ends; this one does nothing else. The journal is recovered to the device, files
/// that were deleted while open go, and the device's cache is flushed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap sync disk.img
  ironmap sync /dev/sdb1 /dev/sdb2")]
pub(crate) struct Args {
    /// The volumes
    #[arg(value_name = "VOLUME[:/PATH]", value_parser = volume(), required = true)]
    volumes: Vec<Location>,
}

/// The parser of a volume, or of any file of it.
fn volume() -> impl TypedValueParser<Value = Location> {
    OsStringValueParser::new().try_map(|text: OsString| target::parse_volume_of(&text))
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    Volumes::change(report, |volumes, report| {
        for location in &args.volumes {
            let synced = volumes.open(location).and_then(|source| source.sync());
            if let Err(failure) = synced {
                report.error(&failure);
            }
        }
        Ok(())
    })
}
