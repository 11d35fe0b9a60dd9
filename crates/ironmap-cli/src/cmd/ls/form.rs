//! Prints a list of files: as JSON, in the long format, in columns, or with one name per line.

use std::borrow::Cow;
use std::io::{self, Write};

use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use ironmap::fs::{FileType, Stat};
use ironmap_image::{Failure, quote};
use unicode_width::UnicodeWidthStr;

use super::{Args, Listed};
use crate::acl;
use crate::output::{FileRecord, JsonArray};
use crate::show::{Clock, Owners, human, mode_string};
use crate::terminal::{Out, stdout};

/// The format of the list.
enum Form {
    Json(JsonArray),
    Long(Out),
    Columns(Out, usize),
    Lines(Out),
}

pub(super) struct Writer {
    form: Form,
    terminal: bool,
    colour: bool,
    human: bool,
    /// Whether inode numbers are shown.
    numbers: bool,
    owners: Owners,
    clock: Clock,
}

impl Writer {
    pub(super) fn new(args: &Args) -> Self {
        let terminal = stdout().is_terminal();
        let form = match (args.json, args.is_long(), terminal && !args.one_a_line) {
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
            human: args.human_readable,
            numbers: args.inode,
            owners: Owners::new(args.numeric),
            clock: Clock::local(),
        }
    }

    pub(super) fn heading(&mut self, path: &[u8], first: bool) -> Result<(), Failure> {
        if let Form::Long(out) | Form::Columns(out, _) | Form::Lines(out) = &mut self.form {
            out.write_all(if first { b"" } else { b"\n" })?;
            out.write_all(&out.shown(path))?;
            out.write_all(b":\n")?;
        }
        Ok(())
    }

    /// Prints the total space of all listed files, in KiB or with a unit.
    pub(super) fn total(&mut self, files: &[Listed]) -> Result<(), Failure> {
        if let Form::Long(out) = &mut self.form {
            let sum =
                files.iter().map(|file| file.inode.stat().blocks).fold(0, u64::saturating_add);
            let sum =
                if self.human { human(sum.saturating_mul(512)) } else { (sum / 2).to_string() };
            writeln!(out, "total {sum}")?;
        }
        Ok(())
    }

    pub(super) fn files(&mut self, files: &[Listed]) -> Result<(), Failure> {
        let numbers = self.number_column(files);
        let names: Vec<_> = files.iter().map(|file| self.name(file)).collect();
        match &mut self.form {
            Form::Json(array) => {
                for file in files {
                    let target = file.target.as_deref();
                    let record = FileRecord::new(&file.path, file.inode.stat(), target, None);
                    array.push(&record.of_volume(file.source.location()))?;
                }
            }
            Form::Lines(out) => {
                for (name, number) in names.iter().zip(&numbers) {
                    out.write_all(number.as_bytes())?;
                    out.write_styled(name)?;
                    out.write_all(b"\n")?;
                }
            }
            Form::Columns(out, width) => {
                let widths: Vec<_> = files
                    .iter()
                    .zip(&numbers)
                    .map(|(file, number)| quote::name(&file.name).width() + number.len())
                    .collect();
                let cells: Vec<_> = numbers
                    .iter()
                    .zip(&names)
                    .map(|(number, name)| [number.as_bytes(), name].concat())
                    .collect();
                columns(out, *width, &widths, &cells)?;
            }
            Form::Long(out) => {
                let columns = columns_of(files, &self.owners, &self.clock, self.human);
                long(out, files, &numbers, &columns, &names)?;
            }
        }
        Ok(())
    }

    /// The column before each file: its inode number, if requested.
    fn number_column(&self, files: &[Listed]) -> Vec<String> {
        let numbers = files.iter().map(|file| file.inode.number().to_string());
        if !self.numbers {
            return vec![String::new(); files.len()];
        }
        let width = numbers.clone().map(|number| number.len()).max().unwrap_or(0);
        numbers.map(|number| format!("{number:>width$} ")).collect()
    }

