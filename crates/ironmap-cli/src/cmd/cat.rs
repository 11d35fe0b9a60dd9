//! `ironmap cat`: writes the bytes of files to standard output.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;

use ironmap::fs::Follow;
use ironmap::{Engine, Error, FileOptions, Queue};
use ironmap_image::ahead::Ahead;
use ironmap_image::source::Source;
use ironmap_image::volumes::Volumes;
use ironmap_image::{Failure, Report};

use crate::host_source::HostSource;
use crate::target::{self, Subject, Target};

/// Writes the content of files to standard output, in order
///
/// If a file of a mounted file system must be read through the kernel, a note on standard error gives the reason.
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
    // The output is a `File`, because io::Stdout would buffer lines, which is useless for large chunks.
    let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut cat = Cat { out, volumes: Volumes::to_read(report.context()), queue: None, host: None };
    report.each(&args.targets, |target, report| match target {
        Subject::Volume(target) => cat.of_volume(target),
        Subject::Host(path) => cat.of_host(path, report),
    })
}

struct Cat {
    out: File,
    volumes: Volumes,
    /// The queue of the last volume that was read.
    queue: Option<(Rc<Source>, Queue, Ahead)>,
    host: Option<(HostSource, Queue, Ahead)>,
}

impl Cat {
    fn of_volume(&mut self, target: &Target) -> Result<(), Failure> {
        let found = self.volumes.file(target, Follow::All)?;
        let source = found.name.source;
        let file = source.file(found.inode, &target.path)?;
        let (_, queue, ahead) = match &mut self.queue {
            Some(last) if Rc::ptr_eq(&last.0, &source) => last,
            last => {
                let queue = source.queue()?;
                let ahead = Ahead::new(source.volume.engine());
                last.insert((Rc::clone(&source), queue, ahead))
            }
        };
        let failed = |error: &Error| source.read_failed(&target.path, error);
        pour(&file, queue, ahead, &mut self.out, failed)
    }

    fn of_host(&mut self, path: &Path, report: &Report) -> Result<(), Failure> {
        if self.host.is_none() {
            let source = HostSource::open()?;
            let queue = source.queue()?;
            self.host = Some((source, queue, Ahead::new(Engine::Auto)));
        }
        let Some((source, queue, ahead)) = &mut self.host else { return Ok(()) };
        let (file, found) = source.file(path, FileOptions::default())?;
        if let Some(refusal) = found.refusal {
            report.note(format!("{}: read through the kernel: {refusal}", path.display()));
        }
        let failed = |error: &Error| Failure::at(path.display(), error);
        pour(&file, queue, ahead, &mut self.out, failed)
    }
}

/// Writes the complete content of a file to an output.
fn pour(
    file: &ironmap::File,
    queue: &mut Queue,
    ahead: &mut Ahead,
    out: &mut impl Write,
    failed: impl Fn(&Error) -> Failure,
) -> Result<(), Failure> {
    // The range has no end, because the file may grow while it is read.
    ahead.read(queue, file, 0..u64::MAX, failed, |bytes| Ok(out.write_all(bytes)?)).map(drop)
}
