//! `ironmap integrity format`: makes an integrity device.

use clap::{ArgAction, ValueEnum};
use ironmap::integrity::{self, FormatOptions, Mode, TailLoss, TupleKind};
use ironmap::location::Halves;
use ironmap::{Engine, ErrorKind, Location};
use ironmap_image::{Failure, Report, room};

use super::{Bar, Geometry, failed};
use crate::failure::{FORCED, hint_at, overwrite};
use crate::output::print_json;
use crate::size::size;
use crate::target;
use crate::terminal::{one_line, print_line};

/// Makes an integrity device: every sector gets a tag for its content
///
/// The content of DATA is kept, and TAGS is overwritten. Without TAGS, the tags are stored in the tail of DATA. This is refused if a file
/// system extends into the tail, or if the end of the file system is unknown. If TAGS has content, or the device is already an integrity
/// device, --force is needed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap integrity format disk.img,tags.img
  ironmap integrity format --mode journal --guard crc64 /dev/sdb,/dev/nvme0n1p3
  ironmap integrity format --generation /dev/sdb1")]
pub(super) struct Args {
    /// The number of bytes that a tag protects: 512 or 4K; by default 4K, or 512 if an ext4 on DATA has smaller blocks
    #[arg(long, value_name = "BYTES", value_parser = size)]
    interval: Option<u64>,
    /// The checksum: CRC16 of T10 DIF, or CRC64 of NVMe
    #[arg(long, value_enum, default_value = "crc16")]
    guard: Guard,
    /// How data and tags stay consistent in a crash. A map contains the regions with writes in flight; after the crash, their sectors get
    /// new tags. A journal makes every write atomic
    #[arg(long, value_enum, default_value = "bitmap")]
    mode: HowSafe,
    /// Count the generations of each region. A scrub then finds a lost write, even if both its data and its tag were lost. Only in bitmap
    /// mode
    #[arg(long)]
    generation: bool,
    /// The number of bytes that a bit of the map covers: a power of two; by default, the map fills one block
    #[arg(long, value_name = "BYTES", value_parser = size)]
    region: Option<u64>,
    /// The size of the journal; by default 16M
    #[arg(long, value_name = "BYTES", value_parser = size)]
    journal_size: Option<u64>,
    /// The application tag of each sector: a number of 16 bits
    #[arg(long, value_name = "NUMBER", default_value_t = 0, conflicts_with = "generation")]
    tag: u16,
    /// Proceed even if TAGS has other content, a volume on DATA has an unknown size, or the device is already an integrity device; -F -F also
    /// overwrites a member of an MD array or of an LVM volume group
    #[arg(short = 'F', long, action = ArgAction::Count)]
    force: u8,
    /// Put the tags in the tail of DATA even if DATA contains an ext4 with a damaged superblock, whose end is unknown. Data in the tail is
    /// lost, and a repair may need this data
    #[arg(long)]
    lose_tail: bool,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
    /// Print nothing
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// The data device and, after a comma, the device for its tags
    #[arg(value_name = "DATA[,TAGS]", value_parser = target::integrity())]
    device: Location,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Guard {
    Crc16,
    Crc64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HowSafe {
    Bitmap,
    Journal,
}

pub(super) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    let refused = |error: ironmap::Error| match error.kind() {
        ErrorKind::InvalidInput => Failure::usage(format!("{}: {error}", args.device)),
        _ => failed(&args.device, error),
    };
    if args.journal_size.is_some() && args.mode != HowSafe::Journal {
        return Err(Failure::usage("--journal-size is for --mode journal"));
    }
    if args.lose_tail && args.device.tags().is_some() {
        return Err(Failure::usage(
            "--lose-tail is only for tags in the tail of DATA: leave out TAGS",
        ));
    }
    let halves = args.device.open_halves(Engine::Psync, true);
    let halves = halves.map_err(|error| failed(&args.device, error))?;
    report.context().tell_faults(&args.device, &halves.faults);
    let (data, tags) = (&halves.data.device, halves.tags.as_ref());
    let options = args.options(&halves).map_err(refused)?;
    let plan = integrity::plan(&**data, tags.map(|tags| &**tags), &options).map_err(refused)?;
    args.check_free(&halves, plan.area_start)?;
    let bar = Bar::new("tags");
    let made = integrity::format(data, tags, &options, &mut |done, all| bar.show(done, all));
    drop(bar);
    let info = made.map_err(refused)?;
    let geometry = Geometry::new(&info);
    if args.json {
        print_json(&geometry)?;
    } else if !args.quiet {
        print_line(format_args!("{}: {}", one_line(&args.device.to_string()), geometry.text()))?;
    }
    Ok(())
}

impl Args {
    /// Refuses a device if the tags would overwrite its content.
    fn check_free(&self, halves: &Halves, start: u64) -> Result<(), Failure> {
        if let Some(tags) = &halves.tags {
            let place = self.device.tags().unwrap_or(self.device.data());
            return room::check(&**tags, place, overwrite(self.force)).map_err(hint_at(FORCED));
        }
        let (data, place) = (&*halves.data.device, self.device.data());
        room::check_member(data, place, overwrite(self.force)).map_err(hint_at(FORCED))?;
        let free = ironmap::tools::check_tail(data, start, self.tail_loss());
        free.map_err(|error| Failure::open(&error.at(place)))
    }

    fn tail_loss(&self) -> TailLoss {
        match (self.lose_tail, self.force > 0) {
            (true, _) => TailLoss::DamagedVolume,
            (false, true) => TailLoss::Unknown,
            (false, false) => TailLoss::Nothing,
        }
    }

    fn options(&self, halves: &Halves) -> ironmap::Result<FormatOptions> {
        let interval = match (self.interval, ironmap::tools::block_size(&*halves.data.device)?) {
            (Some(interval), _) => interval,
            (None, Some(block)) if block < 4096 => 512,
            (None, _) => 4096,
        };
        Ok(FormatOptions::new()
            // An interval that does not fit into 32 bits becomes the maximum. The library refuses the maximum.
            .interval(u32::try_from(interval).unwrap_or(u32::MAX))
            .kind(match self.guard {
                Guard::Crc16 => TupleKind::T10,
                Guard::Crc64 => TupleKind::Nvme64,
            })
            .mode(match self.mode {
                HowSafe::Bitmap => Mode::Bitmap,
                HowSafe::Journal => Mode::Journal,
            })
            .generations(self.generation)
            .region(self.region)
            .application(self.tag)
            .journal(self.journal_size)
            .data_uuid(halves.identity)
            .force(self.force > 0))
    }
}
