//! `ironmap mv`: renames files atomically.

use ironmap::fs::{FileType, Follow, RenameFlags};
use ironmap::{Error, ErrorKind};
use ironmap_image::new::caller;
use ironmap_image::volumes::{Destination, DestinationIs, Name, Volumes};
use ironmap_image::{Failure, Report};

use crate::canonical::path_without_links;
use crate::target::{self, Target};

/// Renames files, or moves them to another directory of their volume
///
/// A file that already has the new name is replaced atomically. After a crash, either the old or the new file has the name. Files cannot be
/// moved between volumes: copy them with cp -a, and remove them with rm -r.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap mv disk.img:/etc/hosts.new disk.img:/etc/hosts
  ironmap mv disk.img:/a disk.img:/b disk.img:/dir
  ironmap mv --exchange -T disk.img:/current disk.img:/next")]
pub(crate) struct Args {
    /// Do not replace existing files
    #[arg(short, long)]
    no_clobber: bool,
    /// Replace without asking, which is the default
    #[arg(short, long, overrides_with = "no_clobber")]
    force: bool,
    /// Treat the last argument as the new name, even if it is a directory
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    no_target_directory: bool,
    /// Move all arguments into this directory
    #[arg(short, long, value_name = "VOLUME:/DIR", value_parser = target::target())]
    target_directory: Option<Target>,
    /// Exchange the two files
    #[arg(long, conflicts_with = "no_clobber")]
    exchange: bool,
    /// Print each move
    #[arg(short, long)]
    verbose: bool,
    /// The files to move, and last the destination
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let (sources, dest, directory) = target::split_destination(
        &args.targets,
        args.target_directory.as_ref(),
        args.no_target_directory,
    )?;
    Volumes::change(report, |volumes, report| {
        let how = DestinationIs { directory, follows: true };
        let to = volumes.destination(dest, how)?;
        for source in sources {
            if let Err(failure) = rename(args, volumes, source, &to, report) {
                report.error(&failure);
            }
        }
        Ok(())
    })
}

/// Whether a symbolic link points to a file by this name. A link to another name of the same file does not count.
fn leads_to_name(link: &Name, to: &Name) -> bool {
    let path = path_without_links(&link.source, link.path()).ok();
    let name = path.and_then(|path| link.beside(&path).ok());
    name.is_some_and(|name| (name.dir, &name.name) == (to.dir, &to.name))
}

fn rename(
    args: &Args,
    volumes: &mut Volumes,
    source: &Target,
    to: &Destination,
    report: &Report,
) -> Result<(), Failure> {
    let from = volumes.find(source, Follow::NotLast)?;
    let to = to.name_for(&from.name.name);
    if !from.name.is_beside(&to) {
        let what =
            format!("{to} is on another volume: copy with cp -a, then remove with rm -r (EXDEV)");
        return Err(Failure::new(format!("{}: {what}", from.name)));
    }
    let there = to.look(Follow::NotLast)?;
    if from.name.wants_directory() || to.wants_directory() && !args.exchange {
        from.name.check_directory()?;
    }
    if to.wants_directory() && there.is_some() {
        to.check_directory()?;
    }
    if let Some(there) = &there {
        if args.no_clobber {
            return Ok(());
        }
        // A symbolic link must not replace the file to which it points. It would then point to itself, and the file would be lost.
        let replaced_by_its_link = !args.exchange
            && from.link_leads_to() == Some(there.number())
            && (there.stat().links == 1 || leads_to_name(&from.name, &to));
        if there.number() == from.number() || replaced_by_its_link {
            return Err(Failure::new(format!("'{}' and '{to}' are the same file", from.name)));
        }
        let replaces = !args.exchange && there.file_type() == FileType::Directory;
        if replaces && !from.is_directory() {
            let what = Error::new(ErrorKind::IsADirectory, "a file cannot replace a directory");
            return Err(to.failed(&what));
        }
    }
    let flags = match () {
        () if args.exchange => RenameFlags::EXCHANGE,
        () if args.no_clobber => RenameFlags::NOREPLACE,
        () => RenameFlags::empty(),
    };
    let renamed = from.fs().writable().and_then(|writer| {
        writer.rename((from.name.dir, &from.name.name), (to.dir, &to.name), flags, &caller())
    });
    renamed.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotPermitted => from.failed(&error),
        _ => to.failed(&error),
    })?;
    if args.verbose {
        let what = if args.exchange { "exchanged" } else { "renamed" };
        let arrow = if args.exchange { "<->" } else { "->" };
        report.say(format_args!("{what} {} {arrow} {}", from.name.quoted(), to.quoted()))?;
    }
    Ok(())
}
