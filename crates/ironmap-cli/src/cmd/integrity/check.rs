//! `ironmap integrity check`: checks the structures of an integrity device.

use std::io::Write;

use ironmap::integrity::{self, CheckedArea};
use ironmap::{Engine, Location};
use ironmap_image::{Failure, Report};
use serde::Serialize;

use super::{Geometry, failed};
use crate::output::print_json;
use crate::target;
use crate::terminal::{one_line, stdout};

/// Checks an integrity device's own structures (superblocks, dirty map, journal), and changes nothing
///
/// A device that was not closed is not a fault: the next open recovers the device. Use ironmap integrity scrub to verify sectors.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap integrity check disk.img,tags.img
  ironmap integrity check --json /dev/sdb1 | jq .problems

Exit codes: 0 if no fault is found, 4 if a fault is found, 1 or 3 if the check could not be done.")]
pub(super) struct Args {
    /// Write one JSON object
    #[arg(long)]
    json: bool,
    /// The integrity device
    #[arg(value_name = "DATA[,TAGS]", value_parser = target::integrity())]
    device: Location,
}

#[derive(Serialize)]
struct Record {
    device: String,
    closed: bool,
    dirty_regions: u64,
    journal_records: u64,
    journal_sectors: u64,
    problems: Vec<String>,
    geometry: Geometry,
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let failed = |error| failed(&args.device, error);
    let halves = args.device.open_halves(Engine::Psync, false).map_err(failed)?;
    report.context().tell_faults(&args.device, &halves.faults);
    let found = integrity::check(&halves.data.device, halves.tags.as_ref()).map_err(failed)?;
    let CheckedArea { info, clean, dirty, records, sectors, problems, .. } = found;
    let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    let record = Record {
        device: args.device.to_string(),
        closed: clean,
        // After a clean close, the dirty map is not valid. No region counts as dirty.
        dirty_regions: if clean { 0 } else { dirty },
        journal_records: records,
        journal_sectors: sectors,
        problems,
        geometry: Geometry::new(&info),
    };
    let printed =
        if args.json { print_json(&record) } else { print(&record).map_err(Failure::stdout) };
    // The exit code must be correct even if the output is a closed pipe.
    let count = record.problems.len();
    if count > 0 {
        let s = if count == 1 { "" } else { "s" };
        report.error(&Failure::corrupt(&args.device, &format!("{count} fault{s} found")));
    }
    printed
}

fn print(record: &Record) -> std::io::Result<()> {
    let mut out = stdout();
    let device = one_line(&record.device);
    for problem in &record.problems {
        writeln!(out, "{}", one_line(problem))?;
    }
    writeln!(out, "{device}: {}", record.geometry.text())?;
    let Record { dirty_regions, journal_records, journal_sectors, .. } = record;
    let state = if record.closed {
        "closed; needs no recovery".to_owned()
    } else {
        format!(
            "not closed; {dirty_regions} dirty regions to read again, {journal_records} journal records of \
             {journal_sectors} sectors to replay"
        )
    };
    writeln!(out, "{device}: {state}")?;
    out.flush()
}
