//! `ironmap chmod`: changes permissions.

use ironmap::fs::{FileType, Follow, SetAttributes};
use ironmap_image::new::umask;
use ironmap_image::quote::quoted;
use ironmap_image::volumes::{Found, Volumes};
use ironmap_image::walk::{Visit, walk};
use ironmap_image::{Failure, Report};

use crate::mode::ModeChange;
use crate::show::{self};
use crate::target::{self, Target};

/// Changes the permissions of files
///
/// A symbolic link in an argument is followed. Symbolic links below a directory are not changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap chmod 640 disk.img:/etc/shadow
  ironmap chmod -R u=rwX,go=rX disk.img:/srv/www
  ironmap chmod -- -x disk.img:/a disk.img:/b")]
pub(crate) struct Args {
    /// Also change all files below directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print a line for each file
    #[arg(short, long)]
    verbose: bool,
    /// Print a line for each file that is changed
    #[arg(short, long)]
    changes: bool,
    /// An octal number, or changes like u+x,go-w
    #[arg(value_name = "MODE", value_parser = ModeChange::parse, allow_hyphen_values = true)]
    mode: ModeChange,
    /// The files
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let umask = umask();
    Volumes::change_each(&args.targets, report, |volumes, target, report| {
        let found = match volumes.find(target, Follow::All) {
            Ok(found) => found,
            Err(failure) => {
                if args.verbose {
                    let shown = quoted(&target.bytes());
                    report.say(format_args!("{shown} could not be accessed"))?;
                }
                return Err(failure);
            }
        };
        if !args.recursive {
            return change(args, &found, umask, report);
        }
        walk(found, report, |found, visit, report| match visit {
            Visit::First => change(args, found, umask, report),
            Visit::Last { .. } => Ok(()),
        })
        .map(drop)
    })
}

fn change(args: &Args, found: &Found, umask: u32, report: &Report) -> Result<(), Failure> {
    let (kind, old) = (found.inode.file_type(), found.inode.stat().mode & 0o7777);
    let name = found.name.quoted();
    if kind == FileType::Symlink {
        if args.verbose {
            let what = "nor referent has been changed";
            report.say(format_args!("neither symbolic link {name} {what}"))?;
        }
        return Ok(());
    }
    let mode = args.mode.apply(old, found.is_directory(), umask);
    let set = SetAttributes::new().permissions(mode);
    let changed =
        found.fs().writable().and_then(|writer| writer.set_attributes(found.number(), &set));
    let shown = |mode: u32| format!("{mode:04o} ({})", &show::permissions(kind, mode)[1..]);
    let (from, to) = (shown(old), shown(mode));
    match &changed {
        Err(_) if args.verbose => {
            report.say(format_args!("failed to change mode of {name} from {from} to {to}"))?;
        }
        Ok(()) if mode != old && (args.verbose || args.changes) => {
            report.say(format_args!("mode of {name} changed from {from} to {to}"))?;
        }
        Ok(()) if mode == old && args.verbose => {
            report.say(format_args!("mode of {name} retained as {to}"))?;
        }
        _ => {}
    }
    changed.map_err(|error| found.failed(&error))
}
