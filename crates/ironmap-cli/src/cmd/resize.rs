//! `ironmap resize`: makes a volume larger or smaller.

use std::io::Write;

use ironmap::location::{LocationOptions, Part};
use ironmap::{Engine, ErrorKind, Location, NewSize, Resized};
use ironmap_image::failure::named;
use ironmap_image::resize::resize;
use ironmap_image::{Failure, Report};
use serde::Serialize;

use crate::interrupt;
use crate::output::print_json;
use crate::size::some;
use crate::target;
use crate::terminal::{one_line, stdout};

/// Makes a volume larger or smaller, as resize2fs does
///
/// Without SIZE, the volume gets the size of the device or image. If SIZE is larger than an image file, the file is extended. If the volume
/// becomes smaller, the file is truncated. If the last group would contain hardly more than its own metadata, this group is omitted. The
/// volume is then smaller than SIZE. A volume that was not unmounted cleanly is recovered first.
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
    /// The size in bytes, with an optional K, M, G or T, or in sectors of 512 bytes with s. A plain number means bytes (in resize2fs:
    /// blocks)
    #[arg(value_parser = some)]
    size: Option<u64>,
}

pub(crate) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    report.context().check_changes(&args.volume)?;
    if args.print_minimum {
        return print_minimum(args, report);
    }
    // The first signal is recorded. A second signal ends the program immediately. This is as safe as a power cut.
    interrupt::catch();
    let size = match args.size {
        Some(bytes) => NewSize::Bytes(bytes),
        None if args.minimum => NewSize::Minimum,
        None => NewSize::Device,
    };
    let resized = resize(&args.volume, size, report).map_err(|failure| {
        match end_of(&args.volume).filter(|_| failure.is_of(ErrorKind::InvalidInput)) {
            Some((ends, more)) => failure.because(format_args!("{ends}: {more}")),
            None => failure,
        }
    })?;
    print(args, &resized)
}

/// Returns the maximum size of a volume in a part of a disk or image, and a way to raise this maximum.
fn end_of(volume: &Location) -> Option<(&'static str, &'static str)> {
    match volume.data().part {
        Part::Partition(_) => {
            Some(("the partition has no more space", "grow the partition with sfdisk or growpart"))
        }
        Part::Offset(_) => Some((
            "the partition or the disk has no more space",
            "if the disk has space after this range, name a longer range with @OFFSET+LENGTH",
        )),
        Part::Range { .. } => Some((
            "the range has no more space",
            "if the disk has space after this range, name a larger LENGTH",
        )),
        Part::Logical { .. } => {
            Some(("the logical volume has no more space", "grow the logical volume with lvextend"))
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
