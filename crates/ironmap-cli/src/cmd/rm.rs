//! `ironmap rm`: removes names. A file without a remaining name is freed.

use ironmap::fs::Follow;
use ironmap::{Error, ErrorKind};
use ironmap_image::volumes::{Found, Volumes};
use ironmap_image::walk::{Visit, walk};
use ironmap_image::{Failure, Report};

use crate::target::{self, Target};

/// Removes files, and directories with their content
///
/// rm never asks. It refuses to remove the root of a volume, `.` and `..`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap rm disk.img:/var/log/syslog
  ironmap rm -rf disk.img@p2:/tmp/build disk.img@p2:/var/cache")]
pub(crate) struct Args {
    /// Ignore missing files
    #[arg(short, long)]
    force: bool,
    /// Remove directories and all files below them
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Remove empty directories
    #[arg(short, long)]
    dir: bool,
    /// Print each removed file
    #[arg(short, long)]
    verbose: bool,
    /// The files
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target())]
    #[arg(required_unless_present = "force")]
    targets: Vec<Target>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    Volumes::change_each(&args.targets, report, |volumes, target, report| {
        forgive(args, remove_target(args, volumes, target, report))
    })
}

/// With `-f`, returns success if the file does not exist or cannot exist.
fn forgive(args: &Args, removed: Result<(), Failure>) -> Result<(), Failure> {
    match removed {
        Err(failure) if args.force && failure.is_missing() => Ok(()),
        removed => removed,
    }
}

fn remove_target(
    args: &Args,
    volumes: &mut Volumes,
    target: &Target,
    report: &mut Report,
) -> Result<(), Failure> {
    let name = volumes.name(target)?;
    if matches!(&*name.name, b"." | b"..") {
        return Err(Failure::new(format!("{name}: '.', '..' and the root cannot be removed")));
    }
    let inode = name.find(Follow::NotLast)?;
    let found = Found { name, inode };
    if args.recursive {
        return walk(found, report, |found, visit, report| match (found.is_directory(), visit) {
            (true, Visit::First) | (_, Visit::Last { intact: false }) => Ok(()),
            _ => forgive(args, remove(args, found, report)),
        })
        .map(drop);
    }
    if found.is_directory() && !args.dir {
        return Err(found.failed(&Error::new(ErrorKind::IsADirectory, "is a directory")));
    }
    remove(args, &found, report)
}

fn remove(args: &Args, found: &Found, report: &Report) -> Result<(), Failure> {
    let (fs, dir, name) = (found.fs(), found.name.dir, &found.name.name);
    let directory = found.is_directory();
    let removed = if directory {
        fs.writable().and_then(|writer| writer.rmdir(dir, name))
    } else {
        fs.writable().and_then(|writer| writer.unlink(dir, name))
    };
    removed.map_err(|error| found.failed(&error))?;
    if args.verbose {
        let what = if directory { "removed directory" } else { "removed" };
        report.say(format_args!("{what} {}", found.name.quoted()))?;
    }
    Ok(())
}
