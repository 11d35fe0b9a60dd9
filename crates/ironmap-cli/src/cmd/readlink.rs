//! `ironmap readlink`: shows the targets of symbolic links.

use std::io::Write;

use ironmap::fs::Follow;
use ironmap_image::source::Source;
use ironmap_image::volumes::Volumes;
use ironmap_image::{Failure, Report};

use crate::canonical::path_without_links;
use crate::target::{self, Target, inode_of};
use crate::terminal::stdout;

/// Shows the targets of symbolic links
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap readlink disk.img:/etc/localtime
  ironmap readlink -f disk.img:/usr/bin/python3")]
pub(crate) struct Args {
    /// Follow every link of the path, and show the resulting path from the root of the volume; the last name need not exist
    #[arg(short = 'f', long)]
    canonicalize: bool,
    /// The symbolic links; with -f any files
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut volumes = Volumes::to_read(report.context());
    let mut out = stdout();
    report.each(&args.targets, |target, _| {
        let text = if args.canonicalize {
            let source = volumes.open(&target.volume)?;
            canonical(&source, target)?
        } else {
            let found = volumes.file(target, Follow::NotLast)?;
            let link = found.name.source.link_target(&found.inode, &target.path)?;
            link.ok_or_else(|| Failure::new(format!("{target}: is not a symbolic link")))?
        };
        out.write_all(&out.shown(&text))?;
        Ok(out.write_all(b"\n")?)
    })?;
    Ok(out.flush()?)
}

/// The canonical path of a file: it has no symbolic links, `.` or `..`.
fn canonical(source: &Source, target: &Target) -> Result<Vec<u8>, Failure> {
    if inode_of(&target.path).is_some() {
        return Err(Failure::usage(format_args!(
            "{target}: this is an inode number, not a path: name the file by its path"
        )));
    }
    path_without_links(source, &target.path).map_err(|error| Failure::at(target, &error))
}
