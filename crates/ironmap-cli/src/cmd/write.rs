//! `ironmap write`: writes standard input to a file of a volume.

use ironmap::fs::{FileSystem, FileType, Follow, Inode};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Error, ErrorKind};
use ironmap_image::ahead::CHUNK;
use ironmap_image::new::find_or_create;
use ironmap_image::volumes::{Name, Volumes};
use ironmap_image::{Failure, Report};

use crate::interrupt;
use crate::size::size;
use crate::target::{self, Target};

/// Writes standard input to a file, and makes the file if it does not exist
///
/// Without --append and --offset, the input replaces the content of the file.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap write disk.img:/etc/hostname < hostname
  ironmap write --append disk.img@p2:/etc/fstab < line
  ironmap write --offset 4k disk.img:/srv/data < block")]
pub(crate) struct Args {
    /// Write at the end of the file
    #[arg(short, long)]
    append: bool,
    /// Overwrite from this byte on: 4096, 4k, 1M
    #[arg(short, long, value_name = "N", value_parser = size, conflicts_with = "append")]
    offset: Option<u64>,
    /// The file
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target())]
    target: Target,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    Volumes::change(report, |volumes, _| {
        let name = volumes.name(&args.target)?;
        if let Some(inode) = name.look(Follow::All)? {
            check_kind(&name, &inode)?;
        }
        // The first chunk is read before the file is truncated. If the input is unreadable, the file keeps its content.
        let mut chunk = Vec::with_capacity(CHUNK);
        let ended = fill(&mut chunk)?;
        let Some(inode) = find_or_create(&name, true)? else { return Ok(()) };
        check_kind(&name, &inode)?;
        let failed = |error: Error| name.failed(&error);
        let pos = match args.offset {
            Some(offset) => offset,
            None if args.append => inode.size(),
            None => {
                name.fs()
                    .writable()
                    .and_then(|writer| writer.truncate(inode.number(), 0))
                    .map_err(failed)?;
                0
            }
        };
        let input = Input { chunk, ended };
        input.pour(&name, inode.number(), pos)
    })
}

fn check_kind(name: &Name, inode: &Inode) -> Result<(), Failure> {
    let error = match inode.file_type() {
        FileType::Regular => return Ok(()),
        FileType::Directory => Error::new(ErrorKind::IsADirectory, "is a directory"),
        _ => Error::new(ErrorKind::WrongFileType, "is not a regular file"),
    };
    Err(name.failed(&error))
}

/// A chunk that was read from standard input, and whether it is the last chunk.
struct Input {
    chunk: Vec<u8>,
    ended: bool,
}

impl Input {
    /// Writes the chunk and the remaining input from a position on.
    fn pour(mut self, name: &Name, number: InodeNo, mut pos: u64) -> Result<(), Failure> {
        loop {
            let written = write_all(&**name.fs(), number, pos, &self.chunk);
            written.map_err(|error| name.failed(&error))?;
            if self.ended {
                return Ok(());
            }
            pos = pos.saturating_add(self.chunk.len() as u64);
            self.chunk.clear();
            self.ended = fill(&mut self.chunk)?;
        }
    }
}

fn write_all(fs: &dyn FileSystem, number: InodeNo, pos: u64, chunk: &[u8]) -> ironmap::Result<()> {
    let mut done = 0;
    while done < chunk.len() {
        let count = fs.writable().and_then(|writer| {
            writer.write(number, FilePos(pos.saturating_add(done as u64)), &chunk[done..])
        })?;
        if count == 0 {
            return Err(Error::new(ErrorKind::NoSpace, "the volume has no free blocks"));
        }
        done += count;
    }
    Ok(())
}

/// Reads standard input until the chunk is full or the input ends. Returns whether the input has ended.
fn fill(chunk: &mut Vec<u8>) -> Result<bool, Failure> {
    // The descriptor is read directly. The standard library treats an unreadable standard input as empty.
    let input = rustix::stdio::stdin();
    while chunk.len() < CHUNK {
        // The wait ends when the input has data or a signal arrives.
        interrupt::stop().wait(input, || true).or_else(|_| interrupt::check())?;
        let room = (CHUNK - chunk.len()) as u64;
        // One read returns the available bytes. A second read could block, and delay the reaction to a signal.
        let mut part = vec![0; room.min(64 << 10) as usize];
        let count = rustix::io::retry_on_intr(|| rustix::io::read(input, &mut part));
        let count = count.map_err(|error| Failure::host("standard input", error))?;
        if count == 0 {
            return Ok(true);
        }
        chunk.extend_from_slice(&part[..count]);
    }
    Ok(false)
}
