//! `ironmap integrity scrub`: compares all sectors with their tags.

use std::io::Write;

use ironmap::location::LocationOptions;
use ironmap::{Engine, Location, ScrubFinding, Scrubbed};
use ironmap_image::{Failure, Report};
use serde::Serialize;

use super::{Bar, failed};
use crate::output::print_json;
use crate::target;
use crate::terminal::stdout;

/// Compares every sector with its tag, lists sectors that are wrong or cannot be read, and changes nothing
///
/// Sectors are numbered in protection intervals from the start of DATA. If the device was not closed, sectors that had writes in flight
/// might not match their tags. The scrub skips and counts these sectors; ironmap integrity open recovers the device.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap integrity scrub disk.img,tags.img
  ironmap integrity scrub --json /dev/sdb1 | jq '.findings[].sector'

Exit codes: 0 if no fault is found, 4 if a sector does not match its tag or cannot be read, 1 or 3 if the scrub could not be done.")]
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
    sectors: u64,
    discarded: u64,
    mismatches: u64,
    unreadable: u64,
    skipped: u64,
    lost: u64,
    findings: Vec<FindingRecord>,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum FindingRecord {
    Mismatch { sector: u64, offset: u64, field: String, expected: u64, found: u64 },
    Unreadable { half: String, sector: u64, offset: u64, count: u64, errno: String },
    LostWrites { offset: u64, length: u64, generation: u16 },
}

/// The maximum number of findings in the JSON. The counts include all findings.
const KEPT: usize = 100_000;

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let how = LocationOptions::new().engine(Engine::Psync);
    let opened = report
        .context()
        .open_device(&args.device, &how)
        .map_err(|error| failed(&args.device, error))?;
    let Some(integrity) = opened.integrity else {
        return Err(Failure::usage("the argument is not an integrity device"));
    };
    let crashed = integrity.recovered.crashed;
    if crashed {
        report.note(format!(
            "{}: the integrity device was not closed: run ironmap integrity open",
            args.device
        ));
    }
    let interval = u64::from(integrity.device.info().interval);
    let bar = Bar::new("sectors");
    let (mut out, mut failed, mut findings) = (stdout(), None, Vec::new());
    let mut found = |finding| {
        if args.json {
            if findings.len() < KEPT {
                findings.extend(FindingRecord::new(finding, interval));
            }
        } else if let Err(error) = bar.0.suspend(|| writeln!(out, "{finding}")) {
            failed.get_or_insert(error);
        }
    };
    let scrubbed = integrity.device.scrub(&mut found, &mut |done, all| bar.show(done, all));
    drop(bar);
    let scrubbed = scrubbed.map_err(|error| Failure::at(&args.device, &error))?;
    let Scrubbed { sectors, discarded, mismatches, unreadable, skipped, lost, .. } = scrubbed;
    // The exit code must be correct even if the output is a closed pipe.
    if mismatches + unreadable + lost > 0 {
        let what = format!(
            "{mismatches} wrong sectors, {unreadable} unreadable, {lost} regions with lost writes"
        );
        report.error(&Failure::corrupt(&args.device, &what));
    }
    if let Some(error) = failed {
        return Err(error.into());
    }
    if skipped > 0 {
        report.note(format!(
            "{}: {skipped} sectors of dirty regions are not verified: run ironmap integrity open first",
            args.device
        ));
    }
    if args.json {
        drop(out);
        print_json(&Record::new(&args.device, !crashed, &scrubbed, findings))?;
    } else {
        let device = &args.device;
        writeln!(
            out,
            "{device}: {sectors} sectors read, {discarded} discarded, {mismatches} with wrong tags, {unreadable} unreadable, {lost} regions with lost writes"
        )?;
        out.flush()?;
    }
    Ok(())
}

impl Record {
    fn new(
        device: &Location,
        closed: bool,
        scrubbed: &Scrubbed,
        findings: Vec<FindingRecord>,
    ) -> Self {
        Self {
            device: device.to_string(),
            closed,
            sectors: scrubbed.sectors,
            discarded: scrubbed.discarded,
            mismatches: scrubbed.mismatches,
            unreadable: scrubbed.unreadable,
            skipped: scrubbed.skipped,
            lost: scrubbed.lost,
            findings,
        }
    }
}

impl FindingRecord {
    /// Returns `None` for a kind of finding that the JSON format does not support.
    fn new(finding: ScrubFinding, interval: u64) -> Option<Self> {
        Some(match finding {
            ScrubFinding::Mismatch(mismatch) => Self::Mismatch {
                sector: mismatch.sector,
                offset: mismatch.sector * interval,
                field: mismatch.field.to_string().replace(' ', "_"),
                expected: mismatch.expected,
                found: mismatch.found,
            },
            ScrubFinding::Unreadable { half, sector, count, errno } => Self::Unreadable {
                half: half.to_string(),
                sector,
                offset: sector * interval,
                count,
                errno: format!("{errno:?}"),
            },
            ScrubFinding::LostWrites { at, len, generation } => {
                Self::LostWrites { offset: at.0, length: len, generation }
            }
            _ => return None,
        })
    }
}
