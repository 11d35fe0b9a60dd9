//! `ironmap mkdir`: makes directories.

use ironmap::fs::{FileSystem, FileType, Follow, NewFile, SetAttributes};
use ironmap::units::InodeNo;
use ironmap::{Error, ErrorKind};
use ironmap_image::new::caller;
use ironmap_image::new::umask;
use ironmap_image::volumes::{Name, Volumes};
use ironmap_image::{Failure, Report};

use crate::mode::ModeChange;
use crate::target::{self, Target};

const SET_GROUP: u32 = 0o2000;

/// Makes directories
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap mkdir disk.img:/srv
  ironmap mkdir -p -m 750 disk.img@p2:/srv/www/log")]
pub(crate) struct Args {
    /// Also make parent directories, and accept existing directories
    #[arg(short, long)]
    parents: bool,
    /// The mode, in the syntax of chmod; only for the last directory of a path
    #[arg(short, long, value_name = "MODE", value_parser = ModeChange::parse)]
    mode: Option<ModeChange>,
    /// Print each new directory
    #[arg(short, long)]
    verbose: bool,
    /// The directories
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

/// The mode of a new directory.
#[derive(Clone, Copy)]
struct NewMode {
    permissions: u32,
    umask: u32,
    /// Whether the directory inherits the set-group-ID bit of its parent.
    inherits: bool,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    Volumes::change_each(&args.targets, report, |volumes, target, report| {
        if args.parents {
            let new = NewMode { permissions: 0o777, umask: umask() & !0o300, inherits: true };
            for above in above(target) {
                make_missing(args, &volumes.name(&above)?, new, report)?;
            }
        }
        let new = match &args.mode {
            // The umask does not apply to a mode from the user.
            Some(mode) => NewMode {
                permissions: mode.apply(0o777, true, umask()),
                umask: 0,
                inherits: mode.apply(0o777 | SET_GROUP, true, umask()) & SET_GROUP != 0,
            },
            None => NewMode { permissions: 0o777, umask: umask(), inherits: true },
        };
        let make = if args.parents { make_missing } else { make };
        make(args, &volumes.name(target)?, new, report)
    })
}

fn make_missing(args: &Args, name: &Name, new: NewMode, report: &Report) -> Result<(), Failure> {
    match name.look(Follow::All)? {
        None => make(args, name, new, report),
        Some(there) if there.file_type() == FileType::Directory => Ok(()),
        Some(_) => {
            Err(name
                .failed(&Error::new(ErrorKind::Exists, "the name exists, but is not a directory")))
        }
    }
}

fn make(args: &Args, name: &Name, new: NewMode, report: &Report) -> Result<(), Failure> {
    // The library gets the umask. It ignores the umask if the parent directory has a default access control list.
    let mut who = caller();
    who.umask = new.umask;
    let fs = name.fs();
    let made = fs
        .writable()
        .and_then(|writer| {
            writer.create(name.dir, &name.name, NewFile::Directory, new.permissions, &who)
        })
        .and_then(|made| if new.inherits { Ok(()) } else { drop_set_group(&**fs, made) });
    made.map_err(|error| name.failed(&error))?;
    if args.verbose {
        report.say(format_args!("mkdir: created directory {}", name.quoted()))?;
    }
    Ok(())
}

fn drop_set_group(fs: &dyn FileSystem, dir: InodeNo) -> ironmap::Result<()> {
    let mode = fs.inode(dir)?.stat().mode & 0o7777;
    if mode & SET_GROUP == 0 {
        return Ok(());
    }
    fs.writable().and_then(|writer| {
        writer.set_attributes(dir, &SetAttributes::new().permissions(mode & !SET_GROUP))
    })
}

/// The directories above a path, the topmost first.
fn above(target: &Target) -> impl Iterator<Item = Target> {
    let path = target.path.strip_suffix(b"/").unwrap_or(&target.path);
    let slashes = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| Target { path: path[..at].to_vec(), ..target.clone() })
}
