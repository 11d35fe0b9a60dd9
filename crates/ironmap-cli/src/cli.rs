//! The command line: the subcommands and the common parts of their help.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::{ArgMatches, ValueSource};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use ironmap::Location;
use ironmap_image::{Failure, Report};

use crate::bench;
use crate::cmd::{
    cat, chattr, check, chmod, chown, clone, complete, completions, cp, demo, df, diff, du, dump,
    fallocate, find, getfattr, host, info, integrity, ln, ls, man, map, mkdir, mkfs, mknod, mv,
    readlink, resize, rm, rmdir, salvage, setfattr, stat, sync, tar, touch, truncate, tune,
    undelete, write,
};
#[cfg(feature = "disk")]
use crate::cmd::{disk, verity};
#[cfg(feature = "fuse")]
use crate::mount;
use crate::target;

const AFTER_HELP: &str = "\
VOLUME is a block device, an image, IMAGE@pN (the Nth GPT or MBR partition of the image), IMAGE@OFFSET (decimal or 0x..., with an optional K, M or G; \
the range ends with its partition), IMAGE@OFFSET+LENGTH, or IMAGE@VG/LV (a logical volume of LVM, with the feature lvm). LABEL=NAME, UUID=..., PARTLABEL=... and \
PARTUUID=... name a device. VOLUME:/PATH names a file of a volume; everything before the first ':/' is the volume. For commands that read, VOLUME:<12> is inode 12 of the volume.

qcow2:IMAGE, vmdk:IMAGE and vhdx:IMAGE are images of virtual machines. The prefix is required, because ironmap does not guess the format. Only qcow2 can be \
written. Such an image may have partitions: qcow2:IMAGE@p2. nbd://HOST/EXPORT is an export of an NBD server.

integrity:DATA,TAGS is an integrity device: each sector of the device or image DATA is verified against its tag on TAGS. DATA and TAGS may be \
partitions. With integrity:DATA, the tags are in the tail of DATA. ironmap integrity makes and checks integrity devices.

noload:VOLUME reads VOLUME without its journal, which may be damaged or missing; the option --noload applies to every volume of the command.

host:FILE is a file of a mounted file system. If this is safe, ironmap reads the file directly from the device. Otherwise it reads the file \
through the kernel. ironmap host shows which of the two applies, and why. Write ./host for a volume named host.

Commands that only read never write to the device: if a volume was not unmounted cleanly, they recover \
it in memory. Commands that change a volume recover it on the device. They do the same as the Linux \
commands with these names, and end after all changes are on the device. If a command is killed, \
the journal keeps the volume consistent. Permissions are not checked: a user who can write to the device can change every file.

Exit codes:
  0  success
  1  an operation failed: a missing file, a directory given to cat, a device error; diff found a difference
  2  the command line is wrong
  3  the volume cannot be used: missing, in use, unsupported, or of another format
  4  the volume is corrupt
  130  interrupted by Ctrl-C (143: SIGTERM, 129: SIGHUP) while changing a volume, which was closed cleanly

If several operations fail, each prints a line on standard error, and the highest exit code is returned.";

const RESCUE: &str = "Options for damaged volumes and for external devices";

/// Commands that read volumes, and accept the options for damaged volumes. Commands that change a volume refuse these options.
const READS: [&str; 19] = [
    "info", "ls", "stat", "cat", "map", "find", "du", "df", "readlink", "getfattr", "diff",
    "check", "dump", "undelete", "salvage", "cp", "tar", "mount", "complete",
];

/// Commands that open no volume, or that open a volume only as a device. Options for damaged volumes would have no effect, so the commands
/// refuse these options.
const NO_VOLUME: [&str; 10] = [
    "bench",
    "clone",
    "completions",
    "demo",
    "disk",
    "host",
    "integrity",
    "man",
    "umount",
    "verity",
];

/// The command line. If the options for damaged volumes apply to a command, the help of the command shows them.
pub(crate) fn command() -> clap::Command {
    let mut command = Cli::command();
    let rescue = command.get_arguments().filter(|arg| arg.get_help_heading() == Some(RESCUE));
    let rescue: Vec<_> = rescue.map(|arg| arg.clone().hide(true)).collect();
    let names = command.get_subcommands().map(|sub| sub.get_name().to_owned());
    for name in names.filter(|name| !READS.contains(&&**name)).collect::<Vec<_>>() {
        command = command.mut_subcommand(name, |sub| sub.args(&rescue));
    }
    command
}

