//! `ironmap cat`: a file's bytes to standard output.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use ironmap::bio::Buffer;
use ironmap::fs::ext4::Follow;
use ironmap::units::FilePos;
use ironmap::{FileOptions, Queue};

use crate::failure::{Failure, Report};
use crate::source::{HostSource, Source};
use crate::target::{self, Subject};

/// What one read takes: large enough that the cost of a request does not show.
pub(crate) const CHUNK: usize = 1 << 20;

/// Writes a file's content to standard output
///
/// Where the kernel has to serve a file of a mounted file system, a note on standard error says why.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap cat disk.img@p2:/etc/fstab
  ironmap cat /dev/sdb1:/var/log/syslog | less
  ironmap cat host:/srv/index/segment.7 | sha256sum")]
pub(crate) struct Args {
    /// The file
    #[arg(value_name = "VOLUME:/PATH|host:FILE", value_parser = target::subject())]
    target: Subject,
}

pub(crate) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    let Open { file, mut queue, volume } = open(args, report)?;
    let failed = |error: ironmap::Error| match (&args.target, &volume) {
        (Subject::Volume(target), Some(volume)) => volume.read_failed(&target.path, &error),
        _ => Failure::at(&args.target, &error),
    };
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

/// What is read, and its volume where that is not the host's.
struct Open {
    file: ironmap::File,
    queue: Queue,
    volume: Option<Source>,
}

fn open(args: &Args, report: &Report) -> Result<Open, Failure> {
    match &args.target {
        Subject::Volume(target) => {
            let (source, inode) = Source::open_target(target, Follow::All)?;
            let (file, queue) = (source.file(inode, &target.path)?, source.queue()?);
            Ok(Open { file, queue, volume: Some(source) })
        }
        Subject::Host(path) => {
            let source = HostSource::open()?;
            let (file, found) = source.file(path, FileOptions::default())?;
            if let Some(refusal) = found.refusal {
                report.note(format!("{}: read through the kernel: {refusal}", path.display()));
            }
            Ok(Open { file, queue: source.queue()?, volume: None })
        }
    }
}
