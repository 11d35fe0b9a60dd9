//! `ironmap stat`: what the inode says.

use std::fmt::Display;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ironmap::FileOptions;
use ironmap::fs::ext4::Follow;
use ironmap::fs::{FileType, Stat, Timestamp, Xattr};

use crate::failure::Failure;
use crate::host_stat;
use crate::output::{FileRecord, Served, print_json, stdout};
use crate::show::{Clock, Owners, mode_string, one_line, type_name};
use crate::source::{HostSource, Source};
use crate::target::{self, Subject, Target};

/// Shows what the inode of a file says: size, owner, times, flags, extended attributes
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap stat disk.img:/etc/passwd
  ironmap stat --json disk.img@p1:/bin/ping | jq .xattrs
  ironmap stat host:/srv/index/segment.7")]
pub(crate) struct Args {
    /// Follow a symbolic link that the path names
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Show user and group as numbers
    #[arg(short, long)]
    numeric: bool,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
    /// The file
    #[arg(value_name = "VOLUME:/PATH|host:FILE", value_parser = target::subject())]
    target: Subject,
}

/// What is shown of a file.
struct Found {
    path: Vec<u8>,
    stat: Stat,
    link: Option<Vec<u8>>,
    xattrs: Vec<Xattr>,
    /// Of a regular file of a mounted file system.
    served: Option<Served>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let found = match &args.target {
        Subject::Volume(target) => of_volume(args, target)?,
        Subject::Host(path) => of_host(args, path)?,
    };
    if !args.json {
        return print(args, &found).map_err(Failure::stdout);
    }
    let Found { path, stat, link, xattrs, served } = found;
    let record = FileRecord::new(&path, &stat, link.as_deref(), Some(&xattrs));
    print_json(&match args.target {
        Subject::Volume(_) => record,
        Subject::Host(_) => record.of_host(served),
    })
}

fn of_volume(args: &Args, target: &Target) -> Result<Found, Failure> {
    let follow = if args.dereference { Follow::All } else { Follow::NotLast };
    let path = target.path.clone();
    let (source, inode) = Source::open_target(target, follow)?;
    let link = source.link_target(&inode, &path)?;
    let xattrs = inode.xattrs().map_err(|error| Failure::at(target, &error))?;
    Ok(Found { path, stat: inode.stat().clone(), link, xattrs, served: None })
}

fn of_host(args: &Args, path: &Path) -> Result<Found, Failure> {
    let failed = |errno| Failure::host(path.display(), errno);
    let stat = host_stat::stat(path, args.dereference).map_err(failed)?;
    let link = match stat.file_type {
        FileType::Symlink => Some(host_stat::link(path).map_err(failed)?),
        _ => None,
    };
    let xattrs = host_stat::xattrs(path, args.dereference).map_err(failed)?;
    let served = match stat.file_type {
        FileType::Regular => {
            let (_, report) = HostSource::open()?.file(path, FileOptions::default())?;
            Some(Served::of(&report))
        }
        _ => None,
    };
    Ok(Found { path: path.as_os_str().as_bytes().to_vec(), stat, link, xattrs, served })
}

fn print(args: &Args, found: &Found) -> std::io::Result<()> {
    let Found { stat, link, xattrs, served, .. } = found;
    let (owners, clock) = (Owners::new(args.numeric), Clock::local());
    let mut out = stdout();
    let name = one_line(&args.target.to_string());
    match link {
        Some(target) => {
            let target = one_line(&String::from_utf8_lossy(target));
            writeln!(out, "  File: {name} -> {target}")?;
        }
        None => writeln!(out, "  File: {name}")?,
    }
    let Stat { size, blocks, block_size, links, uid, gid, generation, .. } = stat;
    let kind = match stat.file_type {
        FileType::Regular if *size == 0 => "regular empty file",
        other => type_name(other),
    };
    writeln!(out, "  Size: {size:<15}\tBlocks: {blocks:<10} IO Block: {block_size:<6} {kind}")?;
    write!(out, " Inode: {:<15}\tLinks: {links:<5}", stat.inode)?;
    match stat.device {
        Some((major, minor)) => writeln!(out, " Device type: {major},{minor}")?,
        None => writeln!(out)?,
    }
    let (mode, user, group) = (stat.mode & 0o7777, owners.user(*uid), owners.group(*gid));
    let permissions = mode_string(stat);
    writeln!(
        out,
        "Access: ({mode:04o}/{permissions})  Uid: ({uid:5}/{user:>8})   Gid: ({gid:5}/{group:>8})"
    )?;
    let mut time = |label: &str, at: Option<Timestamp>| {
        let at: &dyn Display = &at.map_or("-".to_owned(), |at| clock.full(at));
        writeln!(out, "{label}: {at}")
    };
    time("Access", Some(stat.accessed))?;
    time("Modify", Some(stat.modified))?;
    time("Change", Some(stat.changed))?;
    time(" Birth", stat.created)?;
    write!(out, " Flags: {:#x}", stat.flags)?;
    if matches!(args.target, Subject::Volume(_)) {
        write!(out, "\tGeneration: {generation}")?;
    }
    match stat.project {
        Some(project) => writeln!(out, "\tProject: {project}")?,
        None => writeln!(out)?,
    }
    for Xattr { name, value } in xattrs {
        let (name, value) = (String::from_utf8_lossy(name), value.escape_ascii());
        writeln!(out, " Xattr: {}=\"{value}\"", one_line(&name))?;
    }
    if let Some(served) = served {
        writeln!(out, "Served by: {}", one_line(&served.to_string()))?;
    }
    out.flush()
}
