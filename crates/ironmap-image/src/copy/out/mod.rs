//! Copies out of a volume, with all attributes that the host can store.

mod attributes;
mod content;
mod copier;
mod entry;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ironmap::fs::FileType;

pub(crate) use self::content::Gaps;
use self::copier::Origin;
pub(crate) use self::copier::{Copier, Done};
pub(crate) use self::entry::Directory;
use self::entry::Entry;
use super::{CopyOptions, count};
use crate::device_name;
use crate::failure::Failure;
use crate::report::Report;
use crate::spared::Spared;
use crate::target::{Subject, Target};
use crate::volumes::{Found, Volumes};

pub(super) fn run(options: &CopyOptions, dest: &Path, report: &mut Report) -> Result<(), Failure> {
    let directory = options.directory()?;
    if directory == Some(true) && !dest.is_dir() {
        return Err(Failure::new(format!("{}: is not a directory (ENOTDIR)", dest.display())));
    }
    let volumes: Option<Vec<_>> = options.sources.iter().map(Subject::target).collect();
    let Some(sources) = volumes else {
        return Err(Failure::usage(
            "the source or the destination must be in a volume: write VOLUME:/PATH",
        ));
    };
    report.context().caller.catch_signals();
    let mut volumes = Volumes::to_read(report.context());
    let mut done = Done::default();
    report.progress = count::start(options, &mut volumes, true, report.context());
    for source in sources {
        report.stop().check()?;
        if let Err(failure) = copy(options, &mut volumes, source, dest, &mut done, report) {
            report.error(&failure);
        }
    }
    report.progress.finish();
    Ok(())
}

fn copy(
    options: &CopyOptions,
    volumes: &mut Volumes,
    target: &Target,
    dest: &Path,
    done: &mut Done,
    report: &mut Report,
) -> Result<(), Failure> {
    let Found { name, inode } = volumes.file(target, options.follow)?;
    let source = &name.source;
    let kind = inode.file_type();
    options.check_kind(target, kind)?;
    options.check_content(target, kind)?;
    let destination = destination(options, &target.path, dest, kind == FileType::Directory)?;
    if let (FileType::Regular, Destination::As(place)) = (kind, &destination) {
        device_name::check(&place.path())?;
    }
    let origin = Origin::new(source, inode.number());
    if let Destination::As(place) = &destination
        && kind != FileType::Directory
        && let Some(first) = done.named.get(&place.path())
        && !(options.no_clobber && place.is_taken())
    {
        if *first == origin {
            report.warning(format_args!("{target}: is named more than once"));
            return Ok(());
        }
        let what = "an earlier source has created this file, so this source does not replace it";
        return Err(Failure::new(format!("{}: {what}", place.path().display())));
    }
    let spared = Spared::of(&target.volume, report.context());
    let mut copier = Copier::new(options, source, spared, done, report)?;
    match destination {
        Destination::Within(into) => copier.fill(into, inode, target.path.clone()),
        Destination::As(place) => {
            if copier.copy(&place, inode, &target.path) {
                copier.done.named.insert(place.path(), origin);
            }
        }
    }
    copier.finish();
    Ok(())
}

enum Destination {
    /// An existing directory that receives the entries of the source. The path of the source ends with `.` or `..`, or is the root, so it
    /// contains no name for the copy.
    Within(Directory),
    /// The name of the copy.
    As(Entry),
}

/// Interprets DEST as `cp` does: an existing directory receives the copy; any other DEST is the name of the copy.
fn destination(
    options: &CopyOptions,
    path: &[u8],
    dest: &Path,
    directory: bool,
) -> Result<Destination, Failure> {
    if dest.is_dir() && !options.no_target_directory {
        let into = Directory::open(dest)?;
        return Ok(match last_name(path) {
            Some(name) => Destination::As(into.place(name)),
            None => Destination::Within(into),
        });
    }
    if dest.as_os_str().as_bytes().ends_with(b"/") && !directory {
        return Err(Failure::new(format!("{}: is not a directory (ENOTDIR)", dest.display())));
    }
    // If DEST is a symbolic link, the link is followed and must point to an existing file.
    let dest = if dest.is_symlink() {
        &dest.canonicalize().map_err(|error| {
            if dest.exists() {
                // For example, DEST can be /dev/stdout, which may be a pipe.
                let what = "the symbolic link leads to a file without a path, such as a pipe: use ironmap cat";
                return Failure::new(format!("{}: {what}", dest.display()));
            }
            Failure::host(dest.display(), error)
        })?
    } else {
        dest
    };
    let Some(name) = dest.file_name() else {
        return Err(Failure::new(format!("{}: has no file name", dest.display())));
    };
    let parent = dest.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = Directory::open(parent.unwrap_or(Path::new(".")))?;
    Ok(Destination::As(parent.place(name)))
}

/// Returns the last component of a path, or `None` for `.`, `..` and the root.
fn last_name(path: &[u8]) -> Option<&OsStr> {
    let name = path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty())?;
    (!matches!(name, b"." | b"..")).then(|| OsStr::from_bytes(name))
}
