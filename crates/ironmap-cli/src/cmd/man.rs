//! `ironmap man`: writes the manual pages.

use ironmap_image::Failure;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;

/// Writes the manual pages, one for each command, to a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap man /usr/local/share/man/man1
  ironmap man . && man ./ironmap-cp.1")]
pub(crate) struct Args {
    /// The directory, which must exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Commands, each with the pages of other programs that its page refers to. `NAMESAKES` adds the page of a program that has the same name
/// as the command.
const OTHERS: [(&str, &[&str]); 10] = [
    ("check", &["e2fsck(8)"]),
    ("getfattr", &["getfattr(1)", "attr(5)", "xattr(7)"]),
    ("info", &["dumpe2fs(8)"]),
    ("ironmap", &["ext4(5)", "mount(8)", "debugfs(8)"]),
    ("map", &["filefrag(8)"]),
    ("mkfs", &["mke2fs(8)", "ext4(5)"]),
    ("mount", &["mount(8)", "fuse(4)", "fstab(5)"]),
    ("resize", &["resize2fs(8)", "ext4(5)"]),
    ("stat", &["stat(1)", "lsattr(1)", "getfacl(1)"]),
    ("umount", &["umount(8)"]),
];
/// Commands that have the name of another program. The manual page of that program is in section 1.
const NAMESAKES: [&str; 20] = [
    "cat",
    "chattr",
    "chmod",
    "chown",
    "cp",
    "df",
    "diff",
    "du",
    "fallocate",
    "find",
    "ln",
    "ls",
    "mkdir",
    "mknod",
    "mv",
    "readlink",
    "rm",
    "rmdir",
    "setfattr",
    "touch",
];

/// Files that a command uses besides the volume.
const FILES: [(&str, &str); 2] = [
    (
        "mount",
        "\
/dev/fuse: the device of FUSE. Users other than root need fusermount3(1) too.

/sbin/mount.fuse.ironmap, /sbin/mount.ironmap: links to the program, which mount(8) runs.

/etc/fstab: with the type fuse.ironmap or ironmap, mount(8) mounts the volume at boot:

  /dev/sdb1  /srv  fuse.ironmap  allow_other,noatime  0  0

/etc/fuse.conf: user_allow_other lets users other than root give allow_other.

/dev/log: the system log, which receives the errors of a mount in the background.",
    ),
    (
        "umount",
        "\
/proc/self/mounts: names the volume if its server was killed.

/etc/fstab: names the mounts that mount(8) can make again.",
    ),
];

/// `program` is the command line with all subcommands.
pub(crate) fn run(args: &Args, program: Command) -> Result<(), Failure> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let common = Common::of(&program);
    common.pages(program, &args.dir).map_err(|error| Failure::host(args.dir.display(), error))
}

/// The sections that are the same in all pages. Their text comes from the help of the program.
struct Common {
    exit_codes: String,
    volumes: String,
    /// The names of the pages.
    pages: Vec<String>,
}

impl Common {
    fn of(program: &Command) -> Self {
        let help = after_help(program);
        let paragraph = |start: &str| {
            let found = help.split("\n\n").find(|text| text.starts_with(start));
            found.unwrap_or_default().to_owned()
        };
        let commands = program.get_subcommands().filter(|command| !command.is_hide_set());
        let pages = commands.map(|command| format!("ironmap-{}(1)", command.get_name())).collect();
        Self { exit_codes: paragraph("Exit codes:"), volumes: paragraph("VOLUME is"), pages }
    }

    fn pages(&self, command: Command, dir: &Path) -> io::Result<()> {
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            self.pages(below.clone(), dir)?;
        }
        let page = self.page(&command)?;
        let name = Man::new(command).get_filename();
        fs::write(dir.join(name), page)
    }

    fn page(&self, command: &Command) -> io::Result<Vec<u8>> {
        let name = command.get_name();
        let version = command.get_version().unwrap_or_default();
        let man = Man::new(command.clone()).source(format!("ironmap {version}")).manual("ironmap");
        let mut page = Vec::new();
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        let usage = command.clone().render_usage().to_string();
        section(&mut page, "SYNOPSIS", usage.trim_start_matches("Usage:").trim())?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        if command.get_subcommands().next().is_some() {
            man.render_subcommands_section(&mut page)?;
        }
        let help = after_help(command);
        let (mut notes, mut examples) = (Vec::new(), Vec::new());
        for paragraph in help.split("\n\n") {
            match paragraph.strip_prefix("Examples:\n") {
                Some(lines) => examples.push(lines),
                None if [&*self.exit_codes, &self.volumes].contains(&paragraph) => {}
                None => notes.push(paragraph),
            }
        }
        section(&mut page, "NOTES", &notes.join("\n\n"))?;
        section(&mut page, "EXAMPLES", &examples.join("\n"))?;
        let codes = self.exit_codes.trim_start_matches("Exit codes:\n");
        section(&mut page, "EXIT STATUS", codes)?;
        let files = FILES.iter().filter(|(command, _)| *command == name).map(|(_, files)| *files);
        let files: Vec<_> = [&*self.volumes].into_iter().chain(files).collect();
        section(&mut page, "FILES", &files.join("\n\n"))?;
        section(&mut page, "SEE ALSO", &self.see_also(name).join(", "))?;
        Ok(page)
    }

    fn see_also(&self, name: &str) -> Vec<String> {
        let mut pages = match name {
            "ironmap" => self.pages.clone(),
            _ => vec!["ironmap(1)".to_owned()],
        };
        if NAMESAKES.contains(&name) {
            pages.push(format!("{name}(1)"));
        }
        let others = OTHERS.iter().filter(|(command, _)| *command == name);
        pages.extend(others.flat_map(|(_, others)| others.iter().map(|page| (*page).to_owned())));
        pages
    }
}

fn after_help(command: &Command) -> String {
    command.get_after_help().map(ToString::to_string).unwrap_or_default()
}

/// Writes a section, if it has any text. Indented lines are kept as lines.
fn section(page: &mut Vec<u8>, heading: &str, text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    writeln!(page, ".SH \"{heading}\"")?;
    let mut verbatim = false;
    for line in text.lines() {
        let indented = line.starts_with(' ');
        if indented != verbatim {
            writeln!(page, "{}", if indented { ".nf" } else { ".fi" })?;
            verbatim = indented;
        }
        match line {
            "" => writeln!(page, ".PP")?,
            // `\&` prevents roff from reading the line as a request.
            line => writeln!(page, "\\&{}", line.replace('\\', "\\e").replace('-', "\\-"))?,
        }
    }
    if verbatim {
        writeln!(page, ".fi")?;
    }
    Ok(())
}
