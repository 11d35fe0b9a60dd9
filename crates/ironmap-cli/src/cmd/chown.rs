//! `ironmap chown`: changes owners and groups.

use ironmap::fs::{Follow, SetAttributes, Stat};
use ironmap_image::quote::quoted;
use ironmap_image::volumes::{Found, Volumes};
use ironmap_image::walk::{Visit, walk};
use ironmap_image::{Failure, Report};

use crate::owner::Ownership;
use crate::show::Owners;
use crate::target::{self, Target};

/// Changes the owner and the group of files
///
/// User and group names come from this host. With -R, symbolic links themselves are changed, not their targets. A change of owner
/// clears the set-id bits and capabilities of a program.
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
    /// Also change all files below directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links, not their targets
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print a line for each file
    #[arg(short, long)]
    verbose: bool,
    /// Print a line for each file that is changed
    #[arg(short, long)]
    changes: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// USER, USER:GROUP, :GROUP, or USER: for the user's own group; names or numbers
    #[arg(value_name = "USER[:GROUP]", value_parser = Owner::parse)]
    owner: Owner,
    /// The files
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

/// An argument `USER[:GROUP]`: the numbers, and the texts that `-v` prints for the user and the group.
#[derive(Clone, Debug)]
struct Owner {
    ids: Ownership,
    user: Option<String>,
    group: Option<String>,
}

impl Owner {
    fn parse(text: &str) -> Result<Self, String> {
        let ids = Ownership::parse(text)?;
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        let number_or_name = |text: &str| text.strip_prefix('+').unwrap_or(text).to_owned();
        let group = ids.gid.map(|gid| match group {
            "" => Owners::new(false).group(gid),
            group => number_or_name(group),
        });
        // The message contains ":GROUP" for a group name, but not for a group number. chown prints the same message.
        let named = group.as_ref().is_some_and(|group| group.parse::<u32>().is_err());
        let user = (ids.uid.is_some() || named).then(|| number_or_name(user));
        Ok(Self { ids, user, group })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Changed,
    Retained,
    Failed,
}

/// Changes owners, and prints the messages of chown.
struct Change<'a> {
    args: &'a Args,
    owners: Owners,
}

impl Change<'_> {
    fn of(&self, found: &Found, report: &Report) -> Result<(), Failure> {
        let Ownership { uid, gid } = self.args.owner.ids;
        let set = SetAttributes::new().uid(uid).gid(gid);
        let stat = found.inode.stat();
        let same = uid.unwrap_or(stat.uid) == stat.uid && gid.unwrap_or(stat.gid) == stat.gid;
        let changed =
            found.fs().writable().and_then(|writer| writer.set_attributes(found.number(), &set));
        let outcome = match &changed {
            Err(_) => Outcome::Failed,
            Ok(()) if same => Outcome::Retained,
            Ok(()) => Outcome::Changed,
        };
        self.say(&found.name.quoted(), outcome, Some(stat), report)?;
        changed.map_err(|error| found.failed(&error))
    }

    fn say(
        &self,
        name: &str,
        outcome: Outcome,
        old: Option<&Stat>,
        report: &Report,
    ) -> Result<(), Failure> {
        let Args { verbose, changes, owner: Owner { user, group, .. }, .. } = self.args;
        if !(*verbose || *changes && outcome == Outcome::Changed) {
            return Ok(());
        }
        let what = if user.is_none() && group.is_some() { "group" } else { "ownership" };
        let both = |user: Option<String>, group: Option<String>| match (user, group) {
            (Some(user), Some(group)) => Some(format!("{user}:{group}")),
            (user, group) => user.or(group),
        };
        let old = old.and_then(|stat| {
            let user = user.as_ref().map(|_| self.owners.user(stat.uid));
            both(user, group.as_ref().map(|_| self.owners.group(stat.gid)))
        });
        let phrase = |word: &str, owner: Option<String>| {
            owner.map_or(String::new(), |owner| format!(" {word} {owner}"))
        };
        if outcome == Outcome::Retained {
            return report.say(format_args!("{what} of {name} retained{}", phrase("as", old)));
        }
        let verb = if outcome == Outcome::Changed { "changed" } else { "failed to change" };
        let (old, new) = (phrase("from", old), phrase("to", both(user.clone(), group.clone())));
        report.say(format_args!("{verb} {what} of {name}{old}{new}"))
    }
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let follow = if args.no_dereference || args.recursive { Follow::NotLast } else { Follow::All };
    let change = Change { args, owners: Owners::new(false) };
    Volumes::change_each(&args.targets, report, |volumes, target, report| {
        let found = match volumes.find(target, follow) {
            Ok(found) => found,
            Err(failure) => {
                // The message contains the owner of a symbolic link whose target does not exist.
                let link = volumes.find(target, Follow::NotLast).ok();
                let old = link.as_ref().map(|link| link.inode.stat());
                change.say(&quoted(&target.bytes()), Outcome::Failed, old, report)?;
                return Err(failure);
            }
        };
        if !args.recursive {
            return change.of(&found, report);
        }
        walk(found, report, |found, visit, report| match visit {
            Visit::First => change.of(found, report),
            Visit::Last { .. } => Ok(()),
        })
        .map(drop)
    })
}
