//! `ironmap stat`: what the inode says.

use std::fmt::Display;
use std::io::Write;

use ironmap::fs::ext4::{Follow, Inode};
use ironmap::fs::{Stat, Timestamp, Xattr};

use crate::failure::Failure;
use crate::output::{FileRecord, print_json, stdout};
use crate::show::{Clock, Owners, mode_string, one_line, type_name};
use crate::source::Source;
use crate::target::{self, Target};

/// Shows what the inode of a file says: size, owner, times, flags, extended attributes
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap stat disk.img:/etc/passwd
  ironmap stat --json disk.img@p1:/bin/ping | jq .xattrs")]
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
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target())]
    target: Target,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let follow = if args.dereference { Follow::All } else { Follow::NotLast };
    let path = &args.target.path;
    let (source, inode) = Source::open_target(&args.target, follow)?;
    let target = source.link_target(&inode, path)?;
    let xattrs = inode.xattrs().map_err(|error| Failure::at(&args.target, &error))?;
    if args.json {
        return print_json(&FileRecord::new(path, inode.stat(), target.as_deref(), Some(&xattrs)));
    }
    print(args, &inode, target.as_deref(), &xattrs).map_err(Failure::stdout)
}

fn print(
    args: &Args,
    inode: &Inode,
    target: Option<&[u8]>,
    xattrs: &[Xattr],
) -> std::io::Result<()> {
    let (stat, owners, clock) = (inode.stat(), Owners::new(args.numeric), Clock::local());
    let mut out = stdout();
    let name = one_line(&args.target.to_string());
    match target {
        Some(target) => {
            let target = one_line(&String::from_utf8_lossy(target));
            writeln!(out, "  File: {name} -> {target}")?;
        }
        None => writeln!(out, "  File: {name}")?,
    }
    let Stat { size, blocks, block_size, links, uid, gid, generation, .. } = stat;
    let kind = match stat.file_type {
        ironmap::fs::FileType::Regular if *size == 0 => "regular empty file",
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
    write!(out, " Flags: {:#x}\tGeneration: {generation}", stat.flags)?;
    match stat.project {
        Some(project) => writeln!(out, "\tProject: {project}")?,
        None => writeln!(out)?,
    }
    for Xattr { name, value } in xattrs {
        let (name, value) = (String::from_utf8_lossy(name), value.escape_ascii());
        writeln!(out, " Xattr: {}=\"{value}\"", one_line(&name))?;
    }
    out.flush()
}
