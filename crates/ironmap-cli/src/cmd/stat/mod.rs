//! `ironmap stat`: shows the fields of inodes.

mod format;

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use ironmap::fs::{FileType, Follow, Stat, Timestamp, Xattr};
use ironmap::{FileOptions, Location};
use ironmap_image::host_stat;
use ironmap_image::volumes::{self, Volumes};
use ironmap_image::{Failure, Report};

use self::format::{Format, Shown};
use crate::acl;
use crate::host_source::HostSource;
use crate::output::{FileRecord, Served, print_json};
use crate::show::{Clock, Owners, flag_letters, mode_string, type_name};
use crate::target::{self, Subject, Target};
use crate::terminal::{one_line, stdout};

/// Shows the inodes of files: size, owner, times, flags, extended attributes
///
/// Flags are shown as by lsattr, access lists as by getfacl. The letters of a FORMAT are those of stat: %a permissions in octal, %A as by
/// ls -l, %b units of 512 bytes, %B 512, %d %D number of the file system's device in decimal and hexadecimal (0 if there is no block
/// device), %f mode in hexadecimal, %F type, %g %G group, %h links, %i inode, %n name, %N name and target in quotes, %o block size, %r %R
/// device number in decimal and hexadecimal, %s size, %t %T major and minor number in hexadecimal, %u %U owner, %w %x %y %z times of birth,
/// access, modification and change, %W %X %Y %Z these times in seconds; %%. %Hd %Ld %Hr %Lr are the major and minor part of a device
/// number. '-', '0', '#', '+', a width and a precision can be between '%' and the letter: %.3Y has milliseconds.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap stat disk.img:/etc/passwd
  ironmap stat -c '%a %U:%G %n' disk.img:/etc/shadow disk.img:/etc/passwd
  ironmap stat --json disk.img@p1:/bin/ping | jq .xattrs
  ironmap stat host:/srv/index/segment.7")]
pub(crate) struct Args {
    /// Follow symbolic links in the arguments
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Show user and group as numbers
    #[arg(short, long)]
    numeric: bool,
    /// Show a line of this format for each file
    #[arg(short = 'c', long, value_parser = Format::parse, conflicts_with = "json")]
    format: Option<Format>,
    /// Write a JSON object for each file
    #[arg(long)]
    json: bool,
    /// The files; a volume without a path means its root
    #[arg(value_name = "VOLUME:/PATH|host:FILE", value_parser = target::subject_or_tree(), required = true)]
    targets: Vec<Subject>,
}

/// The values that are shown for a file.
struct Found {
    path: Vec<u8>,
    stat: Stat,
    link: Option<Vec<u8>>,
    xattrs: Vec<Xattr>,
    /// The device number of the file system.
    device: (u32, u32),
    /// How a regular file of a mounted file system is read.
    served: Option<Served>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut volumes = Volumes::to_read(report.context());
    let shown = Show { owners: Owners::new(args.numeric), clock: Clock::local() };
    report.each(&args.targets, |subject, _| {
        let found = match subject {
            Subject::Volume(target) => of_volume(args, &mut volumes, target)?,
            Subject::Host(path) => of_host(args, path)?,
        };
        if let Some(format) = &args.format {
            return shown.line(format, subject, &found).map_err(Failure::stdout);
        }
        if !args.json {
            return shown.all(subject, &found).map_err(Failure::stdout);
        }
        let Found { path, stat, link, xattrs, served, .. } = found;
        let record = FileRecord::new(&path, &stat, link.as_deref(), Some(&xattrs));
        print_json(&match subject {
            Subject::Volume(target) => record.of_volume(&target.volume),
            Subject::Host(_) => record.of_host(served),
        })
    })
}

fn of_volume(args: &Args, volumes: &mut Volumes, target: &Target) -> Result<Found, Failure> {
    let follow = if args.dereference { Follow::All } else { Follow::NotLast };
    let path = target.path.clone();
    let volumes::Found { name, inode } = volumes.file(target, follow)?;
    let link = name.source.link_target(&inode, &path)?;
    let xattrs = inode.xattrs().map_err(|error| Failure::at(target, &error))?;
    let device = device_of(&target.volume);
    Ok(Found { path, stat: inode.stat().clone(), link, xattrs, device, served: None })
}

/// The device number that files would have on a mount of the volume: the number of its block device, or zeros for an image.
fn device_of(volume: &Location) -> (u32, u32) {
    let found = volume.whole_file().and_then(|path| fs::metadata(path).ok());
    let found = found.filter(|found| found.file_type().is_block_device());
    found.map_or((0, 0), |found| (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev())))
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
    let device = host_stat::device(path, args.dereference).map_err(failed)?;
    Ok(Found { path: path.as_os_str().as_bytes().to_vec(), stat, link, xattrs, device, served })
}

/// Converts numbers to the text that is shown.
struct Show {
    owners: Owners,
    clock: Clock,
}

impl Show {
    fn line(&self, format: &Format, subject: &Subject, found: &Found) -> io::Result<()> {
        let name = match subject {
            Subject::Volume(target) => target.bytes(),
            Subject::Host(path) => path.as_os_str().as_bytes().to_vec(),
        };
        let Found { stat, device, link, .. } = found;
        let (owners, clock, link) = (&self.owners, &self.clock, link.as_deref());
        let mut out = stdout();
        let device = *device;
        let shown = Shown { name: &name, stat, link, device, owners, clock, out: &out };
        let line = format.line(&shown);
        out.write_all(&line)?;
        out.write_all(b"\n")?;
        out.flush()
    }

    fn all(&self, subject: &Subject, found: &Found) -> io::Result<()> {
        let Self { owners, clock } = self;
        let Found { stat, link, xattrs, served, .. } = found;
        let mut out = stdout();
        let name = one_line(&subject.to_string());
        match link {
            Some(target) => {
                let target = one_line(&String::from_utf8_lossy(target));
                writeln!(out, "  File: {name} -> {target}")?;
            }
            None => writeln!(out, "  File: {name}")?,
        }
        let Stat { size, blocks, block_size, links, uid, gid, generation, .. } = stat;
        let kind = type_name(stat);
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
        write!(out, " Flags: {}", flag_letters(stat.flags))?;
        if matches!(subject, Subject::Volume(_)) {
            write!(out, "\tGeneration: {generation}")?;
        }
        match stat.project {
            Some(project) => writeln!(out, "\tProject: {project}")?,
            None => writeln!(out)?,
        }
        for Xattr { name, value } in xattrs {
            if let Some(lines) = acl::lines(name, value, owners) {
                for line in lines {
                    writeln!(out, "   ACL: {line}")?;
                }
                continue;
            }
            let (name, value) = (String::from_utf8_lossy(name), value.escape_ascii());
            writeln!(out, " Xattr: {}=\"{value}\"", one_line(&name))?;
        }
        if let Some(served) = served {
            writeln!(out, "Served by: {}", one_line(&served.to_string()))?;
        }
        out.flush()
    }
}
