//! `ironmap ls`: lists directories and files.

mod form;

use std::cmp::Reverse;
use std::collections::HashSet;
use std::rc::Rc;

use ironmap::ErrorKind;
use ironmap::fs::{FileType, Follow, Inode};
use ironmap::sorting::Sorting;
use ironmap_image::source::{Source, join};
use ironmap_image::volumes::Volumes;
use ironmap_image::{Failure, Report};

use self::form::Writer;
use crate::target::{self, Target};

/// Lists directories
///
/// Names are sorted by their bytes. On a terminal, they are printed in columns. Otherwise, they are unchanged, and each name is a line.
/// Arguments that are not directories are listed first.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  ironmap ls disk.img
  ironmap ls -la disk.img@p2:/home disk.img@p2:/etc/passwd
  ironmap ls -lht /dev/sdb1:/var/log
  ironmap ls -R --json /dev/sdb1:/etc | jq -r '.[] | select(.size > 4096) | .path'"
)]
pub(crate) struct Args {
    /// Also show names that begin with a dot, including `.` and `..`
    #[arg(short, long)]
    all: bool,
    /// List directories themselves, not their content
    #[arg(short, long)]
    directory: bool,
    /// With -l, show sizes as 1.5K, 234M, 2G
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Show the number of each inode
    #[arg(short, long)]
    inode: bool,
    /// Show mode, links, owner, group, size, time of modification, and a link's target
    #[arg(short)]
    long: bool,
    /// Like -l, with user and group as numbers
    #[arg(short, long)]
    numeric: bool,
    /// Also list the directories below
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Sort by the time of modification, the newest first
    #[arg(short = 't')]
    by_time: bool,
    /// Show one file per line, even on a terminal
    #[arg(short = '1')]
    one_a_line: bool,
    /// Write one JSON array of files
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The directories or files; a volume without a path means its root
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::tree(), required = true)]
    targets: Vec<Target>,
}

impl Args {
    fn is_long(&self) -> bool {
        self.long || self.numeric
    }
}

/// A file to list.
struct Listed {
    source: Rc<Source>,
    /// The name to print.
    name: Vec<u8>,
    path: Vec<u8>,
    inode: Inode,
    target: Option<Vec<u8>>,
}

impl Listed {
    fn new(source: &Rc<Source>, name: &[u8], path: Vec<u8>, inode: Inode) -> Result<Self, Failure> {
        let target = source.link_target(&inode, &path)?;
        Ok(Self { source: Rc::clone(source), name: name.to_vec(), path, inode, target })
    }

    fn is_directory(&self) -> bool {
        self.inode.file_type() == FileType::Directory
    }

    /// Returns the beginning of a heading: the name of the volume, or nothing. In the heading, the path of the directory follows.
    fn prefix(&self) -> &[u8] {
        self.name.strip_suffix(&*self.path).unwrap_or_default()
    }
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut volumes = Volumes::to_read(report.context());
    let mut named = Vec::new();
    report.each(&args.targets, |target, _| {
        named.push(find(args, &mut volumes, target)?);
        Ok(())
    })?;
    sort(args, &mut named);
    let (directories, files): (Vec<_>, Vec<_>) =
        named.into_iter().partition(|listed| listed.is_directory() && !args.directory);
    let mut writer = Writer::new(args);
    writer.files(&files)?;
    let mut first = files.is_empty();
    for directory in directories {
        list(args, directory, &mut first, report, &mut writer)?;
    }
    writer.end()
}

/// Returns the file that an argument names. As in ls, a symbolic link to a directory is followed. With -d or -l, the link itself is listed.
fn find(args: &Args, volumes: &mut Volumes, target: &Target) -> Result<Listed, Failure> {
    let mut found = volumes.file(target, Follow::NotLast)?;
    if found.inode.file_type() == FileType::Symlink && !args.is_long() && !args.directory {
        match volumes.file(target, Follow::All) {
            Ok(there) if there.is_directory() => found = there,
            Ok(_) => {}
            // If the target of the symbolic link does not exist, the link itself is listed.
            Err(failure) if failure.is_of(ErrorKind::NotFound) => {}
            Err(failure) => return Err(failure),
        }
    }
    // With several arguments, each name begins with the volume. A heading always begins with the volume, because headings of GNU ls begin
    // with the argument.
    let headed = args.recursive && found.is_directory() && !args.directory;
    let named = headed || args.targets.len() > 1;
    let name = if named { target.bytes() } else { target.path.clone() };
    Listed::new(&found.name.source, &name, target.path.clone(), found.inode)
}

fn sort(args: &Args, files: &mut [Listed]) {
    files.order_by(|a, b| a.name.cmp(&b.name));
    if args.by_time {
        files.order_by_key(|file| Reverse(file.inode.stat().modified));
    }
}

/// Lists a directory and the directories below it, depth first. Each directory is listed once. On a damaged volume, a directory may have
/// several names.
fn list(
    args: &Args,
    top: Listed,
    first: &mut bool,
    report: &mut Report,
    writer: &mut Writer,
) -> Result<(), Failure> {
    let mut seen = HashSet::new();
    let prefix = top.prefix().to_vec();
    let headed = args.recursive || args.targets.len() > 1;
    let mut pending = vec![top];
    while let Some(Listed { source, path, inode: dir, .. }) = pending.pop() {
        if !seen.insert(dir.number()) {
            let number = dir.number();
            let what = format!("directory inode {number} has more than one name");
            report.error(&Failure::corrupt(source.name(&path), &what));
            continue;
        }
        let (mut entries, all) = source.entries_found(&dir, &path, report);
        if entries.is_empty() && !all {
            continue;
        }
        entries.retain(|entry| args.all || !entry.name.starts_with(b"."));
        let mut files = Vec::new();
        for entry in entries {
            let path = join(&path, &entry.name);
            let listed = source
                .inode(entry.inode, &path)
                .and_then(|inode| Listed::new(&source, &entry.name, path, inode));
            match listed {
                Ok(listed) => files.push(listed),
                Err(failure) => report.error(&failure),
            }
        }
        sort(args, &mut files);
        if headed {
            writer.heading(&[&prefix[..], &path].concat(), *first)?;
        }
        *first = false;
        writer.total(&files)?;
        writer.files(&files)?;
        if args.recursive {
            let below = files.into_iter().rev().filter(|file| {
                let itself = matches!(&*file.name, b"." | b"..");
                file.is_directory() && !itself
            });
            pending.extend(below);
        }
    }
    Ok(())
}
