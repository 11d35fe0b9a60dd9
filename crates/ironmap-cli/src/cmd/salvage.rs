//! `ironmap salvage`: copies everything that can be read out of a damaged volume.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use ironmap::Location;
use ironmap_image::salvage::{Counts, Found, Outcome, State, Summary, salvage};
use ironmap_image::source::Source;
use ironmap_image::{Failure, Report};
use serde::Serialize;

use crate::interrupt;
use crate::output::{Encoding, print_json};
use crate::target;
use crate::terminal::{one_line, stdout};

/// The name of the report below DIR.
const REPORT: &str = "report.jsonl";
/// The number of bytes of lines that are written together.
const BUFFER: usize = 64 << 10;

/// Copies everything that can be read out of a volume, with a report about each file
///
/// DIR gets the directories tree (all files with a name), unreachable (files in use without a name), orphans (files that were removed while
/// they were open) and deleted (see undelete). A directory without files is not made, except tree. A file that can be read only in part is
/// copied with zeros in the missing ranges. A truncated volume, and a volume whose journal cannot be read, are opened with a warning. The
/// volume is not changed.
///
/// DIR/report.jsonl has one JSON object for each file: whole, in part (with the missing ranges), or lost.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap salvage /dev/sdb1 rescued
  ironmap salvage --json disk.img@p2 rescued
  jq -c 'select(.state != \"whole\")' rescued/report.jsonl

Exit codes: 0 if every file is whole, 4 if metadata are damaged, 1 if the device or the host has failed or the volume is truncated. Deleted \
files that are not whole do not change the exit code.")]
pub(crate) struct Args {
    /// Write the totals as one JSON object
    #[arg(long)]
    json: bool,
    /// The volume
    #[arg(value_name = "VOLUME", value_parser = target::volume())]
    volume: Location,
    /// The directory for the copies. It is made, or must be empty
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// A line of the report.
#[derive(Serialize)]
struct Record {
    found: &'static str,
    inode: u64,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    copy: Option<String>,
    #[serde(skip_serializing_if = "Encoding::is_utf8")]
    encoding: Encoding,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    state: &'static str,
    /// The first byte and the end of each missing range.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<[u64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// The wrong checksum of an inode that was used nevertheless.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize)]
struct Totals {
    volume: String,
    directory: String,
    report: String,
    tree: CountsRecord,
    unreachable: CountsRecord,
    orphans: CountsRecord,
    deleted: CountsRecord,
}

#[derive(Serialize)]
struct CountsRecord {
    whole: u64,
    part: u64,
    lost: u64,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    interrupt::catch();
    let source = Source::open_damaged(&args.volume, report.context())?;
    make_empty(&args.dir)?;
    let path = args.dir.join(REPORT);
    let mut lines = Lines::create(&path)?;
    let salvaged = salvage(source, &args.dir, &mut |outcome| lines.add(outcome), report);
    if let Err(failure) = lines.finish(&path) {
        report.error(&failure);
    }
    print(args, &path, &salvaged?)
}

/// The report. It always ends with a complete line, even if the host has no space for the next line.
struct Lines {
    file: File,
    /// The lines that are not in the file yet.
    buffer: Vec<u8>,
    /// The first failure. No line is written after it.
    failed: Option<io::Error>,
    /// The number of lines that are not in the file because of the failure.
    missing: u64,
    /// The number of lines in the buffer.
    buffered: u64,
    /// The number of bytes in the file.
    len: u64,
}

impl Lines {
    fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create_new(path).map_err(|error| Failure::host(path.display(), error))?;
        Ok(Self { file, buffer: Vec::new(), failed: None, missing: 0, buffered: 0, len: 0 })
    }

    fn add(&mut self, outcome: &Outcome<'_>) {
        let start = self.buffer.len();
        match serde_json::to_writer(&mut self.buffer, &record(outcome)) {
            Ok(()) => self.buffer.push(b'\n'),
            Err(error) => {
                self.buffer.truncate(start);
                self.failed.get_or_insert(error.into());
            }
        }
        self.buffered += 1;
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
    }

