//! `ironmap ls`: directories.

use std::collections::HashSet;
use std::io::{self, Write};

use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use ironmap::fs::ext4::{Follow, Inode};
use ironmap::fs::{FileType, Stat};
use unicode_width::UnicodeWidthStr;

use crate::failure::{Failure, Report};
use crate::output::{FileRecord, JsonArray, Out, is_terminal, stdout};
use crate::show::{Clock, Owners, for_terminal, mode_string};
use crate::source::{Source, join};
use crate::target::{self, Target};

/// Lists a directory
///
/// Names are in the order of their bytes; in columns on a terminal, else one a line and byte for byte as they are on the volume.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap ls disk.img:/
  ironmap ls -la disk.img@p2:/home
  ironmap ls -R --json /dev/sdb1:/etc | jq -r '.[] | select(.size > 4096) | .path'")]
pub(crate) struct Args {
    /// Show names that begin with a dot too, `.` and `..` among them
    #[arg(short, long)]
    all: bool,
    /// Show mode, links, owner, group, size, time of modification, and a link's target
    #[arg(short)]
    long: bool,
    /// Show user and group as numbers
    #[arg(short, long)]
    numeric: bool,
    /// List the directories below, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Write one JSON array of files
    #[arg(long)]
    json: bool,
    /// The directory, or a file
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target())]
    target: Target,
}

/// A file that is listed.
struct Listed {
    name: Vec<u8>,
    path: Vec<u8>,
    inode: Inode,
    target: Option<Vec<u8>>,
}

impl Listed {
    fn new(source: &Source, name: &[u8], path: Vec<u8>, inode: Inode) -> Result<Self, Failure> {
        let target = source.link_target(&inode, &path)?;
        Ok(Self { name: name.to_vec(), path, inode, target })
    }
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    // As ls: a link to a directory is followed, unless the link itself is asked about.
    let follow = if args.long { Follow::NotLast } else { Follow::All };
    let (source, inode) = Source::open_target(&args.target, follow)?;
    let mut writer = Writer::new(args);
    let path = &args.target.path;
    if inode.file_type() == FileType::Directory {
        list(args, &source, inode, report, &mut writer)?;
    } else {
        writer.files(&[Listed::new(&source, path, path.clone(), inode)?])?;
    }
    writer.end()
}

/// Lists a directory and those below, depth first. Each is listed once, even if a damaged volume has it in many places.
fn list(
    args: &Args,
    source: &Source,
    top: Inode,
    report: &mut Report,
    writer: &mut Writer,
) -> Result<(), Failure> {
    let mut seen = HashSet::new();
    let mut pending = vec![(args.target.path.clone(), top)];
    let mut first = true;
    while let Some((path, dir)) = pending.pop() {
        if !seen.insert(dir.number()) {
            let number = dir.number();
            let what = format!("directory inode {number} stands in several places");
            report.error(&Failure::corrupt(source.name(&path), &what));
            continue;
        }
        let entries = match source.entries(&dir, &path) {
            Ok(entries) => entries,
            Err(failure) => {
                report.error(&failure);
                continue;
            }
        };
        let mut files = Vec::new();
        for entry in entries {
            if !args.all && entry.name.starts_with(b".") {
                continue;
            }
            let path = join(&path, &entry.name);
            let listed = source
                .inode(entry.inode, &path)
                .and_then(|inode| Listed::new(source, &entry.name, path, inode));
            match listed {
                Ok(listed) => files.push(listed),
                Err(failure) => report.error(&failure),
            }
        }
        if args.recursive {
            writer.heading(&path, first)?;
        }
        first = false;
        writer.total(&files)?;
        writer.files(&files)?;
        if args.recursive {
            let below = files.into_iter().rev().filter(|file| {
                let itself = matches!(&*file.name, b"." | b"..");
                file.inode.file_type() == FileType::Directory && !itself
            });
            pending.extend(below.map(|file| (file.path, file.inode)));
        }
    }
    Ok(())
}

/// The form of the list.
enum Form {
    Json(JsonArray),
    Long(Out),
    Columns(Out, usize),
    Lines(Out),
}

struct Writer {
    form: Form,
    terminal: bool,
    colour: bool,
    owners: Owners,
    clock: Clock,
}

impl Writer {
    fn new(args: &Args) -> Self {
        let terminal = is_terminal();
        let form = match (args.json, args.long, terminal) {
            (true, ..) => Form::Json(JsonArray::new()),
            (_, true, _) => Form::Long(stdout()),
            (.., true) => Form::Columns(stdout(), terminal_width()),
            _ => Form::Lines(stdout()),
        };
        let choice = anstream::AutoStream::choice(&io::stdout());
        Self {
            form,
            terminal,
            colour: terminal && choice != ColorChoice::Never,
            owners: Owners::new(args.numeric),
            clock: Clock::local(),
        }
    }

