//! `ironmap sync`: recovers a volume, so that its journal is empty.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, TypedValueParser};
use ironmap::Location;
use ironmap_image::volumes::Volumes;
use ironmap_image::{Failure, Report};

use crate::target;

/// Recovers a volume that was not unmounted cleanly, and leaves it clean
///
/// The journal is recovered to the device, files that were deleted while open are freed, and the device's cache is flushed. Every other
/// command that changes a volume does the same. The argument can also be the directory of a mount that ironmap serves. In this case, all
/// writes become durable, including writes in the kernel's cache. syncfs and sync -f do not make these writes durable.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap sync disk.img
  ironmap sync /dev/sdb1 /dev/sdb2
  ironmap sync /mnt")]
pub(crate) struct Args {
    /// The volumes, or directories at which volumes are mounted
    #[arg(value_name = "VOLUME[:/PATH]", value_parser = volume(), required = true)]
    volumes: Vec<Location>,
}

/// The parser of a volume, or of a path in a volume.
fn volume() -> impl TypedValueParser<Value = Location> {
    OsStringValueParser::new().try_map(|text: OsString| target::parse_volume_of(&text))
}

/// Syncs the volume that `ironmap mount` serves at this directory. Returns `None` if `ironmap mount` serves no volume there.
#[cfg(feature = "fuse")]
fn sync_mounted(location: &Location) -> Option<Result<(), Failure>> {
    let path = location.data().path()?;
    crate::mount::is_mounted(path).then(|| crate::mount::sync(path))
}

#[cfg(not(feature = "fuse"))]
fn sync_mounted(_: &Location) -> Option<Result<(), Failure>> {
    None
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    Volumes::change(report, |volumes, report| {
        for location in &args.volumes {
            let of_mount = sync_mounted(location);
            let synced =
                of_mount.unwrap_or_else(|| volumes.open(location).and_then(|source| source.sync()));
            if let Err(failure) = synced {
                report.error(&failure);
            }
        }
        Ok(())
    })
}
