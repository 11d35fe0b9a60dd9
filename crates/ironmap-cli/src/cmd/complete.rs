//! `ironmap complete`: prints names in a volume, for the completion of shells.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use ironmap::fs::{FileType, Follow};
use ironmap_image::source::{Source, join};
use ironmap_image::{Failure, Report};

use crate::target;
use crate::terminal::stdout;

/// Prints all paths of a volume that begin with a word, for the scripts of ironmap completions. Each path is a line
///
/// A directory ends with a slash. Names that begin with a dot are printed only if the word has the dot. Names with a newline are not printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap complete disk.img:/etc/fs")]
pub(crate) struct Args {
    /// The part of the word before the cursor
    #[arg(value_name = "VOLUME:/PATH", allow_hyphen_values = true)]
    word: OsString,
}

pub(crate) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    let word = args.word.as_bytes();
    // The word is split after the last slash. The part before this point is printed unchanged.
    let cut = word.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (dir, begin) = word.split_at(cut);
    let target = target::parse(OsStr::from_bytes(dir)).map_err(Failure::usage)?;
    let source = Source::open(&target.volume, report.context())?;
    let inode = source.resolve(&target.path, Follow::All)?;
    let mut out = stdout();
    for entry in source.entries(&inode, &target.path)? {
        let name = &*entry.name;
        let hidden = name.starts_with(b".") && !begin.starts_with(b".");
        if hidden
            || !name.starts_with(begin)
            || matches!(name, b"." | b"..")
            || name.contains(&b'\n')
        {
            continue;
        }
        // A symbolic link to a directory gets a slash too.
        let found = source.resolve(&join(&target.path, name), Follow::All);
        let is_directory = found.is_ok_and(|found| found.file_type() == FileType::Directory);
        let end: &[u8] = if is_directory { b"/\n" } else { b"\n" };
        out.write_all(&out.shown(&[dir, name].concat()))?;
        out.write_all(end)?;
    }
    Ok(out.flush()?)
}
