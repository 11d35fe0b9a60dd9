//! `ironmap cat`: the bytes of files to standard output.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;

use ironmap::bio::Buffer;
use ironmap::fs::Follow;
use ironmap::units::FilePos;
use ironmap::{Error, FileOptions, Queue};

use crate::failure::{Failure, Report};
use crate::source::{HostSource, Source};
use crate::target::{self, Subject, Target};
use crate::volumes::Volumes;

/// Bytes of one read: large enough that the cost of a request does not show.
pub(crate) const CHUNK: usize = 1 << 20;

/// Writes the content of files to standard output, one after the other
///
/// Where the kernel has to serve a file of a mounted file system, a note on standard error says why.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap cat disk.img@p2:/etc/fstab
  ironmap cat /dev/sdb1:/var/log/syslog.1 /dev/sdb1:/var/log/syslog | less
  ironmap cat host:/srv/index/segment.7 | sha256sum")]
pub(crate) struct Args {
    /// The files
    #[arg(value_name = "VOLUME:/PATH|host:FILE", value_parser = target::subject(), required = true)]
    targets: Vec<Subject>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    // Without the line buffering of io::Stdout: the chunks are large already.
    let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let buffer = Buffer::aligned(CHUNK).map_err(|error| Failure::at("memory", &error))?;
    let mut cat = Cat { out, buffer, volumes: Volumes::to_read(), queue: None, host: None };
    report.each(&args.targets, |target, report| match target {
        Subject::Volume(target) => cat.of_volume(target),
        Subject::Host(path) => cat.of_host(path, report),
    })
}

struct Cat {
    out: File,
    buffer: Buffer,
    volumes: Volumes,
    /// Of the volume that was read last.
    queue: Option<(Rc<Source>, Queue)>,
    host: Option<(HostSource, Queue)>,
}

impl Cat {
    fn of_volume(&mut self, target: &Target) -> Result<(), Failure> {
        let found = self.volumes.file(target, Follow::All)?;
        let source = found.name.source;
        let file = source.file(found.inode, &target.path)?;
        let (_, queue) = match &mut self.queue {
            Some(last) if Rc::ptr_eq(&last.0, &source) => last,
            last => {
                let queue = source.queue()?;
                last.insert((Rc::clone(&source), queue))
            }
        };
        let failed = |error: &Error| source.read_failed(&target.path, error);
        pour(&file, queue, &mut self.buffer, &mut self.out, failed)
    }

    fn of_host(&mut self, path: &Path, report: &Report) -> Result<(), Failure> {
        if self.host.is_none() {
            let source = HostSource::open()?;
            let queue = source.queue()?;
            self.host = Some((source, queue));
        }
        let Some((source, queue)) = &mut self.host else { return Ok(()) };
        let (file, found) = source.file(path, FileOptions::default())?;
        if let Some(refusal) = found.refusal {
            report.note(format!("{}: read through the kernel: {refusal}", path.display()));
        }
        let failed = |error: &Error| Failure::at(path.display(), error);
        pour(&file, queue, &mut self.buffer, &mut self.out, failed)
    }
}

/// Writes all of a file to an output.
fn pour(
    file: &ironmap::File,
    queue: &mut Queue,
    buffer: &mut Buffer,
    out: &mut impl Write,
    failed: impl Fn(&Error) -> Failure,
) -> Result<(), Failure> {
    let mut pos = FilePos(0);
    loop {
        let count = file.read_at(queue, &mut *buffer, pos).map_err(|error| failed(&error))?;
        if count == 0 {
            return Ok(());
        }
        out.write_all(&buffer[..count])?;
        pos.0 += count as u64;
    }
}
