//! `ironmap chown`: owners and groups.

use ironmap::fs::{Follow, SetAttributes};

use crate::failure::{Failure, Report};
use crate::owner::Ownership;
use crate::show::Owners;
use crate::target::{self, Target};
use crate::volumes::{Found, Volumes};
use crate::walk::{Visit, walk};

/// Changes the owner and the group of files
///
/// Names of users and groups are those of this host. With -R symbolic links are changed themselves, and none is followed. A program
/// loses its set-id bits and capabilities with its owner.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  ironmap chown 1000:1000 disk.img:/home/ann
  ironmap chown -R ann: disk.img@p2:/home/ann
  ironmap chown :www-data disk.img:/srv/www"
)]
pub(crate) struct Args {
    /// Change everything below directories too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links, not what they lead to
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Say what becomes of each file
    #[arg(short, long)]
    verbose: bool,
    /// The same, but only where something changes
    #[arg(short, long)]
    changes: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// USER, USER:GROUP, :GROUP, or USER: for the user's own group; names or numbers
    #[arg(value_name = "USER[:GROUP]", value_parser = Ownership::parse)]
    owner: Ownership,
    /// The files
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let follow = if args.no_dereference || args.recursive { Follow::NotLast } else { Follow::All };
    let owners = Owners::new(false);
    Volumes::change_each(&args.targets, report, |volumes, target, report| {
        let found = volumes.find(target, follow)?;
        if !args.recursive {
            return change(args, &found, &owners, report);
        }
        walk(found, report, |found, visit, report| match visit {
            Visit::First => change(args, found, &owners, report),
            Visit::Last { .. } => Ok(()),
        })
        .map(drop)
    })
}

fn change(args: &Args, found: &Found, owners: &Owners, report: &Report) -> Result<(), Failure> {
    let Ownership { uid, gid } = args.owner;
    let set = SetAttributes { uid, gid, ..SetAttributes::default() };
    found.fs().set_attributes(found.number(), &set).map_err(|error| found.failed(&error))?;
    let stat = found.inode.stat();
    let new = (uid.unwrap_or(stat.uid), gid.unwrap_or(stat.gid));
    let shown = |(uid, gid)| format!("{}:{}", owners.user(uid), owners.group(gid));
    let (old, name) = ((stat.uid, stat.gid), &found.name);
    match new == old {
        false if args.verbose || args.changes => report.say(format_args!(
            "changed ownership of '{name}' from {} to {}",
            shown(old),
            shown(new)
        )),
        true if args.verbose => {
            report.say(format_args!("ownership of '{name}' retained as {}", shown(new)))
        }
        _ => Ok(()),
    }
}
