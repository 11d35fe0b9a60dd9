//! `ironmap cp`: out of the volume, with everything that the host can keep.

mod attributes;
mod copier;
mod place;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use ironmap::fs::FileType;
use ironmap::fs::ext4::{Follow, Inode};

use self::copier::Copier;
use self::place::{Directory, Place};
use crate::failure::{Failure, Report};
use crate::source::Source;
use crate::target::{self, Target};

/// Copies a file or a directory out of the volume
///
/// Modes, times, symbolic links, hard links within the copy, extended attributes and holes are kept; owners, device nodes and
/// set-id bits of other owners' files only as root. An existing file is replaced by a new one, never written into; an existing
/// directory is filled. Nothing is written through a symbolic link below DEST. What cannot be copied is reported, and the rest
/// goes on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap cp disk.img@p2:/etc/fstab .
  ironmap cp -r /dev/sdb1:/home/ann /srv/rescue
  ironmap cp -r disk.img:/ tree")]
pub(crate) struct Args {
    /// Copy a directory and everything below it; copy symbolic links as links
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// What to copy
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target())]
    source: Target,
    /// A directory to copy into, or the name of the copy
    #[arg(value_name = "DEST")]
    dest: PathBuf,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let follow = if args.recursive { Follow::NotLast } else { Follow::All };
    let (source, inode) = Source::open_target(&args.source, follow)?;
    let directory = inode.file_type() == FileType::Directory;
    if directory && !args.recursive {
        let what = "is a directory, and -r is not given (EISDIR)";
        return Err(Failure::new(format!("{}: {what}", args.source)));
    }
    let queue = source.queue()?;
    let destination = destination(args, directory)?;
    report.progress = progress(&inode);
    let mut copier = Copier::new(&source, queue, report)?;
    let path = &args.source.path;
    match destination {
        Destination::Within(into) => copier.fill(&into, &inode, path),
        Destination::As(place) => copier.copy(&place, inode, path),
    }
    copier.finish();
    report.progress.finish_and_clear();
    Ok(())
}

enum Destination {
    /// The root's content, into an existing directory.
    Within(Directory),
    /// The copy's own name.
    As(Place),
}

/// What DEST means, as `cp` has it: an existing directory is copied into, anything else is the copy's name.
fn destination(args: &Args, directory: bool) -> Result<Destination, Failure> {
    let dest = &args.dest;
    if dest.is_dir() {
        let into = Directory::open(dest)?;
        return Ok(match last_name(&args.source.path) {
            Some(name) => Destination::As(into.place(name)),
            None => Destination::Within(into),
        });
    }
    if dest.as_os_str().as_bytes().ends_with(b"/") && !directory {
        return Err(Failure::new(format!("{}: is not a directory (ENOTDIR)", dest.display())));
    }
    // A link that the user names is followed, to a file that is there.
    let dest = if dest.is_symlink() {
        &dest.canonicalize().map_err(|error| Failure::host(dest.display(), error))?
    } else {
        dest
    };
    let Some(name) = dest.file_name() else {
        return Err(Failure::new(format!("{}: names no file", dest.display())));
    };
    let parent = dest.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = Directory::open(parent.unwrap_or(Path::new(".")))?;
    Ok(Destination::As(parent.place(name)))
}

/// The last component of a path, where that is a name.
fn last_name(path: &[u8]) -> Option<&OsStr> {
    let name = path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty())?;
    (!matches!(name, b"." | b"..")).then(|| OsStr::from_bytes(name))
}

/// On standard error, where that is a terminal.
fn progress(inode: &Inode) -> ProgressBar {
    let (bar, template) = match inode.file_type() {
        FileType::Regular => (
            ProgressBar::new(inode.size()),
            "{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
        ),
        _ => (ProgressBar::new_spinner(), "{spinner} {bytes} {binary_bytes_per_sec} {wide_msg}"),
    };
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
