//! `ironmap undelete`: recovers deleted files whose block maps still exist.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ironmap::fs::Timestamp;
use ironmap::{Deleted, Location};
use ironmap_image::source::Source;
use ironmap_image::undelete::{Recovery, recover, shown, state};
use ironmap_image::{Failure, Report};
use serde::Serialize;

use crate::glob::Glob;
use crate::interrupt;
use crate::output::{Encoding, JsonArray};
use crate::show::{Clock, rfc3339};
use crate::target;
use crate::terminal::stdout;

/// Lists deleted regular files whose block maps still exist, and copies these files out of the volume
///
/// ext2 and debugfs keep the block map of a deleted file in the file's inode. In other cases, only older copies of the inode in the journal
/// contain the map, until these copies are overwritten. XFS keeps a list of extents, but not the size; the log contains both. A file is whole if its map is complete and none of its blocks is in use again. A
/// block that was reused and freed again cannot be distinguished from an unused block. The command never changes the volume. Before you run
/// it, do not mount the volume for writing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap undelete /dev/sdb1
  ironmap undelete disk.img '*.txt' -o rescued
  ironmap undelete disk.img '<1234>' -o rescued
  ironmap undelete --json disk.img | jq '.[] | select(.whole)'")]
pub(crate) struct Args {
    /// List the files, which is the default without -o
    #[arg(short, long, conflicts_with = "output")]
    list: bool,
    /// Copy the files into this directory, by their paths, or as inode-N if no name is known. A directory without a known name is inode-N. No file is overwritten: if a name exists,
    /// .inode-N is appended. Symbolic links below the directory are not followed
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Also copy files that are not whole: reused blocks contain other data, and unknown blocks are zeros
    #[arg(long, requires = "output")]
    partial: bool,
    /// Write a JSON array
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// The volume
    #[arg(value_name = "VOLUME", value_parser = target::volume())]
    volume: Location,
    /// Only files whose path, or the last component of the path, matches this pattern (with *, ?, [a-z]). `<N>` selects inode N
    #[arg(value_name = "PATTERN")]
    pattern: Option<OsString>,
}

/// A file in the output of `--json`.
#[derive(Serialize)]
struct Record {
    inode: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Encoding::is_utf8")]
    encoding: Encoding,
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted: Option<String>,
    modified: String,
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    blocks: u64,
    free_blocks: u64,
    whole: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    interrupt::catch();
    let source = Source::open(&args.volume, report.context())?;
    let deleted = source.fs().deleted();
    let deleted = deleted.map_err(|error| Failure::at(&args.volume, &error))?;
    let wanted = Wanted::new(args.pattern.as_ref().map(|pattern| pattern.as_bytes()));
    let files: Vec<_> = deleted.iter().filter(|file| wanted.has(file)).collect();
    if files.is_empty() && args.pattern.is_some() {
        return Err(Failure::new(format!("{}: no deleted file matches", args.volume)));
    }
    if args.json {
        let mut array = JsonArray::new();
        files.iter().try_for_each(|file| array.push(&record(file)))?;
        return array.end();
    }
    match &args.output {
        Some(dir) => {
            recover(&files, &Recovery { volume: &args.volume, dir, partial: args.partial }, report)
        }
        None => Ok(print(&files)?),
    }
}

/// The requested files.
enum Wanted {
    All,
    Inode(u64),
    Names(Glob),
}

impl Wanted {
    fn new(pattern: Option<&[u8]>) -> Self {
        match pattern {
            None => Self::All,
            Some(text) => match target::inode_of(text) {
                Some((number, [])) => Self::Inode(number.0),
                _ => Self::Names(Glob::new(text, false)),
            },
        }
    }

    fn has(&self, file: &Deleted) -> bool {
        match self {
            Self::All => true,
            Self::Inode(number) => file.number().0 == *number,
            Self::Names(glob) => file.path.as_ref().is_some_and(|path| {
                let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                glob.matches(path) || glob.matches(name)
            }),
        }
    }
}

fn deletion(file: &Deleted) -> Option<Timestamp> {
    file.deleted.map(|seconds| Timestamp { seconds: seconds.into(), nanoseconds: 0 })
}

/// Prints a line for each file: inode, time of deletion, size, percentage of its blocks that are free, path, and problem.
fn print(files: &[&Deleted]) -> std::io::Result<()> {
    let (mut out, clock) = (stdout(), Clock::local());
    for file in files {
        let deleted = deletion(file).map_or_else(|| "-".to_owned(), |at| clock.minutes(at));
        let share = (file.free * 100).checked_div(file.blocks).unwrap_or(100);
        let (inode, size, state) = (file.number().0, file.stat.size, state(file));
        writeln!(out, "{inode:>8} {deleted:<16} {size:>12} {share:>3}% {} ({state})", shown(file))?;
    }
    out.flush()
}

fn record(file: &Deleted) -> Record {
    let encoding = Encoding::of(file.path.as_deref());
    let stat = &file.stat;
    Record {
        inode: stat.inode.0,
        path: file.path.as_ref().map(|path| encoding.text(path)),
        encoding,
        deleted: deletion(file).map(rfc3339),
        modified: rfc3339(stat.modified),
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        blocks: file.blocks,
        free_blocks: file.free,
        whole: file.is_whole(),
        problem: file.problem.clone(),
    }
}