    /// Writes the buffer. After a failure, removes the part of a line at the end of the file.
    fn flush(&mut self) {
        let count = std::mem::take(&mut self.buffered);
        if self.failed.is_some() {
            self.missing += count;
            return self.buffer.clear();
        }
        let (mut written, mut result) = (0, Ok(()));
        while written < self.buffer.len() && result.is_ok() {
            match self.file.write(&self.buffer[written..]) {
                Ok(0) => result = Err(ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => result = Err(error),
            }
        }
        if let Err(error) = result {
            let whole = self.buffer[..written].iter().rposition(|byte| *byte == b'\n');
            let whole = whole.map_or(0, |at| at + 1);
            let lines = self.buffer[whole..].iter().filter(|byte| **byte == b'\n').count();
            self.missing += lines as u64;
            written = whole;
            self.failed = Some(self.file.set_len(self.len + written as u64).err().unwrap_or(error));
        }
        self.len += written as u64;
        self.buffer.clear();
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// A failure of the host, with the number of missing lines.
    fn finish(mut self, path: &Path) -> Result<(), Failure> {
        self.flush();
        let Some(error) = self.failed else { return Ok(()) };
        let (path, missing) = (path.display(), self.missing);
        let place = format!("{path}: the report is incomplete: {missing} lines are missing");
        Err(Failure::host(place, error))
    }
}

/// Makes the directory, or checks that it is empty.
fn make_empty(dir: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::host(dir.display(), error);
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => return made.map_err(failed),
    }
    if dir.read_dir().map_err(failed)?.next().is_some() {
        let what = "the directory is not empty: name a new directory";
        return Err(Failure::usage(format_args!("{}: {what}", dir.display())));
    }
    Ok(())
}

fn record(outcome: &Outcome<'_>) -> Record {
    let copy = outcome.copy.map(|copy| copy.as_os_str().as_encoded_bytes());
    let encoding = Encoding::of([Some(outcome.path), copy].into_iter().flatten());
    let (state, missing, why) = match &outcome.state {
        State::Whole => ("whole", Vec::new(), None),
        State::Part { missing, why } => {
            let ranges = missing.iter().map(|range| [range.start, range.end]);
            ("part", ranges.collect(), Some(why.clone()))
        }
        State::Lost { why } => ("lost", Vec::new(), Some(why.clone())),
    };
    Record {
        found: outcome.found.directory(),
        inode: outcome.inode.0,
        path: encoding.text(outcome.path),
        copy: copy.map(|copy| encoding.text(copy)),
        encoding,
        size: outcome.size,
        state,
        missing,
        why,
        note: outcome.note.clone(),
    }
}

fn print(args: &Args, report: &Path, summary: &Summary) -> Result<(), Failure> {
    if args.json {
        let counts = |found| {
            let Counts { whole, part, lost } = summary.of(found);
            CountsRecord { whole, part, lost }
        };
        return print_json(&Totals {
            volume: args.volume.to_string(),
            directory: args.dir.display().to_string(),
            report: report.display().to_string(),
            tree: counts(Found::Tree),
            unreachable: counts(Found::Unreachable),
            orphans: counts(Found::Orphan),
            deleted: counts(Found::Deleted),
        });
    }
    let mut out = stdout();
    for found in Found::ALL {
        let Counts { whole, part, lost } = summary.of(found);
        if found == Found::Tree || whole + part + lost > 0 {
            let (dir, name) = (args.dir.display().to_string(), found.directory());
            let dir = one_line(&dir);
            writeln!(out, "{dir}/{name}: {whole} files whole, {part} in part, {lost} lost")?;
        }
    }
    writeln!(out, "{}: the report about each file", one_line(&report.display().to_string()))?;
    Ok(out.flush()?)
}
