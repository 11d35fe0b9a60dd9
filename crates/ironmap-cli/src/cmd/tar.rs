//! `ironmap tar`: writes a tree of a volume as a tar archive.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;

use clap::ArgAction;
use ironmap::fs::Follow;
use ironmap_image::room;
use ironmap_image::source::Source;
use ironmap_image::spared::Spared;
use ironmap_image::tar::{self, Output};
use ironmap_image::volumes::{Found, Name};
use ironmap_image::{Failure, Report};

use crate::failure::{FORCED, overwrite};
use crate::interrupt;
use crate::target::{self, Target};
use crate::whole::Whole;

/// Writes a directory of a volume, and everything below it, as a tar archive
///
/// The format is pax: times to the nanosecond, owners by number, hard links, devices, extended attributes (in the form of GNU tar
/// --xattrs). Names are sorted by their bytes, so the same volume gives the same archive. A tar archive cannot contain sockets, so sockets
/// are skipped. An empty lost+found is skipped too. As with GNU tar --sparse, holes are not stored. Unwritten extents count as holes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap tar disk.img@p2:/etc | tar -tv
  ironmap tar -f www.tar /dev/sdb1:/srv/www
  ironmap tar old.img:/ | ironmap mkfs --shrink -d - new.img")]
pub(crate) struct Args {
    /// Write to this file; by default or with "-", to standard output
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Overwrite a FILE that contains a file system, a partition table or an image; -F -F also overwrites a member of an MD array or of an LVM
    /// volume group
    #[arg(short = 'F', long, action = ArgAction::Count, requires = "file")]
    force: u8,
    /// Write holes as zeros, for programs that cannot read sparse members (GNU.sparse of pax)
    #[arg(long)]
    no_sparse: bool,
    /// A directory, or a file
    #[arg(value_name = "VOLUME:/DIR", value_parser = target::target())]
    target: Target,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let source = Rc::new(Source::open(&args.target.volume, report.context())?);
    let name = Name::root(&source).beside(&args.target.path)?;
    let inode = name.find(Follow::All)?;
    interrupt::catch();
    let file = args.file.as_ref().filter(|path| path.as_os_str() != "-");
    let (whole, out, place) = match file {
        Some(path) => {
            if args.force == 0 {
                room::refuse_archive(path)?;
            }
            let spared = Spared::of(&args.target.volume, report.context());
            let (whole, file) = Whole::create(path, &spared, overwrite(args.force), FORCED)?;
            (Some(whole), file, Some(path.display().to_string()))
        }
        None => (None, File::from(io::stdout().as_fd().try_clone_to_owned()?), None),
    };
    let out = Output { file: out, place };
    tar::write(Found { name, inode }, out, !args.no_sparse, report)?;
    whole.map_or(Ok(()), Whole::keep)
}