    fn heading(&mut self, path: &[u8], first: bool) -> Result<(), Failure> {
        let path = if self.terminal { for_terminal(path).into_bytes() } else { path.to_vec() };
        if let Form::Long(out) | Form::Columns(out, _) | Form::Lines(out) = &mut self.form {
            out.write_all(if first { b"" } else { b"\n" })?;
            out.write_all(&path)?;
            out.write_all(b":\n")?;
        }
        Ok(())
    }

    /// The space of all files listed, in KiB.
    fn total(&mut self, files: &[Listed]) -> Result<(), Failure> {
        if let Form::Long(out) = &mut self.form {
            let sum =
                files.iter().map(|file| file.inode.stat().blocks).fold(0, u64::saturating_add);
            writeln!(out, "total {}", sum / 2)?;
        }
        Ok(())
    }

    fn files(&mut self, files: &[Listed]) -> Result<(), Failure> {
        let names: Vec<_> = files.iter().map(|file| self.name(file)).collect();
        match &mut self.form {
            Form::Json(array) => {
                for file in files {
                    let target = file.target.as_deref();
                    array.push(&FileRecord::new(&file.path, file.inode.stat(), target, None))?;
                }
            }
            Form::Lines(out) => {
                for name in names {
                    out.write_all(&name)?;
                    out.write_all(b"\n")?;
                }
            }
            Form::Columns(out, width) => columns(out, *width, files, &names)?,
            Form::Long(out) => long(out, &self.owners, &self.clock, files, &names)?,
        }
        Ok(())
    }

    /// A name as it is written: raw for a pipe, without controls and in the colour of its type for a terminal.
    fn name(&self, file: &Listed) -> Vec<u8> {
        if !self.terminal {
            return file.name.clone();
        }
        let (name, style) = (for_terminal(&file.name), style(file.inode.stat()));
        if self.colour { format!("{style}{name}{style:#}").into_bytes() } else { name.into_bytes() }
    }

    fn end(self) -> Result<(), Failure> {
        match self.form {
            Form::Json(array) => array.end(),
            Form::Long(mut out) | Form::Columns(mut out, _) | Form::Lines(mut out) => {
                Ok(out.flush()?)
            }
        }
    }
}

fn terminal_width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout()).map(|size| usize::from(size.ws_col));
    size.ok().filter(|width| *width > 0).unwrap_or(80)
}

fn style(stat: &Stat) -> Style {
    let colour = match stat.file_type {
        FileType::Directory => AnsiColor::Blue,
        FileType::Symlink => AnsiColor::Cyan,
        FileType::CharDevice | FileType::BlockDevice | FileType::Fifo => AnsiColor::Yellow,
        FileType::Socket => AnsiColor::Magenta,
        FileType::Regular if stat.mode & 0o111 != 0 => AnsiColor::Green,
        FileType::Regular => return Style::new(),
    };
    colour.on_default().bold()
}

/// As many columns of one width as fit, filled downwards.
fn columns(out: &mut Out, width: usize, files: &[Listed], names: &[Vec<u8>]) -> io::Result<()> {
    let widths: Vec<_> = files.iter().map(|file| for_terminal(&file.name).width()).collect();
    let column = widths.iter().max().map_or(0, |widest| widest + 2);
    let per_line = (width / column.max(1)).max(1);
    let lines = names.len().div_ceil(per_line);
    for line in 0..lines {
        for at in (line..names.len()).step_by(lines) {
            out.write_all(&names[at])?;
            let last = at + lines >= names.len();
            let pad = if last { 0 } else { column - widths[at] };
            write!(out, "{:pad$}", "")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn long(
    out: &mut Out,
    owners: &Owners,
    clock: &Clock,
    files: &[Listed],
    names: &[Vec<u8>],
) -> io::Result<()> {
    let rows: Vec<[String; 6]> = files
        .iter()
        .map(|file| {
            let stat = file.inode.stat();
            let size = match stat.device {
                Some((major, minor)) => format!("{major}, {minor}"),
                None => stat.size.to_string(),
            };
            let (user, group) = (owners.user(stat.uid), owners.group(stat.gid));
            let time = clock.minutes(stat.modified);
            [mode_string(stat), stat.links.to_string(), user, group, size, time]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
    let [links_w, user_w, group_w, size_w] = [1, 2, 3, 4].map(width);
    for ((row, file), name) in rows.iter().zip(files).zip(names) {
        let [mode, links, user, group, size, time] = row;
        write!(
            out,
            "{mode} {links:>links_w$} {user:user_w$} {group:group_w$} {size:>size_w$} {time} "
        )?;
        out.write_all(name)?;
        if let Some(target) = &file.target {
            out.write_all(b" -> ")?;
            if is_terminal() {
                out.write_all(for_terminal(target).as_bytes())?;
            } else {
                out.write_all(target)?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}
