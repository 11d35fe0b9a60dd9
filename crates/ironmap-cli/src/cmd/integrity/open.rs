//! `ironmap integrity open`: opens and recovers an integrity device.

use std::io::Write;

use ironmap::integrity::Recovered;
use ironmap::location::LocationOptions;
use ironmap::{Engine, Location};
use ironmap_image::{Failure, Report};
use serde::Serialize;

use super::{Geometry, failed};
use crate::output::print_json;
use crate::target;
use crate::terminal::{one_line, stdout};

/// Opens an integrity device, recovers it if needed, reports the recovery, and closes it
///
/// Every command that opens the device for writing also recovers it. In bitmap mode, the regions that had writes in flight are read, and their
/// sectors get new tags. In journal mode, the journal is replayed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap integrity open disk.img,tags.img
  ironmap integrity open --force /dev/sdc,/dev/nvme0n1p3   # after DATA was copied to another disk")]
pub(super) struct Args {
    /// Accept a DATA that does not belong to these tags, and use the tags for it from then on. Also give up parts that cannot be recovered:
    /// sectors that cannot be written, and a dirty map that cannot be read
    #[arg(short = 'F', long)]
    force: bool,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
    /// The integrity device
    #[arg(value_name = "DATA[,TAGS]", value_parser = target::integrity())]
    device: Location,
}

#[derive(Serialize)]
struct Opened {
    device: String,
    closed: bool,
    recovered: RecoveredRecord,
    geometry: Geometry,
}

#[derive(Serialize)]
struct RecoveredRecord {
    regions: u64,
    retagged: u64,
    unreadable: u64,
    records: u64,
    replayed: u64,
    lost: u64,
    bad_map_blocks: u64,
}

impl RecoveredRecord {
    fn new(recovered: &Recovered) -> Self {
        let Recovered {
            regions,
            retagged,
            unreadable,
            records,
            replayed,
            lost,
            bad_map_blocks,
            ..
        } = *recovered;
        Self { regions, retagged, unreadable, records, replayed, lost, bad_map_blocks }
    }
}

pub(super) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    let how = LocationOptions::new().engine(Engine::Psync).write(true).force(args.force);
    let opened = report
        .context()
        .open_device(&args.device, &how)
        .map_err(|error| failed(&args.device, error))?;
    let Some(integrity) = opened.integrity else {
        return Err(Failure::usage("the argument is not an integrity device"));
    };
    let recovered = integrity.recovered;
    let geometry = Geometry::new(integrity.device.info());
    integrity.device.close().map_err(|error| Failure::at(&args.device, &error))?;
    if args.json {
        return print_json(&Opened {
            device: args.device.to_string(),
            closed: !recovered.crashed,
            recovered: RecoveredRecord::new(&recovered),
            geometry,
        });
    }
    let (mut out, device) = (stdout(), one_line(&args.device.to_string()));
    for line in recovered.notices(true) {
        writeln!(out, "{device}: {line}")?;
    }
    writeln!(out, "{device}: {}", geometry.text())?;
    Ok(out.flush()?)
}
