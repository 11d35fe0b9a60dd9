//! `ironmap host`: shows how files of mounted file systems are read, and the reason.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ironmap::fs::host::{HostFs, Refusal};
use ironmap::host::DeviceReport;
use ironmap::{FileOptions, HostReport};
use ironmap_image::{Failure, Report};
use serde::Serialize;

use crate::host_source::HostSource;
use crate::output::{Encoding, JsonArray, Served};
use crate::terminal::{one_line, stdout};

/// Shows whether files of mounted file systems can be read directly from the device. If not, shows the reason
///
/// If possible, a file is read directly from the device (raw), and a lease on the file protects the reads from writers. Otherwise, the file
/// is read through the kernel, and the reason is shown. This is not a failure.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap host /srv/index/*
  ironmap host --json /srv/index/* | jq '.[] | select(.served_by == \"kernel\") | .refusal.reason'")]
pub(crate) struct Args {
    /// For XFS with reflink: promise that no program dedupes these files during the command
    #[arg(long)]
    assume_no_dedupe: bool,
    /// Write a JSON array with an object for each file
    #[arg(long)]
    json: bool,
    /// Files of mounted file systems
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

#[derive(Serialize)]
struct HostRecord {
    path: String,
    #[serde(skip_serializing_if = "Encoding::is_utf8")]
    encoding: Encoding,
    #[serde(flatten)]
    served: Served,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_system: Option<&'static str>,
    size: u64,
    block_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    extents: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceRecord>,
    lease: LeaseRecord,
}

#[derive(Serialize)]
struct DeviceRecord {
    #[serde(skip_serializing_if = "Option::is_none")]
    device_path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    base: u64,
    choice: String,
}

#[derive(Serialize)]
struct LeaseRecord {
    state: &'static str,
    breaks: u64,
}

pub(crate) fn run(args: &Args, failures: &mut Report) -> Result<(), Failure> {
    let source = HostSource::open()?;
    let options = FileOptions::new().assume_no_dedupe(args.assume_no_dedupe);
    let mut array = args.json.then(JsonArray::new);
    for path in &args.files {
        let report = match source.file(path, options) {
            Ok((_, report)) => report,
            Err(failure) => {
                failures.error(&failure);
                continue;
            }
        };
        let record = HostRecord::new(&report);
        match &mut array {
            Some(array) => array.push(&record)?,
            None => print(&record, &report)?,
        }
    }
    array.map_or(Ok(()), JsonArray::end)
}

impl HostRecord {
    fn new(report: &HostReport) -> Self {
        let path = report.path.as_os_str().as_bytes();
        let encoding = Encoding::of([path]);
        Self {
            path: encoding.text(path),
            encoding,
            served: Served::of(report),
            file_system: report.fs.map(HostFs::name),
            size: report.size,
            block_size: report.block_size,
            extents: report.extents,
            shared: report.is_raw().then_some(report.shared),
            device: report.device.as_ref().map(DeviceRecord::new),
            lease: LeaseRecord { state: lease(report), breaks: report.breaks },
        }
    }
}

impl DeviceRecord {
    fn new(device: &DeviceReport) -> Self {
        let device_path = device.device_path.as_ref();
        Self {
            device_path: device_path.map(|(path, _)| path.display().to_string()),
            kind: device_path.map(|(_, kind)| kind.name()),
            base: device.base,
            choice: device.choice.clone(),
        }
    }
}

/// Returns a word for the state of the command's lease on the file.
fn lease(report: &HostReport) -> &'static str {
    match &report.refusal {
        None => "stands",
        Some(Refusal::Broken) => "broken",
        Some(refusal) if refusal.is_temporary() => "waits",
        Some(_) => "none",
    }
}

fn print(record: &HostRecord, report: &HostReport) -> std::io::Result<()> {
    let mut out = stdout();
    let mut line = |label: &str, text: &str| writeln!(out, "{label:>13}: {}", one_line(text));
    line("File", &report.path.to_string_lossy())?;
    line("Served by", &record.served.to_string())?;
    let blocks = format!("blocks of {} bytes", record.block_size);
    line(
        "File system",
        &report.fs.map_or_else(|| format!("another, {blocks}"), |fs| format!("{fs}, {blocks}")),
    )?;
    line("Size", &record.size.to_string())?;
    if let Some(extents) = record.extents {
        let shared = if report.shared { ", some shared with other files" } else { "" };
        line("Extents", &format!("{extents}{shared}"))?;
    }
    // The device is printed if its description could be read. Otherwise, the reason has already been printed.
    if let Some(DeviceRecord { base, choice, .. }) = &record.device
        && !matches!(report.refusal, Some(Refusal::Device(_)))
    {
        line("Device", choice)?;
        if *base > 0 {
            line("Begins at", &base.to_string())?;
        }
    }
    let breaks = match record.lease.breaks {
        0 => String::new(),
        1 => ", broken once".to_owned(),
        breaks => format!(", broken {breaks} times"),
    };
    line("Lease", &format!("{}{breaks}", record.lease.state))?;
    out.flush()
}
