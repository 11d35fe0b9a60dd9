//! `ironmap check`: lists the faults of a volume, and changes nothing.

use std::io::Write;

use indicatif::ProgressBar;
use ironmap::Location;
use ironmap::fs::FileType;
use ironmap::fs::check::{Finding, Pass, Progress, Report as Checked, Severity};
use ironmap_image::quote::quoted;
use ironmap_image::source::Source;
use ironmap_image::{Failure, Report};
use serde::Serialize;

use crate::output::{print_json, progress};
use crate::target;
use crate::terminal::{one_line, stdout};

/// Checks all metadata of a volume, and changes nothing
///
/// Each finding is a line with severity, location and fault. Notes are not faults. A dirty journal is recovered in memory, and the
/// result is checked. To repair a volume, use e2fsck or xfs_repair.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap check /dev/sdb1
  ironmap check --json disk.img@p1 | jq '.findings[] | select(.severity != \"note\")'

Exit codes: 0 if no fault is found, 4 if a fault is found, 1 or 3 if the check could not be done.")]
pub(crate) struct Args {
    /// Write one JSON object
    #[arg(long)]
    json: bool,
    /// The volume
    #[arg(value_name = "VOLUME", value_parser = target::volume())]
    volume: Location,
}

#[derive(Serialize)]
struct CheckRecord {
    volume: String,
    clean: bool,
    inodes: u64,
    directories: u64,
    blocks: u64,
    counts: Counts,
    findings: Vec<FindingRecord>,
}

#[derive(Serialize)]
struct Counts {
    note: u64,
    repairable: u64,
    data_loss: u64,
    fatal: u64,
}

#[derive(Serialize)]
struct FindingRecord {
    severity: &'static str,
    structure: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    field: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
    kind: &'static str,
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let source = Source::open(&args.volume, report.context())?;
    let mut bar = Bar::default();
    let checked = source.fs().check(&mut |progress| bar.show(progress));
    bar.clear();
    let checked = checked.map_err(|error| Failure::at(&args.volume, &error))?;
    let printed = if args.json {
        print_json(&record(args, &source, &checked))
    } else {
        print(args, &source, &checked).map_err(Failure::stdout)
    };
    // The exit code must be correct even if the output is a closed pipe.
    if !checked.is_clean() {
        let count = checked.counts.iter().skip(1).sum::<u64>();
        let s = if count == 1 { "" } else { "s" };
        report.error(&Failure::corrupt(&args.volume, &format!("{count} fault{s} found")));
    }
    printed
}

/// The progress bar of the current pass.
#[derive(Default)]
struct Bar(Option<(Pass, ProgressBar)>);

impl Bar {
    fn show(&mut self, now: Progress) {
        let name = match now.pass {
            Pass::Groups => "groups",
            Pass::Inodes => "inodes",
            Pass::Directories => "directories",
            Pass::Names => "names",
            Pass::Space => "space",
        };
        let (_, bar) = match self.0.take_if(|(pass, _)| *pass == now.pass) {
            Some(same) => self.0.insert(same),
            None => {
                self.clear();
                self.0.insert((now.pass, progress(name, now.of)))
            }
        };
        bar.set_position(now.done);
    }

    fn clear(&mut self) {
        if let Some((_, bar)) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

fn record(args: &Args, source: &Source, checked: &Checked) -> CheckRecord {
    let count = |severity| checked.count(severity);
    CheckRecord {
        volume: args.volume.to_string(),
        clean: checked.is_clean(),
        inodes: checked.inodes,
        directories: checked.directories,
        blocks: checked.blocks,
        counts: Counts {
            note: count(Severity::Note),
            repairable: count(Severity::Repairable),
            data_loss: count(Severity::DataLoss),
            fatal: count(Severity::Fatal),
        },
        findings: checked
            .findings
            .iter()
            .map(|finding| FindingRecord::new(finding, source))
            .collect(),
    }
}

impl FindingRecord {
    fn new(finding: &Finding, source: &Source) -> Self {
        let place = &finding.site.place;
        Self {
            severity: match finding.severity {
                Severity::Note => "note",
                Severity::Repairable => "repairable",
                Severity::DataLoss => "data_loss",
                Severity::Fatal => "fatal",
            },
            structure: place.structure,
            field: place.field,
            group: finding.site.group,
            inode: place.inode.map(|inode| inode.0),
            block: place.block.map(|block| block.0),
            kind: finding.what.name(),
            what: finding.what.to_string(),
            command: command(finding, source),
        }
    }
}

/// Returns the command that shows an inode without a name.
fn command(finding: &Finding, source: &Source) -> Option<String> {
    let number = finding.site.place.inode.filter(|_| finding.what.name() == "unconnected")?;
    let volume = source.location().to_string();
    let target = quoted(format!("{volume}:<{number}>").as_bytes());
    Some(match source.fs().inode(number).map(|inode| inode.file_type()) {
        Ok(FileType::Regular) => format!("ironmap cat {target}"),
        Ok(FileType::Directory) => format!("ironmap cp -r {target} inode-{number}"),
        Ok(_) => format!("ironmap stat {target}"),
        // The inode has no links or is damaged. Only `ironmap dump` can show it.
        Err(_) => format!("ironmap dump {} inode {number}", quoted(volume.as_bytes())),
    })
}

fn print(args: &Args, source: &Source, checked: &Checked) -> std::io::Result<()> {
    let mut out = stdout();
    for finding in &checked.findings {
        writeln!(out, "{}", one_line(&finding.to_string()))?;
        if let Some(command) = command(finding, source) {
            writeln!(out, "    read it by: {command}")?;
        }
    }
    let left_out = checked.counts.iter().sum::<u64>() - checked.findings.len() as u64;
    if left_out > 0 {
        writeln!(out, "{left_out} more findings are not shown")?;
    }
    let Checked { inodes, directories, blocks, .. } = checked;
    let verdict = if checked.is_clean() { "clean" } else { "not clean" };
    writeln!(
        out,
        "{}: {verdict}; {inodes} inodes in use, including {directories} directories, {blocks} blocks in use",
        one_line(&args.volume.to_string())
    )?;
    out.flush()
}
