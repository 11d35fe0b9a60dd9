//! `ironmap readlink`: where symbolic links lead.

use std::io::Write;

use ironmap::fs::{FileType, Follow};
use ironmap::{Error, ErrorKind};

use crate::failure::{Failure, Report};
use crate::output::stdout;
use crate::source::Source;
use crate::target::{self, Target, inode_of};
use crate::volumes::Volumes;

/// Shows the targets of symbolic links
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap readlink disk.img:/etc/localtime
  ironmap readlink -f disk.img:/usr/bin/python3")]
pub(crate) struct Args {
    /// Follow every link of the path, and show the final path from the root of the volume; the last name need not exist
    #[arg(short = 'f', long)]
    canonicalize: bool,
    /// The symbolic links; with -f any files
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut volumes = Volumes::to_read();
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
        out.write_all(&text)?;
        Ok(out.write_all(b"\n")?)
    })?;
    Ok(out.flush()?)
}

/// As many as Linux follows on the way of one path.
const MAX_LINKS: usize = 40;

/// The path of a file without links, `.` and `..`.
fn canonical(source: &Source, target: &Target) -> Result<Vec<u8>, Failure> {
    if inode_of(&target.path).is_some() {
        return Err(Failure::usage(format_args!("{target}: an inode number has no path")));
    }
    follow(source, &target.path).map_err(|error| Failure::at(target, &error))
}

fn follow(source: &Source, path: &[u8]) -> ironmap::Result<Vec<u8>> {
    let fs = source.fs();
    // The names of the directories down to where it stands, with their inodes; the components to come, the next one last.
    let mut stack = Vec::new();
    let mut rest = components(path);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        match &*name {
            b"" | b"." => continue,
            b".." => {
                stack.pop();
                continue;
            }
            _ => {}
        }
        let dir = stack.last().map_or(fs.root(), |(_, number)| *number);
        let inode = match fs.lookup(dir, &name) {
            Err(error) if error.kind() == ErrorKind::NotFound && rest.iter().all(Vec::is_empty) => {
                stack.push((name, dir));
                break;
            }
            inode => inode?,
        };
        match inode.file_type() {
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Error::new(ErrorKind::Loop, "too many symbolic links"));
                }
                let link = inode.read_link()?;
                if link.starts_with(b"/") {
                    stack.clear();
                }
                rest.extend(components(&link));
            }
            kind if kind != FileType::Directory && !rest.is_empty() => {
                return Err(Error::new(ErrorKind::NotADirectory, "its parent is not a directory"));
            }
            _ => stack.push((name, inode.number())),
        }
    }
    let path: Vec<u8> = stack.iter().flat_map(|(name, _)| [b"/", &**name].concat()).collect();
    Ok(if path.is_empty() { b"/".to_vec() } else { path })
}

/// The names of a path, the first one last. An empty one stands for a slash at the end, which asks for a directory.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let end: &[&[u8]] = if path.ends_with(b"/") { &[b""] } else { &[] };
    end.iter().copied().chain(names.rev()).map(<[u8]>::to_vec).collect()
}
