//! `ironmap mkdir`: new directories.

use ironmap::fs::{FileType, Follow, NewFile};
use ironmap::{Error, ErrorKind};

use crate::failure::{Failure, Report};
use crate::mode::{ModeChange, umask};
use crate::new::caller;
use crate::target::{self, Target};
use crate::volumes::{Name, Volumes};

/// Makes directories
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap mkdir disk.img:/srv
  ironmap mkdir -p -m 750 disk.img@p2:/srv/www/log")]
pub(crate) struct Args {
    /// Make parent directories too, and accept existing directories
    #[arg(short, long)]
    parents: bool,
    /// The mode, as chmod takes it; of the last directory only
    #[arg(short, long, value_name = "MODE", value_parser = ModeChange::parse)]
    mode: Option<ModeChange>,
    /// Print each new directory
    #[arg(short, long)]
    verbose: bool,
    /// The directories
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    Volumes::change_each(&args.targets, report, |volumes, target, report| {
        if args.parents {
            for above in above(target) {
                make_missing(args, &volumes.name(&above)?, 0o777, umask() & !0o300, report)?;
            }
        }
        // A mode that the user gave is not masked.
        let (permissions, umask) = match &args.mode {
            Some(mode) => (mode.apply(0o777, true, umask()), 0),
            None => (0o777, umask()),
        };
        let make = if args.parents { make_missing } else { make };
        make(args, &volumes.name(target)?, permissions, umask, report)
    })
}

fn make_missing(
    args: &Args,
    name: &Name,
    permissions: u32,
    umask: u32,
    report: &Report,
) -> Result<(), Failure> {
    match name.look(Follow::All)? {
        None => make(args, name, permissions, umask, report),
        Some(there) if there.file_type() == FileType::Directory => Ok(()),
        Some(_) => {
            Err(name.failed(&Error::new(ErrorKind::Exists, "exists, and is not a directory")))
        }
    }
}

fn make(
    args: &Args,
    name: &Name,
    permissions: u32,
    umask: u32,
    report: &Report,
) -> Result<(), Failure> {
    // An access list that the directory above has for new ones takes the umask's place.
    let mut who = caller();
    who.umask = umask;
    let made = name.fs().create(name.dir, &name.name, NewFile::Directory, permissions, &who);
    made.map_err(|error| name.failed(&error))?;
    if args.verbose {
        report.say(format_args!("mkdir: created directory {}", name.quoted()))?;
    }
    Ok(())
}

/// The directories above a path, the topmost first.
fn above(target: &Target) -> impl Iterator<Item = Target> {
    let path = target.path.strip_suffix(b"/").unwrap_or(&target.path);
    let slashes = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| Target { path: path[..at].to_vec(), ..target.clone() })
}
