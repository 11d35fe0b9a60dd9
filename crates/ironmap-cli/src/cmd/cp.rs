//! `ironmap cp`: out of volumes, into them, and within them.

use ironmap::fs::Follow;
use ironmap_image::copy::{CopyOptions, Keep, Times, copy};
use ironmap_image::{Failure, Report};

use crate::target::{self, Subject};

/// Copies files and directories out of a volume, into one, or within it
///
/// Into a volume it does what cp does: without -p or -a a copy is the caller's, made now, with the mode as far as the umask lets it.
/// Holes stay holes. What is there is written into, a directory is filled. Of pipes and devices of the host (/dev/stdin, say) the content is
/// copied without -r or -a, and with them the file itself.
///
/// Out of a volume everything is kept as with -a: modes, times, symbolic links, hard links within the copy, extended attributes and
/// holes; owners, device nodes and set-id bits of other owners' files only as root. An existing file is replaced by a new one, never
/// written into; nothing is written through a symbolic link below DEST.
///
/// What cannot be copied is reported, and the rest goes on. On a terminal the program shows files, bytes, rate and time left; the totals are
/// counted during the copy. Of a pipe there are none.
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
    /// Everything as it is: -r -d --preserve=all
    #[arg(short, long)]
    archive: bool,
    /// Keep mode, owner and times
    #[arg(short = 'p')]
    preserve_usual: bool,
    /// Keep these: mode (with access lists), ownership, timestamps, links, xattr, all; without a list as -p
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0.., require_equals = true)]
    preserve: Option<Vec<Kept>>,
    /// Copy symbolic links as links, and keep hard links
    #[arg(short = 'd')]
    links: bool,
    /// Copy symbolic links as links
    #[arg(short = 'P', long)]
    no_dereference: bool,
    /// Leave what is there as it is
    #[arg(short, long)]
    no_clobber: bool,
    /// Replace without asking, which is always so
    #[arg(short, long, overrides_with = "no_clobber")]
    force: bool,
    /// DEST is the copy's name, also where a directory has it
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Say what is copied
    #[arg(short, long)]
    verbose: bool,
    /// What to copy; '-' is standard input. host:PATH is a path of the host that holds ':/'
    #[arg(value_name = "VOLUME:/PATH|PATH", value_parser = target::anywhere(), required = true)]
    sources: Vec<Subject>,
    /// A directory to copy into, or the name of the copy
    #[arg(value_name = "DEST", value_parser = target::anywhere())]
    dest: Subject,
}

/// What `--preserve` names.
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

    /// Whether a symbolic link that the user named is copied itself.
    fn follow(&self) -> Follow {
        let itself = self.recurses() || self.links || self.no_dereference;
        if itself { Follow::NotLast } else { Follow::All }
    }

    /// What the copies have of their sources.
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