    /// Returns a name in the form for the output. For a pipe, the name is unchanged. On a terminal, the name is quoted and has the colour
    /// of the file's type.
    fn name<'a>(&self, file: &'a Listed) -> Cow<'a, [u8]> {
        if !self.terminal {
            return Cow::Borrowed(&file.name);
        }
        let (name, style) = (quote::name(&file.name), style(file.inode.stat()));
        let shown = if self.colour { format!("{style}{name}{style:#}") } else { name };
        Cow::Owned(shown.into_bytes())
    }

    pub(super) fn end(self) -> Result<(), Failure> {
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

/// Prints cells in columns of equal width. There are as many columns as fit into `width`. Each column is filled from top to bottom.
fn columns(out: &mut Out, width: usize, widths: &[usize], cells: &[Vec<u8>]) -> io::Result<()> {
    let column = widths.iter().max().map_or(0, |widest| widest + 2);
    let per_line = (width / column.max(1)).max(1);
    let lines = cells.len().div_ceil(per_line);
    for line in 0..lines {
        for at in (line..cells.len()).step_by(lines) {
            out.write_styled(&cells[at])?;
            let last = at + lines >= cells.len();
            let pad = if last { 0 } else { column - widths[at] };
            write!(out, "{:pad$}", "")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Returns the columns of the long format for all files: mode, links, user, group, size and time. All cells of a column have the same
/// width.
fn columns_of(files: &[Listed], owners: &Owners, clock: &Clock, people: bool) -> [Vec<String>; 6] {
    let stats = || files.iter().map(|file| file.inode.stat());
    let mode = |file: &Listed| mode_string(file.inode.stat()) + list_mark(file);
    [
        column(files.iter().map(|file| (mode(file), false))),
        column(stats().map(|stat| (stat.links.to_string(), true))),
        column(stats().map(|stat| owner(owners.user(stat.uid), stat.uid))),
        column(stats().map(|stat| owner(owners.group(stat.gid), stat.gid))),
        column(sizes(files, people).map(|size| (size, true))),
        stats().map(|stat| clock.minutes(stat.modified)).collect(),
    ]
}

/// Pads cells to the same width. Names are aligned to the left, and numbers to the right.
fn column(cells: impl Iterator<Item = (String, bool)>) -> Vec<String> {
    let cells: Vec<_> = cells.map(|(text, number)| (text.width(), text, number)).collect();
    let widest = cells.iter().map(|(width, ..)| *width).max().unwrap_or(0);
    let fill = |(width, mut text, number): (usize, String, bool)| {
        let blanks = std::iter::repeat_n(' ', widest - width);
        if number {
            blanks.chain(text.chars()).collect()
        } else {
            text.extend(blanks);
            text
        }
    };
    cells.into_iter().map(fill).collect()
}

/// Returns the text of the column for a user or group, and whether the text is a number.
fn owner(shown: String, number: u32) -> (String, bool) {
    let is_number = shown.parse() == Ok(number);
    (shown, is_number)
}

/// Returns the texts of the size column. For a device, the text is its major and minor number, each in a separate column.
fn sizes(files: &[Listed], people: bool) -> impl Iterator<Item = String> {
    let devices = || files.iter().filter_map(|file| file.inode.stat().device);
    let width = |highest: Option<u32>| highest.map_or(0, |number| number.to_string().len());
    let majors = width(devices().map(|(major, _)| major).max());
    let minors = width(devices().map(|(_, minor)| minor).max());
    files.iter().map(move |file| match file.inode.stat() {
        Stat { device: Some((major, minor)), .. } => format!("{major:>majors$}, {minor:>minors$}"),
        stat if people => human(stat.size),
        stat => stat.size.to_string(),
    })
}

/// Returns the mark `+` for a file with an access control list, and for a directory with a default list. A list that cannot be read has no
/// mark.
fn list_mark(file: &Listed) -> &'static str {
    let has_list = acl::NAMES.iter().any(|name| matches!(file.inode.xattr(name), Ok(Some(_))));
    if has_list { "+" } else { "" }
}

fn long(
    out: &mut Out,
    files: &[Listed],
    numbers: &[String],
    columns: &[Vec<String>; 6],
    names: &[Cow<'_, [u8]>],
) -> io::Result<()> {
    for (at, ((file, name), number)) in files.iter().zip(names).zip(numbers).enumerate() {
        out.write_all(number.as_bytes())?;
        for column in columns {
            out.write_all(column[at].as_bytes())?;
            out.write_all(b" ")?;
        }
        out.write_styled(name)?;
        if let Some(target) = &file.target {
            out.write_all(b" -> ")?;
            out.write_all(&out.shown(target))?;
        }
        out.write_all(b"\n")?;
    }
    Ok(())
}
