//! `ironmap cp`: copies files out of volumes, into volumes, and within volumes.

use ironmap::fs::Follow;
use ironmap_image::copy::{CopyOptions, Keep, Times, copy};
use ironmap_image::{Failure, Report};

use crate::target::{self, Subject};

/// Copies files and directories out of a volume, into a volume, or within a volume
///
/// Into a volume, it copies as cp does. Without -p or -a, a copy belongs to the caller and has the current time. Its mode is the source's
/// mode without the bits of the umask. Holes stay holes. An existing file is overwritten in place, and an existing directory is filled.
/// Without -r or -a, cp copies the content of a host pipe or device (such as /dev/stdin). With -r or -a, cp copies the pipe or device
/// itself.
///
/// Out of a volume, cp keeps the same as with -a: modes, times, symbolic links, hard links within the copy, extended attributes and holes.
/// Owners, device nodes, and set-id bits of other owners' files are kept only as root. An existing file is replaced by a new file, and is
/// not overwritten in place. Symbolic links below DEST are not followed.
///
/// If a file cannot be copied, the failure is reported, and the copy continues. On a terminal, the program shows files, bytes, rate and
/// remaining time. The totals are counted during the copy. A pipe has no totals.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap cp disk.img@p2:/etc/fstab .
  ironmap cp -r /dev/sdb1:/home/ann /srv/rescue
  ironmap cp -a /srv/www disk.img:/srv
  ironmap cp -r tree/. disk.img:/
  ironmap cp -a disk.img:/etc disk.img:/etc.bak")]
pub(crate) struct Args {
    /// Copy directories and everything below them; copy symbolic links as links
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Keep everything: -r -d --preserve=all
    #[arg(short, long)]
    archive: bool,
    /// Keep mode, owner and times
    #[arg(short = 'p')]
    preserve_usual: bool,
    /// Attributes to keep: mode (with access lists), ownership, timestamps, links, xattr, all; without a list, as -p
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0.., require_equals = true)]
    preserve: Option<Vec<Kept>>,
    /// Copy symbolic links as links, and keep hard links
    #[arg(short = 'd')]
    links: bool,
    /// Copy symbolic links as links
    #[arg(short = 'P', long)]
    no_dereference: bool,
    /// Do not change existing files
    #[arg(short, long)]
    no_clobber: bool,
    /// Replace without asking, which is the default
    #[arg(short, long, overrides_with = "no_clobber")]
    force: bool,
    /// Treat DEST as the name of the copy, even if DEST is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Print each file that is copied
    #[arg(short, long)]
    verbose: bool,
    /// Source; '-' is standard input. Write host:PATH for a host path that contains ':/'
    #[arg(value_name = "VOLUME:/PATH|PATH", value_parser = target::anywhere(), required = true)]
    sources: Vec<Subject>,
    /// A directory to copy into, or the name of the copy
    #[arg(value_name = "DEST", value_parser = target::anywhere())]
    dest: Subject,
}

/// An attribute that `--preserve` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kept {
    Mode,
    Ownership,
    Timestamps,
    Links,
    Xattr,
    Context,
    All,
}

impl Args {
    fn recurses(&self) -> bool {
        self.recursive || self.archive
    }

    /// Whether `cp` follows a symbolic link that the user named. Otherwise `cp` copies the link itself.
    fn follow(&self) -> Follow {
        let itself = self.recurses() || self.links || self.no_dereference;
        if itself { Follow::NotLast } else { Follow::All }
    }

    /// The attributes that the copies keep.
    fn keep(&self) -> Keep {
        let mut keep = if self.archive { Keep::ALL } else { Keep::default() };
        keep.links |= self.links;
        if self.preserve_usual || self.preserve.as_ref().is_some_and(Vec::is_empty) {
            keep = keep.or(Keep::USUAL);
        }
        for kept in self.preserve.iter().flatten() {
            match kept {
                Kept::Mode => keep.mode = true,
                Kept::Ownership => keep.ownership = true,
                Kept::Timestamps => keep.times = Times::Kept,
                Kept::Links => keep.links = true,
                Kept::Xattr | Kept::Context => keep.xattrs = true,
                Kept::All => keep = Keep::ALL,
            }
        }
        keep
    }

    fn options(&self) -> CopyOptions {
        CopyOptions {
            sources: self.sources.clone(),
            recurses: self.recurses(),
            follow: self.follow(),
            keep: self.keep(),
            no_clobber: self.no_clobber,
            no_target_directory: self.no_target_directory,
            verbose: self.verbose,
        }
    }
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    copy(&args.options(), &args.dest, report)
}
