//! `ironmap resize`: makes a volume larger or smaller.

use std::io::Write;

use ironmap::location::{LocationOptions, Part};
use ironmap::{Engine, ErrorKind, Location, NewSize, ResizeOptions, Resized, Volume};
use ironmap_image::{Failure, Report};
use serde::Serialize;

use crate::interrupt;
use crate::output::print_json;
use crate::room::{Room, extend, set_len};
use crate::size::some;
use crate::target::{self, named};
use crate::terminal::{one_line, stdout};

/// Makes a volume larger or smaller, as resize2fs does
///
/// Without SIZE, the volume gets the size of the device or image. If SIZE is larger than an image file, the file is extended; if the volume
/// becomes smaller, the file is truncated. A last group that would contain hardly more than its own metadata is omitted, so the volume may
/// become smaller than SIZE. A volume that was not unmounted cleanly is recovered first.
///
/// The volume is checked first. To make a volume smaller, all data beyond the new end is moved. If some data cannot be moved, nothing is
/// written. After a power cut, the volume has either the old size or the new size; docs/SAFETY.md lists what e2fsck may find.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap resize disk.img 10G
  ironmap resize -P disk.img
  ironmap resize -M disk.img
  ironmap resize /dev/sdb1")]
pub(crate) struct Args {
    /// Make the volume as small as possible
    #[arg(short = 'M', long, conflicts_with = "size")]
    minimum: bool,
    /// Print the smallest possible SIZE, which -M would use, and change nothing
    #[arg(short = 'P', long, conflicts_with_all = ["size", "minimum"])]
    print_minimum: bool,
    /// Print the sizes as JSON
    #[arg(long)]
    json: bool,
    /// Print nothing
    #[arg(short, long, conflicts_with_all = ["json", "print_minimum"])]
    quiet: bool,
    /// A block device, an image, nbd://HOST/EXPORT, qcow2:IMAGE, IMAGE@OFFSET, IMAGE@pN, or integrity:DATA,TAGS
    #[arg(value_name = "VOLUME", value_parser = target::volume())]
    volume: Location,
    /// The size in bytes, with an optional K, M, G or T, or in sectors of 512 bytes with s; a plain number means bytes (in resize2fs: blocks)
    #[arg(value_parser = some)]
    size: Option<u64>,
}

pub(crate) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    report.context().check_changes(&args.volume)?;
    if args.print_minimum {
        return print_minimum(args, report);
    }
    let image = args.volume.whole_file();
    // The first signal is recorded. A second signal ends the program immediately, which is as safe as a power cut.
    interrupt::catch();
    let room = match (image, args.size) {
        (Some(image), Some(size)) => {
            check_whole(args, report)?;
            extend(image, size)?
        }
        _ => Room::Old,
    };
    let resized = match resize(args, &room, report) {
        Ok(resized) => resized,
        // After an error of the device, the volume may already have the new size, so its image must keep the new length.
        Err(failure) if failure.is_io() => return Err(failure),
        Err(failure) => {
            room.undo();
            return Err(failure);
        }
    };
    if let Some(image) = image.filter(|_| resized.blocks < resized.before) {
        let failed = |error| Failure::host(image.display(), error);
        if image.metadata().map_err(failed)?.is_file() {
            set_len(image, resized.blocks * u64::from(resized.block_size)).map_err(failed)?;
        }
    }
    print(args, &resized)
}

/// Refuses a volume that cannot be read. Such a volume is usually in a truncated image, and an extension of the image would hide the
/// truncation.
fn check_whole(args: &Args, report: &Report) -> Result<(), Failure> {
    let how = LocationOptions::new().engine(Engine::Psync);
    let opened =
        report.context().open_device(&args.volume, &how).map_err(|error| Failure::open(&error))?;
    let volume = Volume::on(opened.device);
    volume.map(drop).map_err(|error| Failure::open(&named(&args.volume, error)))
}