impl Cli {
    /// Reads the command line.
    pub(crate) fn parse_words(
        words: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let mut command = command();
        let matches = command.try_get_matches_from_mut(words)?;
        if let Some((name, below)) = matches.subcommand()
            && NO_VOLUME.contains(&name)
            && let Some(option) = given_to_rescue(&command, below)
        {
            let what = format!("--{option}: ironmap {name} does not have this option");
            return Err(command.error(ErrorKind::ArgumentConflict, what));
        }
        Self::from_arg_matches(&matches)
    }
}

/// Returns the first option for damaged volumes that the user passed to `command`, or `None`.
fn given_to_rescue(command: &clap::Command, given: &ArgMatches) -> Option<String> {
    let rescue = command.get_arguments().filter(|arg| arg.get_help_heading() == Some(RESCUE));
    let named = |arg: &clap::Arg| {
        given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    rescue.filter(|arg| named(arg)).find_map(clap::Arg::get_long).map(str::to_owned)
}

/// Returns the name of the command in a command line, for example `ironmap integrity format`. The rest of the command line may be invalid.
pub(crate) fn path_of(words: &[OsString]) -> String {
    let mut command = &Cli::command();
    let mut path = command.get_name().to_owned();
    for word in words.iter().skip(1) {
        if let Some(below) = command.find_subcommand(word) {
            path = format!("{path} {}", below.get_name());
            command = below;
        }
    }
    path
}

/// Reads and changes files of ext2, ext3 and ext4 volumes that are not mounted, and reads files of XFS volumes and of mounted ext4 and XFS, at the
/// speed of the device.
#[derive(Debug, Parser)]
#[command(name = "ironmap", version, propagate_version = true, after_help = AFTER_HELP)]
#[command(max_term_width = 100, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Read volumes without their journals, as mount -o ro,noload; changes in the journals are missing
    #[arg(long = "noload", global = true, help_heading = RESCUE)]
    pub(crate) no_load: bool,
    /// Read the superblock from the backup in this block, as e2fsck -b, or, on XFS, in this allocation group. Without this option, ironmap
    /// finds a backup if the superblock is damaged
    #[arg(long, global = true, value_name = "BLOCK|GROUP", help_heading = RESCUE)]
    pub(crate) superblock: Option<u64>,
    /// Read the remaining part of a truncated volume; reads past this part are I/O errors
    #[arg(long, global = true, help_heading = RESCUE)]
    pub(crate) truncated: bool,
    /// The device of the external journal. A volume that needs recovery is recovered in memory. By default, the device is found by its UUID
    /// in /dev/disk/by-uuid
    #[arg(long, global = true, value_name = "DEVICE", value_parser = target::volume(), help_heading = RESCUE)]
    pub(crate) journal: Option<Location>,
    /// The device of the realtime files of an XFS volume. The volume is then read-only. Without this device, realtime files are only listed
    #[arg(long, global = true, value_name = "DEVICE", value_parser = target::volume(), help_heading = RESCUE)]
    pub(crate) realtime: Option<Location>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Info(info::Args),
    Ls(ls::Args),
    Stat(stat::Args),
    Cat(cat::Args),
    Map(map::Args),
    Find(find::Args),
    Du(du::Args),
    Df(df::Args),
    Readlink(readlink::Args),
    Getfattr(getfattr::Args),
    Diff(diff::Args),
    Host(host::Args),
    Check(check::Args),
    Dump(dump::Args),
    Undelete(undelete::Args),
    Salvage(salvage::Args),
    Integrity(integrity::Args),
    #[cfg(feature = "disk")]
    Verity(verity::Args),
    Cp(cp::Args),
    Clone(clone::Args),
    Mkfs(Box<mkfs::Args>),
    #[cfg(feature = "disk")]
    Disk(Box<disk::Args>),
    Tune(Box<tune::Args>),
    Resize(resize::Args),
    Write(write::Args),
    Mkdir(mkdir::Args),
    Mknod(mknod::Args),
    Rmdir(rmdir::Args),
    Rm(rm::Args),
    Mv(mv::Args),
    Ln(ln::Args),
    Tar(tar::Args),
    Touch(touch::Args),
    Truncate(truncate::Args),
    Fallocate(fallocate::Args),
    Chmod(chmod::Args),
    Chown(chown::Args),
    Chattr(chattr::Args),
    Setfattr(setfattr::Args),
    Sync(sync::Args),
    #[cfg(feature = "fuse")]
    Mount(mount::Args),
    #[cfg(feature = "fuse")]
    Umount(mount::UnmountArgs),
    Bench(Box<bench::BenchArgs>),
    Demo(demo::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Complete(complete::Args),
    Man(man::Args),
}

impl Command {
    /// Runs the command. Reports each failure after which the command continues. Returns the failure that ends the command.
    pub(crate) fn run(&self, report: &mut Report) -> Result<(), Failure> {
        match self {
            Self::Info(args) => info::run(args, report),
            Self::Ls(args) => ls::run(args, report),
            Self::Stat(args) => stat::run(args, report),
            Self::Cat(args) => cat::run(args, report),
            Self::Map(args) => map::run(args, report),
            Self::Find(args) => find::run(args, report),
            Self::Du(args) => du::run(args, report),
            Self::Df(args) => df::run(args, report),
            Self::Readlink(args) => readlink::run(args, report),
            Self::Getfattr(args) => getfattr::run(args, report),
            Self::Diff(args) => diff::run(args, report),
            Self::Write(args) => write::run(args, report),
            Self::Mknod(args) => mknod::run(args, report),
            Self::Host(args) => host::run(args, report),
            Self::Check(args) => check::run(args, report),
            Self::Dump(args) => dump::run(args, report),
            Self::Undelete(args) => undelete::run(args, report),
            Self::Salvage(args) => salvage::run(args, report),
            Self::Integrity(args) => integrity::run(args, report),
            #[cfg(feature = "disk")]
            Self::Verity(args) => verity::run(args, report),
            Self::Cp(args) => cp::run(args, report),
            Self::Clone(args) => clone::run(args, report),
            Self::Mkfs(args) => mkfs::run(args, report),
            #[cfg(feature = "disk")]
            Self::Disk(args) => disk::run(args, report),
            Self::Tune(args) => tune::run(args, report),
            Self::Resize(args) => resize::run(args, report),
            Self::Mkdir(args) => mkdir::run(args, report),
            Self::Rmdir(args) => rmdir::run(args, report),
            Self::Rm(args) => rm::run(args, report),
            Self::Mv(args) => mv::run(args, report),
            Self::Ln(args) => ln::run(args, report),
            Self::Tar(args) => tar::run(args, report),
            Self::Touch(args) => touch::run(args, report),
            Self::Truncate(args) => truncate::run(args, report),
            Self::Fallocate(args) => fallocate::run(args, report),
            Self::Chmod(args) => chmod::run(args, report),
            Self::Chown(args) => chown::run(args, report),
            Self::Chattr(args) => chattr::run(args, report),
            Self::Setfattr(args) => setfattr::run(args, report),
            Self::Sync(args) => sync::run(args, report),
            #[cfg(feature = "fuse")]
            Self::Mount(args) => mount::run(args, report),
            #[cfg(feature = "fuse")]
            Self::Umount(args) => mount::unmount(args, report),
            Self::Bench(args) => bench::run(args, report),
            Self::Demo(args) => demo::run(args, report, run_line),
            Self::Completions(args) => completions::run(args, command()),
            Self::Complete(args) => complete::run(args, report),
            Self::Man(args) => man::run(args, command()),
        }
    }
}

/// Parses the words of a command line, and runs the command.
fn run_line(words: &[&str], report: &mut Report) -> Result<(), Failure> {
    let cli = Cli::parse_words([&["ironmap"], words].concat().into_iter().map(OsString::from));
    let cli = cli.map_err(|error| Failure::new(error.to_string()))?;
    cli.command.run(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_examples() {
        let mut command = command();
        command.build();
        command.clone().debug_assert();
        for sub in command.get_subcommands() {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  ironmap "), "{} has no examples", sub.get_name());
        }
    }

    /// Each command is in exactly one of three lists. Only the help of the commands in `READS` shows the options for damaged volumes. The
    /// commands in `changes` must refuse these options themselves.
    #[test]
    fn options_for_damaged_volumes_are_where_they_apply() {
        let changes = [
            "mkfs",
            "tune",
            "resize",
            "write",
            "mkdir",
            "mknod",
            "rmdir",
            "rm",
            "mv",
            "ln",
            "touch",
            "truncate",
            "fallocate",
            "chmod",
            "chown",
            "chattr",
            "setfattr",
            "sync",
        ];
        let mut command = command();
        command.build();
        for sub in command.get_subcommands() {
            let name = sub.get_name();
            let lists = [&READS[..], &NO_VOLUME, &changes];
            assert_eq!(lists.iter().filter(|list| list.contains(&name)).count(), 1, "{name}");
            let rescue = sub.get_arguments().filter(|arg| arg.get_help_heading() == Some(RESCUE));
            let shown = rescue.filter(|arg| !arg.is_hide_set()).count();
            assert_eq!(shown, if READS.contains(&name) { 5 } else { 0 }, "{name}");
        }
    }
}
