//! `ironmap resize`: a volume becomes larger or smaller.

use std::io::Write;

use ironmap::fs::Clock;
use ironmap::location::{LocationOptions, Part, Site};
use ironmap::{Engine, ErrorKind, Location, NewSize, ResizeOptions, Resized, Volume};
use serde::Serialize;

use crate::cmd::mkfs::room::{Room, extend, set_len};
use crate::epoch::{self, source_date};
use crate::failure::Failure;
use crate::output::{print_json, stdout};
use crate::size::some;
use crate::source::check_changes;
use crate::target::{self, named};

/// Makes a volume larger or smaller, as resize2fs
///
/// Without SIZE the volume gets the whole device or image. An image file is extended where SIZE is larger, and cut when its volume has
/// become smaller. A last group that is hardly larger than its own metadata is left out: the volume may get less than SIZE. A volume
/// that was not unmounted cleanly is recovered first.
///
/// A volume is checked before it becomes smaller. Then everything beyond its new end moves: nothing is written unless all of it can. A power
/// cut leaves the old size or the new one; docs/SAFETY.md says what e2fsck may find.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap resize disk.img 10G
  ironmap resize -P disk.img
  ironmap resize -M disk.img
  ironmap resize /dev/sdb1")]
pub(crate) struct Args {
    /// Make the volume as small as it can be
    #[arg(short = 'M', long, conflicts_with = "size")]
    minimum: bool,
    /// Print the smallest size that SIZE can be, and change nothing; -M may go below it, in several steps
    #[arg(short = 'P', long, conflicts_with_all = ["size", "minimum"])]
    print_minimum: bool,
    /// Print the sizes as JSON
    #[arg(long)]
    json: bool,
    /// Print nothing
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// A block device, an image, IMAGE@OFFSET, IMAGE@pN, or integrity:DATA,TAGS
    #[arg(value_name = "VOLUME", value_parser = target::volume())]
    volume: Location,
    /// Bytes of the volume, with an optional K, M, G or T
    #[arg(value_parser = some)]
    size: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    check_changes(&args.volume)?;
    if args.print_minimum {
        return print_minimum(args);
    }
    let image = args.image();
    let room = match (image, args.size) {
        (Some(site), Some(size)) => extend(&site.path, size)?,
        _ => Room::Old,
    };
    let resized = match resize(args, &room) {
        Ok(resized) => resized,
        Err(failure) => {
            room.undo(&args.volume.data().path);
            return Err(failure);
        }
    };
    if let Some(site) = image.filter(|_| resized.blocks < resized.before) {
        let failed = |error| Failure::host(site.path.display(), error);
        if site.path.metadata().map_err(failed)?.is_file() {
            set_len(&site.path, resized.blocks * u64::from(resized.block_size)).map_err(failed)?;
        }
    }
    print(args, &resized)
}

fn resize(args: &Args, room: &Room) -> Result<Resized, Failure> {
    let clock = source_date()?.map_or(Clock::System, |seconds| Clock::Fixed(epoch::at(seconds)));
    let mut options = ResizeOptions::default();
    options.size = match args.size {
        Some(bytes) => NewSize::Bytes(bytes),
        None if args.minimum => NewSize::Minimum,
        None => NewSize::Device,
    };
    if let Room::Extended(from) = room {
        options.zeros_from = Some(*from);
    }
    let how = LocationOptions::new().engine(Engine::Psync).write(true);
    let opened = args.volume.open(&how).map_err(|error| Failure::open(&error))?;
    let resized = Volume::resize(&opened.device, &options, clock).map_err(|error| {
        let asked = error.kind() == ErrorKind::InvalidInput;
        let failed = error.kind() == ErrorKind::NoSpace;
        let error = named(&args.volume, error);
        match (asked, failed) {
            (true, _) => Failure::usage(&error),
            (_, true) => Failure::new(error.to_string()),
            _ => Failure::open(&error),
        }
    });
    let closed = opened.integrity.map_or(Ok(()), |integrity| integrity.device.close());
    let resized = resized?;
    closed.map_err(|error| Failure::at(&args.volume, &error))?;
    Ok(resized)
}

fn print_minimum(args: &Args) -> Result<(), Failure> {
    let how = LocationOptions::new().engine(Engine::Psync);
    let opened = args.volume.open(&how).map_err(|error| Failure::open(&error))?;
    let failed = |error| Failure::open(&named(&args.volume, error));
    let Resized { block_size, before, blocks, .. } =
        Volume::smallest_size(&opened.device).map_err(failed)?;
    if args.json {
        return print_json(&Json { block_size, blocks_before: before, blocks });
    }
    let (mut out, volume, bytes) = (stdout(), &args.volume, blocks * u64::from(block_size));
    writeln!(
        out,
        "{volume}: {blocks} blocks of {block_size} bytes at least, {bytes} bytes; {before} blocks now"
    )?;
    Ok(out.flush()?)
}

impl Args {
    /// The file that holds the volume and nothing else, if it is a file.
    fn image(&self) -> Option<&Site> {
        match &self.volume {
            Location::Plain(site) if site.part == Part::Whole => Some(site),
            _ => None,
        }
    }
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
        let volume = &args.volume;
        writeln!(out, "{volume}: {blocks} blocks of {block_size} bytes, {before} before")?;
        out.flush()?;
    }
    Ok(())
}
