//! `ironmap ln`: makes hard links and symbolic links.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use ironmap::fs::{FileType, Follow, NewFile, RenameFlags};
use ironmap::units::InodeNo;
use ironmap::{Error, ErrorKind};
use ironmap_image::new::caller;
use ironmap_image::quote::quoted;
use ironmap_image::volumes::{DestinationIs, Found, Name, Volumes, split};
use ironmap_image::{Failure, Report};

use crate::target::{self, split_destination};

/// Gives files further names (hard links), or makes symbolic links
///
/// With -s, the first arguments are the targets of the links. They are stored unchanged, so write paths as on the mounted volume.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap ln disk.img:/bin/busybox disk.img:/bin/sh
  ironmap ln -s ../usr/bin/python3 disk.img:/bin/python
  ironmap ln -sfn releases/42 disk.img:/srv/current")]
pub(crate) struct Args {
    /// Make symbolic links
    #[arg(short, long)]
    symbolic: bool,
    /// Replace an existing file
    #[arg(short, long)]
    force: bool,
    /// If the destination is a symbolic link to a directory, replace this link. Without -n, the new link is made in the directory
    #[arg(short, long)]
    no_dereference: bool,
    /// Treat the last argument as the new name, even if it is a directory
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    no_target_directory: bool,
    /// Make the links in this directory
    #[arg(short, long, value_name = "VOLUME:/DIR")]
    target_directory: Option<OsString>,
    /// Print each link
    #[arg(short, long)]
    verbose: bool,
    /// The targets of the links, and last VOLUME:/PATH: the new name, or the directory for the new names
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<OsString>,
}

/// The target of a new name. A hard link has an existing file as its target. A symbolic link has a text.
enum Subject<'a> {
    File(&'a Found),
    Text(&'a OsStr),
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let (texts, dest, directory) =
        split_destination(&args.targets, args.target_directory.as_ref(), args.no_target_directory)?;
    let parse = |text: &OsStr| target::parse(text).map_err(|why| Failure::usage(&why));
    let dest = parse(dest)?;
    Volumes::change(report, |volumes, report| {
        let to = volumes
            .destination(&dest, DestinationIs { directory, follows: !args.no_dereference })?;
        for text in texts {
            let linked = if args.symbolic {
                let (_, last) = split(text.as_bytes());
                link(args, &Subject::Text(text), &to.name_for(last), report)
            } else {
                let found = parse(text).and_then(|from| volumes.find(&from, Follow::NotLast));
                found.and_then(|found| {
                    let name = to.name_for(&found.name.name);
                    link(args, &Subject::File(&found), &name, report)
                })
            };
            if let Err(failure) = linked {
                report.error(&failure);
            }
        }
        Ok(())
    })
}

fn link(args: &Args, subject: &Subject<'_>, name: &Name, report: &Report) -> Result<(), Failure> {
    if let Subject::File(found) = subject
        && !found.name.is_beside(name)
    {
        let what = format!("{name} is on another volume (EXDEV)");
        return Err(Failure::new(format!("{}: {what}", found.name)));
    }
    match name.look(Follow::NotLast)? {
        Some(there) if args.force => replace(subject, name, there.file_type(), there.number())?,
        _ => {
            name.check_new_file()?;
            make(subject, name, &name.name).map_err(|error| name.failed(&error))?;
        }
    }
    if !args.verbose {
        return Ok(());
    }
    match subject {
        Subject::Text(text) => {
            report.say(format_args!("{} -> {}", name.quoted(), quoted(text.as_bytes())))
        }
        Subject::File(found) => {
            report.say(format_args!("{} => {}", name.quoted(), found.name.quoted()))
        }
    }
}

fn make(subject: &Subject<'_>, name: &Name, last: &[u8]) -> ironmap::Result<()> {
    let fs = name.fs();
    match subject {
        Subject::File(found) => {
            fs.writable().and_then(|writer| writer.link(found.number(), name.dir, last))
        }
        Subject::Text(text) => {
            let new = NewFile::Symlink(text.as_bytes());
            fs.writable()
                .and_then(|writer| writer.create(name.dir, last, new, 0o777, &caller()))
                .map(drop)
        }
    }
}

/// Makes the link under a temporary name, and renames it to the final name. A file with the final name exists at every moment.
fn replace(
    subject: &Subject<'_>,
    name: &Name,
    kind: FileType,
    there: InodeNo,
) -> Result<(), Failure> {
    if kind == FileType::Directory {
        let what = Error::new(ErrorKind::IsADirectory, "a link cannot replace a directory");
        return Err(name.failed(&what));
    }
    if let Subject::File(found) = subject
        && found.number() == there
    {
        if found.name.dir == name.dir && found.name.name == name.name {
            return Err(Failure::new(format!("'{}' and '{name}' are the same file", found.name)));
        }
        // Both names already belong to the same file.
        return Ok(());
    }
    // A symbolic link must not replace the file to which it points. It would then point to itself, and the file would be lost.
    if let Subject::Text(text) = subject
        && let Ok(target) = name.beside(text.as_bytes())
        && let Ok(Some(target)) = target.look(Follow::All)
        && target.number() == there
    {
        let what = format!("{} and {} are the same file", quoted(text.as_bytes()), name.quoted());
        return Err(Failure::new(what));
    }
    let replaced = (0_u32..).find_map(|number| {
        let other = format!(".ln-{number:x}").into_bytes();
        match make(subject, name, &other) {
            Err(error) if error.kind() == ErrorKind::Exists && number < 1000 => None,
            Err(error) => Some(Err(error)),
            Ok(()) => {
                let (fs, dir) = (name.fs(), name.dir);
                let moved = fs.writable().and_then(|writer| {
                    writer.rename((dir, &other), (dir, &name.name), RenameFlags::empty(), &caller())
                });
                // If the rename fails, the temporary link is removed.
                Some(moved.map_err(|error| {
                    fs.writable()
                        .and_then(|writer| writer.unlink(dir, &other))
                        .err()
                        .unwrap_or(error)
                }))
            }
        }
    });
    replaced.unwrap_or(Ok(())).map_err(|error| name.failed(&error))
}