fn resize(args: &Args, room: &Room, report: &Report) -> Result<Resized, Failure> {
    let clock = report.context().clock()?;
    let size = match args.size {
        Some(bytes) => NewSize::Bytes(bytes),
        None if args.minimum => NewSize::Minimum,
        None => NewSize::Device,
    };
    let mut options = ResizeOptions::new().size(size);
    if let Room::Extended { from, .. } = room {
        options = options.zeros_from(*from);
    }
    let how = LocationOptions::new().engine(Engine::Psync).write(true);
    let opened =
        report.context().open_device(&args.volume, &how).map_err(|error| Failure::open(&error))?;
    let resized = ironmap::tools::resize(&opened.device, &options, clock).map_err(|error| {
        let named = |error| named(&args.volume, error);
        match error.kind() {
            ErrorKind::InvalidInput => match end_of(&args.volume) {
                Some((ends, more)) => {
                    Failure::usage(format_args!("{}: {ends}: {more}", named(error)))
                }
                None => Failure::usage(named(error)),
            },
            ErrorKind::NoSpace => Failure::new(named(error).to_string()),
            ErrorKind::Io(_) => Failure::at(&args.volume, &error),
            _ => Failure::open(&named(error)),
        }
    });
    let closed = opened.integrity.map_or(Ok(()), |integrity| integrity.device.close());
    let resized = resized?;
    closed.map_err(|error| Failure::at(&args.volume, &error))?;
    Ok(resized)
}

/// For a volume in a part of a disk or image: the limit of its size, and a way to raise the limit.
fn end_of(volume: &Location) -> Option<(&'static str, &'static str)> {
    match volume.data().part {
        Part::Partition(_) => {
            Some(("the partition ends there", "grow the partition with sfdisk or growpart"))
        }
        Part::Offset(_) => Some((
            "the partition or the disk ends there",
            "if the disk continues, name a longer range with @OFFSET+LENGTH",
        )),
        Part::Range { .. } => {
            Some(("the range ends there", "if the disk continues, name a larger LENGTH"))
        }
        _ => None,
    }
}

fn print_minimum(args: &Args, report: &Report) -> Result<(), Failure> {
    let how = LocationOptions::new().engine(Engine::Psync);
    let opened =
        report.context().open_device(&args.volume, &how).map_err(|error| Failure::open(&error))?;
    let failed = |error| Failure::open(&named(&args.volume, error));
    let Resized { block_size, before, blocks, .. } =
        ironmap::tools::smallest_size(&opened.device).map_err(failed)?;
    if args.json {
        return print_json(&Json { block_size, blocks_before: before, blocks });
    }
    let (mut out, bytes) = (stdout(), blocks * u64::from(block_size));
    let volume = one_line(&args.volume.to_string());
    writeln!(
        out,
        "{volume}: the minimum is {blocks} blocks of {block_size} bytes, {bytes} bytes; the volume has {before} blocks"
    )?;
    Ok(out.flush()?)
}

#[derive(Serialize)]
struct Json {
    block_size: u32,
    blocks_before: u64,
    blocks: u64,
}

fn print(args: &Args, resized: &Resized) -> Result<(), Failure> {
    let Resized { block_size, before, blocks, .. } = *resized;
    if args.json {
        return print_json(&Json { block_size, blocks_before: before, blocks });
    }
    if !args.quiet {
        let mut out = stdout();
        let volume = one_line(&args.volume.to_string());
        if blocks == before {
            let (ends, _) = end_of(&args.volume).unwrap_or_default();
            let colon = if ends.is_empty() { "" } else { ": " };
            writeln!(
                out,
                "{volume}: {blocks} blocks of {block_size} bytes, unchanged{colon}{ends}"
            )?;
        } else {
            writeln!(
                out,
                "{volume}: {blocks} blocks of {block_size} bytes, changed from {before} blocks"
            )?;
        }
        out.flush()?;
    }
    Ok(())
}
