//! `ironmap cat`: a file's bytes to standard output.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use ironmap::bio::Buffer;
use ironmap::fs::ext4::Follow;
use ironmap::units::FilePos;

use crate::failure::Failure;
use crate::source::Source;
use crate::target::{self, Target};

/// What one read takes: large enough that the cost of a request does not show.
pub(crate) const CHUNK: usize = 1 << 20;

/// Writes a file's content to standard output
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap cat disk.img@p2:/etc/fstab
  ironmap cat /dev/sdb1:/var/log/syslog | less")]
pub(crate) struct Args {
    /// The file
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target())]
    target: Target,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (source, inode) = Source::open_target(&args.target, Follow::All)?;
    let file = source.file(inode, &args.target.path)?;
    let mut queue = source.queue()?;
    let failed = |error: ironmap::Error| Failure::at(&args.target, &error);
    let mut buffer = Buffer::aligned(CHUNK).map_err(failed)?;
    // Without the line buffering of io::Stdout: the chunks are large already.
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut pos = FilePos(0);
    loop {
        let count = file.read_at(&mut queue, &mut buffer, pos).map_err(failed)?;
        if count == 0 {
            return Ok(());
        }
        out.write_all(&buffer[..count])?;
        pos.0 += count as u64;
    }
}
