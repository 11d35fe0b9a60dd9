//! `ironmap cp`: out of volumes, into them, and within them.

pub(crate) mod count;
pub(crate) mod into;
mod keep;
mod out;

use std::fmt::Display;

use ironmap::fs::{FileType, Follow};

use self::keep::{Keep, Kept};
use crate::failure::{Failure, Report};
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

impl Args {
    fn recurses(&self) -> bool {
        self.recursive || self.archive
    }

    /// Whether a symbolic link that the user named is copied itself.
    fn follow(&self) -> Follow {
        let itself = self.recurses() || self.links || self.no_dereference;
        if itself { Follow::NotLast } else { Follow::All }
    }

    /// Refuses a directory without `-r`.
    fn check_kind(&self, source: impl Display, kind: FileType) -> Result<(), Failure> {
        if kind == FileType::Directory && !self.recurses() {
            let what = "is a directory, and -r is not given (EISDIR)";
            return Err(Failure::new(format!("{source}: {what}")));
        }
        Ok(())
    }

    /// Refuses, without `-r`, a special file of a volume: the content that the copy would have is not there, and on no other host.
    fn check_content(&self, source: impl Display, kind: FileType) -> Result<(), Failure> {
        let kind = match kind {
            FileType::Regular | FileType::Directory | FileType::Symlink => return Ok(()),
            FileType::CharDevice | FileType::BlockDevice => "a device node",
            FileType::Fifo => "a fifo",
            FileType::Socket => "a socket",
        };
        if self.recurses() {
            return Ok(());
        }
        Err(Failure::new(format!("{source}: is {kind}, without content: -r copies it as it is")))
    }

    /// Whether DEST has to be a directory (`Some(true)`), or counts as none.
    fn directory(&self) -> Result<Option<bool>, Failure> {
        let several = self.sources.len() > 1;
        if self.no_target_directory && several {
            return Err(Failure::usage("with -T there is one source and one destination"));
        }
        Ok(if self.no_target_directory { Some(false) } else { several.then_some(true) })
    }
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    match &args.dest {
        Subject::Volume(dest) => into::run(args, dest, report),
        Subject::Host(dest) => out::run(args, dest, report),
    }
}
