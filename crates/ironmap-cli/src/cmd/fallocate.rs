//! `ironmap fallocate`: allocates and frees the space of files.

use ironmap::fs::{Fallocate, Follow};
use ironmap::units::FilePos;
use ironmap_image::new::find_or_create;
use ironmap_image::volumes::Volumes;
use ironmap_image::{Failure, Report};

use crate::size::size;
use crate::target::{self, Target};

/// Allocates or frees the space of a range of a file
///
/// Without -p, -z, -c and -i, the range is allocated, and its holes read as zeros. A missing file is made.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap fallocate -l 1G disk.img:/swap
  ironmap fallocate -p -o 4096 -l 64K disk.img:/sparse
  ironmap fallocate -c -o 0 -l 4KiB disk.img:/journal.log")]
#[command(group = clap::ArgGroup::new("what"))]
pub(crate) struct Args {
    /// The start of the range
    #[arg(short, long, value_name = "BYTES", value_parser = size, default_value = "0")]
    offset: u64,
    /// The length of the range
    #[arg(short, long, value_name = "BYTES", value_parser = size)]
    length: u64,
    /// Keep the file's size, even if the range extends past the end
    #[arg(short = 'n', long, conflicts_with_all = ["collapse_range", "insert_range"])]
    keep_size: bool,
    /// Punch a hole: free the range
    #[arg(short, long, group = "what")]
    punch_hole: bool,
    /// Allocate the range, and make it read as zeros
    #[arg(short, long, group = "what")]
    zero_range: bool,
    /// Remove the range, which must be whole blocks, from the file
    #[arg(short, long, group = "what")]
    collapse_range: bool,
    /// Insert a hole of this length, which must be whole blocks
    #[arg(short, long, group = "what")]
    insert_range: bool,
    /// The file
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target())]
    target: Target,
}

impl Args {
    fn how(&self) -> Fallocate {
        match () {
            () if self.punch_hole => Fallocate::Punch,
            () if self.zero_range => Fallocate::Zero { keep_size: self.keep_size },
            () if self.collapse_range => Fallocate::Collapse,
            () if self.insert_range => Fallocate::Insert,
            () => Fallocate::Allocate { keep_size: self.keep_size },
        }
    }
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    if args.length == 0 {
        return Err(Failure::usage("the length must be greater than zero"));
    }
    let how = args.how();
    Volumes::change(report, |volumes, _| {
        let name = volumes.name(&args.target)?;
        let number = match how {
            Fallocate::Allocate { keep_size: false } => find_or_create(&name, true)?,
            _ => Some(name.find(Follow::All)?),
        };
        let Some(inode) = number else { return Ok(()) };
        let done = name.fs().writable().and_then(|writer| {
            writer.fallocate(inode.number(), how, FilePos(args.offset), args.length)
        });
        done.map_err(|error| name.failed(&error))
    })
}
