//! `ironmap chmod`: permissions.

use ironmap::fs::{FileType, Follow, SetAttributes};

use crate::failure::{Failure, Report};
use crate::mode::{ModeChange, umask};
use crate::show;
use crate::target::{self, Target};
use crate::volumes::{Found, Volumes};
use crate::walk::{Visit, walk};

/// Changes the permissions of files
///
/// A symbolic link that is named is followed; those below a directory are left alone.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap chmod 640 disk.img:/etc/shadow
  ironmap chmod -R u=rwX,go=rX disk.img:/srv/www
  ironmap chmod -- -x disk.img:/a disk.img:/b")]
pub(crate) struct Args {
    /// Change everything below directories too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Say what becomes of each file
    #[arg(short, long)]
    verbose: bool,
    /// The same, but only where something changes
    #[arg(short, long)]
    changes: bool,
    /// As an octal number, or like u+x,go-w
    #[arg(value_name = "MODE", value_parser = ModeChange::parse, allow_hyphen_values = true)]
    mode: ModeChange,
    /// The files
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let umask = umask();
    Volumes::change_each(&args.targets, report, |volumes, target, report| {
        let found = volumes.find(target, Follow::All)?;
        if !args.recursive {
            return change(args, &found, umask, report);
        }
        walk(found, report, |found, visit, report| {
            let link = found.inode.file_type() == FileType::Symlink;
            if visit != Visit::First || link { Ok(()) } else { change(args, found, umask, report) }
        })
        .map(drop)
    })
}

fn change(args: &Args, found: &Found, umask: u32, report: &Report) -> Result<(), Failure> {
    let (kind, old) = (found.inode.file_type(), found.inode.stat().mode & 0o7777);
    let mode = args.mode.apply(old, found.is_directory(), umask);
    let set = SetAttributes { permissions: Some(mode), ..SetAttributes::default() };
    found.fs().set_attributes(found.number(), &set).map_err(|error| found.failed(&error))?;
    let shown = |mode: u32| format!("{mode:04o} ({})", &show::permissions(kind, mode)[1..]);
    match mode == old {
        false if args.verbose || args.changes => report.say(format_args!(
            "mode of '{}' changed from {} to {}",
            found.name,
            shown(old),
            shown(mode)
        )),
        true if args.verbose => {
            report.say(format_args!("mode of '{}' retained as {}", found.name, shown(mode)))
        }
        _ => Ok(()),
    }
}
